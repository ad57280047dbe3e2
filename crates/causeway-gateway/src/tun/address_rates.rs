//! Limits what one address of the internet causes: cookie replies, and handshakes of a gateway under load.
//!
//! Input: an address and the time. The address may be forged, so that a table with an entry per address would be filled at will:
//! this one has a fixed number of buckets under a secret hash. Two addresses in one bucket share its rate.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::limits::bucket::{BucketRate, TokenBucket};

const BUCKETS: usize = 1024;
const BURST: Duration = Duration::from_secs(1);

pub struct AddressRates {
    buckets: Vec<TokenBucket>,
    secret: RandomState,
    rate: BucketRate,
}

impl AddressRates {
    pub fn new(per_second: u64) -> AddressRates {
        AddressRates {
            buckets: vec![TokenBucket::default(); BUCKETS],
            secret: RandomState::new(),
            rate: BucketRate::new(per_second, BURST),
        }
    }

    /// Counts one message of an address. False: there were too many.
    pub fn admits(&mut self, address: IpAddr, now: Instant) -> bool {
        let place = self.secret.hash_one(subscriber(address)) as usize % BUCKETS;
        self.buckets[place].try_take(1, self.rate, now).is_ok()
    }
}

/// Returns the part of an address that a subscriber cannot choose: a host has all of an IPv6 /64.
fn subscriber(address: IpAddr) -> u64 {
    match address.to_canonical() {
        IpAddr::V4(address) => u64::from(u32::from(address)),
        IpAddr::V6(address) => (u128::from(address) >> 64) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_rate_and_costs_other_addresses_nothing() {
        let (mut rates, now) = (AddressRates::new(20), Instant::now());
        let mut admitted =
            |address: &str, now| (0..1000).filter(|_| rates.admits(address.parse().unwrap(), now)).count();
        assert_eq!(admitted("192.0.2.1", now), 20);
        assert_eq!(admitted("::ffff:192.0.2.1", now), 0, "the same address, as a socket of IPv6 shows it");
        assert_eq!(admitted("192.0.2.1", now + Duration::from_millis(500)), 10);
        assert_eq!(admitted("2001:db8:0:1::1", now), 20);
        assert_eq!(admitted("2001:db8:0:1::2", now), 0, "another address of the same network");
        // The hash is secret: of a hundred addresses nearly all have buckets of their own.
        let others = (0..100).filter(|last| rates.admits(IpAddr::from([198, 51, 100, *last]), now)).count();
        assert!(others >= 90, "{others}");
    }
}
