//! Replicas that share only a real etcd of three members: one CA, one last use of a token, one change, quick
//! revocation.

use causeway_apiserver::Authenticator;
use testlab::etcd::Cluster;

use super::super::RotationError;
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replicas_on_etcd_agree_on_everything() {
    let cluster = Cluster::start(3).unwrap();
    for round in 0..5 {
        Box::pin(race(&cluster, round)).await;
    }
    let fleet = on(&cluster, "main").await;
    let (a, b) = (fleet.replica("a").await, fleet.replica("b").await);

    for round in 0..5 {
        let token = fleet.token(&a, &format!("G{round}")).await;
        let (one, other) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
        let (first, second) = tokio::join!(fleet.enrol(&a, &token, &one), fleet.enrol(&b, &token, &other));
        assert!(first.is_ok() != second.is_ok(), "exactly one must win: {first:?} {second:?}");
    }

    let mut device = fleet.device(&a, "device").await;
    let identity = b.registrar.certificate(&[device.issued.certificate.clone()]).unwrap();
    a.registrar.revoke_gateway("device", OpenTokens::Close).await.unwrap();
    let took = eventually("the other replica hears of it", || !b.registrar.still_valid(&identity)).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    refused(device.renew(&fleet, &b).await, EnrolmentCode::Revoked);

    let (first, second) = tokio::join!(a.registrar.start_rotation(), b.registrar.start_rotation());
    let error = match (first, second) {
        (Ok(_), Err(error)) | (Err(error), Ok(_)) => error,
        other => panic!("exactly one must succeed: {other:?}"),
    };
    assert!(matches!(error, RotationError::Raced | RotationError::AlreadyChanging), "{error:?}");
    eventually("both follow", || {
        a.registrar.cas.load().ids() == b.registrar.cas.load().ids() && a.registrar.cas.load().is_changing()
    })
    .await;
}

async fn on(cluster: &Cluster, name: &str) -> Fleet {
    let spec = StoreSpec::Etcd { endpoints: cluster.endpoints(), tls: None, prefix: format!("/{name}/") };
    Fleet::with(tempfile::tempdir().unwrap(), spec).await
}

/// Three replicas that start together with the same seal key.
async fn race(cluster: &Cluster, round: usize) {
    let fleet = on(cluster, &format!("race{round}")).await;
    for name in ["a", "b", "c"] {
        std::fs::write(fleet.data_dir(name).join("seal.key"), "42".repeat(32)).unwrap();
    }
    let open = async |name: &str| Registrar::open(fleet.store().await, fleet.prepared(name)).await;
    let opened = tokio::join!(open("a"), open("b"), open("c"));
    let ids = [opened.0, opened.1, opened.2].map(|replica| replica.unwrap().cas.load().ids());
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}
