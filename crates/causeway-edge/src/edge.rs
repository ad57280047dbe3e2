//! The edge itself: enrols with a token, then keeps its certificate fresh for as long as it runs.
//! The order of steps makes a crash harmless: the key is saved before it is sent, the response is saved
//! before it is used, and the same key may ask again. `renewal` decides which step is due.

use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use causeway_channel::clock::UtcTimestamp;
use causeway_channel::dial::ConnectProxy;
use causeway_channel::enrol::{self, DEADLINE};
use causeway_channel::session::AllowedTransports;
use causeway_channel::tls::TrustAnchors;
use causeway_channel::wire::{EnrolmentCode, SERVICE_ACCOUNT_TOKEN_BYTES_MAX};
use causeway_channel::{
    ChannelEndpoint, Clock, EnrolError, EnrolmentContact, IssuedCertificate, JoinToken, KeyHash, PeerId,
    TokenSecret,
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::link::{CertificateSignal, CurrentLink, LinkKeeper, LinkOptions, LinkPublisher, LinkServices};
use crate::netmap::NetmapFileError;
use crate::renewal::{self, RenewalOutcome, RenewalSchedule, RenewalStep};
use crate::state::{EdgeIdentity, EdgeState, StateError};

/// One edge and its data dir.
#[derive(Debug)]
pub struct Edge {
    state: EdgeState,
    clock: Clock,
    identity: watch::Sender<Option<Arc<EdgeIdentity>>>,
    proxy: Option<ConnectProxy>,
}

/// The way in which an edge enrols the first time. `Debug` shows no secret.
#[derive(Debug, Clone)]
pub enum JoinCredential {
    Token(JoinToken),
    ServiceAccount(ServiceAccountJoin),
}

/// Enrolment as the gateway of the node of this pod. The file holds a secret, which is read for each attempt: kubelet replaces it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccountJoin {
    /// A projected service-account token.
    pub token_file: PathBuf,
    pub endpoints: Vec<ChannelEndpoint>,
    /// Hashes of the public keys of the CAs that the edge may trust at first contact.
    pub authorities: Vec<KeyHash>,
}

impl ServiceAccountJoin {
    fn read_token(&self) -> Result<String, EdgeError> {
        let failed = |source| EdgeError::ServiceAccountToken { path: self.token_file.clone(), source };
        let file = std::fs::File::open(&self.token_file).map_err(failed)?;
        let mut text = String::new();
        // One byte more than the cloud accepts, so that a longer file is refused there and not cut off.
        let bytes_max = SERVICE_ACCOUNT_TOKEN_BYTES_MAX as u64 + 1;
        file.take(bytes_max).read_to_string(&mut text).map_err(failed)?;
        Ok(text.trim().to_owned())
    }
}

/// The outcome of `enrol`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnrolmentOutcome {
    Now(PeerId),
    /// The data dir already holds an identity; the token was not used.
    Before(PeerId),
}

