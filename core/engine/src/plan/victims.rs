//! Which workers a shrinking job gives up.

use std::collections::HashMap;

use super::step::Step;
use crate::contract::WorkerPhase;
use crate::observe::Pod;
use crate::state::Victim;

/// Chooses `count` of the (ascending) members: those that are gone or have failed first, then pending ones, then those
/// that are to go, then those on a node that is not ready, on a faulty one, then the placement policy's choice in its
/// order, then the highest index. Index 0, the master, is never among them, nor is who is no worker.
pub(super) fn choose<'a>(step: &Step<'a>, members: &[u32], count: usize) -> Vec<(u32, Option<&'a Pod>, &'static str)> {
    let of_policy: HashMap<u32, usize> = step.facts.victims.iter().enumerate().map(|(at, v)| (*v, at)).collect();
    let mut ranked: Vec<_> = members
        .iter()
        .copied()
        .filter(|index| step.job.may_give_up(*index))
        .map(|index| {
            let pod = step.pod(index);
            let (class, at, reason) = match pod {
                None => (0, 0, "it is gone"),
                Some(p) if p.phase == WorkerPhase::Failed || p.deleting.is_some() => (0, 0, "it failed"),
                Some(p) if p.phase == WorkerPhase::Pending => (1, 0, "it is pending"),
                Some(p) if step.announced(p).is_some() => (2, 0, "its end is announced"),
                Some(p) if step.is_sick(p) => (3, 0, "its node is not ready"),
                Some(p) if step.is_on_faulty(p) => (4, 0, "its node has a fault"),
                Some(_) => match of_policy.get(&index).copied() {
                    Some(at) => (5, at, "the placement policy gives it up"),
                    None => (6, 0, "it has the highest index"),
                },
            };
            (class, at, std::cmp::Reverse(index), pod, reason)
        })
        .collect();
    ranked.sort_by_key(|(class, at, index, ..)| (*class, *at, *index));
    ranked.truncate(count);
    ranked.into_iter().map(|(_, _, index, pod, reason)| (index.0, pod, reason)).collect()
}

impl Step<'_> {
    pub(super) fn is_victim(&self, pod: &Pod) -> bool {
        self.given_up.contains(&pod.uid)
    }

    pub(super) fn name_victim(&mut self, pod: &Pod, index: u32, reason: &str) {
        if self.given_up.insert(pod.uid.clone()) {
            let victim = Victim { pod: pod.name.clone(), uid: pod.uid.clone(), index, reason: reason.to_owned() };
            self.state.victims.push(victim);
        }
    }

    /// Why pods are given up, by their UIDs.
    pub(super) fn victim_reasons(&self) -> HashMap<String, String> {
        self.state.victims.iter().map(|v| (v.uid.clone(), v.reason.clone())).collect()
    }
}
