//! Issuing a first certificate, renewing it, replacing it after its end, and every refusal.

use causeway_channel::PeerId;
use causeway_channel::clock::BACKDATE;
use causeway_channel::wire::{self, EnrolmentRequestBody};
use causeway_store::ListRange;
use tokio::net::TcpListener;

use super::super::authority::{Authority, CertificateSubject};
use super::super::revocation_log::{self, RevocationEntry};
use super::*;

#[tokio::test]
async fn a_device_enrols_and_a_crash_in_the_middle_costs_nothing() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let token = fleet.token(&cloud, "G1").await;
    let token = token.to_text().parse().unwrap();
    let key = PrivateKey::generate().unwrap();

    let issued = fleet.enrol(&cloud, &token, &key).await.unwrap();
    assert_eq!(issued.facts.peer, Some(PeerId::new("Tokyo", "G1").unwrap()));
    assert_eq!(issued.facts.not_after, fleet.hands.now() + 30 * DAY);
    assert_eq!(issued.facts.not_before, fleet.hands.now() - BACKDATE);
    assert_eq!(issued.endpoints, token.endpoints);

    // The response was lost; the same key asks again, even after the end of the token.
    fleet.enrol(&cloud, &token, &key).await.unwrap();
    fleet.hands.advance(2 * HOUR);
    fleet.enrol(&cloud, &token, &key).await.unwrap();
    let summary = &cloud.registrar.tokens().await.unwrap()[0];
    assert_eq!((summary.used, summary.uses, summary.expired), (Some(1), Some(1), true));
}

#[tokio::test]
async fn a_redeemed_token_and_a_replaced_key_are_in_the_revocation_log_before_the_certificate_is_sent() {
    let fleet = Fleet::new().await;
    // `run` is not called: no watch on the store writes the log.
    let config = IdentityConfig { advertise: vec!["127.0.0.1:7444".parse().unwrap()], ..fleet.config("a") };
    let registrar = Registrar::open(fleet.store().await, config).await.unwrap();
    let log = fleet.data_dir("a").join(revocation_log::FILE);
    let enrol = async |token: &JoinToken, key: &PrivateKey| {
        let csr = key.request(&token.peer).unwrap();
        let enrol = wire::EnrolMessage { secret: token.secret.expose().to_vec(), csr };
        let ask = Some(EnrolmentRequestBody::Enrol(enrol));
        let request = wire::EnrolmentRequest { ask, ..Default::default() };
        registrar.answer(request, None, None, "test").await
    };
    let create =
        async |on_enrolled| registrar.create_join_token("Tokyo", "G1", HOUR, on_enrolled).await.unwrap();
    let (first, second) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    let issued = create(OnEnrolled::Refuse).await;
    enrol(&issued.token, &first).await.unwrap();
    let entries = || revocation_log::read(&log).unwrap().unwrap().entries;
    let redeemed = |id: &str, key: &PrivateKey| {
        let key = key.hash().to_string();
        entries().iter().any(|entry| {
            matches!(entry, RevocationEntry::JoinToken { id: found, redeemed, .. }
                if found == id && redeemed.iter().any(|redeemed| redeemed.key == key))
        })
    };
    assert!(redeemed(&issued.id, &first), "{:?}", entries());

    // While the log cannot be written, no certificate is sent.
    let aside = log.with_extension("aside");
    std::fs::rename(&log, &aside).unwrap();
    std::fs::create_dir(&log).unwrap();
    let issued = create(OnEnrolled::Replace).await;
    let refusal = enrol(&issued.token, &second).await.unwrap_err();
    assert_eq!(refusal.reason(), EnrolmentCode::Unavailable, "{refusal}");
    std::fs::remove_dir(&log).unwrap();
    std::fs::rename(&aside, &log).unwrap();
    enrol(&issued.token, &second).await.unwrap();
    assert!(redeemed(&issued.id, &second), "{:?}", entries());

    let third = PrivateKey::generate().unwrap();
    let issued = create(OnEnrolled::Replace).await;
    enrol(&issued.token, &third).await.unwrap();
    let replaced = second.hash().to_string();
    let is_replaced =
        |entry: &RevocationEntry| matches!(entry, RevocationEntry::Key { key, .. } if *key == replaced);
    assert!(entries().iter().any(is_replaced), "{:?}", entries());
}

