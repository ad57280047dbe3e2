//! Applies a revocation log to a store that does not know of it: one that was restored, or put back as an older file.
//!
//! Pure functions decide the effect of an entry on the records; `replay` reads, decides and commits by
//! compare-and-swap, entry by entry in the order of the log. Applying a log twice changes nothing.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use causeway_channel::KeyHash;
use causeway_channel::clock::from_unix_seconds;
use causeway_store::{Op, Store, StoreError};
use serde::de::DeserializeOwned;

use super::authority::GATEWAY_LIFETIME;
use super::gateways::{self, GatewayRecord};
use super::registrar::{ATTEMPTS_MAX, api_key, encode, join_key};
use super::revocation::{self, RevocationRecord};
use super::revocation_log::RevocationEntry;
use super::tokens::{DeletedApiToken, JoinTokenRecord, Redeemed, deleted_key};
use super::{follow, tokens};

/// The revocations that were missing in the store and were applied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Gateways whose key is revoked again, by name.
    pub gateways: Vec<String>,
    /// Certificates of people and programs, by user and serial.
    pub certificates: Vec<String>,
    /// Ids.
    pub join_tokens: Vec<String>,
    pub api_tokens: Vec<String>,
}

impl Replayed {
    pub fn count(&self) -> usize {
        self.gateways.len() + self.certificates.len() + self.join_tokens.len() + self.api_tokens.len()
    }
}

