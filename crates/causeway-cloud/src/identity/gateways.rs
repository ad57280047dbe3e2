//! The records of gateways: each holds the gateway's key and its last certificate.
//!
//! `identity/gateways/NAME`, one record per gateway, and the pure question whether a certificate that is
//! shown is the gateway's own. Deciding it by the later certificate keeps edges alive when the cloud was restored
//! from a backup that is older than they are: only our CA can have signed what is newer than the record.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use causeway_channel::clock::{BACKDATE, UtcTimestamp, from_unix_seconds, unix_seconds};
use causeway_channel::wire::{EnrolmentCode, EnrolmentRefusal};
use causeway_channel::{CertificateFacts, KeyHash, PeerId};
use serde::{Deserialize, Serialize};

use super::authority::SignedCertificate;

pub const PREFIX: &str = "identity/gateways/";

pub fn store_key(gateway: &str) -> String {
    format!("{PREFIX}{gateway}")
}

/// The site for which a gateway holds a certificate that is not revoked, from its record.
pub fn enrolled_site(record: &[u8]) -> Option<String> {
    let record: GatewayRecord = serde_json::from_slice(record).ok()?;
    record.key.is_some().then_some(record.site)
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayRecord {
    pub site: String,
    /// The hash of its key; none after it was revoked.
    pub key: Option<String>,
    pub serial: String,
    /// The CA that signed its last certificate.
    pub authority: String,
    /// The CA of the certificate it was last seen to use while CAs were changing. A certificate that was
    /// issued may have been lost on its way; one that is used was not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub proven: String,
    /// When the last certificate was signed, or the gateway revoked.
    pub at: i64,
    pub expires: i64,
    /// The Kubernetes node whose pods may replace the key; none for a gateway that a join token enrolled. A cloud older than
    /// this field drops it with the next renewal, and the pods of the node are refused from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Never stored: the key of a deleted gateway of the same name, which the next commit revokes.
    #[serde(skip)]
    pub void_key: Option<String>,
}

impl GatewayRecord {
    pub fn new(
        peer: &PeerId,
        key: &KeyHash,
        signed: &SignedCertificate,
        authority: &KeyHash,
        now: SystemTime,
    ) -> GatewayRecord {
        GatewayRecord {
            site: peer.site().to_owned(),
            key: Some(key.to_string()),
            serial: signed.serial.clone(),
            authority: authority.to_string(),
            proven: String::new(),
            at: unix_seconds(now),
            expires: unix_seconds(signed.not_after),
            node: None,
            void_key: None,
        }
    }

    pub fn revoked(&self, now: SystemTime) -> GatewayRecord {
        GatewayRecord { key: None, at: unix_seconds(now), ..self.clone() }
    }

    pub fn encode(&self) -> Bytes {
        serde_json::to_vec(self).expect("strings and numbers are always JSON").into()
    }

    pub fn is_key(&self, key: &KeyHash) -> bool {
        self.key.as_deref() == Some(key.to_string().as_str())
    }

    /// Returns true if its holder can still return without a new token.
    pub fn is_alive(&self, now: SystemTime, grace: Duration) -> bool {
        self.key.is_some() && now <= from_unix_seconds(self.expires) + grace
    }
}

/// Returns true if a certificate of this CA still authenticates its gateway. `record` is the record of that gateway.
pub fn speaks_for_its_gateway(
    record: Option<&GatewayRecord>,
    shown: &CertificateFacts,
) -> Result<(), EnrolmentRefusal> {
    let Some(record) = record else { return Ok(()) };
    if record.is_key(&shown.key) {
        return Ok(());
    }
    // Certificates are backdated by a fixed time, so this is when it was signed.
    let signed = unix_seconds(shown.not_before + BACKDATE);
    if signed > record.at {
        return Ok(());
    }
    Err(EnrolmentRefusal::new(
        EnrolmentCode::NotCurrent,
        "the gateway was enrolled anew with another key, or revoked, after this certificate was issued",
        super::tokens::NEW_TOKEN,
    ))
}

/// Returns true if an expired certificate is still within the time in which its key may request another.
pub fn is_within_grace(
    record: Option<&GatewayRecord>,
    shown: &CertificateFacts,
    now: SystemTime,
    grace: Duration,
) -> Result<(), EnrolmentRefusal> {
    // An edge put back from an old image shows an old certificate; what counts is its key's last one.
    let last =
        record.filter(|record| record.is_key(&shown.key)).map(|record| from_unix_seconds(record.expires));
    let expired = last.map_or(shown.not_after, |last| last.max(shown.not_after));
    if now <= expired + grace {
        return Ok(());
    }
    let message = format!(
        "the certificate expired at {}, it is {} now, and expired certificates are replaced for {} days",
        UtcTimestamp(expired),
        UtcTimestamp(now),
        grace.as_secs() / 86_400
    );
    Err(EnrolmentRefusal::new(EnrolmentCode::GraceOver, message, super::tokens::NEW_TOKEN))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn now() -> SystemTime {
        from_unix_seconds(1_800_000_000)
    }

    fn record(key: &str) -> GatewayRecord {
        GatewayRecord {
            site: "s".into(),
            key: Some(KeyHash::of_spki(key.as_bytes()).to_string()),
            serial: "1".into(),
            authority: "a".into(),
            proven: String::new(),
            at: unix_seconds(now()),
            expires: unix_seconds(now() + 30 * DAY),
            node: None,
            void_key: None,
        }
    }

    fn shown(key: &str, signed: SystemTime) -> CertificateFacts {
        CertificateFacts {
            peer: PeerId::new("s", "g").ok(),
            common_name: "g".into(),
            organizations: vec![],
            key: KeyHash::of_spki(key.as_bytes()),
            serial: "1".into(),
            not_before: signed - BACKDATE,
            not_after: signed + 30 * DAY,
            is_authority: false,
        }
    }

    #[test]
    fn the_later_certificate_speaks_for_the_gateway() {
        let row = |record: Option<&GatewayRecord>, shown: CertificateFacts, speaks: bool| {
            assert_eq!(speaks_for_its_gateway(record, &shown).is_ok(), speaks, "{record:?} {shown:?}");
        };
        let second = Duration::from_secs(1);
        row(Some(&record("a")), shown("a", now()), true);
        row(Some(&record("a")), shown("a", now() - DAY), true);
        row(Some(&record("b")), shown("a", now() - DAY), false);
        row(Some(&record("b")), shown("a", now()), false);
        row(Some(&record("b")), shown("a", now() + second), true);
        row(None, shown("a", now()), true);
        row(Some(&record("a").revoked(now())), shown("a", now()), false);
        row(Some(&record("a").revoked(now())), shown("b", now() + second), true);
    }

    #[test]
    fn grace_ends_when_it_says() {
        let end = now() + 30 * DAY;
        let second = Duration::from_secs(1);
        let row = |record: Option<&GatewayRecord>, signed, at, grace, within: bool| {
            let judged = is_within_grace(record, &shown("a", signed), at, grace);
            assert_eq!(judged.is_ok(), within, "{record:?} {}", UtcTimestamp(at));
        };
        row(None, now(), end, Duration::ZERO, true);
        row(None, now(), end + second, Duration::ZERO, false);
        row(None, now(), end + 90 * DAY, 90 * DAY, true);
        row(None, now(), end + 90 * DAY + second, 90 * DAY, false);
        row(Some(&record("a")), now() - 300 * DAY, end, Duration::ZERO, true);
        row(Some(&record("b")), now() - 300 * DAY, end, Duration::ZERO, false);
    }
}
