//! A removed gateway stays removed: an open token, an object that is created again and a restored backup do
//! not readmit it, and a lost store is not taken for a first start.

use bytes::Bytes;
use causeway_api::Kind;
use causeway_api::management::RevokedGateway;
use causeway_apiserver::{AuthFailure, Authenticator, Role, registry};
use causeway_store::StoreError;

use super::super::ca_store::CaStoreError;
use super::super::{ApiRole, TokenProblem, revocation_log};
use super::access::kubeconfig_certificate;
use super::*;
use crate::deleted_gateways::DeletedGateways;

impl Fleet {
    async fn backup(&self) -> Vec<u8> {
        let (mut export, mut bytes) = (self.store.export(), Vec::new());
        while let Some(chunk) = export.next().await.unwrap() {
            bytes.extend_from_slice(&chunk);
        }
        bytes
    }

    /// Returns the same data dirs with a store that holds the backup.
    async fn restored(self, backup: &[u8]) -> Fleet {
        let path = self.folder.path().join(format!("restored-{}.db", backup.len()));
        let spec = StoreSpec::Sqlite { path };
        let store = Store::open(spec.clone()).await.unwrap();
        store.import(backup).await.unwrap();
        Fleet { spec, store, ..self }
    }

    /// Creates an EGateway, or creates it again.
    async fn object(&self, gateway: &str) {
        let value = Bytes::from_static(b"{\"metadata\":{}}");
        self.store.create(&registry::key(Kind::EGateway, gateway), value).await.unwrap();
    }

    async fn delete_object(&self, gateway: &str) {
        self.store.delete(&registry::key(Kind::EGateway, gateway), None).await.unwrap();
    }
}

#[tokio::test]
async fn revoking_a_gateway_closes_its_tokens_unless_they_are_to_be_kept() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    fleet.device(&cloud, "G1").await;
    let (open, other) = (fleet.replacing_token(&cloud, "G1").await, fleet.token(&cloud, "G2").await);
    let kept = cloud.registrar.revoke_gateway("G1", OpenTokens::Keep).await.unwrap();
    assert_eq!((kept.keys.len(), kept.tokens.len()), (1, 0));
    let RevokedGateway { keys, tokens, .. } =
        cloud.registrar.revoke_gateway("G1", OpenTokens::Close).await.unwrap();
    assert_eq!((keys.len(), &tokens[..]), (0, &[super::super::tokens::id(&open.secret)][..]));
    refused(fleet.enrol(&cloud, &open, &PrivateKey::generate().unwrap()).await, EnrolmentCode::TokenDeleted);
    // The tokens of other gateways stay, and a gateway that never enrolled can be kept from enrolling.
    assert_eq!(cloud.registrar.revoke_gateway("G2", OpenTokens::Close).await.unwrap().tokens.len(), 1);
    refused(fleet.enrol(&cloud, &other, &PrivateKey::generate().unwrap()).await, EnrolmentCode::TokenDeleted);
    fleet.device(&cloud, "G1").await;
}

#[tokio::test]
async fn what_a_deleted_gateway_was_given_is_void_for_one_of_the_same_name() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    fleet.object("G1").await;
    let mut device = fleet.device(&cloud, "G1").await;
    let open = fleet.replacing_token(&cloud, "G1").await;
    device.renew(&fleet, &cloud).await.unwrap();

    // The deletion is not seen yet: the follower of deletions does not run.
    fleet.delete_object("G1").await;
    fleet.object("G1").await;
    let text = refused(
        fleet.enrol(&cloud, &open, &PrivateKey::generate().unwrap()).await,
        EnrolmentCode::TokenDeleted,
    );
    assert!(text.contains("was deleted"), "{text}");
    refused(device.renew(&fleet, &cloud).await, EnrolmentCode::NotCurrent);
    assert!(cloud.registrar.admit(&device.issued.certificate, &[]).await.is_err());

    // At its start the follower finds the credentials that are older than the object.
    let stop = CancellationToken::new();
    tokio::spawn(DeletedGateways::new(fleet.store.clone(), cloud.registrar.clone()).run(stop.clone()));
    eventually("the old key is revoked", || cloud.registrar.is_revoked(&device.key.hash())).await;
    let tokens = cloud.registrar.tokens().await.unwrap();
    assert!(tokens.iter().all(|token| token.used == Some(1)), "the open one is closed: {tokens:?}");

    // A token for the new object works, and its key too.
    let mut again = fleet.device(&cloud, "G1").await;
    again.renew(&fleet, &cloud).await.unwrap();
    refused(device.renew(&fleet, &cloud).await, EnrolmentCode::Revoked);
    stop.cancel();
}

