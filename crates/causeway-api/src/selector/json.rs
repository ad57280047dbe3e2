//! Evaluates selectors on a JSON document of any resource, by the paths of its fields.

use serde_json::Value;

use super::Selectable;

/// The JSON form of an object whose type is not known at compile time.
#[derive(Clone, Copy, Debug)]
pub struct JsonObject<'a>(pub &'a Value);

impl Selectable for JsonObject<'_> {
    fn label(&self, key: &str) -> Option<&str> {
        self.0.get("metadata")?.get("labels")?.get(key)?.as_str()
    }

    fn field_equals(&self, field: &str, value: &str) -> bool {
        match field.split('.').try_fold(self.0, |object, name| object.get(name)) {
            None => value.is_empty(),
            Some(Value::Array(items)) => items.iter().any(|item| equals(item, value)),
            Some(found) => equals(found, value),
        }
    }
}

/// Compares as Kubernetes does, which turns every selectable field into text first.
fn equals(found: &Value, value: &str) -> bool {
    match found {
        Value::Null => value.is_empty(),
        Value::String(text) => text == value,
        Value::Bool(truth) => value == if *truth { "true" } else { "false" },
        Value::Number(number) => number.to_string().as_str() == value,
        Value::Array(_) | Value::Object(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api_resource::ResourceDefinition;
    use crate::selector::Selector;

    #[test]
    fn a_pod_is_selected_by_labels_and_by_the_paths_of_its_fields() {
        let pods = ResourceDefinition {
            group: String::new(),
            version: "v1".into(),
            plural: "pods".into(),
            kind: "Pod".into(),
            is_namespaced: true,
            has_status: true,
            fields: ["spec.nodeName", "spec.hostNetwork", "status.podIPs"].map(str::to_owned).to_vec(),
        };
        let pod = json!({
            "metadata": {"name": "a", "namespace": "shop", "labels": {"app": "web"}},
            "spec": {"hostNetwork": false},
            "status": {"podIPs": ["10.0.0.1", "10.0.0.2"]},
        });
        let check = |labels: &str, fields: &str, expected: bool| {
            let selector = Selector::parse(&pods, labels, fields).unwrap();
            assert_eq!(selector.matches(&JsonObject(&pod)), expected, "{labels} {fields}");
        };
        check("app=web", "metadata.name=a,metadata.namespace=shop", true);
        check("app!=web", "", false);
        check("", "spec.nodeName=", true);
        check("", "spec.nodeName!=n1", true);
        check("", "spec.hostNetwork=false", true);
        check("", "status.podIPs=10.0.0.2", true);
        check("", "status.podIPs=10.0.0.3", false);
        assert!(Selector::parse(&pods, "", "spec.containers=x").is_err());
    }
}
