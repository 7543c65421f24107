//! Cycles that can't finish in their period: told once when it begins and once when it has passed, on the Lease.

use std::time::Duration;

/// Cycles in a row within their period that end an overrun.
const IN_TIME: u32 = 3;

/// Whether cycles overrun.
#[derive(Debug, Default)]
pub struct Overrun {
    /// Cycles in time since the last one that was not; `None` = there is no overrun.
    in_time: Option<u32>,
}

/// What is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Began,
    Ended,
}

impl Overrun {
    pub fn cycle(&mut self, took: Duration, period: Duration) -> Option<Change> {
        match (took > period, self.in_time) {
            (true, before) => {
                self.in_time = Some(0);
                before.is_none().then_some(Change::Began)
            }
            (false, None) => None,
            (false, Some(n)) if n + 1 >= IN_TIME => {
                self.in_time = None;
                Some(Change::Ended)
            }
            (false, Some(n)) => {
                self.in_time = Some(n + 1);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overrun_is_told_at_its_beginning_and_its_end() {
        let (mut overrun, period) = (Overrun::default(), Duration::from_secs(1));
        let millis = [900, 1100, 1500, 900, 1100, 900, 900, 900, 900, 1000, 1001];
        let told: Vec<_> = millis.iter().map(|ms| overrun.cycle(Duration::from_millis(*ms), period)).collect();
        let (began, ended) = (Some(Change::Began), Some(Change::Ended));
        assert_eq!(told, [None, began, None, None, None, None, None, ended, None, None, began]);
    }
}
