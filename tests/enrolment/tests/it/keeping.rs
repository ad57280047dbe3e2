//! An edge keeps its certificate fresh: at two thirds, after its end, through a change of CA, until it is revoked.

use causeway_edge::renewal::{RenewalOutcome, RenewalStep};
use causeway_edge::{EdgeError, EdgeIdentity, EnrolmentOutcome};

use super::*;

fn identity(edge: &Edge) -> Arc<EdgeIdentity> {
    edge.identity().borrow().clone().unwrap()
}

/// Runs the edge until its certificate is another one.
async fn run_until_new(edge: &Edge) {
    let mut changes = edge.identity();
    changes.borrow_and_update();
    let run = tokio::time::timeout(Duration::from_secs(10), edge.run(CancellationToken::new()));
    tokio::select! {
        ended = run => panic!("no new certificate: {ended:?}"),
        changed = changes.changed() => changed.unwrap(),
    }
}

#[tokio::test]
async fn a_running_edge_renews_at_two_thirds_and_re_enrols_after_the_end() {
    let stage = Stage::new().await;
    let edge = stage.enrolled("G1").await;
    let first = identity(&edge);
    for pass in [23 * DAY, 31 * DAY, 119 * DAY] {
        stage.hands.advance(pass);
        stage.registrar.upkeep().await.unwrap();
        let before = identity(&edge);
        run_until_new(&edge).await;
        let now = identity(&edge);
        assert_ne!(now.facts.serial, before.facts.serial);
        assert_eq!(now.facts.not_after, stage.hands.now() + 30 * DAY);
        assert_eq!(now.key.hash(), first.key.hash());
    }
    // The certificate in use is the one on the disk.
    let last = identity(&edge).facts.serial.clone();
    drop(edge);
    assert_eq!(identity(&stage.edge("G1")).facts.serial, last);
}

#[tokio::test]
async fn a_change_of_ca_passes_through_a_running_edge() {
    let stage = Stage::new().await;
    let edge = stage.enrolled("G1").await;
    stage.registrar.start_rotation().await.unwrap();
    run_until_new(&edge).await;
    assert_eq!(identity(&edge).authorities.len(), 2);
    assert!(stage.registrar.finish_rotation(false).await.is_err(), "not shown to the cloud yet");
    let shown = edge.take_step(RenewalStep::Check).await.unwrap();
    assert_eq!(shown, Some(RenewalOutcome::Checked { renew: false }));
    stage.registrar.finish_rotation(false).await.unwrap();
    run_until_new(&edge).await;
    assert_eq!(identity(&edge).authorities.len(), 1);
    assert_eq!(
        edge.take_step(RenewalStep::Check).await.unwrap(),
        Some(RenewalOutcome::Checked { renew: false })
    );
}

#[tokio::test]
async fn a_revoked_edge_ends_and_comes_back_only_with_a_new_token() {
    let stage = Stage::new().await;
    let edge = stage.enrolled("G1").await;
    let first = identity(&edge).key.hash();
    stage.registrar.revoke_gateway("G1", OpenTokens::Close).await.unwrap();
    let run = tokio::time::timeout(Duration::from_secs(10), edge.run(CancellationToken::new()));
    let error = run.await.expect("the edge ends by itself").unwrap_err();
    assert!(matches!(error, EdgeError::GivenUp(_)) && error.to_string().contains("--join"), "{error:?}");
    assert!(stage.edge_dir("G1").join("refused.json").exists());
    drop(edge);

    let edge = stage.edge("G1");
    let token = stage.token("G1").await;
    assert!(matches!(edge.enrol_once(&token).await.unwrap(), EnrolmentOutcome::Now(_)));
    assert_ne!(identity(&edge).key.hash(), first);
    assert!(!stage.edge_dir("G1").join("refused.json").exists());
    assert_eq!(
        edge.take_step(RenewalStep::Check).await.unwrap(),
        Some(RenewalOutcome::Checked { renew: false })
    );
}

