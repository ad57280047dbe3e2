//! Invariants that hold when things go wrong: bad input, crashes, full disks, lost machines, overload.
//!
//! The real binary, real TLS, loopback only. Short forms by default; CAUSEWAY_SOAK=1 runs the long ones.

#![allow(clippy::unwrap_used, clippy::panic)]

mod bad_input;
mod change;
mod enrolment;
mod fleet;
mod flood;
mod full_disk;
mod kill;
mod netmaps;
mod overload;
mod replicas;

use std::path::{Path, PathBuf};

use causeway_api::management::paths;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use testlab::causeway::{Cloud, Process, daemon, wait_for};
use testlab::https::{Client, Credentials};

const GROUP: &str = "/apis/causeway.io/v1";
const KINDS: [&str; 8] = [
    "esites",
    "egateways",
    "eservices",
    "eservers",
    "epolicies",
    "serviceexposes",
    "virtualpresences",
    "ecommunities",
];

/// A cloud in a temporary folder of its own, and its admin.
struct Lab {
    cloud: Cloud,
    admin: Client,
    folder: tempfile::TempDir,
}

impl Lab {
    fn start() -> Lab {
        let folder = tempfile::tempdir().unwrap();
        let cloud = Cloud::start(&folder.path().join("cloud")).unwrap();
        let admin = admin(&cloud);
        Lab { cloud, admin, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn edge(&self, name: &str, more: &[&str]) -> Process {
        edge(self.folder.path(), name, more)
    }

    /// Starts an edge that has a token and waits until it holds its certificate.
    fn join(&self, name: &str, token: &str) -> Process {
        let process = self.edge(name, &["--join", token]);
        let certificate = self.path(name).join("identity.pem");
        wait_for("the edge is enrolled", || certificate.exists().then_some(()))
            .unwrap_or_else(|error| panic!("{error}\n{}", process.log()));
        process
    }
}

fn admin(cloud: &Cloud) -> Client {
    Client::from_kubeconfig(&cloud.kubeconfig()).unwrap()
}

fn edge(folder: &Path, name: &str, more: &[&str]) -> Process {
    let data_dir = folder.join(name);
    let arguments =
        [&["edge", "--data-dir", data_dir.to_str().unwrap(), "--admin", "127.0.0.1:0"], more].concat();
    Process::spawn(daemon(&arguments).unwrap(), folder.join(format!("{name}.log"))).unwrap()
}

/// The certificate that an edge shows in TLS.
fn edge_credentials(data_dir: &Path) -> Credentials {
    let pem = std::fs::read(data_dir.join("identity.pem")).unwrap();
    let chain = CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>().unwrap();
    Credentials { chain, key: PrivateKeyDer::from_pem_slice(&pem).unwrap() }
}

/// One call under /causeway/v1 that must succeed.
fn call(client: &Client, path: &str, body: &Value) -> Value {
    client.post(&format!("{}{path}", paths::PREFIX), body).unwrap().success().unwrap()
}

fn join_token(client: &Client, site: &str) -> String {
    call(client, "tokens", &json!({"site": site}))["token"].as_str().unwrap().to_owned()
}

fn viewer(client: &Client) -> Client {
    let made = call(client, "tokens", &json!({"role": "viewer", "ttlSeconds": 3600}));
    client.with_bearer(made["token"].as_str().unwrap()).unwrap()
}

fn site(name: &str) -> Value {
    json!({"kind": "ESite", "apiVersion": "causeway.io/v1", "metadata": {"name": name}})
}

fn path(plural: &str, name: &str) -> String {
    format!("{GROUP}/{plural}/{name}")
}

/// The certificates of the CA, as the API tells them.
fn authorities(client: &Client) -> Value {
    let mut shown: Value = client.get(paths::CA).unwrap().success().unwrap();
    // Each replica names its own seal key.
    shown.as_object_mut().unwrap().remove("sealKey").unwrap();
    shown
}

/// The revision of the store, as a list shows it.
fn revision(client: &Client) -> u64 {
    let list = client.get(&format!("{GROUP}/ecommunities?limit=1")).unwrap().success().unwrap();
    list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// Returns true if the long form is wanted.
fn soak() -> bool {
    std::env::var_os("CAUSEWAY_SOAK").is_some_and(|value| value == "1")
}
