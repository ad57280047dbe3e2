//! The thread that forwards packets: device to socket, socket to device, timers, and new plans.
//!
//! One plain thread without a runtime. Outbound: a frame is looked up, translated, clamped, cut, sealed into a train
//! and sent. Inbound: trains are received, opened in place, looked up, translated, joined and written. No allocation,
//! lock or hand-over between threads per packet; packets that ride the channel take a queue.

mod admit;
mod admit_service;
mod demand;
mod inbound;
mod outbound;
pub mod peers;
mod records;
mod relay;
mod reply_shares;
mod train;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::address_rates::AddressRates;
use super::busy_poll::{BusyPoll, Turn};
use super::counters::{DropReason, PathLabel, TunnelCounters};
use super::early_packets::EarlyPackets;
use super::flow::{FLOWS_MAX, FlowTable};
use super::join::{FrameSink, Joiner};
use super::noise::{MacKeys, StaticKeys};
use super::offload::FrameHeader;
use super::packet_device::PacketDevice;
use super::path_selector::PathTarget;
use super::pending_frames::PendingFrames;
use super::plan::ForwardPlan;
use super::relay_permit::RelayBudget;
use super::reply::REPLY_MAX;
use super::socket::{ReceiveBatch, TunnelSocket};
use super::translate::Direction;
use super::{TunnelShared, TunnelState};
use admit_service::ServiceTranslator;
use peers::PeerTable;
use reply_shares::ReplyShares;
use train::Train;

/// Time between timers. Retries of probes are the finest of them.
const TICK: Duration = Duration::from_millis(100);
/// Time between timers while no peer has a session.
const IDLE_TICK: Duration = Duration::from_secs(1);
const PUBLISH_PERIOD: Duration = Duration::from_secs(1);
/// Batches that are received before the joined frames are written, and frames that are read before the other side
/// gets a turn.
const ROUNDS_MAX: usize = 4;
const FRAMES_MAX: usize = 32;

pub struct Worker {
    shared: Arc<TunnelShared>,
    /// None: this gateway has no networks, and is there for its peers to find their own addresses.
    device: Option<PacketDevice>,
    socket: TunnelSocket,
    keys: StaticKeys,
    macs: MacKeys,
    plan: Arc<ForwardPlan>,
    peers: PeerTable,
    flows: FlowTable,
    translator: ServiceTranslator,
    joiner: Joiner,
    train: Train,
    frame: Vec<u8>,
    /// Frames to members of large communities, and packets of members over the channel, that came before their peer.
    pending: PendingFrames,
    early: EarlyPackets,
    /// The time of the next search for peers that are silent.
    next_silence_look: Instant,
    /// A packet that is sent through a relay.
    relay_frame: Vec<u8>,
    /// The rate at which this gateway forwards for all senders together.
    relay_total: RelayBudget,
    batch: Option<ReceiveBatch>,
    /// None: a machine with one core, where no other thread could work during a poll.
    busy_poll: Option<BusyPoll>,
    turn: Turn,
    counters: TunnelCounters,
    published: TunnelCounters,
    mtu_max: usize,
    /// The secret of cookies, and when it was made.
    cookie_secret: ([u8; 32], Instant),
    /// Cookie replies to each address, and initiations with a cookie that are read from it, while this gateway is under load.
    cookie_rates: AddressRates,
    initiation_rates: AddressRates,
    /// Initiations since the last second began, for the decision whether this gateway is under load.
    initiations: (u32, Instant),
    /// Answers to hosts of this site, and to those of peers, that are left for this second.
    replies: u32,
    peer_replies: ReplyShares,
    /// DSCP and ECN of the datagram that is being read.
    outer_class: u8,
}

/// The result of a wait.
#[derive(Clone, Copy)]
struct Ready {
    socket: bool,
    device: bool,
    wake: bool,
}

impl Ready {
    fn is_any(self) -> bool {
        self.socket || self.device || self.wake
    }
}

fn has_cores() -> bool {
    thread::available_parallelism().is_ok_and(|count| count.get() > 1)
}

