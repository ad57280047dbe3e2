//! `cargo xtask sbom`: writes the software bill of materials of the `causeway` binary to standard output, as CycloneDX 1.5 in JSON.
//!
//! Input: `cargo metadata` with the lock file. Output: every crate that is built into the binary on Linux, with version, licence,
//! source, checksum of the lock file, and dependencies. Crates that only tests or build scripts use are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

const PACKAGE: &str = "causeway";

pub fn write(root: &Path) -> anyhow::Result<()> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--filter-platform",
            "x86_64-unknown-linux-gnu",
        ])
        .current_dir(root)
        .output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let checksums = checksums(&std::fs::read_to_string(root.join("Cargo.lock"))?);
    println!("{:#}", bill(&metadata, &checksums)?);
    Ok(())
}

/// The checksums of a lock file, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let mut found = BTreeMap::new();
    for package in lock.split("[[package]]") {
        let field = |name: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(&format!("{name} = \"")))?;
            Some(line.trim_end_matches('"').to_owned())
        };
        if let (Some(name), Some(version), Some(checksum)) =
            (field("name"), field("version"), field("checksum"))
        {
            found.insert((name, version), checksum);
        }
    }
    found
}

fn bill(metadata: &Value, checksums: &BTreeMap<(String, String), String>) -> anyhow::Result<Value> {
    let packages = metadata["packages"].as_array().context("no packages")?;
    let by_id: BTreeMap<&str, &Value> =
        packages.iter().filter_map(|package| Some((package["id"].as_str()?, package))).collect();
    let needs = needs(metadata)?;
    let is_root = |package: &&Value| package["name"] == PACKAGE && package["source"].is_null();
    let root = packages.iter().find(is_root).and_then(|package| package["id"].as_str()).context("no root")?;
    let mut built = BTreeSet::from([root]);
    let mut open = vec![root];
    while let Some(id) = open.pop() {
        for need in needs.get(id).into_iter().flatten() {
            if built.insert(need) {
                open.push(need);
            }
        }
    }
    let mut components = Vec::new();
    let mut dependencies = Vec::new();
    for id in &built {
        let package = by_id.get(id).context("a package without an entry")?;
        if *id != root {
            components.push(component(package, checksums, "library"));
        }
        let below: Vec<Value> = needs
            .get(id)
            .into_iter()
            .flatten()
            .filter_map(|need| by_id.get(need))
            .map(|need| purl(need).into())
            .collect();
        dependencies.push(json!({"ref": purl(package), "dependsOn": below}));
    }
    let main = component(by_id.get(root).context("no root")?, checksums, "application");
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": main, "tools": {"components": [{"type": "application", "name": "cargo xtask sbom"}]}},
        "components": components,
        "dependencies": dependencies,
    }))
}

/// The normal dependencies of each package; those of tests and build scripts are not in the binary.
fn needs(metadata: &Value) -> anyhow::Result<BTreeMap<&str, Vec<&str>>> {
    let nodes = metadata["resolve"]["nodes"].as_array().context("no resolve")?;
    let mut needs = BTreeMap::new();
    for node in nodes {
        let below = node["deps"].as_array().into_iter().flatten().filter(|dependency| {
            dependency["dep_kinds"].as_array().into_iter().flatten().any(|kind| kind["kind"].is_null())
        });
        let below: Vec<&str> = below.filter_map(|dependency| dependency["pkg"].as_str()).collect();
        needs.insert(node["id"].as_str().context("a node without an id")?, below);
    }
    Ok(needs)
}

fn component(package: &Value, checksums: &BTreeMap<(String, String), String>, kind: &str) -> Value {
    let text = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
    let (name, version) = (text("name"), text("version"));
    let mut component = json!({
        "type": kind, "bom-ref": purl(package), "name": name, "version": version, "purl": purl(package),
    });
    if let Some(licence) = package["license"].as_str() {
        component["licenses"] = json!([{"expression": licence.replace('/', " OR ")}]);
    }
    if let Some(checksum) = checksums.get(&(name, version)) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    if let Some(repository) = package["repository"].as_str() {
        component["externalReferences"] = json!([{"type": "vcs", "url": repository}]);
    }
    component
}

fn purl(package: &Value) -> String {
    format!(
        "pkg:cargo/{}@{}",
        package["name"].as_str().unwrap_or_default(),
        package["version"].as_str().unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bill_has_what_is_built_and_nothing_else() {
        let package = |name: &str, source: Value| json!({"id": name, "name": name, "version": "1.0.0", "source": source, "license": "MIT/Apache-2.0"});
        let need = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let node = |name: &str, deps: Vec<Value>| json!({"id": name, "deps": deps});
        let metadata = json!({
            "packages": [package("causeway", Value::Null), package("a", json!("r")), package("b", json!("r")),
                package("tester", json!("r")), package("builder", json!("r"))],
            "resolve": {"nodes": [
                node("causeway", vec![need("a", Value::Null), need("tester", json!("dev")), need("builder", json!("build"))]),
                node("a", vec![need("b", Value::Null)]), node("b", vec![]), node("tester", vec![]), node("builder", vec![]),
            ]},
        });
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"abc\"\n";
        let bill = bill(&metadata, &checksums(lock)).unwrap();
        let names: Vec<&str> =
            bill["components"].as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(bill["metadata"]["component"]["name"], "causeway");
        assert_eq!(bill["components"][0]["hashes"], json!([{"alg": "SHA-256", "content": "abc"}]));
        assert_eq!(bill["components"][0]["licenses"], json!([{"expression": "MIT OR Apache-2.0"}]));
        assert_eq!(
            bill["dependencies"][0],
            json!({"ref": "pkg:cargo/a@1.0.0", "dependsOn": ["pkg:cargo/b@1.0.0"]})
        );
    }
}
