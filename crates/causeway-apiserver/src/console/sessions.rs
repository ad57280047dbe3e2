//! The sessions of people who are signed in at the console.
//!
//! A session begins with a valid API token and is named by a random secret, which the browser keeps in a cookie. This
//! module keeps only the hash of the secret, in memory: a restart ends all sessions. A session ends with its token, when
//! it is not used, when it is old, or when its user signs out, and its streams end with it. Time is passed in.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use aws_lc_rs::digest;
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use causeway_daemon::sync::MutexExt;
use tokio_util::sync::CancellationToken;

use crate::{Authenticator, Identity};

/// A working day. The token of the sign-in may end earlier, and the session with it.
pub const SESSION_TIME_MAX: Duration = Duration::from_secs(12 * 3600);
/// An open page sends a request every few seconds, so this is the time after which a closed one is signed out.
const IDLE_TIME_MAX: Duration = Duration::from_secs(15 * 60);
/// Each needs a valid token, so this bounds the memory that people with tokens can take.
const SESSIONS_MAX: usize = 1_000;
/// Browsers of one token. The one that was not used for the longest time is signed out for the next.
const SESSIONS_PER_USER_MAX: usize = 20;
const SECRET_BYTES: usize = 32;

/// All sessions of one server.
#[derive(Default)]
pub struct ConsoleSessions {
    sessions: Mutex<HashMap<SecretHash, ConsoleSession>>,
}

type SecretHash = [u8; 32];

struct ConsoleSession {
    identity: Arc<Identity>,
    begun: Instant,
    used: Instant,
    stop: CancellationToken,
}

/// A session that was found by its secret.
pub struct FoundSession {
    pub identity: Arc<Identity>,
    pub stop: CancellationToken,
}

/// The random number generator of the operating system failed.
#[derive(Debug, thiserror::Error)]
#[error("no random bytes for the secret of a session")]
pub struct NoRandomBytes;

impl ConsoleSessions {
    /// Begins a session and returns its secret. `server` ends it when the server stops.
    pub fn begin(
        &self,
        identity: Arc<Identity>,
        now: Instant,
        server: &CancellationToken,
    ) -> Result<String, NoRandomBytes> {
        let mut secret = [0; SECRET_BYTES];
        SystemRandom::new().fill(&mut secret).map_err(|_| NoRandomBytes)?;
        let secret = BASE64_URL_SAFE_NO_PAD.encode(secret);
        let mut sessions = self.lock();
        let of_user = sessions.values().filter(|session| session.identity.user == identity.user).count();
        if of_user >= SESSIONS_PER_USER_MAX {
            remove_oldest(&mut sessions, |session| session.identity.user == identity.user);
        } else if sessions.len() >= SESSIONS_MAX {
            remove_oldest(&mut sessions, |_| true);
        }
        let session = ConsoleSession { identity, begun: now, used: now, stop: server.child_token() };
        sessions.insert(hash(&secret), session);
        Ok(secret)
    }

    /// Finds a session that is still good, and notes that it is used.
    pub fn find(
        &self,
        secret: &str,
        now: Instant,
        authenticator: &dyn Authenticator,
    ) -> Option<FoundSession> {
        let mut sessions = self.lock();
        let session =
            sessions.get_mut(&hash(secret)).filter(|session| session.is_good(now, authenticator))?;
        session.used = now;
        Some(FoundSession { identity: session.identity.clone(), stop: session.stop.clone() })
    }

    /// Ends a session, its watches and its other streams.
    pub fn end(&self, secret: &str) -> Option<Arc<Identity>> {
        let session = self.lock().remove(&hash(secret))?;
        session.stop.cancel();
        Some(session.identity)
    }

    /// Ends the sessions that are no longer good.
    pub fn sweep(&self, now: Instant, authenticator: &dyn Authenticator) {
        self.lock().retain(|_, session| {
            let is_good = session.is_good(now, authenticator);
            if !is_good {
                tracing::info!(target: "audit", user = session.identity.user, "console session ended");
                session.stop.cancel();
            }
            is_good
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SecretHash, ConsoleSession>> {
        self.sessions.lock_ignoring_poison()
    }
}

impl ConsoleSession {
    fn is_good(&self, now: Instant, authenticator: &dyn Authenticator) -> bool {
        now.saturating_duration_since(self.begun) < SESSION_TIME_MAX
            && now.saturating_duration_since(self.used) < IDLE_TIME_MAX
            && authenticator.still_valid(&self.identity)
    }
}

fn remove_oldest(
    sessions: &mut HashMap<SecretHash, ConsoleSession>,
    is_meant: impl Fn(&ConsoleSession) -> bool,
) {
    let meant = sessions.iter().filter(|(_, session)| is_meant(session));
    let oldest = meant.min_by_key(|(_, session)| session.used).map(|(hash, _)| *hash);
    if let Some(session) = oldest.and_then(|hash| sessions.remove(&hash)) {
        session.stop.cancel();
    }
}

fn hash(secret: &str) -> SecretHash {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, secret.as_bytes()).as_ref());
    hash
}

#[cfg(test)]
mod tests {
    use futures_util::future::BoxFuture;
    use rustls::pki_types::CertificateDer;

