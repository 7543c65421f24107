//! Pauses between tries: exponential, and different for each agent, so that thousands that lost one gateway at one
//! moment don't come back at one moment.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(5);

/// How often it went wrong in a row.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// It went well.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The pause after one more failure. `luck` is random, from 0 to 1.
    pub(super) fn pause(&mut self, luck: f64) -> Duration {
        let most = FIRST.saturating_mul(1 << self.failures.min(10)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        // From a fifth of it to the whole.
        most.mul_f64(0.2 + 0.8 * luck.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_most_and_begin_anew() {
        let mut b = Backoff::default();
        let pauses: Vec<u128> = (0..6).map(|_| b.pause(1.0).as_millis()).collect();
        assert_eq!(pauses, [500, 1000, 2000, 4000, 5000, 5000]);
        assert_eq!(b.pause(0.0), Duration::from_secs(1));
        b.reset();
        assert_eq!(b.pause(0.0), Duration::from_millis(100));
    }
}