/// Applies the entries that the store does not have. `grace`: how long an expired certificate may be replaced with its key.
pub async fn replay(
    store: &Store,
    entries: &[RevocationEntry],
    now: SystemTime,
    grace: Duration,
) -> Result<Replayed, StoreError> {
    let mut replayed = Replayed::default();
    if entries.is_empty() {
        return Ok(replayed);
    }
    let mut known: HashMap<String, Bytes> = HashMap::new();
    for prefix in [revocation::PREFIX, tokens::JOIN_PREFIX, tokens::API_PREFIX] {
        let (records, _) = follow::snapshot(store, prefix).await?;
        known.extend(records.into_iter().map(|record| (record.key.to_string(), record.value)));
    }
    for entry in entries {
        match entry {
            RevocationEntry::Key { key, record } => {
                let Some(hash) = KeyHash::from_hex(key) else { continue };
                if !known.contains_key(&revocation::store_key(&hash))
                    && replay_key(store, &hash, record, now, grace).await?
                {
                    match record.gateway.is_empty() {
                        true => replayed.certificates.push(format!("{} {}", record.user, record.serial)),
                        false => replayed.gateways.push(record.gateway.clone()),
                    }
                }
            }
            RevocationEntry::JoinToken { id, deleted, redeemed, .. } => {
                let is_behind = known
                    .get(&join_key(id))
                    .and_then(|value| serde_json::from_slice(value).ok())
                    .is_some_and(|record| closed(&record, *deleted, redeemed).is_some());
                if is_behind && replay_join_token(store, id, *deleted, redeemed).await? {
                    push_once(&mut replayed.join_tokens, id);
                }
            }
            RevocationEntry::ApiToken { id, expires } => {
                if tokens::is_id(id) && known.contains_key(&api_key(id)) {
                    let deleted = DeletedApiToken { expires: *expires };
                    let ops = vec![
                        Op::Delete { key: api_key(id), expected: None },
                        Op::Put { key: deleted_key(id), value: encode(&deleted) },
                    ];
                    match store.commit(ops).await {
                        Ok(_) => push_once(&mut replayed.api_tokens, id),
                        // Another replica was faster.
                        Err(StoreError::NotFound { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
    }
    Ok(replayed)
}

fn push_once(list: &mut Vec<String>, id: &str) {
    if !list.iter().any(|known| known == id) {
        list.push(id.to_owned());
    }
}

async fn replay_key(
    store: &Store,
    key: &KeyHash,
    record: &RevocationRecord,
    now: SystemTime,
    grace: Duration,
) -> Result<bool, StoreError> {
    let gateway_key = gateways::store_key(&record.gateway);
    for _ in 0..ATTEMPTS_MAX {
        let gateway = match record.gateway.is_empty() {
            true => None,
            false => load::<GatewayRecord>(store, &gateway_key).await?,
        };
        let before = gateway.as_ref().map(|(gateway, _)| gateway);
        let mut ops = Vec::new();
        if !record.is_forgettable(now) {
            ops.push(Op::Put { key: revocation::store_key(key), value: record.encode() });
        }
        let after = without_key(before, key, record).filter(|_| is_worth_a_record(record, now, grace));
        match (after, &gateway) {
            (Some(after), Some((_, expected))) => {
                let (key, value) = (gateway_key.clone(), after.encode());
                ops.push(Op::Update { key, value, expected: *expected });
            }
            (Some(after), None) => ops.push(Op::Create { key: gateway_key.clone(), value: after.encode() }),
            (None, _) => {}
        }
        if ops.is_empty() {
            return Ok(false);
        }
        match store.commit(ops).await {
            Ok(_) => return Ok(true),
            Err(StoreError::Conflict { .. } | StoreError::AlreadyExists { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Err(busy(&record.gateway))
}

/// Returns true if the key could still return unless it is revoked.
fn is_worth_a_record(record: &RevocationRecord, now: SystemTime, grace: Duration) -> bool {
    !record.gateway.is_empty() && now <= from_unix_seconds(record.until) + grace
}

/// The record of a gateway after its key was revoked, or replaced by another one; `None`: it already says so. A gateway that the
/// store does not know gets a record, because certificates of the revoked key would otherwise be renewed once the
/// revocation is forgotten.
fn without_key(
    before: Option<&GatewayRecord>,
    key: &KeyHash,
    revoked: &RevocationRecord,
) -> Option<GatewayRecord> {
    if before.is_some_and(|before| !before.is_key(key) && before.at >= revoked.at) {
        return None;
    }
    let lifetime = i64::try_from(GATEWAY_LIFETIME.as_secs()).unwrap_or(i64::MAX);
    Some(GatewayRecord {
        site: before.map_or_else(|| revoked.site.clone(), |before| before.site.clone()),
        key: revoked.by.clone(),
        serial: String::new(),
        authority: String::new(),
        proven: String::new(),
        at: before.map_or(revoked.at, |before| before.at.max(revoked.at)),
        expires: match revoked.by {
            Some(_) => revoked.at.saturating_add(lifetime),
            None => revoked.until,
        },
        node: None,
        void_key: None,
    })
}

async fn replay_join_token(
    store: &Store,
    id: &str,
    deleted: Option<i64>,
    redeemed: &[Redeemed],
) -> Result<bool, StoreError> {
    for _ in 0..ATTEMPTS_MAX {
        let Some((record, expected)) = load::<JoinTokenRecord>(store, &join_key(id)).await? else {
            return Ok(false);
        };
        let Some(record) = closed(&record, deleted, redeemed) else { return Ok(false) };
        match store.update(&join_key(id), encode(&record), expected).await {
            Ok(_) => return Ok(true),
            Err(StoreError::Conflict { .. } | StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Err(busy(id))
}

/// The token after everything in the log happened to it; `None`: it already did.
fn closed(before: &JoinTokenRecord, deleted: Option<i64>, redeemed: &[Redeemed]) -> Option<JoinTokenRecord> {
    let mut after = before.clone();
    after.deleted = before.deleted.or(deleted);
    for use_ in redeemed {
        if !after.redeemed.iter().any(|known| known.key == use_.key) {
            after.redeemed.push(use_.clone());
        }
    }
    (after != *before).then_some(after)
}

async fn load<T: DeserializeOwned>(
    store: &Store,
    key: &str,
) -> Result<Option<(T, causeway_store::Revision)>, StoreError> {
    let Some(record) = store.get(key).await? else { return Ok(None) };
    let value = serde_json::from_slice(&record.value).map_err(|error| StoreError::Corrupt {
        reason: format!("the record {key} cannot be read"),
        source: Some(std::sync::Arc::new(error)),
    })?;
    Ok(Some((value, record.revision)))
}

fn busy(what: &str) -> StoreError {
    StoreError::Unavailable { reason: format!("{what} is being changed by too many at once"), source: None }
}

#[cfg(test)]
mod tests {
    use causeway_channel::clock::unix_seconds;

    use super::*;
    use crate::identity::revocation::RevocationReason;

    const AT: i64 = 1_800_000_000;

    fn hash(name: &str) -> KeyHash {
        KeyHash::of_spki(name.as_bytes())
    }

    fn gateway(key: Option<&str>, at: i64) -> GatewayRecord {
        GatewayRecord {
            site: "s".into(),
            key: key.map(|key| hash(key).to_string()),
            serial: "1".into(),
            authority: "a".into(),
            proven: String::new(),
            at,
            expires: at + 100,
            node: None,
            void_key: None,
        }
    }

    #[test]
    fn a_revoked_key_is_taken_from_its_gateway_and_a_later_key_is_left() {
        let revoked =
            |by: Option<&str>| RevocationRecord { by: by.map(|by| hash(by).to_string()), ..revocation(AT) };
        let check = |before: Option<GatewayRecord>, by: Option<&str>, expected: Option<Option<&str>>| {
            let after = without_key(before.as_ref(), &hash("old"), &revoked(by));
            let key = after.map(|after| after.key);
            let expected = expected.map(|key| key.map(|key| hash(key).to_string()));
            assert_eq!(key, expected, "{before:?} {by:?}");
        };
        check(Some(gateway(Some("old"), AT - 5)), None, Some(None));
        check(Some(gateway(Some("old"), AT - 5)), Some("new"), Some(Some("new")));
        check(Some(gateway(Some("new"), AT)), Some("new"), None);
        check(Some(gateway(Some("new"), AT + 5)), None, None);
        check(Some(gateway(None, AT)), None, None);
        // Enrolled anew twice since the backup, and one line of the log is missing.
        check(Some(gateway(Some("older"), AT - 5)), Some("new"), Some(Some("new")));
        check(None, None, Some(None));
        let after = without_key(None, &hash("old"), &revoked(None)).unwrap();
        assert_eq!((after.site.as_str(), after.at, after.expires), ("Tokyo", AT, AT + 50));
    }

    fn revocation(at: i64) -> RevocationRecord {
        let mut record =
            RevocationRecord::new("g", RevocationReason::Revoked, from_unix_seconds(at), at + 50);
        record.site = "Tokyo".into();
        record
    }

    #[test]
    fn a_token_keeps_what_both_know() {
        let used = |key: &str| Redeemed { key: key.into(), at: 1 };
        let token = |redeemed: &[Redeemed], deleted| {
            JoinTokenRecord {
            redeemed: redeemed.to_vec(),
            deleted,
            ..serde_json::from_value(serde_json::json!({
                "hash": "h", "site": "s", "gateway": "g", "created": 1, "expires": 2, "uses": 1, "authorities": [],
            }))
            .unwrap()
        }
        };
        let check =
            |before: JoinTokenRecord, deleted, redeemed: &[Redeemed], expected: Option<JoinTokenRecord>| {
                assert_eq!(closed(&before, deleted, redeemed), expected, "{before:?}");
            };
        check(token(&[], None), None, &[used("a")], Some(token(&[used("a")], None)));
        check(token(&[used("a")], None), None, &[used("a")], None);
        check(
            token(&[used("a")], None),
            Some(9),
            &[used("b")],
            Some(token(&[used("a"), used("b")], Some(9))),
        );
        check(token(&[], Some(3)), Some(9), &[], None);
    }

    #[test]
    fn a_revocation_has_an_effect_until_its_certificate_cannot_be_replaced_any_more() {
        let grace = Duration::from_secs(100);
        let at = |seconds: i64| from_unix_seconds(AT + seconds);
        assert!(is_worth_a_record(&revocation(AT), at(150), grace));
        assert!(!is_worth_a_record(&revocation(AT), at(151), grace));
        assert_eq!(unix_seconds(at(0)), AT);
    }
}
