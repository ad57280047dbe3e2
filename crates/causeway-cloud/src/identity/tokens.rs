//! The records of join tokens and API tokens, and the decision on a presented token.
//!
//! The store holds the hash of a token's secret, never the secret. Records are plain values; the decisions
//! about them are pure, and `registrar` reads, decides and writes with compare-and-swap.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use causeway_channel::clock::{UtcTimestamp, from_unix_seconds, unix_seconds};
use causeway_channel::peer::sha256;
use causeway_channel::wire::{EnrolmentCode, EnrolmentRefusal};
use causeway_channel::{KeyHash, PeerId, TokenSecret};
use serde::{Deserialize, Serialize};

pub const JOIN_PREFIX: &str = "jointokens/";
pub const API_PREFIX: &str = "apitokens/";
/// Marks of API tokens that were deleted, so that every replica hears of it, also later.
pub const DELETED_PREFIX: &str = "deletedtokens/";
const API_TEXT: &str = "cwa1.";
pub const TTL_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// The time for which an expired token is kept, so that a host that presents it is told the reason.
pub const REMEMBERED: Duration = Duration::from_secs(7 * 24 * 3600);

/// The name of a token: half of the hash of its secret, in hexadecimal digits. It tells nothing of the secret.
pub fn id(secret: &TokenSecret) -> String {
    secret.hash()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns true for the form of a token's name. Any other text must not become part of a store key.
pub fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinTokenRecord {
    /// All of the hash; the key of the record holds half of it.
    pub hash: String,
    pub site: String,
    pub gateway: String,
    pub created: i64,
    pub expires: i64,
    pub uses: u32,
    /// The CAs the token's text names: a change of CA must not end before they are all useless.
    pub authorities: Vec<String>,
    #[serde(default)]
    pub redeemed: Vec<Redeemed>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted: Option<i64>,
    /// True if the token may replace a gateway that is enrolled with another key. Tokens made before this
    /// field existed may.
    #[serde(default = "replaces_by_default")]
    pub replaces: bool,
}

fn replaces_by_default() -> bool {
    true
}

/// The effect of a join token on a gateway that is enrolled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnEnrolled {
    /// Such a token is neither created nor accepted.
    Refuse,
    /// The key of the host that is enrolled is revoked when another one joins.
    Replace,
}

/// `deletedtokens/ID`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletedApiToken {
    /// When the token would have ended, and the mark with it.
    pub expires: i64,
}

pub fn deleted_key(id: &str) -> String {
    format!("{DELETED_PREFIX}{id}")
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redeemed {
    pub key: String,
    pub at: i64,
}

/// The effect of redeeming a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redemption {
    /// One use more.
    Use,
    /// The same key has been here before: nothing is used up.
    Again,
}

impl JoinTokenRecord {
    pub fn new(
        secret: &TokenSecret,
        peer: &PeerId,
        now: SystemTime,
        ttl: Duration,
        uses: u32,
        authorities: &[KeyHash],
    ) -> JoinTokenRecord {
        JoinTokenRecord {
            hash: hex(&secret.hash()),
            site: peer.site().to_owned(),
            gateway: peer.gateway().to_owned(),
            created: unix_seconds(now),
            expires: unix_seconds(now + ttl),
            uses,
            authorities: authorities.iter().map(KeyHash::to_string).collect(),
            redeemed: Vec::new(),
            deleted: None,
            replaces: false,
        }
    }

    pub fn matches(&self, secret: &TokenSecret) -> bool {
        self.hash == hex(&secret.hash())
    }

    /// Checks that `key` may redeem this token now.
    ///
    /// `is_current`: the key is the gateway's own and could re-enrol anyway. Then the end of the token does
    /// not matter any more: an edge that crashed in the middle is not punished for coming back late.
    pub fn check_redemption(
        &self,
        key: &KeyHash,
        now: SystemTime,
        is_current: bool,
    ) -> Result<Redemption, EnrolmentRefusal> {
        let refuse = |code, message: String| Err(EnrolmentRefusal::new(code, message, NEW_TOKEN));
        let (site, gateway) = (&self.site, &self.gateway);
        if self.deleted.is_some() {
            return refuse(
                EnrolmentCode::TokenDeleted,
                format!("the token for {site}/{gateway} was deleted"),
            );
        }
        let known = self.redeemed.iter().any(|redeemed| redeemed.key == key.to_string());
        if known && is_current {
            return Ok(Redemption::Again);
        }
        let expires = from_unix_seconds(self.expires);
        if now >= expires {
            let message = format!(
                "the token for {site}/{gateway} expired at {}, and it is {} now",
                UtcTimestamp(expires),
                UtcTimestamp(now)
            );
            return refuse(EnrolmentCode::TokenExpired, message);
        }
        if known {
            // It was the gateway's key once; another key has replaced it since.
            let message = format!("this key of {site}/{gateway} was replaced by a later enrolment");
            return refuse(EnrolmentCode::NotCurrent, message);
        }
        if self.redeemed.len() >= self.uses as usize {
            let message = match self.uses {
                1 => format!("the token for {site}/{gateway} was already used, by another key"),
                uses => {
                    format!("the token for {site}/{gateway} was already used {uses} times, by other keys")
                }
            };
            return refuse(EnrolmentCode::TokenUsed, message);
        }
        Ok(Redemption::Use)
    }

