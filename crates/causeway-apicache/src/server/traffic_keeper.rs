//! Keeps the count of the day's bytes on disk, so that a restart or a kill does not begin a new budget.
//!
//! Input: the count in `LinkTraffic`. Output: one document of the copy. The moment of a write is decided by `LinkTraffic`: after a number of
//! bytes or a period, whichever comes first.

use causeway_api::error_chain;

use crate::copy::collection::unix_now;
use crate::copy::{CopyDatabase, CopyError, tables};
use crate::traffic::{DayUse, LinkTraffic};

const TRAFFIC_KEY: &str = "causeway/traffic";

/// The count of an earlier start.
pub async fn kept_use(database: &CopyDatabase) -> Result<DayUse, CopyError> {
    let kept = database.read(|connection| tables::document(connection, TRAFFIC_KEY)).await?;
    Ok(kept.and_then(|(_, _, body)| serde_json::from_slice(&body).ok()).unwrap_or_default())
}

/// Writes the count whenever it is due, and notices a new day. Runs for ever; dropping the future ends it.
pub async fn run(database: &CopyDatabase, traffic: &LinkTraffic) {
    let mut kept = kept_use(database).await.unwrap_or_default();
    loop {
        traffic.keeping_due().await;
        traffic.check_budget(unix_now());
        keep(database, traffic, &mut kept).await;
    }
}

/// Writes the count when it differs from `kept`. An idle edge writes nothing.
pub async fn keep(database: &CopyDatabase, traffic: &LinkTraffic, kept: &mut DayUse) {
    let today = traffic.begin_keeping();
    if today == *kept {
        return;
    }
    let text = serde_json::to_vec(&today).unwrap_or_default();
    let written = database.write(move |connection| {
        tables::keep_document(connection, TRAFFIC_KEY, "application/json", unix_now(), &text)
    });
    match written.await {
        Ok(()) => *kept = today,
        Err(error) => {
            tracing::warn!(error = error_chain(&error), "cannot keep the count of bytes on the link")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::traffic::TrafficCause;

    #[tokio::test]
    async fn a_kill_loses_no_more_bytes_than_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let database = CopyDatabase::open(&folder.path().join("copy.db")).unwrap();
        let traffic = LinkTraffic::new(Some(100 << 20), DayUse::default());
        let (keeping, counted) = (database.clone(), traffic.clone());
        let keeper = tokio::spawn(async move { run(&keeping, &counted).await });
        // The period is a minute; bytes alone make a write due.
        traffic.count(TrafficCause::Sync, "v1/pods", 3 << 20);
        let on_disk = async {
            while kept_use(&database).await.unwrap().total() < 3 << 20 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), on_disk).await.expect("the count is on disk");
        keeper.abort();
        let restarted = LinkTraffic::new(Some(3 << 20), kept_use(&database).await.unwrap());
        assert!(restarted.is_spent(), "a killed edge begins no new budget");
    }
}
