//! etcd: who leads, the assignment and the members' records, with the rules of the real store.

use std::collections::BTreeMap;
use std::sync::Arc;

use eto_membership::{Assignment, Group, MemberRecord, Refused};

use crate::defects::Defect;
use crate::replica::News;
use crate::world::World;

/// What is kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    /// The claim of the leader; 0 = there is none.
    leader: u64,
    pub(crate) assignment: Option<Arc<Assignment>>,
    pub(crate) members: BTreeMap<String, MemberRecord>,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct Etcd {
    pub(crate) up: bool,
    pub(crate) kept: Kept,
    /// What it is restored from.
    backup: Kept,
}

impl Default for Etcd {
    fn default() -> Self {
        Etcd { up: true, kept: Kept::default(), backup: Kept::default() }
    }
}

/// An assignment was not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AssignError {
    Away,
    NotLeading,
    Stale(Refused),
}

impl World {
    /// Takes the fence.
    pub(crate) fn lead(&mut self) -> Option<u64> {
        if !self.etcd.up {
            return None;
        }
        self.etcd.kept.leader = self.new_life();
        Some(self.etcd.kept.leader)
    }

    /// As the real store does it, in one transaction.
    pub(crate) fn assign(&mut self, at: usize, claim: Option<u64>, next: &Assignment) -> Result<(), AssignError> {
        if !self.etcd.up {
            return Err(AssignError::Away);
        }
        if claim != Some(self.etcd.kept.leader) {
            return Err(AssignError::NotLeading);
        }
        if let Some(current) = &self.etcd.kept.assignment {
            if **current == *next {
                return Ok(());
            }
            if self.defect != Some(Defect::OneGeneration) {
                next.may_follow(current).map_err(AssignError::Stale)?;
            }
        }
        self.check_assignment(at, next);
        let (generation, order, n) = (next.round.generation, next.order, next.round.members.len());
        self.note(|_| format!("round {generation} of {n} has the order {order:?} ({})", next.why));
        self.etcd.kept.assignment = Some(Arc::new(next.clone()));
        self.group_changed();
        self.tell_agents();
        Ok(())
    }

    pub(crate) fn group(&self) -> Option<Arc<Group>> {
        let kept = self.etcd.up.then_some(&self.etcd.kept)?;
        let assignment = kept.assignment.as_deref().cloned();
        Some(Arc::new(Group { assignment, members: kept.members.clone() }))
    }

    /// Followers hear of what is in etcd now, or that it is away.
    pub(crate) fn group_changed(&mut self) {
        let group = self.group();
        self.tell_replicas(&News::Group(group));
    }

    pub(crate) fn take_backup(&mut self) {
        self.etcd.backup = self.etcd.kept.clone();
    }

    /// All data is lost, or what there was at the last backup is back. Records are bound to leases that end.
    pub(crate) fn lose_data(&mut self, restored: bool) {
        self.note(|_| (if restored { "etcd is restored from a backup" } else { "etcd has lost its data" }).to_owned());
        self.etcd.kept = if restored { self.etcd.backup.clone() } else { Kept::default() };
        self.gateway.write_all_again();
        self.group_changed();
        self.tell_agents();
    }
}
