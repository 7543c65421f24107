//! Legal sizes: which sizes a job may have between its bounds, and how others are rounded.

use eto_membership::FrameworkKind;

use crate::contract::Framework;
use crate::job::{JobSpec, LegalSizes};

/// Most workers that a job of this framework can have, whatever its spec says: see [`FrameworkKind::max_members`].
pub fn most(framework: Framework) -> u32 {
    FrameworkKind::from(framework).max_members()
}

/// The job's bounds, as far as a round can have so many members. A spec that asks for more is refused before it comes
/// here; one that was not refused must not cost more for that.
fn bounds(job: &JobSpec) -> (u32, u32) {
    let most = most(job.framework);
    (job.min.min(most), job.max.min(most))
}

/// The legal sizes of a job, ascending; empty = every size from `min` to `max` is legal.
///
/// Sizes that the global batch can't be shared by evenly are not legal. Where none of the sizes that the user named lies
/// between the bounds, the bounds win and every size between them counts as legal: a job must have some size.
pub fn legal(job: &JobSpec) -> Vec<u32> {
    let Some(batch) = job.elasticity.batch else { return named(job) };
    let named = named(job);
    let processes = job.processes();
    let shares = |size: &u32| batch.divides(size.saturating_mul(processes));
    if named.is_empty() {
        let (min, max) = bounds(job);
        (min..=max).filter(shares).collect()
    } else {
        named.into_iter().filter(shares).collect()
    }
}

/// Those of `replicaSizes`; empty = every size.
fn named(job: &JobSpec) -> Vec<u32> {
    let (min, max) = bounds(job);
    match &job.legal {
        LegalSizes::Any | LegalSizes::MultipleOf(0 | 1) => Vec::new(),
        LegalSizes::List(sizes) => sizes.iter().copied().filter(|s| (min..=max).contains(s)).collect(),
        LegalSizes::MultipleOf(n) => {
            let first = min.div_ceil(*n).saturating_mul(*n);
            (first..=max).step_by(usize::try_from(*n).unwrap_or(usize::MAX)).collect()
        }
    }
}

/// The largest legal size not above `size`, or the smallest legal one if there is none. Within the bounds.
pub fn down(job: &JobSpec, size: u32) -> u32 {
    let size = clamp(job, size);
    let legal = legal(job);
    legal.iter().rev().find(|s| **s <= size).or(legal.first()).copied().unwrap_or(size)
}

/// The largest legal size not above `size`; `None` if that would be below the minimum.
pub fn at_most(job: &JobSpec, size: u32) -> Option<u32> {
    Some(down(job, size)).filter(|fit| *fit <= size)
}

/// The smallest legal size not below `size`, or the largest legal one if there is none. Within the bounds.
pub fn up(job: &JobSpec, size: u32) -> u32 {
    let size = clamp(job, size);
    let legal = legal(job);
    legal.iter().find(|s| **s >= size).or(legal.last()).copied().unwrap_or(size)
}

/// The legal size that an answer stands for when the size is `from`: down for growing, up for shrinking, and never
/// past `from` by rounding.
pub fn toward(job: &JobSpec, from: u32, to: u32) -> u32 {
    match to.cmp(&from) {
        std::cmp::Ordering::Greater => down(job, to).max(from.min(bounds(job).1)),
        std::cmp::Ordering::Less => up(job, to).min(from.max(bounds(job).0)),
        std::cmp::Ordering::Equal => clamp(job, to),
    }
}

fn clamp(job: &JobSpec, size: u32) -> u32 {
    let (min, max) = bounds(job);
    size.min(max).max(min)
}