    use super::*;
    use crate::{AuthFailure, Role};

    /// Accepts every identity but the one that was revoked.
    struct Revoked(&'static str);

    impl Authenticator for Revoked {
        fn certificate(&self, _: &[CertificateDer<'_>]) -> Result<Identity, AuthFailure> {
            Err(AuthFailure::Unknown)
        }
        fn bearer<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Identity, AuthFailure>> {
            Box::pin(async { Err(AuthFailure::Unknown) })
        }
        fn still_valid(&self, identity: &Identity) -> bool {
            identity.user != self.0
        }
    }

    const ALL_VALID: Revoked = Revoked("");

    fn user(name: &str) -> Arc<Identity> {
        let user = name.to_owned();
        let (groups, role) = (Vec::new(), Role::Viewer);
        Arc::new(Identity { user, groups, role, credential: None, impersonation: None })
    }

    #[test]
    fn a_session_ends_when_it_is_old_or_idle_or_its_token_is_gone() {
        let (sessions, server, begun) =
            (ConsoleSessions::default(), CancellationToken::new(), Instant::now());
        let secret = sessions.begin(user("ann"), begun, &server).unwrap();
        assert_eq!(secret.len(), 43, "256 bits");
        let found = |secret: &str, now| sessions.find(secret, now, &ALL_VALID).map(|found| found.stop);
        assert!(found("another", begun).is_none());
        let stop = found(&secret, begun).unwrap();
        assert!(sessions.find(&secret, begun, &Revoked("ann")).is_none(), "its token is revoked");
        // Used every ten minutes it stays, but not for longer than a day of work.
        let mut now = begun;
        while now + Duration::from_secs(600) < begun + SESSION_TIME_MAX {
            now += Duration::from_secs(600);
            assert!(found(&secret, now).is_some());
        }
        assert!(found(&secret, begun + SESSION_TIME_MAX).is_none(), "too old");
        assert!(!stop.is_cancelled());
        sessions.sweep(begun + SESSION_TIME_MAX, &ALL_VALID);
        assert!(stop.is_cancelled(), "its streams end");

        let secret = sessions.begin(user("ann"), begun, &server).unwrap();
        assert!(found(&secret, begun + IDLE_TIME_MAX).is_none(), "idle");
        let stop = found(&secret, begun).unwrap();
        sessions.sweep(begun, &Revoked("ann"));
        assert!(stop.is_cancelled(), "the streams of a revoked token end");
    }

    #[test]
    fn a_sign_out_ends_the_session_and_its_streams() {
        let (sessions, server, now) = (ConsoleSessions::default(), CancellationToken::new(), Instant::now());
        let secret = sessions.begin(user("ann"), now, &server).unwrap();
        let other = sessions.begin(user("ann"), now, &server).unwrap();
        let stop = sessions.find(&secret, now, &ALL_VALID).unwrap().stop;
        assert!(sessions.end(&secret).is_some());
        assert!(stop.is_cancelled() && sessions.find(&secret, now, &ALL_VALID).is_none());
        assert!(sessions.find(&other, now, &ALL_VALID).is_some());
        assert!(sessions.end(&secret).is_none());
        server.cancel();
        assert!(sessions.find(&other, now, &ALL_VALID).unwrap().stop.is_cancelled());
    }

    #[test]
    fn sessions_are_bounded_for_each_user_and_in_all() {
        let (sessions, server, begun) =
            (ConsoleSessions::default(), CancellationToken::new(), Instant::now());
        let at = |seconds: usize| begun + Duration::from_millis(seconds as u64);
        let of_ann: Vec<String> = (0..=SESSIONS_PER_USER_MAX)
            .map(|number| sessions.begin(user("ann"), at(number), &server).unwrap())
            .collect();
        let is_there = |secret: &String| sessions.find(secret, at(0), &ALL_VALID).is_some();
        assert!(!is_there(&of_ann[0]) && is_there(&of_ann[1]), "the oldest is signed out");
        for number in 0..2 * SESSIONS_MAX {
            sessions.begin(user(&format!("user-{number}")), at(1_000 + number), &server).unwrap();
        }
        assert_eq!(sessions.lock().len(), SESSIONS_MAX);
    }
}
