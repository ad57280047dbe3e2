//! Serves the questions of an edge about the access of its callers, and tells it when an answer changes.
//!
//! A question is held while its answer is "allowed". A denial is told once: the edge asks again when the caller does.

use std::collections::HashMap;
use std::time::Duration;

use causeway_api::Status;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

use super::question::AccessQuestion;
use super::wire::{AccessAsk, DecisionAnswer};
use crate::resource::{ResourceName, SubscriptionScope};
use crate::sync::frames::{self, MessageReader, SyncFrameError};
use crate::upstream::Upstream;
use crate::upstream::cluster::UpstreamIdentity;
use crate::upstream::site_streams::SiteMemory;
use std::sync::Arc;

// A question with a token.
const ASK_BYTES_MAX: usize = 32 << 10;
/// Questions that one stream may hold. An edge that has more sends reviews of its own.
pub const QUESTIONS_MAX: usize = 4_096;
// The longest name of an object in Kubernetes.
const NAME_BYTES_MAX: usize = 253;
// The question itself, and the key and the value of its decision.
const QUESTION_COPIES: usize = 3;
// Questions of one stream that wait for the API server at the same time.
const ASKING_MAX: usize = 16;
// Answers that wait for the stream.
const ANSWERS_MAX: usize = 256;
// A node may be moved to another site.
const RECHECK: Duration = Duration::from_secs(60);

/// Serves a stream until it ends.
pub async fn serve<S>(
    upstream: &Arc<Upstream>,
    site: &str,
    memory: &SiteMemory,
    stream: S,
) -> Result<(), SyncFrameError>
where
    S: AsyncRead + AsyncWrite + Send,
{
    let (recv, mut send) = tokio::io::split(stream);
    let mut reader = MessageReader::limited(recv, ASK_BYTES_MAX, ASK_BYTES_MAX, memory.clone());
    let (answers, mut ready) = mpsc::channel::<DecisionAnswer>(ANSWERS_MAX);
    let mut tasks = JoinSet::new();
    let mut held = HashMap::new();
    let asking = Arc::new(Semaphore::new(ASKING_MAX));
    loop {
        tokio::select! {
            ask = reader.next::<AccessAsk>() => {
                let Some(ask) = ask? else { return Ok(()) };
                if let Some(earlier) = held.remove(&ask.id) {
                    tokio::task::AbortHandle::abort(&earlier);
                }
                if ask.forget {
                    continue;
                }
                if held.len() >= QUESTIONS_MAX {
                    let full = Status::too_many_requests("the stream holds too many questions", 60);
                    frames::write(&mut send, &answer(ask.id, Err(full))).await?;
                    continue;
                }
                let Some(held_memory) = memory.try_take(ask.encoded_len() * QUESTION_COPIES) else {
                    let full = Status::too_many_requests("the questions of the site take too much memory", 60);
                    frames::write(&mut send, &answer(ask.id, Err(full))).await?;
                    continue;
                };
                let (upstream, asking) = (upstream.clone(), asking.clone());
                let question =
                    AskedQuestion { upstream, site: site.to_owned(), ask, asking, _memory: held_memory };
                let id = question.ask.id;
                held.insert(id, tasks.spawn(question.follow(answers.clone())));
            }
            Some(ready) = ready.recv() => {
                if ready.code != 200
                    && let Some(task) = held.remove(&ready.id)
                {
                    // A question with the same number may have come since; a task that is not counted must not go on.
                    tokio::task::AbortHandle::abort(&task);
                }
                frames::write(&mut send, &ready).await?;
            }
            Some(_) = tasks.join_next() => {}
        }
    }
}

fn answer(id: u64, decided: Result<(), Status>) -> DecisionAnswer {
    match decided {
        Ok(()) => DecisionAnswer { id, code: 200, message: String::new() },
        Err(status) => DecisionAnswer { id, code: status.code.into(), message: status.message },
    }
}

struct AskedQuestion {
    upstream: Arc<Upstream>,
    site: String,
    ask: AccessAsk,
    asking: Arc<Semaphore>,
    _memory: OwnedSemaphorePermit,
}

