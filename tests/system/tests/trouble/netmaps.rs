//! Netmaps when things go wrong: clouds and edges killed under change, a backup that comes back, a disk that is full.
//!
//! The netmap of an edge is read from its data dir, as a restarted edge would; the expected one comes from the cloud's admin dump.
//! Five rounds of kill -9, fifty with CAUSEWAY_SOAK=1.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use causeway_edge::netmap::persisted;
use causeway_netmap::{Generation, Netmap, NetmapStamp, NetmapView, PolicyEntry};
use serde_json::{Value, json};
use testlab::causeway::{Cloud, Process, get, run, wait_for};
use testlab::free_port::free_port;
use testlab::https::{Client, Request};
use testlab::random::SeededRandom;

use crate::full_disk::Disk;
use crate::{GROUP, admin, edge, join_token, path, soak};

/// A cloud whose channel keeps its address, and edges at two sites: `home` has a service that `away` may use.
struct Sites {
    folder: tempfile::TempDir,
    channel: SocketAddr,
    cloud: Cloud,
}

const GATEWAYS: [&str; 2] = ["home", "away"];

impl Sites {
    fn start() -> Sites {
        let folder = tempfile::tempdir().unwrap();
        let channel = free_port();
        let cloud = Sites::start_cloud(&folder.path().join("cloud"), channel);
        let client = admin(&cloud);
        for (plural, kind, name, mut fields) in [
            ("eservices", "EService", "web", json!({"eSiteName": "home", "ip": "127.0.0.1", "port": 1000})),
            ("epolicies", "EPolicy", "all", json!({"allowedSites": ["away"]})),
            (
                "serviceexposes",
                "ServiceExpose",
                "web",
                json!({"eServiceName": "web", "eSites": ["away"], "ePolicys": ["all"]}),
            ),
            (
                "virtualpresences",
                "VirtualPresence",
                "web",
                json!({"eServiceName": "web", "eSiteName": "away", "virtualIp": "198.18.0.9"}),
            ),
        ] {
            fields["kind"] = kind.into();
            fields["apiVersion"] = "causeway.io/v1".into();
            fields["metadata"] = json!({"name": name});
            client.post(&format!("{GROUP}/{plural}"), &fields).unwrap().success().unwrap();
        }
        Sites { folder, channel, cloud }
    }

    fn start_cloud(data_dir: &std::path::Path, channel: SocketAddr) -> Cloud {
        Cloud::start_with(data_dir, &["--channel", &channel.to_string()]).unwrap()
    }

    fn restart_cloud(&mut self) {
        self.cloud = Sites::start_cloud(&self.folder.path().join("cloud"), self.channel);
    }

    fn data_dir(&self, gateway: &str) -> PathBuf {
        self.folder.path().join(gateway)
    }

    fn join(&self, gateway: &str) -> Process {
        let token = join_token(&admin(&self.cloud), gateway);
        edge(self.folder.path(), gateway, &["--join", &token])
    }

    /// Waits until an edge holds what the cloud says it should, and that is the port.
    fn wait_equal(&self, gateway: &str, port: u16) -> Netmap {
        wait_for(&format!("{gateway} holds what the cloud says, port {port}"), || {
            let held = persisted(&self.data_dir(gateway))?;
            let target = target(&self.cloud, gateway)?;
            (held.digest().to_string() == target["digest"] && port_of(&held) == Some(port)).then_some(held)
        })
        .unwrap_or_else(|error| {
            let held = persisted(&self.data_dir(gateway));
            let log = std::fs::read_to_string(self.folder.path().join(format!("{gateway}.log")));
            panic!(
                "{error}: {:?}, {held:?}\n{}\n{}",
                target(&self.cloud, gateway),
                log.unwrap_or_default(),
                self.cloud.process.log()
            )
        })
    }
}

fn target(cloud: &Cloud, gateway: &str) -> Option<Value> {
    let (_, text) = get(cloud.admin, "/debug").ok()?;
    let dump: Value = serde_json::from_str(&text).ok()?;
    dump.pointer(&format!("/netmaps/gateways/{gateway}/target")).filter(|target| target.is_object()).cloned()
}

/// The port of the service, as either end sees it.
fn port_of(netmap: &Netmap) -> Option<u16> {
    let view = NetmapView::decode(netmap);
    let here = view.services.get("web").map(|service| service.port);
    here.or_else(|| view.presences.get("web").map(|presence| presence.port))
}

fn set_port(client: &Client, port: u16) -> bool {
    let body = json!({"port": port}).to_string();
    let request = Request::new("PATCH", &path("eservices", "web")).body("application/merge-patch+json", body);
    client.send(&request).is_ok_and(|answer| answer.code == 200)
}

