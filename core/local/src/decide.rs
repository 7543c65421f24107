//! One evaluation: gather, view, policy, guard. What is decided changes the state; the next plan acts on it.

use eto_engine::conditions;
use eto_engine::contract::{Capacity, NONE, WorkerPhase};
use eto_engine::guard;
use eto_engine::plan::apply;
use eto_engine::policy::{CallFailure, FailureKind, ScalingPolicy};
use eto_engine::view::{Facts, build};
use eto_engine::wants::signal_ids;

use crate::news::News;
use crate::runner::{Runner, now};

/// The built-in policy that `failurePolicy: BuiltIn` falls back to.
const FALLBACK: &str = "hpa";

impl Runner {
    /// Asks the policy and takes its answer, as far as the guard lets it pass, into the state.
    pub(crate) fn decide(&mut self) {
        let now = now();
        let snapshot = self.registry.snapshot();
        let scaling = self.job.spec.scaling.as_ref();
        let policy = scaling.map_or_else(
            || Err(CallFailure { kind: FailureKind::Missing, message: "the size is set by hand".to_owned() }),
            |scaling| snapshot.scaling(&scaling.module),
        );
        let config = scaling.map_or("{}", |scaling| scaling.config.as_str());
        // A policy that can't say what it wants can't decide either: the guard hears why when it asks.
        let wants = policy.as_ref().ok().and_then(|policy| policy.wants(config).ok()).map(|answer| answer.value);
        let wants = wants.unwrap_or_default();
        let signals = self.sources.signals(&signal_ids(&self.job.spec, &wants), now);
        let pods = self.table.pods();
        let pending = pods.iter().filter(|pod| pod.phase == WorkerPhase::Pending).count();
        let view = build(&Facts {
            job: &self.job.spec,
            state: &self.state,
            memory: &self.memory,
            pods: &pods,
            signals: &signals,
            wants: &wants,
            capacity: Capacity { fits: NONE, pending: u32::try_from(pending).unwrap_or(NONE) },
            now,
        });
        let asked = match &policy {
            Ok(policy) => Ok(&**policy as &dyn ScalingPolicy),
            Err(failure) => Err(failure.clone()),
        };
        let fallback = snapshot.scaling(FALLBACK).ok();
        let fallback = fallback.as_ref().map(|policy| &**policy as &dyn ScalingPolicy);
        let decision = guard::decide(&self.job.spec, &self.state, &mut self.memory, &view, asked, fallback, now);
        apply(&self.job.spec, &mut self.state, &mut self.memory, &decision, now);
        let fresh = conditions::scaling(&self.job.spec, &decision, now);
        conditions::merge(&mut self.state.conditions, fresh);
        if self.job.spec.scaling.is_some() {
            self.display.tell(now, &News::Decision(Box::new(decision)));
        }
    }
}
