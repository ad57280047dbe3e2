//! Proves callers: by their verified client certificate, by a service-account token, or by a token that the cloud knows.
//!
//! A token that the cloud reviewed is remembered on disk by its keyed hash, never by itself.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use aws_lc_rs::hmac;
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use causeway_api::Status;
use http::header::{self, HeaderMap};
use http::{Method, StatusCode};
use tokio::sync::Semaphore;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::authorize::is_recent;
use super::tokens::{self, AccountToken, ClusterFacts};
use super::{LocalCaller, ProvedCertificate, UserInfo};
use crate::copy::collection::unix_now;
use crate::copy::{CopyDatabase, tables};
use crate::resource::ResourceName;
use crate::server::pass::{PassError, Passthrough};
use crate::subscriptions::SubscriptionCredential;
use crate::upstream::access::rbac::expiry_of;
use crate::upstream::passthrough::TOKEN_REVIEW_PATH;

/// Answers who a caller is.
pub struct CallerAuthenticator {
    database: CopyDatabase,
    pass: Passthrough,
    pub facts: ArcSwap<ClusterFacts>,
    key: hmac::Key,
    /// Clients that have proved nothing yet cause reviews; the link has room for other requests beside them.
    reviews: Semaphore,
}

/// The time after which a token is reviewed again while the cloud is there.
const REVIEW_SECONDS: i64 = 300;
/// The same for a token whose pod is not in the copy. The API server itself believes a token for 10 s after its pod is gone.
const BOUND_REVIEW_SECONDS: i64 = 15;
/// The time for which a reviewed token is believed while the cloud is away.
const REMEMBERED_SECONDS: i64 = 24 * 3_600;
const KEY_BYTES: usize = 32;
// Reviews that are under way at the same time. Tokens of service accounts need none, so reviews are rare.
const REVIEWS_MAX: usize = 16;
// The time that a review waits for its turn, the same as for an answer.
const REVIEW_TURN: Duration = Duration::from_secs(3);

