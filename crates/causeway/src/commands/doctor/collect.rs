//! Collects what the doctor judges: objects, status, records, and the answers of gateways. Decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use causeway_api::management::{
    DiagnoseRequest, FleetStatus, GatewayFacts, GatewayOverview, ProbeRequest, ProbeResponse,
    ServicePathFacts, paths,
};
use causeway_api::{ApiVersion, EService, Kind, Object, ObjectSet};
use futures_util::{StreamExt, stream};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::gateway::{self, Answers};
use super::target::DoctorTarget;
use super::{Unasked, path};
use crate::client::{self, ApiClient, CallError, RefusalKind};
use crate::commands::get::items;

/// Everything a walk looks at.
#[derive(Default)]
pub struct Picture {
    pub objects: ObjectSet,
    pub status: FleetStatus,
    /// The results of probes, by gateway.
    pub probes: BTreeMap<String, Result<ProbeResponse, Unasked>>,
    /// The self-descriptions of gateways.
    pub facts: BTreeMap<String, Result<GatewayFacts, Unasked>>,
    /// The way from a gateway to a service, by both names.
    pub paths: BTreeMap<(String, String), Result<ServicePathFacts, Unasked>>,
    /// Recent audit records of the service, the newest last.
    pub records: Vec<Value>,
    /// Gateways and services that were too many to be asked.
    pub not_asked: usize,
}

// A service may be exposed to a thousand sites; asking each of their gateways is not what a doctor does.
const GATEWAYS_MAX: usize = 20;
/// Questions of the fleet mode: some seconds of waiting for gateways that do not answer.
const FLEET_GATEWAYS_MAX: usize = 200;
const FLEET_PATHS_MAX: usize = 200;
/// Questions under way at the same time.
const AT_ONCE: usize = 8;
const LATELY: Duration = Duration::from_secs(600);

/// One question to a gateway.
enum Question {
    Probe(String),
    Facts(String),
    Path { gateway: String, service: String },
}

/// The answer to one question.
enum Answer {
    Probe(String, Result<ProbeResponse, Unasked>),
    Facts(String, Box<Result<GatewayFacts, Unasked>>),
    Path((String, String), Result<ServicePathFacts, Unasked>),
}

impl Picture {
    pub async fn gather(api: &ApiClient) -> anyhow::Result<Picture> {
        let mut objects = ObjectSet::default();
        for kind in Kind::ALL {
            let list = api.get(&client::collection(ApiVersion::Group, kind)).await?;
            // Objects of a newer cloud that this command cannot decode are left out.
            let listed = items(kind, list).into_iter().filter_map(|value| Object::decode(kind, value).ok());
            listed.for_each(|decoded| objects.insert(decoded.object));
        }
        let status = serde_json::from_value(api.get(paths::STATUS).await?)
            .with_context(|| format!("{} did not send the status of the fleet", api.server()))?;
        Ok(Picture { objects, status, ..Picture::default() })
    }

    /// Asks the gateways on the way, and the audit.
    pub async fn ask(&mut self, api: &ApiClient, target: &DoctorTarget) {
        let questions = self.questions(target);
        let mut answers =
            stream::iter(questions).map(|question| ask(api, question)).buffer_unordered(AT_ONCE);
        while let Some(answer) = answers.next().await {
            match answer {
                Answer::Probe(gateway, found) => drop(self.probes.insert(gateway, found)),
                Answer::Facts(gateway, found) => drop(self.facts.insert(gateway, *found)),
                Answer::Path(names, found) => drop(self.paths.insert(names, found)),
            }
        }
        if let DoctorTarget::Service { name, .. } = target {
            self.read_records(api, name).await;
        }
    }

    fn questions(&mut self, target: &DoctorTarget) -> Vec<Question> {
        let of_gateway =
            |gateway: &String| [Question::Probe(gateway.clone()), Question::Facts(gateway.clone())];
        let objects = &self.objects;
        let at =
            |site: &str| objects.gateways_at(site).map(|gateway| gateway.metadata.name.clone()).collect();
        let (gateways, services): (Vec<String>, Vec<(String, String)>) = match target {
            DoctorTarget::Service { name, site } => {
                let service = objects.service(name);
                let on_the_way =
                    service.map(|service| path::gateways_on_the_way(self, service, site.as_deref()));
                let gateways = on_the_way.unwrap_or_default();
                let paths = gateways.iter().map(|gateway| (gateway.clone(), name.clone())).collect();
                (gateways, paths)
            }
            DoctorTarget::Site(site) => (at(site), Vec::new()),
            DoctorTarget::Sites { from, to } => {
                let both: [Vec<String>; 2] = [at(from), at(to)];
                (both.concat(), Vec::new())
            }
            DoctorTarget::Node(name) => {
                (objects.server(name).map(|server| at(&server.e_site_name)).unwrap_or_default(), Vec::new())
            }
            DoctorTarget::Gateway(gateway) => (vec![gateway.clone()], Vec::new()),
            DoctorTarget::Unsupported { .. } | DoctorTarget::Nothing { .. } => Default::default(),
            DoctorTarget::Fleet => return self.fleet_questions(),
        };
        let is_here = |gateway: &String| self.is_here(gateway);
        let asked: Vec<String> = gateways.into_iter().filter(is_here).take(GATEWAYS_MAX).collect();
        let paths = services.into_iter().filter(|(gateway, _)| asked.contains(gateway));
        let paths = paths.map(|(gateway, service)| Question::Path { gateway, service });
        asked.iter().flat_map(of_gateway).chain(paths).collect()
    }

