//! Rules for single values: addresses, ranges, names, ports, paths.
//!
//! Each rule takes the path of the field and the value, and adds an error that shows the value and the
//! allowed form. Rules about metadata and conditions are in `check/meta.rs`.

pub(crate) mod meta;

use std::borrow::Borrow;
use std::collections::HashSet;
use std::fmt::Display;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::field::{FieldError, FieldErrors};
use crate::kinds::PortRange;
use crate::layer3;
use crate::name;

/// The maximum number of names in one list: a policy for every host of a big site fits, an object stays below
/// a megabyte.
pub(crate) const NAMES_MAX: usize = 10_000;
/// The maximum number of networks of one site.
pub(crate) const CIDRS_MAX: usize = 1_000;
/// Enough for several authorities; a whole system bundle is a mistake.
pub(crate) const PEM_BYTES_MAX: usize = 64 * 1024;

/// Applies `rule` unless the field is empty, which means unset.
pub(crate) fn optional(
    errors: &mut FieldErrors,
    path: &str,
    value: &str,
    rule: fn(&mut FieldErrors, &str, &str),
) {
    if !value.is_empty() {
        rule(errors, path, value);
    }
}

/// A list without duplicates, every item under `rule`.
pub(crate) fn set<T, U>(
    errors: &mut FieldErrors,
    path: &str,
    items: &[T],
    items_max: usize,
    rule: impl Fn(&mut FieldErrors, &str, &U),
) where
    T: Borrow<U>,
    U: Hash + Eq + Display + ?Sized,
{
    count(errors, path, items.len(), items_max);
    let mut seen = HashSet::new();
    for (index, item) in items.iter().map(Borrow::borrow).take(items_max).enumerate() {
        let path = format!("{path}[{index}]");
        rule(errors, &path, item);
        if !seen.insert(item) {
            errors.push(FieldError::duplicate(path, item.to_string()));
        }
    }
}

/// A list of names of other objects.
pub(crate) fn names(errors: &mut FieldErrors, path: &str, items: &[String]) {
    set(errors, path, items, NAMES_MAX, object_name);
}

pub(crate) fn count(errors: &mut FieldErrors, path: &str, count: usize, count_max: usize) {
    if count > count_max {
        errors.push(FieldError::too_many(path, count, count_max));
    }
}

/// A required name of another object; the object need not exist.
pub(crate) fn reference(errors: &mut FieldErrors, path: &str, value: &str, fix: &str) {
    match value {
        "" => errors.push(FieldError::required(path, fix)),
        name => object_name(errors, path, name),
    }
}

pub(crate) fn object_name(errors: &mut FieldErrors, path: &str, value: &str) {
    if let Err(allowed) = name::check(value) {
        errors.push(FieldError::invalid(path, value, allowed));
    }
}

pub(crate) fn port(errors: &mut FieldErrors, path: &str, value: i64) {
    range(errors, path, value, 1, 65_535, "a port");
}

pub(crate) fn range(errors: &mut FieldErrors, path: &str, value: i64, min: i64, max: i64, what: &str) {
    if !(min..=max).contains(&value) {
        errors.push(FieldError::invalid(path, value, format!("{what} is {min} to {max}")));
    }
}

/// The address of one host.
pub(crate) fn host_ip(errors: &mut FieldErrors, path: &str, value: &str) {
    if let Err(allowed) = parse_host_ip(value) {
        errors.push(FieldError::invalid(path, value, allowed));
    }
}

fn parse_host_ip(value: &str) -> Result<IpAddr, String> {
    let Ok(ip) = value.parse::<IpAddr>() else {
        return Err(match value.parse::<IpNet>() {
            Ok(net) => format!("write the address without the prefix length: {}", net.addr()),
            Err(_) => "write an IPv4 or IPv6 address, for example 10.0.0.10 or fd00:10::10".into(),
        });
    };
    match ip {
        _ if ip.is_unspecified() => Err("this address identifies no host; write the host's own".into()),
        _ if ip.is_multicast() => Err("a multicast address identifies no single host".into()),
        IpAddr::V4(v4) if v4.is_broadcast() => Err("a broadcast address identifies no single host".into()),
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => Err(format!("write the IPv4 address as such: {v4}")),
            None => Ok(ip),
        },
        IpAddr::V4(_) => Ok(ip),
    }
}

