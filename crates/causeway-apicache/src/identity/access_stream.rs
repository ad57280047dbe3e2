//! Asks the cloud about the access of callers on one stream, and is told when an answer changes.
//!
//! While the stream is open, an answer "allowed" counts without being asked again: the cloud watches RBAC objects. When it ends, answers
//! are asked again as callers use them. A cloud that does not know the stream ends it at once; then reviews are sent one by one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use causeway_api::Status;
use causeway_daemon::sync::MutexExt;
use tokio::sync::{mpsc, oneshot, watch};

use super::LocalCaller;
use crate::connector::{BoxedStream, CloudConnector};
use crate::subscriptions::SubscriptionCredential;
use crate::sync::frames::{self, MessageReader, SyncFrameError};
use crate::upstream::ACCESS_TARGET;
use crate::upstream::access::AccessQuestion;
use crate::upstream::access::session::QUESTIONS_MAX;
use crate::upstream::access::wire::{AccessAsk, DecisionAnswer};

/// The caller's key and the text of a question.
pub type GrantKey = (String, String);

/// A handle; clones share the stream.
#[derive(Clone, Default)]
pub struct AccessStream {
    state: Arc<Mutex<StreamState>>,
    /// Counts grants that were removed because the cloud revoked them.
    removals: watch::Sender<u64>,
}

#[derive(Default)]
struct StreamState {
    /// `None`: there is no stream now.
    asks: Option<mpsc::Sender<AccessAsk>>,
    next_id: u64,
    waiting: HashMap<u64, oneshot::Sender<DecisionAnswer>>,
    asked: HashMap<u64, AskedGrant>,
    /// The questions whose answer is "allowed" now.
    allowed: HashMap<GrantKey, u64>,
}

/// A question that the cloud holds for this edge.
#[derive(Clone)]
struct AskedGrant {
    key: GrantKey,
    question: AccessQuestion,
    is_node: bool,
}

/// The answer of the API server to a question about access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessVerdict {
    Allowed,
    Denied,
    /// The API server does not accept the caller's token any more. It says nothing about the rights of the caller.
    TokenEnded,
}

/// A grant that the cloud revoked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RevokedGrant {
    pub key: GrantKey,
    pub question: AccessQuestion,
    /// 403: the caller may not any more. 401: its token ended; another token of the same caller may count.
    pub code: u32,
}

const ASKS_MAX: usize = 256;
/// Questions of callers with tokens; a part is left to nodes.
const TOKEN_QUESTIONS_MAX: usize = QUESTIONS_MAX / 4 * 3;
// One caller with a token may hold a half of what is free, as of subscriptions: a caller that takes its whole share leaves as much to further callers.
const TOKEN_PART_OF_FREE: usize = 2;
// The cloud asks the API server for the first answer.
const ANSWER_WAIT: Duration = Duration::from_secs(3);
const ANSWER_BYTES_MAX: usize = 64 << 10;
// A cloud of an older version ends the stream at once.
const AGAIN: Duration = Duration::from_secs(2);
const UNKNOWN_AGAIN: Duration = Duration::from_secs(300);

impl StreamState {
    /// Returns true if the stream takes another question of the caller with this key.
    fn has_room(&self, caller: &str, is_node: bool) -> bool {
        if is_node {
            return self.asked.len() < QUESTIONS_MAX;
        }
        let of_tokens = || self.asked.values().filter(|asked| !asked.is_node);
        let own = of_tokens().filter(|asked| asked.key.0 == caller).count();
        own < TOKEN_QUESTIONS_MAX.saturating_sub(of_tokens().count()) / TOKEN_PART_OF_FREE
    }
}

impl AccessStream {
    /// Changes when a grant was removed.
    pub fn removals(&self) -> watch::Receiver<u64> {
        self.removals.subscribe()
    }

    /// Notes that a revoked grant is removed from the cache.
    pub fn note_removal(&self) {
        self.removals.send_modify(|count| *count += 1);
    }

    /// Returns true if the cloud said "allowed" on the stream that is open now.
    pub fn is_allowed(&self, key: &GrantKey) -> bool {
        self.lock().allowed.contains_key(key)
    }

