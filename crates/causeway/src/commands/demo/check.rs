//! Does the demo hold what it promises? Waits for conditions, then looks at everything once more.

use std::time::Duration;

use anyhow::{bail, ensure};
use causeway_api::{ApiVersion, Kind};
use http::Method;
use serde_json::Value;

use crate::client::{self, Api};
use crate::commands::apply::{Manner, Outcome, apply};
use crate::commands::get::{items, name_of, shown_table};
use crate::manifest::Manifest;
use crate::output;

/// Between two looks at conditions that the cloud is about to write.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
const LOOKS_MAX: usize = 400;

/// Waits until the cloud has said of every object whether it is ready.
pub async fn wait_until_ready(api: &Api, manifests: &[Manifest]) -> anyhow::Result<()> {
    for manifest in manifests {
        let path = client::object(manifest.version, manifest.kind, &manifest.name);
        let mut looks = 0;
        while verdict(&api.get(&path).await?) != Some(true) {
            looks += 1;
            if looks > LOOKS_MAX {
                bail!("{}/{} does not become ready", manifest.kind.singular(), manifest.name);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
    Ok(())
}

/// Exposures are ready when they have their addresses; the presences themselves are told a moment later.
async fn wait_for_presences(api: &Api) -> anyhow::Result<()> {
    let path = client::collection(ApiVersion::Group, Kind::VirtualPresence);
    for _ in 0..LOOKS_MAX {
        let presences = items(Kind::VirtualPresence, api.get(&path).await?);
        if presences.iter().all(|presence| verdict(presence) == Some(true)) {
            return Ok(());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    bail!("not every presence becomes ready")
}

/// What the Ready condition says about the present generation; nothing when it is about an older one.
fn verdict(object: &Value) -> Option<bool> {
    let conditions = object["status"]["conditions"].as_array()?;
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready")?;
    let current = ready["observedGeneration"] == object["metadata"]["generation"];
    current.then(|| ready["status"] == "True")
}

/// Each line is a promise; the first that is broken is the error.
pub async fn verify(api: &Api, manifests: &[Manifest]) -> anyhow::Result<()> {
    for manifest in manifests {
        let outcome = apply(api, manifest, &Manner::default()).await?;
        let name = format!("{}/{}", manifest.kind.singular(), manifest.name);
        ensure!(outcome == Outcome::Unchanged, "{name} was applied twice and is {}", outcome.name());
    }
    wait_for_presences(api).await?;
    let mut count = 0;
    for kind in Kind::ALL {
        let path = client::collection(ApiVersion::Group, kind);
        let list = items(kind, api.get(&path).await?);
        for object in &list {
            ensure!(verdict(object) == Some(true), "{} is not ready", name_of(object));
        }
        let table = api.call(Method::GET, &path, client::TABLE, None).await?.value;
        let rows = shown_table(&table, false, None).rows.len();
        ensure!(
            rows == list.len(),
            "the table of {} has {rows} rows for {} objects",
            kind.plural(),
            list.len()
        );
        count += list.len();
    }
    ensure!(count >= manifests.len(), "{count} objects, {} were applied", manifests.len());
    let status = api.get("/causeway/v1/status").await?;
    let gateways = status["gateways"].as_array().map_or(0, Vec::len);
    ensure!(gateways >= 2, "the status knows {gateways} gateways");
    output::print_line(&format!("demo: {count} objects, all ready"))
}
