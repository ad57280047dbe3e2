//! Stream header: the first bytes on every stream of a link.
//!
//! A protobuf message behind a length of two bytes, 4 KiB at most. An unknown field is ignored, so an older
//! peer reads a newer header; a stream with an unknown purpose is refused by its acceptor. The header proves
//! nothing: the identity of the peer comes from its certificate. The bytes are pinned by
//! `tests/it/wire_fixtures.rs`.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

/// Names of 253 bytes in every field fit three times over.
pub const HEADER_BYTES_MAX: usize = 4096;
/// Bytes of the length.
pub const PREFIX_BYTES: usize = 2;

/// First message on a stream, sent by the end that opens it.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct StreamHeader {
    /// A `StreamPurpose`.
    #[prost(uint32, tag = "1")]
    pub purpose: u32,
    /// Destination site of the stream when the receiver only forwards it.
    #[prost(string, tag = "2")]
    pub site: String,
    #[prost(string, tag = "3")]
    pub gateway: String,
    /// The target there: a service, a node or a path, depending on the purpose.
    #[prost(string, tag = "4")]
    pub target: String,
    /// Subject on whose behalf the stream is opened, as the opening gateway knows it.
    #[prost(string, tag = "5")]
    pub subject: String,
    /// Set by the cloud from the certificate of the session; trusted only when it comes from the cloud.
    #[prost(message, optional, tag = "6")]
    pub origin: Option<StreamOrigin>,
    /// Further data of the purpose.
    #[prost(bytes = "bytes", tag = "7")]
    pub details: Bytes,
    /// A large transfer is expected.
    #[prost(bool, tag = "8")]
    pub bulk: bool,
    /// The stream carries datagrams (`DatagramFlow`), and its opener accepts QUIC datagrams for it. A peer
    /// that does not know this field sends them on the stream; an older cloud that forwards the stream omits
    /// it, with the same effect.
    #[prost(bool, tag = "9")]
    pub datagrams: bool,
}

/// Origin of a forwarded stream.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct StreamOrigin {
    #[prost(string, tag = "1")]
    pub site: String,
    #[prost(string, tag = "2")]
    pub gateway: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamPurpose {
    /// The first stream of a link: hello, pings, netmaps, spool records.
    Control = 1,
    /// Echoes or counts bytes, for measurements.
    Probe = 2,
    Service = 3,
    Node = 4,
    Api = 5,
    // 6 is reserved: it was `Forward`, which no version has sent.
    /// Requests of `causeway doctor`, answered with JSON. A peer that does not know this purpose refuses the
    /// stream.
    Diagnose = 7,
    /// Sealed packets of layer 3, as datagrams, to the gateway that the header names. A peer that does not know this
    /// purpose refuses the stream.
    Packets = 8,
    /// The Kubernetes API at the edge: subscriptions and requests, as the target says. A peer that does not know this
    /// purpose refuses the stream.
    Kubernetes = 9,
}

#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    #[error("a stream header of {bytes} bytes is longer than {HEADER_BYTES_MAX}")]
    TooLong { bytes: usize },
    #[error("the stream header cannot be read")]
    Malformed(#[source] prost::DecodeError),
}

impl StreamHeader {
    pub fn new(purpose: StreamPurpose) -> StreamHeader {
        StreamHeader { purpose: purpose as u32, ..StreamHeader::default() }
    }

    /// Returns `None` for a purpose this program does not know.
    pub fn purpose(&self) -> Option<StreamPurpose> {
        Some(match self.purpose {
            1 => StreamPurpose::Control,
            2 => StreamPurpose::Probe,
            3 => StreamPurpose::Service,
            4 => StreamPurpose::Node,
            5 => StreamPurpose::Api,
            7 => StreamPurpose::Diagnose,
            8 => StreamPurpose::Packets,
            9 => StreamPurpose::Kubernetes,
            _ => return None,
        })
    }

    pub fn to(mut self, site: impl Into<String>, gateway: impl Into<String>) -> StreamHeader {
        (self.site, self.gateway) = (site.into(), gateway.into());
        self
    }

    pub fn target(mut self, target: impl Into<String>) -> StreamHeader {
        self.target = target.into();
        self
    }

    pub fn subject(mut self, subject: impl Into<String>) -> StreamHeader {
        self.subject = subject.into();
        self
    }

    pub fn details(mut self, details: impl Into<Bytes>) -> StreamHeader {
        self.details = details.into();
        self
    }

    /// Encodes length and message.
    pub fn encode_prefixed(&self) -> Result<Bytes, HeaderError> {
        let bytes = self.encoded_len();
        let prefix = match u16::try_from(bytes) {
            Ok(prefix) if bytes <= HEADER_BYTES_MAX => prefix,
            _ => return Err(HeaderError::TooLong { bytes }),
        };
        let mut buffer = BytesMut::with_capacity(PREFIX_BYTES + bytes);
        buffer.put_u16(prefix);
        self.encode_raw(&mut buffer);
        Ok(buffer.freeze())
    }

    /// Returns the length of the message behind this prefix.
    pub fn length(prefix: [u8; PREFIX_BYTES]) -> Result<usize, HeaderError> {
        match usize::from(u16::from_be_bytes(prefix)) {
            bytes if bytes > HEADER_BYTES_MAX => Err(HeaderError::TooLong { bytes }),
            bytes => Ok(bytes),
        }
    }

    /// Decodes the message without its length.
    pub fn decode_message(message: Bytes) -> Result<StreamHeader, HeaderError> {
        if message.len() > HEADER_BYTES_MAX {
            return Err(HeaderError::TooLong { bytes: message.len() });
        }
        StreamHeader::decode(message).map_err(HeaderError::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut header = StreamHeader::new(StreamPurpose::Service)
            .to("berlin", "gw-1")
            .target("camera")
            .subject("shop")
            .details(&b"x"[..]);
        header.origin = Some(StreamOrigin { site: "oslo".into(), gateway: "gw-2".into() });
        (header.bulk, header.datagrams) = (true, true);
        let bytes = header.encode_prefixed().unwrap();
        let length = StreamHeader::length([bytes[0], bytes[1]]).unwrap();
        assert_eq!(length, bytes.len() - PREFIX_BYTES);
        let read = StreamHeader::decode_message(bytes.slice(PREFIX_BYTES..)).unwrap();
        assert_eq!(read, header);
        assert_eq!(read.purpose(), Some(StreamPurpose::Service));
    }

    #[test]
    fn a_header_has_a_bound_in_both_directions() {
        let header = StreamHeader::new(StreamPurpose::Api).details(vec![0; HEADER_BYTES_MAX]);
        assert!(matches!(header.encode_prefixed(), Err(HeaderError::TooLong { .. })));
        let prefix = (HEADER_BYTES_MAX as u16 + 1).to_be_bytes();
        assert!(matches!(StreamHeader::length(prefix), Err(HeaderError::TooLong { .. })));
    }

    #[test]
    fn an_unknown_field_and_an_unknown_purpose_pass() {
        // Field 1 = 99, field 200 = 5.
        let bytes = Bytes::from_static(&[0x08, 99, 0xc0, 0x0c, 5]);
        let header = StreamHeader::decode_message(bytes).unwrap();
        assert_eq!((header.purpose, header.purpose()), (99, None));
    }
}
