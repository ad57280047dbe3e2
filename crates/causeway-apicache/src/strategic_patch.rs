//! Strategic merge patches of Kubernetes, as kubelets send them for the status of nodes and pods.
//!
//! `apply` gives the object after a patch; `difference` gives the patch that leads from one object to another and leaves
//! everything else as it is. Lists merge by the keys that Kubernetes declares for these two kinds; other lists are replaced whole.

use serde_json::{Map, Value};

/// The key by which the elements of a list are merged, in nodes, pods and events. `None`: the list is replaced.
fn merge_key(field: &str) -> Option<&'static str> {
    match field {
        "conditions" | "addresses" => Some("type"),
        "podIPs" | "hostIPs" => Some("ip"),
        "resourceClaimStatuses" => Some("name"),
        "ownerReferences" => Some("uid"),
        _ => None,
    }
}

const DIRECTIVE: &str = "$patch";
const ORDER: &str = "$setElementOrder/";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const RETAIN: &str = "$retainKeys";

/// Returns `object` with `patch` applied. Directives that are not known are ignored, as they change no value.
pub fn apply(object: Value, patch: &Value) -> Value {
    match (object, patch) {
        (Value::Object(object), Value::Object(patch)) => Value::Object(apply_map(object, patch)),
        (_, Value::Object(patch)) => Value::Object(apply_map(Map::new(), patch)),
        (_, patch) => patch.clone(),
    }
}

fn apply_map(mut object: Map<String, Value>, patch: &Map<String, Value>) -> Map<String, Value> {
    match patch.get(DIRECTIVE).and_then(Value::as_str) {
        Some("replace") => object = Map::new(),
        Some("delete") => return Map::new(),
        _ => {}
    }
    if let Some(Value::Array(retained)) = patch.get(RETAIN) {
        object.retain(|name, _| retained.iter().any(|retained| retained == name.as_str()));
    }
    for (name, value) in patch {
        if let Some(list) = name.strip_prefix(DELETE_FROM)
            && let (Some(Value::Array(held)), Value::Array(gone)) = (object.get_mut(list), value)
        {
            held.retain(|element| !gone.contains(element));
        }
        if name.starts_with('$') {
            continue;
        }
        let held = object.remove(name).unwrap_or(Value::Null);
        let merged = match (value, merge_key(name)) {
            (Value::Null, _) => continue,
            (Value::Array(elements), Some(key)) => {
                let held = match held {
                    Value::Array(held) => held,
                    _ => Vec::new(),
                };
                Value::Array(apply_list(held, elements, key))
            }
            (value, _) => apply(held, value),
        };
        object.insert(name.clone(), merged);
    }
    for (name, order) in patch {
        if let (Some(list), Value::Array(order)) = (name.strip_prefix(ORDER), order)
            && let Some(key) = merge_key(list)
            && let Some(Value::Array(elements)) = object.get_mut(list)
        {
            let position = |element: &Value| {
                order.iter().position(|place| place[key] == element[key]).unwrap_or(order.len())
            };
            elements.sort_by_key(position);
        }
    }
    object
}

fn apply_list(mut held: Vec<Value>, elements: &[Value], key: &str) -> Vec<Value> {
    let directive = |element: &Value| element[DIRECTIVE].as_str().map(str::to_owned);
    // An element that holds nothing but this directive speaks of the whole list.
    if elements
        .iter()
        .any(|element| directive(element).as_deref() == Some("replace") && element[key].is_null())
    {
        held.clear();
    }
    for element in elements {
        let place = held.iter().position(|held| !element[key].is_null() && held[key] == element[key]);
        match (directive(element).as_deref(), place) {
            (Some("delete"), Some(place)) => drop(held.remove(place)),
            (Some("delete"), None) => {}
            (Some("replace"), _) if element[key].is_null() => {}
            (_, Some(place)) => held[place] = apply(held[place].take(), element),
            (_, None) => held.push(apply(Value::Null, element)),
        }
    }
    held
}

