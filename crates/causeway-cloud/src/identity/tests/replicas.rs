//! Several replicas on one store: one CA, one last use of a token, and revocations that all of them know.

use causeway_apiserver::{AuthFailure, Authenticator};

use super::super::ca_store::CaStoreError;
use super::*;

fn ca_store_error(error: IdentityError) -> CaStoreError {
    match error {
        IdentityError::CaStore(error) => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replicas_that_start_together_agree_on_one_ca() {
    for _ in 0..8 {
        let fleet = Fleet::new().await;
        let seal = "42".repeat(32);
        let names = ["a", "b", "c", "d"];
        for name in names {
            std::fs::write(fleet.data_dir(name).join("seal.key"), &seal).unwrap();
        }
        let open = async |name: &str| Registrar::open(fleet.store().await, fleet.prepared(name)).await;
        let opened = tokio::join!(open("a"), open("b"), open("c"), open("d"));
        let ids = [opened.0, opened.1, opened.2, opened.3].map(|replica| replica.unwrap().cas.load().ids());
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_replicas_with_different_seals_one_starts_and_the_other_is_told_what_to_copy() {
    for _ in 0..8 {
        let fleet = Fleet::new().await;
        let (a, b) = tokio::join!(fleet.open("a"), fleet.open("b"));
        let (loser, error, winner) = match (a, b) {
            (Ok(_), Err(error)) => ("b", error, "a"),
            (Err(error), Ok(_)) => ("a", error, "b"),
            _ => panic!("exactly one must start"),
        };
        let text = error.to_string();
        let (from, to) = (fleet.data_dir(winner).join("seal.key"), fleet.data_dir(loser).join("seal.key"));
        assert!(
            text.contains(&format!(":{}", from.display())) && text.contains(to.to_str().unwrap()),
            "{text}"
        );
        assert!(matches!(ca_store_error(error), CaStoreError::NoSealKey { .. }), "{text}");
        assert!(!to.exists(), "a seal key that sealed nothing is not left behind");

        std::fs::copy(from, to).unwrap();
        fleet.open(loser).await.unwrap();
    }
}

#[tokio::test]
async fn a_wrong_seal_key_and_a_damaged_record_are_told_apart() {
    let fleet = Fleet::new().await;
    fleet.open("a").await.unwrap();
    std::fs::write(fleet.data_dir("b").join("seal.key"), "00".repeat(32)).unwrap();
    let error = fleet.open("b").await.map(drop).unwrap_err();
    assert!(error.to_string().contains("a/seal.key"), "{error}");
    assert!(matches!(ca_store_error(error), CaStoreError::OtherSealKey { .. }));

    let record = fleet.store.get("identity/ca").await.unwrap().unwrap();
    let text = String::from_utf8(record.value.to_vec()).unwrap();
    let damage = async |value: String| {
        fleet.store.put("identity/ca", value.into()).await.unwrap();
        ca_store_error(fleet.open("a").await.map(drop).unwrap_err())
    };
    assert!(matches!(
        damage(text.replace("\"version\":1", "\"version\":2")).await,
        CaStoreError::Version { found: 2 }
    ));
    assert!(matches!(damage("{}".into()).await, CaStoreError::Damaged(_)));
    let flipped = text.replacen("sealedKey\":\"", "sealedKey\":\"AAAA", 1);
    assert!(matches!(damage(flipped).await, CaStoreError::Seal(_)));
    damage_undone(&fleet, text).await;
}

async fn damage_undone(fleet: &Fleet, text: String) {
    fleet.store.put("identity/ca", text.into()).await.unwrap();
    fleet.open("a").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_last_use_of_a_token_is_used_once() {
    let fleet = Fleet::new().await;
    let (a, b) = (fleet.replica("a").await, fleet.replica("b").await);
    for round in 0..15 {
        let token = fleet.token(&a, &format!("G{round}")).await;
        let (one, other) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
        let (first, second) = tokio::join!(fleet.enrol(&a, &token, &one), fleet.enrol(&b, &token, &other));
        let loser = match (first, second) {
            (Ok(_), Err(error)) | (Err(error), Ok(_)) => error,
            other => panic!("exactly one must win: {other:?}"),
        };
        refused(Err::<(), _>(loser), EnrolmentCode::TokenUsed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_key_redeeming_at_two_replicas_at_once_uses_the_token_once() {
    let fleet = Fleet::new().await;
    let (a, b) = (fleet.replica("a").await, fleet.replica("b").await);
    for round in 0..10 {
        let token = fleet.token(&a, &format!("G{round}")).await;
        let key = PrivateKey::generate().unwrap();
        let (first, second) = tokio::join!(fleet.enrol(&a, &token, &key), fleet.enrol(&b, &token, &key));
        first.unwrap();
        second.unwrap();
    }
    assert!(a.registrar.tokens().await.unwrap().iter().all(|token| token.used == Some(1)));
}

#[tokio::test]
async fn a_revoked_gateway_is_out_everywhere_within_a_second() {
    let fleet = Fleet::new().await;
    let (a, b) = (fleet.replica("a").await, fleet.replica("b").await);
    let mut device = fleet.device(&a, "G1").await;
    let chain = [device.issued.certificate.clone()];
    let identity = b.registrar.certificate(&chain).unwrap();
    let mut ended = b.registrar.revoked_keys();

    let revoked = a.registrar.revoke_gateway("G1", OpenTokens::Close).await.unwrap();
    assert_eq!(revoked.keys, [device.key.hash().to_string()]);
    let took = eventually("the other replica hears of it", || !b.registrar.still_valid(&identity)).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(b.registrar.certificate(&chain), Err(AuthFailure::Revoked));
    assert_eq!(within(ended.recv()).await.unwrap(), device.key.hash());
    for replica in [&a, &b] {
        refused(device.renew(&fleet, replica).await, EnrolmentCode::Revoked);
        refused(device.reenrol(&fleet, replica).await, EnrolmentCode::Revoked);
        refused(device.asks_to_renew(&fleet, replica).await, EnrolmentCode::Revoked);
    }

    // A repeated revocation, and one of an unknown gateway.
    assert_eq!(a.registrar.revoke_gateway("G1", OpenTokens::Close).await.unwrap().keys, Vec::<String>::new());
    assert!(a.registrar.revoke_gateway("nobody", OpenTokens::Close).await.is_err());
    assert!(a.registrar.revoke_gateway("../ca", OpenTokens::Close).await.is_err());

    // The revocation survives a restart, and is removed only when the certificate has expired by itself.
    let again = fleet.open("a").await.unwrap();
    assert!(again.is_revoked(&device.key.hash()));
    fleet.hands.advance(31 * DAY);
    a.registrar.upkeep().await.unwrap();
    eventually("the record is forgotten", || !b.registrar.is_revoked(&device.key.hash())).await;
    refused(device.reenrol(&fleet, &b).await, EnrolmentCode::NotCurrent);

    // A new token enrols the gateway again, under a new key.
    fleet.device(&b, "G1").await;
}
