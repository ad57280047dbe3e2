//! Publishes the link in use and its state to the parts that open streams.
//!
//! `LinkPublisher` is written by the `LinkKeeper` alone; every user of the link has a `CurrentLink`. The state is for the admin
//! dump and `causeway doctor`.

use std::sync::Arc;

use causeway_channel::link::Link;
use causeway_channel::session::{AllowedTransports, LinkId};
use tokio::sync::{Notify, watch};

use super::LinkOptions;

/// The link in use, for opening streams. Clones share it.
#[derive(Clone, Debug)]
pub struct CurrentLink {
    current: watch::Receiver<Option<(LinkId, Link)>>,
    /// Counts links that were announced to end, or replaced by another one.
    retired: watch::Receiver<u64>,
    shown: watch::Receiver<LinkState>,
    check_requests: Arc<Notify>,
}

impl CurrentLink {
    /// `None` while the cloud is away.
    pub fn link(&self) -> Option<Link> {
        self.current.borrow().as_ref().map(|(_, link)| link.clone())
    }

    /// Resolves when another link is in use, or none.
    pub async fn changed(&mut self) {
        if self.current.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Resolves when streams that are kept open for later use should be closed: the cloud announced the end of the link
    /// they are on, or another link is in use.
    pub async fn retired(&mut self) {
        if self.retired.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// A request makes no progress: find out at once whether the link is alive.
    pub fn suspect(&self) {
        self.check_requests.notify_one();
    }

    /// For the admin dump.
    pub fn shown(&self) -> LinkState {
        let shown = self.shown.borrow().clone();
        let link = self.link();
        let stats = link.as_ref().map(Link::stats).unwrap_or_default();
        LinkState {
            rtt_ms: link.and_then(|link| link.rtt()).map(|rtt| rtt.as_secs_f64() * 1000.0),
            sent_bytes: stats.sent_bytes,
            received_bytes: stats.received_bytes,
            ..shown
        }
    }
}

/// The state of the link.
#[derive(Clone, Debug, Default, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkState {
    pub state: String,
    pub transport: Option<&'static str>,
    pub cloud: Option<String>,
    pub replica: Option<String>,
    pub session: Option<String>,
    pub rtt_ms: Option<f64>,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// Since the start of the process.
    pub sessions: u64,
    pub attempts: u64,
    /// Why the last attempt or session ended.
    pub last_problem: Option<String>,
    /// The transports that the configuration allows: `auto`, `quic` or `tcp`.
    pub allowed: &'static str,
    /// TCP goes through an HTTP proxy.
    pub proxied: bool,
    /// Why the link is on TCP although QUIC is allowed.
    pub quic_problem: Option<String>,
    /// Seconds by which this host's clock was ahead of the cloud's when the session began; negative: behind.
    pub clock_ahead_seconds: Option<i64>,
}

/// Publishes the link in use and its state to the `CurrentLink` that was made with it.
pub struct LinkPublisher {
    pub(super) current: watch::Sender<Option<(LinkId, Link)>>,
    pub(super) shown: watch::Sender<LinkState>,
    pub(super) retired: watch::Sender<u64>,
    pub(super) check_requests: Arc<Notify>,
}

impl LinkPublisher {
    /// Makes both ends. There is no link until a `LinkKeeper` runs with the publisher.
    pub fn new(options: &LinkOptions) -> (LinkPublisher, CurrentLink) {
        let allowed = match options.transports {
            AllowedTransports::Both => "auto",
            AllowedTransports::QuicOnly => "quic",
            AllowedTransports::TcpOnly => "tcp",
        };
        let proxied = options.proxy.is_some();
        let (current, current_seen) = watch::channel(None);
        let (shown, shown_seen) = watch::channel(LinkState { allowed, proxied, ..LinkState::default() });
        let (retired, retired_seen) = watch::channel(0);
        let check_requests = Arc::new(Notify::new());
        let link = CurrentLink {
            current: current_seen,
            retired: retired_seen,
            shown: shown_seen,
            check_requests: check_requests.clone(),
        };
        (LinkPublisher { current, shown, retired, check_requests }, link)
    }
}
