//! One peer of the tunnel over time: handshakes, keys and their age, as WireGuard's protocol says (section 6).
//!
//! Input: messages of the peer, packets to seal, the time. Output: messages for the wire and opened packets. No
//! I/O, no clock. `worker` decides the address of a message; an authentic message names the address
//! from which the peer can be reached now.

use std::time::{Duration, Instant, SystemTime};

use super::cipher::{TAG_BYTES, TransportCipher, TransportKey};
use super::noise::{
    self, DATA, DATA_HEADER_BYTES, HandshakeKeys, MacKeys, PendingInitiation, PublicKey, ReceivedInitiation,
    StaticKeys, Timestamp,
};
use super::replay::ReplayWindow;

/// WireGuard, 6.1. A key is replaced after this time, and not used after `REJECT_AFTER`.
pub const REKEY_AFTER: Duration = Duration::from_secs(120);
pub const REJECT_AFTER: Duration = Duration::from_secs(180);
/// Time without a response after which an initiation is sent again.
pub const REKEY_TIMEOUT: Duration = Duration::from_secs(5);
/// Between our own gateways the first repetitions come sooner, each after twice the time: the other gateway may get its
/// netmap a moment later than this one.
const RETRY_FIRST: Duration = Duration::from_millis(250);
/// Time after which a handshake is given up until there is something to send.
const REKEY_ATTEMPT: Duration = Duration::from_secs(90);
/// Time without any answer after which a session with another Causeway gateway is made anew: it answers probes within
/// a second, unless it has been restarted.
const DEAD_AFTER: Duration = Duration::from_secs(3);
/// Time without a packet to the peer after which a received packet is answered by an empty one.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Initiations of one peer are at least this far apart: each costs three scalar multiplications.
const INITIATION_INTERVAL_MIN: Duration = Duration::from_millis(20);
/// Time without an answer after which the path is examined. A request that takes longer costs one probe.
const UNANSWERED_AFTER: Duration = Duration::from_millis(500);
/// Time for which a cookie is used.
const COOKIE_LIFETIME: Duration = Duration::from_secs(120);
/// AES-GCM is replaced before its bound for packets of this size (RFC 8446, 5.5); ChaCha20 would allow more.
const REKEY_AFTER_PACKETS: u64 = 1 << 28;
const REJECT_AFTER_PACKETS: u64 = 1 << 32;
/// The plaintext is padded to a multiple of this (WireGuard, 5.4.6), unless the packet fills the path.
const PADDING: usize = 16;

/// The state of a peer.
pub struct PeerSession {
    cipher: TransportCipher,
    peer: PublicKey,
    macs: MacKeys,
    pending: Option<Pending>,
    /// Keys in use, those before, and those of which the peer has not used any yet.
    current: Option<SessionKeys>,
    previous: Option<SessionKeys>,
    next: Option<SessionKeys>,
    last_timestamp: Timestamp,
    last_initiation: Option<Instant>,
    /// See `admits_initiation`.
    last_initiation_attempt: Option<Instant>,
    last_handshake: Option<Instant>,
    last_sent: Option<Instant>,
    /// The time of the first packet sent since the last one that was received: no answer means a broken session.
    unanswered_since: Option<Instant>,
    /// The time of the last packet received since the last one that was sent.
    unacknowledged_since: Option<Instant>,
    cookie: Option<([u8; 16], Instant)>,
    last_mac1: [u8; 16],
    persistent_keepalive: Option<Duration>,
    /// The first interval of repeated initiations.
    retry_first: Duration,
    dead_after: Duration,
    wants_handshake: bool,
}

struct Pending {
    handshake: PendingInitiation,
    since: Instant,
    sent: Instant,
    tries: u32,
}

struct SessionKeys {
    local_index: u32,
    remote_index: u32,
    send: TransportKey,
    receive: TransportKey,
    counter: u64,
    window: ReplayWindow,
    made: Instant,
    is_initiator: bool,
}

/// The result of a sealed packet that arrived.
#[derive(Debug, PartialEq, Eq)]
pub enum Opened<'packet> {
    Packet(&'packet mut [u8]),
    /// An empty packet, which only says that the peer is there.
    Keepalive,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    #[error("no session has this index")]
    NoSession,
    #[error("the packet was received before")]
    Replayed,
    #[error("the packet is not authentic")]
    NotAuthentic,
    #[error("the session is too old")]
    Expired,
}

