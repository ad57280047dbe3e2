//! How it stands with the identity of every gateway, for `causeway status` and `causeway doctor`. Reads only.

use std::collections::HashMap;

use causeway_channel::clock::{UtcTimestamp, from_unix_seconds};
use causeway_store::StoreError;
use serde::Serialize;

use super::follow;
use super::gateways::{self, GatewayRecord};
use super::registrar::Registrar;

/// The identity of one gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IdentityState {
    /// No peer can connect as this gateway before it is enrolled again.
    pub revoked: bool,
    /// When its last certificate was signed, or when it was revoked.
    pub at: String,
    /// When its last certificate expires.
    pub expires: String,
}

impl Registrar {
    /// Every gateway that was ever enrolled.
    pub async fn identity_states(&self) -> Result<HashMap<String, IdentityState>, StoreError> {
        let (records, _) = follow::snapshot(&self.store, gateways::PREFIX).await?;
        let state = |value: &[u8]| {
            let record: GatewayRecord = serde_json::from_slice(value).ok()?;
            let moment = |seconds| UtcTimestamp(from_unix_seconds(seconds)).to_string();
            Some(IdentityState {
                revoked: record.key.is_none(),
                at: moment(record.at),
                expires: moment(record.expires),
            })
        };
        let states = records.iter().filter_map(|record| {
            Some((record.key.strip_prefix(gateways::PREFIX)?.to_owned(), state(&record.value)?))
        });
        Ok(states.collect())
    }
}