    /// Every gateway that is connected, and every service that is exposed: from its own site, and from one site that uses it.
    fn fleet_questions(&mut self) -> Vec<Question> {
        let names = self.status.gateways.iter().map(|gateway| gateway.name.clone());
        let gateways: Vec<String> = names.filter(|gateway| self.is_here(gateway)).collect();
        let mut paths = BTreeSet::new();
        for service in self.objects.all::<EService>() {
            let name = &service.metadata.name;
            if self.objects.exposes_of(name).next().is_none() {
                continue;
            }
            let on_the_way = path::gateways_on_the_way(self, service, None);
            let here = on_the_way.into_iter().filter(|gateway| self.is_here(gateway));
            paths.extend(here.take(2).map(|gateway| (gateway, name.clone())));
        }
        self.not_asked =
            gateways.len().saturating_sub(FLEET_GATEWAYS_MAX) + paths.len().saturating_sub(FLEET_PATHS_MAX);
        let facts = gateways.into_iter().take(FLEET_GATEWAYS_MAX).map(Question::Facts);
        let paths = paths.into_iter().take(FLEET_PATHS_MAX);
        facts.chain(paths.map(|(gateway, service)| Question::Path { gateway, service })).collect()
    }

    async fn read_records(&mut self, api: &ApiClient, service: &str) {
        let since = jiff::Timestamp::try_from(SystemTime::now() - LATELY).map(|since| since.to_string());
        let since = since.ok();
        let query =
            client::query(&[("service", Some(service)), ("since", since.as_deref()), ("limit", Some("20"))]);
        let records = &mut self.records;
        // Without them the last hop is only less sure.
        let _ = api
            .stream_lines(&format!("{}{query}", paths::AUDIT), client::JSON, |line| {
                if line.get("summary").is_none() {
                    records.push(line);
                }
                Ok(true)
            })
            .await;
    }

    pub fn gateway(&self, name: &str) -> Option<&GatewayOverview> {
        self.status.gateways.iter().find(|gateway| gateway.name == name)
    }

    pub fn answers(&self, gateway: &str) -> Answers<'_> {
        Answers { probe: self.probes.get(gateway), facts: self.facts.get(gateway), tells_presences: true }
    }

    /// Returns true if a request can be expected to be answered.
    fn is_here(&self, gateway: &str) -> bool {
        let shown = self.gateway(gateway);
        shown.is_some_and(|shown| shown.stats.connected) || gateway::is_cloud(shown)
    }
}

async fn ask(api: &ApiClient, question: Question) -> Answer {
    match question {
        // The cloud's own gateway is where we are: no bytes need go there.
        Question::Probe(gateway) if gateway == "cloud" => {
            Answer::Probe(gateway, Ok(ProbeResponse::default()))
        }
        Question::Probe(gateway) => {
            let found = post(api, paths::PROBE, &ProbeRequest::new(gateway.as_str())).await;
            Answer::Probe(gateway, found)
        }
        Question::Facts(gateway) => {
            let request = DiagnoseRequest { gateway: gateway.clone(), service: None };
            Answer::Facts(gateway, Box::new(post(api, paths::DIAGNOSE, &request).await))
        }
        Question::Path { gateway, service } => {
            let request = DiagnoseRequest { gateway: gateway.clone(), service: Some(service.clone()) };
            Answer::Path((gateway, service), post(api, paths::DIAGNOSE, &request).await)
        }
    }
}

async fn post<T: DeserializeOwned>(
    api: &ApiClient,
    path: &str,
    request: &impl Serialize,
) -> Result<T, Unasked> {
    let answer = api.post(path, request).await.map_err(|error| match &error {
        CallError::Refused { status, .. } => match status.kind {
            RefusalKind::Forbidden | RefusalKind::Protected => Unasked::NotAllowed(status.message.clone()),
            kind if kind.is_not_found() => Unasked::Failed(
                "this cloud is older than this command, and does not know the question".to_owned(),
            ),
            _ => Unasked::Failed(status.message.clone()),
        },
        other => Unasked::Failed(other.to_string()),
    })?;
    serde_json::from_value(answer)
        .map_err(|error| Unasked::Failed(format!("its answer cannot be read: {error}")))
}
