//! Enrolment of Kubernetes nodes against a cluster that the test plays: the rules of replacement and revocation, and the bound on
//! questions to the cluster.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use causeway_api::{EGateway, Kind, ObjectMeta};
use causeway_apicache::connector::ConnectorFuture;
use causeway_apicache::upstream::cluster::ClusterError;
use causeway_apiserver::registry::key as object_key;
use causeway_channel::{KeyHash, PeerId, wire};
use serde_json::{Value, json};

use super::super::{NodeAuthority, NodeEnrolmentConfig, StoredGateway};
use super::*;

/// A cluster in which the signature of a token is the node of its pod. EGateways are plain records of the store.
#[derive(Clone)]
struct TestCluster {
    store: Store,
    reviews: Arc<Mutex<usize>>,
    /// An administrator deletes each EGateway right after it was read.
    deletes_after_read: Arc<AtomicBool>,
}

impl NodeAuthority for TestCluster {
    fn review_token<'a>(
        &'a self,
        token: &'a str,
        audience: &'a str,
    ) -> ConnectorFuture<'a, Result<Value, ClusterError>> {
        *self.reviews.lock().unwrap() += 1;
        let node = token.rsplit('.').next().unwrap();
        let extra = json!({
            "authentication.kubernetes.io/pod-name": ["edge-x"],
            "authentication.kubernetes.io/pod-uid": ["u-1"],
            "authentication.kubernetes.io/node-name": [node],
        });
        let user = json!({"username": "system:serviceaccount:causeway-system:edge", "extra": extra});
        let status = json!({"authenticated": node != "stranger", "audiences": [audience], "user": user});
        Box::pin(async move { Ok(json!({ "status": status })) })
    }

    fn pod<'a>(&'a self, path: &'a str) -> ConnectorFuture<'a, Result<Value, ClusterError>> {
        panic!("the review names the node: {path}")
    }

    fn server_site<'a>(&'a self, node: &'a str) -> ConnectorFuture<'a, Result<Option<String>, String>> {
        Box::pin(async move { Ok((node != "homeless").then(|| "oslo".to_owned())) })
    }

    fn gateway<'a>(&'a self, gateway: &'a str) -> ConnectorFuture<'a, Result<Option<StoredGateway>, String>> {
        Box::pin(async move {
            let found = self.store.get(&object_key(Kind::EGateway, gateway)).await.unwrap();
            if found.is_some() && self.deletes_after_read.load(Ordering::SeqCst) {
                self.store.delete(&object_key(Kind::EGateway, gateway), None).await.unwrap();
            }
            Ok(found.map(|record| {
                let object: Value = serde_json::from_slice(&record.value).unwrap();
                let is_marked = !object["metadata"]["deletionTimestamp"].is_null();
                StoredGateway { site: object["eSiteName"].as_str().unwrap().to_owned(), is_marked }
            }))
        })
    }

    fn create_gateway<'a>(&'a self, peer: &'a PeerId) -> ConnectorFuture<'a, Result<bool, String>> {
        Box::pin(async move {
            let gateway = EGateway {
                metadata: ObjectMeta::named(peer.gateway()),
                e_site_name: peer.site().to_owned(),
                ..EGateway::default()
            };
            let value = serde_json::to_vec(&gateway).unwrap();
            Ok(self.store.create(&object_key(Kind::EGateway, peer.gateway()), value.into()).await.is_ok())
        })
    }

    fn ensure_site<'a>(&'a self, _: &'a str) -> ConnectorFuture<'a, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
}

impl TestCluster {
    async fn new(fleet: &Fleet) -> TestCluster {
        TestCluster {
            store: fleet.store().await,
            reviews: Arc::default(),
            deletes_after_read: Arc::default(),
        }
    }

    fn enrolment(&self) -> NodeEnrolment {
        let config = NodeEnrolmentConfig {
            accounts: vec!["causeway-system/edge".parse().unwrap()],
            audience: "causeway.io/join".to_owned(),
            default_site: None,
        };
        NodeEnrolment::new(config, Box::new(self.clone()))
    }
}

