//! An edge joins: once, whatever happens in the middle.

use std::os::unix::fs::PermissionsExt;

use causeway_channel::tls::TrustAnchors;
use causeway_channel::wire::EnrolmentCode;
use causeway_channel::{EnrolError, EnrolmentContact, PrivateKey, enrol};
use causeway_edge::{EdgeError, EnrolmentOutcome, StateError};

use super::*;

fn files(path: &std::path::Path) -> Vec<String> {
    let names =
        std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[tokio::test]
async fn an_edge_enrols_once_and_remembers() {
    let stage = Stage::new().await;
    let dir = stage.edge_dir("G1");
    let token = stage.token("G1").await;
    let peer = token.peer.clone();
    {
        let edge = stage.edge("G1");
        assert_eq!(edge.peer(), None);
        assert_eq!(edge.enrol_once(&token).await.unwrap(), EnrolmentOutcome::Now(peer.clone()));
        assert_eq!(edge.peer(), Some(peer.clone()));
        let locked = Edge::open(&dir).unwrap_err();
        assert!(matches!(locked, EdgeError::State(StateError::DataDir(_))), "{locked:?}");
    }
    assert_eq!(files(&dir), ["ca.pem", "edge.json", "identity.pem", "lock", "role"]);
    assert_eq!(std::fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
    for name in files(&dir) {
        let mode = std::fs::metadata(dir.join(&name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{name}");
    }
    // Started again with another token, and even for another gateway: it is who it is.
    let edge = stage.edge("G1");
    assert_eq!(edge.peer(), Some(peer.clone()));
    let other = stage.token("G2").await;
    assert_eq!(edge.enrol_once(&other).await.unwrap(), EnrolmentOutcome::Before(peer));
    assert_eq!(stage.used("G2").await, 0);
    let shown = format!("{edge:?}");
    let key = std::fs::read_to_string(dir.join("identity.pem")).unwrap();
    assert!(!shown.contains(key.lines().nth(1).unwrap()), "{shown}");
}

#[tokio::test]
async fn an_answer_that_was_lost_is_asked_for_again_with_the_same_key() {
    let stage = Stage::new().await;
    let dir = stage.edge_dir("G1");
    let token = stage.token("G1").await;
    // The edge before the crash: its key is on the disk, its request went out, nothing came back.
    let edge = stage.edge("G1");
    let mut nobody = token.clone();
    nobody.endpoints = vec!["127.0.0.1:9".parse().unwrap()];
    let error = edge.enrol_once(&nobody).await.unwrap_err();
    assert!(matches!(error, EdgeError::Enrol(EnrolError::Unreachable { .. })), "{error:?}");
    drop(edge);
    let key = PrivateKey::from_pem(&std::fs::read_to_string(dir.join("pending.key")).unwrap()).unwrap();
    let contact = EnrolmentContact {
        endpoints: token.endpoints.clone(),
        trust: TrustAnchors::Pinned(token.authorities.clone()),
        clock: stage.hands.clock(),
        deadline: Duration::from_secs(20),
        proxy: None,
    };
    enrol::enrol(&contact, &token, &key).await.unwrap();
    // And half of what came back was written.
    std::fs::write(dir.join("ca.pem"), "half").unwrap();

    let edge = stage.edge("G1");
    edge.enrol_once(&token).await.unwrap();
    assert_eq!(stage.used("G1").await, 1);
    let identity = edge.identity().borrow().clone().unwrap();
    assert_eq!(identity.key.hash(), key.hash());
    assert!(!dir.join("pending.key").exists());
}

#[tokio::test]
async fn a_refusal_is_final_and_a_silent_cloud_is_not() {
    let stage = Stage::new().await;
    stage.enrolled("G1").await;
    let stop = CancellationToken::new();
    let issued = stage.registrar.create_join_token("Tokyo", "G2", HOUR, OnEnrolled::Refuse).await.unwrap();
    stage.registrar.delete_token(&issued.id).await.unwrap();
    let edge = stage.edge("G2");
    let error = edge.enrol(&issued.token, &stop).await.unwrap_err();
    let EdgeError::Enrol(EnrolError::Refused(refusal)) = &error else { panic!("{error:?}") };
    assert_eq!(refusal.reason(), EnrolmentCode::TokenDeleted);

    let mut nobody = stage.token("G2").await;
    nobody.endpoints = vec!["127.0.0.1:9".parse().unwrap()];
    let (tried, ()) = tokio::join!(edge.enrol(&nobody, &stop), async {
        tokio::task::yield_now().await;
        stop.cancel();
    });
    assert!(matches!(tried, Err(EdgeError::Stopped)));

    // One endpoint that does not answer is no obstacle.
    let mut token = stage.token("G2").await;
    token.endpoints.insert(0, "127.0.0.1:9".parse().unwrap());
    edge.enrol(&token, &CancellationToken::new()).await.unwrap();
}

#[tokio::test]
async fn damaged_files_are_named() {
    let stage = Stage::new().await;
    drop(stage.enrolled("G1").await);
    drop(stage.enrolled("G2").await);
    let (dir, other) = (stage.edge_dir("G1"), stage.edge_dir("G2"));
    let rows = [
        ("identity.pem", "nonsense".to_owned(), "identity.pem"),
        ("identity.pem", std::fs::read_to_string(dir.join("ca.pem")).unwrap(), "identity.pem"),
        ("ca.pem", String::new(), "ca.pem"),
        ("edge.json", "{".to_owned(), "edge.json"),
    ];
    for (name, content, named) in rows {
        let good = std::fs::read(dir.join(name)).unwrap();
        std::fs::write(dir.join(name), content).unwrap();
        let error = Edge::open(&dir).unwrap_err().to_string();
        assert!(error.contains(named) && error.contains("damaged"), "{error}");
        std::fs::write(dir.join(name), good).unwrap();
    }
    let (mine, foreign) = (dir.join("identity.pem"), other.join("identity.pem"));
    let (mine_text, foreign_text) =
        (std::fs::read_to_string(&mine).unwrap(), std::fs::read_to_string(foreign).unwrap());
    let begin = "-----BEGIN CERTIFICATE-----";
    let mixed = format!(
        "{}{}",
        mine_text.split_once(begin).unwrap().0,
        &foreign_text[foreign_text.find(begin).unwrap()..]
    );
    std::fs::write(&mine, mixed).unwrap();
    let error = Edge::open(&dir).unwrap_err().to_string();
    assert!(error.contains("do not belong together"), "{error}");
    std::fs::write(&mine, mine_text).unwrap();
    Edge::open(&dir).unwrap();
}
