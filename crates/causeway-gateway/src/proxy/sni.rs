//! Reads the server name from the first message of a TLS client, without terminating TLS.
//!
//! RFC 8446, 4.1.2 and RFC 6066, 3: a ClientHello may span several records, and those several segments.
//! Input: the bytes that have arrived. Output: a name, that more bytes are needed, or that it is not TLS.
//! Pure and bounded.

use std::fmt;

/// More than any ClientHello has, also with post-quantum keys.
pub const HELLO_BYTES_MAX: usize = 16 << 10;

/// The server name of a ClientHello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientHello {
    /// In lower case, without a trailing dot.
    Named(String),
    Nameless,
}

/// Why no name can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientHelloError {
    NotTls,
    Malformed,
    TooLong,
    /// The name is not a valid host name.
    OddName,
}

impl fmt::Display for ClientHelloError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            ClientHelloError::NotTls => "this is not TLS",
            ClientHelloError::Malformed => "the TLS ClientHello is malformed",
            ClientHelloError::TooLong => "the TLS ClientHello is too long",
            ClientHelloError::OddName => "the server name in the TLS ClientHello is not a valid host name",
        })
    }
}

impl std::error::Error for ClientHelloError {}

/// Parses the bytes that have arrived. None: more are needed.
pub fn read(bytes: &[u8]) -> Result<Option<ClientHello>, ClientHelloError> {
    // Bytes beyond the bound change nothing.
    let bytes = &bytes[..bytes.len().min(HELLO_BYTES_MAX)];
    let Some(message) = message(bytes)? else { return Ok(None) };
    hello(&message).map(Some)
}

/// A fatal alert: unrecognized_name (RFC 6066, 3).
pub const UNRECOGNIZED_NAME: [u8; 7] = [ALERT, 3, 3, 0, 2, 2, 112];

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
/// RFC 8446, 5.1.
const RECORD_BYTES_MAX: usize = 1 << 14;

/// Assembles the first handshake message from its records.
fn message(bytes: &[u8]) -> Result<Option<Vec<u8>>, ClientHelloError> {
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        // A partial record header is checked at once: other protocols differ in their first byte.
        match rest {
            [kind, ..] if *kind != HANDSHAKE => return Err(ClientHelloError::NotTls),
            [_, major, ..] if *major != 3 => return Err(ClientHelloError::NotTls),
            _ => {}
        }
        let [_, _, _, high, low, after @ ..] = rest else { break };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if length == 0 || length > RECORD_BYTES_MAX {
            return Err(ClientHelloError::Malformed);
        }
        message.extend_from_slice(&after[..length.min(after.len())]);
        match *message {
            [kind, ..] if kind != CLIENT_HELLO => return Err(ClientHelloError::Malformed),
            [_, a, b, c, ..] => {
                let needed = 4 + u32::from_be_bytes([0, a, b, c]) as usize;
                if needed > HELLO_BYTES_MAX {
                    return Err(ClientHelloError::TooLong);
                }
                if message.len() >= needed {
                    message.truncate(needed);
                    message.drain(..4);
                    return Ok(Some(message));
                }
            }
            _ => {}
        }
        if after.len() < length {
            break;
        }
        rest = &after[length..];
    }
    if bytes.len() >= HELLO_BYTES_MAX { Err(ClientHelloError::TooLong) } else { Ok(None) }
}

fn hello(message: &[u8]) -> Result<ClientHello, ClientHelloError> {
    let mut reader = Reader(message);
    // Version and random; then session id, cipher suites and compression methods.
    reader.take(2 + 32)?;
    reader.short_list()?;
    reader.list()?;
    reader.short_list()?;
    // Old clients send no extensions.
    if reader.0.is_empty() {
        return Ok(ClientHello::Nameless);
    }
    let mut extensions = Reader(reader.list()?);
    while !extensions.0.is_empty() {
        let kind = extensions.number()?;
        let content = extensions.list()?;
        if kind == SERVER_NAME {
            return server_name(content);
        }
    }
    Ok(ClientHello::Nameless)
}