#[tokio::test]
async fn a_key_from_an_earlier_life_is_replaced() {
    let stage = Stage::new().await;
    // Its answer was lost, and before it came back the gateway was enrolled on another host.
    let token = stage.token("G1").await;
    let edge = stage.edge("old");
    edge.enrol_once(&token).await.unwrap();
    let text = std::fs::read(stage.edge_dir("old").join("identity.pem")).unwrap();
    drop(edge);
    stage.enrolled("G1").await;
    std::fs::create_dir_all(stage.edge_dir("new")).unwrap();
    std::fs::write(stage.edge_dir("new").join("pending.key"), text).unwrap();
    let edge = stage.edge("new");
    edge.enrol_once(&stage.token("G1").await).await.unwrap();
    assert_eq!(
        edge.take_step(RenewalStep::Check).await.unwrap(),
        Some(RenewalOutcome::Checked { renew: false })
    );
}

#[tokio::test]
async fn a_wrong_clock_and_a_cloud_that_is_away_are_waited_out() {
    let stage = Stage::new().await;
    drop(stage.enrolled("G1").await);
    for wrong in [SystemTime::UNIX_EPOCH, stage.hands.now() + 400 * DAY] {
        let edge = Edge::open_with(stage.edge_dir("G1"), Clock::from_fn(move || wrong)).unwrap();
        for step in [RenewalStep::Check, RenewalStep::Renew, RenewalStep::Reenrol] {
            let outcome = edge.take_step(step).await.unwrap();
            assert_eq!(outcome, Some(RenewalOutcome::Failed { retry_after: None }), "{step:?}");
        }
        assert!(!stage.edge_dir("G1").join("refused.json").exists());
    }
    // Its clock is a little slow, so it asks to renew what has just expired; it is told, and re-enrols.
    let slow = stage.hands.clone();
    let edge = Edge::open_with(stage.edge_dir("G1"), Clock::from_fn(move || slow.now() - HOUR / 12)).unwrap();
    stage.hands.advance(30 * DAY + HOUR / 60);
    assert_eq!(edge.take_step(RenewalStep::Renew).await.unwrap(), Some(RenewalOutcome::Expired));
    assert!(matches!(
        edge.take_step(RenewalStep::Reenrol).await.unwrap(),
        Some(RenewalOutcome::Issued { .. })
    ));
}

#[tokio::test]
async fn another_cloud_at_the_old_address_is_not_believed_and_a_new_token_is() {
    let stage = Stage::new().await;
    let edge = stage.enrolled("G1").await;
    drop(edge);
    let other = Stage::new().await;
    let settings = stage.edge_dir("G1").join("edge.json");
    let text = std::fs::read_to_string(&settings).unwrap();
    std::fs::write(&settings, text.replace(&stage.addr.to_string(), &other.addr.to_string())).unwrap();
    let edge = stage.edge("G1");
    assert_eq!(
        edge.take_step(RenewalStep::Check).await.unwrap(),
        Some(RenewalOutcome::Failed { retry_after: None })
    );
    let token = other.token("G9").await;
    assert!(matches!(edge.enrol_once(&token).await.unwrap(), EnrolmentOutcome::Now(_)));
    assert_eq!(edge.peer().unwrap().gateway(), "G9");
    assert_eq!(
        edge.take_step(RenewalStep::Check).await.unwrap(),
        Some(RenewalOutcome::Checked { renew: false })
    );
    let error = stage.edge("nobody").run(CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, EdgeError::NotEnrolled));
}

#[tokio::test]
async fn a_token_for_another_site_moves_the_gateway_and_an_old_one_does_not_move_it_back() {
    let stage = Stage::new().await;
    let old_token = stage.token("G1").await;
    let edge = stage.edge("G1");
    edge.enrol_once(&old_token).await.unwrap();
    let (old_key, old_peer) = (identity(&edge).key.hash(), edge.peer().unwrap());
    let token =
        stage.registrar.create_join_token("Osaka", "G1", HOUR, OnEnrolled::Replace).await.unwrap().token;
    let moved = edge.enrol_once(&token).await.unwrap();
    assert!(matches!(moved, EnrolmentOutcome::Now(ref peer) if peer.site() == "Osaka"), "{moved:?}");
    assert_ne!(identity(&edge).key.hash(), old_key, "the certificate of the old site is worth nothing");
    let peer = edge.peer().unwrap();
    assert_ne!(peer, old_peer);
    // As a unit file would do at every start.
    for token in [&token, &old_token] {
        assert_eq!(edge.enrol_once(token).await.unwrap(), EnrolmentOutcome::Before(peer.clone()));
    }
    assert_eq!(edge.peer(), Some(peer));
}
