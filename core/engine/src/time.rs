//! Time as data: milliseconds since the Unix epoch, always handed in by the caller.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A moment, in milliseconds since the Unix epoch (UTC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// How long after `earlier` this is; zero if it is not after it (clocks may step back).
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// The moment `d` later.
    #[must_use]
    pub fn plus(self, d: Duration) -> Time {
        Time(self.0.saturating_add(millis(d)))
    }

    /// The moment `d` earlier, not before the epoch.
    #[must_use]
    pub fn minus(self, d: Duration) -> Time {
        Time(self.0.saturating_sub(millis(d)))
    }
}

/// A duration in whole milliseconds, saturating.
pub fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}
