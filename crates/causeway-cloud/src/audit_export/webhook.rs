//! Delivers batches to a webhook: `{"source", "first", "last", "records": [...]}` as JSON. An answer of 2xx is the receipt; any other
//! answer is retried.

use causeway_daemon::collector::{CollectorError, HttpTarget};

use super::ExportBatch;

pub struct WebhookSender {
    target: HttpTarget,
    source: String,
}

impl WebhookSender {
    pub fn new(target: HttpTarget, source: String) -> WebhookSender {
        WebhookSender { target, source }
    }

    pub async fn send(&mut self, batch: &ExportBatch) -> Result<(), CollectorError> {
        let last = batch.first + batch.lines.len() as u64 - 1;
        // Equal for every delivery of a batch, so that a receiver can recognise a repeat without reading the body.
        let key = format!("{}-{}-{last}", self.source, batch.first);
        self.target.post(&[("idempotency-key", key)], body(&self.source, batch)).await.map(drop)
    }
}

/// The lines are JSON objects already. The batch has at least one.
fn body(source: &str, batch: &ExportBatch) -> Vec<u8> {
    let last = batch.first + batch.lines.len() as u64 - 1;
    let mut body =
        format!("{{\"source\":\"{source}\",\"first\":{},\"last\":{last},\"records\":[", batch.first)
            .into_bytes();
    for (number, line) in batch.lines.iter().enumerate() {
        if number > 0 {
            body.push(b',');
        }
        body.extend_from_slice(line);
    }
    body.extend_from_slice(b"]}");
    body
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_batch_is_one_json_object() {
        let lines = vec![r#"{"sequence":7}"#.into(), r#"{"sequence":8}"#.into()];
        let body: Value = serde_json::from_slice(&body("ab", &ExportBatch { first: 7, lines })).unwrap();
        let records = json!([{"sequence": 7}, {"sequence": 8}]);
        assert_eq!(body, json!({"source": "ab", "first": 7, "last": 8, "records": records}));
    }
}