/// The effect of a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TimerActions {
    pub initiate: bool,
    pub keepalive: bool,
}

impl PeerSession {
    /// A session with another Causeway gateway.
    pub fn new(peer: PublicKey, cipher: TransportCipher) -> PeerSession {
        PeerSession {
            cipher,
            peer,
            macs: MacKeys::of(&peer),
            pending: None,
            current: None,
            previous: None,
            next: None,
            last_timestamp: Timestamp::default(),
            last_initiation: None,
            last_initiation_attempt: None,
            last_handshake: None,
            last_sent: None,
            unanswered_since: None,
            unacknowledged_since: None,
            cookie: None,
            last_mac1: [0; 16],
            persistent_keepalive: None,
            retry_first: RETRY_FIRST,
            dead_after: DEAD_AFTER,
            wants_handshake: false,
        }
    }

    /// A session with a WireGuard peer, by its own timers.
    pub fn plain(peer: PublicKey) -> PeerSession {
        let session = PeerSession::new(peer, TransportCipher::ChaCha20Poly1305);
        PeerSession { retry_first: REKEY_TIMEOUT, dead_after: KEEPALIVE_TIMEOUT + REKEY_TIMEOUT, ..session }
    }

    /// Sends an empty packet whenever none was sent for this time, so that NATs keep the path open.
    pub fn keep_alive(&mut self, period: Option<Duration>) {
        self.persistent_keepalive = period;
    }

    pub fn peer(&self) -> &PublicKey {
        &self.peer
    }

    pub fn cipher(&self) -> TransportCipher {
        self.cipher
    }

    pub fn last_handshake(&self) -> Option<Instant> {
        self.last_handshake
    }

    /// Tells whether packets can be sealed now.
    pub fn is_open(&self, now: Instant) -> bool {
        self.current.as_ref().is_some_and(|keys| keys.may_send(now))
    }