/// Returns the patch that brings the changes between `before` and `after` to another version of the object; `None` when there are none.
pub fn difference(before: &Value, after: &Value) -> Option<Value> {
    let (Value::Object(before), Value::Object(after)) = (before, after) else {
        return (before != after).then(|| after.clone());
    };
    let mut patch = Map::new();
    for (name, value) in after {
        let changed = match (before.get(name), value, merge_key(name)) {
            (Some(Value::Array(old)), Value::Array(new), Some(key))
                if old.iter().chain(new).all(Value::is_object) =>
            {
                list_difference(old, new, key)
            }
            (Some(old), new, _) => difference(old, new),
            (None, new, _) => Some(new.clone()),
        };
        if let Some(changed) = changed {
            patch.insert(name.clone(), changed);
        }
    }
    for name in before.keys().filter(|name| !after.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

fn list_difference(before: &[Value], after: &[Value], key: &str) -> Option<Value> {
    let find =
        |list: &[Value], wanted: &Value| list.iter().find(|element| element[key] == wanted[key]).cloned();
    let mut elements = Vec::new();
    for new in after {
        let changed = match find(before, new) {
            Some(old) => difference(&old, new),
            None => Some(new.clone()),
        };
        if let Some(mut changed) = changed {
            changed[key] = new[key].clone();
            elements.push(changed);
        }
    }
    for old in before.iter().filter(|old| find(after, old).is_none()) {
        elements.push(serde_json::json!({DIRECTIVE: "delete", key: old[key]}));
    }
    (!elements.is_empty()).then_some(Value::Array(elements))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_of_a_kubelet_changes_what_it_names() {
        let check = |object: Value, patch: Value, expected: Value| {
            assert_eq!(apply(object, &patch), expected, "{patch}");
        };
        let ready = |status: &str, at: &str| json!({"type": "Ready", "status": status, "at": at});
        let disk = json!({"type": "Disk", "status": "False"});
        check(
            json!({"status": {"conditions": [disk.clone(), ready("True", "1")], "phase": "Running"}}),
            json!({"status": {"$setElementOrder/conditions": [{"type": "Ready"}, {"type": "Disk"}],
                "conditions": [{"type": "Ready", "status": "False"}]}}),
            json!({"status": {"conditions": [ready("False", "1"), disk.clone()], "phase": "Running"}}),
        );
        check(
            json!({"status": {"addresses": [{"type": "IP", "address": "1"}]}}),
            json!({"status": {"addresses": [{"type": "Hostname", "address": "a"}, {"$patch": "replace"}]}}),
            json!({"status": {"addresses": [{"type": "Hostname", "address": "a"}]}}),
        );
        check(
            json!({"status": {"podIPs": [{"ip": "1"}], "podIP": "1", "reason": "x"}}),
            json!({"status": {"podIPs": [{"ip": "2"}, {"$patch": "delete", "ip": "1"}], "podIP": "2", "reason": null}}),
            json!({"status": {"podIPs": [{"ip": "2"}], "podIP": "2"}}),
        );
        check(
            json!({"status": {"containerStatuses": [{"name": "a"}, {"name": "b"}]}}),
            json!({"status": {"containerStatuses": [{"name": "c"}]}}),
            json!({"status": {"containerStatuses": [{"name": "c"}]}}),
        );
        check(json!({"a": [1, 2, 3]}), json!({"$deleteFromPrimitiveList/a": [2]}), json!({"a": [1, 3]}));
        check(json!({"a": {"x": 1}}), json!({"a": {"$patch": "replace", "y": 2}}), json!({"a": {"y": 2}}));
        check(json!([]), json!({"a": {"b": 1}}), json!({"a": {"b": 1}}));
    }

    #[test]
    fn a_difference_leaves_what_others_changed_meanwhile() {
        let base = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Net", "status": "True"}],
            "podIPs": [{"ip": "1"}], "podIP": "1", "gone": 1}});
        let site = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Net", "status": "True"}],
            "podIPs": [{"ip": "2"}], "podIP": "2"}});
        let patch = difference(&base, &site).unwrap();
        assert_eq!(apply(base.clone(), &patch), site);
        let mut cloud = base.clone();
        cloud["status"]["conditions"][1]["status"] = json!("False");
        cloud["status"]["new"] = json!(true);
        let merged = apply(cloud, &patch);
        assert_eq!(merged["status"]["conditions"][0]["status"], "False", "changed at the site");
        assert_eq!(merged["status"]["conditions"][1]["status"], "False", "changed in the cloud");
        assert_eq!((&merged["status"]["new"], &merged["status"]["podIP"]), (&json!(true), &json!("2")));
        assert_eq!(difference(&base, &base), None);
        let strange = difference(&json!({"podIPs": ["1"]}), &json!({"podIPs": ["2"]}));
        assert_eq!(strange, Some(json!({"podIPs": ["2"]})));
    }
}