#[tokio::test]
async fn a_token_is_worth_what_it_says() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let (one, other) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());

    let token = fleet.token(&cloud, "used").await;
    fleet.enrol(&cloud, &token, &one).await.unwrap();
    let text = refused(fleet.enrol(&cloud, &token, &other).await, EnrolmentCode::TokenUsed);
    assert!(text.contains("Tokyo/used") && text.contains("causeway token create"), "{text}");

    let issued =
        cloud.registrar.create_join_token("Tokyo", "deleted", HOUR, OnEnrolled::Refuse).await.unwrap();
    cloud.registrar.delete_token(&issued.id).await.unwrap();
    assert!(cloud.registrar.delete_token(&issued.id).await.is_err());
    refused(fleet.enrol(&cloud, &issued.token, &other).await, EnrolmentCode::TokenDeleted);

    let mut unknown = fleet.token(&cloud, "unknown").await;
    unknown.secret = causeway_channel::TokenSecret::generate();
    refused(fleet.enrol(&cloud, &unknown, &other).await, EnrolmentCode::TokenUnknown);

    let expired = fleet.token(&cloud, "expired").await;
    fleet.hands.advance(HOUR);
    let text = refused(fleet.enrol(&cloud, &expired, &other).await, EnrolmentCode::TokenExpired);
    assert!(text.contains("2027-01-15T09:00:00Z"), "{text}");

    fleet.hands.advance(8 * DAY);
    cloud.registrar.upkeep().await.unwrap();
    refused(fleet.enrol(&cloud, &expired, &other).await, EnrolmentCode::TokenUnknown);
    assert_eq!(cloud.registrar.tokens().await.unwrap(), vec![]);
}

#[tokio::test]
async fn tokens_are_checked_before_they_are_made() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let create = |site: &'static str, gateway: &'static str, ttl, uses| {
        let registrar = cloud.registrar.clone();
        async move {
            registrar.validate_new_join_token(site, gateway, ttl, uses)?;
            registrar.create_join_token(site, gateway, ttl, OnEnrolled::Refuse).await.map(drop)
        }
    };
    assert!(create("Tokyo", "G1", HOUR, 1).await.is_ok());
    for (site, gateway, ttl, uses) in [
        ("", "G1", HOUR, 1),
        ("To/kyo", "G1", HOUR, 1),
        ("Tokyo", "G%31", HOUR, 1),
        ("Tokyo", "G1", Duration::ZERO, 1),
        ("Tokyo", "G1", 4000 * DAY, 1),
        ("Tokyo", "G1", HOUR, 0),
        ("Tokyo", "G1", HOUR, 2),
    ] {
        let problem = create(site, gateway, ttl, uses).await.unwrap_err();
        assert!(matches!(problem, super::super::TokenProblem::Invalid { .. }), "{site} {gateway} {uses}");
    }
    for id in ["", "x", "../identity/ca", "0123456789abcdef0123456789abcdef"] {
        let problem = cloud.registrar.delete_token(id).await.unwrap_err();
        assert!(matches!(problem, super::super::TokenProblem::NotFound { .. }), "{id}");
    }
}

#[tokio::test]
async fn nothing_in_the_store_is_worth_a_certificate() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let token = fleet.token(&cloud, "G1").await;
    let api = cloud.registrar.create_api_token(super::super::ApiRole::Admin, HOUR).await.unwrap();
    let everything = fleet.store.list("", ListRange::default()).await.unwrap();
    assert!(everything.records.len() >= 3);
    let hex: String = token.secret.expose().iter().map(|byte| format!("{byte:02x}")).collect();
    for record in everything.records {
        let text = format!("{}{}", record.key, String::from_utf8_lossy(&record.value));
        assert!(!text.contains(&hex) && !text.contains(&api.text[5..30]), "{text}");
        assert!(!text.contains("PRIVATE KEY"), "{text}");
    }
    assert!(!format!("{api:?}{:?}", token).contains(&api.text[5..30]));
}

