//! The identity status of every gateway, for `causeway status` and `causeway doctor`. Reads only.

use std::collections::HashMap;

use causeway_api::management::IdentityState;
use causeway_channel::clock::{UtcTimestamp, from_unix_seconds};
use causeway_store::StoreError;

use super::follow;
use super::gateways::{self, GatewayRecord};
use super::registrar::Registrar;

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
