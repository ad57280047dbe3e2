//! TLS server session that fails at the first message, so that a QUIC refusal carries a text.
//!
//! Works around: `quinn::Incoming::refuse` sends an empty reason (quinn-rs/quinn#2235 would add one). A TLS
//! session that fails at its first byte makes quinn send the error's text, in the single packet of a refusal,
//! and keep no state of the connection.
//!
//! Delete when quinn can refuse with a reason.

use std::any::Any;
use std::sync::Arc;

use quinn_proto::crypto::{
    ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig, Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError, TransportErrorCode};

/// Replaces the real TLS configuration for one connection.
pub(in crate::quic) struct RefusingHandshake {
    pub(in crate::quic) inner: Arc<dyn ServerConfig>,
    pub(in crate::quic) text: String,
}

impl ServerConfig for RefusingHandshake {
    fn initial_keys(&self, version: u32, dst_cid: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        self.inner.initial_keys(version, dst_cid)
    }

    fn retry_tag(&self, version: u32, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.inner.retry_tag(version, orig_dst_cid, packet)
    }

    fn start_session(self: Arc<Self>, version: u32, _: &TransportParameters) -> Box<dyn Session> {
        Box::new(Refused { config: self, version })
    }
}

struct Refused {
    config: Arc<RefusingHandshake>,
    version: u32,
}

impl Refused {
    fn error(&self) -> TransportError {
        let (code, reason) = (TransportErrorCode::CONNECTION_REFUSED, self.config.text.clone());
        TransportError { code, frame: None, reason }
    }
}

impl Session for Refused {
    fn initial_keys(&self, dst_cid: &ConnectionId, _: Side) -> Keys {
        let keys = self.config.initial_keys(self.version, dst_cid);
        keys.unwrap_or_else(|_| {
            unreachable!("quinn has made keys for this version, or there were no session")
        })
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        true
    }

    fn read_handshake(&mut self, _: &[u8]) -> Result<bool, TransportError> {
        Err(self.error())
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        Err(self.error())
    }

    fn write_handshake(&mut self, _: &mut Vec<u8>) -> Option<Keys> {
        None
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        None
    }

    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        false
    }

    fn export_keying_material(
        &self,
        _: &mut [u8],
        _: &[u8],
        _: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        Err(ExportKeyingMaterialError)
    }
}
