//! Writes into an EGateway that it was revoked: its sessions say so when they end, but one that is away has none.

use causeway_api::conditions::{CONNECTED, gateway_after_link};
use causeway_api::meta::set_condition;
use causeway_api::{Kind, Object};
use causeway_apiserver::RegistryError;

use super::CloudActions;
use crate::reconcile::MANAGER;

impl CloudActions {
    pub(super) async fn note_revoked(&self, gateway: &str) {
        let now = self.registry.now();
        let edit = |object: &mut Object| {
            let generation = object.metadata().generation;
            let status = object.status_mut();
            status.last_disconnect_reason = "Revoked".to_owned();
            let message = "the gateway was revoked; it needs a new join token";
            set_condition(
                &mut status.conditions,
                CONNECTED,
                false.into(),
                "Revoked",
                message,
                now,
                generation,
            );
            if let Object::EGateway(gateway) = object
                && let Some(conditions) = gateway_after_link(gateway, now)
            {
                gateway.status.conditions = conditions;
            }
        };
        // Its key is revoked already, independent of the object.
        if let Err(error) = self.registry.edit_status(MANAGER, Kind::EGateway, gateway, edit).await
            && !matches!(error, RegistryError::NotFound(_))
        {
            let reason = error.to_string();
            tracing::warn!(
                gateway,
                reason,
                "the Connected condition of a revoked EGateway cannot be written"
            );
        }
    }
}
