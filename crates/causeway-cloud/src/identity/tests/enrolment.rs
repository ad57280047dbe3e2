//! Getting a first certificate, the next, and one after the end; and every way to be refused.

use causeway_channel::PeerId;
use causeway_channel::clock::BACKDATE;
use causeway_channel::wire::{self, Ask};
use causeway_store::Page;
use tokio::net::TcpListener;

use super::super::authority::{Authority, Subject};
use super::*;

#[tokio::test]
async fn a_device_enrols_and_a_crash_in_the_middle_costs_nothing() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let token = fleet.token(&cloud, "G1").await;
    let token = token.to_text().parse().unwrap();
    let key = Key::generate().unwrap();

    let issued = fleet.enrol(&cloud, &token, &key).await.unwrap();
    assert_eq!(issued.facts.peer, Some(PeerId::new("Tokyo", "G1").unwrap()));
    assert_eq!(issued.facts.not_after, fleet.hands.now() + 30 * DAY);
    assert_eq!(issued.facts.not_before, fleet.hands.now() - BACKDATE);
    assert_eq!(issued.endpoints, token.endpoints);

    // The answer was lost; the same key asks again, even after the end of the token.
    fleet.enrol(&cloud, &token, &key).await.unwrap();
    fleet.hands.advance(2 * HOUR);
    fleet.enrol(&cloud, &token, &key).await.unwrap();
    let summary = &cloud.registrar.tokens().await.unwrap()[0];
    assert_eq!((summary.used, summary.uses, summary.expired), (Some(1), Some(1), true));
}

#[tokio::test]
async fn a_token_is_worth_what_it_says() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let (one, other) = (Key::generate().unwrap(), Key::generate().unwrap());

    let token = fleet.token(&cloud, "used").await;
    fleet.enrol(&cloud, &token, &one).await.unwrap();
    let text = refused(fleet.enrol(&cloud, &token, &other).await, Code::TokenUsed);
    assert!(text.contains("Tokyo/used") && text.contains("causeway token create"), "{text}");

    let issued =
        cloud.registrar.create_join_token("Tokyo", "deleted", HOUR, OnEnrolled::Refuse).await.unwrap();
    cloud.registrar.delete_token(&issued.id).await.unwrap();
    assert!(cloud.registrar.delete_token(&issued.id).await.is_err());
    refused(fleet.enrol(&cloud, &issued.token, &other).await, Code::TokenDeleted);

    let mut unknown = fleet.token(&cloud, "unknown").await;
    unknown.secret = causeway_channel::Secret::generate();
    refused(fleet.enrol(&cloud, &unknown, &other).await, Code::TokenUnknown);

    let expired = fleet.token(&cloud, "expired").await;
    fleet.hands.advance(HOUR);
    let text = refused(fleet.enrol(&cloud, &expired, &other).await, Code::TokenExpired);
    assert!(text.contains("2027-01-15T09:00:00Z"), "{text}");

    fleet.hands.advance(8 * DAY);
    cloud.registrar.upkeep().await.unwrap();
    refused(fleet.enrol(&cloud, &expired, &other).await, Code::TokenUnknown);
    assert_eq!(cloud.registrar.tokens().await.unwrap(), vec![]);
}

