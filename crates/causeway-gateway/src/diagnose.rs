//! Answers the questions of `causeway doctor` and of the console: what this gateway cannot do, which paths its packets take, and
//! whether the way to a service works now.
//!
//! Questions arrive as streams of purpose `Diagnose`, from the cloud or, about backends, from a gateway to whose site the
//! service is exposed; the cloud's own gateway is asked directly. Answers are JSON. Nothing is cached: the firewall, the
//! routes and the backends are examined for each question. The asking side interprets the answer. Questions of other sites
//! are limited in rate and recorded in the audit, and their answers contain no addresses of this site.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use causeway_channel::link::{RecvStream, ResetCode, Stream, StreamHeader, StreamPurpose};
use causeway_daemon::sync::MutexExt;
use causeway_netmap::{NetmapView, PolicyName, ServiceEntry, ServiceName, SiteName};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::audit::ConnectionEnd;
use crate::connection_record::{ConnectionRecord, CrossingDirection};
use crate::dial::Denied;
use crate::gateway::Gateway;
use crate::live::AccessRequest;
use crate::peers::PeerError;
use crate::policy::PolicyRefusal;
use crate::problems;
use crate::proxy::backends::examine::{Examined, Outcome};
use crate::proxy::listeners::ListenerProblem;
use crate::tun::TunnelState;

/// The site of the cloud itself, which may ask every question.
const CLOUD: &str = "cloud";
/// An answer is a few hundred bytes for each backend.
pub const ANSWER_BYTES_MAX: u64 = 256 * 1024;
/// Questions of the cloud that are answered at the same time; more are refused.
pub const QUESTIONS_MAX: usize = 16;
/// The same for all other sites together, so that they cannot keep the cloud's operators out.
const SITE_QUESTIONS_MAX: usize = 8;
/// Questions of one other site that are answered in a burst; `causeway doctor` asks once for each service of a site.
const SITE_BURST: u32 = 32;
/// After the burst, one question of a site is answered in each interval. Each one connects to up to 64 backends.
const SITE_INTERVAL: Duration = Duration::from_secs(1);
/// Sites whose rate is kept. A site is forgotten when its burst is available again.
const SITES_MAX: usize = 4096;
/// Presences with a problem that are named.
const PRESENCES_MAX: usize = 100;
/// Time limit for an answer of another gateway: longer than all backends may take there.
const FAR: Duration = Duration::from_secs(8);

/// A question, encoded in the details of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    /// Asks for the limitations of this gateway. Only the cloud may ask.
    Facts,
    /// Asks for the facts that are known without an examination: netmap, tunnel and role. Only the cloud may ask. An older gateway
    /// refuses it as malformed.
    Brief,
    /// Asks whether the path from here to the backends of a service works. Only the cloud may ask.
    Path,
    /// Asks whether the backends of a service at this site respond.
    Backends,
}

impl Question {
    fn word(self) -> &'static str {
        match self {
            Question::Facts => "facts",
            Question::Brief => "brief",
            Question::Path => "path",
            Question::Backends => "backends",
        }
    }

    fn of(details: &[u8]) -> Option<Question> {
        [Question::Facts, Question::Brief, Question::Path, Question::Backends]
            .into_iter()
            .find(|question| question.word().as_bytes() == details)
    }

    /// Returns the header of a stream that asks it. `service` is empty for facts.
    pub fn header(self, service: &str) -> StreamHeader {
        StreamHeader::new(StreamPurpose::Diagnose).target(service).details(self.word())
    }
}

/// Returns whether the cloud forwards such a stream from one gateway to another. The facts of a gateway are
/// for the cloud alone.
pub fn is_carried(header: &StreamHeader) -> bool {
    Question::of(&header.details) == Some(Question::Backends)
}

