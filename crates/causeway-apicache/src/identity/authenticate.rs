//! Proves callers: by their verified client certificate, by a service-account token, or by a token that the cloud knows.
//!
//! A token that the cloud reviewed is remembered on disk by its keyed hash, never by itself.

use std::path::Path;

use arc_swap::ArcSwap;
use aws_lc_rs::hmac;
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use causeway_api::Status;
use http::header::{self, HeaderMap};
use http::{Method, StatusCode};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::tokens::{self, ClusterFacts};
use super::{LocalCaller, UserInfo};
use crate::copy::collection::unix_now;
use crate::copy::{CopyDatabase, tables};
use crate::server::pass::{PassError, Passthrough};
use crate::upstream::passthrough::TOKEN_REVIEW_PATH;

/// Answers who a caller is.
pub struct CallerAuthenticator {
    database: CopyDatabase,
    pass: Passthrough,
    pub facts: ArcSwap<ClusterFacts>,
    key: hmac::Key,
}

/// The time after which a token is reviewed again while the cloud is there.
const REVIEW_SECONDS: i64 = 300;
/// The time for which a reviewed token is believed while the cloud is away.
const REMEMBERED_SECONDS: i64 = 24 * 3_600;
const KEY_BYTES: usize = 32;

impl CallerAuthenticator {
    /// Reads the key of token hashes from `folder`, and makes one when there is none.
    pub fn open(
        folder: &Path,
        database: CopyDatabase,
        pass: Passthrough,
        facts: ClusterFacts,
    ) -> std::io::Result<CallerAuthenticator> {
        let path = folder.join("tokens.key");
        let bytes = match std::fs::read(&path) {
            Ok(bytes) if bytes.len() == KEY_BYTES => bytes,
            _ => {
                let mut bytes = vec![0; KEY_BYTES];
                SystemRandom::new().fill(&mut bytes).map_err(|_| std::io::Error::other("no random bytes"))?;
                causeway_daemon::data_dir::write_atomic(&path, &bytes)?;
                bytes
            }
        };
        let key = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
        Ok(CallerAuthenticator { database, pass, facts: ArcSwap::from_pointee(facts), key })
    }

    /// Returns the caller of a request, or 401.
    pub async fn caller(
        &self,
        certified: Option<LocalCaller>,
        headers: &HeaderMap,
    ) -> Result<LocalCaller, Status> {
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        if let Some(token) = bearer.and_then(|value| value.strip_prefix("Bearer ")).map(str::trim) {
            let user = self.user_of(token).await?;
            return Ok(LocalCaller::from_token(user, token));
        }
        certified.ok_or_else(|| Status::unauthorized("Unauthorized"))
    }

    async fn user_of(&self, token: &str) -> Result<UserInfo, Status> {
        match tokens::verify(&self.facts.load(), token, unix_now()) {
            Ok(user) => return Ok(user),
            Err(tokens::AccountTokenError::Foreign | tokens::AccountTokenError::Audience) => {}
            Err(error) => return Err(Status::unauthorized(error)),
        }
        let hash = URL_SAFE_NO_PAD.encode(hmac::sign(&self.key, token.as_bytes()));
        let known = self.remembered(&hash).await;
        let age = |seen: i64| unix_now() - seen;
        if let Some((user, _)) = known.as_ref().filter(|(_, seen)| age(*seen) < REVIEW_SECONDS) {
            return Ok(user.clone());
        }
        match self.review(token).await {
            Ok(user) => {
                self.remember(hash, Some(&user)).await;
                Ok(user)
            }
            Err(ReviewError::Unknown(status)) => {
                self.remember(hash, None).await;
                Err(status)
            }
            // Without the cloud the last answer counts, for a bounded time.
            Err(ReviewError::Away(status)) => match known.filter(|(_, seen)| age(*seen) < REMEMBERED_SECONDS)
            {
                Some((user, _)) => Ok(user),
                None if status.code == 503 => Err(Status::unauthorized(
                    "the token is not known at this site, and the cloud cannot be asked now",
                )),
                None => Err(status),
            },
        }
    }

    async fn remembered(&self, hash: &str) -> Option<(UserInfo, i64)> {
        let hash = hash.to_owned();
        let (user, seen) =
            self.database.read(move |connection| tables::caller(connection, &hash)).await.ok()??;
        Some((serde_json::from_str(&user).ok()?, seen))
    }

    async fn remember(&self, hash: String, user: Option<&UserInfo>) {
        let user = user.and_then(|user| serde_json::to_string(user).ok());
        let now = unix_now();
        let kept = self.database.write(move |connection| {
            tables::keep_caller(connection, &hash, user.as_deref(), now, now - REMEMBERED_SECONDS)
        });
        if let Err(error) = kept.await {
            tracing::warn!(
                error = causeway_api::error_chain(&error),
                "cannot remember a caller of the API at the edge"
            );
        }
    }

    async fn review(&self, token: &str) -> Result<UserInfo, ReviewError> {
        let asked = self.pass.ask(Method::POST, TOKEN_REVIEW_PATH, None, token.to_owned().into()).await;
        let (code, body) = asked.map_err(|PassError(status)| ReviewError::Away(status))?;
        match code {
            StatusCode::OK => {
                serde_json::from_slice(&body).map_err(|error| ReviewError::Away(Status::internal(error)))
            }
            StatusCode::UNAUTHORIZED => Err(ReviewError::Unknown(Status::unauthorized("Unauthorized"))),
            code => Err(ReviewError::Away(crate::upstream::cluster::status_of(code, &body))),
        }
    }
}

enum ReviewError {
    /// The API server does not know the token.
    Unknown(Status),
    /// No answer.
    Away(Status),
}

/// The user of a certificate that the TLS handshake has verified.
pub fn caller_of_certificate(der: &[u8]) -> Option<LocalCaller> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let text =
        |value: &x509_parser::prelude::AttributeTypeAndValue<'_>| value.as_str().ok().map(str::to_owned);
    let name = subject.iter_common_name().next().and_then(text).filter(|name| !name.is_empty())?;
    let groups = subject.iter_organization().filter_map(text).collect();
    Some(LocalCaller::from_certificate(&name, groups))
}