#[tokio::test]
async fn the_name_comes_from_the_token_whatever_the_request_says() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let token = fleet.token(&cloud, "G1").await;
    let key = PrivateKey::generate().unwrap();
    let csr = key.request(&PeerId::new("cloud", "cloud").unwrap()).unwrap();
    let ask = EnrolmentRequestBody::Enrol(wire::EnrolMessage { secret: token.secret.expose().to_vec(), csr });
    let answer = cloud
        .registrar
        .answer(wire::EnrolmentRequest { time: 0, ask: Some(ask) }, None, None, "test")
        .await
        .unwrap();
    let wire::EnrolmentResponseBody::Issued(issued) = answer else { panic!("{answer:?}") };
    let facts = causeway_channel::CertificateFacts::read(&issued.certificate).unwrap();
    assert_eq!(facts.peer, Some(token.peer));
    assert_eq!(facts.common_name, "G1");
    assert_eq!(facts.organizations, ["causeway:gateway"]);
    assert_eq!(cloud.registrar.metrics().mismatches(), 1);
}

#[tokio::test]
async fn broken_requests_are_refused_one_by_one() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let device = fleet.device(&cloud, "G1").await;
    let token = fleet.token(&cloud, "G2").await;
    let peer = PeerId::new("Tokyo", "G1").unwrap();
    let secret = token.secret.expose().to_vec();
    let csr = device.key.request(&peer).unwrap();
    let other_csr = PrivateKey::generate().unwrap().request(&peer).unwrap();
    let certificate = device.issued.certificate.to_vec();
    let mut forged = csr.clone();
    *forged.last_mut().unwrap() ^= 1;

    let stranger = Authority::create(fleet.hands.now()).unwrap();
    let spki = causeway_channel::key::CertificateRequest::read(&csr).unwrap().spki;
    let foreign =
        stranger.sign(&CertificateSubject::Gateway(peer.clone()), &spki, fleet.hands.now(), DAY).unwrap();
    let admin = std::fs::read_to_string(cloud.registrar.kubeconfig_path()).unwrap();
    let admin = super::access::kubeconfig_certificate(&admin);

    let enrol = |secret: &[u8], csr: &[u8]| {
        EnrolmentRequestBody::Enrol(wire::EnrolMessage { secret: secret.to_vec(), csr: csr.to_vec() })
    };
    let renew = |csr: &[u8]| EnrolmentRequestBody::Renew(wire::RenewMessage { csr: csr.to_vec() });
    let reenrol = |certificate: &[u8], csr: &[u8]| {
        EnrolmentRequestBody::Reenrol(wire::ReenrolMessage {
            csr: csr.to_vec(),
            certificate: certificate.to_vec(),
        })
    };
    let shown = Some(&device.issued.certificate);
    let check = EnrolmentRequestBody::Check(wire::CheckMessage { bundle: vec![1] });
    let rows = [
        ("nothing asked", None, None, EnrolmentCode::Malformed),
        ("no request", Some(enrol(&secret, b"")), None, EnrolmentCode::BadRequest),
        ("garbage for a request", Some(enrol(&secret, b"garbage")), None, EnrolmentCode::BadRequest),
        ("a forged request", Some(enrol(&secret, &forged)), None, EnrolmentCode::BadRequest),
        ("a short secret", Some(enrol(&secret[..31], &other_csr)), None, EnrolmentCode::Malformed),
        ("no secret", Some(enrol(b"", &other_csr)), None, EnrolmentCode::Malformed),
        ("renewal without a certificate", Some(renew(&csr)), None, EnrolmentCode::CertificateNeeded),
        ("renewal for another key", Some(renew(&other_csr)), shown, EnrolmentCode::BadRequest),
        (
            "renewal with a foreign certificate",
            Some(renew(&csr)),
            Some(&foreign.certificate),
            EnrolmentCode::WrongAuthority,
        ),
        ("renewal by a user", Some(renew(&csr)), Some(&admin), EnrolmentCode::Malformed),
        ("re-enrolment with garbage", Some(reenrol(b"garbage", &csr)), None, EnrolmentCode::Malformed),
        (
            "re-enrolment for another key",
            Some(reenrol(&certificate, &other_csr)),
            None,
            EnrolmentCode::BadRequest,
        ),
        (
            "re-enrolment with a foreign one",
            Some(reenrol(&foreign.certificate, &csr)),
            None,
            EnrolmentCode::WrongAuthority,
        ),
        ("a check without a certificate", Some(check.clone()), None, EnrolmentCode::CertificateNeeded),
        (
            "a check with a foreign one",
            Some(check),
            Some(&foreign.certificate),
            EnrolmentCode::WrongAuthority,
        ),
    ];
    for (row, ask, shown, code) in rows {
        let answer =
            cloud.registrar.answer(wire::EnrolmentRequest { time: 0, ask }, None, shown, "test").await;
        assert_eq!(answer.unwrap_err().reason(), code, "{row}");
    }
    let open = cloud.registrar.tokens().await.unwrap();
    assert_eq!(open.iter().find(|token| token.gateway.as_deref() == Some("G2")).unwrap().used, Some(0));
}

