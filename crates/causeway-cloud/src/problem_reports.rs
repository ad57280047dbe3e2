//! Writes what gateways cannot do into objects: what they do not listen on into the EGateway, which backends do not answer
//! them into the EService.
//!
//! The cloud's own gateway says it here, edges say it in their status records. Written only when it changes. Of several
//! replicas of the cloud each writes its own part of what their gateway cannot do, and takes out the parts of those that are gone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use causeway_api::conditions::BACKENDS_ANSWER;
use causeway_api::meta::{Condition, ConditionStatus, set_condition};
use causeway_api::{Kind, Object};
use causeway_apiserver::{Registry, RegistryError};
use causeway_gateway::problems::{BackendOutage, ProblemReporter, Problems};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::bootstrap::CLOUD;
use crate::reconcile::MANAGER;
use crate::replicas::SessionDirectory;

/// The condition of an EGateway about what it listens on.
pub const LISTENING: &str = "Listening";
/// A status comes from an edge: no more of it than people read.
const MESSAGE_CHARS_MAX: usize = 1024;
/// What one replica of several says of itself.
const PART_CHARS_MAX: usize = 300;
/// Between the parts of replicas.
const AND: &str = " | ";
/// Between the cloud's gateway and the replica that speaks for it.
const REPLICA: &str = ", replica ";
const REACHES: &str = " reaches ";
const LEAVES_OUT: &str = " leaves out ";
/// How often a replica looks whether others have gone, or have written over its part.
const LOOK: Duration = Duration::from_secs(15);

/// Status, reason and message of a condition.
type Said = (ConditionStatus, &'static str, String);

/// What a gateway has said, and where its certificate says it stands.
struct News {
    site: String,
    told: Problems,
}

/// What gateways have said and nobody has written yet. Bounded by the gateways there are.
#[derive(Default)]
pub struct ProblemInbox {
    news: Mutex<HashMap<String, News>>,
    wake: Notify,
}

impl ProblemInbox {
    pub fn tell(&self, site: &str, gateway: &str, told: Problems) {
        let news = News { site: site.to_owned(), told };
        self.news.lock().unwrap_or_else(PoisonError::into_inner).insert(gateway.to_owned(), news);
        self.wake.notify_one();
    }

    /// What a status record of an edge says about it, if anything.
    pub fn tell_status(&self, site: &str, gateway: &str, status: &Value) {
        if status.get("regrets").is_none() {
            return;
        }
        match serde_json::from_value(status.clone()) {
            Ok(told) => self.tell(site, gateway, told),
            Err(error) => tracing::warn!(gateway, %error, "the report of a gateway cannot be read"),
        }
    }

    fn take(&self) -> HashMap<String, News> {
        std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The loop that writes.
pub struct ProblemWriter {
    board: Arc<ProblemInbox>,
    pen: ConditionWriter,
    /// Of the cloud's own gateway.
    own: ProblemReporter,
    /// What it said last.
    said: Option<Problems>,
}

impl ProblemWriter {
    pub fn new(board: Arc<ProblemInbox>, pen: ConditionWriter, own: ProblemReporter) -> ProblemWriter {
        ProblemWriter { board, pen, own, said: None }
    }

    pub async fn run(mut self, stop: CancellationToken) {
        // Not a sleep: where edges always have something to say it would never end.
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = look.tick() => {
                    if let Some(said) = self.said.as_ref().filter(|_| self.pen.directory.label().is_some()) {
                        self.pen.repeat(said).await;
                    }
                    continue;
                }
                () = self.board.wake.notified() => {}
                told = self.own.next() => {
                    self.said = Some(told.clone());
                    self.board.tell(CLOUD, CLOUD, told);
                }
            }
            let news = self.board.take();
            for (gateway, news) in &news {
                self.pen.write_listening(gateway, &news.told.regrets).await;
            }
            self.pen.write_backends(&news, Word::New).await;
        }
    }
}

/// Is this the first time that a gateway says it, or does a replica look after what it said?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    New,
    Repeated,
}

/// Writes conditions.
pub struct ConditionWriter {
    pub registry: Arc<Registry>,
    /// Who else speaks for the cloud's gateway.
    pub directory: Arc<SessionDirectory>,
}

impl ConditionWriter {
    /// Says again what this replica of the cloud has said, where others have written over it or are gone.
    async fn repeat(&self, told: &Problems) {
        self.write_listening(CLOUD, &told.regrets).await;
        let news = News { site: CLOUD.to_owned(), told: told.clone() };
        self.write_backends(&HashMap::from([(CLOUD.to_owned(), news)]), Word::Repeated).await;
    }

