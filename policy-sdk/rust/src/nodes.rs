//! Helpers on a placement input: nodes and members one by one.

use crate::{MemberColumns, NONE, NodeColumns, WorkerRequest};

/// One row of [`NodeColumns`]: CPU in cores, memory in bytes, whole GPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    /// Its position in the columns: the `node` of a [`crate::Place`].
    pub row: u32,
    /// Free CPU, memory and GPUs.
    pub free: WorkerRequest,
    /// Allocatable CPU, memory and GPUs in all.
    pub total: WorkerRequest,
    /// Zone, `None` if the node has no such label.
    pub zone: Option<u32>,
    /// Rack, `None` if the node has no such label.
    pub rack: Option<u32>,
    /// Workers of this job on it now.
    pub members: u32,
    /// Failures of any job's workers on it within the last hour.
    pub faults: u32,
}

impl Node {
    /// Whether a worker with that request fits into what is free.
    pub fn fits(&self, request: &WorkerRequest) -> bool {
        request.cpu <= self.free.cpu && request.memory <= self.free.memory && request.gpus <= self.free.gpus
    }

    /// How many workers with that request fit into what is free, at most `most`.
    pub fn room(&self, request: &WorkerRequest, most: u32) -> u32 {
        [(self.free.cpu, request.cpu), (self.free.memory, request.memory), (self.free.gpus, request.gpus)]
            .into_iter()
            .map(|(free, one)| if one > 0.0 { (free.max(0.0) / one).floor() } else { f64::from(most) })
            .fold(most, |room, fit| {
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
                let fit = fit as u32;
                room.min(fit)
            })
    }

    /// Share of the node that is free, in millionths: of CPU, memory and GPUs the scarcest that it has.
    pub fn free_share(&self) -> u32 {
        [(self.free.cpu, self.total.cpu), (self.free.memory, self.total.memory), (self.free.gpus, self.total.gpus)]
            .into_iter()
            .filter(|(_, total)| *total > 0.0)
            .map(|(free, total)| {
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1,000,000")]
                let share = ((free / total).clamp(0.0, 1.0) * 1e6) as u32;
                share
            })
            .min()
            .unwrap_or(0)
    }

    /// Takes a worker's request off what is free and counts it as a member.
    pub fn take(&mut self, request: &WorkerRequest) {
        self.free.cpu -= request.cpu;
        self.free.memory -= request.memory;
        self.free.gpus -= request.gpus;
        self.members = self.members.saturating_add(1);
    }
}

impl NodeColumns {
    /// The nodes in the order of the columns.
    pub fn iter(&self) -> impl Iterator<Item = Node> + '_ {
        let free = self.free_cpu.iter().zip(&self.free_memory).zip(&self.free_gpus);
        let total = self.total_cpu.iter().zip(&self.total_memory).zip(&self.total_gpus);
        let topology = self.zone.iter().zip(&self.rack);
        let counts = self.members.iter().zip(&self.faults);
        (0u32..).zip(free.zip(total).zip(topology.zip(counts))).map(|(row, ((free, total), (topology, counts)))| Node {
            row,
            free: amounts(free),
            total: amounts(total),
            zone: (*topology.0 != NONE).then_some(*topology.0),
            rack: (*topology.1 != NONE).then_some(*topology.1),
            members: *counts.0,
            faults: *counts.1,
        })
    }
}

fn amounts(((cpu, memory), gpus): ((&f64, &f64), &f64)) -> WorkerRequest {
    WorkerRequest { cpu: *cpu, memory: *memory, gpus: *gpus }
}

/// One row of [`MemberColumns`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Index of the worker in the job: what `victims` names.
    pub index: u32,
    /// Position of its node; `None` = not scheduled, or on a node that is not listed.
    pub node: Option<u32>,
    /// Whether it is ready.
    pub ready: bool,
    /// When its pod started, milliseconds since the epoch; 0 = it has not.
    pub started_ms: u64,
    /// The master: never a victim.
    pub protected: bool,
}

impl MemberColumns {
    /// The members in the order of the columns.
    pub fn iter(&self) -> impl Iterator<Item = Member> + '_ {
        let facts = self.index.iter().zip(&self.node).zip(&self.ready);
        facts.zip(self.started_ms.iter().zip(&self.protected)).map(|(((index, node), ready), (started, protected))| {
            Member {
                index: *index,
                node: (*node != NONE).then_some(*node),
                ready: *ready,
                started_ms: *started,
                protected: *protected,
            }
        })
    }
}
