//! What policies compute from a signal. All of it reads only samples that are there: absent is not zero.

use crate::Signal;

impl Signal {
    /// The sample of the worker at `row`; `None` if it has none.
    pub fn value(&self, row: usize) -> Option<f64> {
        let sampled = self.sampled_ms.get(row).is_some_and(|t| *t > 0);
        self.values.get(row).copied().filter(|v| sampled && v.is_finite())
    }

    /// What the worker at `row` asked for, in the unit of the signal; `None` if it asked for nothing.
    pub fn request(&self, row: usize) -> Option<f64> {
        self.requests.get(row).copied().filter(|r| r.is_finite() && *r > 0.0)
    }

    /// Sample over request (1.0 = all that was asked for); `None` if either is missing.
    pub fn utilisation(&self, row: usize) -> Option<f64> {
        Some(self.value(row)? / self.request(row)?)
    }

    /// The utilisation where the worker has a request, else the sample as it is: what most policies compare.
    pub fn level(&self, row: usize) -> Option<f64> {
        self.utilisation(row).or_else(|| self.value(row))
    }

    /// Rows that have a sample, with their level.
    pub fn levels(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        (0..self.values.len()).filter_map(|row| Some((row, self.level(row)?)))
    }

    /// Mean level over the workers that have a sample. `None` if there is none, or if the values are not of the
    /// present (quality `Stale`, `Absent` or `Invalid`).
    pub fn mean_ok(&self) -> Option<f64> {
        if !self.quality.is_fresh() {
            return None;
        }
        let (count, sum) = self.levels().fold((0.0, 0.0), |(n, sum), (_, level)| (n + 1.0, sum + level));
        (count > 0.0).then(|| sum / count)
    }

    /// The level that a share `q` (0.0 to 1.0) of the workers with a sample does not exceed, interpolated between
    /// neighbours; 0.5 is the median. `None` as for [`Signal::mean_ok`], or if `q` is not in the range.
    pub fn percentile(&self, q: f64) -> Option<f64> {
        if !self.quality.is_fresh() || !(0.0..=1.0).contains(&q) {
            return None;
        }
        let mut levels: Vec<f64> = self.levels().map(|(_, level)| level).collect();
        levels.sort_by(f64::total_cmp);
        let last = levels.len().checked_sub(1)?;
        #[allow(clippy::cast_precision_loss, reason = "a count of workers")]
        let place = q * last as f64;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 <= place <= last")]
        let (below, above) = (place.floor() as usize, place.ceil() as usize);
        let (low, high) = (*levels.get(below)?, *levels.get(above)?);
        Some(low + (high - low) * place.fract())
    }

    /// The history, oldest first: milliseconds since the epoch and the level.
    pub fn past(&self) -> impl DoubleEndedIterator<Item = (u64, f64)> + ExactSizeIterator + '_ {
        self.history_ms.iter().copied().zip(self.history.iter().copied())
    }

    /// Slope of the straight line through the history (least squares), in level per second. `None` with fewer than
    /// two points in time.
    pub fn slope(&self) -> Option<f64> {
        let start = *self.history_ms.first()?;
        #[allow(clippy::cast_precision_loss, reason = "milliseconds within a day")]
        let points =
            || self.past().filter(|p| p.1.is_finite()).map(|(t, v)| (t.saturating_sub(start) as f64 / 1000.0, v));
        let (n, sum_t, sum_v) = points().fold((0.0, 0.0, 0.0), |(n, a, b), (t, v)| (n + 1.0, a + t, b + v));
        let (mean_t, mean_v) = (sum_t / n, sum_v / n);
        let (above, below) = points()
            .fold((0.0, 0.0), |(a, b), (t, v)| (a + (t - mean_t) * (v - mean_v), b + (t - mean_t) * (t - mean_t)));
        (n > 1.0 && below > 0.0).then(|| above / below)
    }
}
