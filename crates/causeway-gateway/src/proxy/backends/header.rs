//! Encodes the PROXY protocol, version 2, which tells a backend the address of the real client. Pure.

use std::net::{IpAddr, SocketAddr};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2 with the command LOCAL (a connection of the gateway itself) or PROXY (on behalf of a client).
const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
/// Address families, each with TCP as the transport.
const UNSPECIFIED: u8 = 0x00;
const INET: u8 = 0x11;
const INET6: u8 = 0x21;

/// Returns the header that precedes the first byte. Without a known client it carries no address.
pub fn encode(client: Option<SocketAddr>, backend: SocketAddr) -> Vec<u8> {
    let mut bytes = SIGNATURE.to_vec();
    let Some(client) = client else {
        bytes.extend([LOCAL, UNSPECIFIED, 0, 0]);
        return bytes;
    };
    let (from, to) = (client.ip().to_canonical(), backend.ip().to_canonical());
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            bytes.extend([PROXY, INET, 0, 12]);
            bytes.extend(from.octets());
            bytes.extend(to.octets());
        }
        // Both addresses have one family: an IPv4 address is written as an IPv6 one.
        (from, to) => {
            bytes.extend([PROXY, INET6, 0, 36]);
            bytes.extend(as_v6(from));
            bytes.extend(as_v6(to));
        }
    }
    bytes.extend(client.port().to_be_bytes());
    bytes.extend(backend.port().to_be_bytes());
    bytes
}

fn as_v6(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_told_who_the_client_is() {
        let check = |client: Option<&str>, backend: &str, head: &[u8], length: usize, tail: &[u8]| {
            let client = client.map(|client| client.parse().unwrap());
            let bytes = encode(client, backend.parse().unwrap());
            assert_eq!(&bytes[..12], b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a");
            assert_eq!(&bytes[12..16], head);
            assert_eq!(bytes.len(), 16 + length);
            assert!(bytes.ends_with(tail), "{bytes:?}");
        };
        let ports = [4321u16.to_be_bytes(), 502u16.to_be_bytes()].concat();
        let v4 = [&[10, 0, 0, 7, 10, 0, 0, 30][..], &ports].concat();
        check(Some("10.0.0.7:4321"), "10.0.0.30:502", &[0x21, 0x11, 0, 12], 12, &v4);
        check(Some("[fd00::7]:4321"), "[fd00::1]:502", &[0x21, 0x21, 0, 36], 36, &ports);
        // A client and a backend of different families.
        check(Some("10.0.0.7:4321"), "[fd00::1]:502", &[0x21, 0x21, 0, 36], 36, &ports);
        check(None, "10.0.0.30:502", &[0x20, 0, 0, 0], 0, &[]);
    }
}
