//! Issues and checks retry tickets: proof that a client was told to return at a given time.
//!
//! A ticket holds a time and is authenticated with a key, so that a client cannot forge one. It is not bound
//! to a client and has little value: its holder waits for a slot instead of being refused again. The key
//! lives as long as the process.

use std::time::{Duration, Instant};

use aws_lc_rs::hmac;

use crate::quic::{NUMBER_BYTES, RetryTicket};

/// Time before its due time from which a ticket is valid. Clocks differ little over a minute.
const EARLY_MAX: Duration = Duration::from_millis(500);
/// An edge that returns later had other trouble, and is treated as a new client.
const LATE_MAX: Duration = Duration::from_secs(60);

const TIME_BYTES: usize = 4;
const MAC_FROM: usize = 12;

pub(super) struct RetryTickets {
    key: hmac::Key,
    created: Instant,
}

impl RetryTickets {
    pub(super) fn new(now: Instant) -> RetryTickets {
        let mut key = [0; 32];
        fill(&mut key);
        RetryTickets { key: hmac::Key::new(hmac::HMAC_SHA256, &key), created: now }
    }

    /// Layout: milliseconds of the due time, eight random bytes, eight bytes of the MAC.
    pub(super) fn issue(&self, due: Instant) -> RetryTicket {
        let mut number = [0; NUMBER_BYTES];
        number[..TIME_BYTES].copy_from_slice(&self.milliseconds(due).to_be_bytes());
        // Initial packets are encrypted with keys derived from this ID, so it must be unpredictable to
        // off-path attackers (RFC 9000, section 7.2).
        fill(&mut number[TIME_BYTES..MAC_FROM]);
        let mac = hmac::sign(&self.key, &number[..MAC_FROM]);
        number[MAC_FROM..].copy_from_slice(&mac.as_ref()[..NUMBER_BYTES - MAC_FROM]);
        RetryTicket(number)
    }

    /// Returns whether the client that presents this ticket may wait for a slot now.
    pub(super) fn is_due(&self, shown: &[u8], now: Instant) -> bool {
        let Ok(number) = <[u8; NUMBER_BYTES]>::try_from(shown) else { return false };
        let [first, second, third, fourth, ..] = number;
        let due = u32::from_be_bytes([first, second, third, fourth]);
        let early = due.wrapping_sub(self.milliseconds(now));
        let late = self.milliseconds(now).wrapping_sub(due);
        if u128::from(early) > EARLY_MAX.as_millis() && u128::from(late) > LATE_MAX.as_millis() {
            return false;
        }
        let mac = hmac::sign(&self.key, &number[..MAC_FROM]);
        aws_lc_rs::constant_time::verify_slices_are_equal(
            &number[MAC_FROM..],
            &mac.as_ref()[..NUMBER_BYTES - MAC_FROM],
        )
        .is_ok()
    }

    /// Wraps around every fifty days; compared values are never more than minutes apart.
    fn milliseconds(&self, at: Instant) -> u32 {
        at.saturating_duration_since(self.created).as_millis() as u32
    }
}

fn fill(bytes: &mut [u8]) {
    aws_lc_rs::rand::fill(bytes).expect("the system gives random bytes");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_good_at_its_time_and_nobody_else_can_make_one() {
        let start = Instant::now();
        let tickets = RetryTickets::new(start);
        let due = start + Duration::from_secs(7);
        let number = tickets.issue(due).0;
        let check = |shown: &[u8], now: Instant, expected: bool| {
            assert_eq!(tickets.is_due(shown, now), expected, "{shown:?}");
        };
        check(&number, due, true);
        check(&number, due + LATE_MAX / 2, true);
        check(&number, due + LATE_MAX * 2, false);
        check(&number, due - EARLY_MAX * 2, false);
        for place in 0..NUMBER_BYTES {
            let mut other = number;
            other[place] ^= 1;
            check(&other, due, false);
        }
        check(&number[..8], due, false);
        check(&[], due, false);
        assert!(
            !RetryTickets::new(start).is_due(&number, due),
            "a port that was restarted knows nothing of it"
        );
        assert_ne!(tickets.issue(due).0, number, "no two connections begin with the same ID");
    }

    #[test]
    fn numbers_are_good_also_when_the_port_is_old() {
        let start = Instant::now();
        let tickets = RetryTickets::new(start);
        // The count of milliseconds wraps around during the first, and has wrapped before the second.
        for age in [1u64 << 32, 5 << 32].map(Duration::from_millis) {
            let now = start + age - Duration::from_secs(1);
            let number = tickets.issue(now + Duration::from_secs(2)).0;
            assert!(tickets.is_due(&number, now + Duration::from_secs(2)), "{age:?}");
            assert!(!tickets.is_due(&number, now), "{age:?}");
            assert!(!tickets.is_due(&number, now + LATE_MAX * 2), "{age:?}");
        }
    }
}