#[derive(Debug, thiserror::Error)]
pub enum EdgeError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("this edge cannot enrol")]
    Enrol(#[source] EnrolError),
    #[error(
        "the cloud refused the identity of this edge for good; create a new token and start the edge with --join TOKEN"
    )]
    GivenUp(#[source] EnrolError),
    #[error(
        "this edge is not enrolled yet: start it with --join TOKEN, or put a token into the file of the setting `join-file`"
    )]
    NotEnrolled,
    #[error(
        "the service-account token {} cannot be read: project one into the pod, or correct `join-service-account`", path.display()
    )]
    ServiceAccountToken { path: PathBuf, source: std::io::Error },
    #[error("stopped before the enrolment was done")]
    Stopped,
    #[error(transparent)]
    Netmaps(#[from] NetmapFileError),
    #[error("cannot listen on {address}: choose another address with --admin")]
    Bind { address: SocketAddr, source: std::io::Error },
    #[error("the admin server failed")]
    Admin(#[source] tokio::task::JoinError),
}

impl Edge {
    /// Opens and locks the data dir.
    pub fn open(data_dir: impl AsRef<Path>) -> Result<Edge, EdgeError> {
        Edge::open_with(data_dir, Clock::system())
    }

    pub fn open_with(data_dir: impl AsRef<Path>, clock: Clock) -> Result<Edge, EdgeError> {
        let state = EdgeState::open(data_dir.as_ref())?;
        let (identity, _) = watch::channel(state.load()?.map(Arc::new));
        Ok(Edge { state, clock, identity, proxy: None })
    }

    /// Everything that is dialled over TCP goes through this proxy.
    pub fn through(self, proxy: Option<ConnectProxy>) -> Edge {
        Edge { proxy, ..self }
    }

    /// The identity of this edge, if it is enrolled.
    pub fn peer(&self) -> Option<PeerId> {
        self.identity.borrow().as_ref().map(|identity| identity.peer.clone())
    }

    /// The identity as it changes, for the sessions that use it.
    pub fn identity(&self) -> watch::Receiver<Option<Arc<EdgeIdentity>>> {
        self.identity.subscribe()
    }

    /// Enrols, unless that was done before. A cloud that cannot be reached, or asks for patience, is asked again
    /// until `stop`; a refusal is final.
    pub async fn enrol(
        &self,
        token: &JoinToken,
        stop: &CancellationToken,
    ) -> Result<EnrolmentOutcome, EdgeError> {
        self.repeat(|| self.enrol_once(token), stop).await
    }

    /// As `enrol`, with the service-account token of this pod.
    pub async fn enrol_node(
        &self,
        join: &ServiceAccountJoin,
        stop: &CancellationToken,
    ) -> Result<EnrolmentOutcome, EdgeError> {
        self.repeat(|| self.enrol_node_once(join), stop).await
    }

    async fn repeat<F>(
        &self,
        attempt: impl Fn() -> F,
        stop: &CancellationToken,
    ) -> Result<EnrolmentOutcome, EdgeError>
    where
        F: Future<Output = Result<EnrolmentOutcome, EdgeError>>,
    {
        let mut failures = 0;
        loop {
            let error = tokio::select! {
                biased;
                () = stop.cancelled() => return Err(EdgeError::Stopped),
                tried = attempt() => match tried {
                    Err(EdgeError::Enrol(error)) if is_worth_repeating(&error) => error,
                    other => return other,
                },
            };
            failures += 1;
            let pause =
                renewal::backoff(failures, random_fraction()).max(retry_after(&error).unwrap_or_default());
            tracing::warn!(error = &error as &dyn std::error::Error, next_in = ?pause, "not enrolled yet");
            tokio::select! {
                biased;
                () = stop.cancelled() => return Err(EdgeError::Stopped),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// One try.
    pub async fn enrol_once(&self, token: &JoinToken) -> Result<EnrolmentOutcome, EdgeError> {
        // The gateway as it is now, where the token moves it to another site.
        let mut moved = None;
        if let Some(peer) = self.peer() {
            match self.state.refused()? {
                None if peer.gateway() == token.peer.gateway() && peer.site() != token.peer.site() => {
                    tracing::warn!(
                        %peer, site = token.peer.site(),
                        "the token moves this gateway to another site: it enrols anew, under a new key"
                    );
                    moved = Some(peer);
                }
                None => {
                    tracing::info!(%peer, "already enrolled: --join is ignored");
                    return Ok(EnrolmentOutcome::Before(peer));
                }
                Some(note) => tracing::warn!(
                    %peer, at = note.at, reason = note.reason,
                    "the cloud refused the identity of this edge: it enrols again with the token, under a new key"
                ),
            }
        }
        let contact = self.contact(token.endpoints.clone(), TrustAnchors::Pinned(token.authorities.clone()));
        let mut key = self.state.pending_key()?;
        let mut tried = enrol::enrol(&contact, token, &key).await;
        if tried.as_ref().is_err_and(|error| refused_with(error, EnrolmentCode::Revoked)) {
            // The saved key belongs to an earlier enrolment in this data dir; the token may be valid.
            key = self.state.new_pending_key()?;
            tried = enrol::enrol(&contact, token, &key).await;
        }
        let issued = match (tried, moved) {
            // The edge keeps its identity, also while the cloud is unreachable: the token may be an old one from a unit file.
            (Err(error), Some(peer)) => {
                let error_is_final = error.refusal().is_some_and(|refusal| !refusal.is_temporary());
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%peer, error, "the gateway was not moved to the site of the token: --join is ignored until the next start");
                // Without an answer the cloud may have taken the token: the same key can ask again, another one cannot.
                if error_is_final {
                    self.state.clear_pending()?;
                }
                return Ok(EnrolmentOutcome::Before(peer));
            }
            (tried, _) => tried.map_err(EdgeError::Enrol)?,
        };
        self.state.save(&key, &issued, &token.peer, &token.endpoints)?;
        self.state.clear_pending()?;
        self.take()?;
        tracing::info!(peer = %token.peer, until = %UtcTimestamp(issued.facts.not_after), "enrolled");
        Ok(EnrolmentOutcome::Now(token.peer.clone()))
    }

    async fn enrol_node_once(&self, join: &ServiceAccountJoin) -> Result<EnrolmentOutcome, EdgeError> {
        if let Some(peer) = self.peer() {
            let Some(note) = self.state.refused()? else {
                tracing::info!(%peer, "already enrolled: the service-account token is not used");
                return Ok(EnrolmentOutcome::Before(peer));
            };
            tracing::warn!(
                %peer, at = note.at, reason = note.reason,
                "the cloud refused the identity of this edge: it enrols again as its node, under a new key"
            );
        }
        let contact = self.contact(join.endpoints.clone(), TrustAnchors::Pinned(join.authorities.clone()));
        let mut key = self.state.pending_key()?;
        let token = join.read_token()?;
        let mut tried = enrol::enrol_node(&contact, &token, &join.authorities, &key).await;
        if tried.as_ref().is_err_and(|error| refused_with(error, EnrolmentCode::Revoked)) {
            // The saved key belongs to an earlier enrolment in this data dir.
            key = self.state.new_pending_key()?;
            tried = enrol::enrol_node(&contact, &token, &join.authorities, &key).await;
        }
        let (issued, peer) = tried.map_err(EdgeError::Enrol)?;
        self.state.save(&key, &issued, &peer, &join.endpoints)?;
        self.state.clear_pending()?;
        self.take()?;
        tracing::info!(%peer, until = %UtcTimestamp(issued.facts.not_after), "enrolled as the gateway of this node");
        Ok(EnrolmentOutcome::Now(peer))
    }

    /// Returns the keeper of the link, the handle to the link in use, and the signals that `run_linked` needs.
    pub fn link(
        &self,
        transports: AllowedTransports,
        services: LinkServices,
    ) -> (LinkKeeper, CurrentLink, CertificateSignals) {
        let (publisher, link) = LinkPublisher::new(&self.link_options(transports));
        let (keeper, signals) = self.link_keeper(transports, publisher, services);
        (keeper, link, signals)
    }

    /// Returns the keeper of a link whose handle exists already, and the signals that `run_linked` needs.
    pub(crate) fn link_keeper(
        &self,
        transports: AllowedTransports,
        publisher: LinkPublisher,
        services: LinkServices,
    ) -> (LinkKeeper, CertificateSignals) {
        let (renew, signals) = mpsc::channel(SIGNALS_MAX);
        let (endpoints, announced) = watch::channel(Vec::new());
        let keeper = LinkKeeper::new(
            self.link_options(transports),
            publisher,
            self.identity.subscribe(),
            self.clock.clone(),
            services,
            renew,
            endpoints,
        );
        (keeper, CertificateSignals { signals: Some(signals), endpoints: Some(announced) })
    }

    pub(crate) fn link_options(&self, transports: AllowedTransports) -> LinkOptions {
        LinkOptions { transports, proxy: self.proxy.clone() }
    }

    /// Keeps the certificate fresh and the link up until told to stop.
    pub async fn run_linked(
        &self,
        keeper: LinkKeeper,
        signals: CertificateSignals,
        stop: CancellationToken,
    ) -> Result<(), EdgeError> {
        let link = CancellationToken::new();
        let certificate = async {
            let ended = self.keep_certificate(signals, stop).await;
            link.cancel();
            ended
        };
        let ((), ended) = tokio::join!(Box::pin(keeper.run(link.clone())), certificate);
        ended
    }

    /// Keeps the certificate fresh until told to stop. Ends with an error only when the cloud has given this
    /// edge up for good; everything else is tried again.
    pub async fn run(&self, stop: CancellationToken) -> Result<(), EdgeError> {
        self.keep_certificate(CertificateSignals { signals: None, endpoints: None }, stop).await
    }

    async fn keep_certificate(
        &self,
        mut signals: CertificateSignals,
        stop: CancellationToken,
    ) -> Result<(), EdgeError> {
        let facts = self.current()?.facts.clone();
        let mut schedule =
            RenewalSchedule::new(facts.not_before, facts.not_after, self.clock.now(), random_fraction());
        loop {
            let step = schedule.next_step(self.clock.now());
            let outcome = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                // A step that asks the cloud is brought to its end: it may have changed what is on disk there.
                signal = signals.next(), if matches!(step, RenewalStep::Sleep(_)) => {
                    match signal {
                        SessionNotice::Certificate(signal) => schedule.handle_signal(signal, self.clock.now(), random_fraction()),
                        SessionNotice::Endpoints(endpoints) => self.remember(&endpoints),
                    }
                    continue;
                }
                outcome = self.take_step(step) => outcome?,
            };
            if let Some(outcome) = outcome {
                schedule.handle(outcome, self.clock.now(), random_fraction());
            }
        }
    }

    /// One step; `None` after a sleep.
    pub async fn take_step(&self, step: RenewalStep) -> Result<Option<RenewalOutcome>, EdgeError> {
        let tried = match step {
            RenewalStep::Sleep(time) => {
                tokio::time::sleep(time).await;
                return Ok(None);
            }
            RenewalStep::Check => self.check().await,
            RenewalStep::Renew => self.renew().await,
            RenewalStep::Reenrol => self.reenrol().await,
        };
        match tried {
            Ok(outcome) => {
                self.state.clear_refused()?;
                Ok(Some(outcome))
            }
            Err(StepError::State(error)) => Err(error.into()),
            Err(StepError::Enrol(error)) => self.failed(step, error).map(Some),
        }
    }

    fn failed(&self, step: RenewalStep, error: EnrolError) -> Result<RenewalOutcome, EdgeError> {
        if refused_with(&error, EnrolmentCode::CertificateExpired) {
            return Ok(RenewalOutcome::Expired);
        }
        let given_up = error.refusal().is_some_and(|refusal| refusal.needs_new_token());
        if given_up || matches!(error, EnrolError::WrongAuthority { .. }) {
            let reason = error.refusal().map_or_else(|| error.to_string(), ToString::to_string);
            self.state.note_refused(reason, self.clock.now())?;
        }
        if given_up {
            return Err(EdgeError::GivenUp(error));
        }
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            ?step,
            "the cloud did not answer; the certificate step is retried later"
        );
        Ok(RenewalOutcome::Failed { retry_after: retry_after(&error) })
    }

    async fn check(&self) -> Result<RenewalOutcome, StepError> {
        let identity = self.current_for_step()?;
        let contact = self.contact(identity.dial(), identity.trust());
        let renew = enrol::asks_to_renew(&contact, identity.credentials()).await?;
        Ok(RenewalOutcome::Checked { renew })
    }

    async fn renew(&self) -> Result<RenewalOutcome, StepError> {
        let identity = self.current_for_step()?;
        let contact = self.contact(identity.dial(), identity.trust());
        let issued = enrol::renew(&contact, identity.credentials(), &identity.key, &identity.peer).await?;
        self.keep(&identity, &issued)
    }

    async fn reenrol(&self) -> Result<RenewalOutcome, StepError> {
        let identity = self.current_for_step()?;
        let contact = self.contact(identity.dial(), identity.trust());
        let issued = enrol::reenrol(&contact, &identity.certificate, &identity.key, &identity.peer).await?;
        self.keep(&identity, &issued)
    }

    fn keep(&self, identity: &EdgeIdentity, issued: &IssuedCertificate) -> Result<RenewalOutcome, StepError> {
        self.state.save(&identity.key, issued, &identity.peer, &identity.joined_at)?;
        self.take()?;
        tracing::info!(peer = %identity.peer, until = %UtcTimestamp(issued.facts.not_after), "the edge has a new certificate");
        Ok(RenewalOutcome::Issued { not_before: issued.facts.not_before, not_after: issued.facts.not_after })
    }

    /// Saves the endpoints that the cloud announced, so that a restart finds every replica. A full disk ends no session.
    fn remember(&self, endpoints: &[ChannelEndpoint]) {
        if let Err(error) = self.state.save_endpoints(endpoints) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "cannot save the endpoints that the cloud announced; after a restart the previous ones are dialled"
            );
        }
    }

    // The identity in use is the one read back from the disk, so that a restart finds the same.
    fn take(&self) -> Result<(), StateError> {
        self.state.clear_refused()?;
        let identity = self.state.load()?.map(Arc::new);
        self.identity.send_replace(identity);
        Ok(())
    }

    fn current(&self) -> Result<Arc<EdgeIdentity>, EdgeError> {
        self.identity.borrow().clone().ok_or(EdgeError::NotEnrolled)
    }

    fn current_for_step(&self) -> Result<Arc<EdgeIdentity>, StepError> {
        self.identity.borrow().clone().ok_or(StepError::Enrol(EnrolError::NoEndpoint))
    }

    fn contact(&self, endpoints: Vec<ChannelEndpoint>, trust: TrustAnchors) -> EnrolmentContact {
        EnrolmentContact {
            endpoints,
            trust,
            clock: self.clock.clone(),
            deadline: DEADLINE,
            proxy: self.proxy.clone(),
        }
    }
}

