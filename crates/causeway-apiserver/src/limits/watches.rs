//! Tracks the running watches and the streamed responses of actions, so that each identity has a limit and those of a
//! revoked one end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::{Authenticator, Identity};
use causeway_api::sync::MutexExt;

/// All running watches and streamed responses of actions. Clones share them.
#[derive(Clone)]
pub struct WatchLimits {
    state: Arc<Mutex<State>>,
    per_identity_max: usize,
}

#[derive(Default)]
struct State {
    next: u64,
    running: HashMap<u64, Running>,
    by_user: HashMap<Arc<str>, usize>,
}

struct Running {
    identity: Arc<Identity>,
    user: Arc<str>,
    stop: CancellationToken,
}

/// One running watch or streamed response; dropped when it ends.
pub struct WatchPermit {
    watches: WatchLimits,
    id: u64,
    stop: CancellationToken,
}

impl WatchLimits {
    pub fn new(per_identity_max: usize) -> WatchLimits {
        WatchLimits { state: Arc::default(), per_identity_max }
    }

    /// Adds a watch. `None` when the identity has reached its limit. The watch ends with `stop`.
    pub fn enter(
        &self,
        identity: &Arc<Identity>,
        user: &Arc<str>,
        stop: &CancellationToken,
    ) -> Option<WatchPermit> {
        let mut state = self.lock();
        let count = state.by_user.entry(user.clone()).or_default();
        if *count >= self.per_identity_max {
            return None;
        }
        *count += 1;
        state.next += 1;
        let (id, stop) = (state.next, stop.child_token());
        let running = Running { identity: identity.clone(), user: user.clone(), stop: stop.clone() };
        state.running.insert(id, running);
        Some(WatchPermit { watches: self.clone(), id, stop })
    }

    /// Ends the watches of identities that are no longer valid.
    pub fn sweep(&self, authenticator: &dyn Authenticator) {
        // Thousands of watches of one identity need one check.
        let identities: HashMap<Arc<Identity>, Vec<CancellationToken>> = {
            let state = self.lock();
            let mut identities: HashMap<_, Vec<_>> = HashMap::new();
            for running in state.running.values() {
                identities.entry(running.identity.clone()).or_default().push(running.stop.clone());
            }
            identities
        };
        for (identity, stops) in identities {
            if !authenticator.still_valid(&identity) {
                tracing::info!(target: "audit", user = identity.user, watches = stops.len(), "watches of a revoked credential ended");
                stops.iter().for_each(CancellationToken::cancel);
            }
        }
    }

    pub fn count(&self) -> usize {
        self.lock().running.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock_ignoring_poison()
    }
}

impl WatchPermit {
    /// Completes when the watch has to end.
    pub fn stopped(&self) -> WaitForCancellationFutureOwned {
        self.stop.clone().cancelled_owned()
    }
}

impl Drop for WatchPermit {
    fn drop(&mut self) {
        let mut state = self.watches.lock();
        let Some(running) = state.running.remove(&self.id) else { return };
        if let Some(count) = state.by_user.get_mut(&running.user) {
            *count -= 1;
            if *count == 0 {
                state.by_user.remove(&running.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;
    use rustls::pki_types::CertificateDer;

    use super::*;
    use crate::{AuthFailure, Role};

    struct OnlyAlice;

    impl Authenticator for OnlyAlice {
        fn certificate(&self, _: &[CertificateDer<'_>]) -> Result<Identity, AuthFailure> {
            Err(AuthFailure::Unknown)
        }
        fn bearer<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Identity, AuthFailure>> {
            Box::pin(async { Err(AuthFailure::Unknown) })
        }
        fn still_valid(&self, identity: &Identity) -> bool {
            identity.user == "alice"
        }
    }

    #[test]
    fn watches_are_bounded_per_user_and_end_with_their_credential() {
        let (watches, server) = (WatchLimits::new(2), CancellationToken::new());
        let enter = |user: &str| {
            let identity = Identity {
                user: user.into(),
                groups: Vec::new(),
                role: Role::Viewer,
                credential: None,
                impersonation: None,
            };
            watches.enter(&Arc::new(identity), &user.into(), &server)
        };
        let alice = [enter("alice").unwrap(), enter("alice").unwrap()];
        assert!(enter("alice").is_none());
        let bob = enter("bob").unwrap();
        watches.sweep(&OnlyAlice);
        assert!(bob.stopped().now_or_never().is_some());
        assert!(alice[0].stopped().now_or_never().is_none());
        drop(alice);
        assert!(enter("alice").is_some());
        drop(bob);
        assert_eq!(watches.count(), 0);
        let last = enter("alice").unwrap();
        server.cancel();
        assert!(last.stopped().now_or_never().is_some());
        assert_eq!(watches.lock().by_user.len(), 1);
    }
}
