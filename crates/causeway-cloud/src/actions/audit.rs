//! Serves `GET /causeway/v1/audit`: the audit records of all replicas as one stream.
//!
//! One JSON object per line; the last line has the key `summary` and says how many records there were, how many were lost on
//! the way, and how long they took. A stream without it broke off.

use causeway_apiserver::{ActionBody, ActionRefusal, ActionResponse};
use futures_util::stream;
use http::StatusCode;

use super::CloudActions;
use crate::audit::{AuditQuery, JournalKind, JournalMerge};

impl CloudActions {
    pub(super) async fn audit(
        &self,
        journal: JournalKind,
        text: Option<&str>,
    ) -> Result<ActionResponse, ActionRefusal> {
        let query = AuditQuery::parse(journal, text)
            .map_err(|error| ActionRefusal::bad_request(error.to_string()))?;
        let Some(own) = self.journals.read(query.clone()) else {
            let message = "too many read the audit records already; try again";
            return Err(ActionRefusal::new(StatusCode::TOO_MANY_REQUESTS, message));
        };
        let (mut journals, silent) = self.fleet.ask_audit(journal, text.unwrap_or_default()).await;
        journals.push(own);
        let is_endless = query.follow;
        let merge = JournalMerge::new(query, journals, silent);
        let pieces = Box::pin(stream::unfold(merge, |mut merge| async move {
            let piece = merge.next().await?;
            Some((Ok(piece), merge))
        }));
        let body = if is_endless { ActionBody::Endless(pieces) } else { ActionBody::Stream(pieces) };
        Ok(ActionResponse { code: StatusCode::OK, content_type: "application/x-ndjson", body, made: None })
    }
}
