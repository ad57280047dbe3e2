//! The join token: all that an edge needs to find the cloud, authenticate it, and be authenticated, in one
//! line.
//!
//! Text in, value out, and back. The secret is worth a certificate until it is used or expires, so no `Debug`
//! shows it. The cloud decides if a token is valid.
//!
//! Form: `cwj1.` and base64url of: body length (2 bytes), body (protobuf), 4 bytes of SHA-256 over both. An
//! older edge ignores unknown fields; an incompatible form gets the prefix `cwj2.`.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use prost::Message;

use crate::peer::{KeyHash, PeerId, PeerIdError, sha256};

const PREFIX: &str = "cwj1.";
const CHECKSUM_BYTES: usize = 4;
/// Space for sixteen endpoints of full length; no real token comes near.
const TEXT_BYTES_MAX: usize = 8 * 1024;
pub const ENDPOINTS_MAX: usize = 16;
/// During a change of CA there are two.
const PINS_MAX: usize = 4;

/// A secret of 256 random bits. `Debug` does not show them.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenSecret([u8; 32]);

impl TokenSecret {
    pub fn generate() -> TokenSecret {
        let mut bytes = [0; 32];
        aws_lc_rs::rand::fill(&mut bytes)
            .expect("aws-lc takes randomness from the kernel, which has it after boot");
        TokenSecret(bytes)
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<TokenSecret> {
        Some(TokenSecret(bytes.try_into().ok()?))
    }

    /// Returns the secret itself: for the token's text and the wire.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the form to store. One round of SHA-256 is enough, because the secret is 256 random bits:
    /// there is no dictionary to try, so a slow hash would only cost the cloud.
    pub fn hash(&self) -> [u8; 32] {
        sha256(&self.0)
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(…)")
    }
}

/// Address of the cloud's channel port: a host name or an IP address, and a port.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelEndpoint {
    host: String,
    port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no endpoint: {why}")]
pub struct EndpointError {
    text: String,
    why: &'static str,
}

impl ChannelEndpoint {
    /// Returns the host, without brackets, also for IPv6.
    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for ChannelEndpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<ChannelEndpoint, EndpointError> {
        let refuse = |why| EndpointError { text: text.chars().take(300).collect(), why };
        if text.contains("://") {
            return Err(refuse(
                "write HOST:PORT without a scheme; edges dial the channel port (7444), not the API",
            ));
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| refuse("write HOST:PORT"))?;
        let port = match port.parse() {
            Ok(port) if port != 0 && !text.ends_with(char::is_whitespace) => port,
            _ => return Err(refuse("the port must be a number from 1 to 65535")),
        };
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(inner) => match inner.parse::<std::net::Ipv6Addr>() {
                Ok(address) => address.to_string(),
                Err(_) => return Err(refuse("there is no IPv6 address between the brackets")),
            },
            None if host.contains(':') => return Err(refuse("an IPv6 address needs brackets: [::1]:7444")),
            None => host.to_owned(),
        };
        let usable = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        if host.is_empty() || host.len() > 253 || !host.bytes().all(usable) {
            return Err(refuse("the host must be a DNS name or an IP address"));
        }
        Ok(ChannelEndpoint { host, port })
    }
}

impl fmt::Display for ChannelEndpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(formatter, "[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Debug for ChannelEndpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// A join token. Its text (`to_text`) holds the secret; `Debug` does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinToken {
    pub secret: TokenSecret,
    pub endpoints: Vec<ChannelEndpoint>,
    /// Hashes of the public keys of the CAs that the edge may trust at first contact.
    pub authorities: Vec<KeyHash>,
    pub peer: PeerId,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("the join token is empty")]
    Empty,
    #[error(
        "this is an API token (cwa1.…); an edge needs a join token, from: causeway token create --site NAME"
    )]
    ApiToken,
    #[error("a join token begins with cwj1. but this begins with {found:?}")]
    NotAToken { found: String },
    #[error("the join token is of version {found:?} and this program knows cwj1.: use a newer causeway")]
    Version { found: String },
    #[error("the join token has white space in the middle (after {after} characters): paste it as one line")]
    Broken { after: usize },
    #[error(
        "the join token has a character that does not belong there: {found:?} (after {after} characters)"
    )]
    Character { found: char, after: usize },
    #[error("the join token is cut off: {missing} or more of its bytes are missing; copy the whole line")]
    Truncated { missing: usize },
    #[error("the join token is too long by {extra} bytes: was something pasted behind it?")]
    TooLong { extra: usize },
    #[error("the join token was changed on its way (its checksum does not match): copy it again")]
    Checksum,
    #[error("the join token is not usable: {0}")]
    Content(String),
}

#[derive(Clone, PartialEq, Message)]
struct Body {
    #[prost(bytes = "vec", tag = "1")]
    secret: Vec<u8>,
    #[prost(string, repeated, tag = "2")]
    endpoints: Vec<String>,
    #[prost(bytes = "vec", repeated, tag = "3")]
    authorities: Vec<Vec<u8>>,
    #[prost(string, tag = "4")]
    site: String,
    #[prost(string, tag = "5")]
    gateway: String,
}