    /// Returns the indexes under which messages of the peer arrive.
    pub fn indexes(&self) -> impl Iterator<Item = u32> + '_ {
        let keys =
            [&self.current, &self.previous, &self.next].into_iter().flatten().map(|keys| keys.local_index);
        keys.chain(self.pending.as_ref().map(|pending| pending.handshake.local_index))
    }

    /// Requests a handshake at the next `handle_time`, for example when a packet waits.
    pub fn want_handshake(&mut self) {
        self.wants_handshake = true;
    }

    /// Repeats an initiation that waits for its response as if it were the first: the peer may know this gateway now.
    pub fn retry_soon(&mut self) {
        if let Some(pending) = &mut self.pending {
            pending.tries = 0;
        }
    }

    /// Makes an initiation. `index` is new and random.
    pub fn initiate(
        &mut self,
        keys: &StaticKeys,
        index: u32,
        now: Instant,
        clock: SystemTime,
    ) -> Option<[u8; noise::INITIATION_BYTES]> {
        let stamp = noise::timestamp(clock);
        let (handshake, mut message) = noise::initiate(keys, &self.peer, &stamp, index).ok()?;
        self.sign(&mut message, now);
        let (since, tries) =
            self.pending.as_ref().map_or((now, 0), |pending| (pending.since, pending.tries + 1));
        self.pending = Some(Pending { handshake, since, sent: now, tries });
        self.wants_handshake = false;
        self.last_sent = Some(now);
        Some(message)
    }

    /// Returns false if the peer sends initiations over the channel faster than it may. They are refused before the costly part of
    /// the handshake.
    pub fn admits_initiation(&mut self, now: Instant) -> bool {
        let last = self.last_initiation_attempt.replace(now);
        last.is_none_or(|last| now.duration_since(last) >= INITIATION_INTERVAL_MIN)
    }

    /// Takes an authentic initiation of this peer, and makes the response. None: it is old, or one of too many.
    pub fn handle_initiation(
        &mut self,
        initiation: ReceivedInitiation,
        index: u32,
        now: Instant,
    ) -> Option<[u8; noise::RESPONSE_BYTES]> {
        let too_soon =
            self.last_initiation.is_some_and(|last| now.duration_since(last) < INITIATION_INTERVAL_MIN);
        if initiation.timestamp <= self.last_timestamp || too_soon {
            return None;
        }
        let (timestamp, remote_index) = (initiation.timestamp, initiation.remote_index);
        let (mut message, keys) = initiation.respond(index).ok()?;
        (self.last_timestamp, self.last_initiation) = (timestamp, Some(now));
        self.sign(&mut message, now);
        self.next = Some(SessionKeys::new(self.cipher, keys, index, remote_index, now, false));
        self.last_sent = Some(now);
        Some(message)
    }

    /// Takes a response whose first MAC was checked. True: the session is open, and the peer waits for a packet.
    pub fn handle_response(&mut self, message: &[u8], now: Instant) -> bool {
        let Some(pending) = self.pending.take() else { return false };
        let index = pending.handshake.local_index;
        match pending.handshake.finish(message) {
            Ok((keys, remote_index)) => {
                // Both ends may have initiated at once: the peer then sends under the keys that wait in `next`.
                self.previous = self.next.take().or(self.current.take());
                self.current = Some(SessionKeys::new(self.cipher, keys, index, remote_index, now, true));
                self.last_handshake = Some(now);
                self.unanswered_since = None;
                true
            }
            Err((_, handshake)) => {
                self.pending = Some(Pending { handshake, ..pending });
                false
            }
        }
    }

    /// Takes a cookie. The next initiation proves with it that the peer's answers reach this gateway.
    pub fn handle_cookie(&mut self, reply: &[u8], now: Instant) {
        if let Some(cookie) = self.macs.read_cookie(reply, &self.last_mac1) {
            self.cookie = Some((cookie, now));
        }
    }

    /// Seals a packet into `out`, and returns the length of the message. None: there is no session, or no room.
    /// `packet_max` bounds the padding.
    pub fn seal(&mut self, packet: &[u8], out: &mut [u8], packet_max: usize, now: Instant) -> Option<usize> {
        let keys = self.current.as_mut().filter(|keys| keys.may_send(now))?;
        let padded = packet.len().next_multiple_of(PADDING).min(packet_max.max(packet.len()));
        let length = DATA_HEADER_BYTES + padded + TAG_BYTES;
        let out = out.get_mut(..length)?;
        out[..4].copy_from_slice(&[DATA, 0, 0, 0]);
        out[4..8].copy_from_slice(&keys.remote_index.to_le_bytes());
        out[8..16].copy_from_slice(&keys.counter.to_le_bytes());
        let body = &mut out[DATA_HEADER_BYTES..];
        match padded == packet.len() {
            true => keys.send.seal(keys.counter, packet, body),
            false => {
                let mut copy = [0; PADDED_MAX];
                match copy.get_mut(..padded) {
                    Some(copy) => {
                        copy[..packet.len()].copy_from_slice(packet);
                        keys.send.seal(keys.counter, copy, body);
                    }
                    None => return None,
                }
            }
        }
        keys.counter += 1;
        self.last_sent = Some(now);
        self.unacknowledged_since = None;
        if !packet.is_empty() && self.unanswered_since.is_none() {
            self.unanswered_since = Some(now);
        }
        Some(length)
    }

    /// Seals a message that is no packet of a host: it needs no answer, and is none.
    pub fn seal_silently(&mut self, message: &[u8], out: &mut [u8], now: Instant) -> Option<usize> {
        let timers = (self.unanswered_since, self.unacknowledged_since);
        let length = self.seal(message, out, message.len(), now);
        (self.unanswered_since, self.unacknowledged_since) = timers;
        length
    }

    /// Tells whether packets were sent for a while and none came back.
    pub fn is_unanswered(&self, now: Instant) -> bool {
        self.unanswered_since.is_some_and(|since| now.duration_since(since) >= UNANSWERED_AFTER)
    }

    /// Opens a message in its place.
    pub fn open<'packet>(
        &mut self,
        message: &'packet mut [u8],
        now: Instant,
    ) -> Result<Opened<'packet>, OpenError> {
        let (header, body) = message.split_at_mut_checked(DATA_HEADER_BYTES).ok_or(OpenError::NoSession)?;
        let index = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        let counter = u64::from_le_bytes(header[8..16].try_into().map_err(|_| OpenError::NoSession)?);
        let slots = [&mut self.current, &mut self.previous, &mut self.next];
        let (slot, keys) = slots
            .into_iter()
            .enumerate()
            .find_map(|(slot, keys)| Some((slot, keys.as_mut().filter(|keys| keys.local_index == index)?)))
            .ok_or(OpenError::NoSession)?;
        if now.duration_since(keys.made) >= REJECT_AFTER || counter >= REJECT_AFTER_PACKETS {
            return Err(OpenError::Expired);
        }
        if !keys.window.is_new(counter) {
            return Err(OpenError::Replayed);
        }
        let packet = keys.receive.open(counter, body).map_err(|_| OpenError::NotAuthentic)?;
        keys.window.enter(counter);
        self.unanswered_since = None;
        let is_old = keys.is_initiator
            && now.duration_since(keys.made) >= REJECT_AFTER - KEEPALIVE_TIMEOUT - REKEY_TIMEOUT;
        if is_old && self.pending.is_none() {
            self.wants_handshake = true;
        }
        if slot == 2 {
            // The first packet under new keys confirms that the initiator has them.
            self.previous = self.current.take();
            self.current = self.next.take();
            self.last_handshake = Some(now);
            self.pending = None;
        }
        if packet.is_empty() {
            return Ok(Opened::Keepalive);
        }
        self.unacknowledged_since.get_or_insert(now);
        Ok(Opened::Packet(packet))
    }

    /// Decides what is due, and forgets keys that are too old.
    pub fn handle_time(&mut self, now: Instant) -> TimerActions {
        for slot in [&mut self.current, &mut self.previous, &mut self.next] {
            if slot.as_ref().is_some_and(|keys| now.duration_since(keys.made) >= REJECT_AFTER * 3) {
                *slot = None;
            }
        }
        let since = |moment: Option<Instant>| moment.map(|moment| now.duration_since(moment));
        let needs_rekey = self.current.as_ref().is_some_and(|keys| {
            let is_due = keys.counter >= REKEY_AFTER_PACKETS
                || (keys.is_initiator && now.duration_since(keys.made) >= REKEY_AFTER);
            // A session over which nothing is sent is not renewed.
            is_due && self.last_sent.is_some_and(|sent| sent.duration_since(keys.made) >= REKEY_AFTER)
                || keys.counter >= REKEY_AFTER_PACKETS
        });
        let is_dead = since(self.unanswered_since) >= Some(self.dead_after);
        let mut initiate = false;
        match &self.pending {
            Some(pending) if now.duration_since(pending.since) >= REKEY_ATTEMPT => {
                self.pending = None;
                self.unanswered_since = None;
            }
            Some(pending) => {
                let interval = (self.retry_first * 2_u32.pow(pending.tries.min(10))).min(REKEY_TIMEOUT);
                initiate = now.duration_since(pending.sent) >= interval;
            }
            None => initiate = self.wants_handshake || needs_rekey || is_dead,
        }
        let keepalive_due = since(self.unacknowledged_since) >= Some(KEEPALIVE_TIMEOUT)
            || self
                .persistent_keepalive
                .is_some_and(|period| since(self.last_sent).is_none_or(|past| past >= period));
        let is_open = self.is_open(now);
        // A keepalive over a session that does not exist begins one.
        if keepalive_due && !is_open && self.pending.is_none() {
            initiate = true;
        }
        TimerActions { initiate, keepalive: keepalive_due && is_open }
    }

    fn sign(&mut self, message: &mut [u8], now: Instant) {
        let cookie = self.cookie.filter(|(_, received)| now.duration_since(*received) < COOKIE_LIFETIME);
        self.last_mac1 = self.macs.sign(message, cookie.as_ref().map(|(cookie, _)| cookie));
    }
}

/// A packet that is padded fits the largest path MTU of this tunnel; longer ones are not padded.
const PADDED_MAX: usize = 9216;

impl SessionKeys {
    fn new(
        cipher: TransportCipher,
        keys: HandshakeKeys,
        local_index: u32,
        remote_index: u32,
        made: Instant,
        is_initiator: bool,
    ) -> SessionKeys {
        SessionKeys {
            local_index,
            remote_index,
            send: TransportKey::new(cipher, &keys.send),
            receive: TransportKey::new(cipher, &keys.receive),
            counter: 0,
            window: ReplayWindow::default(),
            made,
            is_initiator,
        }
    }

    fn may_send(&self, now: Instant) -> bool {
        now.duration_since(self.made) < REJECT_AFTER && self.counter < REJECT_AFTER_PACKETS
    }
}

#[cfg(test)]
#[path = "session/tests.rs"]
mod tests;
