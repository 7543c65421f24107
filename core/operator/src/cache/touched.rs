//! What budgets and leases bring: which jobs are to be looked at for it.

use std::time::Instant;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::runtime::watcher::Event;

use super::budgets::Touched;
use super::watch::Watches;
use crate::queue::Queue;

pub(super) fn look_at_jobs_on(caches: &Watches, queue: &Queue, nodes: &[String]) {
    let owners = nodes.iter().flat_map(|name| caches.pods.owners_on(name));
    for job in owners.filter_map(|uid| caches.jobs.by_uid(&uid)) {
        queue.add(job.key.clone());
    }
}

/// A node that falls silent, or is heard of again, is news for the jobs that have workers there.
pub(super) fn lease_event(caches: &Watches, queue: &Queue, event: Event<Lease>, now: Instant) {
    let leases = &caches.leases;
    match event {
        Event::Init => leases.list_begins(),
        Event::InitDone => leases.list_ends(now),
        Event::InitApply(lease) | Event::Apply(lease) => look_at_jobs_on(caches, queue, &leases.seen(&lease, now)),
        Event::Delete(lease) => leases.gone(lease.metadata.name.as_deref().unwrap_or_default()),
    }
}

/// A budget that changed is of the job of its name; one that somebody else made may be about any job of its namespace.
pub(super) fn budget_event(caches: &Watches, queue: &Queue, event: Event<PodDisruptionBudget>) {
    let budgets = &caches.budgets;
    let touched = match event {
        Event::Init => {
            budgets.list_begins();
            return;
        }
        Event::InitDone => {
            budgets.list_ends();
            caches.jobs.all().iter().for_each(|job| queue.add(job.key.clone()));
            return;
        }
        Event::InitApply(budget) => {
            budgets.seen(&budget);
            return;
        }
        Event::Apply(budget) => budgets.seen(&budget),
        Event::Delete(budget) => budgets.gone(&budget),
    };
    match touched {
        Some(Touched::Job(key)) => queue.add(key),
        Some(Touched::Namespace(namespace)) => {
            let jobs = caches.jobs.all();
            jobs.iter().filter(|j| j.key.namespace == namespace).for_each(|job| queue.add(job.key.clone()));
        }
        None => {}
    }
}