#[tokio::test]
async fn a_new_key_revokes_the_one_before() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let mut old = fleet.device(&cloud, "G1").await;
    let mut ended = cloud.registrar.revoked_keys();
    let token = fleet.replacing_token(&cloud, "G1").await;
    let mut new = fleet.device_with(&cloud, &token).await;
    assert_eq!(within(ended.recv()).await.unwrap(), old.key.hash());
    let text = refused(old.renew(&fleet, &cloud).await, EnrolmentCode::Revoked);
    assert!(text.contains("enrolled anew"), "{text}");
    refused(old.reenrol(&fleet, &cloud).await, EnrolmentCode::Revoked);
    new.renew(&fleet, &cloud).await.unwrap();

    // A revoked key is refused even with a token.
    let token = fleet.replacing_token(&cloud, "G1").await;
    refused(fleet.enrol(&cloud, &token, &old.key).await, EnrolmentCode::Revoked);
}

#[tokio::test]
async fn a_live_certificate_is_renewed_and_an_expired_one_within_its_grace() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let mut device = fleet.device(&cloud, "G1").await;
    let first = device.issued.facts.serial.clone();
    fleet.hands.advance(20 * DAY);
    assert!(!device.asks_to_renew(&fleet, &cloud).await.unwrap());
    device.renew(&fleet, &cloud).await.unwrap();
    assert_ne!(device.issued.facts.serial, first);
    assert_eq!(device.issued.facts.not_after, fleet.hands.now() + 30 * DAY);

    fleet.hands.advance(30 * DAY + MINUTE);
    cloud.registrar.upkeep().await.unwrap();
    let text = refused(device.renew(&fleet, &cloud).await, EnrolmentCode::CertificateExpired);
    assert!(text.contains("expired at"), "{text}");
    device.reenrol(&fleet, &cloud).await.unwrap();
    device.renew(&fleet, &cloud).await.unwrap();

    fleet.hands.advance(120 * DAY);
    cloud.registrar.upkeep().await.unwrap();
    device.reenrol(&fleet, &cloud).await.unwrap();
    fleet.hands.advance(120 * DAY + MINUTE);
    cloud.registrar.upkeep().await.unwrap();
    let text = refused(device.reenrol(&fleet, &cloud).await, EnrolmentCode::GraceOver);
    assert!(text.contains("90 days") && text.contains("causeway token create"), "{text}");
}

#[tokio::test]
async fn without_grace_the_end_is_the_end() {
    let fleet = Fleet { grace: Duration::ZERO, ..Fleet::new().await };
    let cloud = fleet.replica("a").await;
    let mut device = fleet.device(&cloud, "G1").await;
    fleet.hands.advance(30 * DAY + Duration::from_secs(1));
    refused(device.reenrol(&fleet, &cloud).await, EnrolmentCode::GraceOver);
}

