//! The API of this cloud as an aggregated API of a Kubernetes cluster (`APIService`): a listener for the cluster's kube-apiserver.
//!
//! TLS accepts client certificates of the cluster's request-header CA alone, `front_proxy` checks their common name, and each
//! access to objects is a SubjectAccessReview in the cluster, whose answer is remembered for a short time. The server
//! certificate is that of the API.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use causeway_api::ApiVersion;
use causeway_api::sync::MutexExt;
use causeway_apicache::upstream::cluster::{ClusterClient, ClusterError, UpstreamIdentity};
use causeway_apiserver::authorize::RequestedAccess;
use causeway_apiserver::delegate::{AccessDelegate, DelegatedDecision};
use causeway_apiserver::{AuthFailure, Authenticator, Identity};
use causeway_channel::CertificateFacts;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use serde_json::{Value, json};

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// As kube-apiserver remembers the answers of a webhook: a right that is taken away works for so long.
const ALLOWED_FOR: Duration = Duration::from_secs(10);
const DENIED_FOR: Duration = Duration::from_secs(5);
/// Decisions in memory. A full table is emptied of expired ones, then of everything.
const DECISIONS_MAX: usize = 10_000;
const REVIEW_MAX: Duration = Duration::from_secs(10);

/// The listener for a cluster's kube-apiserver.
#[derive(Clone, Debug)]
pub struct AggregatedApiConfig {
    pub listen: SocketAddr,
    /// The CA of the front proxy: `requestheader-client-ca-file` of the cluster.
    pub request_header_ca: PathBuf,
    /// Common names that the front proxy may have; empty: any name under that CA.
    pub request_header_names: Vec<String>,
    /// The cluster that decides.
    pub kubeconfig: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum AggregatedApiError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} holds no CA certificate", path.display())]
    Pem { path: PathBuf },
    #[error("the CA of the front proxy cannot be used")]
    Tls(#[from] rustls::Error),
    #[error("the CA of the front proxy cannot be used")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    #[error("the cluster cannot be used")]
    Cluster(#[from] ClusterError),
}

/// Asks the cluster, and remembers its answers.
pub struct ClusterDelegate {
    cluster: ClusterClient,
    names: Vec<String>,
    decisions: Mutex<HashMap<Question, (bool, Instant)>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Question {
    user: String,
    groups: Vec<String>,
    group: &'static str,
    verb: &'static str,
    resource: &'static str,
    subresource: &'static str,
    /// Empty: all names.
    name: String,
}

impl Question {
    /// None: the access is none to an object of the API group that is registered.
    fn of(identity: &Identity, version: ApiVersion, access: &RequestedAccess<'_>) -> Option<Question> {
        let RequestedAccess::Object { verb, kind, name, status } = access else { return None };
        if version != ApiVersion::Group {
            return None;
        }
        Some(Question {
            user: identity.user.clone(),
            groups: identity.groups.clone(),
            group: version.group(),
            verb: verb.as_str(),
            resource: kind.plural(),
            subresource: if *status { "status" } else { "" },
            name: name.unwrap_or_default().to_owned(),
        })
    }

    fn to_review(&self) -> Value {
        json!({
            "kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
            "spec": {
                "user": self.user, "groups": self.groups,
                "resourceAttributes": {
                    "group": self.group, "version": "v1", "verb": self.verb, "resource": self.resource,
                    "subresource": self.subresource, "name": self.name,
                },
            },
        })
    }
}

impl ClusterDelegate {
    pub async fn open(config: &AggregatedApiConfig) -> Result<ClusterDelegate, AggregatedApiError> {
        let cluster = ClusterClient::open(&config.kubeconfig).await?;
        Ok(ClusterDelegate {
            cluster,
            names: config.request_header_names.clone(),
            decisions: Mutex::default(),
        })
    }

    async fn decide(&self, question: Question) -> DelegatedDecision {
        let now = Instant::now();
        let known = self.decisions.lock_ignoring_poison().get(&question).copied();
        if let Some((is_allowed, _)) = known.filter(|(_, until)| now < *until) {
            return decision(is_allowed);
        }
        let review = question.to_review();
        let asked = self.cluster.review(&UpstreamIdentity::Own, REVIEWS, &review);
        let answer = match tokio::time::timeout(REVIEW_MAX, asked).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return DelegatedDecision::Unavailable(causeway_api::error_chain(&error)),
            Err(_) => return DelegatedDecision::Unavailable("no answer in time".to_owned()),
        };
        let is_allowed = is_allowed(&answer);
        self.remember(question, is_allowed, now);
        decision(is_allowed)
    }

    fn remember(&self, question: Question, is_allowed: bool, now: Instant) {
        let mut decisions = self.decisions.lock_ignoring_poison();
        if decisions.len() >= DECISIONS_MAX {
            decisions.retain(|_, (_, until)| now < *until);
        }
        if decisions.len() >= DECISIONS_MAX {
            decisions.clear();
        }
        decisions.insert(question, (is_allowed, now + if is_allowed { ALLOWED_FOR } else { DENIED_FOR }));
    }
}

fn decision(is_allowed: bool) -> DelegatedDecision {
    if is_allowed { DelegatedDecision::Allowed } else { DelegatedDecision::Denied }
}

/// An explicit denial has precedence over a permission.
fn is_allowed(answer: &Value) -> bool {
    answer["status"]["allowed"] == Value::Bool(true) && answer["status"]["denied"] != Value::Bool(true)
}

impl AccessDelegate for ClusterDelegate {
    fn front_proxy(&self, chain: &[CertificateDer<'_>]) -> Result<(), AuthFailure> {
        let leaf =
            chain.first().ok_or_else(|| AuthFailure::Malformed("there is no certificate".to_owned()))?;
        let facts =
            CertificateFacts::read(leaf).map_err(|error| AuthFailure::Malformed(error.to_string()))?;
        let is_named = self.names.is_empty() || self.names.contains(&facts.common_name);
        if is_named { Ok(()) } else { Err(AuthFailure::Unknown) }
    }

    fn review<'a>(
        &'a self,
        identity: &'a Identity,
        version: ApiVersion,
        access: &'a RequestedAccess<'a>,
    ) -> BoxFuture<'a, DelegatedDecision> {
        async move {
            match Question::of(identity, version, access) {
                Some(question) => self.decide(question).await,
                None => DelegatedDecision::Denied,
            }
        }
        .boxed()
    }
}

