//! The figures of gateways at other replicas: asked for when a client reads them, kept for a moment, written
//! nowhere.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use causeway_api::GatewayStats;
use causeway_channel::link::{Link, StreamHeader, StreamPurpose};
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{ASK_DEADLINE, FIGURES};

/// Lifetime of the answers: a client that reads more often gets the same figures again.
const FRESH: std::time::Duration = std::time::Duration::from_millis(1500);
/// The figures of fifty thousand gateways.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

type Figures = HashMap<String, GatewayStats>;

#[derive(Debug, Default)]
pub struct RemoteStats {
    told: Mutex<(Option<Instant>, Figures)>,
    asking: tokio::sync::Mutex<()>,
}

impl RemoteStats {
    pub fn gateway(&self, name: &str) -> Option<GatewayStats> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).1.get(name).cloned()
    }

    /// Asks all other replicas at once, each with a deadline, unless the answers are still fresh.
    pub async fn refresh<F>(&self, others: Vec<(String, String)>, ask: impl Fn((String, String)) -> F)
    where
        F: Future<Output = Option<Figures>>,
    {
        // Callers that come meanwhile wait for the same answers.
        let _asking = self.asking.lock().await;
        let is_fresh = {
            let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            told.0.is_some_and(|at| at.elapsed() < FRESH)
        };
        if is_fresh {
            return;
        }
        let asked = others.into_iter().map(|other| tokio::time::timeout(ASK_DEADLINE, ask(other)));
        let answers = join_all(asked).await.into_iter().flatten().flatten();
        let figures = answers.flatten().collect();
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = (Some(Instant::now()), figures);
    }
}

pub fn encode(figures: Vec<(String, GatewayStats)>) -> Vec<u8> {
    let figures: Figures = figures.into_iter().collect();
    serde_json::to_vec(&figures).expect("names and figures are always JSON")
}

/// Asks one replica.
pub async fn ask(link: &Link) -> io::Result<Figures> {
    let header = StreamHeader::new(StreamPurpose::Api).target(FIGURES);
    let mut stream = link.open_stream(header).await.map_err(io::Error::other)?;
    stream.shutdown().await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    serde_json::from_slice(&answer).map_err(io::Error::other)
}
