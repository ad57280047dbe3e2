//! Proxies a Kafka cluster behind one name: a client that knows one address finds every broker at addresses
//! of its own site.
//!
//! The bytes are copied as those of any connection. Responses with broker addresses (Metadata,
//! FindCoordinator, DescribeCluster) are rewritten at the gateway of the brokers: only there can brokers be
//! matched with backends, and no real address leaves the site. The gateway of the client sends the address at
//! which the client sees the service (`CrossingHeader::seen`), and listens for every broker on a port after
//! the service's own. `frames` finds the responses to read, `rewrite` changes them, `brokers` matches brokers
//! with backends, `client_id` reads the client's id.

mod brokers;
pub mod client_id;
pub mod frames;
pub mod rewrite;
pub mod versions;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use causeway_channel::link::ResetCode;
use causeway_daemon::sync::MutexExt;
use causeway_netmap::ServiceName;

pub use brokers::BrokerNames;

use super::copy::{self, ByteSink, ByteSource, CopyBatch, CopyEnd, CopySide};
use super::listeners::broker_address;
use crate::connection_record::ByteMeter;
use crate::peers::BoxedFuture;
use crate::proxy::Proxy;
use client_id::ClientIdReader;
use frames::{FramePiece, KafkaConversation, RequestScanner, ResponseScanner};
use versions::{PendingRequest, RewrittenApi};

/// Rewrites broker addresses on one connection.
pub(crate) struct KafkaRewriter {
    proxy: Arc<Proxy>,
    service: ServiceName,
    /// The address at which the client sees the service.
    seen: SocketAddr,
    /// The client's id, once it has sent one.
    name: OnceLock<String>,
}

/// Copies both ways. With a rewriter, broker addresses in Kafka responses are replaced.
pub(crate) async fn copy<R: ByteSource, W: ByteSink, S: ByteSource, V: ByteSink>(
    client: &mut CopySide<R, W>,
    backend: &mut CopySide<S, V>,
    meter: &ByteMeter,
    idle: Duration,
    rewriter: Option<&KafkaRewriter>,
) -> CopyEnd {
    match rewriter {
        // On the heap: connections without a rewriter do not carry its state.
        Some(rewriter) => Box::pin(cross(client, backend, meter, idle, rewriter)).await,
        None => copy::cross(client, backend, meter, idle).await,
    }
}

/// Copies like `copy::cross`, with broker addresses rewritten for the client.
async fn cross<R: ByteSource, W: ByteSink, S: ByteSource, V: ByteSink>(
    client: &mut CopySide<R, W>,
    backend: &mut CopySide<S, V>,
    meter: &ByteMeter,
    idle: Duration,
    rewriter: &KafkaRewriter,
) -> CopyEnd {
    let state = Mutex::new(KafkaConversation::default());
    let requests = RequestSource {
        inner: &mut client.source,
        requests: RequestScanner::default(),
        client_id: ClientIdReader::default(),
        state: &state,
        raw: CopyBatch::default(),
        rewriter,
    };
    let responses = ResponseSource {
        inner: &mut backend.source,
        answers: ResponseScanner::default(),
        state: &state,
        raw: CopyBatch::default(),
        pieces: Vec::new(),
        rewriter,
    };
    let mut client = CopySide { source: requests, sink: &mut client.sink };
    let mut backend = CopySide { source: responses, sink: &mut backend.sink };
    copy::cross(&mut client, &mut backend, meter, idle).await
}

/// The client's requests, scanned on their way.
struct RequestSource<'a, S> {
    inner: &'a mut S,
    requests: RequestScanner,
    client_id: ClientIdReader,
    state: &'a Mutex<KafkaConversation>,
    raw: CopyBatch,
    rewriter: &'a KafkaRewriter,
}

