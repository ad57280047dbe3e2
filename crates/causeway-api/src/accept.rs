//! The pause of all listeners after a failed accept.

use std::time::Duration;

/// The pause after a failed accept. It fails when the process has no free file descriptor, and would fail again at once.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
