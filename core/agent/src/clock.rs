//! The agent's clock: wall time that never goes back.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Wall time as it was at the start, carried on by the monotonic clock, so that a clock that is set moves no deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    start_ms: u64,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { start: Instant::now(), start_ms: millis(wall) }
    }

    /// Milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        self.start_ms.saturating_add(millis(self.start.elapsed()))
    }

    /// The instant at which [`Clock::now_ms`] has reached `at_ms`; the start for what was before. One millisecond late,
    /// since a millisecond that has begun counts as none.
    pub(crate) fn instant(&self, at_ms: u64) -> tokio::time::Instant {
        let after = at_ms.saturating_sub(self.start_ms).saturating_add(1);
        // An hour at most: a deadline that far needs no precision, and an instant that can't be told none at all.
        let latest = self.start.elapsed() + Duration::from_secs(3600);
        tokio::time::Instant::from_std(self.start + Duration::from_millis(after).min(latest))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
