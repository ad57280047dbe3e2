//! Two peers and a clock that the test moves.

use super::*;

struct Pair {
    keys: [StaticKeys; 2],
    sessions: [PeerSession; 2],
    begin: Instant,
    now: Instant,
    next_index: u32,
}

impl Pair {
    fn new(cipher: TransportCipher) -> Pair {
        let keys = [StaticKeys::generate().unwrap(), StaticKeys::generate().unwrap()];
        let sessions = [1, 0].map(|other: usize| PeerSession::new(*keys[other].public(), cipher));
        let now = Instant::now();
        Pair { keys, sessions, begin: now, now, next_index: 1 }
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    fn index(&mut self) -> u32 {
        self.next_index += 1;
        self.next_index
    }

    fn clock(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000) + self.now.duration_since(self.begin)
    }

    fn initiation(&mut self, from: usize) -> [u8; noise::INITIATION_BYTES] {
        let (index, clock) = (self.index(), self.clock());
        self.sessions[from].initiate(&self.keys[from], index, self.now, clock).unwrap()
    }

    fn answer(&mut self, by: usize, message: &[u8]) -> Option<[u8; noise::RESPONSE_BYTES]> {
        let index = self.index();
        MacKeys::of(self.keys[by].public()).check(message).unwrap();
        let initiation = noise::read_initiation(&self.keys[by], message).unwrap();
        self.sessions[by].handle_initiation(initiation, index, self.now)
    }

    fn shake(&mut self, from: usize) {
        let message = self.initiation(from);
        let response = self.answer(1 - from, &message).unwrap();
        assert!(self.sessions[from].handle_response(&response, self.now));
    }

    fn seal(&mut self, from: usize, packet: &[u8]) -> Option<Vec<u8>> {
        let mut out = vec![0; 2000];
        let length = self.sessions[from].seal(packet, &mut out, 1420, self.now)?;
        out.truncate(length);
        Some(out)
    }

    fn open(&mut self, at: usize, message: &[u8]) -> Result<Vec<u8>, OpenError> {
        let mut message = message.to_vec();
        self.sessions[at].open(&mut message, self.now).map(|opened| match opened {
            Opened::Packet(packet) => packet.to_vec(),
            Opened::Keepalive => Vec::new(),
        })
    }

    fn cross(&mut self, from: usize, packet: &[u8]) -> Result<Vec<u8>, OpenError> {
        let sealed = self.seal(from, packet).ok_or(OpenError::NoSession)?;
        self.open(1 - from, &sealed)
    }
}

#[test]
fn packets_cross_both_ways_after_one_round_trip() {
    for cipher in [TransportCipher::ChaCha20Poly1305, TransportCipher::Aes256Gcm] {
        let mut pair = Pair::new(cipher);
        assert_eq!(pair.seal(0, b"early"), None);
        pair.shake(0);
        // The responder sends nothing before the initiator has shown that it has the keys.
        assert_eq!(pair.seal(1, b"early"), None);
        assert_eq!(pair.cross(0, &[1; 32]), Ok(vec![1; 32]));
        assert_eq!(pair.cross(1, &[2; 32]), Ok(vec![2; 32]));
        assert_eq!(pair.cross(0, b""), Ok(Vec::new()));
        // Padding is up to 16 bytes, and not beyond the path.
        assert_eq!(pair.cross(0, &[3; 17]).unwrap().len(), 32);
        assert_eq!(pair.cross(0, &[3; 1420]).unwrap().len(), 1420);
    }
}

#[test]
fn ciphers_that_differ_carry_nothing() {
    let mut pair = Pair::new(TransportCipher::ChaCha20Poly1305);
    pair.sessions[1].cipher = TransportCipher::Aes256Gcm;
    pair.shake(0);
    assert_eq!(pair.cross(0, &[1; 32]), Err(OpenError::NotAuthentic));
}

#[test]
fn replayed_and_changed_packets_are_refused() {
    let mut pair = Pair::new(TransportCipher::Aes256Gcm);
    pair.shake(0);
    let (first, second) = (pair.seal(0, &[1; 16]).unwrap(), pair.seal(0, &[2; 16]).unwrap());
    assert!(pair.open(1, &second).is_ok());
    assert!(pair.open(1, &first).is_ok(), "out of order is fine");
    assert_eq!(pair.open(1, &first), Err(OpenError::Replayed));
    let mut changed = pair.seal(0, &[3; 16]).unwrap();
    changed[20] ^= 1;
    assert_eq!(pair.open(1, &changed), Err(OpenError::NotAuthentic));
    changed[20] ^= 1;
    assert!(pair.open(1, &changed).is_ok(), "a forgery does not use up the counter");
    assert_eq!(pair.open(1, &[4; 10]), Err(OpenError::NoSession));
    assert_eq!(pair.open(1, &[4; 60]), Err(OpenError::NoSession));
}

#[test]
fn a_replayed_initiation_is_not_answered() {
    let mut pair = Pair::new(TransportCipher::Aes256Gcm);
    let message = pair.initiation(0);
    assert!(pair.answer(1, &message).is_some());
    pair.pass(1);
    assert!(pair.answer(1, &message).is_none());
    let later = pair.initiation(0);
    assert!(pair.answer(1, &later).is_some());
}

