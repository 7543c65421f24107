//! How many guests run at once.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A counting semaphore. The pool answers an exhausted slot with an error and not with a wait, so callers wait here.
#[derive(Debug)]
pub(crate) struct Gate {
    slots: Mutex<Slots>,
    freed: Condvar,
}

#[derive(Debug)]
struct Slots {
    free: u32,
    /// A wake-up is a system call, and most often nobody waits.
    waiting: u32,
}

impl Gate {
    pub(crate) fn new(slots: u32) -> Self {
        Self { slots: Mutex::new(Slots { free: slots, waiting: 0 }), freed: Condvar::new() }
    }

    /// Waits for a slot; it is free again when the pass is dropped.
    pub(crate) fn enter(&self) -> Pass<'_> {
        let mut slots = self.lock();
        while slots.free == 0 {
            slots.waiting += 1;
            slots = self.freed.wait(slots).unwrap_or_else(PoisonError::into_inner);
            slots.waiting -= 1;
        }
        slots.free -= 1;
        Pass(self)
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot that is taken.
#[derive(Debug)]
pub(crate) struct Pass<'a>(&'a Gate);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let waiting = {
            let mut slots = self.0.lock();
            slots.free += 1;
            slots.waiting
        };
        if waiting > 0 {
            self.0.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn no_more_than_the_slots_are_in_at_once_and_all_get_in() {
        let (gate, inside, done) = (Gate::new(2), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|threads| {
            for _ in 0..8 {
                threads.spawn(|| {
                    for _ in 0..2_000 {
                        let _pass = gate.enter();
                        assert!(inside.fetch_add(1, Ordering::SeqCst) < 2);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(done.into_inner(), 16_000);
        let slots = gate.slots.into_inner().unwrap();
        assert_eq!((slots.free, slots.waiting), (2, 0));
    }
}
