//! Locks that ignore poisoning.
//!
//! A panic ends the task that holds a lock, not the process. State behind our locks is replaced or extended in one
//! step, so it is consistent after a panic too, and the other tasks go on with it.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locks a mutex whether or not an earlier holder panicked.
pub trait MutexExt<T: ?Sized> {
    fn lock_ignoring_poison(&self) -> MutexGuard<'_, T>;
}

impl<T: ?Sized> MutexExt<T> for Mutex<T> {
    fn lock_ignoring_poison(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Locks a reader-writer lock whether or not an earlier holder panicked.
pub trait RwLockExt<T: ?Sized> {
    fn read_ignoring_poison(&self) -> RwLockReadGuard<'_, T>;

    fn write_ignoring_poison(&self) -> RwLockWriteGuard<'_, T>;
}

impl<T: ?Sized> RwLockExt<T> for RwLock<T> {
    fn read_ignoring_poison(&self) -> RwLockReadGuard<'_, T> {
        self.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_ignoring_poison(&self) -> RwLockWriteGuard<'_, T> {
        self.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_a_holder_does_not_keep_others_out() {
        let (mutex, lock) = (Mutex::new(1), RwLock::new(1));
        std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let (_mutex, _lock) = (mutex.lock(), lock.write());
                panic!("the holder fails");
            });
            assert!(holder.join().is_err());
        });
        *mutex.lock_ignoring_poison() += 1;
        *lock.write_ignoring_poison() += 1;
        assert_eq!((*mutex.lock_ignoring_poison(), *lock.read_ignoring_poison()), (2, 2));
    }
}