    async fn write_listening(&self, gateway: &str, regrets: &[String]) {
        let own = self.directory.label().filter(|_| gateway == CLOUD);
        let others = self.directory.labels_of_others();
        let say = |before: Option<&Condition>| match &own {
            Some(own) => joined(before, own, regrets, &others),
            None => listening(regrets),
        };
        self.write(Kind::EGateway, gateway, LISTENING, say).await;
    }

    /// A gateway speaks only of services of its own site.
    async fn write_backends(&self, news: &HashMap<String, News>, word: Word) {
        if news.is_empty() {
            return;
        }
        let Ok((services, _)) = self.registry.objects(Kind::EService).await else { return };
        let others = self.directory.labels_of_others();
        for loaded in services {
            let Object::EService(service) = &loaded.object else { continue };
            let name = &service.metadata.name;
            for (gateway, news) in news.iter().filter(|(_, news)| news.site == service.e_site_name) {
                let before = service.status.condition(BACKENDS_ANSWER);
                let own = self.directory.label().filter(|_| gateway == CLOUD);
                let speaker = Speaker { gateway, replica: own.as_deref() };
                let outage = news.told.backends.get(name);
                if let Some(said) = backends(before, speaker, &others, outage, word) {
                    self.write(Kind::EService, name, BACKENDS_ANSWER, |_| said.clone()).await;
                }
            }
        }
    }

    /// `say` is given what stands there, and asked again when somebody else was faster.
    async fn write(
        &self,
        kind: Kind,
        name: &str,
        about: &'static str,
        say: impl Fn(Option<&Condition>) -> Said,
    ) {
        let now = self.registry.now();
        let edit = |object: &mut Object| {
            let generation = object.metadata().generation;
            let (status, reason, message) = say(object.status().condition(about));
            let conditions = &mut object.status_mut().conditions;
            set_condition(conditions, about, status, reason, &message, now, generation);
        };
        // A store that cannot be written says so elsewhere; the next change comes by again.
        if let Err(error) = self.registry.edit_status(MANAGER, kind, name, edit).await
            && !matches!(error, RegistryError::NotFound(_))
        {
            let (kind, reason) = (kind.name(), error.to_string());
            tracing::warn!(kind, name, about, reason, "the report of a gateway cannot be written");
        }
    }
}

fn listening(regrets: &[String]) -> Said {
    let reason = if regrets.is_empty() { "Listening" } else { "NotListening" };
    (regrets.is_empty().into(), reason, bounded(&regrets.join("; ")))
}

/// What the replicas of the cloud say together: those that listen on everything say nothing. What stands there is read again for
/// the parts of the others, as long as they are alive.
fn joined(before: Option<&Condition>, own: &str, regrets: &[String], others: &BTreeSet<String>) -> Said {
    let mut parts: BTreeMap<String, String> = before.map(|before| parts(&before.message)).unwrap_or_default();
    parts.retain(|replica, _| others.contains(replica));
    if !regrets.is_empty() {
        let text: String =
            bounded(&regrets.join("; ")).replace('|', "/").chars().take(PART_CHARS_MAX).collect();
        parts.insert(own.to_owned(), text);
    }
    let reason = if parts.is_empty() { "Listening" } else { "NotListening" };
    let told: Vec<String> =
        parts.iter().map(|(replica, text)| format!("replica {replica}: {text}")).collect();
    (parts.is_empty().into(), reason, told.join(AND))
}

fn parts(message: &str) -> BTreeMap<String, String> {
    let part = |part: &str| {
        let (replica, text) = part.strip_prefix("replica ")?.split_once(": ")?;
        Some((replica.to_owned(), text.to_owned()))
    };
    message.split(AND).filter_map(part).collect()
}

/// Who says something of backends: a gateway, or one of the replicas that are the cloud's.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Speaker<'a> {
    gateway: &'a str,
    replica: Option<&'a str>,
}

impl<'a> Speaker<'a> {
    /// Of a message that `backends` made.
    fn of(message: &'a str) -> Option<Speaker<'a>> {
        let said = message.split(';').next()?.strip_prefix("gateway ")?;
        let (speaker, _) = said.split_once(REACHES).or_else(|| said.split_once(LEAVES_OUT))?;
        Some(match speaker.split_once(REPLICA) {
            Some((gateway, replica)) => Speaker { gateway, replica: Some(replica) },
            None => Speaker { gateway: speaker, replica: None },
        })
    }
}

impl fmt::Display for Speaker<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "gateway {}", self.gateway)?;
        self.replica.map_or(Ok(()), |replica| write!(formatter, "{REPLICA}{replica}"))
    }
}

