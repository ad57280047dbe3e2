//! Congestion controller that records the last acknowledgement and the lost bytes, and keeps a minimum window.
//!
//! Works around four things: quinn has no API for the time of the last packet from a peer, it counts lost packets
//! beside packets that are never acknowledged, so that the ratio says little about the path, its BBR lowers the window to four packets (see `WINDOW_PACKETS_MIN`), and it takes no notice of loss (see `FLOODED_PER_MILLE_MIN`). All other decisions are left to quinn's own controller.
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
            recent: RecentLoss::default(),
        })
    }
}

struct ObservedController {
    inner: Box<dyn Controller>,
    last_acknowledged: Instant,
    mtu: u64,
    path: PathStats,
    recent: RecentLoss,
}

/// Minimum congestion window of a path that loses little. BBR goes down to four packets when the round trip was once short and is now
/// long because processors are busy, as on one host or in one building: a link was measured at 0.6 MB/s. 32
/// packets are 37 ms at 10 Mbit/s, and a sixth of BBR's initial window.
const WINDOW_PACKETS_MIN: u64 = 32;
/// Bytes after which older losses count half: about 50 packets.
const RECENT_BYTES: u64 = 64 * 1024;
/// Lost bytes per 1,000 from which on UDP is taken for throttled, as in `session::secondary`. A throttled path has no
/// minimum window: 32 packets per round trip were 18 times the rate of a limit of 1 Mbit/s.
const THROTTLED_PER_MILLE_MIN: u64 = 100;
/// Lost bytes per 1,000 from which on BBR's window is no estimate of the path: the burst that a limit lets pass at first
/// was measured as bandwidth. The window is `FLOODED_PACKETS_MAX` until less is lost. Without it a link sent 6 MB/s
/// into a limit of 1 Mbit/s. The packets of the other direction were lost too, and quinn waits twice as long before each
/// repetition: streams had their first byte after 10 to 27 s.
const FLOODED_PER_MILLE_MIN: u64 = 500;
const FLOODED_PACKETS_MAX: u64 = 4;

/// The share of bytes that were lost lately.
#[derive(Debug, Clone, Copy, Default)]
struct RecentLoss {
    bytes: u64,
    lost_bytes: u64,
}

impl RecentLoss {
    fn note(&mut self, bytes: u64, lost_bytes: u64) {
        self.bytes += bytes;
        self.lost_bytes += lost_bytes;
        while self.bytes >= 2 * RECENT_BYTES {
            (self.bytes, self.lost_bytes) = (self.bytes / 2, self.lost_bytes / 2);
        }
    }

    /// Lost bytes per 1,000; 0 until enough bytes were sent.
    fn per_mille(&self) -> u64 {
        match self.bytes >= RECENT_BYTES {
            true => self.lost_bytes * 1000 / self.bytes,
            false => 0,
        }
    }
}

/// The window for one that quinn's controller has chosen.
fn window_bytes(chosen: u64, mtu: u64, recent: &RecentLoss) -> u64 {
    match recent.per_mille() {
        FLOODED_PER_MILLE_MIN.. => chosen.min(FLOODED_PACKETS_MAX * mtu),
        THROTTLED_PER_MILLE_MIN.. => chosen,
        _ => chosen.max(WINDOW_PACKETS_MIN * mtu),
    }
}

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
        self.recent.note(bytes, 0);
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
        self.recent.note(lost_bytes, lost_bytes);
        self.inner.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu.into();
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        window_bytes(self.inner.window(), self.mtu, &self.recent)
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
            recent: self.recent,
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: u64 = 1200;

    #[test]
    fn the_more_a_path_loses_the_less_is_sent_at_once() {
        let window_after = |lost: u64, chosen: u64| {
            let mut recent = RecentLoss::default();
            (0..20).for_each(|_| recent.note(100 * PACKET, lost * PACKET));
            window_bytes(chosen * PACKET, PACKET, &recent) / PACKET
        };
        for (lost, chosen, expected) in [
            (0, 4, WINDOW_PACKETS_MIN),
            (2, 4, WINDOW_PACKETS_MIN),
            (2, 300, 300),
            (20, 4, 4),
            (20, 300, 300),
            (94, 2, 2),
            (94, 300, FLOODED_PACKETS_MAX),
        ] {
            assert_eq!(window_after(lost, chosen), expected, "{lost} % lost, {chosen} packets");
        }
    }

    #[test]
    fn losses_count_when_enough_was_sent_and_are_forgotten() {
        let mut recent = RecentLoss::default();
        recent.note(50 * PACKET, 50 * PACKET);
        assert_eq!(recent.per_mille(), 0);
        recent.note(50 * PACKET, 50 * PACKET);
        assert_eq!(recent.per_mille(), 1000);
        (0..5).for_each(|_| recent.note(100 * PACKET, 0));
        assert!(recent.per_mille() < THROTTLED_PER_MILLE_MIN);
    }
}
