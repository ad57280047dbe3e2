//! The numbers of QUIC: windows, timeouts, congestion control, and what they cost.
//!
//! The congestion controller is wrapped so that the time of the last acknowledgement can be read: quinn itself
//! does not tell when it last heard from a peer.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::congestion::{BbrConfig, Controller, ControllerFactory, ControllerMetrics, CubicConfig};
use quinn::{ConfigError, Connection, EndpointConfig, MtuDiscoveryConfig, TransportConfig, VarInt};

use super::path::{LARGE_PACKET_BYTES, ORDINARY_PACKET_BYTES};
use crate::link::{LinkLimits, PathStats};

/// Streams a peer may open on a link that is still idle; see `leave_room_for_streams`. Seven eighths of 16, so
/// that quinn's tables have 16 places.
pub(super) const STREAMS_AT_FIRST: u32 = 14;

/// Streams a peer may open before it is admitted: the control stream. Lower than `STREAMS_AT_FIRST`, which tells them apart.
pub(super) const STREAMS_BEFORE_ADMISSION: u32 = 1;

/// The smallest packet of QUIC, which every path carries.
const PACKET_BYTES_MIN: u16 = 1200;

/// How a link over QUIC is driven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuicOptions {
    pub limits: LinkLimits,
    pub congestion: CongestionControl,
    /// Silence after which quinn gives a link up by itself; the shorter one of both ends counts.
    pub idle_max: Duration,
    /// The largest packet that is looked for, inside this host; a link that was busy holds ten of them. Peers are told that no
    /// larger ones are taken.
    pub packet_bytes_max: u16,
}

impl Default for QuicOptions {
    /// A little above the ten seconds after which a session is called dead, whoever looks: quinn only cleans up
    /// behind sessions that forgot to.
    fn default() -> QuicOptions {
        let (limits, congestion) = (LinkLimits::default(), CongestionControl::default());
        let packet_bytes_max = LARGE_PACKET_BYTES;
        QuicOptions { limits, congestion, idle_max: Duration::from_secs(15), packet_bytes_max }
    }
}

/// See docs/decisions/0001-transports.md, which chose BBR and says what was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CongestionControl {
    Cubic,
    /// Goes on through random loss; experimental in quinn.
    #[default]
    Bbr,
}

/// The settings of quinn for all links of an endpoint: one for each kind of path, however many links there are.
#[derive(Clone)]
pub(super) struct TransportConfigs {
    ordinary: Arc<TransportConfig>,
    inside: Arc<TransportConfig>,
}

impl TransportConfigs {
    /// `streams` is how many the peer may open at first.
    pub(super) fn new(options: &QuicOptions, streams: u32) -> TransportConfigs {
        let path =
            |bytes_max: u16| Arc::new(config(options, bytes_max.min(options.packet_bytes_max), streams));
        TransportConfigs { ordinary: path(ORDINARY_PACKET_BYTES), inside: path(LARGE_PACKET_BYTES) }
    }

    pub(super) fn of(&self, is_inside: bool) -> Arc<TransportConfig> {
        if is_inside { self.inside.clone() } else { self.ordinary.clone() }
    }
}

/// For a path on which packets of up to so many bytes are looked for.
fn config(options: &QuicOptions, packet_bytes: u16, streams: u32) -> TransportConfig {
    let limits = &options.limits;
    let mut config = TransportConfig::default();
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.minimum_change(mtu_step(packet_bytes)).upper_bound(packet_bytes);
    let link_window = VarInt::from_u64(limits.receive_bytes_max()).unwrap_or(VarInt::MAX);
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(streams.min(limits.streams_max)))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(limits.stream_window_bytes))
        .receive_window(link_window)
        .send_window(u64::from(limits.send_window_bytes))
        .max_idle_timeout(options.idle_max.try_into().ok())
        // Sessions ping; a second heartbeat would double the idle bytes.
        .keep_alive_interval(None)
        .datagram_receive_buffer_size(Some(limits.datagram_buffer_bytes))
        .datagram_send_buffer_size(limits.datagram_buffer_bytes)
        .mtu_discovery_config(Some(mtu))
        .congestion_controller_factory(Arc::new(Observed(options.congestion)));
    config
}

/// Half of what lies between the smallest packet and the largest, and one more: so the largest is tried first, and one probe
/// finds it where nothing is in the way. Searching in steps of 20 took five probes each way on every new link, and each of a
/// probe's 1,400 empty bytes is a frame to whoever reads it. Behind a tunnel 1,325 are found instead of up to 1,392.
fn mtu_step(packet_bytes: u16) -> u16 {
    packet_bytes.saturating_sub(PACKET_BYTES_MIN) / 2 + 1
}

/// What peers may send, and so how much is received at once.
pub(super) fn limit_packets(endpoint: &mut EndpointConfig, options: &QuicOptions) -> Result<(), ConfigError> {
    endpoint.max_udp_payload_size(options.packet_bytes_max).map(drop)
}

/// When a packet of ours was last acknowledged.
pub(super) fn last_acknowledged(connection: &Connection) -> Option<Instant> {
    let controller = connection.congestion_state().into_any().downcast::<ObservedController>().ok()?;
    Some(controller.last_acknowledged)
}

/// The bytes that were acknowledged, and those that were lost.
pub(super) fn path_stats(connection: &Connection) -> Option<PathStats> {
    let controller = connection.congestion_state().into_any().downcast::<ObservedController>().ok()?;
    Some(controller.path)
}

struct Observed(CongestionControl);

impl ControllerFactory for Observed {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let inner = match self.0 {
            CongestionControl::Cubic => Arc::new(CubicConfig::default()).build(now, current_mtu),
            CongestionControl::Bbr => Arc::new(BbrConfig::default()).build(now, current_mtu),
        };
        Box::new(ObservedController {
            inner,
            last_acknowledged: now,
            mtu: current_mtu.into(),
            path: PathStats::default(),
        })
    }
}

struct ObservedController {
    inner: Box<dyn Controller>,
    last_acknowledged: Instant,
    mtu: u64,
    path: PathStats,
}

/// BBR would go down to four packets where the round trip was ever short and is now long because processors are busy, as on one host or in
/// one building: a link was seen to carry 0.6 MB/s so. 32 packets are 37 ms of a line of 10 Mbit/s, and a sixth of what BBR begins with.
const WINDOW_PACKETS_MIN: u64 = 32;

impl Controller for ObservedController {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &quinn_proto::RttEstimator,
    ) {
        self.last_acknowledged = now;
        self.path.acknowledged_bytes += bytes;
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.path.lost_bytes += lost_bytes;
        self.inner.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu.into();
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.inner.window().max(WINDOW_PACKETS_MIN * self.mtu)
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(ObservedController {
            inner: self.inner.clone_box(),
            last_acknowledged: self.last_acknowledged,
            mtu: self.mtu,
            path: self.path,
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