/// What to say now. None: nothing has changed. Of several gateways at a site, and of several replicas of the cloud's, the last
/// to see an outage is believed, and only it can take that back; for a replica that is gone another does.
fn backends(
    before: Option<&Condition>,
    speaker: Speaker<'_>,
    others: &BTreeSet<String>,
    outage: Option<&BackendOutage>,
    word: Word,
) -> Option<Said> {
    let said_by = before.and_then(|before| Speaker::of(&before.message));
    let is_by_another = said_by.is_some_and(|said_by| {
        let lives = |replica| Some(replica) != speaker.replica && others.contains(replica);
        said_by.gateway != speaker.gateway || said_by.replica.is_some_and(lives)
    });
    match outage {
        // Two who see the same would write over each other for ever.
        Some(_) if word == Word::Repeated && is_by_another => None,
        Some(BackendOutage { up: 0, why, denied, .. }) => {
            let message = bounded(&format!("{speaker}{REACHES}no backend; {why}"));
            let reason = if *denied { "BackendDenied" } else { "BackendDown" };
            Some((ConditionStatus::False, reason, message))
        }
        Some(BackendOutage { up, of, why, .. }) => {
            let out = of.saturating_sub(*up);
            let message = bounded(&format!("{speaker}{LEAVES_OUT}{out} of {of} backends; {why}"));
            Some((ConditionStatus::True, "BackendsLeftOut", message))
        }
        None if said_by.is_none() || is_by_another => None,
        None => Some((ConditionStatus::True, "BackendsAnswer", String::new())),
    }
}

