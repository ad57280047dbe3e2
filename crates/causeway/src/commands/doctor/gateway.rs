//! From the cloud to a gateway: is it there, connected, in step, and does anything come back?
//!
//! Every hop is said in one line. What cannot be judged, as all that is behind a link that is down, is not guessed at.

use serde_json::Value;

use super::{Hop, broken, fine};
use crate::output::cell;

/// The cloud's own gateway has no channel: it is where we are.
pub fn is_cloud(gateway: Option<&Value>) -> bool {
    gateway.is_some_and(|gateway| gateway["name"] == "cloud")
}

pub fn examine(name: &str, gateway: Option<&Value>, probe: Option<&Result<Value, String>>) -> Vec<Hop> {
    let Some(gateway) = gateway else {
        return vec![broken(format!(
            "there is no EGateway {name}: `causeway token create --site SITE --gateway {name}` makes it"
        ))];
    };
    let mut hops = Vec::new();
    let text = |key: &str| gateway[key].as_str().unwrap_or("?").to_owned();
    hops.push(fine(format!("EGateway {name} exists, at the site {}", text("site"))));
    let conditions = gateway["conditions"].as_array().into_iter().flatten();
    let failed =
        |kind: &str| conditions.clone().find(|said| said["type"] == kind && said["status"] == "False");
    let unheard = failed("Listening")
        .map(|said| broken(format!("it cannot do all it should: {}", cell(&said["message"]))));
    if is_cloud(Some(gateway)) {
        hops.extend(unheard);
        return hops;
    }
    if gateway["connected"] != true {
        hops.push(broken(match gateway["since"].as_str() {
            Some(since) => format!(
                "not connected since {since}: look at the edge's log, and at UDP and TCP on the channel port between"
            ),
            None => "never connected to this cloud: start `causeway edge --join TOKEN` at the site".to_owned(),
        }));
        return hops;
    }
    let rtt = gateway["rttMs"].as_f64().map_or_else(|| "unknown".to_owned(), |rtt| format!("{rtt:.1} ms"));
    hops.push(fine(format!(
        "connected over {} since {}, round trip {rtt}",
        text("transport"),
        text("since")
    )));
    hops.extend(unheard);
    hops.push(match (failed("NetmapInForce"), gateway["generation"].as_str()) {
        (Some(said), _) => broken(format!("its netmap is not in force: {}", cell(&said["message"]))),
        (None, Some(generation)) => fine(format!("netmap {generation} is in force at the edge")),
        (None, None) => broken("the edge has no netmap yet".to_owned()),
    });
    hops.extend(probe.map(|probe| match probe {
        Ok(found) => {
            let (took, bytes) = (found["milliseconds"].as_f64().unwrap_or(0.0), &found["bytes"]);
            fine(format!("{bytes} bytes went there and back in {took:.1} ms"))
        }
        Err(why) => broken(format!("nothing comes back from the edge: {why}")),
    }));
    hops
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(gateway: Option<Value>, probe: Option<Result<Value, String>>, expected: &[(bool, &str)]) {
        let mut hops = vec![fine("the API answers".to_owned())];
        hops.extend(examine("tokyo", gateway.as_ref(), probe.as_ref()));
        assert_eq!(hops.len(), expected.len());
        for (hop, (is_fine, part)) in hops.iter().zip(expected) {
            assert!(hop.is_fine == *is_fine && hop.text.contains(part), "{}", hop.text);
        }
    }

    #[test]
    fn the_first_hop_that_breaks_is_named() {
        check(None, None, &[(true, "API"), (false, "no EGateway tokyo")]);
        let mut gateway = json!({"name": "tokyo", "site": "Tokyo", "connected": false});
        check(
            Some(gateway.clone()),
            None,
            &[(true, ""), (true, "at the site Tokyo"), (false, "never connected")],
        );
        gateway["since"] = "2026-01-01T00:00:00Z".into();
        check(Some(gateway), None, &[(true, ""), (true, ""), (false, "since 2026-01-01")]);
        let mut gateway =
            json!({"name": "tokyo", "connected": true, "transport": "quic", "since": "now", "rttMs": 3.0});
        let echo = Ok(json!({"milliseconds": 4.0, "bytes": 1000}));
        let ways = [(true, ""), (true, ""), (true, "over quic")];
        let rows = [&ways[..], &[(false, "no netmap"), (true, "1000 bytes")]].concat();
        check(Some(gateway.clone()), Some(echo), &rows);
        gateway["generation"] = "1.7".into();
        let rows = [&ways[..], &[(true, "netmap 1.7"), (false, "nothing comes back")]].concat();
        check(Some(gateway), Some(Err("reset".to_owned())), &rows);
        check(
            Some(json!({"name": "cloud", "site": "cloud", "connected": true})),
            None,
            &[(true, ""), (true, "")],
        );
        let unheard = json!([{"type": "Listening", "status": "False", "message": "no names"}]);
        check(
            Some(json!({"name": "cloud", "site": "cloud", "connected": true, "conditions": unheard})),
            None,
            &[(true, ""), (true, ""), (false, "no names")],
        );
    }
}
