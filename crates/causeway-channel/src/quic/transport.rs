//! Settings of QUIC: windows, timeouts, congestion control, and their cost.
//!
//! The congestion controller is wrapped by `workarounds::observed_controller`.

use std::sync::Arc;
use std::time::Duration;

use quinn::{ConfigError, EndpointConfig, MtuDiscoveryConfig, TransportConfig, VarInt};

use super::path::{LARGE_PACKET_BYTES, ORDINARY_PACKET_BYTES};
use super::workarounds::observed_controller::Observed;
use crate::link::{LinkLimits, QUIC_WINDOW_BYTES_MIN};

/// Streams that a peer may open on an idle link; see `raise_stream_limit`. Seven eighths of 16, so that
/// quinn's tables have 16 entries.
pub(super) const STREAMS_AT_FIRST: u32 = 14;

/// Streams that a peer may open before it is admitted: the control stream. Lower than `STREAMS_AT_FIRST`,
/// which tells the two states apart.
pub(super) const STREAMS_BEFORE_ADMISSION: u32 = 1;

/// Smallest packet of QUIC, which every path must carry.
const PACKET_BYTES_MIN: u16 = 1200;

/// Options of links over QUIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuicOptions {
    pub limits: LinkLimits,
    pub congestion: CongestionControl,
    /// Idle timeout of quinn; the shorter value of both ends counts.
    pub idle_max: Duration,
    /// Largest packet that is probed inside this host; a link that was busy keeps ten of them. Announced to
    /// peers as the largest packet that is accepted.
    pub packet_bytes_max: u16,
}

impl Default for QuicOptions {
    /// The idle timeout is above the ten seconds after which a session is declared dead: quinn only removes
    /// links whose sessions were not closed.
    fn default() -> QuicOptions {
        let (limits, congestion) = (LinkLimits::default(), CongestionControl::default());
        let packet_bytes_max = LARGE_PACKET_BYTES;
        QuicOptions { limits, congestion, idle_max: Duration::from_secs(15), packet_bytes_max }
    }
}

/// Chosen in docs/decisions/0001-transports.md, with the measurements: BBR.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CongestionControl {
    Cubic,
    /// Keeps its rate under random loss; experimental in quinn.
    #[default]
    Bbr,
}

/// quinn's settings for all links of an endpoint, one per kind of path.
#[derive(Clone)]
pub(super) struct TransportConfigs {
    ordinary: Arc<TransportConfig>,
    inside: Arc<TransportConfig>,
}

impl TransportConfigs {
    /// `streams` is the number of streams that the peer may open at first.
    pub(super) fn new(options: &QuicOptions, streams: u32) -> TransportConfigs {
        let path =
            |bytes_max: u16| Arc::new(config(options, bytes_max.min(options.packet_bytes_max), streams));
        TransportConfigs { ordinary: path(ORDINARY_PACKET_BYTES), inside: path(LARGE_PACKET_BYTES) }
    }

    pub(super) fn of(&self, is_inside: bool) -> Arc<TransportConfig> {
        if is_inside { self.inside.clone() } else { self.ordinary.clone() }
    }
}

/// Settings for a path on which packets of up to `packet_bytes` are probed.
fn config(options: &QuicOptions, packet_bytes: u16, streams: u32) -> TransportConfig {
    let limits = &options.limits;
    let mut config = TransportConfig::default();
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.minimum_change(mtu_step(packet_bytes)).upper_bound(packet_bytes);
    // A peer that is not admitted has one stream; `admit` raises the window.
    let link_window = match streams {
        STREAMS_BEFORE_ADMISSION => limits.receive_bytes_max().min(QUIC_WINDOW_BYTES_MIN),
        _ => limits.receive_bytes_max(),
    };
    let link_window = VarInt::from_u64(link_window).unwrap_or(VarInt::MAX);
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(streams.min(limits.streams_max)))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(limits.stream_window_bytes))
        .receive_window(link_window)
        .send_window(u64::from(limits.send_window_bytes))
        .max_idle_timeout(options.idle_max.try_into().ok())
        // Sessions send pings; a second keepalive would double the idle traffic.
        .keep_alive_interval(None)
        .datagram_receive_buffer_size(Some(limits.datagram_buffer_bytes))
        .datagram_send_buffer_size(limits.datagram_buffer_bytes)
        .mtu_discovery_config(Some(mtu))
        .congestion_controller_factory(Arc::new(Observed(options.congestion)));
    config
}

/// Step of the MTU search: half of the range plus one, so that the largest size is probed first, and one
/// probe finds it on an unrestricted path. A step of 20 took five probes in each direction on every new link,
/// and each of a probe's 1,400 padding bytes is parsed as a frame by the receiver. Behind a tunnel the search
/// finds 1,325 instead of up to 1,392.
fn mtu_step(packet_bytes: u16) -> u16 {
    packet_bytes.saturating_sub(PACKET_BYTES_MIN) / 2 + 1
}

/// Limits the packets that peers may send, and so the size of a receive.
pub(super) fn limit_packets(endpoint: &mut EndpointConfig, options: &QuicOptions) -> Result<(), ConfigError> {
    endpoint.max_udp_payload_size(options.packet_bytes_max).map(drop)
}