/// A network, written with its network address.
pub(crate) fn cidr(errors: &mut FieldErrors, path: &str, value: &str) {
    if let Err(allowed) = parse_cidr(value) {
        errors.push(FieldError::invalid(path, value, allowed));
    }
}

/// A range that presences get their addresses from: a network with room for hosts, and not the whole internet.
pub(crate) fn presence_cidr(errors: &mut FieldErrors, path: &str, value: &str) {
    if let Err(allowed) = parse_cidr(value).and_then(fits_presences) {
        errors.push(FieldError::invalid(path, value, allowed));
    }
}

fn parse_cidr(value: &str) -> Result<IpNet, String> {
    let Ok(net) = value.parse::<IpNet>() else {
        return Err(match value.parse::<IpAddr>() {
            Ok(ip) => format!("add a prefix length, for example {}", net_around(ip)),
            Err(_) => "write a network and its prefix length, for example 10.0.0.0/24 or fd00:10::/64".into(),
        });
    };
    if net.addr() != net.network() {
        return Err(format!("this is an address inside a network; the network is {}", net.trunc()));
    }
    if net.addr().is_multicast() {
        return Err("a multicast range holds no hosts".into());
    }
    Ok(net)
}

fn net_around(ip: IpAddr) -> String {
    let prefix = if ip.is_ipv4() { 24 } else { 64 };
    IpNet::new(ip, prefix).map_or_else(|_| ip.to_string(), |net| net.trunc().to_string())
}

fn fits_presences(net: IpNet) -> Result<IpNet, String> {
    // The shortest prefix prevents a typing error from including the internet, the longest leaves room for
    // one host beside network and broadcast address.
    let (shortest, longest) = if net.addr().is_ipv4() { (8, 30) } else { (16, 126) };
    match net.prefix_len() {
        length if (shortest..=longest).contains(&length) => Ok(net),
        _ => Err(format!("the prefix length of a presence range is {shortest} to {longest}")),
    }
}

/// A range from which mapped networks are taken: a network with room for some, and not the whole internet.
pub(crate) fn mapped_range(errors: &mut FieldErrors, path: &str, value: &str) {
    let fits = |net: IpNet| {
        let (shortest, longest) = if net.addr().is_ipv4() { (8, 30) } else { (16, 126) };
        match net.prefix_len() {
            length if (shortest..=longest).contains(&length) => Ok(net),
            _ => Err(format!("the prefix length of a range for mapped networks is {shortest} to {longest}")),
        }
    };
    if let Err(allowed) = parse_cidr(value).and_then(fits) {
        errors.push(FieldError::invalid(path, value, allowed));
    }
}

/// A protocol and its ports.
pub(crate) fn port_rule(errors: &mut FieldErrors, path: &str, value: &str) {
    if let Err(error) = value.parse::<PortRange>() {
        errors.push(FieldError::invalid(path, value, error));
    }
}

/// A public key of WireGuard: 32 bytes as base64.
pub(crate) fn tunnel_key(errors: &mut FieldErrors, path: &str, value: &str) {
    if layer3::parse_key(value).is_none() {
        let allowed = "write the public key as base64 of 32 bytes, 44 characters, as `wg pubkey` prints it";
        errors.push(FieldError::invalid(path, value, allowed));
    }
}

