//! What plans and new pods are to know of the nodes that a job's pods are on.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Instant;

use eto_api::ElasticJob;
use eto_cycle::pod::KeepOff;
use eto_cycle::template;
use eto_engine::job::JobSpec;
use eto_engine::observe::{Node, Pod};
use eto_engine::placement;
use eto_engine::plan::{Announced, PlanFacts};
use eto_engine::state::JobState;

use crate::constraints::constraints;
use crate::context::Context;

/// Names of nodes in the affinity of one pod, at most: in an upgrade of the whole cluster each node is to go in its turn.
const NAMES: usize = 32;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct NodeFacts {
    /// Nodes of the job's pods that are not ready, silent, or gone.
    sick: BTreeSet<String>,
    /// Those that have a fault.
    faulty: BTreeSet<String>,
    /// Pods that are to go, by UID.
    leaving: BTreeMap<String, Announced>,
    /// The nodes that go with pods of the job. Not those of pods that go by themselves: their nodes stay.
    ending: BTreeSet<String>,
}

impl NodeFacts {
    pub(crate) fn of(context: &Context, object: &ElasticJob, pods: &[Pod]) -> Self {
        let nodes = &context.caches.nodes;
        let on = pods.iter().filter_map(|p| p.node.as_deref());
        let is_sick = |n: &&str| nodes.is_sick(n) || context.caches.leases.is_silent(n);
        let sick = on.filter(is_sick).map(str::to_owned).collect();
        let leaving = nodes.leaving(pods, || template::annotation_keys(object));
        NodeFacts { sick, faulty: nodes.faulty(pods), leaving, ending: nodes.ending(pods) }
    }

    pub(crate) fn facts(&self) -> PlanFacts<'_> {
        PlanFacts {
            sick_nodes: Some(&self.sick),
            faulty_nodes: Some(&self.faulty),
            leaving: Some(&self.leaving),
            ..PlanFacts::default()
        }
    }

    /// How many workers would find a node that is not to go. Counted only where one of the job's is, and pods are
    /// recreated for each round.
    pub(crate) fn room(&self, context: &Context, object: &ElasticJob, spec: &JobSpec, state: &JobState) -> Option<u32> {
        let template = spec.template.as_ref().filter(|_| !self.leaving.is_empty())?;
        state.round.as_ref().filter(|r| r.agent.is_none())?;
        let avoided = context.caches.avoided();
        let stays = |n: &Node| avoided.binary_search(&n.name).is_err();
        let nodes: Vec<Node> = context.caches.nodes.all().into_iter().filter(stays).collect();
        let (constraints, _) = constraints(object, &context.caches.volumes);
        let held = context.reserved.held(Instant::now());
        let candidates = placement::prefilter(&nodes, &constraints, &template.request, &held, &HashSet::new());
        Some(placement::fits(&candidates, &template.request))
    }

    /// What a new pod of the job is kept off. Never is it to come back to a node that goes, nor to one that has just taken a
    /// worker with it and is silent: the scheduler finds it the emptiest until Kubernetes calls it not ready.
    pub(crate) fn keep_off(&self, context: &Context) -> KeepOff {
        let caches = &context.caches;
        let lost = self.sick.iter().filter(|n| caches.leases.is_silent(n));
        let never: BTreeSet<&String> = self.ending.iter().chain(lost).collect();
        let others = caches.avoided().into_iter().chain(caches.nodes.quarantined());
        let others: BTreeSet<String> = others.filter(|n| !never.contains(n)).collect();
        let never = never.into_iter().take(NAMES).cloned().collect();
        KeepOff { rather_not: others.into_iter().take(NAMES).collect(), never }
    }
}
