//! Sends requests to the cluster: uses one member while it responds, and another one when it does not.
//!
//! A read may be sent again. A write is sent again only when it certainly did not arrive; otherwise the
//! caller is told that the outcome is unknown. Each request has a time limit, so a silent member blocks no
//! caller.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use etcd_client::{
    Certificate, Client, ConnectOptions, Error, Identity, KvClient, ResponseHeader, TlsOptions, WatchClient,
};
use tonic::Code;

use super::keys;
use crate::{EtcdTls, Revision, StoreError};

/// Time limit for one member. An election takes about a second.
const ATTEMPT: Duration = Duration::from_secs(4);
/// Time limit for all members together.
const DEADLINE: Duration = Duration::from_secs(8);
/// Pause between two rounds through all members.
const ROUND_DELAY: Duration = Duration::from_millis(100);
/// Larger than a page of the largest records.
const ANSWER_BYTES_MAX: usize = 1200 << 20;

pub(super) struct EtcdMembers {
    members: Vec<Member>,
    current: AtomicUsize,
}

struct Member {
    kv: KvClient,
    watch: WatchClient,
}

/// Says whether a request may be sent twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryPolicy {
    Again,
    Once,
}

/// The reason why a request failed on all tried members.
#[derive(Debug)]
pub(super) enum EtcdFailure {
    Compacted,
    Future,
    /// etcd's own quota is used up.
    Full(Error),
    Refused(Error),
    Unreachable {
        reason: String,
        source: Option<Error>,
    },
}

impl EtcdFailure {
    pub fn into_error(self) -> StoreError {
        let unavailable = |reason: &str, source: Option<Error>| StoreError::Unavailable {
            reason: reason.into(),
            source: source.map(|error| Arc::new(error) as _),
        };
        match self {
            EtcdFailure::Compacted => unavailable("etcd compacted what was asked for", None),
            EtcdFailure::Future => unavailable("etcd has not come that far", None),
            EtcdFailure::Full(error) => StoreError::Full { source: Arc::new(error) },
            EtcdFailure::Refused(error) => unavailable("etcd refused", Some(error)),
            EtcdFailure::Unreachable { reason, source } => unavailable(&reason, source),
        }
    }
}

/// The meaning of one failed attempt.
enum Attempt {
    Final(EtcdFailure),
    /// The request certainly had no effect.
    NotSent(Error),
    Unknown(Option<Error>),
}

impl EtcdMembers {
    /// Reads the certificates; connections are made on first use.
    pub async fn new(endpoints: &[String], tls: Option<EtcdTls>) -> Result<EtcdMembers, StoreError> {
        if endpoints.is_empty() {
            return Err(StoreError::Invalid { reason: "etcd needs at least one endpoint".into() });
        }
        let tls = match tls {
            Some(tls) => load(tls).await?,
            None => TlsOptions::new(),
        };
        let mut members = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints {
            let bad = |error| StoreError::Unavailable {
                reason: format!("etcd endpoint {endpoint}"),
                source: Some(Arc::new(error)),
            };
            let client = Client::connect([endpoint], Some(options(endpoint, &tls))).await.map_err(bad)?;
            members.push(Member {
                kv: client.kv_client().max_decoding_message_size(ANSWER_BYTES_MAX),
                watch: client.watch_client().max_decoding_message_size(ANSWER_BYTES_MAX),
            });
        }
        Ok(EtcdMembers { members, current: AtomicUsize::new(0) })
    }

