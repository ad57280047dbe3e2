//! The whole fleet: every gateway and every exposure that has a problem, and one line that sums it up.
//!
//! Pure: a picture of everything in, findings out. Healthy objects are only counted.

use causeway_api::{EGateway, ServiceExpose, conditions};

use super::collect::Picture;
use super::finding::{Finding, State};
use super::{gateway, path};

pub fn examine(picture: &Picture) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    let mut gateways: Vec<&EGateway> = picture.objects.all().collect();
    gateways.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
    let mut gateways_well = 0;
    for object in &gateways {
        let name = object.metadata.name.as_str();
        // Presences are reported with their exposures.
        let answers = gateway::Answers { tells_presences: false, ..picture.answers(name) };
        let found = gateway::examine(name, picture.gateway(name), &answers);
        gateways_well += take_bad(found, &mut findings);
    }
    let mut exposes: Vec<&ServiceExpose> = picture.objects.all().collect();
    exposes.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
    let mut exposes_well = 0;
    for expose in &exposes {
        exposes_well += take_bad(exposure(picture, expose), &mut findings);
    }
    let summary = format!(
        "{gateways_well} of {} gateways and {exposes_well} of {} exposures are well",
        gateways.len(),
        exposes.len()
    );
    let is_well = gateways_well == gateways.len() && exposes_well == exposes.len();
    findings.insert(
        0,
        match is_well {
            true => Finding::ok("fleet", summary),
            false => {
                Finding::warning("fleet", summary, "causeway doctor NAME shows every hop of one of them")
            }
        },
    );
    if picture.not_asked > 0 {
        let reason =
            format!("{} gateways and paths were not asked: they are too many at once", picture.not_asked);
        findings.push(Finding::unknown("fleet", reason, "causeway doctor NAME asks for one"));
    }
    findings
}

/// Its objects, and the paths that were tried. Gateways are reported already.
fn exposure(picture: &Picture, expose: &ServiceExpose) -> Vec<Finding> {
    let name = &expose.metadata.name;
    let mut findings = Vec::new();
    if let Some(why) = path::complaint(expose, conditions::READY) {
        let fix = format!("causeway describe sx {name} shows what it refers to");
        findings.push(Finding::failed(format!("exposure {name}"), why, fix));
    }
    if let Some(service) = picture.objects.service(&expose.e_service_name) {
        let sites: Vec<&str> = expose.e_sites.iter().map(String::as_str).collect();
        findings.extend(path::ways(picture, service, &sites).into_iter().filter(|finding| {
            // A disconnected gateway is reported already; that its services cannot be tried follows from it.
            finding.state != State::Unknown
        }));
    }
    findings
}

/// Keeps what is not ok. One when all of it was.
fn take_bad(found: Vec<Finding>, findings: &mut Vec<Finding>) -> usize {
    let before = findings.len();
    findings.extend(found.into_iter().filter(|finding| finding.state != State::Ok));
    // Two exposures of one service share its backends.
    let mut position = before;
    while position < findings.len() {
        match findings[..position].contains(&findings[position]) {
            true => drop(findings.remove(position)),
            false => position += 1,
        }
    }
    usize::from(!findings[before..].iter().any(|finding| finding.state == State::Failed))
}
