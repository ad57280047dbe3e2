//! `causeway doctor`: walks from here to a service, a site, a node or a gateway, hop by hop, and says everywhere it breaks.
//!
//! Gathers a picture of everything, asks the gateways on the way whether bytes come back, and lets `path` and `gateway`, which are
//! pure, judge. Every hop is one line.

mod gateway;
mod path;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use causeway_api::{ApiVersion, Kind, Object, World};
use serde_json::{Value, json};

use super::get::items;
use crate::client::{self, Api, Connection};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  causeway doctor web              the service, from every site it is exposed to
  causeway doctor web@oslo         the same, from one site
  causeway doctor oslo             a site, a gateway or a node
  causeway doctor gateway/oslo     when several things are called so: service/, site/, node/, gateway/
  causeway doctor web || echo broken";

/// Find out why something does not work: walks the path hop by hop; exit code 1 when one fails
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// SERVICE, SERVICE@SITE, SITE, NODE or GATEWAY
    #[arg(value_name = "WHAT")]
    what: String,
    #[command(flatten)]
    connection: Connection,
}

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    let api = arguments.connection.connect().await?;
    let mut picture = Picture::gather(&api).await?;
    let target = Target::find(&arguments.what, &picture.world);
    picture.ask(&api, &target).await;
    let mut hops = vec![fine("the API answers".to_owned())];
    hops.extend(target.walk(&picture));
    for hop in &hops {
        let mark = if hop.is_fine { "ok" } else { "!!" };
        output::print_line(&output::plain(&format!("{mark}  {}", hop.text)))?;
    }
    Ok(if hops.iter().all(|hop| hop.is_fine) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Hop {
    is_fine: bool,
    text: String,
}

fn fine(text: String) -> Hop {
    Hop { is_fine: true, text }
}

fn broken(text: String) -> Hop {
    Hop { is_fine: false, text }
}

/// Everything a walk looks at.
#[derive(Default)]
struct Picture {
    world: World,
    /// As `causeway status --json` has it.
    status: Value,
    /// What came back from gateways that were asked.
    probes: BTreeMap<String, Result<Value, String>>,
    /// What happened to the service lately, the newest last.
    records: Vec<Value>,
}

// A service may be exposed to a thousand sites; asking each of their gateways is not what a doctor does.
const PROBES_MAX: usize = 20;
const LATELY: Duration = Duration::from_secs(600);

impl Picture {
    async fn gather(api: &Api) -> anyhow::Result<Picture> {
        let mut world = World::default();
        for kind in Kind::ALL {
            let list = api.get(&client::collection(ApiVersion::Group, kind)).await?;
            // What a newer cloud says and this command does not know is no reason to fail.
            let objects = items(kind, list).into_iter().filter_map(|value| Object::decode(kind, value).ok());
            objects.for_each(|decoded| world.insert(decoded.object));
        }
        Ok(Picture { world, status: api.get("/causeway/v1/status").await?, ..Picture::default() })
    }

    /// Asks the gateways on the way, and the audit.
    async fn ask(&mut self, api: &Api, target: &Target) {
        for gateway in target.gateways(self).into_iter().take(PROBES_MAX) {
            let shown = self.gateway(&gateway);
            if shown.is_none_or(|shown| shown["connected"] != true) || gateway::is_cloud(shown) {
                continue;
            }
            let probe = api.post("/causeway/v1/probe", &json!({ "gateway": gateway })).await;
            self.probes.insert(gateway, probe.map_err(|error| error.to_string()));
        }
        if let Target::Service { name, .. } = target {
            let since = jiff::Timestamp::try_from(SystemTime::now() - LATELY).map(|since| since.to_string());
            let since = since.ok();
            let query =
                client::query(&[("service", Some(name)), ("since", since.as_deref()), ("limit", Some("20"))]);
            let records = &mut self.records;
            // Without them the last hop is only less sure.
            let _ = api
                .lines(&format!("/causeway/v1/audit{query}"), client::JSON, |line| {
                    if line.get("summary").is_none() {
                        records.push(line);
                    }
                    Ok(true)
                })
                .await;
        }
    }

    fn gateway(&self, name: &str) -> Option<&Value> {
        self.status["gateways"].as_array()?.iter().find(|gateway| gateway["name"] == name)
    }
}

/// What is examined.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Service { name: String, site: Option<String> },
    Site(String),
    Node(String),
    Gateway(String),
    Nothing(String),
}

impl Target {
    /// What is meant by a word. Of several things with one name: a service, then a gateway, a site, a node.
    fn find(word: &str, world: &World) -> Target {
        let named = |word: &str| word.to_owned();
        match word.split_once('/') {
            Some(("service", name)) => return Target::service(name),
            Some(("site", name)) => return Target::Site(named(name)),
            Some(("node", name)) => return Target::Node(named(name)),
            Some(("gateway", name)) => return Target::Gateway(named(name)),
            _ => {}
        }
        if word.contains('@') || world.service(word).is_some() {
            Target::service(word)
        } else if let Some(expose) = world.expose(word) {
            Target::service(&expose.e_service_name)
        } else if world.gateway(word).is_some() {
            Target::Gateway(named(word))
        } else if world.site(word).is_some() {
            Target::Site(named(word))
        } else if world.server(word).is_some() {
            Target::Node(named(word))
        } else {
            Target::Nothing(named(word))
        }
    }

    fn service(word: &str) -> Target {
        let (name, site) = match word.split_once('@') {
            Some((name, site)) => (name, Some(site.to_owned())),
            None => (word, None),
        };
        Target::Service { name: name.to_owned(), site }
    }

    fn gateways(&self, picture: &Picture) -> Vec<String> {
        let world = &picture.world;
        let at = |site: &str| world.gateways_at(site).map(|gateway| gateway.metadata.name.clone()).collect();
        match self {
            Target::Service { name, site } => world
                .service(name)
                .map(|service| path::gateways_on_the_way(picture, service, site.as_deref()))
                .unwrap_or_default(),
            Target::Site(site) => at(site),
            Target::Node(name) => {
                world.server(name).map(|server| at(&server.e_site_name)).unwrap_or_default()
            }
            Target::Gateway(gateway) => vec![gateway.clone()],
            Target::Nothing(_) => Vec::new(),
        }
    }

    fn walk(&self, picture: &Picture) -> Vec<Hop> {
        let missing = |kind: &str, name: &str| vec![broken(format!("{kind} {name} does not exist"))];
        match self {
            Target::Service { name, site } => path::to_service(picture, name, site.as_deref()),
            Target::Site(name) => match picture.world.site(name) {
                Some(site) => path::to_site(picture, site),
                None => missing("ESite", name),
            },
            Target::Node(name) => match picture.world.server(name) {
                Some(server) => path::to_node(picture, server),
                None => missing("EServer", name),
            },
            Target::Gateway(name) => gateway::examine(name, picture.gateway(name), picture.probes.get(name)),
            Target::Nothing(name) => vec![broken(format!(
                "there is no EService, EGateway, ESite or EServer {name}: `causeway get all` shows what there is; \
                 `causeway token create --site SITE --gateway {name}` would make a gateway"
            ))],
        }
    }
}