#[tokio::test]
async fn a_wrong_clock_is_named_and_costs_no_token() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let token = fleet.token(&cloud, "G1").await;
    let key = PrivateKey::generate().unwrap();
    let now = fleet.hands.now();
    let with_clock = |time: SystemTime| {
        let mut contact = fleet.contact(&cloud, TrustAnchors::Pinned(token.authorities.clone()));
        contact.clock = Clock::from_fn(move || time);
        contact
    };
    for wrong in [SystemTime::UNIX_EPOCH, now - 11 * MINUTE, now + 25 * HOUR, now + 20 * 365 * DAY] {
        let error = enrol::enrol(&with_clock(wrong), &token, &key).await.unwrap_err();
        let EnrolError::Clock { edge, cloud } = &error else { panic!("{error:?}") };
        assert_eq!((*edge, *cloud), (wrong, now));
        let text = error.to_string();
        assert!(text.contains("2027-01-15T08:00:00Z") && text.contains("set it"), "{text}");
    }
    assert_eq!(cloud.registrar.tokens().await.unwrap()[0].used, Some(0));
    for usable in [now - 9 * MINUTE, now + 23 * HOUR] {
        enrol::enrol(&with_clock(usable), &token, &key).await.unwrap();
    }
}

#[tokio::test]
async fn an_impostor_learns_nothing() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let other = Fleet::new().await;
    let impostor = other.replica("a").await;
    let token = fleet.token(&cloud, "G1").await;
    let key = PrivateKey::generate().unwrap();
    let error = fleet.enrol(&impostor, &token, &key).await.unwrap_err();
    assert!(matches!(error, EnrolError::WrongAuthority { .. }), "{error:?}");
    let mut device = fleet.device(&cloud, "G2").await;
    let error = device.renew(&fleet, &impostor).await.unwrap_err();
    assert!(matches!(error, EnrolError::WrongAuthority { .. }), "{error:?}");

    // A gateway's own certificate, though from the right CA, is not accepted as the cloud's.
    let chain = vec![device.issued.certificate.clone(), device.issued.authorities[0].clone()];
    let credentials = TlsCredentials { chain, key: device.key.to_der() };
    let config =
        causeway_channel::tls::server(credentials, &device.issued.authorities, &[wire::ALPN]).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (link, _) = listener.accept().await.unwrap();
        let _ = tokio_rustls::TlsAcceptor::from(Arc::new(config)).accept(link).await;
    });
    let mut contact = fleet.contact(&cloud, TrustAnchors::Pinned(token.authorities.clone()));
    contact.endpoints = vec![addr.to_string().parse().unwrap()];
    let error = enrol::enrol(&contact, &token, &key).await.unwrap_err();
    assert!(matches!(error, EnrolError::Handshake { .. }), "{error:?}");
    let tokens = cloud.registrar.tokens().await.unwrap();
    assert_eq!(tokens.iter().find(|token| token.gateway.as_deref() == Some("G1")).unwrap().used, Some(0));
}

#[tokio::test]
async fn edges_survive_a_cloud_that_was_put_back_from_an_old_backup() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let key = super::super::gateways::store_key("G1");
    let mut device = fleet.device(&cloud, "G1").await;
    let old = fleet.store.get(&key).await.unwrap().unwrap();
    fleet.hands.advance(DAY);
    let token = fleet.replacing_token(&cloud, "G1").await;
    let mut newer = fleet.device_with(&cloud, &token).await;

    fleet.store.put(&key, old.value).await.unwrap();
    fleet.store.delete(&super::super::revocation::store_key(&device.key.hash()), None).await.unwrap();
    newer.renew(&fleet, &cloud).await.unwrap();
    refused(device.renew(&fleet, &cloud).await, EnrolmentCode::Revoked);

    fleet.store.delete(&key, None).await.unwrap();
    newer.renew(&fleet, &cloud).await.unwrap();
}
