//! The part of a Kubernetes object that selectors look at: its labels, and the fields that the API server can select by.
//!
//! Input: the JSON of an object. Output: a small value that answers selectors without parsing again.

use causeway_api::selector::Selectable;
use serde_json::Value;

use crate::resource::ResourceName;

/// The fields beside name and namespace that kube-apiserver supports in field selectors, by resource. Other resources,
/// custom ones included, support name and namespace only; selectable fields of custom resources (Kubernetes 1.30) are
/// not known here, and such requests go to the API server.
pub fn selectable_fields(resource: &ResourceName) -> &'static [&'static str] {
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        ("", "nodes") => &["spec.unschedulable"],
        ("", "services") => &["spec.clusterIP", "spec.type"],
        ("", "secrets") => &["type"],
        ("", "namespaces") => &["status.phase"],
        ("", "replicationcontrollers") | ("apps", "replicasets") => &["status.replicas"],
        ("batch", "jobs") => &["status.successful"],
        ("certificates.k8s.io", "certificatesigningrequests") => &["spec.signerName"],
        ("", "events") | ("events.k8s.io", "events") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        _ => &[],
    }
}

/// Labels and selectable fields of one object.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ObjectFacets {
    labels: Box<[(Box<str>, Box<str>)]>,
    fields: Box<[(&'static str, Box<str>)]>,
    name: Box<str>,
    namespace: Box<str>,
}

impl ObjectFacets {
    /// Reads the facets of an object. JSON that cannot be read has none, so that no selector but the empty one matches.
    pub fn read(resource: &ResourceName, body: &[u8]) -> ObjectFacets {
        let Ok(object) = serde_json::from_slice::<Value>(body) else { return ObjectFacets::default() };
        let metadata = &object["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().into();
        let labels = metadata["labels"].as_object().into_iter().flatten();
        let fields = selectable_fields(resource).iter();
        ObjectFacets {
            labels: labels.map(|(key, value)| (key.as_str().into(), text(value))).collect(),
            fields: fields.map(|field| (*field, field_text(&object, field))).collect(),
            name: text(&metadata["name"]),
            namespace: text(&metadata["namespace"]),
        }
    }
}

/// The text that kube-apiserver compares. Absent numbers and booleans have the text of their zero value.
fn field_text(object: &Value, field: &str) -> Box<str> {
    let found = field.split('.').try_fold(object, |object, name| object.get(name));
    match (field, found) {
        (_, Some(Value::String(text))) => text.as_str().into(),
        (_, Some(value @ (Value::Bool(_) | Value::Number(_)))) => value.to_string().into(),
        ("spec.unschedulable" | "spec.hostNetwork", _) => "false".into(),
        ("status.replicas" | "status.successful", _) => "0".into(),
        // As in Kubernetes: the source of an event is its component, or the reporting component.
        ("source", _) => {
            let component = object["source"]["component"].as_str().filter(|text| !text.is_empty());
            component.or_else(|| object["reportingComponent"].as_str()).unwrap_or_default().into()
        }
        _ => "".into(),
    }
}

impl Selectable for ObjectFacets {
    fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| **label == *key).map(|(_, value)| &**value)
    }

    fn field_equals(&self, field: &str, value: &str) -> bool {
        match field {
            "metadata.name" => *self.name == *value,
            "metadata.namespace" => *self.namespace == *value,
            _ => self.fields.iter().any(|(name, found)| *name == field && **found == *value),
        }
    }
}

#[cfg(test)]
mod tests {
    use causeway_api::selector::Selector;

    use super::*;
    use crate::resource::ResourceDescription;

    #[test]
    fn absent_fields_have_the_text_that_kubernetes_gives_them() {
        let check = |plural: &str, body: &str, labels: &str, fields: &str, expected: bool| {
            let name = ResourceName::new("", "v1", plural);
            let description = ResourceDescription {
                name: name.clone(),
                kind: "X".into(),
                list_kind: "XList".into(),
                is_namespaced: true,
                columns: "[]".into(),
            };
            let selector = Selector::parse(description.definition(), labels, fields).unwrap();
            let facets = ObjectFacets::read(&name, body.as_bytes());
            assert_eq!(selector.matches(&facets), expected, "{plural} {labels} {fields}");
        };
        let pod =
            r#"{"metadata":{"name":"a","namespace":"shop","labels":{"app":"web"}},"spec":{"nodeName":"n1"}}"#;
        check("pods", pod, "app=web", "spec.nodeName=n1,metadata.namespace=shop", true);
        check("pods", pod, "app!=web", "", false);
        check("pods", pod, "", "spec.hostNetwork=false", true);
        check("pods", pod, "", "status.phase=", true);
        check("nodes", r#"{"metadata":{"name":"n"}}"#, "", "spec.unschedulable=false", true);
        check(
            "services",
            r#"{"metadata":{"name":"n"},"spec":{"clusterIP":"None"}}"#,
            "",
            "spec.clusterIP!=None",
            false,
        );
        check("events", r#"{"metadata":{"name":"n"},"reportingComponent":"x"}"#, "", "source=x", true);
        check("pods", "no json", "", "metadata.name=a", false);
    }
}
