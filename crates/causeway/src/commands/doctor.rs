//! `causeway doctor`: walks from here to a service, a site, a node or a gateway, hop by hop, and says everywhere it breaks.
//!
//! `collect` gathers a picture of everything and asks the gateways on the way; `path`, `gateway`, `fleet` and `edge`, which are
//! pure, judge. On the host of an edge, without a kubeconfig, the edge itself is examined through its admin port, and its Kubernetes API by a
//! request (`edge_api`).

mod collect;
pub mod edge;
mod edge_api;
mod finding;
mod fleet;
mod gateway;
mod path;
mod sites;
mod target;

use std::net::SocketAddr;
use std::process::ExitCode;

use serde_json::json;

pub use gateway::switched_off;

use super::WrongUsage;
use crate::client::ApiConnectionArgs;
use crate::config::mistake::parse_flag;
use crate::output;
use collect::Picture;
use finding::{Finding, State, is_broken};
use target::DoctorTarget;

const EXAMPLES: &str = "\
Examples:
  causeway doctor                     the fleet: every gateway and exposure that has a problem
  causeway doctor web                 the service, from every site it is exposed to
  causeway doctor web@oslo            the same, from one site
  causeway doctor web.plant.example   by its DNS name; by its address: causeway doctor 198.18.0.9
  causeway doctor oslo                a site, a gateway or a node
  causeway doctor oslo berlin         packets between two sites (layer 3)
  causeway doctor egateway/oslo       KIND/NAME, when several objects have the name
  causeway doctor --json web | jq '.findings[] | select(.state == \"failed\")'
  causeway doctor                     on the host of an edge: the edge itself, through its admin port
  causeway doctor --admin 127.0.0.1:7445

Every finding has a hop, a state (ok, warning `~~`, failed `!!`, unknown `??`), a reason and, where there is one, a fix.
Gateways on the way are asked at this moment, and they try the backends; a viewer gets everything but these answers.";

/// Diagnose the path to a service, site, node or gateway hop by hop; exits with 1 if a hop fails
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// KIND/NAME, SERVICE, SERVICE@SITE, DNS name, address, SITE, NODE or GATEWAY [default: the fleet]
    #[arg(value_name = "TARGET")]
    what: Option<String>,
    /// A second site: examine packets from TARGET, a site, to this one
    #[arg(value_name = "SITE", requires = "what")]
    to: Option<String>,
    /// As JSON, for scripts
    #[arg(long)]
    json: bool,
    /// Examine the edge on this host through its admin port [default: when there is no kubeconfig, but an edge's data dir]
    #[arg(long, value_name = "ADDR", value_parser = parse_flag::<SocketAddr>)]
    admin: Option<SocketAddr>,
    #[command(flatten)]
    connection: ApiConnectionArgs,
}

/// Why a gateway did not answer a question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unasked {
    /// The caller may not ask it.
    NotAllowed(String),
    Failed(String),
}

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    let findings = match edge::Local::find(arguments.admin, &arguments.connection) {
        Some(_) if arguments.what.is_some() => {
            let why = "on the host of an edge doctor examines the edge itself; ask about a service where the kubeconfig is";
            return Err(WrongUsage(why.to_owned()).into());
        }
        Some(local) => edge::examine(&local.collect().await),
        None => examine(&arguments).await?,
    };
    show(&findings, arguments.json)?;
    Ok(if is_broken(&findings) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn examine(arguments: &Args) -> anyhow::Result<Vec<Finding>> {
    let api = arguments.connection.connect().await?;
    let mut picture = Picture::gather(&api).await?;
    let target = match (&arguments.what, &arguments.to) {
        (Some(from), Some(to)) => DoctorTarget::between(from, to),
        (Some(word), None) => DoctorTarget::find(word, &picture.objects),
        (None, _) => DoctorTarget::Fleet,
    };
    picture.ask(&api, &target).await;
    let mut findings = vec![Finding::ok("API", "the API answers")];
    findings.extend(walk(&target, &picture));
    Ok(findings)
}

fn walk(target: &DoctorTarget, picture: &Picture) -> Vec<Finding> {
    let missing = |kind: &str, name: &str| {
        vec![Finding::failed(
            format!("{kind} {name}"),
            format!("{kind} {name} does not exist"),
            "causeway get all shows what there is",
        )]
    };
    match target {
        DoctorTarget::Fleet => fleet::examine(picture),
        DoctorTarget::Service { name, site } => path::to_service(picture, name, site.as_deref()),
        DoctorTarget::Sites { from, to } => sites::examine(picture, from, to),
        DoctorTarget::Site(name) => match picture.objects.site(name) {
            Some(site) => path::to_site(picture, site),
            None => missing("ESite", name),
        },
        DoctorTarget::Node(name) => match picture.objects.server(name) {
            Some(server) => path::to_node(picture, server),
            None => missing("EServer", name),
        },
        DoctorTarget::Gateway(name) => gateway::examine(name, picture.gateway(name), &picture.answers(name)),
        DoctorTarget::Unsupported { kind, name } => vec![Finding::failed(
            format!("{} {name}", kind.name()),
            format!("doctor does not examine objects of kind {}", kind.name()),
            "examine a service that it concerns: causeway doctor eservice/NAME",
        )],
        DoctorTarget::Nothing { word, nearest } => {
            let reason = format!(
                "there is no EService, EGateway, ESite, EServer, DNS name or presence address {word}"
            );
            let fix = match nearest {
                Some(nearest) => format!("did you mean {nearest}?"),
                None => format!(
                    "causeway get all shows what there is; causeway token create --site SITE --gateway {word} would make a gateway"
                ),
            };
            vec![Finding::failed(word, reason, fix)]
        }
    }
}

fn show(findings: &[Finding], as_json: bool) -> anyhow::Result<()> {
    let count = |state: State| findings.iter().filter(|finding| finding.state == state).count();
    let (failed, warnings, unknown) = (count(State::Failed), count(State::Warning), count(State::Unknown));
    if as_json {
        let summary =
            json!({"ok": count(State::Ok), "failed": failed, "warnings": warnings, "unknown": unknown});
        let value = json!({"ok": failed == 0, "summary": summary, "findings": findings});
        return output::print(&output::json(&value));
    }
    for finding in findings {
        output::print_line(&finding.text())?;
    }
    if findings.len() > 1 {
        let verdict = match (failed, warnings + unknown) {
            (0, 0) => "all ok".to_owned(),
            (0, _) => format!("nothing fails; {warnings} warnings, {unknown} unknown"),
            _ => format!("{failed} failed, {warnings} warnings, {unknown} unknown"),
        };
        output::print_line(&verdict)?;
    }
    Ok(())
}