/// A packet of jumbo size, sealed, with its head.
const RELAY_FRAME_BYTES: usize = 16_384;
/// ICMP errors and resets per second to hosts of this site, and as many to those of all peers.
pub const REPLIES_PER_SECOND: u32 = 1000;

impl Worker {
    pub fn new(
        shared: Arc<TunnelShared>,
        device: Option<PacketDevice>,
        socket: TunnelSocket,
        keys: StaticKeys,
        mtu: usize,
        relay_bytes_per_second: u64,
    ) -> Worker {
        let offloads = device.as_ref().map(PacketDevice::offloads).unwrap_or_default();
        let now = Instant::now();
        Worker {
            macs: MacKeys::of(keys.public()),
            joiner: Joiner::new(offloads.tcp, offloads.udp),
            train: Train::new(socket.cuts_trains()),
            plan: Arc::default(),
            peers: PeerTable::default(),
            flows: FlowTable::new(FLOWS_MAX),
            translator: ServiceTranslator::new(&keys.secret_for("causeway client numbers")),
            frame: vec![0; 65_536 + FrameHeader::BYTES],
            pending: PendingFrames::default(),
            early: EarlyPackets::default(),
            next_silence_look: now + demand::SILENCE_LOOK,
            relay_frame: vec![0; RELAY_FRAME_BYTES],
            relay_total: RelayBudget::new(relay_bytes_per_second),
            batch: Some(ReceiveBatch::default()),
            busy_poll: has_cores().then(|| BusyPoll::new(now)),
            turn: Turn::default(),
            counters: TunnelCounters::default(),
            published: TunnelCounters::default(),
            mtu_max: mtu,
            cookie_secret: ([0; 32], now),
            cookie_rates: AddressRates::new(inbound::COOKIES_OF_ONE_ADDRESS),
            initiation_rates: AddressRates::new(inbound::INITIATIONS_OF_ONE_ADDRESS),
            initiations: (0, now),
            replies: REPLIES_PER_SECOND,
            peer_replies: ReplyShares::default(),
            outer_class: 0,
            shared,
            device,
            socket,
            keys,
        }
    }

    /// Forwards until told to stop.
    pub fn run(mut self) -> io::Result<()> {
        random(&mut self.cookie_secret.0);
        let (mut next_tick, mut next_publish) = (Instant::now(), Instant::now());
        while !self.shared.is_stopping() {
            self.follow_plan();
            let tick = if self.peers.iter().next().is_some() { TICK } else { IDLE_TICK };
            let ready = self.wait(next_tick)?;
            let now = Instant::now();
            self.turn = Turn::default();
            if ready.socket {
                self.receive(now);
            }
            if ready.device {
                self.send(now)?;
            }
            self.take_carried(now);
            if let Some(busy_poll) = &mut self.busy_poll {
                busy_poll.handle_turn(&self.turn, now);
            }
            if now >= next_tick {
                self.handle_time(now);
                next_tick = now + tick;
            }
            if now >= next_publish {
                self.publish(now);
                next_publish = now + PUBLISH_PERIOD;
            }
        }
        let (now, plan, context) = (Instant::now(), self.plan.clone(), self.shared.context.clone());
        self.flows.stop(|flow, end| context.audit.record(records::of_end(&plan.view, &flow, end, now)));
        Ok(())
    }

    /// Waits for packets, a wake or the next timer; where an answer is expected, by polling.
    fn wait(&mut self, until: Instant) -> io::Result<Ready> {
        let mut now = Instant::now();
        while let Some(busy_poll) = &mut self.busy_poll
            && busy_poll.is_polling(now)
            && now < until
        {
            let ready = self.poll(Duration::ZERO)?;
            if ready.is_any() {
                return Ok(ready);
            }
            let before = Instant::now();
            thread::yield_now();
            now = Instant::now();
            if let Some(busy_poll) = &mut self.busy_poll {
                busy_poll.handle_yield(now.duration_since(before), now);
            }
        }
        self.poll(until.saturating_duration_since(now))
    }

