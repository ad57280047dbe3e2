//! Authentication of API clients: certificates, bearer tokens, and the admin kubeconfig.

use std::os::unix::fs::PermissionsExt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use causeway_api::management::TokenKind;
use causeway_apiserver::{AuthFailure, Authenticator, Role};
use rustls_pki_types::CertificateDer;

use super::super::ApiRole;
use super::super::authority::{CertificateSubject, CloudServerName};
use super::super::serving::ServingTls;
use super::*;

pub(super) fn kubeconfig_certificate(text: &str) -> CertificateDer<'static> {
    let data = text.lines().find_map(|line| line.trim().strip_prefix("client-certificate-data: ")).unwrap();
    causeway_channel::pem::decode(&STANDARD.decode(data).unwrap()).unwrap().remove(0)
}

#[tokio::test]
async fn the_admin_kubeconfig_opens_the_door_and_is_kept_fresh() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let path = cloud.registrar.kubeconfig_path();
    let text = || std::fs::read_to_string(&path).unwrap();
    let first = text();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(first.contains("server: https://127.0.0.1:7443\n"), "{first}");

    let admin = kubeconfig_certificate(&first);
    let identity = cloud.registrar.certificate(std::slice::from_ref(&admin)).unwrap();
    assert_eq!((identity.user.as_str(), &identity.role), ("admin", &Role::Admin));
    assert_eq!(identity.groups, ["causeway:admin", "system:authenticated"]);
    assert!(cloud.registrar.still_valid(&identity));

    cloud.registrar.upkeep().await.unwrap();
    assert_eq!(text(), first, "nothing is written without need");
    fleet.hands.advance(250 * DAY);
    cloud.registrar.upkeep().await.unwrap();
    let second = text();
    assert_ne!(second, first);
    std::fs::write(&path, "something else").unwrap();
    cloud.registrar.upkeep().await.unwrap();
    assert!(text().contains("kind: Config"));

    fleet.hands.advance(200 * DAY);
    assert_eq!(cloud.registrar.certificate(&[admin]), Err(AuthFailure::Expired));
    assert!(!cloud.registrar.still_valid(&identity));

    let mut config = fleet.config("a");
    config.api_url = "https://elsewhere:7443".into();
    Registrar::open(fleet.store.clone(), config).await.unwrap();
    assert!(text().contains("server: https://elsewhere:7443\n"));
}

#[tokio::test]
async fn a_certificate_is_believed_while_it_lasts() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let device = fleet.device(&cloud, "G1").await;
    let ask = |certificate: &CertificateDer<'static>| {
        cloud.registrar.certificate(std::slice::from_ref(certificate))
    };
    let identity = ask(&device.issued.certificate).unwrap();
    assert_eq!(identity.role, Role::Gateway { site: "Tokyo".into(), gateway: "G1".into() });
    assert_eq!(
        cloud.registrar.certificate(&[]).map(drop),
        Err(AuthFailure::Malformed("there is no certificate".into()))
    );
    assert!(matches!(ask(&CertificateDer::from(vec![1, 2, 3])), Err(AuthFailure::Malformed(_))));

    let other = Fleet::new().await;
    let stranger = other.device(&other.replica("a").await, "G1").await;
    assert_eq!(ask(&stranger.issued.certificate), Err(AuthFailure::Unknown));

    // Signed by the CA, but without a role: it is refused.
    let cas = cloud.registrar.cas.load_full();
    let spki = super::super::serving::spki(&PrivateKey::generate().unwrap()).unwrap();
    let nobody = CertificateSubject::User { name: "eve".into(), organization: "system:masters" };
    let signed = cas.issuing().sign(&nobody, &spki, fleet.hands.now(), DAY).unwrap();
    assert_eq!(ask(&signed.certificate), Err(AuthFailure::Unknown));
    let viewer = CertificateSubject::User { name: "ann".into(), organization: "causeway:viewer" };
    let signed = cas.issuing().sign(&viewer, &spki, fleet.hands.now() + DAY, DAY).unwrap();
    assert_eq!(ask(&signed.certificate), Err(AuthFailure::NotYetValid));
    fleet.hands.advance(DAY);
    assert_eq!(ask(&signed.certificate).unwrap().role, Role::Viewer);

    fleet.hands.advance(30 * DAY);
    assert_eq!(ask(&device.issued.certificate), Err(AuthFailure::Expired));
    assert!(!cloud.registrar.still_valid(&identity));
}

