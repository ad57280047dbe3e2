//! Answers the questions of `causeway doctor`: what this gateway cannot do, and whether the way to a service works now.
//!
//! Questions come as streams of purpose `Diagnose`, from the cloud or, about backends, from a gateway whose site may use the
//! service; the cloud's own gateway is asked directly. Answers are JSON. Nothing here is cached: the firewall, the routes
//! and the backends are looked at when somebody asks. What an answer means is decided by whoever asked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use causeway_channel::link::{RecvStream, ResetCode, Stream, StreamHeader, StreamPurpose};
use causeway_netmap::{NetmapView, ServiceEntry, ServiceName, SiteName};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::gateway::Gateway;
use crate::peers::PeerError;
use crate::problems;
use crate::proxy::backends::examine::Examined;
use crate::proxy::listeners::ListenerProblem;

/// The site of the cloud itself, which may ask everything.
const CLOUD: &str = "cloud";
/// An answer is a few hundred bytes for each backend.
pub const ANSWER_BYTES_MAX: u64 = 256 * 1024;
/// Questions that are answered at the same time; more are refused.
pub const QUESTIONS_MAX: usize = 16;
/// Presences with a problem that are named.
const PRESENCES_MAX: usize = 100;
/// Longer than all backends may take at the other end.
const FAR: Duration = Duration::from_secs(8);

/// A question, as it stands in the details of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    /// What can this gateway not do? Of the cloud alone.
    Facts,
    /// Does the way from here to the backends of a service work? Of the cloud alone.
    Path,
    /// Do the backends here of a service answer?
    Backends,
}

impl Question {
    fn word(self) -> &'static str {
        match self {
            Question::Facts => "facts",
            Question::Path => "path",
            Question::Backends => "backends",
        }
    }

    fn of(details: &[u8]) -> Option<Question> {
        [Question::Facts, Question::Path, Question::Backends]
            .into_iter()
            .find(|question| question.word().as_bytes() == details)
    }

    /// The header of a stream that asks it. `service` is empty for facts.
    pub fn header(self, service: &str) -> StreamHeader {
        StreamHeader::new(StreamPurpose::Diagnose).target(service).details(self.word())
    }
}

/// May the cloud carry such a stream from one gateway to another? What a gateway says of itself is for the cloud alone.
pub fn is_carried(header: &StreamHeader) -> bool {
    Question::of(&header.details) == Some(Question::Backends)
}

/// What a gateway says of itself.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Facts {
    /// The netmap in force.
    pub generation: String,
    /// What it should do and cannot: names, presences as a whole, files.
    pub problems: Vec<String>,
    /// Services whose presence does not listen here, and why.
    pub presences: BTreeMap<String, String>,
    /// What does not keep it from working, but keeps other hosts of its site away from presences.
    pub hints: Vec<String>,
    /// What its role adds: the link of an edge, its certificate, its disk.
    pub role: Value,
}

/// The way from a gateway to the backends of a service.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PathFacts {
    /// Why clients at this gateway cannot use the presence. None: it listens, or the service runs here.
    pub presence_problem: Option<String>,
    /// Why the gateway at the service's site was not reached. None: it answered.
    pub far_problem: Option<String>,
    /// From this gateway to the backends and back.
    pub milliseconds: f64,
    pub backends: Vec<Examined>,
}

impl Gateway {
    /// What this gateway says of itself now.
    pub async fn facts(&self) -> Facts {
        let mut hints = Vec::new();
        if let Some(room) = self.room() {
            hints = room.examine().await;
        }
        let shared = self.shared();
        let mut listening = self.listening().borrow().clone();
        let of_service =
            |trouble: &mut ListenerProblem| Some((trouble.service.clone()?, trouble.why.clone()));
        let presences = listening.troubles.iter_mut().filter_map(of_service).take(PRESENCES_MAX).collect();
        listening.troubles.retain(|trouble| trouble.service.is_none());
        let problems = problems::lines(&self.dns().borrow(), &listening, causeway_daemon::files::max());
        let role = shared.role_facts.as_ref().map(|facts| facts()).unwrap_or_default();
        Facts { generation: shared.view().generation.to_string(), problems, presences, hints, role }
    }