fn bounded(message: &str) -> String {
    message.chars().filter(|letter| !letter.is_control()).take(MESSAGE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use causeway_api::Time;

    use super::*;

    #[test]
    fn an_outage_is_told_once_and_taken_back_by_who_told_it() {
        let outage = |up| BackendOutage { up, of: 3, why: "10.0.0.5:80: refused".into(), denied: false };
        let condition = |(status, reason, message): Said| Condition {
            kind: BACKENDS_ANSWER.into(),
            status,
            observed_generation: 1,
            last_transition_time: Time::from_second(0),
            reason: reason.into(),
            message,
        };
        let none = BTreeSet::new();
        let gateway = |gateway| Speaker { gateway, replica: None };
        let say = |before: Option<&Condition>, speaker, outage: Option<&BackendOutage>| {
            backends(before, speaker, &none, outage, Word::New)
        };
        let (a, b) = (gateway("a"), gateway("b"));
        assert_eq!(say(None, a, None), None, "nobody has anything to say");
        let down = say(None, a, Some(&outage(0))).unwrap();
        let message = "gateway a reaches no backend; 10.0.0.5:80: refused";
        assert_eq!(down, (ConditionStatus::False, "BackendDown", message.into()));
        let some = say(None, a, Some(&outage(2))).unwrap();
        let message = "gateway a leaves out 1 of 3 backends; 10.0.0.5:80: refused";
        assert_eq!(some, (ConditionStatus::True, "BackendsLeftOut", message.into()));
        let denied = say(None, a, Some(&BackendOutage { denied: true, ..outage(0) })).unwrap();
        assert_eq!((denied.0, denied.1), (ConditionStatus::False, "BackendDenied"));
        let down = condition(down);
        assert_eq!(say(Some(&down), b, None), None, "another gateway has seen none");
        let well = say(Some(&down), a, None).unwrap();
        assert_eq!(well, (ConditionStatus::True, "BackendsAnswer", String::new()));
        assert_eq!(say(Some(&condition(well.clone())), a, None), None);

        let odd = BackendOutage { up: 1, of: 2, why: "the other reaches it".into(), denied: false };
        let odd = condition(say(None, a, Some(&odd)).unwrap());
        assert_eq!(say(Some(&odd), a, None), Some(well.clone()), "whatever the reason says");

        let [x, y] = ["x:1 (aa)", "y:1 (bb)"].map(|label| Speaker { gateway: CLOUD, replica: Some(label) });
        let lives = BTreeSet::from(["x:1 (aa)".to_owned()]);
        let down = condition(say(None, x, Some(&outage(0))).unwrap());
        assert!(down.message.starts_with("gateway cloud, replica x:1 (aa) reaches no backend; "), "{down:?}");
        assert_eq!(backends(Some(&down), y, &lives, None, Word::New), None, "x goes on seeing it");
        assert_eq!(backends(Some(&down), y, &none, None, Word::New), Some(well.clone()), "x is gone");
        let again = |others| backends(Some(&down), y, others, Some(&outage(0)), Word::Repeated);
        assert_eq!(again(&lives), None, "x has said it already");
        assert!(again(&none).unwrap().2.contains("replica y:1"), "x is gone, y still sees it");
        let older = condition(say(None, gateway(CLOUD), Some(&outage(0))).unwrap());
        assert_eq!(
            backends(Some(&older), y, &lives, None, Word::New),
            Some(well),
            "of a version without replicas"
        );
    }

    #[test]
    fn replicas_say_together_what_each_cannot_do() {
        let condition = |(status, reason, message): Said| Condition {
            kind: LISTENING.into(),
            status,
            observed_generation: 1,
            last_transition_time: Time::from_second(0),
            reason: reason.into(),
            message,
        };
        let [a, b] = ["10.0.0.1:7444 (aa)", "[fd00::2]:7444 (bb)"];
        let others = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let port = ["cannot listen: port 53 | taken".to_owned()];
        let both = |before: &Said, own, regrets: &[String], living: &[&str]| {
            joined(Some(&condition(before.clone())), own, regrets, &others(living))
        };
        let said = joined(None, a, &port, &others(&[b]));
        let of_a = "replica 10.0.0.1:7444 (aa): cannot listen: port 53 / taken";
        assert_eq!(said, (ConditionStatus::False, "NotListening", of_a.into()));
        assert_eq!(both(&said, b, &[], &[a]), said, "b is well, and leaves what a said");
        let two = both(&said, b, &["no room".into()], &[a]);
        assert_eq!(two.2, format!("{of_a} | replica [fd00::2]:7444 (bb): no room"));
        assert_eq!(both(&two, a, &port, &[b]), two, "saying it again changes nothing");
        let one = both(&two, a, &[], &[b]);
        assert_eq!(one.2, "replica [fd00::2]:7444 (bb): no room");
        let none = both(&one, a, &[], &[]);
        assert_eq!(none, (ConditionStatus::True, "Listening", String::new()), "b is gone");
        let older = (ConditionStatus::False, "NotListening", "no room".to_owned());
        assert_eq!(
            both(&older, a, &[], &[b]).0,
            ConditionStatus::True,
            "an older replica's words are nobody's"
        );
    }

    #[tokio::test]
    async fn two_replicas_do_not_write_over_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let spec = causeway_store::StoreSpec::Sqlite { path: folder.path().join("store.db") };
        let store = causeway_store::Store::open(spec).await.unwrap();
        let registry = Arc::new(Registry::new(store.clone(), Arc::new(causeway_apiserver::SystemClock)));
        crate::bootstrap::ensure(&registry).await.unwrap();
        let open = async |address: &str| {
            let place =
                crate::replicas::ReplicaAddress { address: address.to_owned(), endpoints: Vec::new() };
            let clock = causeway_channel::Clock::system();
            let directory = SessionDirectory::open(store.clone(), place, clock).await.unwrap();
            ConditionWriter { registry: registry.clone(), directory }
        };
        let said = async || {
            let loaded = registry.object(Kind::EGateway, CLOUD).await.unwrap().unwrap();
            loaded.object.status().condition(LISTENING).cloned().unwrap()
        };
        open("a:1").await.write_listening(CLOUD, &["no room".to_owned()]).await;
        // It has heard of the first.
        let second = open("b:1").await;
        second.write_listening(CLOUD, &[]).await;
        let told = said().await;
        assert_eq!(told.status, ConditionStatus::False);
        assert!(
            told.message.starts_with("replica a:1 (") && told.message.ends_with("): no room"),
            "{told:?}"
        );
        second.write_listening(CLOUD, &["port 53 is taken".to_owned()]).await;
        assert!(said().await.message.contains(" | replica b:1 ("), "{:?}", said().await);
    }

    #[test]
    fn a_report_is_read_and_anything_else_is_not() {
        let board = ProblemInbox::default();
        board.tell_status("x", "a", &serde_json::json!({"started": "now"}));
        board.tell_status("x", "b", &serde_json::json!({"regrets": 7}));
        board.tell_status("x", "c", &serde_json::json!({"regrets": ["no room"]}));
        let backends = serde_json::json!({"web": {"up": 1, "of": 2, "why": "gone"}});
        board.tell_status("x", "d", &serde_json::json!({"regrets": [], "backends": backends}));
        let mut news = board.take();
        assert_eq!(news.len(), 2);
        assert_eq!(news["c"].told.regrets, ["no room"]);
        let outage = BackendOutage { up: 1, of: 2, why: "gone".into(), denied: false };
        assert_eq!(news.remove("d").unwrap().told.backends, [("web".to_owned(), outage)].into());
    }
}
