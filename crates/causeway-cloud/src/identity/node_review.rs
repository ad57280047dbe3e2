//! Decides from the answers of a cluster's API server which node a pod is on, and whether the node may have its gateway.
//!
//! Input: the TokenReview, the Pod, the objects and the record of the gateway, as values. Output: names, or a refusal with the
//! fix. Pure; `node_enrolment` asks the cluster and the store.

use std::fmt;
use std::str::FromStr;

use causeway_api::CLOUD;
use causeway_channel::PeerId;
use causeway_channel::wire::{EnrolmentCode, EnrolmentRefusal, SERVICE_ACCOUNT_TOKEN_BYTES_MAX};
use serde_json::Value;

use super::gateways::GatewayRecord;

/// A service account, as `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAccountName {
    namespace: String,
    name: String,
}

impl FromStr for ServiceAccountName {
    type Err = String;

    fn from_str(text: &str) -> Result<ServiceAccountName, String> {
        match text.split_once('/') {
            Some((namespace, name)) if is_name(namespace) && is_name(name) => {
                Ok(ServiceAccountName { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err(format!("`{text}` is no service account: write NAMESPACE/NAME")),
        }
    }
}

impl fmt::Display for ServiceAccountName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.namespace, self.name)
    }
}

/// The pod that a token is bound to, as the API server reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReviewedPod {
    pub account: ServiceAccountName,
    pub name: String,
    pub uid: String,
    /// Reported by Kubernetes 1.32 and later. None: read the Pod.
    pub node: Option<String>,
}

impl ReviewedPod {
    /// The path of the Pod at the API server.
    pub fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/{}", self.account.namespace, self.name)
    }

    /// For the audit log.
    pub fn describe(&self, node: Option<&str>) -> String {
        let node = node.map(|node| format!("node {node}, ")).unwrap_or_default();
        format!("{node}pod {}/{}, service account {}", self.account.namespace, self.name, self.account)
    }
}

/// Refuses text that cannot be a service-account token, before the API server is asked.
pub fn check_token(token: &str) -> Result<(), EnrolmentRefusal> {
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_=".contains(&byte))
    };
    let is_token = token.len() <= SERVICE_ACCOUNT_TOKEN_BYTES_MAX
        && token.split('.').count() == 3
        && token.split('.').all(is_part);
    match is_token {
        true => Ok(()),
        false => Err(EnrolmentRefusal::new(
            EnrolmentCode::TokenUnknown,
            "the text shown is no service-account token",
            "let `join-service-account` of the edge name the file of a projected service-account token",
        )),
    }
}

/// Reads a TokenReview that was asked for `audience`. `accounts` may enrol.
pub fn read_review(
    review: &Value,
    audience: &str,
    accounts: &[ServiceAccountName],
) -> Result<ReviewedPod, EnrolmentRefusal> {
    let status = &review["status"];
    // An authenticator that knows no audiences leaves the list out; such a token may be meant for any service.
    let is_for_audience =
        status["audiences"].as_array().is_some_and(|all| all.iter().any(|found| found == audience));
    if status["authenticated"] != Value::Bool(true) || !is_for_audience {
        return Err(EnrolmentRefusal::new(
            EnrolmentCode::TokenUnknown,
            format!(
                "the cluster does not accept the service-account token for the audience {audience}: it has expired, is for another audience, or its pod is gone"
            ),
            format!("project a token with `audience: {audience}` into the pod (docs/identity.md)"),
        ));
    }
    let user = &status["user"];
    let username = user["username"].as_str().unwrap_or_default();
    let account = username.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    let account = account.and_then(|(namespace, name)| format!("{namespace}/{name}").parse().ok());
    let Some(account) = account.filter(|account| accounts.contains(account)) else {
        let shown: String = username.chars().filter(|letter| !letter.is_control()).take(200).collect();
        return Err(EnrolmentRefusal::new(
            EnrolmentCode::NotPermitted,
            format!("{shown:?} is no service account that may enrol"),
            "name it in `join-service-accounts` of the cloud as NAMESPACE/NAME",
        ));
    };
    let extra = |name: &str| {
        let found = user["extra"][format!("authentication.kubernetes.io/{name}")][0].as_str();
        found.filter(|text| is_name(text)).map(str::to_owned)
    };
    match (extra("pod-name"), extra("pod-uid")) {
        (Some(name), Some(uid)) => Ok(ReviewedPod { account, name, uid, node: extra("node-name") }),
        _ => Err(EnrolmentRefusal::new(
            EnrolmentCode::NotPermitted,
            format!("the token of service account {account} is bound to no pod"),
            "use a projected service-account token; tokens of Secrets and of `kubectl create token` name no node",
        )),
    }
}

