//! Workers that ran out of memory, and more of it for them where the job allows it.

use super::step::Step;
use crate::observe::Pod;
use crate::state::{GrownMemory, LossClass};

/// The kubelet's word for a container that was killed for its use of memory.
pub(super) const OUT_OF_MEMORY: &str = "OOMKilled";

impl Step<'_> {
    /// Whether it ran out of memory last: by the kubelet's word; or by its agent's, where the kernel took processes and left
    /// the container (cgroup v1, `singleProcessOOMKill`), of which the kubelet does not know.
    pub(super) fn ran_out(&self, pod: &Pod) -> bool {
        pod.last_end.as_ref().is_some_and(|e| e.reason == OUT_OF_MEMORY)
            || self.record(pod).is_some_and(|r| r.report.out_of_memory)
    }

    /// The class of a failure in this pod: that it ran out of memory says more than any exit code.
    pub(super) fn class_of(&self, pod: &Pod, otherwise: LossClass) -> LossClass {
        let own = matches!(otherwise, LossClass::PodFailed | LossClass::ProcessFailed | LossClass::ContainerRestarted);
        if own && self.ran_out(pod) { LossClass::OutOfMemory } else { otherwise }
    }

    /// Bytes of memory that the worker in the place of this one gets, if it ran out of what it had and may have more. What a
    /// worker needs says nothing of members of another type, and theirs nothing of it.
    pub(super) fn grows_to(&self, pod: &Pod) -> Option<u64> {
        let growth = self.job.elasticity.memory_growth.filter(|_| self.job.types.is_worker(pod.index))?;
        let limit = pod.memory_limit;
        if limit == 0 || pod.deleting.is_some() || !self.ran_out(pod) {
            return None;
        }
        let grown = u128::from(limit) * (100 + u128::from(growth.percent)) / 100;
        let grown = u64::try_from(grown).unwrap_or(u64::MAX).min(growth.max_bytes);
        (grown > limit).then_some(grown)
    }

    /// From now on new pods of this template have as much.
    pub(super) fn grow_memory(&mut self, pod: &Pod) {
        let Some(bytes) = self.grows_to(pod) else { return };
        let before = self.memory(&pod.template_hash).unwrap_or(0);
        self.state.memory = Some(GrownMemory { template_hash: pod.template_hash.clone(), bytes: bytes.max(before) });
    }

    /// Bytes of memory that new pods of this template have at least; `None` = as the template says.
    pub(super) fn memory(&self, template_hash: &str) -> Option<u64> {
        self.state.memory.as_ref().filter(|m| m.template_hash == template_hash).map(|m| m.bytes)
    }

    pub(super) fn out_of_memory(&self, pod: &Pod) -> String {
        let mib = |bytes: u64| bytes / (1024 * 1024);
        let had = pod.memory_limit;
        let gets = self.grows_to(pod).unwrap_or(had);
        format!(
            "worker {} ran out of memory at {} MiB; in its place comes one with {} MiB",
            pod.index,
            mib(had),
            mib(gets)
        )
    }
}
