//! Numbers for those who were sent away: proof that a peer was told to come at this time.
//!
//! A number names a time and is sealed, so that nobody can make one up; it is bound to nobody and worth little: who
//! shows it waits for a place instead of being sent away again. The key lives as long as the process.

use std::time::{Duration, Instant};

use aws_lc_rs::hmac;

use crate::quic::{NUMBER_BYTES, RetryTicket};

/// How much before its time a number is good. Clocks run alike over a minute; packets do not travel backwards.
const EARLY_MAX: Duration = Duration::from_millis(500);
/// An edge that comes later has had other trouble, and stands in line like everybody.
const LATE_MAX: Duration = Duration::from_secs(60);

const TIME_BYTES: usize = 4;
const SEAL_FROM: usize = 12;

pub(super) struct RetryTickets {
    key: hmac::Key,
    born: Instant,
}

impl RetryTickets {
    pub(super) fn new(now: Instant) -> RetryTickets {
        let mut key = [0; 32];
        fill(&mut key);
        RetryTickets { key: hmac::Key::new(hmac::HMAC_SHA256, &key), born: now }
    }

    /// Milliseconds of the time, eight random bytes, eight of the seal.
    pub(super) fn issue(&self, due: Instant) -> RetryTicket {
        let mut number = [0; NUMBER_BYTES];
        number[..TIME_BYTES].copy_from_slice(&self.milliseconds(due).to_be_bytes());
        // The first packets are encrypted under it: nobody beside the way may guess it (RFC 9000, section 7.2).
        fill(&mut number[TIME_BYTES..SEAL_FROM]);
        let seal = hmac::sign(&self.key, &number[..SEAL_FROM]);
        number[SEAL_FROM..].copy_from_slice(&seal.as_ref()[..NUMBER_BYTES - SEAL_FROM]);
        RetryTicket(number)
    }

    /// Is it the turn of whoever shows this?
    pub(super) fn is_due(&self, shown: &[u8], now: Instant) -> bool {
        let Ok(number) = <[u8; NUMBER_BYTES]>::try_from(shown) else { return false };
        let [first, second, third, fourth, ..] = number;
        let due = u32::from_be_bytes([first, second, third, fourth]);
        let early = due.wrapping_sub(self.milliseconds(now));
        let late = self.milliseconds(now).wrapping_sub(due);
        if u128::from(early) > EARLY_MAX.as_millis() && u128::from(late) > LATE_MAX.as_millis() {
            return false;
        }
        let seal = hmac::sign(&self.key, &number[..SEAL_FROM]);
        aws_lc_rs::constant_time::verify_slices_are_equal(
            &number[SEAL_FROM..],
            &seal.as_ref()[..NUMBER_BYTES - SEAL_FROM],
        )
        .is_ok()
    }

    /// Begins anew every fifty days; what is compared is never minutes apart.
    fn milliseconds(&self, at: Instant) -> u32 {
        at.saturating_duration_since(self.born).as_millis() as u32
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
        let numbers = RetryTickets::new(start);
        let due = start + Duration::from_secs(7);
        let number = numbers.issue(due).0;
        let check = |shown: &[u8], now: Instant, expected: bool| {
            assert_eq!(numbers.is_due(shown, now), expected, "{shown:?}");
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
        assert_ne!(numbers.issue(due).0, number, "no two connections begin with the same ID");
    }

    #[test]
    fn numbers_are_good_also_when_the_port_is_old() {
        let start = Instant::now();
        let numbers = RetryTickets::new(start);
        // The count of milliseconds begins anew at the first, and has done so at the second.
        for age in [1u64 << 32, 5 << 32].map(Duration::from_millis) {
            let now = start + age - Duration::from_secs(1);
            let number = numbers.issue(now + Duration::from_secs(2)).0;
            assert!(numbers.is_due(&number, now + Duration::from_secs(2)), "{age:?}");
            assert!(!numbers.is_due(&number, now), "{age:?}");
            assert!(!numbers.is_due(&number, now + LATE_MAX * 2), "{age:?}");
        }
    }
}
