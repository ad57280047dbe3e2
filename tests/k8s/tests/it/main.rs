//! Real Kubernetes clients against the real binary: kubectl (two versions), the Python and JavaScript clients, kopf, kube-rs.
//!
//! Each test has its own cloud on its own ports and data dir. The requests are those that the clients themselves send.

#![allow(clippy::unwrap_used, clippy::panic)]

mod kubectl;

mod aggregated;
mod apply;
mod change;
mod chart;
mod cluster_ip;
mod discovery;
mod documents;
mod edge_api;
mod edge_api_answers;
mod edge_api_attacks;
mod edge_api_bench;
mod edge_api_callers;
mod edge_api_compromised;
mod edge_api_kills;
mod edge_api_parity;
mod edge_api_random;
mod edge_api_scale;
mod edge_api_watches;
mod edge_caches;
mod edge_controllers;
mod edge_kubelet;
mod edge_pods;
mod edit;
mod gitops;
mod history;
mod how_to;
mod javascript;
mod kopf;
mod kube_rs;
mod node_enrolment;
mod nodes;
mod objects;
mod python;
mod read;
mod rights;
mod snapshot;

use std::path::{Path, PathBuf};

use kubectl::Kubectl;
use testlab::causeway::Cloud;

/// A cloud in a temporary folder of its own.
struct Lab {
    cloud: Cloud,
    folder: tempfile::TempDir,
}

impl Lab {
    fn start() -> Lab {
        let folder = tempfile::tempdir().unwrap();
        let cloud = Cloud::start(&folder.path().join("cloud")).unwrap();
        Lab { cloud, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file beside the data dir and returns its path.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// `kill -9`.
    fn kill(&mut self) {
        self.cloud.process.kill().unwrap();
    }

    /// The same data dir and the same ports again.
    fn start_again(&mut self) {
        let (api, channel) = (self.cloud.api.to_string(), self.cloud.channel.to_string());
        self.cloud =
            Cloud::start_with(&self.cloud.data_dir, &["--api", &api, "--channel", &channel]).unwrap();
    }

    /// A client of kube-rs, as the admin.
    async fn client(&self) -> kube::Client {
        // Another test in this process may have been first.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let file = kube::config::Kubeconfig::read_from(self.cloud.kubeconfig()).unwrap();
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(file, &options).await.unwrap();
        kube::Client::try_from(config).unwrap()
    }
}

/// Tells the story once per kubectl, each time to a new cloud.
fn each_kubectl(story: impl Fn(&Lab, &Kubectl)) {
    for program in kubectl::programs() {
        let lab = Lab::start();
        let kubectl = Kubectl::new(&program, &lab.cloud.kubeconfig(), lab.path("home"));
        println!("kubectl 1.{} ({})", kubectl.minor, program.display());
        story(&lab, &kubectl);
    }
}

/// A file of `tests/k8s`.
fn here(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name).display().to_string()
}

fn site(name: &str, subnet: &str) -> String {
    format!(
        "---\n{{kind: ESite, apiVersion: causeway.io/v1, metadata: {{name: {name}}}, subnets: [{subnet}]}}\n"
    )
}