/// The facts of a gateway.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Facts {
    /// The netmap in force.
    pub generation: String,
    /// Problems with DNS, with presences as a whole, and with open files.
    pub problems: Vec<String>,
    /// Services whose presence does not listen here, with the reason.
    pub presences: BTreeMap<String, String>,
    /// Problems that do not affect this gateway, but keep other hosts of its site away from presences.
    pub hints: Vec<String>,
    /// Facts of the role: the link of an edge, its certificate, its disk.
    pub role: Value,
    /// Planes that the configuration switches off: `services`, `layer3`. Absent from an older gateway.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub switched_off: Vec<String>,
    /// The state of the tunnel. None: switched off, or an older gateway.
    pub tunnel: Option<TunnelState>,
    /// The connections, UDP sessions and requests that are open now. None: an older gateway.
    pub connections: Option<OpenConnections>,
}

/// Numbers of open connections, UDP sessions and requests.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct OpenConnections {
    /// From other sites to services of this one.
    pub inbound: usize,
    /// From clients here.
    pub outbound: usize,
}

/// The path from a gateway to the backends of a service.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PathFacts {
    /// Why clients at this gateway cannot use the presence. None: it listens, or the service runs here.
    pub presence_problem: Option<String>,
    /// Why the gateway at the service's site was not reached. None: it answered.
    pub far_problem: Option<String>,
    /// Round trip from this gateway to the backends.
    pub milliseconds: f64,
    pub backends: Vec<Examined>,
}

/// State of the diagnostics of one gateway.
pub struct Diagnostics {
    role: Option<RoleFacts>,
    /// Permits for questions that are being answered: of the cloud, and of other sites.
    questions: Arc<Semaphore>,
    site_questions: Arc<Semaphore>,
    rates: SiteRates,
}

/// Facts that the role adds, without secrets.
pub type RoleFacts = Box<dyn Fn() -> Value + Send + Sync>;

impl Diagnostics {
    pub fn new(role: Option<RoleFacts>) -> Diagnostics {
        Diagnostics {
            role,
            questions: Arc::new(Semaphore::new(QUESTIONS_MAX)),
            site_questions: Arc::new(Semaphore::new(SITE_QUESTIONS_MAX)),
            rates: SiteRates::default(),
        }
    }

    fn role_facts(&self) -> Value {
        self.role.as_ref().map(|facts| facts()).unwrap_or_default()
    }
}

/// Limits the rate of questions of each other site (GCRA: the time at which the burst of a site is available again).
#[derive(Default)]
struct SiteRates {
    full_at: Mutex<HashMap<SiteName, Instant>>,
}

impl SiteRates {
    /// Counts a question. An error: the site has asked too many.
    fn take(&self, site: &SiteName, now: Instant) -> Result<(), PolicyRefusal> {
        let refusal = PolicyRefusal::Full { what: "diagnose questions of one site" };
        let mut sites = self.full_at.lock_ignoring_poison();
        if sites.len() >= SITES_MAX {
            sites.retain(|_, full_at| *full_at > now);
        }
        let full_at = sites.get(site).copied().unwrap_or(now).max(now);
        let has_room = sites.len() < SITES_MAX || sites.contains_key(site);
        if !has_room || full_at - now > SITE_INTERVAL * (SITE_BURST - 1) {
            return Err(refusal);
        }
        sites.insert(site.clone(), full_at + SITE_INTERVAL);
        Ok(())
    }
}

impl Gateway {
    /// Returns the facts of this gateway.
    pub async fn facts(&self) -> Facts {
        let mut hints = Vec::new();
        if let Some(namespace) = self.proxy().namespace() {
            hints = namespace.examine().await;
        }
        let mut listening = self.listening().borrow().clone();
        let of_service =
            |trouble: &mut ListenerProblem| Some((trouble.service.clone()?, trouble.why.clone()));
        let presences = listening.troubles.iter_mut().filter_map(of_service).take(PRESENCES_MAX).collect();
        listening.troubles.retain(|trouble| trouble.service.is_none());
        let neighbours = self.neighbours().borrow().clone();
        let files_max = causeway_daemon::files::max();
        let problems = problems::lines(&self.dns().borrow(), &listening, &neighbours.troubles, files_max);
        let connections = Some(self.open_connections());
        let switched_off = self.switched_off().iter().map(|plane| plane.word().to_owned()).collect();
        Facts { problems, presences, hints, switched_off, connections, ..self.brief_facts() }
    }

