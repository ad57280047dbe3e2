//! Counts a client connection under connection limits: once for each service it is used for, until it ends.
//!
//! At a presence the service is known when the connection arrives, at a shared entry with the first request
//! for it. A request on a connection over the limit gets a 429; a later one may succeed.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use causeway_daemon::sync::MutexExt;
use causeway_netmap::{NetmapView, ServiceName};

use crate::limits::{Allowance, LimitTable, LimitedEnd};
use crate::live::{AccessGrant, AccessRequest};
use crate::policy::{Permit, PolicyRefusal, Principal};

#[derive(Default)]
pub struct ConnectionCount {
    counted: Mutex<Vec<(AccessRequest, Allowance)>>,
}

impl ConnectionCount {
    /// Counts a connection that arrives at a presence. One that may not use the service is not counted: its
    /// requests are refused.
    pub fn arrive(
        &self,
        limits: &LimitTable,
        view: &NetmapView,
        service: &ServiceName,
        client: IpAddr,
    ) -> Result<(), PolicyRefusal> {
        let claim = AccessRequest::Use { service: service.clone(), client, request: None };
        match claim.judge(view) {
            Ok(AccessGrant { who, permit, .. }) => self.count(limits, &claim, &who, &permit),
            Err(_) => Ok(()),
        }
    }

    /// Counts the connection for the service of a request, unless it is counted already.
    pub fn count(
        &self,
        limits: &LimitTable,
        claim: &AccessRequest,
        who: &Principal,
        permit: &Permit,
    ) -> Result<(), PolicyRefusal> {
        let mut counted = self.lock();
        if counted.iter().any(|(known, _)| known == claim) {
            return Ok(());
        }
        let allowance = limits.connect(LimitedEnd::Near, permit, &claim.target(), who, Instant::now())?;
        counted.push((claim.clone(), allowance));
        Ok(())
    }

    /// Applies the limits of a new netmap. An error: the connection must end.
    pub fn renew(&self, limits: &LimitTable, view: &NetmapView) -> Result<(), PolicyRefusal> {
        let now = Instant::now();
        let mut counted = self.lock();
        let mut over = Ok(());
        counted.retain(|(claim, allowance)| match claim.judge(view) {
            Ok(AccessGrant { who, permit, .. }) => {
                if let Err(refusal) = limits.renew(allowance, &permit, &who, now) {
                    over = Err(refusal);
                }
                true
            }
            // Its requests are cut separately; a connection that may not be used is not counted.
            Err(_) => false,
        });
        over
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(AccessRequest, Allowance)>> {
        self.counted.lock_ignoring_poison()
    }
}

#[cfg(test)]
mod tests {
    use causeway_netmap::{GatewayEntry, PolicyEntry, PolicyLimits, PresenceEntry, ServiceProtocol};

    use super::*;

    /// Site oslo with two services of rome, which all of oslo may use within `limits`.
    fn view(limits: Option<PolicyLimits>) -> NetmapView {
        let mut view = NetmapView::default();
        view.gateway = Some(GatewayEntry {
            name: "oslo-1".into(),
            site: "oslo".into(),
            ip: None,
            presence_cidrs: Vec::new(),
            priority: 0,
            relay: false,
            prefer: Default::default(),
            drain: false,
            tunnel_networks: Vec::new(),
            mappings: Vec::new(),
        });
        for service in ["web", "shop"] {
            let presence = PresenceEntry {
                service: service.into(),
                addresses: Vec::new(),
                port: 80,
                protocol: ServiceProtocol::Http,
                names: Vec::new(),
                service_site: "rome".into(),
                policies: vec!["p".into()],
                brokers: 0,
            };
            view.presences.insert(service.into(), presence);
        }
        let sites = vec!["oslo".into()];
        let policy = PolicyEntry {
            name: "p".into(),
            servers: Vec::new(),
            sites,
            limits,
            http: Vec::new(),
            ports: Vec::new(),
        };
        view.policies.insert("p".into(), policy);
        view
    }

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7));

    fn limit(connections: u64) -> Option<PolicyLimits> {
        Some(PolicyLimits { connections: Some(connections), ..PolicyLimits::default() })
    }

    #[test]
    fn a_connection_counts_once_for_each_service_until_it_ends() {
        let (limits, view) = (LimitTable::new(10), view(limit(1)));
        let arrive = |counting: &ConnectionCount, service: &str| {
            counting.arrive(&limits, &view, &service.into(), CLIENT).map_err(|refusal| refusal.word())
        };
        let first = ConnectionCount::default();
        assert_eq!(arrive(&first, "web"), Ok(()));
        assert_eq!(arrive(&first, "web"), Ok(()), "its next request is no other connection");
        let second = ConnectionCount::default();
        assert_eq!(arrive(&second, "web"), Err("limit"));
        assert_eq!(arrive(&second, "shop"), Ok(()), "another service has limits of its own");
        drop(first);
        assert_eq!(arrive(&second, "web"), Ok(()));
        assert_eq!(arrive(&second, "unknown"), Ok(()), "the request is refused, not the connection");
    }

    #[test]
    fn a_netmap_brings_idle_connections_under_its_limits() {
        let limits = LimitTable::new(10);
        let idle = ConnectionCount::default();
        idle.arrive(&limits, &view(None), &"web".into(), CLIENT).unwrap();
        let narrow = view(limit(1));
        assert_eq!(idle.renew(&limits, &narrow), Ok(()));
        let other = ConnectionCount::default();
        assert!(other.arrive(&limits, &narrow, &"web".into(), CLIENT).is_err(), "the idle one counts");
        assert!(idle.renew(&limits, &view(limit(0))).is_err());
        // No longer allowed, so no longer counted.
        assert_eq!(idle.renew(&limits, &NetmapView::default()), Ok(()));
        assert_eq!(other.arrive(&limits, &narrow, &"web".into(), CLIENT), Ok(()));
    }
}