/// The generation of an edge on disk only rises; two states never share a name.
fn check_rise(gateway: &str, before: &mut Option<NetmapStamp>, data_dir: &std::path::Path) {
    let now = persisted(data_dir).map(|netmap| netmap.stamp());
    if let Some(before) = before {
        let now = now.unwrap_or_else(|| panic!("{gateway} had {before:?} and has nothing"));
        let is_risen = now.generation > before.generation || now == *before;
        assert!(is_risen, "{gateway}: {now:?} after {before:?}");
    }
    *before = now;
}

#[test]
fn kill_nine_of_the_cloud_takes_no_netmap_back() {
    let mut sites = Sites::start();
    let _edges = GATEWAYS.map(|gateway| sites.join(gateway));
    GATEWAYS.iter().for_each(|gateway| drop(sites.wait_equal(gateway, 1000)));
    let mut random = SeededRandom::for_test("kill -9 of the cloud under change");
    let rounds = if soak() { 50 } else { 5 };
    let (port, is_over) = (AtomicU16::new(1000), AtomicBool::new(false));
    let dirs = GATEWAYS.map(|gateway| sites.data_dir(gateway));
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let (mut held, mut looks) = ([None, None], 0);
            while !is_over.load(Ordering::Relaxed) {
                for (place, gateway) in GATEWAYS.iter().enumerate() {
                    check_rise(gateway, &mut held[place], &dirs[place]);
                }
                looks += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
            looks
        });
        // The watcher ends, whatever fails below.
        let _over = Over(&is_over);
        for _ in 0..rounds {
            let client = admin(&sites.cloud);
            let end = std::time::Instant::now() + Duration::from_millis(100 + random.below(900));
            while std::time::Instant::now() < end && !watching.is_finished() {
                set_port(&client, port.fetch_add(1, Ordering::Relaxed) + 1);
            }
            sites.cloud.process.kill().unwrap();
            sites.restart_cloud();
        }
        let last = port.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(set_port(&admin(&sites.cloud), last));
        for gateway in GATEWAYS {
            let held = sites.wait_equal(gateway, last);
            println!("{gateway}: {} after {rounds} kills, port {last}", held.generation());
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(watching.join().unwrap() > rounds, "the watcher has watched");
    });
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_cloud_restored_from_an_older_backup_is_followed() {
    let mut sites = Sites::start();
    let _edge = sites.join("away");
    sites.wait_equal("away", 1000);
    let backup = sites.folder.path().join("backup");
    sites.cloud.run(&["backup", backup.to_str().unwrap()]).unwrap().success().unwrap();
    let client = admin(&sites.cloud);
    for port in 2000..2020 {
        assert!(set_port(&client, port));
    }
    let before = sites.wait_equal("away", 2019);
    sites.cloud.process.kill().unwrap();

    let restored = sites.folder.path().join("restored");
    run(&["restore", backup.to_str().unwrap(), "--data-dir", restored.to_str().unwrap()])
        .unwrap()
        .success()
        .unwrap();
    std::fs::copy(sites.folder.path().join("cloud/seal.key"), restored.join("seal.key")).unwrap();
    sites.cloud = Sites::start_cloud(&restored, sites.channel);
    let after = sites.wait_equal("away", 1000);
    assert!(after.generation().epoch > before.generation().epoch, "{after:?} after {before:?}");
}

