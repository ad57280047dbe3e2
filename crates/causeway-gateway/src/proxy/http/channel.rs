//! Sends requests to the gateway of another site: many over one stream as HTTP/2, or one on a stream of its
//! own as HTTP/1.1.
//!
//! The other gateway judges by the header of a stream, so every subject has its own streams.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use causeway_daemon::sync::MutexExt;
use causeway_netmap::{ServiceName, SiteName};
use http::{Request, Response};
use hyper::body::Incoming;

use super::body::RequestBody;
use super::channel_io::{ChannelIo, StreamEndNote};
use super::error_response::ProxyError;
use super::pool::{Http1Connection, Http2Pool, OpenedConnection, PoolLease};
use crate::peers::{BoxedFuture, CrossingHeader, StreamContent};
use crate::policy::{PolicyRefusal, Principal};
use crate::proxy::Proxy;
use crate::proxy::stream_opener::open_stream;

/// Idle time of a stream. An idle stream costs both ends some KiB; a new one costs no round trip.
const IDLE: Duration = Duration::from_secs(120);

/// The destination and the subject of a stream.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ChannelRoute {
    pub service: ServiceName,
    pub site: SiteName,
    pub who: Principal,
}

/// Pools of streams to all other sites.
#[derive(Default)]
pub struct ChannelPools {
    pools: Mutex<HashMap<ChannelRoute, Arc<Http2Pool>>>,
}

impl ChannelPools {
    /// Sends a request over a shared stream.
    pub async fn send(
        &self,
        proxy: &Proxy,
        route: &ChannelRoute,
        client: SocketAddr,
        request: Request<RequestBody>,
    ) -> Result<(Response<Incoming>, PoolLease), ProxyError> {
        let pool = {
            let mut pools = self.pools.lock_ignoring_poison();
            match pools.get(route) {
                Some(pool) => pool.clone(),
                None => pools.entry(route.clone()).or_default().clone(),
            }
        };
        let open = || -> BoxedFuture<'_, _> { Box::pin(open(proxy, route, StreamContent::Requests, client)) };
        pool.send(request, open).await
    }

    /// Retires every stream. Idle ones close at once, busy ones with their last request.
    pub fn retire(&self) {
        let pools = std::mem::take(&mut *self.pools.lock_ignoring_poison());
        pools.values().for_each(|pool| pool.retire());
    }

    /// Closes idle streams.
    pub fn tidy(&self) {
        let mut pools = self.pools.lock_ignoring_poison();
        pools.retain(|_, pool| !pool.tidy(IDLE) || Arc::strong_count(pool) > 1);
    }
}

/// Sends a request on a stream of its own.
pub async fn send_alone(
    proxy: &Proxy,
    route: &ChannelRoute,
    client: SocketAddr,
    request: Request<RequestBody>,
) -> Result<(Response<Incoming>, PoolLease), ProxyError> {
    let opened = open(proxy, route, StreamContent::Upgrade, client).await?;
    Http1Connection::connect(opened).await?.send(request).await
}

async fn open(
    proxy: &Proxy,
    route: &ChannelRoute,
    content: StreamContent,
    client: SocketAddr,
) -> Result<OpenedConnection, ProxyError> {
    let ChannelRoute { service, site, who } = route;
    let header = CrossingHeader::new(content, client).to_service(service, site, who);
    let slot = proxy.take_stream(site, client.ip()).map_err(|refusal| ProxyError::from(&refusal))?;
    let stream = open_stream(proxy, site, header).await.map_err(|error| {
        let text = error.to_string();
        ProxyError { text, ..ProxyError::from(&PolicyRefusal::from(error)) }
    })?;
    let note = Arc::new(StreamEndNote::default());
    let io = Box::new(ChannelIo::new(stream, note.clone(), None));
    Ok(OpenedConnection { io, note: Some(note), place: Box::new(slot) })
}
