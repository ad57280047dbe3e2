//! Asks gateways for their brief facts, and keeps the answers for some seconds.
//!
//! Each open console asks every few seconds. However many there are, a gateway is asked once at a time, and a bounded number of
//! gateways at the same time. Only the digest of an answer is kept: paths and the state of the copy.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use causeway_api::management::{EdgeCacheFacts, GatewayFacts, GatewayPath, UnansweredGateway};
use causeway_api::sync::MutexExt;
use causeway_gateway::diagnose::Question;
use futures_util::{StreamExt, stream};
use http::StatusCode;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::CloudActions;
use crate::bootstrap::CLOUD;

/// An answer of this age is given again. With a console open on the map, a gateway with 64 peers sends some 16 KB as often.
const FRESH: Duration = Duration::from_secs(10);
/// A gateway that leaves a question open is left alone for this time, so that the questions of a call reach those that answer.
const SILENT: Duration = Duration::from_secs(30);
/// Gateways of one call; a console asks for those in view.
pub const GATEWAYS_MAX: usize = 200;
/// Questions of this replica that are under way at the same time.
const AT_ONCE: usize = 32;
/// Answers come from memory: a gateway that takes longer has a bad link.
const GATEWAY_DEADLINE: Duration = Duration::from_secs(5);
/// Shorter than a console waits for an answer.
const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// Peers of one gateway: a community has at most as many.
const PEERS_MAX: usize = 1_024;
/// Characters of a text of a gateway.
const TEXT_MAX: usize = 200;
/// Gateways whose answers are kept.
const KEPT_MAX: usize = 2_000;

/// The digest of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GatewayAnswer {
    pub paths: Vec<GatewayPath>,
    pub cache: Option<EdgeCacheFacts>,
}

impl GatewayAnswer {
    /// A peer without networks and traffic, as the cloud is for gateways that only ask it for their address, is no path.
    fn new(gateway: &str, facts: GatewayFacts) -> GatewayAnswer {
        let peers = facts.tunnel.map(|tunnel| tunnel.peers).unwrap_or_default().into_iter();
        let paths = peers
            .filter(|(_, peer)| peer.carries_networks)
            .take(PEERS_MAX)
            .map(|(name, peer)| shortened(GatewayPath::new(gateway, name, peer)));
        GatewayAnswer { paths: paths.collect(), cache: facts.role.and_then(|role| role.kubernetes) }
    }
}

/// Cuts what a gateway says to a length that a table has room for.
fn shortened(mut path: GatewayPath) -> GatewayPath {
    let texts = [&mut path.endpoint, &mut path.relay, &mut path.not_direct, &mut path.last_handshake];
    for text in texts.into_iter().flatten().chain([&mut path.path]) {
        if let Some((end, _)) = text.char_indices().nth(TEXT_MAX) {
            text.truncate(end);
        }
    }
    path
}

/// An answer, and the time until which it is given again.
type KeptAnswer = Option<(Instant, Result<Arc<GatewayAnswer>, String>)>;

/// The last answers of gateways.
pub struct GatewayAnswers {
    /// A slot is locked while its gateway is asked: callers meanwhile wait for the same answer.
    slots: Mutex<HashMap<String, Arc<AsyncMutex<KeptAnswer>>>>,
    questions: Semaphore,
}

impl Default for GatewayAnswers {
    fn default() -> GatewayAnswers {
        GatewayAnswers { slots: Mutex::default(), questions: Semaphore::new(AT_ONCE) }
    }
}

impl GatewayAnswers {
    /// Returns the last answer, or the one that `ask` gets.
    async fn of(
        &self,
        gateway: &str,
        ask: impl Future<Output = Result<GatewayAnswer, String>>,
    ) -> Result<Arc<GatewayAnswer>, String> {
        let slot = self.slot(gateway);
        let mut kept = slot.lock().await;
        if let Some((until, answer)) = &*kept
            && Instant::now() < *until
        {
            return answer.clone();
        }
        // The semaphore is never closed.
        let _permit = self.questions.acquire().await.map_err(|error| error.to_string())?;
        let asked = Instant::now();
        let answer = ask.await.map(Arc::new);
        let is_silent = answer.is_err() && asked.elapsed() >= GATEWAY_DEADLINE;
        let valid_for = if is_silent { SILENT } else { FRESH };
        *kept = Some((Instant::now() + valid_for, answer.clone()));
        answer
    }

    fn slot(&self, gateway: &str) -> Arc<AsyncMutex<KeptAnswer>> {
        let mut slots = self.slots.lock_ignoring_poison();
        if slots.len() >= KEPT_MAX && !slots.contains_key(gateway) {
            // One that is locked is in use, so it is fresh in a moment.
            slots.retain(|_, slot| {
                slot.try_lock()
                    .map_or(true, |kept| kept.as_ref().is_some_and(|(until, _)| Instant::now() < *until))
            });
        }
        slots.entry(gateway.to_owned()).or_default().clone()
    }
}

/// The answers of several gateways.
#[derive(Default)]
pub struct AskedGateways {
    pub answers: Vec<(String, Arc<GatewayAnswer>)>,
    pub unanswered: Vec<UnansweredGateway>,
    /// Gateways that were too many to be asked.
    pub not_asked: usize,
}

