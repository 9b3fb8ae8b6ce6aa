//! Locks between threads of the server.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic of another thread: the data behind these locks is consistent between
/// any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