#[tokio::test]
async fn tokens_are_checked_before_they_are_made() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let create = |site: &'static str, gateway: &'static str, ttl, uses| {
        let registrar = cloud.registrar.clone();
        async move {
            registrar.check_join_token(site, gateway, ttl, uses)?;
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
    let everything = fleet.store.list("", Page::default()).await.unwrap();
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
    let key = Key::generate().unwrap();
    let csr = key.request(&PeerId::new("cloud", "cloud").unwrap()).unwrap();
    let ask = Ask::Enrol(wire::Enrol { secret: token.secret.expose().to_vec(), csr });
    let answer =
        cloud.registrar.answer(wire::Request { time: 0, ask: Some(ask) }, None, "test").await.unwrap();
    let wire::Answer::Issued(issued) = answer else { panic!("{answer:?}") };
    let facts = causeway_channel::CertificateFacts::read(&issued.certificate).unwrap();
    assert_eq!(facts.peer, Some(token.peer));
    assert_eq!(facts.common_name, "G1");
    assert_eq!(facts.organizations, ["causeway:gateway"]);
    assert_eq!(cloud.registrar.figures().mismatches(), 1);
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
    let other_csr = Key::generate().unwrap().request(&peer).unwrap();
    let certificate = device.issued.certificate.to_vec();
    let mut forged = csr.clone();
    *forged.last_mut().unwrap() ^= 1;

    let stranger = Authority::create(fleet.hands.now()).unwrap();
    let spki = causeway_channel::key::Request::read(&csr).unwrap().spki;
    let foreign = stranger.sign(&Subject::Gateway(peer.clone()), &spki, fleet.hands.now(), DAY).unwrap();
    let admin = std::fs::read_to_string(cloud.registrar.kubeconfig_path()).unwrap();
    let admin = super::access::kubeconfig_certificate(&admin);

    let enrol =
        |secret: &[u8], csr: &[u8]| Ask::Enrol(wire::Enrol { secret: secret.to_vec(), csr: csr.to_vec() });
    let renew = |csr: &[u8]| Ask::Renew(wire::Renew { csr: csr.to_vec() });
    let reenrol = |certificate: &[u8], csr: &[u8]| {
        Ask::Reenrol(wire::Reenrol { csr: csr.to_vec(), certificate: certificate.to_vec() })
    };
    let shown = Some(&device.issued.certificate);
    let check = Ask::Check(wire::Check { bundle: vec![1] });
    let rows = [
        ("nothing asked", None, None, Code::Malformed),
        ("no request", Some(enrol(&secret, b"")), None, Code::BadRequest),
        ("garbage for a request", Some(enrol(&secret, b"garbage")), None, Code::BadRequest),
        ("a forged request", Some(enrol(&secret, &forged)), None, Code::BadRequest),
        ("a short secret", Some(enrol(&secret[..31], &other_csr)), None, Code::Malformed),
        ("no secret", Some(enrol(b"", &other_csr)), None, Code::Malformed),
        ("renewal without a certificate", Some(renew(&csr)), None, Code::CertificateNeeded),
        ("renewal for another key", Some(renew(&other_csr)), shown, Code::BadRequest),
        (
            "renewal with a foreign certificate",
            Some(renew(&csr)),
            Some(&foreign.certificate),
            Code::WrongAuthority,
        ),
        ("renewal by a user", Some(renew(&csr)), Some(&admin), Code::Malformed),
        ("re-enrolment with garbage", Some(reenrol(b"garbage", &csr)), None, Code::Malformed),
        ("re-enrolment for another key", Some(reenrol(&certificate, &other_csr)), None, Code::BadRequest),
        (
            "re-enrolment with a foreign one",
            Some(reenrol(&foreign.certificate, &csr)),
            None,
            Code::WrongAuthority,
        ),
        ("a check without a certificate", Some(check.clone()), None, Code::CertificateNeeded),
        ("a check with a foreign one", Some(check), Some(&foreign.certificate), Code::WrongAuthority),
    ];
    for (row, ask, shown, code) in rows {
        let answer = cloud.registrar.answer(wire::Request { time: 0, ask }, shown, "test").await;
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
    let text = refused(old.renew(&fleet, &cloud).await, Code::Revoked);
    assert!(text.contains("enrolled anew"), "{text}");
    refused(old.reenrol(&fleet, &cloud).await, Code::Revoked);
    new.renew(&fleet, &cloud).await.unwrap();

    // Not even a token helps a revoked key.
    let token = fleet.replacing_token(&cloud, "G1").await;
    refused(fleet.enrol(&cloud, &token, &old.key).await, Code::Revoked);
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
    let text = refused(device.renew(&fleet, &cloud).await, Code::CertificateExpired);
    assert!(text.contains("expired at"), "{text}");
    device.reenrol(&fleet, &cloud).await.unwrap();
    device.renew(&fleet, &cloud).await.unwrap();

    fleet.hands.advance(120 * DAY);
    cloud.registrar.upkeep().await.unwrap();
    device.reenrol(&fleet, &cloud).await.unwrap();
    fleet.hands.advance(120 * DAY + MINUTE);
    cloud.registrar.upkeep().await.unwrap();
    let text = refused(device.reenrol(&fleet, &cloud).await, Code::GraceOver);
    assert!(text.contains("90 days") && text.contains("causeway token create"), "{text}");
}

#[tokio::test]
async fn without_grace_the_end_is_the_end() {
    let fleet = Fleet { grace: Duration::ZERO, ..Fleet::new().await };
    let cloud = fleet.replica("a").await;
    let mut device = fleet.device(&cloud, "G1").await;
    fleet.hands.advance(30 * DAY + Duration::from_secs(1));
    refused(device.reenrol(&fleet, &cloud).await, Code::GraceOver);
}

#[tokio::test]
async fn a_wrong_clock_is_named_and_costs_no_token() {
    let fleet = Fleet::new().await;
    let cloud = fleet.replica("a").await;
    let token = fleet.token(&cloud, "G1").await;
    let key = Key::generate().unwrap();
    let now = fleet.hands.now();
    let with_clock = |time: SystemTime| {
        let mut contact = fleet.contact(&cloud, Trust::Pinned(token.authorities.clone()));
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
    let key = Key::generate().unwrap();
    let error = fleet.enrol(&impostor, &token, &key).await.unwrap_err();
    assert!(matches!(error, EnrolError::WrongAuthority { .. }), "{error:?}");
    let mut device = fleet.device(&cloud, "G2").await;
    let error = device.renew(&fleet, &impostor).await.unwrap_err();
    assert!(matches!(error, EnrolError::WrongAuthority { .. }), "{error:?}");

    // A gateway's own certificate, though from the right CA, is not the cloud's.
    let chain = vec![device.issued.certificate.clone(), device.issued.authorities[0].clone()];
    let credentials = Credentials { chain, key: device.key.to_der() };
    let config =
        causeway_channel::tls::server(credentials, &device.issued.authorities, &[wire::ALPN]).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (link, _) = listener.accept().await.unwrap();
        let _ = tokio_rustls::TlsAcceptor::from(Arc::new(config)).accept(link).await;
    });
    let mut contact = fleet.contact(&cloud, Trust::Pinned(token.authorities.clone()));
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
    refused(device.renew(&fleet, &cloud).await, Code::Revoked);

    fleet.store.delete(&key, None).await.unwrap();
    newer.renew(&fleet, &cloud).await.unwrap();
}
