//! The addresses that stand for clients of translated services on the wire, at the gateway of the clients.
//!
//! A number is an address of a range that no network uses. It tells the other gateway which packets belong to one host,
//! and which EServer that host is, and nothing about its real address. The number of an EServer is a digest of its name,
//! so that both gateways compute it, a standby gateway continues flows, and no message has to say it. The number of any
//! other host is a digest of its address under a secret of this gateway. Bounded.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use aws_lc_rs::{digest, hmac};

/// Hosts that have a number at the same time.
const CLIENTS_MAX: usize = 16_384;
/// Numbers that are tried for a host whose first one another host has.
const ATTEMPTS_MAX: u8 = 8;
/// 240.0.0.0/4 is reserved (RFC 1112, 4).
const PREFIX_V4: u32 = 0xf000_0000;
/// 100::/64 is the discard prefix (RFC 6666).
const PREFIX_V6: u128 = 0x0100 << 112;

pub struct ClientNumbers {
    secret: hmac::Key,
    clients: HashMap<IpAddr, IpAddr>,
}

impl ClientNumbers {
    pub fn new(secret: &[u8; 32]) -> ClientNumbers {
        ClientNumbers { secret: hmac::Key::new(hmac::HMAC_SHA256, secret), clients: HashMap::new() }
    }

    /// Returns the number of a client, and remembers whose it is. `server`: the EServer that has the address. None: no
    /// number is free.
    pub fn number_of(&mut self, client: IpAddr, server: Option<&str>) -> Option<IpAddr> {
        let named = server.map(|server| number_of_server(server, client.is_ipv4()));
        let secret = (0..ATTEMPTS_MAX).map(|attempt| self.secret_number(client, attempt));
        let mut candidates = named.into_iter().chain(secret);
        let number =
            candidates.find(|number| self.clients.get(number).is_none_or(|holder| *holder == client))?;
        if self.clients.len() >= CLIENTS_MAX && !self.clients.contains_key(&number) {
            return None;
        }
        self.clients.insert(number, client);
        Some(number)
    }

    /// Returns the client that has a number.
    pub fn client_of(&self, number: IpAddr) -> Option<IpAddr> {
        self.clients.get(&number).copied()
    }

    pub fn is_full(&self) -> bool {
        self.clients.len() >= CLIENTS_MAX
    }

    /// Forgets the numbers that no flow uses.
    pub fn retain(&mut self, is_used: impl Fn(IpAddr) -> bool) {
        self.clients.retain(|number, _| is_used(*number));
    }

    fn secret_number(&self, client: IpAddr, attempt: u8) -> IpAddr {
        let mut text = match client {
            IpAddr::V4(client) => client.octets().to_vec(),
            IpAddr::V6(client) => client.octets().to_vec(),
        };
        text.push(attempt);
        number_from(hmac::sign(&self.secret, &text).as_ref(), client.is_ipv4(), false)
    }
}

/// Returns the number of an EServer.
pub fn number_of_server(server: &str, is_v4: bool) -> IpAddr {
    let digest = digest::digest(&digest::SHA256, format!("causeway client {server}").as_bytes());
    number_from(digest.as_ref(), is_v4, true)
}

/// The highest bit of a number tells that it is of an EServer.
fn number_from(digest: &[u8], is_v4: bool, is_server: bool) -> IpAddr {
    let bits = digest.iter().take(8).fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
    match is_v4 {
        // 255.255.255.255 is no number: the highest bit below the prefix is 0 for hosts without a name.
        true => {
            let bits = (bits >> 38) as u32 & 0x03ff_ffff;
            Ipv4Addr::from(PREFIX_V4 | u32::from(is_server) << 26 | bits).into()
        }
        false => Ipv6Addr::from(PREFIX_V6 | u128::from(is_server) << 63 | u128::from(bits >> 1)).into(),
    }
}

/// Tells whether an address may be a number.
pub fn is_number(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => u32::from(address) & 0xf800_0000 == PREFIX_V4,
        IpAddr::V6(address) => u128::from(address) >> 64 == PREFIX_V6 >> 64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_number_stands_for_one_host_and_hides_its_address() {
        let mut numbers = ClientNumbers::new(&[7; 32]);
        for client in ["10.0.0.5", "10.0.0.6", "fd00::5"] {
            let number = numbers.number_of(ip(client), None).unwrap();
            assert_eq!(numbers.number_of(ip(client), None), Some(number), "{client}");
            assert_eq!(numbers.client_of(number), Some(ip(client)));
            assert!(is_number(number) && number.is_ipv4() == ip(client).is_ipv4(), "{number}");
        }
        let other = ClientNumbers::new(&[8; 32]).number_of(ip("10.0.0.5"), None);
        assert_ne!(other, numbers.number_of(ip("10.0.0.5"), None), "only this gateway knows whose it is");
    }

    #[test]
    fn both_gateways_know_the_number_of_a_server() {
        let mut numbers = ClientNumbers::new(&[7; 32]);
        let number = numbers.number_of(ip("10.0.0.5"), Some("camera")).unwrap();
        assert_eq!(number, number_of_server("camera", true));
        // A second host cannot have it: it gets one that stands for no server.
        let second = numbers.number_of(ip("10.0.0.6"), Some("camera")).unwrap();
        assert_ne!(second, number);
        assert_eq!(numbers.client_of(number), Some(ip("10.0.0.5")));
        let v6 = numbers.number_of(ip("fd00::5"), Some("camera")).unwrap();
        assert_eq!(v6, number_of_server("camera", false));
    }

    #[test]
    fn the_table_is_bounded_and_numbers_without_flows_are_forgotten() {
        let mut numbers = ClientNumbers::new(&[7; 32]);
        let client = |index: u32| IpAddr::from((0x0a00_0000 + index).to_be_bytes());
        let given = (0..CLIENTS_MAX as u32 + 9).filter_map(|index| numbers.number_of(client(index), None));
        assert_eq!(given.count(), CLIENTS_MAX);
        assert!(numbers.is_full());
        let first = numbers.number_of(client(0), None).unwrap();
        numbers.retain(|number| number == first);
        assert_eq!(numbers.client_of(first), Some(client(0)));
        assert!(numbers.number_of(client(99_999), None).is_some());
    }
}