impl JoinToken {
    /// Returns the line to paste.
    pub fn to_text(&self) -> String {
        let body = Body {
            secret: self.secret.expose().to_vec(),
            endpoints: self.endpoints.iter().take(ENDPOINTS_MAX).map(ChannelEndpoint::to_string).collect(),
            authorities: self.authorities.iter().map(|hash| hash.as_bytes().to_vec()).collect(),
            site: self.peer.site().to_owned(),
            gateway: self.peer.gateway().to_owned(),
        }
        .encode_to_vec();
        let length = u16::try_from(body.len()).expect("sixteen endpoints and two names stay below 6 KiB");
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.extend_from_slice(&body);
        let checksum = sha256(&bytes);
        bytes.extend_from_slice(&checksum[..CHECKSUM_BYTES]);
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl FromStr for JoinToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<JoinToken, TokenError> {
        let encoded = strip(text.trim())?;
        let bytes = decode(encoded)?;
        let body = open(&bytes)?;
        let body = Body::decode(body).map_err(|error| TokenError::Content(error.to_string()))?;
        let content = |why: String| TokenError::Content(why);
        if body.endpoints.is_empty() || body.endpoints.len() > ENDPOINTS_MAX {
            return Err(content(format!("it names {} endpoints", body.endpoints.len())));
        }
        if body.authorities.is_empty() || body.authorities.len() > PINS_MAX {
            return Err(content(format!("it names {} CAs", body.authorities.len())));
        }
        let hash = |bytes: &Vec<u8>| {
            KeyHash::from_bytes(bytes)
                .ok_or_else(|| content("the hash of the CA is of the wrong length".into()))
        };
        let endpoint =
            |text: &String| text.parse().map_err(|error: EndpointError| content(error.to_string()));
        Ok(JoinToken {
            secret: TokenSecret::from_bytes(&body.secret)
                .ok_or_else(|| content("its secret is of the wrong length".into()))?,
            endpoints: body.endpoints.iter().map(endpoint).collect::<Result<_, _>>()?,
            authorities: body.authorities.iter().map(hash).collect::<Result<_, _>>()?,
            peer: PeerId::new(body.site, body.gateway)
                .map_err(|error: PeerIdError| content(error.to_string()))?,
        })
    }
}

fn strip(text: &str) -> Result<&str, TokenError> {
    if text.is_empty() {
        return Err(TokenError::Empty);
    }
    if let Some(encoded) = text.strip_prefix(PREFIX) {
        return Ok(encoded);
    }
    // The pasted text may be a secret of another kind, so only its first characters are shown.
    let found: String = text.chars().take(PREFIX.len()).collect();
    if text.starts_with("cwa1.") {
        Err(TokenError::ApiToken)
    } else if PREFIX.starts_with(text) {
        Err(TokenError::Truncated { missing: CHECKSUM_BYTES })
    } else if text.starts_with("cwj") {
        Err(TokenError::Version { found })
    } else {
        Err(TokenError::NotAToken { found })
    }
}

fn decode(encoded: &str) -> Result<Vec<u8>, TokenError> {
    if encoded.len() > TEXT_BYTES_MAX {
        return Err(TokenError::TooLong { extra: encoded.len() - TEXT_BYTES_MAX });
    }
    let odd = |char: &char| !(char.is_ascii_alphanumeric() || *char == '-' || *char == '_');
    if let Some((after, found)) = encoded.chars().enumerate().find(|(_, char)| odd(char)) {
        let after = after + PREFIX.len();
        return Err(match found.is_whitespace() {
            true => TokenError::Broken { after },
            false => TokenError::Character { found, after },
        });
    }
    // A cut may leave a number of characters that no bytes have; the rest tells how much is missing.
    let whole = match encoded.len() % 4 {
        1 => &encoded[..encoded.len() - 1],
        _ => encoded,
    };
    URL_SAFE_NO_PAD.decode(whole).or_else(|_| {
        let quads = &whole[..whole.len() / 4 * 4];
        URL_SAFE_NO_PAD.decode(quads).map_err(|_| TokenError::Checksum)
    })
}

fn open(bytes: &[u8]) -> Result<&[u8], TokenError> {
    let Some((length, rest)) = bytes.split_first_chunk::<2>() else {
        return Err(TokenError::Truncated { missing: 2 + CHECKSUM_BYTES - bytes.len() });
    };
    let length = usize::from(u16::from_be_bytes(*length));
    let whole = length + CHECKSUM_BYTES;
    if rest.len() < whole {
        return Err(TokenError::Truncated { missing: whole - rest.len() });
    }
    if rest.len() > whole {
        return Err(TokenError::TooLong { extra: rest.len() - whole });
    }
    let (body, checksum) = rest.split_at(length);
    if sha256(&bytes[..2 + length])[..CHECKSUM_BYTES] != *checksum {
        return Err(TokenError::Checksum);
    }
    Ok(body)
}

#[cfg(test)]
mod tests;