/// An address or name with a UDP port.
pub(crate) fn udp_endpoint(errors: &mut FieldErrors, path: &str, value: &str) {
    let is_address = value.parse::<SocketAddr>().is_ok_and(|address| {
        address.port() != 0 && !address.ip().is_unspecified() && !address.ip().is_multicast()
    });
    let is_name = value.rsplit_once(':').is_some_and(|(host, port)| {
        is_dns_name(host, true) && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    if !is_address && !is_name {
        let allowed =
            "write an address or a name, and a port, for example 203.0.113.7:51820 or [2001:db8::7]:51820";
        errors.push(FieldError::invalid(path, value, allowed));
    }
}

/// A DNS name that clients ask for.
pub(crate) fn dns_name(errors: &mut FieldErrors, path: &str, value: &str) {
    let allowed = "write a DNS name of letters, digits, '-' and '.', each part 1 to 63 characters that neither begin nor end \
                   with '-', 253 in all, without a final dot, for example url1.test.com";
    if !is_dns_name(value, false) || value.parse::<IpAddr>().is_ok() {
        errors.push(FieldError::invalid(path, value, allowed));
    }
}

/// A name that a gateway resolves inside its site. Underscores occur there, although RFC 1123 does not allow
/// them.
pub(crate) fn host_name(errors: &mut FieldErrors, path: &str, value: &str) {
    let allowed = "write a host name of letters, digits, '-', '_' and '.', each part 1 to 63 characters, 253 in all, \
                   without a final dot, for example nginx.factory.local";
    if !is_dns_name(value, true) {
        errors.push(FieldError::invalid(path, value, allowed));
    }
}

fn is_dns_name(value: &str, underscore: bool) -> bool {
    let label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || (underscore && byte == b'_');
        (1..=63).contains(&label.len())
            && label.bytes().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    value.len() <= 253 && value.split('.').all(label)
}

/// The path of a request.
pub(crate) fn url_path(errors: &mut FieldErrors, path: &str, value: &str) {
    if !is_url_path(value) {
        errors.push(FieldError::invalid(path, value, URL_PATH_ALLOWED));
    }
}

/// A path, or with '*' at its end, all paths with this prefix.
pub(crate) fn path_pattern(errors: &mut FieldErrors, path: &str, value: &str) {
    let exact = value.strip_suffix('*').unwrap_or(value);
    if !is_url_path(exact) || exact.contains('*') {
        let allowed = format!("{URL_PATH_ALLOWED}; '*' may stand only at its end");
        errors.push(FieldError::invalid(path, value, allowed));
    }
}

const URL_PATH_ALLOWED: &str =
    "write a path that begins with '/', of at most 1024 visible ASCII characters without '?' and '#'";

fn is_url_path(value: &str) -> bool {
    value.starts_with('/')
        && value.len() <= 1024
        && value.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'?' && byte != b'#')
}

/// An HTTP method.
pub(crate) fn method(errors: &mut FieldErrors, path: &str, value: &str) {
    let upper = |byte: u8| byte.is_ascii_uppercase() || byte == b'-';
    if value.is_empty() || value.len() > 32 || !value.bytes().all(upper) {
        errors.push(FieldError::invalid(path, value, "write an HTTP method in capitals, for example GET"));
    }
}

/// One or more certificates as PEM text. The gateway finds out whether they are valid.
pub(crate) fn pem_certificates(errors: &mut FieldErrors, path: &str, value: &str) {
    if value.len() > PEM_BYTES_MAX {
        errors.push(FieldError::too_long(path, value, PEM_BYTES_MAX));
        return;
    }
    let text = value.trim();
    let begins = text.matches("-----BEGIN CERTIFICATE-----").count();
    let ends = text.matches("-----END CERTIFICATE-----").count();
    if !text.starts_with("-----BEGIN CERTIFICATE-----") || begins != ends {
        let allowed = "write PEM text, from -----BEGIN CERTIFICATE----- to -----END CERTIFICATE-----, without further encoding";
        errors.push(FieldError::invalid(path, value, allowed));
    }
}

#[cfg(test)]
mod tests;
