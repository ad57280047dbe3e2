//! The change of CA: every gateway keeps its access, and no old certificate stays valid for ever.

use causeway_apiserver::{AuthFailure, Authenticator};
use causeway_channel::wire::control::SessionRefusedCode;

use super::super::RotationError;
use super::*;

fn needed(error: RotationError) -> (Vec<String>, Vec<String>) {
    match error {
        RotationError::StillNeeded { gateways, tokens } => (gateways, tokens),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_change_of_ca_loses_no_edge() {
    let fleet = Fleet::new().await;
    let (a, b) = (fleet.replica("a").await, fleet.replica("b").await);
    let mut eager = fleet.device(&a, "eager").await;
    let mut late = fleet.device(&b, "late").await;
    let token = fleet.token(&a, "token").await;
    assert!(matches!(a.registrar.finish_rotation(false).await, Err(RotationError::NotChanging)));
    let old_admin = super::access::kubeconfig_certificate(&kubeconfig(&a));

    let view = a.registrar.start_rotation().await.unwrap();
    assert!(view.changing && view.authorities.len() == 2);
    assert!(view.authorities[0].serving && view.authorities[1].issuing);
    eventually("the other replica follows", || b.registrar.cas.load().is_changing()).await;
    assert!(matches!(b.registrar.start_rotation().await, Err(RotationError::AlreadyChanging)));

    // Old certificates still work everywhere, and edges can still verify the cloud with the CAs they have.
    for replica in [&a, &b] {
        replica.registrar.certificate(&[eager.issued.certificate.clone()]).unwrap();
        replica.registrar.certificate(std::slice::from_ref(&old_admin)).unwrap();
        assert!(eager.asks_to_renew(&fleet, replica).await.unwrap());
    }
    assert_ne!(super::access::kubeconfig_certificate(&kubeconfig(&a)), old_admin);
    let (gateways, tokens) = needed(a.registrar.finish_rotation(false).await.unwrap_err());
    assert_eq!((gateways, tokens.len()), (vec!["eager".to_owned(), "late".to_owned()], 1));

    // A certificate that was only issued may be lost on its way; one that is presented was received.
    eager.renew(&fleet, &b).await.unwrap();
    assert_eq!(eager.issued.authorities.len(), 2);
    let (gateways, _) = needed(a.registrar.finish_rotation(false).await.unwrap_err());
    assert_eq!(gateways, ["eager", "late"]);
    assert!(!eager.asks_to_renew(&fleet, &b).await.unwrap());
    let (gateways, _) = needed(a.registrar.finish_rotation(false).await.unwrap_err());
    assert_eq!(gateways, ["late"]);

    // A token from before the change still works, as does one made during it.
    let key = PrivateKey::generate().unwrap();
    let issued = fleet.enrol(&b, &token, &key).await.unwrap();
    let mut third = Device { key, issued };
    let fourth_token = fleet.token(&b, "fourth").await;
    assert!(!third.asks_to_renew(&fleet, &a).await.unwrap());

    late.renew(&fleet, &a).await.unwrap();
    assert!(!late.asks_to_renew(&fleet, &a).await.unwrap());
    let view = b.registrar.finish_rotation(false).await.unwrap();
    assert!(!view.changing && view.authorities.len() == 1);
    eventually("the other replica follows", || !a.registrar.cas.load().is_changing()).await;
    eventually("and shows the new certificate", || {
        a.registrar.certificate(std::slice::from_ref(&old_admin)) == Err(AuthFailure::Unknown)
    })
    .await;
    a.registrar.upkeep().await.unwrap();

    for device in [&mut eager, &mut late, &mut third] {
        for replica in [&a, &b] {
            assert!(device.asks_to_renew(&fleet, replica).await.unwrap(), "the old CA is to be dropped");
            device.renew(&fleet, replica).await.unwrap();
            assert_eq!(device.issued.authorities.len(), 1);
            assert!(!device.asks_to_renew(&fleet, replica).await.unwrap());
            device.issued.authorities = {
                let cas = a.registrar.cas.load();
                [
                    cas.bundle(),
                    vec![
                        super::super::authority::Authority::create(fleet.hands.now())
                            .unwrap()
                            .certificate()
                            .clone(),
                    ],
                ]
                .concat()
            };
        }
    }
    fleet.enrol(&a, &fourth_token, &PrivateKey::generate().unwrap()).await.unwrap();
    assert!(kubeconfig(&a) != kubeconfig(&b));
}

fn kubeconfig(replica: &Replica) -> String {
    std::fs::read_to_string(replica.data_dir.join("admin.kubeconfig")).unwrap()
}

#[tokio::test]
async fn the_dead_do_not_hold_up_a_change_and_force_cuts_off_the_living() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    fleet.device(&cloud, "dead").await;
    let revoked = fleet.device(&cloud, "revoked").await;
    cloud.registrar.revoke_gateway("revoked", OpenTokens::Close).await.unwrap();
    drop(revoked);
    fleet.hands.advance(121 * DAY);
    cloud.registrar.upkeep().await.unwrap();
    let mut living = fleet.device(&cloud, "living").await;
    let forgotten = fleet.token(&cloud, "forgotten").await;
    assert!(cloud.registrar.trusts_handshakes());
    cloud.registrar.admit(&living.issued.certificate, &[]).await.unwrap();
    cloud.registrar.start_rotation().await.unwrap();
    assert!(!cloud.registrar.trusts_handshakes());
    let error = cloud.registrar.finish_rotation(false).await.unwrap_err();
    assert!(error.to_string().contains("1 gateways") && error.to_string().contains("living"), "{error}");
    let (gateways, tokens) = needed(error);
    assert_eq!((gateways, tokens.len()), (vec!["living".to_owned()], 1));

    cloud.registrar.finish_rotation(true).await.unwrap();
    let error = living.renew(&fleet, &cloud).await.unwrap_err();
    assert!(matches!(error, EnrolError::WrongAuthority { .. }), "{error:?}");
    let error = fleet.enrol(&cloud, &forgotten, &PrivateKey::generate().unwrap()).await.unwrap_err();
    assert!(matches!(error, EnrolError::WrongAuthority { .. }) && error.to_string().contains("new token"));
    let chain = [living.issued.certificate.clone()];
    assert_eq!(cloud.registrar.certificate(&chain), Err(AuthFailure::Unknown));
    // A handshake may have begun while the old CA was trusted; a session may not begin.
    let refused = cloud.registrar.admit(&chain[0], &[]).await.unwrap_err();
    assert_eq!(refused.reason(), SessionRefusedCode::NotCurrent, "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_two_that_change_the_ca_at_once_one_does() {
    let fleet = Fleet::new().await;
    let (a, b) = (fleet.replica("a").await, fleet.replica("b").await);
    let (first, second) = tokio::join!(a.registrar.start_rotation(), b.registrar.start_rotation());
    let error = match (first, second) {
        (Ok(_), Err(error)) | (Err(error), Ok(_)) => error,
        other => panic!("exactly one must succeed: {other:?}"),
    };
    assert!(matches!(error, RotationError::Raced | RotationError::AlreadyChanging), "{error:?}");
}

#[tokio::test]
async fn a_change_survives_a_restart() {
    let fleet = Fleet::new().await;
    let ids = {
        let cloud = fleet.open("a").await.unwrap();
        cloud.start_rotation().await.unwrap();
        cloud.cas.load().ids()
    };
    let cloud = fleet.open("a").await.unwrap();
    assert_eq!(cloud.cas.load().ids(), ids);
    cloud.finish_rotation(false).await.unwrap();
    assert_eq!(fleet.open("a").await.unwrap().cas.load().ids(), ids[1..]);
}