    /// Returns true if the token can still be redeemed.
    pub fn is_open(&self, now: SystemTime) -> bool {
        self.deleted.is_none()
            && now < from_unix_seconds(self.expires)
            && self.redeemed.len() < self.uses as usize
    }

    pub fn is_forgettable(&self, now: SystemTime) -> bool {
        now > from_unix_seconds(self.expires) + REMEMBERED
    }
}

pub const NEW_TOKEN: &str = "ask for a new one: causeway token create --site SITE --gateway GATEWAY";

pub fn unknown_token() -> EnrolmentRefusal {
    EnrolmentRefusal::new(
        EnrolmentCode::TokenUnknown,
        "this cloud does not know the token, or has long forgotten it",
        NEW_TOKEN,
    )
}

/// The refusal of a token that was made for a gateway whose EGateway was deleted and made again.
pub fn of_a_deleted_gateway(token: &JoinTokenRecord) -> EnrolmentRefusal {
    let (site, gateway) = (&token.site, &token.gateway);
    let message =
        format!("the token was made for an EGateway {gateway} of site {site} that was deleted since");
    EnrolmentRefusal::new(EnrolmentCode::TokenDeleted, message, NEW_TOKEN)
}

/// The refusal of a token that would put out a host that is enrolled.
// An edge from before this rule knows the code: it gives up and shows message and hint.
pub fn gateway_is_enrolled(token: &JoinTokenRecord) -> EnrolmentRefusal {
    let (site, gateway) = (&token.site, &token.gateway);
    let message = format!(
        "gateway {gateway} of site {site} is enrolled with another key, and this token may not replace it"
    );
    let hint = format!(
        "for a second host: causeway token create --site {site} --gateway NAME2; to replace the first: causeway token create --site {site} --gateway {gateway} --replace"
    );
    EnrolmentRefusal::new(EnrolmentCode::TokenUsed, message, hint)
}

pub use causeway_api::management::{ADMIN_GROUP, ApiRole, VIEWER_GROUP};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiTokenRecord {
    pub hash: String,
    pub role: ApiRole,
    pub created: i64,
    pub expires: i64,
}

impl ApiTokenRecord {
    pub fn new(secret: &TokenSecret, role: ApiRole, now: SystemTime, ttl: Duration) -> ApiTokenRecord {
        let (created, expires) = (unix_seconds(now), unix_seconds(now + ttl));
        ApiTokenRecord { hash: hex(&secret.hash()), role, created, expires }
    }

    pub fn matches(&self, secret: &TokenSecret) -> bool {
        self.hash == hex(&secret.hash())
    }

    pub fn has_expired(&self, now: SystemTime) -> bool {
        now >= from_unix_seconds(self.expires)
    }
}

/// The line a client puts behind `Authorization: Bearer`. The checksum keeps typing errors and
/// garbage away from the store.
pub fn api_text(secret: &TokenSecret) -> String {
    let bytes = [secret.expose().as_slice(), &sha256(secret.expose())[..4]].concat();
    format!("{API_TEXT}{}", URL_SAFE_NO_PAD.encode(bytes))
}