/// Returns the token of an `Authorization` header with the scheme `Bearer`, which is case-insensitive (RFC 9110).
fn bearer_token(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

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
        let reviews = Semaphore::new(REVIEWS_MAX);
        Ok(CallerAuthenticator { database, pass, facts: ArcSwap::from_pointee(facts), key, reviews })
    }

    /// Returns the caller of a request, or 401.
    pub async fn caller(
        &self,
        certified: Option<LocalCaller>,
        headers: &HeaderMap,
    ) -> Result<LocalCaller, Status> {
        let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        if let Some(token) = authorization.and_then(bearer_token) {
            let user = self.user_of(token).await?;
            return Ok(LocalCaller::from_token(user, token));
        }
        let certified = certified.ok_or_else(|| Status::unauthorized("Unauthorized"))?;
        self.check_certificate(&certified, unix_now())?;
        Ok(certified)
    }

    /// Checks that a caller is still who it proved to be: its certificate or its token has not ended, nor the pod of the token.
    pub async fn confirm(&self, caller: &LocalCaller) -> Result<(), Status> {
        self.check_certificate(caller, unix_now())?;
        let Some(SubscriptionCredential::Token(token)) = &caller.credential else { return Ok(()) };
        match LocalCaller::from_token(self.user_of(token).await?, token).key() == caller.key() {
            true => Ok(()),
            false => Err(Status::unauthorized("the token belongs to another user now")),
        }
    }

    /// Refuses a certificate that has expired, or that was verified with another CA than the cluster's of now: a new handshake decides.
    fn check_certificate(&self, caller: &LocalCaller, now: i64) -> Result<(), Status> {
        let Some(certificate) = &caller.certificate else { return Ok(()) };
        if certificate.not_after < now {
            return Err(Status::unauthorized("the client certificate has expired"));
        }
        match certificate.client_ca.as_deref() == self.facts.load().client_ca.as_deref() {
            true => Ok(()),
            false => Err(Status::unauthorized("the client CA of the cluster has changed; connect again")),
        }
    }

    async fn user_of(&self, token: &str) -> Result<UserInfo, Status> {
        let mut review_seconds = REVIEW_SECONDS;
        match tokens::verify(&self.facts.load(), token, unix_now()) {
            Ok(AccountToken { user, pod: None }) => return Ok(user),
            Ok(AccountToken { user, pod: Some((key, uid)) }) if self.has_pod(&key, &uid).await => {
                return Ok(user);
            }
            // A token ends with its pod. A pod that is not in the copy is gone, or on another node: the API server knows.
            Ok(_) => review_seconds = BOUND_REVIEW_SECONDS,
            Err(tokens::AccountTokenError::Foreign | tokens::AccountTokenError::Audience) => {}
            Err(error) => return Err(Status::unauthorized(error)),
        }
        let hash = URL_SAFE_NO_PAD.encode(hmac::sign(&self.key, token.as_bytes()));
        // A token that tells its end is not believed beyond it; the API server may still know it.
        let has_expired = expiry_of(token).is_some_and(|end| end <= unix_now());
        let known = self.remembered(&hash).await.filter(|_| !has_expired);
        let age = |seen: i64| unix_now() - seen;
        // A review from the future is old: the clock was set back.
        let is_fresh = |seen: i64| (0..review_seconds).contains(&age(seen));
        if let Some((user, _)) = known.as_ref().filter(|(_, seen)| is_fresh(*seen)) {
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
            Err(ReviewError::Away(status)) => {
                match known.filter(|(_, seen)| is_recent(age(*seen), REMEMBERED_SECONDS)) {
                    Some((user, _)) => Ok(user),
                    None if status.code == 503 => Err(Status::unauthorized(
                        "the token is not known at this site, and the cloud cannot be asked now",
                    )),
                    None => Err(status),
                }
            }
        }
    }

    async fn has_pod(&self, key: &str, uid: &str) -> bool {
        let (key, uid) = (key.to_owned(), uid.to_owned());
        let pods = ResourceName::new("", "v1", "pods").to_string();
        let found = self.database.read(move |connection| tables::holds(connection, &pods, &key, &uid));
        found.await.unwrap_or(false)
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
        let turn = tokio::time::timeout(REVIEW_TURN, self.reviews.acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            let full = Status::unavailable("too many tokens wait for a review by the API server", 5);
            return Err(ReviewError::Away(full));
        };
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

/// The user of a certificate that the TLS handshake has verified with the given CA.
pub fn caller_of_certificate(der: &[u8], client_ca: Option<Arc<str>>) -> Option<LocalCaller> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let text =
        |value: &x509_parser::prelude::AttributeTypeAndValue<'_>| value.as_str().ok().map(str::to_owned);
    let name = subject.iter_common_name().next().and_then(text).filter(|name| !name.is_empty())?;
    let groups = subject.iter_organization().filter_map(text).collect();
    let not_after = certificate.validity().not_after.timestamp();
    let certificate = Some(ProvedCertificate { not_after, client_ca });
    Some(LocalCaller { certificate, ..LocalCaller::from_certificate(&name, groups) })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::connector::TestCloud;

    fn authenticator(folder: &Path, cloud: TestCloud) -> CallerAuthenticator {
        let database = CopyDatabase::open(&folder.join("copy.db")).unwrap();
        CallerAuthenticator::open(folder, database, Passthrough(Arc::new(cloud)), ClusterFacts::default())
            .unwrap()
    }

    fn away() -> TestCloud {
        TestCloud::new(|_, _| Box::pin(std::future::ready((503, "{}".to_owned()))))
    }

    fn token(expires: i64) -> String {
        let claims = serde_json::json!({"sub": "ann", "exp": expires}).to_string();
        format!("e30.{}.x", URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn the_scheme_of_a_token_may_be_written_in_any_case() {
        for (header, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Basic abc", None),
            ("Bearer", None),
            ("", None),
        ] {
            assert_eq!(bearer_token(header), token, "{header}");
        }
    }

    async fn code(authenticator: &CallerAuthenticator, token: &str) -> u16 {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
        authenticator.caller(None, &headers).await.map_or_else(|status| status.code, |_| 200)
    }

    impl CallerAuthenticator {
        async fn remember_at(&self, token: &str, seen: i64) {
            let hash = URL_SAFE_NO_PAD.encode(hmac::sign(&self.key, token.as_bytes()));
            let user =
                serde_json::to_string(&UserInfo { username: "ann".into(), ..UserInfo::default() }).unwrap();
            let kept = self
                .database
                .write(move |connection| tables::keep_caller(connection, &hash, Some(&user), seen, 0));
            kept.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_reviewed_token_is_believed_without_the_cloud_until_it_expires() {
        let folder = tempfile::tempdir().unwrap();
        let authenticator = authenticator(folder.path(), away());
        let (now, hour) = (unix_now(), 3_600);
        for (token, seen, expected) in [
            (token(now + hour), now - hour, 200),
            (token(now - 1), now - hour, 401),
            (token(now - 2), now, 401),
            ("opaque".to_owned(), now - hour, 200),
            ("older".to_owned(), now - REMEMBERED_SECONDS, 401),
            ("of the future".to_owned(), now + 1_000_000, 401),
        ] {
            authenticator.remember_at(&token, seen).await;
            assert_eq!(code(&authenticator, &token).await, expected, "{token}");
        }
        assert_eq!(code(&authenticator, "never seen").await, 401);
    }

    #[tokio::test]
    async fn a_certificate_counts_until_its_end_and_under_the_ca_of_now() {
        let folder = tempfile::tempdir().unwrap();
        let authenticator = authenticator(folder.path(), away());
        let facts = |ca: &str| ClusterFacts { client_ca: Some(ca.into()), ..ClusterFacts::default() };
        authenticator.facts.store(Arc::new(facts("first")));
        let key = rcgen::KeyPair::generate().unwrap();
        let caller = |end: i32, ca: &str| {
            let mut params = rcgen::CertificateParams::default();
            params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:n1");
            params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
            params.not_before = rcgen::date_time_ymd(2000, 1, 1);
            params.not_after = rcgen::date_time_ymd(end, 1, 1);
            let certificate = params.self_signed(&key).unwrap();
            caller_of_certificate(certificate.der(), Some(ca.into())).unwrap()
        };
        let code = async |caller: LocalCaller| {
            let confirmed = authenticator.confirm(&caller).await.map_err(|status| status.code);
            let proved =
                authenticator.caller(Some(caller), &HeaderMap::new()).await.map_err(|status| status.code);
            assert_eq!(proved.map(drop), confirmed);
            confirmed
        };
        let node = caller(2999, "first");
        assert_eq!(node.node_name(), Some("n1"));
        assert_eq!(code(node.clone()).await, Ok(()));
        assert_eq!(code(caller(2001, "first")).await, Err(401), "expired since the handshake");
        assert_eq!(code(caller(2999, "other")).await, Err(401), "verified with another CA");
        authenticator.facts.store(Arc::new(facts("second")));
        assert_eq!(code(node).await, Err(401), "the CA was changed since the handshake");
        assert_eq!(code(LocalCaller::node("n1")).await, Ok(()), "the edge itself");
    }

    #[tokio::test]
    async fn a_clock_that_was_set_back_makes_no_review_fresh() {
        let folder = tempfile::tempdir().unwrap();
        let cloud = TestCloud::new(|_, _| Box::pin(std::future::ready((401, "{}".to_owned()))));
        let authenticator = authenticator(folder.path(), cloud);
        authenticator.remember_at("opaque", unix_now() + 1_000_000).await;
        assert_eq!(code(&authenticator, "opaque").await, 401, "the API server does not know it any more");
    }

    #[tokio::test(start_paused = true)]
    async fn clients_without_a_credential_take_a_part_of_the_link() {
        let folder = tempfile::tempdir().unwrap();
        let under_way = Arc::new(AtomicUsize::new(0));
        let count = under_way.clone();
        let cloud = TestCloud::new(move |_, _| {
            count.fetch_add(1, Ordering::SeqCst);
            Box::pin(std::future::pending())
        });
        let authenticator = Arc::new(authenticator(folder.path(), cloud));
        let mut callers = tokio::task::JoinSet::new();
        for number in 0..4 * REVIEWS_MAX {
            let authenticator = authenticator.clone();
            callers.spawn(async move { code(&authenticator, &format!("invented-{number}")).await });
        }
        for _ in 0..3 * REVIEWS_MAX {
            assert_eq!(callers.join_next().await.unwrap().unwrap(), 401);
        }
        assert_eq!(under_way.load(Ordering::SeqCst), REVIEWS_MAX);
    }
}