    /// The way from here to a service.
    pub async fn path(&self, service: &str) -> PathFacts {
        let (view, name) = (self.shared().view(), ServiceName::from(service));
        let begun = Instant::now();
        let mut facts = PathFacts::default();
        if let Some(here) = view.services.get(&name) {
            facts.backends = self.shared().backends.examine(here).await;
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
            match timeout(FAR, self.ask_far(&name, &presence.home)).await {
                Ok(Ok(backends)) => facts.backends = backends,
                Ok(Err(why)) => facts.far_problem = Some(why),
                Err(_) => facts.far_problem = Some(format!("no answer within {} s", FAR.as_secs())),
            }
        }
        facts.milliseconds = milliseconds(begun);
        facts
    }

    fn presence_problem(&self, service: &ServiceName) -> Option<String> {
        if !self.shared().options.listen {
            return None;
        }
        let listening = self.listening();
        let report = listening.borrow();
        let concerns = |name: &Option<String>| name.as_deref().is_none_or(|name| name == service.as_str());
        let problem = report.troubles.iter().find(|trouble| concerns(&trouble.service));
        problem.map(|trouble| trouble.why.clone())
    }

    /// Asks the gateway at the service's site, over the way that its clients use.
    async fn ask_far(&self, service: &ServiceName, home: &SiteName) -> Result<Vec<Examined>, String> {
        let header = Question::Backends.header(service.as_str()).to(home.as_str(), "");
        let stream = self.shared().peers.open_stream(header).await.map_err(|error| match error {
            PeerError::Away { why, .. } => why,
            PeerError::Refused { code, .. } => refused(code),
        })?;
        let (mut send, recv) = stream.split();
        // Nothing follows the header.
        let _ = send.shutdown().await;
        let answer = read_answer(recv).await?;
        serde_json::from_value(answer).map_err(|error| format!("its answer cannot be read: {error}"))
    }

    /// Answers one stream. `origin` is the site that asks, as a certificate says.
    pub(crate) async fn answer(self, origin: SiteName, header: StreamHeader, stream: Stream) {
        let Ok(_place) = self.shared().questions.clone().try_acquire_owned() else {
            return stream.refuse(ResetCode::Limit);
        };
        let is_cloud = origin.as_str() == CLOUD;
        let answer = match Question::of(&header.details) {
            Some(Question::Facts) if is_cloud => serde_json::to_vec(&self.facts().await),
            Some(Question::Path) if is_cloud => serde_json::to_vec(&self.path(&header.target).await),
            Some(Question::Backends) => match may_ask(&self.shared().view(), &origin, &header.target) {
                Ok(service) => serde_json::to_vec(&self.shared().backends.examine(&service).await),
                Err(code) => return stream.refuse(code),
            },
            Some(_) => return stream.refuse(ResetCode::NotAllowed),
            None => return stream.refuse(ResetCode::Malformed),
        };
        let Ok(answer) = answer else { return stream.refuse(ResetCode::Internal) };
        let (mut send, _) = stream.split();
        // Whoever asked may have gone.
        let _ = send.write_all(&answer).await;
        let _ = send.shutdown().await;
    }
}

/// The service, if hosts of that site may use it: then its gateway may know whether it answers.
fn may_ask(view: &NetmapView, origin: &SiteName, service: &str) -> Result<Arc<ServiceEntry>, ResetCode> {
    let service = view.services.get(&ServiceName::from(service)).ok_or(ResetCode::NoRoute)?;
    let is_exposed = service.policies_for(origin).is_some() || origin.as_str() == CLOUD;
    if is_exposed { Ok(Arc::new(service.clone())) } else { Err(ResetCode::NotAllowed) }
}

/// The whole answer on a stream, bounded. For whoever asked.
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

/// Why a question was not answered.
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
        for question in [Question::Facts, Question::Path, Question::Backends] {
            let header = question.header("web");
            assert_eq!(header.purpose(), Some(StreamPurpose::Diagnose));
            assert_eq!(Question::of(&header.details), Some(question));
            assert_eq!(is_carried(&header), question == Question::Backends, "{question:?}");
        }
        assert_eq!(Question::of(b"secrets"), None);
        assert!(!is_carried(&StreamHeader::new(StreamPurpose::Diagnose)));
    }
}
