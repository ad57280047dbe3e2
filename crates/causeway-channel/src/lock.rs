//! Locks a mutex whose holder may have panicked.
//!
//! Every value behind a mutex of this crate is valid between two statements, so a panic of another task while it held the lock
//! leaves nothing half done: the poison flag is ignored instead of spreading the panic to every link.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