#[tokio::test]
async fn a_bearer_token_is_worth_its_role_until_it_ends() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let second = fleet.replica("b").await;
    let viewer = cloud.registrar.create_api_token(ApiRole::Viewer, HOUR).await.unwrap();
    let admin = cloud.registrar.create_api_token(ApiRole::Admin, 2 * HOUR).await.unwrap();
    for replica in [&cloud, &second] {
        // A token is valid at once, also on a replica to which the watch has not delivered it yet.
        let identity = replica.registrar.bearer(&viewer.text).await.unwrap();
        assert_eq!(identity.role, Role::Viewer);
        assert_eq!(identity.groups, ["causeway:viewer", "system:authenticated"]);
        assert_eq!(replica.registrar.bearer(&admin.text).await.unwrap().role, Role::Admin);
    }
    let join = fleet.token(&cloud, "G1").await.to_text();
    for garbage in ["", "x", "cwa1.", &admin.text[..20], &join] {
        assert!(matches!(cloud.registrar.bearer(garbage).await, Err(AuthFailure::Malformed(_))), "{garbage}");
    }
    let unknown = super::super::tokens::api_text(&causeway_channel::TokenSecret::generate());
    assert_eq!(cloud.registrar.bearer(&unknown).await, Err(AuthFailure::Unknown));

    let kinds: Vec<_> = cloud.registrar.tokens().await.unwrap().into_iter().map(|token| token.kind).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == TokenKind::Viewer).count(), 1, "{kinds:?}");

    let identity = second.registrar.bearer(&admin.text).await.unwrap();
    cloud.registrar.delete_token(&admin.id).await.unwrap();
    let took = eventually("the other replica hears of it", || !second.registrar.still_valid(&identity)).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(second.registrar.bearer(&admin.text).await, Err(AuthFailure::Revoked));

    fleet.hands.advance(HOUR);
    assert_eq!(cloud.registrar.bearer(&viewer.text).await, Err(AuthFailure::Expired));
}

#[tokio::test]
async fn the_server_certificate_is_replaced_while_it_runs() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let (api, channel) = (cloud.registrar.api_tls(), cloud.registrar.channel_tls());
    let before = (api.load_full(), channel.load_full());
    cloud.registrar.upkeep().await.unwrap();
    assert!(Arc::ptr_eq(&before.0, &api.load_full()));
    fleet.hands.advance(60 * DAY);
    cloud.registrar.upkeep().await.unwrap();
    assert!(!Arc::ptr_eq(&before.0, &api.load_full()) && !Arc::ptr_eq(&before.1, &channel.load_full()));
    fleet.device(&cloud, "G1").await;
}

#[tokio::test]
async fn the_server_certificate_follows_names_ca_and_time() {
    let fleet = Fleet::new().await;
    let cloud = fleet.open("a").await.unwrap();
    let cas = cloud.cas.load_full();
    let names = |name: &str| vec![CloudServerName::Dns(name.to_owned())];
    let now = fleet.hands.now();
    let serving = ServingTls::new(names("a.example"), &cas, now).unwrap();
    assert!(!serving.reconcile(names("a.example"), &cas, now + 59 * DAY).unwrap());
    assert!(serving.reconcile(names("b.example"), &cas, now).unwrap(), "another name");
    assert!(!serving.reconcile(names("b.example"), &cas, now).unwrap());
    cloud.start_rotation().await.unwrap();
    let changing = cloud.cas.load_full();
    assert!(serving.reconcile(names("b.example"), &changing, now).unwrap(), "another CA to trust");
    assert!(serving.reconcile(names("b.example"), &changing, now + 60 * DAY).unwrap(), "its age");
    assert!(serving.reconcile(names("b.example"), &changing, now - DAY).unwrap(), "a clock that went back");
}