#[test]
fn an_edge_killed_while_it_applies_comes_up_whole() {
    let sites = Sites::start();
    let mut process = sites.join("away");
    sites.wait_equal("away", 1000);
    let data_dir = sites.data_dir("away");
    let mut random = SeededRandom::for_test("kill -9 of an edge under change");
    let rounds = if soak() { 50 } else { 8 };
    let (client, is_over) = (admin(&sites.cloud), AtomicBool::new(false));
    let last = std::thread::scope(|scope| {
        let _over = Over(&is_over);
        let writing = scope.spawn(|| {
            let mut port = 1000;
            while !is_over.load(Ordering::Relaxed) {
                port += 1;
                set_port(&client, port);
            }
            port
        });
        let mut held = None;
        for _ in 0..rounds {
            // Not to wait for something: the moment of the kill is what the random choose.
            std::thread::sleep(Duration::from_millis(150 + random.below(600)));
            process.kill().unwrap();
            check_rise("away", &mut held, &data_dir);
            process = edge(sites.folder.path(), "away", &[]);
        }
        is_over.store(true, Ordering::Relaxed);
        writing.join().unwrap()
    });
    sites.wait_equal("away", last);
    let names: Vec<String> = std::fs::read_dir(data_dir.join("netmap"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    assert!(names.iter().all(|name| !name.ends_with(".tmp")), "{names:?}");
}

#[test]
fn an_edge_started_without_the_cloud_serves_its_last_netmap() {
    let mut sites = Sites::start();
    let mut process = sites.join("away");
    let held = sites.wait_equal("away", 1000);
    process.kill().unwrap();
    sites.cloud.process.kill().unwrap();
    let address = free_port();
    let data_dir = sites.data_dir("away");
    let arguments = ["edge", "--data-dir", data_dir.to_str().unwrap(), "--admin", &address.to_string()];
    let command = testlab::causeway::daemon(&arguments).unwrap();
    let process = Process::spawn(command, sites.folder.path().join("alone.log")).unwrap();
    wait_for("its netmap is in force", || {
        let (_, text) = get(address, "/readyz?verbose").ok()?;
        text.contains("[+]netmap ok").then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", process.log()));
    let (_, text) = get(address, "/debug").unwrap();
    let dump: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(dump["netmap"]["generation"], held.generation().to_string(), "{dump}");
    assert_eq!(dump["netmap"]["digest"], held.digest().to_string());
}

#[test]
fn a_full_disk_on_the_edge_keeps_no_access_that_was_taken_away() {
    let sites = Sites::start();
    let Some(disk) = Disk::mount(&sites.data_dir("away"), "1m") else {
        println!(
            "skipped: a_full_disk_on_the_edge_keeps_no_access_that_was_taken_away needs root to mount a tmpfs"
        );
        return;
    };
    let process = sites.join("away");
    let before = sites.wait_equal("away", 1000);
    sites.cloud.wait_condition("egw", "away", "NetmapInForce", "True").unwrap();
    let ballast = disk.fill();

    // With two netmaps on the disk a third takes the room of the older: a full disk alone refuses nothing.
    if sites.data_dir("away").join("netmap/a").exists() && sites.data_dir("away").join("netmap/b").exists() {
        assert!(set_port(&admin(&sites.cloud), 3000));
        sites.wait_equal("away", 3000);
    }
    // Without the room of the older one nothing can be written.
    let mut places: Vec<PathBuf> =
        ["a", "b"].map(|place| sites.data_dir("away").join("netmap").join(place)).into();
    places.retain(|place| place.exists());
    places.sort_by_key(|place| place.metadata().unwrap().modified().unwrap());
    places.iter().rev().skip(1).for_each(|older| std::fs::remove_file(older).unwrap());
    disk.fill();

    let client = admin(&sites.cloud);
    let with_policy = target(&sites.cloud, "away").unwrap()["digest"].clone();
    client.send(&Request::new("DELETE", &path("epolicies", "all"))).unwrap().success().unwrap();
    // It is in force.
    wait_for("the netmap without the policy is in force", || {
        let (_, text) = get(sites.cloud.admin, "/debug").ok()?;
        let dump: Value = serde_json::from_str(&text).ok()?;
        let gateway = dump.pointer("/netmaps/gateways/away")?;
        let (held, target) = (&gateway["held"], &gateway["target"]);
        (held == target && held.is_object() && held["digest"] != with_policy).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", process.log()));
    let condition = sites
        .cloud
        .wait_condition("egw", "away", "NetmapPersisted", "False")
        .unwrap_or_else(|error| panic!("{error}\n{}", process.log()));
    let message = condition["message"].as_str().unwrap();
    assert!(message.contains("No space left") && message.contains("is withdrawn"), "{condition}");
    // The netmap on the disk is not used again.
    sites.cloud.wait_condition("egw", "away", "NetmapInForce", "True").unwrap();
    assert_eq!(persisted(&sites.data_dir("away")), None);

    // With room again the edge writes it by itself, and says so.
    std::fs::remove_file(ballast).unwrap();
    sites.cloud.wait_condition("egw", "away", "NetmapPersisted", "True").unwrap();
    let after = persisted(&sites.data_dir("away")).unwrap();
    assert!(after.generation() > before.generation());
    // A policy that is missing allows no client.
    let policies = NetmapView::decode(&after).policies;
    let allows_somebody = |policy: &PolicyEntry| !policy.sites.is_empty() || !policy.servers.is_empty();
    assert!(!policies.values().any(allows_somebody), "{policies:?}\n{}", process.log());
    assert!(after.generation() > Generation::default());
    drop(process);
    drop(disk);
}