impl<S: ByteSource> ByteSource for RequestSource<'_, S> {
    async fn fill(&mut self, batch: &mut CopyBatch) -> io::Result<bool> {
        while batch.is_empty() {
            if !self.inner.fill(&mut self.raw).await? {
                // The stream ends inside a request head: the partial head is dropped.
                return Ok(false);
            }
            let mut state = self.state.lock_ignoring_poison();
            for chunk in self.raw.drain() {
                if let Some(name) = self.client_id.take(&chunk) {
                    let _ = self.rewriter.name.set(name);
                }
                self.requests.take(chunk, &mut state, |piece| batch.push(piece)).map_err(invalid)?;
            }
        }
        Ok(true)
    }

    fn abandon(&mut self, code: ResetCode) {
        self.inner.abandon(code);
    }
}

/// The broker's responses, with addresses rewritten.
struct ResponseSource<'a, S> {
    inner: &'a mut S,
    answers: ResponseScanner,
    state: &'a Mutex<KafkaConversation>,
    raw: CopyBatch,
    pieces: Vec<FramePiece<PendingRequest>>,
    rewriter: &'a KafkaRewriter,
}

impl<S: ByteSource> ByteSource for ResponseSource<'_, S> {
    async fn fill(&mut self, batch: &mut CopyBatch) -> io::Result<bool> {
        while batch.is_empty() {
            if !self.inner.fill(&mut self.raw).await? {
                return Ok(false);
            }
            self.decode_responses()?;
            for piece in self.pieces.drain(..) {
                match piece {
                    FramePiece::Pass(bytes) => batch.push(bytes),
                    FramePiece::Held(asked, frame) => {
                        let changed = self.rewriter.change(asked, frame).await.map_err(invalid)?;
                        changed
                            .into_iter()
                            .filter(|chunk| !chunk.is_empty())
                            .for_each(|chunk| batch.push(chunk));
                    }
                }
            }
        }
        Ok(true)
    }

    fn abandon(&mut self, code: ResetCode) {
        self.inner.abandon(code);
    }
}

impl<S> ResponseSource<'_, S> {
    fn decode_responses(&mut self) -> io::Result<()> {
        let mut state = self.state.lock_ignoring_poison();
        for chunk in self.raw.drain() {
            self.answers.take(chunk, &mut state, |piece| self.pieces.push(piece)).map_err(invalid)?;
        }
        Ok(())
    }
}

impl KafkaRewriter {
    pub fn new(proxy: &Arc<Proxy>, service: ServiceName, seen: SocketAddr) -> KafkaRewriter {
        KafkaRewriter { proxy: proxy.clone(), service, seen, name: OnceLock::new() }
    }

    /// The client's id, if it has sent one.
    pub fn name(&self) -> Option<&str> {
        self.name.get().map(String::as_str)
    }

    /// Boxed: called rarely, and not needed by a connection that only copies bytes.
    fn change(
        &self,
        asked: PendingRequest,
        frame: Bytes,
    ) -> BoxedFuture<'_, Result<[Bytes; 2], rewrite::UnreadableResponse>> {
        Box::pin(self.changed(asked, frame))
    }

    async fn changed(
        &self,
        asked: PendingRequest,
        frame: Bytes,
    ) -> Result<[Bytes; 2], rewrite::UnreadableResponse> {
        if asked.api == RewrittenApi::ApiVersions {
            return Ok([rewrite::limit(asked.version, &frame)?, Bytes::new()]);
        }
        let Some(reading) = rewrite::read(asked, &frame)? else { return Ok([frame, Bytes::new()]) };
        let view = self.proxy.context.view();
        let named = reading.named();
        let mut addresses = vec![None; named.len()];
        // Without the service no broker is reachable: the connection is about to be closed.
        if let Some(service) = view.services.get(&self.service) {
            let indices: Vec<usize> = (0..named.len()).filter(|at| named[*at].names_broker()).collect();
            let brokers: Vec<(&str, i32)> =
                indices.iter().map(|at| (named[*at].host.as_str(), named[*at].port)).collect();
            let places = self.proxy.kafka.places(service, &brokers).await;
            for (at, place) in indices.into_iter().zip(places) {
                addresses[at] = place.and_then(|place| broker_address(self.seen, place));
            }
        }
        Ok(reading.write(&addresses))
    }
}

/// Ends the connection with this error in the audit.
fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
