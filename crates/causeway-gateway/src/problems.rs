//! Problems of a gateway as text, for conditions and reports: what it should do and cannot.
//!
//! A problem is reported when it has lasted for a moment, so that a restart reports none. Retries are decided
//! elsewhere.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::dns::DnsState;
use crate::neighbour_proxy::NeighbourState;
use crate::proxy::Proxy;
use crate::proxy::listeners::ListenersReport;
use crate::tun::TunnelState;

/// Time that a problem must last. Longer than the retry interval of a listener.
const SETTLE: Duration = Duration::from_secs(2);
/// Lines in a report; the rest is counted.
const LINES_MAX: usize = 8;

/// Services with outages in a report, so that it stays small.
const OUTAGES_MAX: usize = 100;

/// The problems of a gateway.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Problems {
    /// Problems of the gateway itself. Empty: none.
    #[serde(rename = "regrets")]
    pub gateway: Vec<String>,
    /// Services of its site with backends that do not respond.
    pub backends: BTreeMap<String, BackendOutage>,
    /// The reason for which the tunnel does not run although an ECommunity names the site. None: it runs, or is not needed; also from an
    /// older edge.
    pub tunnel: Option<TunnelProblem>,
    /// Pods of the site that would not survive a restart of their node without the cloud, each with the reason. Added by an edge that serves
    /// the Kubernetes API. None: it serves none; also from an older edge.
    pub offline: Option<Vec<String>>,
    /// The byte budget of the Kubernetes API at the edge: empty while it lasts, otherwise the message. None: there is no budget; also from an
    /// older edge.
    pub budget: Option<String>,
}

/// A problem of the tunnel.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct TunnelProblem {
    /// One word for programs.
    pub reason: String,
    /// The problem and its fix.
    pub message: String,
}

/// The state of the backends of a service.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct BackendOutage {
    pub up: usize,
    pub of: usize,
    /// The error of one backend that does not respond.
    pub why: String,
    /// The backend is not dialled, because the configuration of the gateway does not allow it. False from an
    /// older edge, which does not report it.
    pub denied: bool,
}

pub struct ProblemReporter {
    dns: watch::Receiver<DnsState>,
    listening: watch::Receiver<ListenersReport>,
    turns: watch::Receiver<u64>,
    proxy: Arc<Proxy>,
    /// None: there is no tunnel.
    tunnel: Option<watch::Receiver<TunnelState>>,
    neighbours: watch::Receiver<NeighbourState>,
    told: Option<Problems>,
}

impl ProblemReporter {
    pub(crate) fn new(
        dns: watch::Receiver<DnsState>,
        proxy: Arc<Proxy>,
        tunnel: Option<watch::Receiver<TunnelState>>,
        neighbours: watch::Receiver<NeighbourState>,
    ) -> ProblemReporter {
        let (listening, turns) = (proxy.state(), proxy.backends.turns());
        ProblemReporter { dns, listening, turns, proxy, tunnel, neighbours, told: None }
    }

    /// Returns the problems when they have changed.
    pub async fn next(&mut self) -> Problems {
        loop {
            tokio::time::sleep(SETTLE).await;
            self.turns.mark_unchanged();
            let files_max = causeway_daemon::files::max();
            let neighbours = self.neighbours.borrow_and_update().troubles.clone();
            let gateway = lines(
                &self.dns.borrow_and_update(),
                &self.listening.borrow_and_update(),
                &neighbours,
                files_max,
            );
            let backends = self.proxy.backends.outages().into_iter().take(OUTAGES_MAX).collect();
            let told =
                Problems { gateway, backends, tunnel: self.tunnel_problem(), offline: None, budget: None };
            if self.told.as_ref() != Some(&told) {
                self.told = Some(told.clone());
                return told;
            }
            tokio::select! {
                Ok(()) = self.dns.changed() => {}
                Ok(()) = self.listening.changed() => {}
                Ok(()) = self.turns.changed() => {}
                Ok(()) = self.neighbours.changed() => {}
                () = troubles_changed(&mut self.tunnel) => {}
                // The gateway is gone, and its problems with it.
                else => return std::future::pending().await,
            }
        }
    }
}

impl ProblemReporter {
    fn tunnel_problem(&mut self) -> Option<TunnelProblem> {
        let troubles = self.tunnel.as_mut().map(|state| state.borrow_and_update().troubles.join("; "));
        let failed = troubles.filter(|troubles| !troubles.is_empty());
        failed.map(|message| TunnelProblem { reason: "TunnelFailed".into(), message })
    }
}

/// Waits until the problems of the tunnel change. Its counters change all the time.
async fn troubles_changed(tunnel: &mut Option<watch::Receiver<TunnelState>>) {
    let Some(state) = tunnel else { return std::future::pending().await };
    let known = state.borrow_and_update().troubles.clone();
    if state.wait_for(|state| state.troubles != known).await.is_err() {
        std::future::pending().await
    }
}

/// A gateway with a lower limit of open files is at risk: every connection needs one.
const FILES_FEW: u64 = 4096;

pub(crate) fn lines(
    dns: &DnsState,
    listening: &ListenersReport,
    neighbours: &[String],
    files_max: u64,
) -> Vec<String> {
    let names = dns.findings.iter();
    let names =
        names.map(|finding| format!("names are not answered at {}: {}", finding.address, finding.why));
    let presences = listening.troubles.iter().map(|trouble| match &trouble.service {
        Some(service) => format!("the presence of {service} does not listen: {}", trouble.why),
        None => trouble.why.clone(),
    });
    let few = (files_max < FILES_FEW).then(|| {
        format!(
            "no more than {files_max} files may be open, and every connection is one: raise the hard limit"
        )
    });
    let mut lines: Vec<String> =
        names.chain(presences).chain(neighbours.iter().cloned()).chain(few).collect();
    if lines.len() > LINES_MAX {
        let rest = lines.split_off(LINES_MAX).len();
        lines.push(format!("and {rest} more"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::ListenProblem;
    use crate::proxy::listeners::ListenerProblem;

    #[test]
    fn what_cannot_be_done_is_said_in_a_few_lines() {
        let finding = ListenProblem { address: "10.0.0.9:53".parse().unwrap(), why: "it is away".into() };
        let dns = DnsState { findings: vec![finding], ..DnsState::default() };
        let trouble = |service: Option<&str>| ListenerProblem {
            service: service.map(Into::into),
            why: "no room".into(),
        };
        let report = |count: usize| {
            let mut troubles = vec![trouble(Some("web")); count];
            troubles.push(trouble(None));
            ListenersReport { troubles, ..ListenersReport::default() }
        };
        assert_eq!(
            lines(&dns, &report(1), &["no ARP".to_owned()], 4096),
            [
                "names are not answered at 10.0.0.9:53: it is away",
                "the presence of web does not listen: no room",
                "no room",
                "no ARP",
            ]
        );
        let many = lines(&dns, &report(20), &[], 4096);
        assert_eq!((many.len(), many[LINES_MAX].as_str()), (LINES_MAX + 1, "and 14 more"));
        assert!(lines(&DnsState::default(), &ListenersReport::default(), &[], 4096).is_empty());
        let few = lines(&DnsState::default(), &ListenersReport::default(), &[], 1024);
        assert!(matches!(&few[..], [line] if line.contains("no more than 1024 files")), "{few:?}");
    }
}