/// Returns the node of a reviewed pod from the Pod that the API server has under its name.
pub fn node_of(pod: &ReviewedPod, found: &Value) -> Result<String, EnrolmentRefusal> {
    let refuse = |why: &str| {
        let message = format!("pod {}/{} {why}", pod.account.namespace, pod.name);
        Err(EnrolmentRefusal::new(EnrolmentCode::NotPermitted, message, "show the token of a running pod"))
    };
    if found["metadata"]["uid"] != pod.uid.as_str() {
        return refuse("is another one than the token is bound to");
    }
    if found["spec"]["serviceAccountName"] != pod.account.name.as_str() {
        return refuse("runs under another service account");
    }
    match found["spec"]["nodeName"].as_str() {
        Some(node) if is_name(node) => Ok(node.to_owned()),
        _ => refuse("is on no node"),
    }
}

/// Names the gateway of a node: it has the node's name, at the site of the EServer of that name or at the default site.
pub fn gateway_of(
    node: &str,
    server_site: Option<&str>,
    default_site: Option<&str>,
) -> Result<PeerId, EnrolmentRefusal> {
    let refuse =
        |message: String, hint: &str| Err(EnrolmentRefusal::new(EnrolmentCode::NotPermitted, message, hint));
    let Some(site) = server_site.filter(|site| !site.is_empty()).or(default_site) else {
        return refuse(
            format!("node {node} belongs to no site: there is no EServer {node}"),
            "create the EServer with its `eSiteName`, or set `join-default-site` of the cloud",
        );
    };
    // A peer with such a certificate would be taken for the cloud itself.
    if site == CLOUD || node == CLOUD {
        return refuse(
            format!("node {node} of site {site} cannot be a gateway: `{CLOUD}` is this cloud itself"),
            "give the node another name and its EServer another site",
        );
    }
    PeerId::new(site, node).or_else(|error| {
        refuse(format!("node {node} cannot be a gateway: {error}"), "give the node a shorter name")
    })
}

/// An EGateway as far as enrolment needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredGateway {
    /// `eSiteName`.
    pub site: String,
    /// It has a deletion mark, and counts as deleted while finalizers keep it.
    pub is_marked: bool,
}

/// Decides whether a pod on the node of `peer` may have the key of its gateway certified.
///
/// `object`: the EGateway, if it exists. `record`: the enrolment of the present EGateway; none when it was never enrolled. The
/// node is `peer.gateway()`.
pub fn judge_gateway(
    peer: &PeerId,
    object: Option<&StoredGateway>,
    record: Option<&GatewayRecord>,
) -> Result<(), EnrolmentRefusal> {
    let (site, gateway) = (peer.site(), peer.gateway());
    let refuse = |message: String, hint: String| {
        Err(EnrolmentRefusal::new(EnrolmentCode::NotPermitted, message, hint))
    };
    if object.is_some_and(|object| object.is_marked) {
        return refuse(
            format!("EGateway {gateway} is being deleted"),
            format!("wait until EGateway {gateway} is gone, then create it again if its node may enrol"),
        );
    }
    if let Some(found) = object.map(|object| &*object.site).filter(|found| *found != site) {
        return refuse(
            format!("EGateway {gateway} is at site {found} and node {gateway} at site {site}"),
            format!("set `eSiteName` of the EGateway or of EServer {gateway}"),
        );
    }
    let Some(record) = record else { return Ok(()) };
    if record.key.is_none() || object.is_none() {
        return refuse(
            format!("gateway {gateway} was revoked, or its EGateway deleted"),
            format!("delete EGateway {gateway} if it exists and create it again; its node may enrol then"),
        );
    }
    match record.node.as_deref() == Some(gateway) {
        true => Ok(()),
        false => refuse(
            format!("gateway {gateway} was enrolled by other means than node {gateway}"),
            format!("delete EGateway {gateway} and create it again, if the node shall have it"),
        ),
    }
}