#[tokio::test]
async fn a_new_key_for_a_gateway_that_was_made_again_revokes_the_former_one() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    fleet.object("G1").await;
    let former = fleet.device(&cloud, "G1").await;
    fleet.delete_object("G1").await;
    fleet.object("G1").await;
    // Not even --replace is needed: no host is enrolled.
    fleet.device(&cloud, "G1").await;
    eventually("the former key is revoked", || cloud.registrar.is_revoked(&former.key.hash())).await;
}

#[tokio::test]
async fn a_restored_backup_does_not_bring_back_what_was_thrown_out() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let mut revoked = fleet.device(&cloud, "revoked").await;
    let mut replaced = fleet.device(&cloud, "replaced").await;
    let mut kept = fleet.device(&cloud, "kept").await;
    let (used, open) = (fleet.token(&cloud, "used").await, fleet.token(&cloud, "open").await);
    let closed = fleet.token(&cloud, "closed").await;
    let viewer = cloud.registrar.create_api_token(ApiRole::Viewer, DAY).await.unwrap();
    let admin = cloud.registrar.create_api_token(ApiRole::Admin, DAY).await.unwrap();
    let kubeconfig = std::fs::read_to_string(cloud.registrar.kubeconfig_path()).unwrap();
    let certificate = kubeconfig_certificate(&kubeconfig);
    let backup = fleet.backup().await;

    fleet.hands.advance(MINUTE);
    let late = fleet.token(&cloud, "late").await;
    let late_key = PrivateKey::generate().unwrap();
    let mut late = Device { issued: fleet.enrol(&cloud, &late, &late_key).await.unwrap(), key: late_key };
    for gateway in ["revoked", "late", "closed"] {
        cloud.registrar.revoke_gateway(gateway, OpenTokens::Close).await.unwrap();
    }
    let token = fleet.replacing_token(&cloud, "replaced").await;
    let key = PrivateKey::generate().unwrap();
    let mut replacing = Device { issued: fleet.enrol(&cloud, &token, &key).await.unwrap(), key };
    let used_key = PrivateKey::generate().unwrap();
    let mut user = Device { issued: fleet.enrol(&cloud, &used, &used_key).await.unwrap(), key: used_key };
    cloud.registrar.delete_token(&viewer.id).await.unwrap();
    let caller = cloud.registrar.certificate(std::slice::from_ref(&certificate)).unwrap();
    cloud.registrar.revoke_certificate("current", &caller).await.unwrap();
    let log = cloud.data_dir.join(revocation_log::FILE);
    let lines = || revocation_log::read(&log).unwrap().unwrap().entries.len();
    // Six tokens used and one closed, four keys, one API token. Some are written when the watch delivers
    // them.
    eventually("the log has everything", || lines() == 12).await;
    drop(cloud);

    let fleet = fleet.restored(&backup).await;
    let cloud = fleet.replica("a").await;
    for device in [&mut revoked, &mut late, &mut replaced] {
        refused(device.renew(&fleet, &cloud).await, EnrolmentCode::Revoked);
    }
    for token in [&used, &closed] {
        let refusal = fleet.enrol(&cloud, token, &PrivateKey::generate().unwrap()).await;
        assert!(matches!(refusal, Err(EnrolError::Refused(_))), "{refusal:?}");
    }
    let deleted = cloud.registrar.bearer(&viewer.text).await;
    assert!(matches!(deleted, Err(AuthFailure::Unknown | AuthFailure::Revoked)), "{deleted:?}");
    assert_eq!(cloud.registrar.certificate(&[certificate]), Err(AuthFailure::Revoked));
    // All other gateways and users keep their access.
    for device in [&mut kept, &mut replacing, &mut user] {
        device.renew(&fleet, &cloud).await.unwrap();
    }
    assert_eq!(cloud.registrar.bearer(&admin.text).await.unwrap().role, Role::Admin);
    fleet.enrol(&cloud, &open, &PrivateKey::generate().unwrap()).await.unwrap();
    let fresh = std::fs::read_to_string(cloud.registrar.kubeconfig_path()).unwrap();
    assert_ne!(fresh, kubeconfig, "the host has another admin kubeconfig");
    cloud.registrar.certificate(&[kubeconfig_certificate(&fresh)]).unwrap();

    // When the revocations have been removed, the records still keep the old certificates out.
    fleet.hands.advance(31 * DAY);
    cloud.registrar.upkeep().await.unwrap();
    eventually("the revocation is forgotten", || !cloud.registrar.is_revoked(&late.key.hash())).await;
    for device in [&mut revoked, &mut late, &mut replaced] {
        refused(device.reenrol(&fleet, &cloud).await, EnrolmentCode::NotCurrent);
    }
}