impl CloudActions {
    /// Asks these gateways, in this order.
    pub(super) async fn ask_gateways(&self, gateways: Vec<String>) -> AskedGateways {
        let ends_at = Instant::now() + CALL_DEADLINE;
        let mut asked =
            AskedGateways { not_asked: gateways.len().saturating_sub(GATEWAYS_MAX), ..Default::default() };
        let answers = stream::iter(gateways.into_iter().take(GATEWAYS_MAX)).map(|gateway| async move {
            let answer = self.answers.of(&gateway, self.ask_brief(&gateway));
            let late = || Err("no answer yet".to_owned());
            let answer = timeout_at(ends_at, answer).await.unwrap_or_else(|_| late());
            (gateway, answer)
        });
        let mut answers = answers.buffered(AT_ONCE);
        while let Some((gateway, answer)) = answers.next().await {
            match answer {
                Ok(answer) => asked.answers.push((gateway, answer)),
                Err(reason) => asked.unanswered.push(UnansweredGateway { gateway, reason }),
            }
        }
        asked
    }

    async fn ask_brief(&self, gateway: &str) -> Result<GatewayAnswer, String> {
        let facts = if gateway == CLOUD {
            serde_json::to_value(self.gateway.brief_facts()).map_err(|error| error.to_string())?
        } else {
            let ask = |question: Question| self.ask_gateway(gateway, question.header(""), GATEWAY_DEADLINE);
            match ask(Question::Brief).await {
                // A gateway of an older version does not know the question.
                Err(refusal) if refusal.code == StatusCode::BAD_GATEWAY => ask(Question::Facts).await,
                answer => answer,
            }
            .map_err(|refusal| refusal.message)?
        };
        let facts =
            serde_json::from_value(facts).map_err(|error| format!("its answer cannot be read: {error}"))?;
        Ok(GatewayAnswer::new(gateway, facts))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_gateway_is_asked_once_however_many_want_its_answer() {
        let (answers, asked) = (GatewayAnswers::default(), AtomicUsize::new(0));
        let ask = async || {
            let question = async {
                asked.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(GatewayAnswer::default())
            };
            answers.of("oslo", question).await
        };
        let both = tokio::join!(ask(), ask());
        assert!(both.0.is_ok() && both.1.is_ok());
        ask().await.unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        tokio::time::advance(FRESH).await;
        ask().await.unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 2, "an old answer is not given again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_kept_as_an_answer_is() {
        let answers = GatewayAnswers::default();
        let refused = answers.of("oslo", async { Err("away".to_owned()) }).await;
        let again = answers.of("oslo", async { Ok(GatewayAnswer::default()) }).await;
        assert_eq!((refused, again), (Err("away".to_owned()), Err("away".to_owned())));
        tokio::time::advance(FRESH).await;
        assert!(answers.of("oslo", async { Ok(GatewayAnswer::default()) }).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_gateway_that_leaves_questions_open_is_left_alone_for_longer() {
        let answers = GatewayAnswers::default();
        let silent = async {
            tokio::time::sleep(GATEWAY_DEADLINE).await;
            Err("no answer".to_owned())
        };
        assert!(answers.of("oslo", silent).await.is_err());
        let answer = async || answers.of("oslo", async { Ok(GatewayAnswer::default()) }).await;
        tokio::time::advance(FRESH).await;
        assert!(answer().await.is_err());
        tokio::time::advance(SILENT).await;
        assert!(answer().await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn old_answers_are_forgotten() {
        let answers = GatewayAnswers::default();
        for number in 0..KEPT_MAX {
            answers.of(&format!("g{number}"), async { Ok(GatewayAnswer::default()) }).await.unwrap();
        }
        tokio::time::advance(FRESH).await;
        answers.of("one more", async { Ok(GatewayAnswer::default()) }).await.unwrap();
        assert_eq!(answers.slots.lock().unwrap().len(), 1);
    }

    #[test]
    fn peers_with_networks_are_paths() {
        let facts = json!({
            "role": {"kubernetes": {"objects": 4}},
            "tunnel": {"peers": {
                "cloud": {"path": "direct", "carriesNetworks": false},
                "rome-1": {"path": "channel", "rttUs": 12_340, "notDirect": "none of 3 addresses answers", "sent": {"packets": 1, "bytes": 84}},
            }},
        });
        let answer = GatewayAnswer::new("oslo-1", serde_json::from_value(facts).unwrap());
        assert_eq!(answer.cache.map(|cache| cache.objects), Some(4));
        let path = GatewayPath {
            gateway: "oslo-1".into(),
            peer: "rome-1".into(),
            path: "channel".into(),
            rtt_us: Some(12_340),
            not_direct: Some("none of 3 addresses answers".into()),
            sent_bytes: 84,
            ..GatewayPath::default()
        };
        assert_eq!(answer.paths, [path]);
        let older = json!({"role": {"link": {}}, "tunnel": null});
        let answer = GatewayAnswer::new("oslo-1", serde_json::from_value(older).unwrap());
        assert_eq!(answer, GatewayAnswer::default());
    }
}