    /// Returns the facts that are known without an examination, so that they can be asked for often.
    pub fn brief_facts(&self) -> Facts {
        Facts {
            generation: self.context().view().generation.to_string(),
            role: self.diagnostics().role_facts(),
            tunnel: self.tunnel().map(|tunnel| tunnel.state().borrow().clone()),
            ..Facts::default()
        }
    }

    fn open_connections(&self) -> OpenConnections {
        let mut counted = OpenConnections::default();
        for entry in self.context().live.all() {
            match entry.direction {
                CrossingDirection::Inbound => counted.inbound += 1,
                CrossingDirection::Outbound => counted.outbound += 1,
            }
        }
        counted
    }

    /// Examines the path from here to a service.
    pub async fn path(&self, service: &str) -> PathFacts {
        let (view, name) = (self.context().view(), ServiceName::from(service));
        let begun = Instant::now();
        let mut facts = PathFacts::default();
        if let Some(here) = view.services.get(&name) {
            facts.backends = self.proxy().backends.examine(here).await;
            if !view.presences.contains_key(&name) {
                facts.milliseconds = milliseconds(begun);
                return facts;
            }
        }
        let Some(presence) = view.presences.get(&name) else {
            let generation = &view.generation;
            facts.presence_problem = Some(format!(
                "netmap {generation} of this gateway has no presence of {service}: it is not exposed to this site"
            ));
            return facts;
        };
        facts.presence_problem = self.presence_problem(&name);
        if !view.services.contains_key(&name) {
            match timeout(FAR, self.ask_far(&name, &presence.service_site)).await {
                Ok(Ok(backends)) => facts.backends = backends,
                Ok(Err(why)) => facts.far_problem = Some(why),
                Err(_) => facts.far_problem = Some(format!("no answer within {} s", FAR.as_secs())),
            }
        }
        facts.milliseconds = milliseconds(begun);
        facts
    }

    fn presence_problem(&self, service: &ServiceName) -> Option<String> {
        if self.proxy().options.services_off {
            return Some(Denied::SwitchedOff.to_string());
        }
        if !self.proxy().options.listen {
            return None;
        }
        let listening = self.listening();
        let report = listening.borrow();
        let concerns = |name: &Option<String>| name.as_deref().is_none_or(|name| name == service.as_str());
        let problem = report.troubles.iter().find(|trouble| concerns(&trouble.service));
        problem.map(|trouble| trouble.why.clone())
    }

    /// Asks the gateway at the site of the service, over the path that clients use.
    async fn ask_far(&self, service: &ServiceName, site: &SiteName) -> Result<Vec<Examined>, String> {
        let header = Question::Backends.header(service.as_str()).to(site.as_str(), "");
        let opened = self.context().open_stream(site, header).await;
        let stream = opened.map_err(|error| match error {
            PeerError::Away { why, .. } => why,
            PeerError::Refused { code, .. } => refused(code),
        })?;
        let (mut send, recv) = stream.split();
        // Nothing follows the header.
        let _ = send.shutdown().await;
        let answer = read_answer(recv).await?;
        serde_json::from_value(answer).map_err(|error| format!("its answer cannot be read: {error}"))
    }

    /// Answers one stream. `origin` is the site in the peer's certificate.
    pub(crate) async fn answer(self, origin: SiteName, header: StreamHeader, stream: Stream) {
        let Some(question) = Question::of(&header.details) else {
            return stream.refuse(ResetCode::Malformed);
        };
        if origin.as_str() != CLOUD {
            return match question {
                Question::Backends => self.answer_site(origin, &header.target, stream).await,
                Question::Facts | Question::Brief | Question::Path => stream.refuse(ResetCode::NotAllowed),
            };
        }
        let Ok(_permit) = self.diagnostics().questions.clone().try_acquire_owned() else {
            return stream.refuse(ResetCode::Limit);
        };
        let answer = match question {
            Question::Facts => serde_json::to_vec(&self.facts().await),
            Question::Brief => serde_json::to_vec(&self.brief_facts()),
            Question::Path => serde_json::to_vec(&self.path(&header.target).await),
            Question::Backends => {
                let view = self.context().view();
                let Some(service) = view.services.get(&ServiceName::from(header.target.as_str())) else {
                    return stream.refuse(ResetCode::NoRoute);
                };
                serde_json::to_vec(&self.proxy().backends.examine(service).await)
            }
        };
        let Ok(answer) = answer else { return stream.refuse(ResetCode::Internal) };
        write_answer(stream, &answer).await;
    }

