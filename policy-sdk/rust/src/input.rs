//! Helpers on a scaling input: workers one by one, signals by name, sizes within bounds.

use crate::{Metric, Quality, Readiness, ScalingInput, Signal, WorkerColumns, WorkerPhase};

/// One row of [`WorkerColumns`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worker {
    /// Its position in the columns, which is its position in each per-worker signal.
    pub row: usize,
    /// Index of the worker in the job.
    pub index: u32,
    /// The pod's phase.
    pub phase: WorkerPhase,
    /// The pod's Ready condition.
    pub ready: Readiness,
    /// When the pod started, milliseconds since the epoch; 0 = it has not.
    pub started_ms: u64,
    /// When the Ready condition last changed; 0 = there is none.
    pub ready_changed_ms: u64,
    /// Whether the pod is being deleted.
    pub deleting: bool,
    /// An id of its node, valid within this call; [`crate::NONE`] = not scheduled.
    pub node: u32,
}

impl WorkerColumns {
    /// How many workers are listed (the length of the shortest column).
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether none is listed.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The workers in the order of the columns.
    pub fn iter(&self) -> impl Iterator<Item = Worker> + '_ {
        let facts = self.index.iter().zip(&self.phase).zip(&self.ready);
        let times = self.started_ms.iter().zip(&self.ready_changed_ms);
        let place = self.deleting.iter().zip(&self.node);
        facts.zip(times).zip(place).enumerate().map(|(row, ((((index, phase), ready), times), place))| Worker {
            row,
            index: *index,
            phase: *phase,
            ready: *ready,
            started_ms: *times.0,
            ready_changed_ms: *times.1,
            deleting: *place.0,
            node: *place.1,
        })
    }
}

/// Which way a size changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// To the next larger legal size.
    Up,
    /// To the next smaller legal size.
    Down,
}

impl ScalingInput {
    /// The signal of that name, of whatever quality: the policy's own want, also where a metric has that name for another
    /// window or container.
    pub fn signal(&self, name: &str) -> Option<&Signal> {
        self.signals.iter().find(|s| s.name == name)
    }

    /// The signal that carries the values of an entry of `metrics`.
    pub fn signal_of(&self, metric: &Metric) -> Option<&Signal> {
        self.signals.get(metric.signal as usize)
    }

    /// `size` within the bounds and, where legal sizes are listed, the nearest of them on the way from the present
    /// target: rounded down for growing, up for shrinking, as the host does.
    pub fn clamp(&self, size: u32) -> u32 {
        let (low, high) = (self.bounds.min, self.bounds.max.max(self.bounds.min));
        let size = size.clamp(low, high);
        let mut legal = self.bounds.legal.iter().copied().filter(|s| (low..=high).contains(s));
        if self.bounds.legal.is_empty() {
            return size;
        }
        if size >= self.sizes.target {
            legal.rfind(|s| *s <= size).unwrap_or(size)
        } else {
            legal.find(|s| *s >= size).unwrap_or(size)
        }
    }

    /// The next legal size from `size` in that direction; `None` at the bound.
    pub fn next_size(&self, size: u32, step: Step) -> Option<u32> {
        let (low, high) = (self.bounds.min, self.bounds.max);
        let mut legal = self.bounds.legal.iter().copied().filter(|s| (low..=high).contains(s));
        match (step, self.bounds.legal.is_empty()) {
            (Step::Up, true) => (size < high).then(|| (size + 1).max(low)),
            (Step::Up, false) => legal.find(|s| *s > size),
            (Step::Down, true) => (size > low).then(|| (size - 1).min(high)),
            (Step::Down, false) => legal.rfind(|s| *s < size),
        }
    }

    /// Milliseconds since a time of the input; 0 for one that lies ahead.
    pub fn since_ms(&self, then_ms: u64) -> u64 {
        self.now_ms.saturating_sub(then_ms)
    }
}

impl Quality {
    /// Whether the values speak of the present: `Ok`, `Partial` or `Warming`.
    pub fn is_fresh(self) -> bool {
        matches!(self, Quality::Ok | Quality::Partial | Quality::Warming)
    }
}
