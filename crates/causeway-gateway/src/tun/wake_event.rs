//! Ends the wait of the worker from another thread: an eventfd.

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};

/// Without a file descriptor the worker notices at its next timer instead.
pub struct WakeEvent(Option<OwnedFd>);

impl Default for WakeEvent {
    fn default() -> WakeEvent {
        WakeEvent(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).ok())
    }
}

impl WakeEvent {
    pub fn set(&self) {
        if let Some(event) = &self.0 {
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
    }

    pub fn clear(&self) {
        if let Some(event) = &self.0 {
            let _ = rustix::io::read(event, &mut [0; 8]);
        }
    }

    pub fn file(&self) -> Option<&OwnedFd> {
        self.0.as_ref()
    }
}