    /// Answers another site's question about the backends of a service, and records it in the audit.
    async fn answer_site(&self, origin: SiteName, target: &str, stream: Stream) {
        let service = ServiceName::from(target);
        let claim = AccessRequest::Reach {
            service: service.clone(),
            origin: origin.clone(),
            subject: String::new(),
            request: None,
        };
        let mut record =
            ConnectionRecord::begin(self.context(), CrossingDirection::Inbound, PROTOCOL, claim, None);
        let refuse = |record: ConnectionRecord, stream: Stream, refusal: &PolicyRefusal| {
            stream.refuse(refusal.code());
            record.refuse(refusal);
        };
        let view = self.context().view();
        let taken = self.diagnostics().rates.take(&origin, Instant::now());
        let (found, policy) = match taken.and_then(|()| exposed_to(&view, &service, &origin)) {
            Ok(found) => found,
            Err(refusal) => return refuse(record, stream, &refusal),
        };
        let Ok(_permit) = self.diagnostics().site_questions.clone().try_acquire_owned() else {
            return refuse(record, stream, &PolicyRefusal::Full { what: "diagnose questions" });
        };
        record.allow_site(policy);
        let examined = without_addresses(self.proxy().backends.examine(found).await);
        match serde_json::to_vec(&examined) {
            Ok(answer) => {
                record.meter().add_received(answer.len());
                write_answer(stream, &answer).await;
                record.end(ConnectionEnd::Done, None);
            }
            Err(error) => {
                stream.refuse(ResetCode::Internal);
                record.end(ConnectionEnd::BackendReset, Some(error.to_string()));
            }
        }
    }
}

/// The name of questions in the audit and the metrics.
const PROTOCOL: &str = "diagnose";

/// Returns the service if it is exposed to the site, and a policy of the exposure.
fn exposed_to<'a>(
    view: &'a NetmapView,
    service: &ServiceName,
    site: &SiteName,
) -> Result<(&'a ServiceEntry, Option<PolicyName>), PolicyRefusal> {
    let found = view.services.get(service);
    let found = found.ok_or_else(|| PolicyRefusal::NoService { service: service.clone() })?;
    let policies = found.policies_for(site);
    let policies =
        policies.ok_or_else(|| PolicyRefusal::NotExposed { service: service.clone(), site: site.clone() })?;
    Ok((found, policies.first().map(|policy| (*policy).clone())))
}

/// Numbers the backends. Details are left out with the addresses: errors and answers of backends name them, too.
fn without_addresses(examined: Vec<Examined>) -> Vec<Examined> {
    let numbered = examined.into_iter().enumerate().map(|(index, examined)| Examined {
        backend: format!("backend {}", index + 1),
        outcome: examined.outcome,
        detail: match examined.outcome {
            Outcome::Answers => "it answers",
            Outcome::Connects => "it accepts connections",
            Outcome::Down => "it cannot be connected to",
            Outcome::Denied => "the configuration of its gateway does not allow to dial it",
            Outcome::Silent => "it accepts connections and does not answer",
            Outcome::OtherProtocol => "it answers in another protocol",
            Outcome::Unwell => "its TLS or its health check fails",
        }
        .to_owned(),
    });
    numbered.collect()
}

/// Time within which the asking side must take an answer. It bounds how long a peer that does not read holds a permit.
const WRITE_MAX: Duration = Duration::from_secs(5);

async fn write_answer(stream: Stream, answer: &[u8]) {
    let (mut send, _) = stream.split();
    let writing = async {
        send.write_all(answer).await?;
        send.shutdown().await
    };
    // The asking side may have closed the stream, or may not read: the answer is lost then.
    let _ = timeout(WRITE_MAX, writing).await;
}

