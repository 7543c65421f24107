//! How many guests run at once.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A counting semaphore. The pool answers an exhausted slot with an error and not with a wait, so callers wait here.
#[derive(Debug)]
pub(crate) struct Gate {
    free: Mutex<u32>,
    freed: Condvar,
}

impl Gate {
    pub(crate) fn new(slots: u32) -> Self {
        Self { free: Mutex::new(slots), freed: Condvar::new() }
    }

    /// Waits for a slot; it is free again when the pass is dropped.
    pub(crate) fn enter(&self) -> Pass<'_> {
        let mut free = self.lock();
        while *free == 0 {
            free = self.freed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        Pass(self)
    }

    fn lock(&self) -> MutexGuard<'_, u32> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot that is taken.
#[derive(Debug)]
pub(crate) struct Pass<'a>(&'a Gate);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        *self.0.lock() += 1;
        self.0.freed.notify_one();
    }
}