fn server_name(content: &[u8]) -> Result<ClientHello, ClientHelloError> {
    let mut names = Reader(Reader(content).list()?);
    while !names.0.is_empty() {
        let kind = names.take(1)?[0];
        let name = names.list()?;
        if kind == HOST_NAME {
            return host_name(name).map(ClientHello::Named);
        }
    }
    Ok(ClientHello::Nameless)
}

fn host_name(name: &[u8]) -> Result<String, ClientHelloError> {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let name = name.strip_suffix(b".").unwrap_or(name);
    if name.is_empty() || name.len() > 253 || !name.iter().all(allowed) {
        return Err(ClientHelloError::OddName);
    }
    Ok(name.iter().map(|byte| char::from(byte.to_ascii_lowercase())).collect())
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], ClientHelloError> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(ClientHelloError::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u16, ClientHelloError> {
        let taken = self.take(2)?;
        Ok(u16::from_be_bytes([taken[0], taken[1]]))
    }

    fn short_list(&mut self) -> Result<&'a [u8], ClientHelloError> {
        let length = self.take(1)?[0];
        self.take(length.into())
    }

    fn list(&mut self) -> Result<&'a [u8], ClientHelloError> {
        let length = self.number()?;
        self.take(length.into())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    /// Returns the first message of rustls.
    fn first_words(name: &str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let name = rustls::pki_types::ServerName::try_from(name.to_owned()).unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    /// Returns the same message in records of that size.
    fn in_records(bytes: &[u8], size: usize) -> Vec<u8> {
        let pieces = bytes[5..].chunks(size);
        pieces.flat_map(|piece| [&[22, 3, 1, 0, piece.len() as u8][..], piece].concat()).collect()
    }

    #[test]
    fn the_name_of_a_real_client_is_read() {
        let bytes = first_words("Web.Example");
        assert_eq!(read(&bytes), Ok(Some(ClientHello::Named("web.example".into()))));
        assert_eq!(read(&first_words("127.0.0.1")), Ok(Some(ClientHello::Nameless)));
        // Bytes after the ClientHello are not parsed.
        assert_eq!(read(&[&bytes[..], b"more"].concat()), Ok(Some(ClientHello::Named("web.example".into()))));
    }

    #[test]
    fn a_hello_may_come_in_pieces() {
        let whole = first_words("web.example");
        for bytes in [whole.clone(), in_records(&whole, 7), in_records(&whole, 1)] {
            for length in 0..bytes.len() {
                assert_eq!(read(&bytes[..length]), Ok(None), "{length} of {}", bytes.len());
            }
            assert_eq!(read(&bytes), Ok(Some(ClientHello::Named("web.example".into()))));
        }
    }

    #[test]
    fn what_is_no_hello_is_told_at_once() {
        assert_eq!(read(b"G"), Err(ClientHelloError::NotTls));
        assert_eq!(read(&[22, 2]), Err(ClientHelloError::NotTls));
        assert_eq!(read(&[22, 3, 1, 0, 0]), Err(ClientHelloError::Malformed));
        assert_eq!(read(&[22, 3, 1, 0, 1, 2]), Err(ClientHelloError::Malformed));
        assert_eq!(read(&[22, 3, 1, 0, 4, 1, 1, 0, 0]), Err(ClientHelloError::TooLong));
        assert_eq!(read(&[22, 3, 1, 0, 5, 1, 0, 0, 1, 9]), Err(ClientHelloError::Malformed));
        assert_eq!(host_name(b"a b"), Err(ClientHelloError::OddName));
        assert_eq!(host_name(b"."), Err(ClientHelloError::OddName));
    }

    #[test]
    fn a_hello_in_crumbs_has_an_end() {
        let crumbs = [22, 3, 1, 0, 1, 1].into_iter().chain([22, 3, 1, 0, 1, 0].repeat(HELLO_BYTES_MAX));
        let crumbs: Vec<u8> = crumbs.take(HELLO_BYTES_MAX).collect();
        assert!(read(&crumbs).is_err());
    }

    proptest! {
        #[test]
        fn nothing_makes_it_stumble(at in 0usize..300, byte: u8, length in 0usize..300) {
            let mut bytes = first_words("web.example");
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(length.max(1));
            let _ = read(&bytes);
        }
    }
}
