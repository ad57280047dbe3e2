//! Requests to the gateway of another site: many over one stream as HTTP/2, or one on a stream of its own as HTTP/1.1.
//!
//! The other gateway judges by the header of a stream, so every subject has streams of its own.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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

/// An idle stream costs both ends some KiB; a new one costs no round trip.
const IDLE: Duration = Duration::from_secs(120);

/// Where a stream leads, and for whom.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ChannelRoute {
    pub service: ServiceName,
    pub home: SiteName,
    pub who: Principal,
}

/// The streams to all other sites.
#[derive(Default)]
pub struct ChannelPools {
    routes: Mutex<HashMap<ChannelRoute, Arc<Http2Pool>>>,
}

impl ChannelPools {
    /// Sends a request beside others.
    pub async fn send(
        &self,
        proxy: &Proxy,
        route: &ChannelRoute,
        client: SocketAddr,
        request: Request<RequestBody>,
    ) -> Result<(Response<Incoming>, PoolLease), ProxyError> {
        let lines = {
            let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
            match routes.get(route) {
                Some(lines) => lines.clone(),
                None => routes.entry(route.clone()).or_default().clone(),
            }
        };
        let open = || -> BoxedFuture<'_, _> { Box::pin(open(proxy, route, StreamContent::Requests, client)) };
        lines.send(request, open).await
    }

    /// Takes every stream out of use. Idle ones close at once, the others with their last request.
    pub fn retire(&self) {
        let routes = std::mem::take(&mut *self.routes.lock().unwrap_or_else(PoisonError::into_inner));
        routes.values().for_each(|lines| lines.retire());
    }

    /// Closes what was not used for a while.
    pub fn tidy(&self) {
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        routes.retain(|_, lines| !lines.tidy(IDLE) || Arc::strong_count(lines) > 1);
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
    let ChannelRoute { service, home, who } = route;
    let header = CrossingHeader::new(content, client).to_service(service, home, who);
    let slot = proxy.take_stream(home, client.ip()).map_err(|refusal| ProxyError::from(&refusal))?;
    let stream = open_stream(proxy, home, header).await.map_err(|error| {
        let text = error.to_string();
        ProxyError { text, ..ProxyError::from(&PolicyRefusal::from(error)) }
    })?;
    let note = Arc::new(StreamEndNote::default());
    let io = Box::new(ChannelIo::new(stream, note.clone(), None));
    Ok(OpenedConnection { io, note: Some(note), place: Box::new(slot) })
}