/// `Err` says what is wrong, without repeating the text.
pub fn parse_api_text(text: &str) -> Result<TokenSecret, &'static str> {
    let encoded = match text.strip_prefix(API_TEXT) {
        Some(encoded) => encoded,
        None if text.starts_with("cwj") => return Err("it is a join token; the API needs an API token"),
        None => return Err("an API token begins with cwa1."),
    };
    if encoded.len() > 48 {
        return Err("it is too long");
    }
    let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| "it is cut off or changed")?;
    let (secret, checksum) = bytes.split_at_checked(32).ok_or("it is cut off")?;
    if sha256(secret)[..4] != *checksum {
        return Err("its checksum does not match");
    }
    TokenSecret::from_bytes(secret).ok_or("it is cut off")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> SystemTime {
        from_unix_seconds(1_800_000_000)
    }

    fn key(name: &str) -> KeyHash {
        KeyHash::of_spki(name.as_bytes())
    }

    fn record(uses: u32, redeemed: &[&str]) -> JoinTokenRecord {
        let peer = PeerId::new("Tokyo", "G1").unwrap();
        let hour = Duration::from_secs(3600);
        let mut record = JoinTokenRecord::new(&TokenSecret::generate(), &peer, now(), hour, uses, &[]);
        let seen = |name: &&str| Redeemed { key: key(name).to_string(), at: 0 };
        record.redeemed = redeemed.iter().map(seen).collect();
        record
    }

    #[test]
    fn a_token_is_worth_its_uses_and_a_key_costs_only_one() {
        let later = now() + Duration::from_secs(3600);
        let row = |record: &JoinTokenRecord,
                   name: &str,
                   at,
                   current,
                   expected: Result<Redemption, EnrolmentCode>| {
            let judged = record.check_redemption(&key(name), at, current).map_err(|refusal| refusal.reason());
            assert_eq!(judged, expected, "{name} {current} {record:?}");
        };
        row(&record(1, &[]), "a", now(), false, Ok(Redemption::Use));
        row(&record(1, &["a"]), "a", now(), true, Ok(Redemption::Again));
        row(&record(1, &["a"]), "b", now(), false, Err(EnrolmentCode::TokenUsed));
        row(&record(2, &["a"]), "b", now(), false, Ok(Redemption::Use));
        row(&record(2, &["a", "b"]), "a", now(), false, Err(EnrolmentCode::NotCurrent));
        row(&record(2, &["a", "b"]), "b", now(), true, Ok(Redemption::Again));
        row(&record(2, &["a", "b"]), "c", now(), false, Err(EnrolmentCode::TokenUsed));
        row(&record(1, &[]), "a", later, false, Err(EnrolmentCode::TokenExpired));
        row(&record(1, &["a"]), "a", later, true, Ok(Redemption::Again));
        row(&record(1, &["a"]), "a", later, false, Err(EnrolmentCode::TokenExpired));
        row(&record(1, &["a"]), "b", later, false, Err(EnrolmentCode::TokenExpired));
        let deleted = JoinTokenRecord { deleted: Some(1), ..record(1, &["a"]) };
        row(&deleted, "a", now(), true, Err(EnrolmentCode::TokenDeleted));
        row(&deleted, "b", now(), false, Err(EnrolmentCode::TokenDeleted));
    }

    #[test]
    fn every_refusal_says_what_to_do() {
        let refusal = record(1, &["a"]).check_redemption(&key("b"), now(), false).unwrap_err();
        assert!(refusal.to_string().contains("Tokyo/G1") && refusal.hint.contains("causeway token create"));
    }

    #[test]
    fn a_token_is_forgotten_a_week_after_its_end() {
        let record = record(1, &[]);
        let end = now() + Duration::from_secs(3600);
        assert!(record.is_open(now()) && !record.is_open(end));
        assert!(!record.is_forgettable(end + REMEMBERED));
        assert!(record.is_forgettable(end + REMEMBERED + Duration::from_secs(1)));
    }

    #[test]
    fn an_api_token_reads_back_and_garbage_does_not() {
        let secret = TokenSecret::generate();
        let text = api_text(&secret);
        assert_eq!(parse_api_text(&text).unwrap(), secret);
        let wrong =
            ["", "cwa1.", "cwa1.AAAA", "cwj1.AAAA", "hello", &text[..text.len() - 1], &format!("{text}A")];
        for text in wrong {
            assert!(parse_api_text(text).is_err(), "{text}");
        }
        let mut changed = text.clone();
        changed.replace_range(10..11, if &text[10..11] == "A" { "B" } else { "A" });
        assert_eq!(parse_api_text(&changed), Err("its checksum does not match"));
    }

    #[test]
    fn only_names_of_tokens_become_keys() {
        assert!(is_id(&id(&TokenSecret::generate())));
        for text in ["", "abc", "../../identity/ca", &"A".repeat(32), &"g".repeat(32), &"0".repeat(33)] {
            assert!(!is_id(text), "{text}");
        }
    }
}
