//! One evaluation: gather, ask, take the answer into the state. The next plan acts on it.

use eto_cycle::evaluate::{Facts, evaluate, settle};
use eto_engine::contract::{Capacity, NONE, WorkerPhase};
use eto_engine::wants::signal_ids;

use crate::news::News;
use crate::runner::{Runner, now};

impl Runner {
    /// Asks the policy and takes its answer, as far as the guard lets it pass, into the state.
    pub(crate) fn decide(&mut self) {
        let now = now();
        let job = &self.job.spec;
        // One snapshot for all of it: what is gathered is what the version that is asked wants.
        let policies = self.registry.snapshot();
        let wants = self.wants.of(job, &policies, now).unwrap_or_default();
        let signals = self.sources.signals(&signal_ids(job, &wants), now);
        let pods = self.table.pods();
        let pending = pods.iter().filter(|pod| pod.phase == WorkerPhase::Pending).count();
        let facts = Facts {
            job,
            state: &self.state,
            pods: &pods,
            signals: &signals,
            // How many processes a machine can take is not known.
            capacity: Capacity { fits: NONE, pending: u32::try_from(pending).unwrap_or(NONE) },
            policies: &policies,
            now,
        };
        let before = self.memory.last.clone();
        let decision = evaluate(&facts, &self.wants, &mut self.memory).decision;
        let settled = settle(job, &mut self.state, &mut self.memory, &decision, before.as_ref(), now);
        if job.scaling.is_some() {
            self.display.tell(now, &News::Decision(Box::new(decision)));
        }
        for event in &settled.events {
            self.display.tell(now, &crate::notices::event(event));
        }
    }
}