impl Fleet {
    /// A replica that enrols the nodes of a cluster.
    async fn replica_of_cluster(&self) -> (Replica, TestCluster) {
        let cluster = TestCluster::new(self).await;
        (self.replica_with("a", Some(cluster.enrolment())).await, cluster)
    }

    async fn enrol_node(
        &self,
        replica: &Replica,
        node: &str,
        key: &PrivateKey,
    ) -> Result<IssuedCertificate, EnrolError> {
        let pins: Vec<KeyHash> = replica.registrar.cas.load().ids();
        let contact = self.contact(replica, TrustAnchors::Pinned(pins.clone()));
        let enrolled = enrol::enrol_node(&contact, &format!("eyJh.eyJi.{node}"), &pins, key).await;
        enrolled.map(|(issued, peer)| {
            assert_eq!(issued.facts.peer.as_ref(), Some(&peer));
            issued
        })
    }
}

#[tokio::test]
async fn a_node_gets_the_certificate_of_its_own_gateway_and_may_replace_its_key() {
    let fleet = Fleet::new().await;
    let (cloud, _cluster) = fleet.replica_of_cluster().await;
    let (first, second) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    let off = fleet.replica("b").await;
    let text = refused(fleet.enrol_node(&off, "n1", &first).await, EnrolmentCode::NotPermitted);
    assert!(text.contains("join-service-accounts"), "off by default: {text}");
    drop(off);

    let issued = fleet.enrol_node(&cloud, "n1", &first).await.unwrap();
    assert_eq!(issued.facts.peer, Some(PeerId::new("oslo", "n1").unwrap()));
    // The answer was lost: the same key asks again.
    fleet.enrol_node(&cloud, "n1", &first).await.unwrap();
    // A renewal does not change the owner of the gateway.
    let mut device = Device { key: first, issued };
    device.renew(&fleet, &cloud).await.unwrap();
    // The pod lost its data dir: the key before is revoked.
    fleet.enrol_node(&cloud, "n1", &second).await.unwrap();
    eventually("the replaced key is revoked", || cloud.registrar.is_revoked(&device.key.hash())).await;
    refused(device.renew(&fleet, &cloud).await, EnrolmentCode::Revoked);
    refused(fleet.enrol_node(&cloud, "n1", &device.key).await, EnrolmentCode::Revoked);

    // A pod of another node gets the gateway of that node, and n1 keeps its key.
    let other = fleet.enrol_node(&cloud, "n2", &PrivateKey::generate().unwrap()).await.unwrap();
    assert_eq!(other.facts.peer, Some(PeerId::new("oslo", "n2").unwrap()));
    assert!(!cloud.registrar.is_revoked(&second.hash()));
    let text = refused(
        fleet.enrol_node(&cloud, "homeless", &PrivateKey::generate().unwrap()).await,
        EnrolmentCode::NotPermitted,
    );
    assert!(text.contains("no EServer homeless"), "{text}");
}

#[tokio::test]
async fn a_revoked_gateway_of_a_node_stays_revoked_until_its_object_is_made_again() {
    let fleet = Fleet::new().await;
    let (cloud, cluster) = fleet.replica_of_cluster().await;
    let key = || PrivateKey::generate().unwrap();
    fleet.enrol_node(&cloud, "n1", &key()).await.unwrap();
    cloud.registrar.revoke_gateway("n1", OpenTokens::Close).await.unwrap();
    refused(fleet.enrol_node(&cloud, "n1", &key()).await, EnrolmentCode::NotPermitted);
    let object = object_key(Kind::EGateway, "n1");
    cluster.store.delete(&object, None).await.unwrap();
    refused(fleet.enrol_node(&cloud, "n1", &key()).await, EnrolmentCode::NotPermitted);
    cluster.create_gateway(&PeerId::new("oslo", "n1").unwrap()).await.unwrap();
    fleet.enrol_node(&cloud, "n1", &key()).await.unwrap();
    // A deleted EGateway counts as revoked, also before the cloud has revoked the key.
    cluster.store.delete(&object, None).await.unwrap();
    refused(fleet.enrol_node(&cloud, "n1", &key()).await, EnrolmentCode::NotPermitted);
}

