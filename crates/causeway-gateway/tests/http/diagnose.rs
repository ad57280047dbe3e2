//! Questions of another site's gateway about the backends of a service.

use causeway_channel::link::ResetCode;
use causeway_gateway::audit::{AuditDecision, ConnectionEnd};
use causeway_gateway::diagnose::{Question, read_answer};
use tokio::io::AsyncWriteExt;

use crate::backend;
use crate::lab::{Lab, Plan, eventually, within};

async fn ask(lab: &Lab, service: &str) -> Result<serde_json::Value, String> {
    let header = Question::Backends.header(service).to("berlin", "");
    let (mut send, recv) = lab.link().open_stream(header).await.unwrap().split();
    let _ = send.shutdown().await;
    within(read_answer(recv)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_to_another_site_has_no_addresses_and_is_recorded() {
    let backend = backend::start().await;
    let lab = Lab::new(Plan::new(backend.address)).await;
    let answer = ask(&lab, "web").await.unwrap();
    assert_eq!(answer.as_array().map(Vec::len), Some(1), "{answer}");
    assert_eq!(answer[0]["backend"], "backend 1");
    let text = answer.to_string();
    for hidden in [backend.address.ip().to_string(), backend.address.port().to_string()] {
        assert!(!text.contains(&hidden), "{hidden} is told to another site: {text}");
    }
    assert!(ask(&lab, "other").await.is_err());
    eventually("both are recorded", || lab.at_berlin.len() == 2).await;
    let records = lab.at_berlin.records();
    let shown = |index: usize| {
        let record = &records[index];
        (record.protocol, record.site.as_str(), record.service.as_str(), record.decision, record.end)
    };
    assert_eq!(shown(0), ("diagnose", "oslo", "web", AuditDecision::Allow, ConnectionEnd::Done));
    assert_eq!(shown(1), ("diagnose", "oslo", "other", AuditDecision::Deny, ConnectionEnd::Refused));
    assert_eq!(records[0].rule.as_deref(), Some("p"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_that_asks_without_end_is_refused() {
    let backend = backend::start().await;
    let lab = Lab::new(Plan::new(backend.address)).await;
    let limit = causeway_gateway::diagnose::refused(ResetCode::Limit);
    let mut refused = 0;
    for _ in 0..100 {
        refused += usize::from(ask(&lab, "web").await.is_err_and(|why| why == limit));
    }
    assert!(refused > 0, "a hundred questions at once were answered");
    eventually("refusals are recorded", || {
        lab.at_berlin.records().iter().any(|record| record.end == ConnectionEnd::Limit)
    })
    .await;
}
