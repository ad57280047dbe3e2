//! `causeway kubeconfig` and `causeway revoke`: issues and revokes certificates of users and programs.
//!
//! Parses the request; identity does the work.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use causeway_api::management::{CreateCertificateRequest, IssuedUserCertificate, RevokeRequest};
use causeway_apiserver::{ActionRefusal, ActionResponse, Identity};
use http::StatusCode;

use super::{CloudActions, json, token_refusal};
use crate::identity::{ApiRole, OpenTokens};

/// A day, as for tokens.
const TTL_DEFAULT_SECONDS: u64 = 24 * 3600;

impl CloudActions {
    pub(super) async fn create_certificate(
        &self,
        asked: CreateCertificateRequest,
    ) -> Result<IssuedUserCertificate, ActionRefusal> {
        let ttl = Duration::from_secs(asked.ttl_seconds.unwrap_or(TTL_DEFAULT_SECONDS));
        let csr =
            STANDARD.decode(&asked.csr).map_err(|_| ActionRefusal::bad_request("csr: it is not base64"))?;
        let user = asked.user.as_deref().unwrap_or(match asked.role {
            ApiRole::Admin => "admin",
            ApiRole::Viewer => "viewer",
        });
        self.registrar.issue_certificate(asked.role, user, ttl, &csr).await.map_err(token_refusal)
    }

    pub(super) async fn revoke(
        &self,
        caller: &Identity,
        asked: RevokeRequest,
    ) -> Result<ActionResponse, ActionRefusal> {
        match (&asked.gateway, &asked.certificate) {
            (Some(gateway), None) => {
                let open_tokens = if asked.keep_tokens { OpenTokens::Keep } else { OpenTokens::Close };
                let revoked =
                    self.registrar.revoke_gateway(gateway, open_tokens).await.map_err(token_refusal)?;
                self.note_revoked(gateway).await;
                json(StatusCode::OK, &revoked)
            }
            (None, Some(serial)) => {
                let revoked = self.registrar.revoke_certificate(serial, caller).await;
                json(StatusCode::OK, &revoked.map_err(token_refusal)?)
            }
            _ => Err(ActionRefusal::bad_request("say `gateway` or `certificate`, not both and not neither")),
        }
    }
}
