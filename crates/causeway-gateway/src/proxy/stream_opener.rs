//! Opens streams of clients to the gateways of other sites, and bounds the streams of each client (`StreamShares`).
//!
//! Input: an admitted access and its header. Output: the stream, or the refusal. `GatewayContext::open_stream` opens it within the
//! connect timeout. The other gateway's refusal of the stream arrives later, as a reset.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;

use causeway_channel::link::Stream;
use causeway_daemon::sync::MutexExt;
use causeway_netmap::{PresenceEntry, SiteName};

use super::Proxy;
use crate::connection_record::AdmittedAccess;
use crate::peers::CrossingHeader;
use crate::policy::PolicyRefusal;
use crate::slots::{ClientSlot, ClientSlots};

/// A stream of a client, and the client's slot for it.
pub(crate) struct ClientStream {
    pub stream: Stream,
    pub slot: Option<ClientSlot>,
}

/// Opens a stream to the gateway of the service of a presence, for the client that `crossing` names.
pub(crate) async fn open_for_service(
    proxy: &Proxy,
    admitted: &AdmittedAccess,
    presence: &PresenceEntry,
    crossing: CrossingHeader,
) -> Result<ClientStream, PolicyRefusal> {
    let client = crossing.client().map(|client| client.ip());
    let slot = client.map(|client| proxy.take_stream(&presence.service_site, client)).transpose()?;
    let header = crossing.to_service(&presence.service, &presence.service_site, &admitted.who);
    let stream = proxy.context.open_stream(&presence.service_site, header).await?;
    Ok(ClientStream { stream, slot })
}

/// Slots for streams by link and client: no client takes all streams of a link. There are as many links as the netmap has
/// sites, at most.
pub(crate) struct StreamShares {
    client_max: usize,
    by_link: Mutex<HashMap<SiteName, ClientSlots>>,
}

impl StreamShares {
    pub fn new(client_max: usize) -> StreamShares {
        StreamShares { client_max, by_link: Mutex::default() }
    }

    fn take(&self, link: SiteName, client: IpAddr) -> Option<ClientSlot> {
        let mut by_link = self.by_link.lock_ignoring_poison();
        by_link.entry(link).or_insert_with(|| ClientSlots::per_client(self.client_max)).take(client)
    }
}

impl Proxy {
    /// Takes a slot for one stream of a client to a site. Hold it as long as the stream.
    pub(crate) fn take_stream(&self, site: &SiteName, client: IpAddr) -> Result<ClientSlot, PolicyRefusal> {
        let link = self.context.peers.link_to(site);
        self.streams.take(link, client).ok_or(PolicyRefusal::Full { what: "streams of one client" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_with_all_its_streams_keeps_no_other_client_and_no_other_link_out() {
        let shares = StreamShares::new(3);
        let take = |link: &str, client: [u8; 4]| shares.take(link.into(), client.into());
        let mut held: Vec<_> = (0..10).filter_map(|_| take("cloud", [10, 0, 0, 1])).collect();
        assert_eq!(held.len(), 3);
        assert!(take("cloud", [10, 0, 0, 2]).is_some(), "another client");
        assert!(take("berlin", [10, 0, 0, 1]).is_some(), "another link");
        held.pop();
        assert!(take("cloud", [10, 0, 0, 1]).is_some(), "a stream that ends gives its slot back");
    }
}
