//! The stats of gateways at other replicas: asked for when a client reads them, kept for a moment, written
//! nowhere.
//!
//! Answers are kept per replica. A replica that did not answer has no fresh answer: it is asked again by the
//! next reader, and its last answer stays until then.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Mutex;

use causeway_api::GatewayStats;
use causeway_api::sync::MutexExt;
use causeway_channel::link::{Link, StreamHeader, StreamPurpose};
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::{ASK_DEADLINE, STATS_TARGET};

/// Lifetime of the answers: a client that reads more often gets the same stats again.
const FRESH: std::time::Duration = std::time::Duration::from_millis(1500);
/// The stats of fifty thousand gateways.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

type StatsByGateway = HashMap<String, GatewayStats>;

#[derive(Debug, Default)]
pub struct RemoteStats {
    answers: Mutex<BTreeMap<String, Answer>>,
    /// When the replicas were asked last.
    asking: tokio::sync::Mutex<Option<Instant>>,
}

/// The last answer of a replica.
#[derive(Debug)]
struct Answer {
    at: Instant,
    stats: StatsByGateway,
}

impl RemoteStats {
    /// Returns the stats of a gateway as its replica told them last.
    pub fn gateway(&self, replica: &str, name: &str) -> Option<GatewayStats> {
        self.lock().get(replica)?.stats.get(name).cloned()
    }

    /// Asks the other replicas at once, each with a deadline, unless their answers are still fresh.
    pub async fn refresh<F>(&self, others: Vec<(String, String)>, ask: impl Fn((String, String)) -> F)
    where
        F: Future<Output = Option<StatsByGateway>>,
    {
        let arrived = Instant::now();
        let mut asked_at = self.asking.lock().await;
        if asked_at.is_some_and(|at| at >= arrived) {
            // Another caller asked while this one waited: its answers are as new.
            return;
        }
        *asked_at = Some(Instant::now());
        let due: Vec<(String, String)> = {
            let mut answers = self.lock();
            answers.retain(|replica, _| others.iter().any(|(other, _)| other == replica));
            let is_fresh =
                |replica: &String| answers.get(replica).is_some_and(|answer| answer.at.elapsed() < FRESH);
            others.into_iter().filter(|(replica, _)| !is_fresh(replica)).collect()
        };
        let asked = due.into_iter().map(|other| async {
            let replica = other.0.clone();
            Some((replica, tokio::time::timeout(ASK_DEADLINE, ask(other)).await.ok()??))
        });
        for (replica, stats) in join_all(asked).await.into_iter().flatten() {
            self.lock().insert(replica, Answer { at: Instant::now(), stats });
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Answer>> {
        self.answers.lock_ignoring_poison()
    }
}

pub fn encode(stats: Vec<(String, GatewayStats)>) -> Vec<u8> {
    let stats: StatsByGateway = stats.into_iter().collect();
    serde_json::to_vec(&stats).expect("names and stats are always JSON")
}

/// Asks one replica.
pub async fn ask(link: &Link) -> io::Result<StatsByGateway> {
    let header = StreamHeader::new(StreamPurpose::Api).target(STATS_TARGET);
    let mut stream = link.open_stream(header).await.map_err(io::Error::other)?;
    stream.shutdown().await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    serde_json::from_slice(&answer).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    fn other_replicas(names: &[&str]) -> Vec<(String, String)> {
        names.iter().map(|name| ((*name).to_owned(), String::new())).collect()
    }

    fn answer_with(name: &str) -> StatsByGateway {
        [(name.to_owned(), GatewayStats { connected: true, ..GatewayStats::default() })].into()
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_did_not_answer_is_asked_again_and_one_that_did_is_not() {
        let stats = RemoteStats::default();
        let (silent, quick) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let ask = |(replica, _): (String, String)| {
            let (silent, quick) = (&silent, &quick);
            async move {
                match replica.as_str() {
                    "quick" => drop(quick.fetch_add(1, Ordering::Relaxed)),
                    _ if silent.fetch_add(1, Ordering::Relaxed) == 0 => std::future::pending().await,
                    _ => {}
                }
                Some(answer_with(&format!("of-{replica}")))
            }
        };
        stats.refresh(other_replicas(&["quick", "silent"]), ask).await;
        assert!(stats.gateway("quick", "of-quick").is_some());
        assert!(stats.gateway("silent", "of-silent").is_none());
        // The answer that is there is not fresh any more after the deadline of the other; both are asked.
        stats.refresh(other_replicas(&["quick", "silent"]), ask).await;
        assert!(stats.gateway("silent", "of-silent").is_some(), "a gap is no answer");
        let before = quick.load(Ordering::Relaxed) + silent.load(Ordering::Relaxed);
        stats.refresh(other_replicas(&["quick", "silent"]), ask).await;
        assert_eq!(quick.load(Ordering::Relaxed) + silent.load(Ordering::Relaxed), before, "fresh answers");
        tokio::time::advance(FRESH).await;
        stats.refresh(other_replicas(&["quick"]), ask).await;
        assert!(stats.gateway("silent", "of-silent").is_none(), "the replica is gone");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_question_keeps_the_last_answer_and_delays_each_reader_once() {
        let stats = RemoteStats::default();
        stats.refresh(other_replicas(&["a"]), |_| async { Some(answer_with("g")) }).await;
        tokio::time::advance(FRESH).await;
        let begun = Instant::now();
        let silent = || stats.refresh(other_replicas(&["a"]), |_| std::future::pending());
        futures_util::future::join_all((0..50).map(|_| silent())).await;
        assert!(begun.elapsed() <= ASK_DEADLINE + Duration::from_millis(10), "{:?}", begun.elapsed());
        assert!(stats.gateway("a", "g").is_some());
    }
}
