//! The copies of the Kubernetes API at the edges as the cloud tells them: `GET /causeway/v1/caches`.

use serde_json::Value;
use testlab::causeway::wait_for;

use crate::edge_api::{EdgeLab, missing};
use crate::kubectl::{self, Kubectl};

#[test]
fn the_cloud_tells_the_state_of_each_copy() {
    if let Some(reason) = missing() {
        println!("SKIPPED: the copies of the Kubernetes API at edges: {reason}");
        return;
    }
    let lab = EdgeLab::start();
    for number in 0..3 {
        lab.config_map(&format!("map-{number}"), "first");
    }
    lab.await_live("configmaps");
    let home = lab.folder.path().join("home-cloud");
    let cloud = Kubectl::new(&kubectl::programs().remove(0), &lab.cloud.kubeconfig(), home);
    let caches = || -> Option<Value> {
        let answer = cloud.run("get --raw /causeway/v1/caches").success().ok()?;
        serde_json::from_str(&answer).ok()
    };
    let in_sync = wait_for("the copy of the edge is told as it is", || {
        let cache = caches()?["caches"].get(0)?.clone();
        let pinned =
            cache["subscriptions"].as_array()?.iter().find(|one| one["resource"] == "v1/configmaps")?;
        let is_whole = pinned["live"] == true && pinned["objects"].as_u64()? >= 3;
        (cache["behind"] == 0 && is_whole).then_some(cache)
    })
    .unwrap();
    assert_eq!((&in_sync["site"], &in_sync["connected"]), (&Value::from("Tokyo"), &Value::from(true)));
    assert_eq!((&in_sync["pendingWrites"], &in_sync["failure"]), (&Value::from(0), &Value::Null));
    assert!(in_sync["bytes"].as_u64() > Some(0) && in_sync["resources"].as_u64() >= Some(2), "{in_sync}");
    // An edge that is away cannot tell.
    lab.relay.cut();
    wait_for("the copy of an edge that is away is not told", || {
        caches()?["caches"].as_array()?.is_empty().then_some(())
    })
    .unwrap();
}
