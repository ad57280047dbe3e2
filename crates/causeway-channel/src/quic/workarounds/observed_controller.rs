//! Congestion controller that records the last acknowledgement and the lost bytes, and keeps a minimum window.
//!
//! Works around three things: quinn has no API for the time of the last packet from a peer, it counts lost packets
//! beside packets that are never acknowledged, so that the ratio says little about the path, and its BBR lowers the window to four packets (see `WINDOW_PACKETS_MIN`). All decisions are left to quinn's own controller.
//!
//! Delete when `quinn::Connection` tells when it last heard from its peer, and when BBR's minimum window can
//! be configured.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use quinn::Connection;
use quinn::congestion::{BbrConfig, Controller, ControllerFactory, ControllerMetrics, CubicConfig};

use crate::link::PathStats;
use crate::quic::CongestionControl;

/// Returns the time at which the peer last acknowledged a packet.
pub(in crate::quic) fn last_acknowledged(connection: &Connection) -> Option<Instant> {
    let controller = connection.congestion_state().into_any().downcast::<ObservedController>().ok()?;
    Some(controller.last_acknowledged)
}

/// Returns the bytes that the peer acknowledged, and those that were lost.
pub(in crate::quic) fn path_stats(connection: &Connection) -> Option<PathStats> {
    let controller = connection.congestion_state().into_any().downcast::<ObservedController>().ok()?;
    Some(controller.path)
}

pub(in crate::quic) struct Observed(pub(in crate::quic) CongestionControl);

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

/// Minimum congestion window. BBR goes down to four packets when the round trip was once short and is now
/// long because processors are busy, as on one host or in one building: a link was measured at 0.6 MB/s. 32
/// packets are 37 ms at 10 Mbit/s, and a sixth of BBR's initial window.
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
