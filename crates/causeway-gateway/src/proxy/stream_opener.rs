//! Opens streams to the gateways of other sites, for every protocol of the proxy.
//!
//! Input: a header. Output: the stream, or why there is none, with the reset code of the peer if it sent one. What the other
//! gateway decides about the stream arrives later, as a reset.

use causeway_channel::link::{Stream, StreamHeader};
use causeway_netmap::{PresenceEntry, SiteName};

use super::Proxy;
use crate::connection_record::AdmittedAccess;
use crate::peers::{CrossingHeader, PeerError};
use crate::policy::PolicyRefusal;

/// Opens a stream to the active gateway of a site, within the connect timeout. A link that takes no stream is suspected.
pub(crate) async fn open_stream(
    proxy: &Proxy,
    site: &SiteName,
    header: StreamHeader,
) -> Result<Stream, PeerError> {
    let peers = &proxy.context.peers;
    let opened = match tokio::time::timeout(proxy.options.connect_timeout, peers.open_stream(header)).await {
        Ok(opened) => opened,
        Err(_) => {
            peers.suspect(site);
            let seconds = proxy.options.connect_timeout.as_secs_f64();
            Err(PeerError::Away { site: site.clone(), why: format!("no stream opened within {seconds} s") })
        }
    };
    if let Err(error) = &opened {
        tracing::debug!(%site, error = error as &dyn std::error::Error, "cannot open a stream to another site");
    }
    opened
}

/// Opens a stream to the gateway of the service of a presence.
pub(crate) async fn open_for_service(
    proxy: &Proxy,
    admitted: &AdmittedAccess,
    presence: &PresenceEntry,
    crossing: CrossingHeader,
) -> Result<Stream, PolicyRefusal> {
    let header = crossing.to_service(&presence.service, &presence.home, &admitted.who);
    Ok(open_stream(proxy, &presence.home, header).await?)
}