#[tokio::test]
async fn an_egateway_that_is_deleted_meanwhile_stays_deleted() {
    let fleet = Fleet::new().await;
    let (cloud, cluster) = fleet.replica_of_cluster().await;
    fleet.enrol_node(&cloud, "n1", &PrivateKey::generate().unwrap()).await.unwrap();
    cluster.deletes_after_read.store(true, Ordering::SeqCst);
    // The key that may come of it is revoked with the deletion, because the object is gone.
    let _ = fleet.enrol_node(&cloud, "n1", &PrivateKey::generate().unwrap()).await;
    assert!(cluster.store.get(&object_key(Kind::EGateway, "n1")).await.unwrap().is_none());
}

#[tokio::test]
async fn an_egateway_with_a_deletion_mark_admits_no_node() {
    let fleet = Fleet::new().await;
    let (cloud, cluster) = fleet.replica_of_cluster().await;
    let gateway = json!({
        "metadata": {"name": "n1", "finalizers": ["example.org/x"], "deletionTimestamp": "2026-11-18T00:00:00Z"},
        "eSiteName": "oslo",
    });
    cluster.store.create(&object_key(Kind::EGateway, "n1"), gateway.to_string().into()).await.unwrap();
    let text = refused(
        fleet.enrol_node(&cloud, "n1", &PrivateKey::generate().unwrap()).await,
        EnrolmentCode::NotPermitted,
    );
    assert!(text.contains("is being deleted"), "{text}");
}

#[tokio::test]
async fn a_gateway_of_a_join_token_is_not_taken_over_by_a_node_of_its_name() {
    let fleet = Fleet::new().await;
    let (cloud, cluster) = fleet.replica_of_cluster().await;
    cluster.create_gateway(&PeerId::new("oslo", "n1").unwrap()).await.unwrap();
    let issued = cloud.registrar.create_join_token("oslo", "n1", HOUR, OnEnrolled::Refuse).await.unwrap();
    let device = fleet.device_with(&cloud, &issued.token).await;
    let text = refused(
        fleet.enrol_node(&cloud, "n1", &PrivateKey::generate().unwrap()).await,
        EnrolmentCode::NotPermitted,
    );
    assert!(text.contains("by other means"), "{text}");
    assert!(!cloud.registrar.is_revoked(&device.key.hash()));
}

#[tokio::test]
async fn strangers_cause_a_bounded_number_of_reviews() {
    let fleet = Fleet::new().await;
    let (cloud, cluster) = fleet.replica_of_cluster().await;
    let (key, nodes) = (PrivateKey::generate().unwrap(), cluster.enrolment());
    let ask = async |token: &str| {
        let enrol = wire::EnrolNodeMessage { token: token.to_owned(), csr: key.unnamed_request().unwrap() };
        let ask = Some(wire::EnrolmentRequestBody::EnrolNode(enrol));
        let request = wire::EnrolmentRequest { ask, ..Default::default() };
        cloud.registrar.answer(request, Some(&nodes), None, "test").await.unwrap_err().reason()
    };
    let long = format!("a.b.{}", "c".repeat(wire::SERVICE_ACCOUNT_TOKEN_BYTES_MAX));
    for text in ["", "nonsense", &long] {
        assert_eq!(ask(text).await, EnrolmentCode::TokenUnknown);
    }
    assert_eq!(*cluster.reviews.lock().unwrap(), 0, "text that is no token costs no review");
    let start = std::time::Instant::now();
    let mut limited = 0;
    for _ in 0..1000 {
        limited += usize::from(ask("eyJh.eyJi.stranger").await == EnrolmentCode::RateLimited);
    }
    // The burst, and the rate for as long as the requests took.
    let bound = 100 + 20 * (start.elapsed().as_secs() as usize + 1);
    let reviews = *cluster.reviews.lock().unwrap();
    assert_eq!(reviews + limited, 1000);
    assert!((100..=bound).contains(&reviews), "{reviews} of at most {bound}");
}
