//! The whole over loopback. Each test has its own data dir and its own ports.

#![allow(clippy::unwrap_used, clippy::panic)]

mod admin_audit;
mod audit_export;
mod crossing;
mod doctor;
mod full_disk;
mod joining;
mod keeping;
mod limits;
mod links;
mod metric_names;
mod monitoring;
mod nodes;
mod objects;
mod old_versions;
mod operating;
mod packaging;
mod process;
mod replicas;
mod restarts;
mod returning;
mod units;
mod upstream;

use std::path::{Path, PathBuf};

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

    /// Standard output of a client command that must succeed.
    fn run(&self, arguments: &[&str]) -> String {
        self.cloud.run(arguments).unwrap().success().unwrap()
    }

    fn apply(&self, text: &str) -> String {
        self.cloud.apply(text).unwrap().success().unwrap()
    }
}

fn data(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(name).display().to_string()
}

fn examples() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples").to_owned()
}

fn site(name: &str) -> String {
    format!("{{kind: ESite, apiVersion: causeway.io/v1, metadata: {{name: {name}}}}}")
}