impl AskedQuestion {
    /// Answers, and answers again when the answer changes, until it is not "allowed".
    async fn follow(self, answers: mpsc::Sender<DecisionAnswer>) {
        let mut was_told = false;
        // Held while it is looked at again: an answer in use need not be asked.
        let mut last = None;
        loop {
            let decided = self.decide().await;
            match decided {
                Ok(held) => {
                    let held = last.insert(held);
                    if !was_told && answers.send(answer(self.ask.id, Ok(()))).await.is_err() {
                        return;
                    }
                    was_told = true;
                    let _ = tokio::time::timeout(RECHECK, held.changed()).await;
                }
                // Without an answer the last one stays.
                Err(status) if was_told && !matches!(status.code, 401 | 403) => {
                    tokio::time::sleep(RECHECK).await;
                }
                Err(status) => {
                    let _ = answers.send(answer(self.ask.id, Err(status))).await;
                    return;
                }
            }
        }
    }

    async fn decide(&self) -> Result<super::HeldDecision, Status> {
        let identity = match (self.ask.token.as_str(), self.ask.node.as_str()) {
            ("", "") => return Err(Status::unauthorized("the question names no caller")),
            ("", node) => self.upstream.node_identity(&self.site, node).await?,
            (token, _) => UpstreamIdentity::Token(token.to_owned()),
        };
        let _turn = self.asking.acquire().await;
        self.upstream.access.check(&self.site, &identity, &question(&self.ask)?).await
    }
}

/// The question of a message; 400 when it is none.
pub fn question(ask: &AccessAsk) -> Result<AccessQuestion, Status> {
    let verb = AccessQuestion::reading_verb(&ask.verb);
    let scope = SubscriptionScope {
        namespace: ask.namespace.clone(),
        field_selector: ask.field_selector.clone(),
        // Questions have no version.
        ..SubscriptionScope::all(ResourceName::new(&ask.group, "v1", &ask.plural))
    };
    let is_valid = scope.is_valid() && ask.name.len() <= NAME_BYTES_MAX;
    let (Some(verb), true) = (verb, is_valid) else {
        return Err(Status::bad_request("the question names no verb that reads, or no resource"));
    };
    Ok(AccessQuestion {
        verb,
        group: ask.group.clone(),
        plural: ask.plural.clone(),
        namespace: ask.namespace.clone(),
        name: ask.name.clone(),
        field_selector: ask.field_selector.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_questions_of_a_site_take_bounded_memory() {
        let (upstream, _) = Upstream::for_tests().await;
        let (near, far) = tokio::io::duplex(64 << 10);
        let memory = SiteMemory::new(64);
        let served = memory.clone();
        let serving = tokio::spawn(async move {
            serve(&upstream, "oslo", &served, far).await.map_err(|error| error.to_string())
        });
        let (recv, mut send) = tokio::io::split(near);
        let mut reader = MessageReader::new(recv, 1 << 20);
        // The cluster cannot be reached, and the first question waits until RBAC objects are known or not: the questions are held meanwhile.
        let token = "t".repeat(10 << 10);
        for id in 1..=4 {
            let (verb, plural) = ("list".into(), "pods".into());
            let ask = AccessAsk { id, verb, plural, token: token.clone(), ..AccessAsk::default() };
            frames::write(&mut send, &ask).await.unwrap();
        }
        for id in [3, 4] {
            let answer = reader.next::<DecisionAnswer>().await.unwrap().unwrap();
            assert_eq!((answer.id, answer.code), (id, 429));
        }
        serving.abort();
        let _ = serving.await;
        assert!(memory.try_take(64 << 10).is_some(), "the memory is free again");
    }

    #[tokio::test]
    async fn questions_without_a_caller_or_of_another_site_are_refused() {
        let (upstream, _) = Upstream::for_tests().await;
        let (near, far) = tokio::io::duplex(64 << 10);
        let serving = tokio::spawn(async move {
            serve(&upstream, "oslo", &SiteMemory::new(64), far).await.map_err(|error| error.to_string())
        });
        let (recv, mut send) = tokio::io::split(near);
        let mut reader = MessageReader::new(recv, 1 << 20);
        let mut check = async |id: u64, node: &str, verb: &str, expected: u32| {
            let ask = AccessAsk {
                id,
                verb: verb.into(),
                plural: "pods".into(),
                node: node.into(),
                ..AccessAsk::default()
            };
            frames::write(&mut send, &ask).await.unwrap();
            let answer = reader.next::<DecisionAnswer>().await.unwrap().unwrap();
            assert_eq!((answer.id, answer.code), (id, expected), "{node} {verb}");
        };
        check(1, "", "list", 401).await;
        check(2, "n2", "list", 403).await;
        check(3, "n1", "delete", 400).await;
        // The cluster of this test cannot be reached.
        check(4, "n1", "list", 503).await;
        drop((send, reader));
        assert_eq!(serving.await.unwrap(), Ok(()));
    }
}