#[tokio::test]
async fn every_replica_has_a_log_of_its_own_also_of_what_it_missed() {
    let fleet = Fleet::new().await;
    let (a, b) = (fleet.replica("a").await, fleet.replica("b").await);
    let entries = |replica: &Replica| {
        let content = revocation_log::read(&replica.data_dir.join(revocation_log::FILE)).unwrap();
        content.unwrap_or_default().entries
    };
    fleet.device(&a, "G1").await;
    a.registrar.revoke_gateway("G1", OpenTokens::Close).await.unwrap();
    assert!(!entries(&a).is_empty(), "before it is acknowledged");
    let token = a.registrar.create_api_token(ApiRole::Admin, DAY).await.unwrap();
    a.registrar.delete_token(&token.id).await.unwrap();
    eventually("the other replica has written it down", || entries(&b).len() == 3).await;
    // A third replica starts later.
    let c = fleet.replica("c").await;
    assert_eq!(entries(&c).len(), 3, "{:?}", entries(&c));
}

#[tokio::test]
async fn a_log_that_cannot_be_written_is_told_and_the_gateway_is_out_all_the_same() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let device = fleet.device(&cloud, "G1").await;
    let log = cloud.data_dir.join(revocation_log::FILE);
    eventually("the use of the token is logged", || log.exists()).await;
    drop(cloud);
    let registrar = fleet.open("a").await.unwrap();
    // A directory in its place: no file can be opened there, not even by root.
    std::fs::remove_file(&log).unwrap();
    std::fs::create_dir(&log).unwrap();
    let problem = registrar.revoke_gateway("G1", OpenTokens::Close).await.unwrap_err();
    assert!(matches!(problem, TokenProblem::NotLogged { .. }), "{problem:?}");
    assert!(problem.to_string().contains("revocations.jsonl"), "{problem}");
    assert!(registrar.is_revoked(&device.key.hash()));

    std::fs::remove_dir(&log).unwrap();
    registrar.upkeep().await.unwrap();
    let entries = revocation_log::read(&log).unwrap().unwrap().entries;
    assert!(
        entries.iter().any(|entry| matches!(entry, revocation_log::RevocationEntry::Key { .. })),
        "{entries:?}"
    );
}