/// Signals from the sessions of an edge about its certificate and about the endpoints of the cloud.
#[derive(Debug)]
pub struct CertificateSignals {
    signals: Option<mpsc::Receiver<CertificateSignal>>,
    endpoints: Option<watch::Receiver<Vec<ChannelEndpoint>>>,
}

/// One signal.
enum SessionNotice {
    Certificate(CertificateSignal),
    Endpoints(Vec<ChannelEndpoint>),
}

/// Sessions are rare, and the next one repeats the signal.
const SIGNALS_MAX: usize = 4;

impl CertificateSignals {
    /// May be dropped and called again.
    async fn next(&mut self) -> SessionNotice {
        let CertificateSignals { signals, endpoints } = self;
        let signal = async { signals.as_mut()?.recv().await };
        let endpoints = async {
            let announced = endpoints.as_mut()?;
            announced.changed().await.ok()?;
            Some(announced.borrow_and_update().clone())
        };
        tokio::select! {
            Some(signal) = signal => SessionNotice::Certificate(signal),
            Some(endpoints) = endpoints => SessionNotice::Endpoints(endpoints),
            else => std::future::pending().await,
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Enrol(#[from] EnrolError),
}

fn refused_with(error: &EnrolError, code: EnrolmentCode) -> bool {
    error.refusal().is_some_and(|refusal| refusal.reason() == code)
}

fn retry_after(error: &EnrolError) -> Option<Duration> {
    let seconds = error.refusal()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}

// A wrong clock may be set any moment, a cloud may start any moment; a refusal stays one.
fn is_worth_repeating(error: &EnrolError) -> bool {
    match error {
        EnrolError::Refused(refusal) => refusal.is_temporary(),
        EnrolError::Unreachable { .. }
        | EnrolError::Timeout { .. }
        | EnrolError::Handshake { .. }
        | EnrolError::Wire { .. }
        | EnrolError::CloudCertificate { .. }
        | EnrolError::Clock { .. } => true,
        _ => false,
    }
}

// A random number from 0 to 1, to spread retries.
pub(crate) fn random_fraction() -> f64 {
    let secret = TokenSecret::generate();
    let [high, low, ..] = *secret.expose();
    f64::from(u16::from_be_bytes([high, low])) / f64::from(u16::MAX)
}
