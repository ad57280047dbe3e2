//! Collects what the doctor judges: objects, status, records, and the answers of gateways. Decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use causeway_api::management::{DiagnoseRequest, ProbeRequest, paths};
use causeway_api::{ApiVersion, EService, Kind, Object, ObjectSet};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::gateway::{self, Answers};
use super::target::Target;
use super::{Unasked, path};
use crate::client::{self, ApiClient, CallError};
use crate::commands::get::items;

/// Everything a walk looks at.
#[derive(Default)]
pub struct Picture {
    pub objects: ObjectSet,
    /// As `causeway status --json` has it.
    pub status: Value,
    /// The results of probes, by gateway.
    pub probes: BTreeMap<String, Result<Value, Unasked>>,
    /// The self-descriptions of gateways.
    pub facts: BTreeMap<String, Result<Value, Unasked>>,
    /// The way from a gateway to a service, by both names.
    pub paths: BTreeMap<(String, String), Result<Value, Unasked>>,
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

impl Picture {
    pub async fn gather(api: &ApiClient) -> anyhow::Result<Picture> {
        let mut objects = ObjectSet::default();
        for kind in Kind::ALL {
            let list = api.get(&client::collection(ApiVersion::Group, kind)).await?;
            // Objects of a newer cloud that this command cannot decode are left out.
            let listed = items(kind, list).into_iter().filter_map(|value| Object::decode(kind, value).ok());
            listed.for_each(|decoded| objects.insert(decoded.object));
        }
        Ok(Picture { objects, status: api.get(paths::STATUS).await?, ..Picture::default() })
    }

    /// Asks the gateways on the way, and the audit.
    pub async fn ask(&mut self, api: &ApiClient, target: &Target) {
        let questions = self.questions(target);
        let mut answers = stream::iter(questions)
            .map(|question| async move {
                let answer = ask(api, &question).await;
                (question, answer)
            })
            .buffer_unordered(AT_ONCE);
        while let Some((question, answer)) = answers.next().await {
            match question {
                Question::Probe(gateway) => drop(self.probes.insert(gateway, answer)),
                Question::Facts(gateway) => drop(self.facts.insert(gateway, answer)),
                Question::Path { gateway, service } => drop(self.paths.insert((gateway, service), answer)),
            }
        }
        if let Target::Service { name, .. } = target {
            self.read_records(api, name).await;
        }
    }

    fn questions(&mut self, target: &Target) -> Vec<Question> {
        let of_gateway =
            |gateway: &String| [Question::Probe(gateway.clone()), Question::Facts(gateway.clone())];
        let objects = &self.objects;
        let at =
            |site: &str| objects.gateways_at(site).map(|gateway| gateway.metadata.name.clone()).collect();
        let (gateways, services): (Vec<String>, Vec<(String, String)>) = match target {
            Target::Service { name, site } => {
                let service = objects.service(name);
                let on_the_way =
                    service.map(|service| path::gateways_on_the_way(self, service, site.as_deref()));
                let gateways = on_the_way.unwrap_or_default();
                let paths = gateways.iter().map(|gateway| (gateway.clone(), name.clone())).collect();
                (gateways, paths)
            }
            Target::Site(site) => (at(site), Vec::new()),
            Target::Sites { from, to } => {
                let both: [Vec<String>; 2] = [at(from), at(to)];
                (both.concat(), Vec::new())
            }
            Target::Node(name) => {
                (objects.server(name).map(|server| at(&server.e_site_name)).unwrap_or_default(), Vec::new())
            }
            Target::Gateway(gateway) => (vec![gateway.clone()], Vec::new()),
            Target::Unsupported { .. } | Target::Nothing { .. } => Default::default(),
            Target::Fleet => return self.fleet_questions(),
        };
        let is_here = |gateway: &String| self.is_here(gateway);
        let asked: Vec<String> = gateways.into_iter().filter(is_here).take(GATEWAYS_MAX).collect();
        let paths = services.into_iter().filter(|(gateway, _)| asked.contains(gateway));
        let paths = paths.map(|(gateway, service)| Question::Path { gateway, service });
        asked.iter().flat_map(of_gateway).chain(paths).collect()
    }

    /// Every gateway that is connected, and every service that is exposed: from its home, and from one site that uses it.
    fn fleet_questions(&mut self) -> Vec<Question> {
        let names = self.status["gateways"].as_array().into_iter().flatten();
        let names = names.filter_map(|gateway| gateway["name"].as_str().map(str::to_owned));
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
            .lines(&format!("{}{query}", paths::AUDIT), client::JSON, |line| {
                if line.get("summary").is_none() {
                    records.push(line);
                }
                Ok(true)
            })
            .await;
    }

    pub fn gateway(&self, name: &str) -> Option<&Value> {
        self.status["gateways"].as_array()?.iter().find(|gateway| gateway["name"] == name)
    }

    pub fn answers(&self, gateway: &str) -> Answers<'_> {
        Answers { probe: self.probes.get(gateway), facts: self.facts.get(gateway), tells_presences: true }
    }

    /// Is it worth asking?
    fn is_here(&self, gateway: &str) -> bool {
        let shown = self.gateway(gateway);
        shown.is_some_and(|shown| shown["connected"] == true) || gateway::is_cloud(shown)
    }
}

async fn ask(api: &ApiClient, question: &Question) -> Result<Value, Unasked> {
    let answer = match question {
        // The cloud's own gateway is where we are: no bytes need go there.
        Question::Probe(gateway) if gateway == "cloud" => {
            return Ok(json!({"bytes": 0, "milliseconds": 0.0}));
        }
        Question::Probe(gateway) => api.post(paths::PROBE, &ProbeRequest::new(gateway.as_str())).await,
        Question::Facts(gateway) => {
            api.post(paths::DIAGNOSE, &DiagnoseRequest { gateway: gateway.clone(), service: None }).await
        }
        Question::Path { gateway, service } => {
            let request = DiagnoseRequest { gateway: gateway.clone(), service: Some(service.clone()) };
            api.post(paths::DIAGNOSE, &request).await
        }
    };
    answer.map_err(|error| match &error {
        CallError::Refused { status, .. } if status.code == 403 => {
            Unasked::NotAllowed(status.message.clone())
        }
        CallError::Refused { status, .. } if status.code == 404 => Unasked::Failed(
            "this cloud is older than this command, and does not know the question".to_owned(),
        ),
        CallError::Refused { status, .. } => Unasked::Failed(status.message.clone()),
        other => Unasked::Failed(other.to_string()),
    })
}