#[tokio::test]
async fn a_lost_store_is_no_first_start() {
    let fleet = Fleet::new().await;
    let (path, kubeconfig) = {
        let cloud = fleet.open("a").await.unwrap();
        let path = cloud.kubeconfig_path();
        (path.clone(), std::fs::read_to_string(path).unwrap())
    };
    let spec = StoreSpec::Sqlite { path: fleet.folder.path().join("empty.db") };
    let lost = Fleet { store: Store::open(spec.clone()).await.unwrap(), spec, ..fleet };
    let error = match lost.open("a").await.map(drop) {
        Err(IdentityError::CaStore(error @ CaStoreError::EarlierLife(_))) => error.to_string(),
        other => panic!("{other:?}"),
    };
    for part in ["seal.key", "admin.kubeconfig", "causeway restore", "--new-fleet"] {
        assert!(error.contains(part), "{part} is missing in {error}");
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), kubeconfig, "nothing was overwritten");
    assert!(lost.store.get("identity/ca").await.unwrap().is_none());

    Registrar::open(lost.store.clone(), lost.prepared("a")).await.unwrap();
    assert_ne!(std::fs::read_to_string(&path).unwrap(), kubeconfig);
    lost.open("a").await.unwrap();
    assert!(!lost.folder.path().join("a/first-start").exists());
}

#[tokio::test]
async fn a_second_host_does_not_put_the_first_out_by_mistake() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    // Two tokens were made before any host enrolled: the first host is enrolled, the second is refused with
    // the reason.
    let (one, two) = (fleet.token(&cloud, "G1").await, fleet.token(&cloud, "G1").await);
    let key = PrivateKey::generate().unwrap();
    let mut first = Device { issued: fleet.enrol(&cloud, &one, &key).await.unwrap(), key };
    let text =
        refused(fleet.enrol(&cloud, &two, &PrivateKey::generate().unwrap()).await, EnrolmentCode::TokenUsed);
    for part in ["G1", "--gateway NAME2", "--replace"] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    first.renew(&fleet, &cloud).await.unwrap();

    let refusal = cloud.registrar.create_join_token("Tokyo", "G1", HOUR, OnEnrolled::Refuse).await;
    assert!(matches!(refusal, Err(TokenProblem::Enrolled { .. })), "{refusal:?}");
    let replacing =
        cloud.registrar.create_join_token("Tokyo", "G1", HOUR, OnEnrolled::Replace).await.unwrap();
    assert_eq!(replacing.replaces.map(|enrolled| enrolled.gateway).as_deref(), Some("G1"));
    fleet.enrol(&cloud, &replacing.token, &PrivateKey::generate().unwrap()).await.unwrap();
    refused(first.renew(&fleet, &cloud).await, EnrolmentCode::Revoked);
    // A gateway whose certificate can no longer be renewed needs no --replace.
    fleet.hands.advance(121 * DAY);
    fleet.token(&cloud, "G1").await;
}

