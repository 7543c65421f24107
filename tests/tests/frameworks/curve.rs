//! What a training printed, and what it noted of its samples.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

/// The losses by step, and the starts in between. Steps count from 1; a step that was done again is there twice.
#[derive(Debug, Default)]
pub(crate) struct Curve {
    losses: Vec<(u64, f64)>,
    /// Of each start: the step it went on from, the last step before it, and its world.
    starts: Vec<Start>,
}

#[derive(Clone, Copy, Debug)]
struct Start {
    step: u64,
    before: u64,
    world: u32,
}

impl Curve {
    /// Takes a line of output in.
    pub(crate) fn read(&mut self, line: &str) {
        let Some((head, rest)) = line.split_once(' ') else { return };
        let value = |name: &str| rest.split(' ').find_map(|p| p.strip_prefix(name)?.strip_prefix('='));
        if head == "resume" {
            let step = value("step").unwrap().parse().unwrap();
            let world = value("world").or(value("workers")).unwrap().parse().unwrap();
            self.starts.push(Start { step, before: self.last_step(), world });
        } else if let (Some(step), Some(loss)) = (head.strip_prefix("step="), value("loss")) {
            self.losses.push((step.parse().unwrap(), loss.parse().unwrap()));
        }
    }

    pub(crate) fn last_step(&self) -> u64 {
        self.losses.last().map_or(0, |(step, _)| *step)
    }

    /// World size of each start; with parameter servers, the number of workers.
    pub(crate) fn worlds(&self) -> Vec<u32> {
        self.starts.iter().map(|s| s.world).collect()
    }

    /// The step that the last start went on from.
    pub(crate) fn resumed_from(&self) -> u64 {
        self.starts.last().map_or(0, |s| s.step)
    }

    /// Steps that the last start had to do again.
    pub(crate) fn lost(&self) -> u64 {
        self.starts.last().map_or(0, |s| s.before - s.step)
    }

    /// Steps of the whole training.
    pub(crate) fn steps(&self) -> u64 {
        self.losses.iter().map(|(step, _)| *step).max().unwrap_or(0)
    }

    /// Mean loss of the first and of the last so many steps.
    pub(crate) fn ends(&self, count: u32) -> (f64, f64) {
        let mean = |part: &[(u64, f64)]| part.iter().map(|(_, loss)| loss).sum::<f64>() / f64::from(count);
        let n = usize::try_from(count).unwrap();
        (mean(&self.losses[..n]), mean(&self.losses[self.losses.len() - n..]))
    }

    /// Every step is there, and each time it was done its loss was that of the other curve.
    pub(crate) fn agrees_with(&self, other: &Curve, tolerance: f64) {
        let want: BTreeMap<u64, f64> = other.losses.iter().copied().collect();
        let done: BTreeSet<u64> = self.losses.iter().map(|(step, _)| *step).collect();
        assert_eq!(done, want.keys().copied().collect(), "steps are missing or too many");
        for (step, loss) in &self.losses {
            let expected = want[step];
            let off = (loss - expected).abs();
            assert!(off <= tolerance * expected.abs().max(1.0), "step {step}: {loss} in place of {expected}");
        }
    }
}

/// A line of an audit file: what one process took for one step.
#[derive(Deserialize)]
struct Taken {
    round: u64,
    step: u64,
    epoch: u64,
    samples: Vec<u64>,
}

/// Of each step the newest try counts, by round and within a round by order. Together they must have taken each sample
/// once per epoch, in so many steps without a gap.
pub(crate) fn samples_seen(audit: &Path, samples: u64, steps: u64) {
    let mut files: Vec<_> = std::fs::read_dir(audit).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    let mut newest: BTreeMap<u64, (u64, BTreeMap<String, Taken>)> = BTreeMap::new();
    for file in files {
        // `<round>-<rank>.jsonl`; a rank's later line for a step takes the place of its earlier one.
        let rank = file.file_stem().unwrap().to_str().unwrap().rsplit('-').next().unwrap().to_owned();
        for line in std::fs::read_to_string(&file).unwrap().lines() {
            let taken: Taken = serde_json::from_str(line).unwrap();
            let entry = newest.entry(taken.step).or_insert_with(|| (taken.round, BTreeMap::new()));
            if entry.0 < taken.round {
                *entry = (taken.round, BTreeMap::new());
            }
            if entry.0 == taken.round {
                entry.1.insert(rank.clone(), taken);
            }
        }
    }
    assert_eq!(newest.keys().copied().collect::<Vec<_>>(), (0..steps).collect::<Vec<_>>());
    let mut seen: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for taken in newest.values().flat_map(|(_, ranks)| ranks.values()) {
        seen.entry(taken.epoch).or_default().extend(&taken.samples);
    }
    for (epoch, mut taken) in seen {
        taken.sort_unstable();
        assert_eq!(taken, (0..samples).collect::<Vec<_>>(), "epoch {epoch}");
    }
}
