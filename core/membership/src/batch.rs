//! The batch-size rule: a resize must not change the maths.
//!
//! An optimiser step is to see the same number of samples with any number of processes. Each process therefore takes an
//! equal share of the global batch, and where a share is too large for its memory, it goes through it in pieces and
//! adds up the gradients. Sizes that the global batch can't be shared by evenly are not legal.

use serde::{Deserialize, Serialize};

/// Largest global batch, in samples.
pub const MAX_GLOBAL_BATCH: u32 = 1 << 24;

/// What a user asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GlobalBatch {
    /// Samples of one optimiser step over all processes, 1 to [`MAX_GLOBAL_BATCH`].
    pub samples: u32,
    /// Most samples that one process can take at once, at least 1; `None` = any number.
    pub max_micro: Option<u32>,
}

/// How a step is made up. `micro` × `accumulation` × processes is the global batch, always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Samples of one optimiser step over all processes.
    pub global: u32,
    /// Samples that one process takes at once.
    pub micro: u32,
    /// How many times it does so before the optimiser's step.
    pub accumulation: u32,
}

impl GlobalBatch {
    /// Whether so many processes can share the batch evenly.
    pub fn divides(self, processes: u32) -> bool {
        processes > 0 && self.samples > 0 && self.samples.is_multiple_of(processes)
    }

    /// The step of so many processes: as few and as large pieces as the limit allows. `None` where they can't share
    /// the batch evenly.
    pub fn split(self, processes: u32) -> Option<Batch> {
        if !self.divides(processes) {
            return None;
        }
        let share = self.samples / processes;
        let micro = largest_divisor(share, self.max_micro.unwrap_or(share).max(1));
        Some(Batch { global: self.samples, micro, accumulation: share / micro })
    }
}

impl Batch {
    /// As a training script reads it.
    pub fn env(self) -> [(&'static str, String); 3] {
        [
            ("ETO_GLOBAL_BATCH_SIZE", self.global.to_string()),
            ("ETO_MICRO_BATCH_SIZE", self.micro.to_string()),
            ("ETO_GRADIENT_ACCUMULATION_STEPS", self.accumulation.to_string()),
        ]
    }
}

/// The largest divisor of `n` (at least 1) that is at most `limit` (at least 1).
fn largest_divisor(n: u32, limit: u32) -> u32 {
    let pairs = (1..).take_while(|d| u64::from(*d) * u64::from(*d) <= u64::from(n)).filter(|d| n.is_multiple_of(*d));
    pairs.flat_map(|d| [d, n / d]).filter(|d| *d <= limit).max().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_fit_the_memory_of_a_process() {
        let batch = GlobalBatch { samples: 96, max_micro: Some(16) };
        let split = |n| batch.split(n).map(|b| (b.micro, b.accumulation));
        assert_eq!(
            (split(2), split(3), split(6), split(96)),
            (Some((16, 3)), Some((16, 2)), Some((16, 1)), Some((1, 1)))
        );
        assert_eq!((split(5), split(0), split(97)), (None, None, None));
    }

    #[test]
    fn a_share_without_divisors_goes_sample_by_sample() {
        let batch = GlobalBatch { samples: 2 * 1_000_003, max_micro: Some(8) };
        assert_eq!(batch.split(2).map(|b| (b.micro, b.accumulation)), Some((1, 1_000_003)));
    }

    #[test]
    fn a_script_reads_three_numbers() {
        let env = GlobalBatch { samples: 64, max_micro: None }.split(4).unwrap().env();
        assert_eq!(env.map(|(_, value)| value), ["64", "16", "1"]);
    }

    proptest! {
        #[test]
        fn the_product_is_always_exact(
            samples in 1u32..=MAX_GLOBAL_BATCH, processes in 1u32..5000, max in proptest::option::of(1u32..2000),
        ) {
            let batch = GlobalBatch { samples, max_micro: max };
            let Some(b) = batch.split(processes) else {
                prop_assert_ne!(samples % processes, 0);
                return Ok(());
            };
            let product = u64::from(b.micro) * u64::from(b.accumulation) * u64::from(processes);
            prop_assert_eq!(product, u64::from(samples));
            prop_assert!(max.is_none_or(|m| b.micro <= m));
            // No larger piece would have done.
            let share = samples / processes;
            let larger = (b.micro + 1..=max.unwrap_or(share).min(share)).find(|m| share % m == 0);
            prop_assert_eq!(larger, None);
        }

        #[test]
        fn every_divisor_of_the_batch_is_a_legal_world(processes in 1u32..3000, share in 1u32..3000) {
            let batch = GlobalBatch { samples: processes * share, max_micro: Some(7) };
            prop_assert!(batch.split(processes).is_some());
        }
    }
}
