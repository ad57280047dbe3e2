//! Ends a watch of the copy when its caller may not read any more: its token or its certificate has ended, the pod of the token is gone, or the
//! right was taken away.
//!
//! The cloud tells of rights that are taken away, and everything is looked at again at an interval. Without an answer of the API server a watch
//! goes on as reads do: by what was allowed within the time that counts without the cloud.

use std::sync::Arc;
use std::time::Duration;

use crate::copy::collection::unix_now;
use crate::identity::LocalCaller;
use crate::identity::authenticate::CallerAuthenticator;
use crate::identity::authorize::Authorizer;
use crate::upstream::access::AccessQuestion;

// A kubelet has a thousand watches, and each look is a read of the copy at most while the cloud is there.
const RECHECK: Duration = Duration::from_secs(30);

/// The right of an open watch.
pub struct WatchRights {
    pub authenticator: Arc<CallerAuthenticator>,
    pub authorizer: Authorizer,
    pub caller: LocalCaller,
    pub question: AccessQuestion,
}

impl WatchRights {
    /// Resolves when the right has ended.
    pub async fn ended(&self) {
        let mut removals = self.authorizer.stream.removals();
        loop {
            // Watches that began together are looked at in turn.
            let pause = RECHECK.mul_f64(0.75 + causeway_watch::random_fraction() / 2.0);
            let pause = pause.min(self.time_left().unwrap_or(RECHECK * 2));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                Ok(()) = removals.changed() => {
                    // The rights of another caller, as a rule.
                    if self.authorizer.is_told(&self.caller, &self.question) {
                        continue;
                    }
                }
            }
            if !self.holds().await {
                return;
            }
        }
    }

    /// The time until the end that the credential names, and a moment for the second to pass.
    fn time_left(&self) -> Option<Duration> {
        let seconds = self.caller.ends_at()?.saturating_sub(unix_now());
        Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0).saturating_add(1)))
    }

    async fn holds(&self) -> bool {
        let is_refused = |code: u16| matches!(code, 401 | 403);
        if self.caller.ends_at().is_some_and(|end| end <= unix_now()) {
            return false;
        }
        if self.authenticator.confirm(&self.caller).await.is_err_and(|status| is_refused(status.code)) {
            return false;
        }
        self.authorizer.is_told(&self.caller, &self.question)
            || !self
                .authorizer
                .check(&self.caller, &self.question)
                .await
                .is_err_and(|status| is_refused(status.code))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU16, Ordering};

    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;
    use crate::connector::TestCloud;
    use crate::copy::CopyDatabase;
    use crate::identity::UserInfo;
    use crate::identity::access_stream::AccessStream;
    use crate::identity::tokens::ClusterFacts;
    use crate::server::pass::Passthrough;
    use crate::upstream::access::question::REVIEWS;

    /// The rights of a caller with this token. The cloud answers reviews of access and of tokens with the codes of the two cells; an access that
    /// it does not allow has 403.
    fn rights(folder: &std::path::Path, token: &str, codes: &Arc<[AtomicU16; 2]>) -> WatchRights {
        let codes = codes.clone();
        let cloud = TestCloud::new(move |_, path| {
            let is_access = path == REVIEWS;
            let code = codes[usize::from(!is_access)].load(Ordering::SeqCst);
            let body = match (is_access, code) {
                (true, 201) => r#"{"status": {"allowed": true}}"#,
                (false, 200) => r#"{"username": "ann"}"#,
                _ => "{}",
            };
            Box::pin(std::future::ready((code, body.to_owned())))
        });
        let database = CopyDatabase::open(&folder.join("copy.db")).unwrap();
        let pass = Passthrough(Arc::new(cloud));
        let facts = ClusterFacts::default();
        let authenticator = CallerAuthenticator::open(folder, database.clone(), pass.clone(), facts).unwrap();
        let user = UserInfo { username: "ann".into(), ..UserInfo::default() };
        WatchRights {
            authenticator: Arc::new(authenticator),
            authorizer: Authorizer { database, pass, stream: AccessStream::default() },
            caller: LocalCaller::from_token(user, token),
            question: AccessQuestion {
                verb: "watch",
                group: String::new(),
                plural: "pods".into(),
                namespace: String::new(),
                name: String::new(),
                field_selector: String::new(),
            },
        }
    }

    /// Makes the grant so old that it is asked again.
    async fn age_grant(rights: &WatchRights) {
        let (key, old) = (rights.caller.key(), unix_now() - 3_600);
        let aged = rights.authorizer.database.write(move |connection| {
            connection
                .execute("UPDATE grants SET allowed = ?2 WHERE caller = ?1", rusqlite::params![key, old])
        });
        assert_eq!(aged.await.unwrap(), 1);
    }

    fn codes(access: u16, token: u16) -> Arc<[AtomicU16; 2]> {
        Arc::new([AtomicU16::new(access), AtomicU16::new(token)])
    }

    /// Returns true if the watch is ended within ten looks.
    async fn is_ended(rights: &WatchRights) -> bool {
        tokio::time::timeout(RECHECK * 10, rights.ended()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_ends_with_the_right_of_its_caller() {
        let folder = tempfile::tempdir().unwrap();
        let answers = codes(201, 200);
        let rights = rights(folder.path(), "opaque", &answers);
        assert!(rights.authorizer.check(&rights.caller, &rights.question).await.is_ok());
        age_grant(&rights).await;
        assert!(!is_ended(&rights).await);
        answers[0].store(503, Ordering::SeqCst);
        answers[1].store(503, Ordering::SeqCst);
        age_grant(&rights).await;
        assert!(!is_ended(&rights).await, "without the cloud it goes on");
        answers[0].store(403, Ordering::SeqCst);
        assert!(is_ended(&rights).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_ends_with_the_token_of_its_caller() {
        let folder = tempfile::tempdir().unwrap();
        let answers = codes(201, 200);
        let revoked = rights(folder.path(), "opaque", &answers);
        assert!(revoked.authorizer.check(&revoked.caller, &revoked.question).await.is_ok());
        answers[1].store(401, Ordering::SeqCst);
        assert!(is_ended(&revoked).await, "the API server does not know it any more");
        answers[1].store(200, Ordering::SeqCst);
        let claims = serde_json::json!({"sub": "ann", "exp": unix_now() - 1}).to_string();
        let expired = format!("e30.{}.x", URL_SAFE_NO_PAD.encode(claims));
        assert!(is_ended(&rights(folder.path(), &expired, &answers)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_right_that_the_cloud_takes_away_is_noticed_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let rights = rights(folder.path(), "opaque", &codes(403, 200));
        let begun = tokio::time::Instant::now();
        let ended = rights.ended();
        tokio::pin!(ended);
        assert!(futures_util::poll!(ended.as_mut()).is_pending());
        rights.authorizer.stream.note_removal();
        ended.await;
        assert!(begun.elapsed() < RECHECK / 2, "by the clock of the test, before it looks again by itself");
    }
}