    fn poll(&self, timeout: Duration) -> io::Result<Ready> {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let socket = PollFd::new(&self.socket, PollFlags::IN);
        let device = self.device.as_ref().map(|device| PollFd::new(device, PollFlags::IN));
        let wake = self.shared.wake.file().map(|wake| PollFd::new(wake, PollFlags::IN));
        // The socket stands in for a file that is not there.
        let (device, wake) =
            (device.unwrap_or_else(|| socket.clone()), wake.unwrap_or_else(|| socket.clone()));
        let mut files = [socket, device, wake];
        match poll(&mut files, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let wake = self.shared.take_wake();
        if wake {
            self.shared.wake.clear();
        }
        let [socket, device, _] = files;
        // An error of a file is found by reading it.
        Ok(Ready { socket: !socket.revents().is_empty(), device: !device.revents().is_empty(), wake })
    }

    fn receive(&mut self, now: Instant) {
        let Some(mut batch) = self.batch.take() else { return };
        for _ in 0..ROUNDS_MAX {
            let count = self.socket.receive(&mut batch).unwrap_or(0);
            for index in 0..count {
                let (received, bytes) = batch.train(index);
                self.outer_class = received.traffic_class;
                for message in bytes.chunks_mut(received.segment.max(1)) {
                    self.turn.add(Direction::Inbound, message.len());
                    self.handle_message(message, inbound::Origin::Address(received.from), now);
                }
            }
            if count == 0 {
                break;
            }
        }
        self.batch = Some(batch);
        self.outer_class = 0;
        self.joiner.flush(&mut self.device);
        self.flush_train();
        let refusals = self.device.as_mut().map(PacketDevice::take_refusals).unwrap_or_default();
        self.counters.dropped[DropReason::Device as usize] += refusals.frames;
        if refusals.segments {
            self.joiner.disable();
            tracing::warn!(
                "the TUN device refuses frames with several segments: the tunnel writes packets one by one"
            );
        }
    }

    /// An error: the device is gone.
    fn send(&mut self, now: Instant) -> io::Result<()> {
        let mut frame = std::mem::take(&mut self.frame);
        let mut result = Ok(());
        for _ in 0..FRAMES_MAX {
            let Some(device) = &mut self.device else { break };
            match device.read(&mut frame) {
                Ok(Some(place)) => {
                    self.turn.add(Direction::Outbound, place.len());
                    self.handle_frame(&mut frame[place], now);
                }
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        self.frame = frame;
        self.flush_train();
        result
    }

    fn take_carried(&mut self, now: Instant) {
        while let Some((gateway, packet)) = self.shared.next_carried() {
            if let Some(slot) = self.peers.by_name(&gateway) {
                let mut message = packet.to_vec();
                self.handle_message(&mut message, inbound::Origin::Channel(slot), now);
            } else if !self.early.push(gateway, packet, now) {
                self.counters.drop(DropReason::NoSession);
            }
        }
        self.joiner.flush(&mut self.device);
        self.flush_train();
    }

    /// Takes a new plan: peers come and go, and every flow is judged again.
    fn follow_plan(&mut self) {
        let plan = self.shared.plan.load();
        if Arc::ptr_eq(&plan, &self.plan) {
            return;
        }
        self.plan = plan.clone();
        let now = Instant::now();
        self.peers.follow(&self.plan, self.mtu_max, now);
        self.translator.follow(&self.plan, &self.peers);
        if let Some(device) = &mut self.device {
            device.follow(&self.plan);
        }
        let (plan, peers, context) = (&self.plan, &self.peers, &self.shared.context);
        let judge = |flow: &mut super::flow::Flow| admit::judge_again(plan, peers, flow);
        self.flows
            .judge(judge, |flow, end| context.audit.record(records::of_end(&plan.view, &flow, end, now)));
        self.take_up_pending(now);
    }

    fn handle_time(&mut self, now: Instant) {
        self.ask_relays(now);
        if let Some(device) = &mut self.device {
            device.handle_time(now);
        }
        self.handle_demand_time(now);
        for slot in 0..self.peers.slots() {
            self.handle_peer_time(slot, now);
        }
        self.flush_train();
        if now.duration_since(self.initiations.1) >= Duration::from_secs(1) {
            self.initiations = (0, now);
            self.replies = REPLIES_PER_SECOND;
            self.peer_replies.begin_second();
        }
        if now.duration_since(self.cookie_secret.1) >= Duration::from_secs(120) {
            random(&mut self.cookie_secret.0);
            self.cookie_secret.1 = now;
            self.flows.sweep_shares();
            self.translator.sweep(&self.flows);
        }
    }

    /// Writes an answer to a host of this site.
    fn write_packet(&mut self, packet: &[u8]) {
        let mut frame = [0; FrameHeader::BYTES + REPLY_MAX];
        if let Some(room) = frame.get_mut(FrameHeader::BYTES..FrameHeader::BYTES + packet.len()) {
            room.copy_from_slice(packet);
            self.device.write_frame(&frame[..FrameHeader::BYTES + packet.len()]);
        }
    }

    fn publish(&mut self, now: Instant) {
        let (plan, context) = (self.plan.clone(), self.shared.context.clone());
        self.flows
            .expire(now, |flow, end| context.audit.record(records::of_end(&plan.view, &flow, end, now)));
        let open = self.peers.iter().filter(|peer| peer.session.is_open(now)).count();
        self.shared.metrics.publish(&self.published, &self.counters, self.flows.len(), open);
        self.published = self.counters;
        let mut state = TunnelState {
            device: self.device.as_ref().map(|device| device.name().to_owned()),
            listen: self.socket.local_addr().ok(),
            flows: self.flows.len(),
            dropped: self.counters.dropped_by_reason(),
            relayed: self.counters.relayed,
            on_demand: self.plan.view.on_demand.is_some(),
            ..TunnelState::default()
        };
        let mut paths = BTreeMap::new();
        for peer in self.peers.iter() {
            let mut shown = peer.state(now);
            if let Some(PathTarget::Relay(relay)) = peer.target() {
                shown.relay = self.peers.relay_name(relay).map(ToString::to_string);
            }
            let relay = shown.relay.clone().unwrap_or_default();
            *paths.entry(PathLabel { path: shown.path.word(), relay }).or_default() += 1;
            shown.carries_networks |= self.plan.services.is_peer(&peer.planned.entry);
            state.peers.insert(peer.planned.entry.gateway.to_string(), shown);
        }
        self.shared.metrics.publish_paths(&paths);
        self.shared.publish(state);
    }
}

impl peers::Peer {
    fn state(&self, now: Instant) -> super::TunnelPeerState {
        super::TunnelPeerState {
            endpoint: self.direct(),
            path: self.path(now),
            carries_networks: !self.planned.entry.networks.is_empty(),
            not_direct: match self.session.is_open(now) && !self.is_plain() {
                true => self.selector.not_direct().map(|reason| reason.to_string()),
                false => None,
            },
            last_handshake: self.session.last_handshake().and_then(|moment| {
                let at = SystemTime::now().checked_sub(now.saturating_duration_since(moment))?;
                Some(crate::audit::timestamp(at))
            }),
            relay: None,
            loss_percent: self.target().and_then(|_| self.monitor.loss()),
            rtt_us: match self.target() {
                Some(_) => self.monitor.round_trip().or(self.selector.round_trip()),
                None => self.carried.round_trip,
            }
            .map(|time| time.as_micros() as u64),
            mtu: self.mtu(),
            sent: self.sent,
            received: self.received,
        }
    }
}

/// Fills bytes with random ones.
fn random(bytes: &mut [u8]) {
    // The system's generator is seeded long before a gateway runs; without it a handshake fails as well.
    let _ = aws_lc_rs::rand::fill(bytes);
}

fn random_index() -> u32 {
    let mut bytes = [0; 4];
    random(&mut bytes);
    u32::from_le_bytes(bytes)
}