    /// Returns true if the stream takes another question of this caller.
    pub fn is_open(&self, caller: &LocalCaller) -> bool {
        let state = self.lock();
        state.asks.is_some() && state.has_room(&caller.key(), caller.node_name().is_some())
    }

    /// Asks the cloud; `None` without an answer of this stream.
    pub async fn ask(
        &self,
        caller: &LocalCaller,
        question: &AccessQuestion,
        key: GrantKey,
    ) -> Option<Result<AccessVerdict, Status>> {
        let (asks, ask, answered) = self.begin(caller, question, key)?;
        let id = ask.id;
        asks.send(ask).await.ok()?;
        let answer = tokio::time::timeout(ANSWER_WAIT, answered).await;
        self.lock().waiting.remove(&id);
        match answer.ok()?.ok()? {
            DecisionAnswer { code: 200, .. } => Some(Ok(AccessVerdict::Allowed)),
            DecisionAnswer { code: 401, .. } => Some(Ok(AccessVerdict::TokenEnded)),
            DecisionAnswer { code: 403, .. } => Some(Ok(AccessVerdict::Denied)),
            DecisionAnswer { code: 400 | 429, .. } => None,
            DecisionAnswer { message, .. } => Some(Err(Status::unavailable(message, 5))),
        }
    }

    fn begin(
        &self,
        caller: &LocalCaller,
        question: &AccessQuestion,
        key: GrantKey,
    ) -> Option<(mpsc::Sender<AccessAsk>, AccessAsk, oneshot::Receiver<DecisionAnswer>)> {
        let mut state = self.lock();
        let is_node = caller.node_name().is_some();
        let asks = state.asks.clone().filter(|_| state.has_room(&key.0, is_node))?;
        let (token, node) = match caller.credential.as_ref()? {
            SubscriptionCredential::Token(token) => (token.clone(), String::new()),
            SubscriptionCredential::Node(node) => (String::new(), node.clone()),
            SubscriptionCredential::Pin => return None,
        };
        state.next_id += 1;
        let id = state.next_id;
        let (answer, answered) = oneshot::channel();
        state.waiting.insert(id, answer);
        state.asked.insert(id, AskedGrant { key, question: question.clone(), is_node });
        let AccessQuestion { verb, group, plural, namespace, name, field_selector } = question.clone();
        let verb = verb.to_owned();
        let ask = AccessAsk {
            id,
            verb,
            group,
            plural,
            namespace,
            name,
            field_selector,
            token,
            node,
            forget: false,
        };
        Some((asks, ask, answered))
    }

    /// Takes an answer. Returns the grant that it revokes, and a question that nothing needs any more.
    fn take(&self, answer: DecisionAnswer) -> (Option<RevokedGrant>, Option<u64>) {
        let mut state = self.lock();
        let Some(AskedGrant { key, question, .. }) = state.asked.get(&answer.id).cloned() else {
            return (None, None);
        };
        let mut spare = None;
        let mut revoked = None;
        if answer.code == 200 {
            // Two reads may have asked at the same time; one question is enough.
            spare = state.allowed.insert(key, answer.id).filter(|earlier| *earlier != answer.id);
            if let Some(earlier) = spare {
                state.asked.remove(&earlier);
            }
        } else {
            state.asked.remove(&answer.id);
            if state.allowed.get(&key) == Some(&answer.id) {
                state.allowed.remove(&key);
                revoked = Some(RevokedGrant { key, question, code: answer.code });
            }
        }
        if let Some(waiting) = state.waiting.remove(&answer.id) {
            let _ = waiting.send(answer);
        }
        (revoked, spare)
    }

    /// Keeps the stream open while there is a link. Runs for ever; dropping the future ends it.
    pub async fn run(&self, connector: &dyn CloudConnector, revoked: &mpsc::Sender<RevokedGrant>) {
        loop {
            connector.connected().await;
            let mut has_answered = false;
            let opened = connector.open(ACCESS_TARGET).await;
            // A stream that cannot be opened says nothing about the version of the cloud.
            let is_unknown = opened.is_ok();
            if let Ok(stream) = opened
                && let Err(error) = self.session(stream, revoked, &mut has_answered).await
            {
                tracing::debug!(
                    error = causeway_api::error_chain(&error),
                    "the stream of access decisions ended"
                );
            }
            *self.lock() = StreamState::default();
            // A new link may lead to another cloud.
            let pause = if has_answered || !is_unknown { AGAIN } else { UNKNOWN_AGAIN };
            let _ = tokio::time::timeout(pause, connector.disconnected()).await;
        }
    }

