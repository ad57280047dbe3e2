//! Kafka behind one name: a client that was given one address finds every broker of the cluster at addresses of its own site.
//!
//! The bytes pass as those of any connection; answers that say where brokers are (Metadata, FindCoordinator, DescribeCluster)
//! are changed on their way, at the gateway of the brokers: only there it is known which of them is which, and no real address
//! crosses. The gateway of the client says where the client sees the service (`Crossing::seen`), and listens for every broker
//! on a port behind the service's own. `frames` finds what is to be read, `rewrite` changes it, `brokers` knows who is who,
//! `naming` what the client calls itself.

mod brokers;
pub mod frames;
pub mod naming;
pub mod rewrite;
pub mod versions;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use causeway_channel::link::ResetCode;
use causeway_netmap::ServiceName;

pub use brokers::Names;

use super::listeners::broker_address;
use super::pump::{self, Batch, Ended, Side, Sink, Source};
use crate::gateway::Shared;
use crate::passage::Meter;
use crate::peers::Later;
use frames::{Answers, Piece, Requests, Talk};
use naming::Naming;
use versions::{Api, Asked};

/// Tells where brokers are, on one connection.
pub(crate) struct Guide {
    shared: Arc<Shared>,
    service: ServiceName,
    /// Where the client sees the service.
    seen: SocketAddr,
    /// What the client calls itself, once it has said so.
    name: OnceLock<String>,
}

/// As `pump::cross`, with answers that tell the client where it finds brokers.
pub(crate) async fn cross<R: Source, W: Sink, S: Source, V: Sink>(
    client: &mut Side<R, W>,
    backend: &mut Side<S, V>,
    meter: &Meter,
    idle: Duration,
    guide: &Guide,
) -> Ended {
    let talk = Mutex::new(Talk::default());
    let asking = Asking {
        inner: &mut client.source,
        requests: Requests::default(),
        naming: Naming::default(),
        talk: &talk,
        raw: Batch::default(),
        guide,
    };
    let answering = Answering {
        inner: &mut backend.source,
        answers: Answers::default(),
        talk: &talk,
        raw: Batch::default(),
        pieces: Vec::new(),
        guide,
    };
    let mut client = Side { source: asking, sink: &mut client.sink };
    let mut backend = Side { source: answering, sink: &mut backend.sink };
    pump::cross(&mut client, &mut backend, meter, idle).await
}

/// What the client says, looked at.
struct Asking<'a, S> {
    inner: &'a mut S,
    requests: Requests,
    naming: Naming,
    talk: &'a Mutex<Talk>,
    raw: Batch,
    guide: &'a Guide,
}

impl<S: Source> Source for Asking<'_, S> {
    async fn fill(&mut self, batch: &mut Batch) -> io::Result<bool> {
        while batch.is_empty() {
            if !self.inner.fill(&mut self.raw).await? {
                // Half a head is of no use to anybody.
                return Ok(false);
            }
            let mut talk = lock(self.talk);
            for chunk in self.raw.drain() {
                if let Some(name) = self.naming.take(&chunk) {
                    let _ = self.guide.name.set(name);
                }
                self.requests.take(chunk, &mut talk, |piece| batch.push(piece)).map_err(invalid)?;
            }
        }
        Ok(true)
    }

    fn abandon(&mut self, code: ResetCode) {
        self.inner.abandon(code);
    }
}

/// What the broker says, changed where it says where brokers are.
struct Answering<'a, S> {
    inner: &'a mut S,
    answers: Answers,
    talk: &'a Mutex<Talk>,
    raw: Batch,
    pieces: Vec<Piece<Asked>>,
    guide: &'a Guide,
}

impl<S: Source> Source for Answering<'_, S> {
    async fn fill(&mut self, batch: &mut Batch) -> io::Result<bool> {
        while batch.is_empty() {
            if !self.inner.fill(&mut self.raw).await? {
                return Ok(false);
            }
            self.look()?;
            for piece in self.pieces.drain(..) {
                match piece {
                    Piece::Pass(bytes) => batch.push(bytes),
                    Piece::Held(asked, frame) => {
                        let changed = self.guide.change(asked, frame).await.map_err(invalid)?;
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

impl<S> Answering<'_, S> {
    fn look(&mut self) -> io::Result<()> {
        let mut talk = lock(self.talk);
        for chunk in self.raw.drain() {
            self.answers.take(chunk, &mut talk, |piece| self.pieces.push(piece)).map_err(invalid)?;
        }
        Ok(())
    }
}

impl Guide {
    pub fn new(shared: &Arc<Shared>, service: ServiceName, seen: SocketAddr) -> Guide {
        Guide { shared: shared.clone(), service, seen, name: OnceLock::new() }
    }

    /// What the client calls itself, if it has said so.
    pub fn name(&self) -> Option<&str> {
        self.name.get().map(String::as_str)
    }

    /// Boxed: seldom, and of no use to a connection that only moves bytes.
    fn change(&self, asked: Asked, frame: Bytes) -> Later<'_, Result<[Bytes; 2], rewrite::Unreadable>> {
        Box::pin(self.changed(asked, frame))
    }

    async fn changed(&self, asked: Asked, frame: Bytes) -> Result<[Bytes; 2], rewrite::Unreadable> {
        if asked.api == Api::ApiVersions {
            return Ok([rewrite::limit(asked.version, &frame)?, Bytes::new()]);
        }
        let Some(reading) = rewrite::read(asked, &frame)? else { return Ok([frame, Bytes::new()]) };
        let view = self.shared.view();
        let named = reading.named();
        let mut addresses = vec![None; named.len()];
        // Without the service nobody is reached: the connection is about to be cut.
        if let Some(service) = view.services.get(&self.service) {
            let somebody: Vec<usize> = (0..named.len()).filter(|at| named[*at].is_somebody()).collect();
            let brokers: Vec<(&str, i32)> =
                somebody.iter().map(|at| (named[*at].host.as_str(), named[*at].port)).collect();
            let places = self.shared.kafka.places(service, &brokers).await;
            for (at, place) in somebody.into_iter().zip(places) {
                addresses[at] = place.and_then(|place| broker_address(self.seen, place));
            }
        }
        Ok(reading.write(&addresses))
    }
}

/// The connection ends with these words in the audit.
fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn lock(talk: &Mutex<Talk>) -> MutexGuard<'_, Talk> {
    talk.lock().unwrap_or_else(PoisonError::into_inner)
}