#[test]
fn a_forged_response_does_not_end_the_handshake() {
    let mut pair = Pair::new(TransportCipher::Aes256Gcm);
    let message = pair.initiation(0);
    let response = pair.answer(1, &message).unwrap();
    let mut forged = response;
    forged[50] ^= 1;
    let now = pair.now;
    assert!(!pair.sessions[0].handle_response(&forged, now));
    assert!(pair.sessions[0].handle_response(&response, now), "the real one still counts");
}

#[test]
fn the_initiator_renews_a_session_that_is_used_and_old_keys_still_open() {
    let mut pair = Pair::new(TransportCipher::Aes256Gcm);
    pair.shake(0);
    pair.cross(0, &[1; 16]).unwrap();
    pair.cross(1, &[1; 16]).unwrap();
    pair.pass(119);
    pair.cross(0, &[1; 16]).unwrap();
    pair.cross(1, &[1; 16]).unwrap();
    let now = pair.now;
    assert!(!pair.sessions[0].handle_time(now).initiate);
    pair.pass(2);
    let late = pair.seal(0, &[9; 16]).unwrap();
    let now = pair.now;
    assert!(pair.sessions[0].handle_time(now).initiate);
    assert!(!pair.sessions[1].handle_time(now).initiate, "the responder waits");
    pair.shake(0);
    assert_eq!(pair.cross(0, &[2; 16]), Ok(vec![2; 16]));
    assert_eq!(pair.open(1, &late), Ok(vec![9; 16]), "sealed with the keys before");
}

#[test]
fn old_keys_are_not_used() {
    let mut pair = Pair::new(TransportCipher::Aes256Gcm);
    pair.shake(0);
    let early = pair.seal(0, &[1; 16]).unwrap();
    pair.pass(181);
    assert_eq!(pair.open(1, &early), Err(OpenError::Expired));
    assert_eq!(pair.seal(0, &[1; 16]), None);
    pair.pass(3 * 180);
    let now = pair.now;
    pair.sessions[0].handle_time(now);
    assert_eq!(pair.sessions[0].indexes().count(), 0);
}

#[test]
fn an_initiation_is_repeated_and_given_up_after_a_while() {
    let mut pair = Pair::new(TransportCipher::Aes256Gcm);
    let initiations = |pair: &mut Pair| {
        pair.sessions[0].want_handshake();
        let mut sent = 0;
        for _ in 0..2000 {
            let now = pair.now;
            if pair.sessions[0].handle_time(now).initiate {
                pair.initiation(0);
                sent += 1;
            }
            pair.now += Duration::from_millis(100);
        }
        sent
    };
    let ours = initiations(&mut pair);
    assert_eq!(ours, 22, "soon at first, then every five seconds, for ninety seconds");
    pair.sessions[0] = PeerSession::plain(*pair.keys[1].public());
    assert_eq!(initiations(&mut pair), 18, "every five seconds for ninety seconds, as WireGuard says");
}

#[test]
fn a_peer_that_only_receives_says_that_it_is_there_and_a_silent_one_is_greeted_anew() {
    let mut pair = Pair::new(TransportCipher::Aes256Gcm);
    pair.shake(0);
    pair.cross(0, &[1; 16]).unwrap();
    pair.pass(10);
    let now = pair.now;
    assert!(pair.sessions[1].handle_time(now).keepalive);
    pair.cross(1, b"").unwrap();
    assert!(!pair.sessions[1].handle_time(now).keepalive);
    // A keepalive is not answered.
    pair.pass(10);
    let now = pair.now;
    assert!(!pair.sessions[0].handle_time(now).keepalive);
    pair.seal(0, &[1; 16]).unwrap();
    let now = pair.now + DEAD_AFTER;
    assert!(pair.sessions[0].handle_time(now).initiate);
}

#[test]
fn a_cookie_is_used_in_the_next_initiation() {
    let mut pair = Pair::new(TransportCipher::Aes256Gcm);
    let macs = MacKeys::of(pair.keys[1].public());
    let cookie = noise::cookie_of(&[5; 32], b"address");
    let message = pair.initiation(0);
    assert!(!macs.check_cookie(&message, &cookie));
    let reply = macs.cookie_reply(&message, &cookie, [6; 24]).unwrap();
    let now = pair.now;
    pair.sessions[0].handle_cookie(&reply, now);
    assert!(macs.check_cookie(&pair.initiation(0), &cookie));
    pair.pass(121);
    assert!(!macs.check_cookie(&pair.initiation(0), &cookie), "an old cookie is not used");
}

#[test]
fn a_persistent_keepalive_opens_a_session_by_itself() {
    let keys = StaticKeys::generate().unwrap();
    let mut session = PeerSession::plain(*keys.public());
    assert!(!session.handle_time(Instant::now()).initiate, "nothing is sent without a reason");
    session.keep_alive(Some(Duration::from_secs(25)));
    assert!(session.handle_time(Instant::now()).initiate);
}

#[test]
fn two_peers_that_initiate_at_once_understand_each_other() {
    let mut pair = Pair::new(TransportCipher::Aes256Gcm);
    let (one, other) = (pair.initiation(0), pair.initiation(1));
    let (to_other, to_one) = (pair.answer(0, &other).unwrap(), pair.answer(1, &one).unwrap());
    let now = pair.now;
    assert!(
        pair.sessions[0].handle_response(&to_one, now) && pair.sessions[1].handle_response(&to_other, now)
    );
    assert_eq!(pair.cross(0, &[1; 16]), Ok(vec![1; 16]));
    assert_eq!(pair.cross(1, &[2; 16]), Ok(vec![2; 16]));
}
