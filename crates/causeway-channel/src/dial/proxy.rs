//! HTTP CONNECT: the proxy, the endpoints it applies to, and the exchange with it.
//!
//! The response of a proxy is untrusted: it is bounded, and only its status line is parsed. Credentials are
//! in the URL and are never shown.

use std::fmt;
use std::io;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::token::ChannelEndpoint;

/// Address and credentials of a proxy. `Debug` and `Display` omit the password.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectProxy {
    endpoint: ChannelEndpoint,
    authorization: Option<String>,
    /// Hosts that are dialled directly: names, `.suffixes`, addresses, or `*`.
    exceptions: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the proxy's URL is not usable: {0}")]
pub struct ProxyUrlError(&'static str);

impl ConnectProxy {
    /// `http://[USER[:PASSWORD]@]HOST[:PORT]`. The port is 80 unless given, as for every http URL.
    pub fn parse(url: &str) -> Result<ConnectProxy, ProxyUrlError> {
        let rest = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some(_) => return Err(ProxyUrlError("only http:// is spoken with proxies")),
            None => url,
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        let has_port = host.rsplit_once(':').is_some_and(|(before, port)| {
            !port.is_empty() && !port.contains(']') && (!before.contains(':') || before.ends_with(']'))
        });
        let text = if has_port { host.to_owned() } else { format!("{}:80", host.trim_end_matches(':')) };
        let endpoint = text.parse().map_err(|_| ProxyUrlError("it has no host, or a bad port"))?;
        let authorization = user.map(|user| format!("Basic {}", STANDARD.encode(unescape(user))));
        Ok(ConnectProxy { endpoint, authorization, exceptions: Vec::new() })
    }

    /// Reads `HTTPS_PROXY` or `https_proxy`, and `NO_PROXY` or `no_proxy`, as other programs do.
    pub fn from_environment() -> Result<Option<ConnectProxy>, ProxyUrlError> {
        ConnectProxy::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<ConnectProxy>, ProxyUrlError> {
        let first =
            |names: [&str; 2]| names.iter().filter_map(|name| variable(name)).find(|text| !text.is_empty());
        let Some(url) = first(["https_proxy", "HTTPS_PROXY"]) else { return Ok(None) };
        let exceptions = first(["no_proxy", "NO_PROXY"]).unwrap_or_default();
        Ok(Some(ConnectProxy::parse(&url)?.except(&exceptions)))
    }

    /// Hosts to dial directly, separated by commas or spaces.
    pub fn except(mut self, list: &str) -> ConnectProxy {
        let entries = list.split([',', ' ']).map(|entry| entry.trim().to_ascii_lowercase());
        self.exceptions.extend(entries.filter(|entry| !entry.is_empty()));
        self
    }

    pub fn endpoint(&self) -> &ChannelEndpoint {
        &self.endpoint
    }

    /// Returns whether TCP to `endpoint` uses this proxy.
    pub fn applies_to(&self, endpoint: &ChannelEndpoint) -> bool {
        let host = endpoint.host().to_ascii_lowercase();
        // Loopback is this machine, which the proxy cannot reach.
        let is_local =
            host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        !is_local && !self.exceptions.iter().any(|entry| is_excepted(entry, &host, endpoint.port()))
    }

    /// Requests a tunnel to `endpoint` from the proxy on `io`; afterwards `io` leads there.
    pub async fn ask<T>(&self, io: &mut T, endpoint: &ChannelEndpoint) -> Result<(), ProxyDialError>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let mut request = format!("CONNECT {endpoint} HTTP/1.1\r\nHost: {endpoint}\r\n");
        if let Some(authorization) = &self.authorization {
            request.push_str(&format!("Proxy-Authorization: {authorization}\r\n"));
        }
        request.push_str("\r\n");
        io.write_all(request.as_bytes()).await.map_err(ProxyDialError::Talk)?;
        io.flush().await.map_err(ProxyDialError::Talk)?;
        let answer = read_answer(io).await?;
        match status(&answer).ok_or(ProxyDialError::NotHttp)? {
            (200..=299, _) => Ok(()),
            (407, _) => Err(ProxyDialError::Credentials),
            (status, reason) => Err(ProxyDialError::Refused { status, reason }),
        }
    }
}

/// Bound of a response head; no useful one is longer.
const ANSWER_BYTES_MAX: usize = 8 * 1024;

/// Byte by byte, because bytes after the head already belong to the endpoint. A head has a few hundred bytes,
/// once per dial.
async fn read_answer(io: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>, ProxyDialError> {
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") && !answer.ends_with(b"\n\n") {
        if answer.len() >= ANSWER_BYTES_MAX {
            return Err(ProxyDialError::NotHttp);
        }
        answer.push(io.read_u8().await.map_err(ProxyDialError::Talk)?);
    }
    Ok(answer)
}

/// Parses status and reason of a response.
pub fn status(answer: &[u8]) -> Option<(u16, String)> {
    let line = answer.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let mut words = line.trim_end().splitn(3, ' ');
    if !words.next()?.starts_with("HTTP/1.") {
        return None;
    }
    let status = words.next().filter(|word| word.len() == 3)?.parse().ok()?;
    let reason = words.next().unwrap_or_default().chars().filter(|c| !c.is_control()).take(100).collect();
    Some((status, reason))
}

#[derive(Debug, thiserror::Error)]
pub enum ProxyDialError {
    #[error("the connection to the proxy failed")]
    Talk(#[source] io::Error),
    #[error("the server at this address is no HTTP proxy")]
    NotHttp,
    #[error(
        "the proxy requires a user and a password, or refuses the given ones: set http://USER:PASSWORD@HOST:PORT"
    )]
    Credentials,
    #[error("the proxy refuses: {status} {reason}")]
    Refused { status: u16, reason: String },
}