    async fn session(
        &self,
        stream: BoxedStream,
        revoked: &mpsc::Sender<RevokedGrant>,
        has_answered: &mut bool,
    ) -> Result<(), SyncFrameError> {
        let (recv, mut send) = tokio::io::split(stream);
        let mut reader = MessageReader::new(recv, ANSWER_BYTES_MAX);
        let (asks, mut asked) = mpsc::channel(ASKS_MAX);
        // The first message is answered by every cloud that knows the stream; before that no question waits for it.
        frames::write(&mut send, &AccessAsk::default()).await?;
        loop {
            tokio::select! {
                answer = reader.next::<DecisionAnswer>() => {
                    let Some(answer) = answer? else { return Ok(()) };
                    if !*has_answered {
                        *has_answered = true;
                        self.lock().asks = Some(asks.clone());
                        continue;
                    }
                    let (gone, spare) = self.take(answer);
                    if let Some(gone) = gone {
                        let _ = revoked.send(gone).await;
                    }
                    if let Some(id) = spare {
                        frames::write(&mut send, &AccessAsk { id, forget: true, ..AccessAsk::default() }).await?;
                    }
                }
                Some(ask) = asked.recv() => frames::write(&mut send, &ask).await?,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock_ignoring_poison()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> AccessQuestion {
        AccessQuestion {
            verb: "list",
            group: String::new(),
            plural: "pods".into(),
            namespace: String::new(),
            name: String::new(),
            field_selector: String::new(),
        }
    }

    fn answer(id: u64, code: u32) -> DecisionAnswer {
        DecisionAnswer { id, code, message: String::new() }
    }

    #[tokio::test]
    async fn a_grant_counts_until_the_cloud_takes_it_back() {
        let stream = AccessStream::default();
        let key = ("n1".to_owned(), "list pods".to_owned());
        assert!(stream.begin(&LocalCaller::node("n1"), &question(), key.clone()).is_none(), "no stream");
        let (asks, _asked) = mpsc::channel(8);
        stream.lock().asks = Some(asks);
        let begin = || stream.begin(&LocalCaller::node("n1"), &question(), key.clone()).unwrap();
        let ((_, first, _), (_, second, _)) = (begin(), begin());
        assert_eq!((first.node.as_str(), first.verb.as_str()), ("n1", "list"));
        assert_eq!(stream.take(answer(first.id, 200)), (None, None));
        assert!(stream.is_allowed(&key));
        assert_eq!(stream.take(answer(second.id, 200)), (None, Some(first.id)), "one question is enough");
        assert_eq!(stream.take(answer(first.id, 403)), (None, None), "it is forgotten");
        let revoked = RevokedGrant { key: key.clone(), question: question(), code: 403 };
        assert_eq!(stream.take(answer(second.id, 403)), (Some(revoked), None));
        assert!(!stream.is_allowed(&key) && stream.lock().asked.is_empty());
        let (_, third, _) = begin();
        assert_eq!(stream.take(answer(third.id, 403)), (None, None), "it was never granted");
    }

    #[tokio::test]
    async fn a_caller_with_a_token_leaves_questions_to_others() {
        let stream = AccessStream::default();
        let (asks, _asked) = mpsc::channel(8);
        stream.lock().asks = Some(asks);
        let take_all = |caller: &LocalCaller| {
            let begin = |number: &usize| {
                stream.begin(caller, &question(), (caller.key(), number.to_string())).is_some()
            };
            (0..2 * QUESTIONS_MAX).take_while(begin).count()
        };
        let pod = |name: &str| {
            let user = crate::identity::UserInfo { username: name.into(), ..Default::default() };
            LocalCaller::from_token(user, name)
        };
        assert_eq!(["a", "b", "c"].map(|name| take_all(&pod(name))), [1_024, 683, 455]);
        assert!(!stream.is_open(&pod("a")) && stream.is_open(&pod("d")));
        assert_eq!(take_all(&LocalCaller::node("n1")), 1_934, "the rest, with a part of its own");
    }
}