#[tokio::test]
async fn certificates_of_people_are_listed_and_revoked() {
    let fleet = Fleet::new().await;
    let (a, b) = (fleet.replica("a").await, fleet.replica("b").await);
    let csr = |key: &PrivateKey| key.request(&causeway_channel::PeerId::new("x", "y").unwrap()).unwrap();
    let key = PrivateKey::generate().unwrap();
    let issued = a.registrar.issue_certificate(ApiRole::Viewer, "ann", HOUR, &csr(&key)).await.unwrap();
    let certificate = causeway_channel::pem::decode(issued.certificate.as_bytes()).unwrap().remove(0);
    let chain = [certificate];
    let identity = b.registrar.certificate(&chain).unwrap();
    assert_eq!((identity.user.as_str(), &identity.role), ("ann", &Role::Viewer));
    for (user, ttl, csr) in
        [("system:masters", HOUR, csr(&key)), ("ann", 400 * DAY, csr(&key)), ("ann", HOUR, vec![1, 2, 3])]
    {
        let refusal = a.registrar.issue_certificate(ApiRole::Admin, user, ttl, &csr).await;
        assert!(matches!(refusal, Err(TokenProblem::Invalid { .. })), "{user} {ttl:?}");
    }
    let listed = a.registrar.certificates().await.unwrap();
    let users: Vec<_> = listed.iter().map(|listed| (listed.user.as_str(), listed.group.as_str())).collect();
    assert_eq!(users.iter().filter(|user| **user == ("admin", "causeway:admin")).count(), 2, "{users:?}");
    assert!(users.contains(&("ann", "causeway:viewer")));

    let caller = b.registrar.certificate(&chain).unwrap();
    a.registrar.revoke_certificate(&issued.serial, &caller).await.unwrap();
    assert_eq!(a.registrar.certificate(&chain), Err(AuthFailure::Revoked), "at once where it was revoked");
    eventually("and soon at the other replica", || !b.registrar.still_valid(&identity)).await;
    let listed = a.registrar.certificates().await.unwrap();
    assert!(listed.iter().any(|listed| listed.serial == issued.serial && listed.revoked));
    for serial in ["", "00", "../ca"] {
        let refusal = a.registrar.revoke_certificate(serial, &caller).await;
        assert!(matches!(refusal, Err(TokenProblem::NoCertificate { .. })), "{serial}");
    }

    // The admin's own credential: the other replica's host gets a new one, too.
    let text = |replica: &Replica| std::fs::read_to_string(replica.registrar.kubeconfig_path()).unwrap();
    let (old_a, old_b) = (text(&a), text(&b));
    let serial =
        |text: &str| causeway_channel::CertificateFacts::read(&kubeconfig_certificate(text)).unwrap().serial;
    a.registrar.revoke_certificate(&serial(&old_b), &caller).await.unwrap();
    eventually("the file is made anew", || text(&b) != old_b).await;
    a.registrar.certificate(&[kubeconfig_certificate(&text(&b))]).unwrap();
    assert_eq!(text(&a), old_a);
    let admin = a.registrar.certificate(&[kubeconfig_certificate(&old_a)]).unwrap();
    a.registrar.revoke_certificate("current", &admin).await.unwrap();
    assert_ne!(text(&a), old_a);
    a.registrar.certificate(&[kubeconfig_certificate(&text(&a))]).unwrap();
    let again = fleet.open("a").await.unwrap();
    assert_eq!(again.certificate(&[kubeconfig_certificate(&old_a)]), Err(AuthFailure::Revoked));

    // A token is not a certificate.
    let token = a.registrar.create_api_token(ApiRole::Admin, HOUR).await.unwrap();
    let caller = a.registrar.bearer(&token.text).await.unwrap();
    let refusal = a.registrar.revoke_certificate("current", &caller).await;
    assert!(matches!(refusal, Err(TokenProblem::Invalid { .. })), "{refusal:?}");
    fleet.hands.advance(2 * HOUR);
    a.registrar.upkeep().await.unwrap();
    let listed = a.registrar.certificates().await.unwrap();
    assert!(listed.iter().all(|listed| listed.user != "ann"), "forgotten when it has ended");
}

#[tokio::test]
async fn known_tokens_are_found_in_memory() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let admin = cloud.registrar.create_api_token(ApiRole::Admin, HOUR).await.unwrap();
    eventually("the watch brings it", || cloud.registrar.bearer_in_memory(&admin.text).is_some()).await;
    let unknown = super::super::tokens::api_text(&causeway_channel::TokenSecret::generate());
    for wrong in ["", "cwa1.", unknown.as_str()] {
        assert!(cloud.registrar.bearer_in_memory(wrong).is_none(), "{wrong}");
    }
    cloud.registrar.delete_token(&admin.id).await.unwrap();
    eventually("and takes it", || cloud.registrar.bearer_in_memory(&admin.text).is_none()).await;
    assert!(matches!(fleet.store.get("deletedtokens/x").await, Ok(None) | Err(StoreError::NotFound { .. })));
}
