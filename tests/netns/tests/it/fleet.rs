//! Clouds and edges inside hosts: enrolment over NATs, both address families and bad lines; kill -9 and back.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use testlab::causeway::wait_for;
use testlab::fleet::{CHANNEL_PORT, CloudHost, EdgeHost};
use testlab::net::Net;
use testlab::random::SeededRandom;
use testlab::relay::{Faults, Relay};

use crate::{build, two_sites};

fn channel(address: impl Into<IpAddr>) -> SocketAddr {
    SocketAddr::new(address.into(), CHANNEL_PORT)
}

fn cloud(net: &Net, folder: &Path, advertise: &[SocketAddr]) -> CloudHost {
    CloudHost::start(&net.host("cloud").unwrap(), folder, advertise, &[]).unwrap()
}

/// Waits until an edge holds its certificate, and says how long it took.
fn await_enrolled(folder: &Path, name: &str, begin: Instant) -> Duration {
    let certificate = folder.join(name).join("identity.pem");
    wait_for("the edge is enrolled", || certificate.exists().then_some(())).unwrap();
    begin.elapsed()
}

#[test]
fn edges_behind_nats_enrol_over_either_family() {
    let Some(net) = build("edges_behind_nats_enrol_over_either_family", &two_sites()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let endpoints = [channel(net.ipv4("cloud").unwrap()), channel(net.ipv6("cloud").unwrap())];
    for (site, endpoint) in ["edge-a", "edge-b"].into_iter().zip(endpoints) {
        let folder = folder.path().join(site);
        std::fs::create_dir(&folder).unwrap();
        let cloud = cloud(&net, &folder, &[endpoint]);
        let token = cloud.token(site).unwrap();
        let begin = Instant::now();
        let _edge = EdgeHost::join(&net.host(site).unwrap(), &folder, site, &token).unwrap();
        println!("{site} over {endpoint}: enrolled after {:?}", await_enrolled(&folder, site, begin));
        assert_eq!(cloud.gateway(site).unwrap()["site"], site);
    }
}

#[test]
fn an_edge_enrols_over_a_bad_line() {
    let Some(net) = build("an_edge_enrols_over_a_bad_line", &two_sites()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let listen = SocketAddr::new(net.gateway_ipv4("nat-a").unwrap().into(), 0);
    let target = channel(net.ipv4("cloud").unwrap());
    let relay =
        Relay::start_in(&net.host("internet").unwrap(), listen, target, SeededRandom::seed("bad line"))
            .unwrap();
    relay.set_both(&Faults { delay: Duration::from_millis(100), loss: 0.05, ..Faults::default() });
    let cloud = cloud(&net, folder.path(), &[relay.address()]);
    let token = cloud.token("edge-a").unwrap();
    let begin = Instant::now();
    let _edge = EdgeHost::join(&net.host("edge-a").unwrap(), folder.path(), "edge-a", &token).unwrap();
    println!("100 ms and 5 % loss: enrolled after {:?}", await_enrolled(folder.path(), "edge-a", begin));
}

#[test]
fn kill_nine_of_a_cloud_and_an_edge_and_both_come_back() {
    let Some(net) = build("kill_nine_of_a_cloud_and_an_edge_and_both_come_back", &two_sites()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut cloud = cloud(&net, folder.path(), &[channel(net.ipv4("cloud").unwrap())]);
    let token = cloud.token("edge-a").unwrap();
    let mut edge = EdgeHost::join(&net.host("edge-a").unwrap(), folder.path(), "edge-a", &token).unwrap();
    await_enrolled(folder.path(), "edge-a", Instant::now());
    cloud.unit.kill().unwrap();
    edge.unit.kill().unwrap();
    edge.restart().unwrap();
    cloud.restart().unwrap();
    assert_eq!(cloud.gateway("edge-a").unwrap()["site"], "edge-a");
    let again = edge.unit.process().unwrap();
    wait_for("the edge runs again", || again.log().contains("the edge runs").then_some(())).unwrap();
}