/// Accepts no credential: callers of an aggregated API are named by the front proxy.
pub struct FrontProxyOnly;

impl Authenticator for FrontProxyOnly {
    fn certificate(&self, _: &[CertificateDer<'_>]) -> Result<Identity, AuthFailure> {
        Err(AuthFailure::Unknown)
    }

    fn bearer<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Identity, AuthFailure>> {
        async { Err(AuthFailure::Unknown) }.boxed()
    }
}

/// TLS with the API's own certificate, and clients of the front proxy's CA alone.
pub fn server_tls(
    ca: &Path,
    api: Arc<ArcSwap<ServerConfig>>,
) -> Result<Arc<ArcSwap<ServerConfig>>, AggregatedApiError> {
    let text =
        std::fs::read(ca).map_err(|source| AggregatedApiError::Read { path: ca.to_owned(), source })?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|_| AggregatedApiError::Pem { path: ca.to_owned() })?;
        roots.add(certificate)?;
    }
    if roots.is_empty() {
        return Err(AggregatedApiError::Pem { path: ca.to_owned() });
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build()?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(CertificateOfApi(api)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(ArcSwap::from_pointee(config)))
}

/// Presents the certificate that the API presents, also after it was renewed.
#[derive(Debug)]
struct CertificateOfApi(Arc<ArcSwap<ServerConfig>>);

impl ResolvesServerCert for CertificateOfApi {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load_full().cert_resolver.resolve(hello)
    }
}

#[cfg(test)]
mod tests {
    use causeway_api::Kind;
    use causeway_api::request::resource::Verb;
    use causeway_apiserver::Role;

    use super::*;

    #[test]
    fn a_review_names_the_user_and_the_parsed_access() {
        let identity = Identity {
            user: "ann".into(),
            groups: vec!["ops".into()],
            role: Role::Delegated,
            credential: None,
            impersonation: None,
        };
        let access = RequestedAccess::Object {
            verb: Verb::Update,
            kind: Kind::ServiceExpose,
            name: Some("web"),
            status: true,
        };
        let question = Question::of(&identity, ApiVersion::Group, &access).unwrap();
        let review = question.to_review();
        assert_eq!(review["spec"]["user"], "ann");
        assert_eq!(review["spec"]["groups"], json!(["ops"]));
        let expected = json!({"group": "causeway.io", "version": "v1", "verb": "update",
            "resource": "serviceexposes", "subresource": "status", "name": "web"});
        assert_eq!(review["spec"]["resourceAttributes"], expected);
        assert_eq!(Question::of(&identity, ApiVersion::Group, &RequestedAccess::Foreign), None);
        assert_eq!(Question::of(&identity, ApiVersion::Core, &access), None);
    }

    #[test]
    fn only_a_clear_permission_is_one() {
        assert!(is_allowed(&json!({"status": {"allowed": true}})));
        assert!(is_allowed(&json!({"status": {"allowed": true, "denied": false}})));
        assert!(!is_allowed(&json!({"status": {"allowed": true, "denied": true}})));
        assert!(!is_allowed(&json!({"status": {"allowed": "true"}})));
        assert!(!is_allowed(&json!({"status": {}})));
        assert!(!is_allowed(&json!(null)));
    }
}