/// Names of Kubernetes objects and UIDs. Everything else must not become part of a path.
fn is_name(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    !text.is_empty() && text.len() <= 253 && text.bytes().all(is_letter) && !text.contains("..")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const AUDIENCE: &str = "causeway.io/join";

    fn accounts() -> Vec<ServiceAccountName> {
        vec!["causeway-system/causeway-edge".parse().unwrap()]
    }

    fn review(audience: &str, user: &str, extra: Value) -> Value {
        json!({"status": {"authenticated": true, "audiences": [audience], "user": {"username": user, "extra": extra}}})
    }

    fn bound() -> Value {
        json!({"authentication.kubernetes.io/pod-name": ["edge-x"], "authentication.kubernetes.io/pod-uid": ["u-1"]})
    }

    const USER: &str = "system:serviceaccount:causeway-system:causeway-edge";

    #[test]
    fn a_review_names_the_pod_of_a_permitted_account_or_a_reason() {
        let check = |review: Value, expected: Result<Option<&str>, (EnrolmentCode, &str)>| match (
            read_review(&review, AUDIENCE, &accounts()),
            expected,
        ) {
            (Ok(pod), Ok(node)) => {
                assert_eq!(
                    (pod.name.as_str(), pod.uid.as_str(), pod.node.as_deref()),
                    ("edge-x", "u-1", node)
                );
            }
            (Err(refusal), Err((code, part))) => {
                assert_eq!(refusal.reason(), code, "{refusal}");
                assert!(refusal.message.contains(part) && !refusal.hint.is_empty(), "{part}: {refusal}");
            }
            (found, expected) => panic!("{found:?} {expected:?}"),
        };
        let unknown = |part| Err((EnrolmentCode::TokenUnknown, part));
        let denied = |part| Err((EnrolmentCode::NotPermitted, part));
        check(review(AUDIENCE, USER, bound()), Ok(None));
        let mut named = bound();
        named["authentication.kubernetes.io/node-name"] = json!(["n1"]);
        check(review(AUDIENCE, USER, named), Ok(Some("n1")));
        check(review("https://kubernetes.default.svc", USER, bound()), unknown("another audience"));
        let mut unaware = review(AUDIENCE, USER, bound());
        unaware["status"]["audiences"].take();
        check(unaware, unknown("another audience"));
        let mut expired = review(AUDIENCE, USER, bound());
        expired["status"]["authenticated"] = json!(false);
        check(expired, unknown("has expired"));
        check(json!({}), unknown("has expired"));
        for user in [
            "system:serviceaccount:other:causeway-edge",
            "system:serviceaccount:causeway-system:other",
            "root",
            "",
        ] {
            check(review(AUDIENCE, user, bound()), denied("no service account that may enrol"));
        }
        check(review(AUDIENCE, USER, json!({})), denied("bound to no pod"));
        check(
            review(AUDIENCE, USER, json!({"authentication.kubernetes.io/pod-name": ["edge-x"]})),
            denied("bound to no pod"),
        );
        let mut path = bound();
        path["authentication.kubernetes.io/pod-name"] = json!(["../../nodes/n1"]);
        check(review(AUDIENCE, USER, path), denied("bound to no pod"));
    }

    #[test]
    fn a_pod_has_the_node_of_the_pod_that_the_token_is_bound_to() {
        let pod = read_review(&review(AUDIENCE, USER, bound()), AUDIENCE, &accounts()).unwrap();
        assert_eq!(pod.path(), "/api/v1/namespaces/causeway-system/pods/edge-x");
        let found = |uid: &str, account: &str, node: Value| json!({"metadata": {"uid": uid}, "spec": {"serviceAccountName": account, "nodeName": node}});
        assert_eq!(node_of(&pod, &found("u-1", "causeway-edge", json!("n1"))).unwrap(), "n1");
        let refused = |found: Value, part: &str| {
            let refusal = node_of(&pod, &found).unwrap_err();
            assert!(refusal.message.contains(part), "{refusal}");
        };
        refused(found("u-2", "causeway-edge", json!("n1")), "another one than the token");
        refused(found("u-1", "default", json!("n1")), "another service account");
        refused(found("u-1", "causeway-edge", Value::Null), "on no node");
        refused(found("u-1", "causeway-edge", json!("")), "on no node");
        refused(json!({}), "another one");
    }

    #[test]
    fn a_node_belongs_to_the_site_of_its_eserver_or_to_the_default_site() {
        let site = |server, default| gateway_of("n1", server, default).map(|peer| peer.to_string());
        assert_eq!(site(Some("oslo"), None).unwrap(), "oslo/n1");
        assert_eq!(site(Some("oslo"), Some("rest")).unwrap(), "oslo/n1");
        assert_eq!(site(None, Some("rest")).unwrap(), "rest/n1");
        let refusal = site(None, None).unwrap_err();
        assert!(
            refusal.message.contains("no EServer n1") && refusal.hint.contains("join-default-site"),
            "{refusal}"
        );
        assert!(site(Some("cloud"), None).unwrap_err().message.contains("this cloud itself"));
        assert!(gateway_of("cloud", Some("oslo"), None).is_err());
        assert!(gateway_of(&"x".repeat(300), Some("oslo"), None).is_err());
    }

    #[test]
    fn a_node_replaces_the_key_of_its_own_gateway_only() {
        let record = |node: Option<&str>, key: Option<&str>| GatewayRecord {
            site: "oslo".into(),
            key: key.map(str::to_owned),
            serial: "1".into(),
            authority: "a".into(),
            proven: String::new(),
            at: 0,
            expires: 0,
            node: node.map(str::to_owned),
            void_key: None,
        };
        let peer = PeerId::new("oslo", "n1").unwrap();
        let at = |site: &str| StoredGateway { site: site.to_owned(), is_marked: false };
        let judge = |object: Option<StoredGateway>,
                     record: Option<GatewayRecord>,
                     expected: Result<(), &str>| match (
            judge_gateway(&peer, object.as_ref(), record.as_ref()),
            expected,
        ) {
            (Ok(()), Ok(())) => {}
            (Err(refusal), Err(part)) => {
                assert_eq!(refusal.reason(), EnrolmentCode::NotPermitted);
                assert!(refusal.message.contains(part) && refusal.hint.contains("n1"), "{refusal}");
            }
            (found, expected) => panic!("{record:?}: {found:?} {expected:?}"),
        };
        let check = |site: Option<&str>, record, expected| judge(site.map(at), record, expected);
        check(None, None, Ok(()));
        check(Some("oslo"), None, Ok(()));
        check(Some("oslo"), Some(record(Some("n1"), Some("old"))), Ok(()));
        check(Some("bergen"), None, Err("is at site bergen"));
        check(Some("bergen"), Some(record(Some("n1"), Some("old"))), Err("is at site bergen"));
        check(Some("oslo"), Some(record(None, Some("old"))), Err("by other means"));
        check(Some("oslo"), Some(record(Some("n2"), Some("old"))), Err("by other means"));
        check(Some("oslo"), Some(record(Some("n1"), None)), Err("was revoked"));
        check(None, Some(record(Some("n1"), None)), Err("was revoked"));
        check(None, Some(record(Some("n1"), Some("old"))), Err("its EGateway deleted"));
        let marked = Some(StoredGateway { is_marked: true, ..at("oslo") });
        judge(marked.clone(), None, Err("is being deleted"));
        judge(marked, Some(record(Some("n1"), Some("old"))), Err("is being deleted"));
    }

    #[test]
    fn text_that_is_no_token_is_refused_before_the_cluster_is_asked() {
        check_token("eyJh.eyJi.c2ln").unwrap();
        let long = format!("a.b.{}", "c".repeat(SERVICE_ACCOUNT_TOKEN_BYTES_MAX));
        for text in ["", "a.b", "a.b.c.d", "a..c", "a.b.c\n", "a.b.ü", "cwj1.abc", &long] {
            assert_eq!(check_token(text).unwrap_err().reason(), EnrolmentCode::TokenUnknown, "{text}");
        }
    }

    #[test]
    fn a_service_account_has_a_namespace_and_a_name() {
        assert_eq!("a/b".parse::<ServiceAccountName>().unwrap().to_string(), "a/b");
        for text in ["", "a", "a/", "/b", "a/b/c", "A/b", "*/b", "a/*"] {
            assert!(text.parse::<ServiceAccountName>().is_err(), "{text}");
        }
    }
}
