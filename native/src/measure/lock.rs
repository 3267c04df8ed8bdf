//! A mutex whose contents hold whatever happened to their last holder: a panic ends its call or its connection, and
//! what it leaves behind is looked at by the others as it is.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    /// Around this.
    pub(crate) const fn new(contents: T) -> Self {
        Self(Mutex::new(contents))
    }

    /// Waits for it. Held for a few steps at a time, and never over a wait.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