/// Reads the answer on a stream, bounded. For the asking side.
pub async fn read_answer(recv: RecvStream) -> Result<Value, String> {
    let mut bytes = Vec::new();
    let read = recv.take(ANSWER_BYTES_MAX + 1).read_to_end(&mut bytes).await;
    if let Err(error) = read {
        return Err(ResetCode::of(&error).map_or_else(|| error.to_string(), refused));
    }
    if bytes.len() as u64 > ANSWER_BYTES_MAX {
        return Err("its answer is too long".to_owned());
    }
    serde_json::from_slice(&bytes).map_err(|error| format!("its answer cannot be read: {error}"))
}

/// Returns why a question was not answered, as text.
pub fn refused(code: ResetCode) -> String {
    match code {
        ResetCode::Refused => "its version does not answer such questions; update it".to_owned(),
        ResetCode::NoRoute => {
            "no gateway of that site is connected, or it does not know the service yet".to_owned()
        }
        ResetCode::NotAllowed => {
            "the gateway of the service does not know that it is exposed to this site".to_owned()
        }
        ResetCode::Limit => "it is asked too much at this moment".to_owned(),
        other => other.to_string(),
    }
}

fn milliseconds(begun: Instant) -> f64 {
    (begun.elapsed().as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_as_they_are_written() {
        for question in [Question::Facts, Question::Brief, Question::Path, Question::Backends] {
            let header = question.header("web");
            assert_eq!(header.purpose(), Some(StreamPurpose::Diagnose));
            assert_eq!(Question::of(&header.details), Some(question));
            assert_eq!(is_carried(&header), question == Question::Backends, "{question:?}");
        }
        assert_eq!(Question::of(b"secrets"), None);
        assert!(!is_carried(&StreamHeader::new(StreamPurpose::Diagnose)));
    }

    /// A link in memory; the first stream of the first end arrives at the second.
    async fn stream_pair() -> (Stream, Stream) {
        use causeway_channel::link::{LinkLimits, LinkSide};
        use causeway_channel::tcp::{TcpPeer, over};
        let (near, far) = tokio::io::duplex(64 * 1024);
        let (limits, peer) = (
            LinkLimits::default(),
            TcpPeer { remote_address: ([127, 0, 0, 1], 1).into(), certificate: None },
        );
        let asking = over(near, LinkSide::Dialled, &limits, peer.clone());
        let answering = over(far, LinkSide::Accepted, &limits, peer);
        let asked = asking.open_stream(Question::Backends.header("web")).await.unwrap();
        let (_, answered) = answering.accept_stream().await.unwrap();
        // The links live as long as the test.
        std::mem::forget((asking, answering));
        (asked, answered)
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_read_its_answer_holds_no_permit_for_long() {
        let (asked, answered) = stream_pair().await;
        let begun = tokio::time::Instant::now();
        let answer = vec![b' '; 8 << 20];
        timeout(WRITE_MAX * 100, write_answer(answered, &answer)).await.expect("the answer is given up");
        assert!(begun.elapsed() >= WRITE_MAX, "more than the peer's window was sent");
        drop(asked);
    }

    #[test]
    fn a_site_asks_a_burst_and_then_once_in_an_interval() {
        let (rates, now) = (SiteRates::default(), Instant::now());
        let take = |site: &str, at: Instant| rates.take(&site.into(), at).is_ok();
        let burst = (0..100).filter(|_| take("oslo", now)).count();
        assert_eq!(burst, SITE_BURST as usize);
        assert!(take("rome", now), "another site has a rate of its own");
        let later = now + SITE_INTERVAL;
        assert_eq!((take("oslo", later), take("oslo", later)), (true, false));
        for number in 0..2 * SITES_MAX {
            let _ = rates.take(&format!("site-{number}").as_str().into(), now);
        }
        assert_eq!(rates.full_at.lock().unwrap().len(), SITES_MAX, "bounded, and the rest is refused");
        assert!(take("lima", now + SITE_INTERVAL * SITE_BURST), "idle sites are forgotten");
    }
}