    /// Sends a request to the current member, and to other members as long as that is allowed and useful.
    pub async fn call<T, Answer>(
        &self,
        sending: RetryPolicy,
        request: impl Fn(KvClient) -> Answer,
    ) -> Result<T, EtcdFailure>
    where
        Answer: Future<Output = Result<T, Error>>,
    {
        let deadline = Instant::now() + DEADLINE;
        let mut attempts = 0;
        loop {
            let place = self.current.load(Ordering::Relaxed);
            let answer = tokio::time::timeout(ATTEMPT, request(self.members[place].kv.clone())).await;
            let error = match answer.map(|answer| answer.map_err(classify_error)) {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(Attempt::Final(failure))) => return Err(failure),
                Ok(Err(Attempt::NotSent(error))) => Some(error),
                Ok(Err(Attempt::Unknown(error))) if sending == RetryPolicy::Again => error,
                Err(_) if sending == RetryPolicy::Again => None,
                Ok(Err(Attempt::Unknown(error))) => return Err(unknown_outcome(error)),
                Err(_) => return Err(unknown_outcome(None)),
            };
            self.switch_from(place);
            attempts += 1;
            if Instant::now() >= deadline {
                let reason = "no member of the etcd cluster answers".into();
                return Err(EtcdFailure::Unreachable { reason, source: error });
            }
            if attempts % self.members.len() == 0 {
                tokio::time::sleep(ROUND_DELAY).await;
            }
        }
    }

    /// Returns a client for watches, which are long-lived and are reopened by their owners.
    pub fn watch_client(&self) -> (usize, WatchClient) {
        let place = self.current.load(Ordering::Relaxed);
        (place, self.members[place].watch.clone())
    }

    /// Moves all requests to the next member, once, after the first request that meets a silent member.
    pub fn switch_from(&self, place: usize) {
        let next = (place + 1) % self.members.len();
        let _ = self.current.compare_exchange(place, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

pub(super) fn revision(header: Option<&ResponseHeader>) -> Result<Revision, StoreError> {
    let header = header.ok_or_else(|| StoreError::corrupt("etcd answered without a header"))?;
    Ok(keys::revision(header.revision()))
}

fn unknown_outcome(source: Option<Error>) -> EtcdFailure {
    EtcdFailure::Unreachable { reason: "etcd did not answer, the write may have happened".into(), source }
}

fn classify_error(error: Error) -> Attempt {
    let Error::GRpcStatus(status) = &error else { return Attempt::Unknown(Some(error)) };
    match (status.code(), status.message()) {
        (Code::OutOfRange, message) if message.contains("compacted") => {
            Attempt::Final(EtcdFailure::Compacted)
        }
        (Code::OutOfRange, _) => Attempt::Final(EtcdFailure::Future),
        (Code::ResourceExhausted, message) if message.contains("space exceeded") => {
            Attempt::Final(EtcdFailure::Full(error))
        }
        // Refused before the request was proposed to the cluster.
        (Code::ResourceExhausted, _) => Attempt::NotSent(error),
        (Code::Unavailable, message) if message.contains("no leader") => Attempt::NotSent(error),
        (Code::Unavailable, _) if never_connected(status) => Attempt::NotSent(error),
        (
            Code::InvalidArgument | Code::PermissionDenied | Code::Unauthenticated | Code::FailedPrecondition,
            _,
        ) => Attempt::Final(EtcdFailure::Refused(error)),
        _ => Attempt::Unknown(Some(error)),
    }
}

fn never_connected(status: &tonic::Status) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

fn options(endpoint: &str, tls: &TlsOptions) -> ConnectOptions {
    let options = ConnectOptions::new()
        .with_connect_timeout(Duration::from_secs(2))
        // etcd disconnects clients that ping more often than every five seconds.
        .with_keep_alive(Duration::from_secs(10), Duration::from_secs(5))
        .with_keep_alive_while_idle(true)
        // A member that lost its quorum returns an error instead of outdated data.
        .with_require_leader(true);
    if endpoint.starts_with("https://") { options.with_tls(tls.clone()) } else { options }
}

async fn load(files: EtcdTls) -> Result<TlsOptions, StoreError> {
    let mut options = TlsOptions::new();
    if let Some(ca) = files.ca {
        options = options.ca_certificate(Certificate::from_pem(read(ca).await?));
    }
    match (files.cert, files.key) {
        (Some(cert), Some(key)) => {
            Ok(options.identity(Identity::from_pem(read(cert).await?, read(key).await?)))
        }
        (None, None) => Ok(options),
        _ => Err(StoreError::Invalid { reason: "etcd needs the certificate and its key, or neither".into() }),
    }
}

async fn read(path: PathBuf) -> Result<Vec<u8>, StoreError> {
    tokio::fs::read(&path).await.map_err(|error| StoreError::Unavailable {
        reason: format!("cannot read {}", path.display()),
        source: Some(Arc::new(error)),
    })
}