fn is_excepted(entry: &str, host: &str, port: u16) -> bool {
    let entry = match entry.rsplit_once(':') {
        Some((name, number)) if number.parse() == Ok(port) && !name.contains(':') => name,
        _ => entry,
    };
    let name = entry.trim_start_matches('*').trim_start_matches('.');
    if entry == "*" {
        return true;
    }
    if let (Ok(network), Ok(address)) = (entry.parse::<ipnet::IpNet>(), host.parse::<IpAddr>()) {
        return network.contains(&address);
    }
    host == name || host.strip_suffix(name).is_some_and(|before| before.ends_with('.'))
}

/// Decodes percent escapes, which user and password in a URL may have.
fn unescape(text: &str) -> Vec<u8> {
    let (mut bytes, mut out) = (text.as_bytes(), Vec::new());
    while let [first, rest @ ..] = bytes {
        let escaped = match (first, rest) {
            (b'%', [high, low, ..]) => hex(*high).zip(hex(*low)),
            _ => None,
        };
        match escaped {
            Some((high, low)) => {
                out.push(high << 4 | low);
                bytes = &rest[2..];
            }
            None => {
                out.push(*first);
                bytes = rest;
            }
        }
    }
    out
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

impl fmt::Display for ConnectProxy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.endpoint)
    }
}

impl fmt::Debug for ConnectProxy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Proxy({})", self.endpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_gives_a_host_a_port_and_credentials_that_nobody_sees() {
        let check = |url: &str, endpoint: &str, authorization: Option<&str>| {
            let proxy = ConnectProxy::parse(url).unwrap();
            assert_eq!(proxy.endpoint, endpoint.parse().unwrap(), "{url}");
            assert_eq!(proxy.authorization.as_deref(), authorization, "{url}");
            assert!(!format!("{proxy} {proxy:?}").contains("secret"));
        };
        check("http://proxy.example:3128", "proxy.example:3128", None);
        check("http://proxy.example/", "proxy.example:80", None);
        check("proxy.example:3128", "proxy.example:3128", None);
        check("HTTP://10.0.0.1:8080/x", "10.0.0.1:8080", None);
        check("http://[fd00::1]:3128", "[fd00::1]:3128", None);
        check("http://[fd00::1]", "[fd00::1]:80", None);
        check("http://me:secret@p.example:1", "p.example:1", Some("Basic bWU6c2VjcmV0"));
        check("http://me:s%40%zz@p.example:1", "p.example:1", Some("Basic bWU6c0Aleno="));
        for url in ["https://proxy.example:3128", "socks5://p:1", "http://", "http://:1", "http://p:99999"] {
            assert!(ConnectProxy::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn exceptions_are_dialled_directly() {
        let check = |list: &str, endpoint: &str, applies: bool| {
            let proxy = ConnectProxy::parse("http://p:1").unwrap().except(list);
            assert_eq!(proxy.applies_to(&endpoint.parse().unwrap()), applies, "{endpoint} with {list:?}");
        };
        check("", "cloud.example:7444", true);
        check("cloud.example", "cloud.example:7444", false);
        check("CLOUD.example", "a.Cloud.example:7444", false);
        check(".example, other", "cloud.example:7444", false);
        check("*.example", "cloud.example:7444", false);
        check("ample", "cloud.example:7444", true);
        check("*", "cloud.example:7444", false);
        check("10.0.0.0/8", "10.1.2.3:7444", false);
        check("10.0.0.0/8", "11.1.2.3:7444", true);
        check("cloud.example:7444", "cloud.example:7444", false);
        check("cloud.example:443", "cloud.example:7444", true);
        check("", "127.0.0.1:7444", false);
        check("", "localhost:7444", false);
        check("", "[::1]:7444", false);
    }

    #[test]
    fn the_environment_is_read_as_others_read_it() {
        let proxy = |pairs: &[(&str, &str)]| {
            ConnectProxy::from_variables(|name| {
                pairs.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(proxy(&[]), Ok(None));
        assert_eq!(proxy(&[("HTTPS_PROXY", "")]), Ok(None));
        let both = proxy(&[("HTTPS_PROXY", "http://p:1"), ("NO_PROXY", "x.example")]).unwrap().unwrap();
        assert!(!both.applies_to(&"x.example:1".parse().unwrap()));
        assert!(proxy(&[("https_proxy", "ftp://p:1")]).is_err());
    }

    #[test]
    fn only_the_status_line_of_an_answer_counts() {
        assert_eq!(
            status(b"HTTP/1.1 200 Connection established\r\nX: y\r\n\r\n"),
            Some((200, "Connection established".into()))
        );
        assert_eq!(status(b"HTTP/1.0 403\r\n\r\n"), Some((403, String::new())));
        for answer in [&b""[..], b"SSH-2.0-x\r\n", b"HTTP/1.1\r\n", b"HTTP/1.1 2xx no\r\n", b"HTTP/2 200\r\n"]
        {
            assert_eq!(status(answer), None, "{answer:?}");
        }
    }
}
