//! Asks placement policies: which nodes new workers should run on, and who is given up.
//!
//! The answer is a hint to the scheduler (node affinity). Without one, for whatever reason, the scheduler decides alone
//! and the newest workers go first: a job never waits for its placement policy.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use eto_cycle::evaluate::without_placement;
use eto_cycle::log::PlacementEntry;
use eto_engine::contract::{NONE, Reason, WorkerRequest};
use eto_engine::job::{JobKey, JobSpec, Mode, PlacementSpec};
use eto_engine::observe::{Node, Pod};
use eto_engine::placement::{self, Ask, Asked, Constraints, Need, Reservations, Settled};
use eto_engine::plan::{self, Event, EventReason, PlanFacts};
use eto_engine::policy::{CallFailure, FailureKind, PolicyId};
use eto_engine::state::{JobState, Kept, Memory};
use eto_engine::time::Time;

use crate::cache::jobs::Job;
use crate::cache::volumes::Volumes;
use crate::constraints::constraints;
use crate::context::Context;
use crate::node_facts::NodeFacts;
use crate::reconcile::adopt;

/// For how long an answer holds its places. By then the pods are on nodes, where everybody sees them.
const HOLD: Duration = Duration::from_secs(10);

/// What answers given lately have taken: when, the node, and what for.
#[derive(Clone, Debug, Default)]
pub struct Reserved {
    inner: Arc<Mutex<VecDeque<(Instant, String, WorkerRequest)>>>,
}

impl Reserved {
    /// What is held now.
    pub(crate) fn held(&self, now: Instant) -> Reservations {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        while inner.front().is_some_and(|(at, ..)| now.duration_since(*at) > HOLD) {
            inner.pop_front();
        }
        let mut all = Reservations::default();
        inner.iter().for_each(|(_, node, request)| all.reserve(node, request));
        all
    }

    fn hold(&self, settled: &Settled, request: WorkerRequest, now: Instant) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.extend(settled.places.values().map(|choice| (now, choice.node.clone(), request)));
    }
}

/// What a question needs, taken out of the job's entry so that the policy runs without its lock.
struct Question {
    spec: Arc<JobSpec>,
    state: JobState,
    memory: Memory,
    pods: Arc<Vec<Pod>>,
    need: Need,
    constraints: Constraints,
}

/// Asks the job's placement policy if the next plan needs it; nothing where it does not, where there is no answer, or where
/// the answer is for people alone (mode Recommend).
pub async fn ask(context: &Context, job: &Arc<Job>, now: Time) -> Settled {
    let Some(question) = question(context, job, now) else { return Settled::default() };
    let asking = context.clone();
    let key = job.key.clone();
    let began = SystemTime::now();
    match tokio::task::spawn_blocking(move || answer(&asking, &key, question, now)).await {
        Ok(Some(answered)) => take(context, job, answered, (now, began)),
        Ok(None) => Settled::default(),
        Err(error) => {
            tracing::error!(job = %job.key, %error, "the placement policy was not asked");
            Settled::default()
        }
    }
}

/// What came of a question.
struct Answered {
    spec: Arc<JobSpec>,
    placement: PlacementSpec,
    /// Who was asked; `None` = nothing of that name is served.
    policy: Option<PolicyId>,
    fuel: u64,
    /// The checked answer with its reasons, and what the policy wants to have kept.
    outcome: Result<(Settled, Vec<Reason>, Option<Kept>), CallFailure>,
}

/// Notes what came of a question, and gives what the plan is to follow.
fn take(context: &Context, job: &Job, answered: Answered, (now, began): (Time, SystemTime)) -> Settled {
    let Answered { spec, placement, policy, fuel, outcome } = answered;
    let apply = placement.mode == Mode::Auto;
    let asked = Asked { policy: policy.as_ref(), generation: spec.generation, apply, fuel, now };
    let (noted, kept) = match &outcome {
        Ok((settled, reasons, kept)) => (Ok((settled, reasons.clone())), kept.clone()),
        Err(failure) => (Err(failure), None),
    };
    if let Some(mind) = &mut job.entry().mind {
        placement::note(&mut mind.memory.placement, asked, noted, kept);
        if let Some(placed) = &mind.memory.placement.last {
            context.spans.placed(&job.key, placed, began);
        }
    }
    match outcome {
        Ok((settled, ..)) if apply => settled,
        Ok(_) => Settled::default(),
        Err(failure) => {
            // Users name modules; series for names that nothing serves would have no bound.
            let served = if failure.kind == FailureKind::Missing { "none" } else { placement.module.as_str() };
            context.telemetry.policy_failed(served, failure.kind);
            let message = without_placement(&placement.module, &failure);
            let event = Event { warning: true, reason: EventReason::PolicyFailed, message };
            context.events.tell(&job.key, &job.uid, event);
            Settled::default()
        }
    }
}

fn question(context: &Context, job: &Job, now: Time) -> Option<Question> {
    let pods = context.caches.pods.of(&job.key.namespace, &job.uid);
    let group = context.gateway.group(&job.uid);
    let mut entry = job.entry();
    let spec = entry.spec.as_ref().ok().filter(|s| s.placement.is_some()).cloned()?;
    adopt(&mut entry, &pods, group.as_deref(), context.gateway.facts(), now);
    let mind = entry.mind.as_ref().filter(|m| !m.acting)?;
    let nodes = NodeFacts::of(context, &entry.object, &pods);
    let room = nodes.room(context, &entry.object, &spec, &mind.state);
    let image = context.images.seen(&entry.object, &spec);
    let facts = PlanFacts {
        refused: mind.refused.as_ref(),
        room,
        group: group.as_deref(),
        agent: context.gateway.facts(),
        image: image.fact(),
        ..nodes.facts()
    };
    let draft = plan::plan(&spec, &mind.state, &pods, &facts, now);
    let need = placement::need(&spec, &mind.state, &draft)?;
    let (state, memory) = (draft.state, mind.memory.clone());
    let object = Arc::clone(&entry.object);
    drop(entry);
    let (mut constraints, unbound) = constraints(&object, &context.caches.volumes);
    // One worker alone can take its volume anywhere.
    constraints.together &= need.add.len() > 1;
    if !unbound.is_empty() {
        tracing::info!(job = %job.key, claims = unbound.join(", "), "placed without knowing where the volumes of these claims will be: they have none yet");
    }
    Some(Question { spec, state, memory, pods, need, constraints })
}

/// Asks. `None`: the job has no placement policy any more, or that has failed too often to be asked now.
fn answer(context: &Context, key: &JobKey, question: Question, now: Time) -> Option<Answered> {
    let Question { spec, state, memory, pods, need, constraints } = question;
    let placement = spec.placement.clone()?;
    let snapshot = context.registry.snapshot();
    let policy = match snapshot.placement(&placement.module) {
        Ok(policy) => policy,
        Err(missing) => return Some(Answered { spec, placement, policy: None, fuel: 0, outcome: Err(missing) }),
    };
    if placement::is_open(&memory.placement, &policy.id().digest, spec.generation, now) {
        return None;
    }
    let request = request(&spec);
    let nodes = context.caches.nodes.all();
    let own: HashSet<&str> = pods.iter().filter_map(|p| p.node.as_deref()).collect();
    let reservations = context.reserved.held(Instant::now());
    let mut candidates = placement::prefilter(&nodes, &constraints, &request, &reservations, &own);
    candidates.close(&context.caches.avoided());
    let settings = &context.settings.placement;
    let asked = Ask {
        job: &spec,
        state: &state,
        memory: &memory,
        pods: &pods,
        candidates: &candidates,
        need: &need,
        request,
        zone_label: &settings.zone_label,
        rack_label: &settings.rack_label,
        faults: &context.caches.nodes.faults(),
        now,
    };
    let mut input = placement::input_for(&asked, &*policy);
    let merged = snapshot.get(&placement.module).and_then(|p| p.merge_config(&input.config).ok());
    input.config = merged.unwrap_or(input.config);
    let answer = policy.place(&input);
    // Others may have answered meanwhile; the scheduler has the last word.
    let mut taken = Reservations::default();
    let settled = answer.as_ref().map_err(Clone::clone);
    let settled = settled.and_then(|answer| placement::settle(&input, &candidates, &answer.value, &mut taken));
    let fuel = answer.as_ref().map_or(0, |answer| answer.fuel);
    context.telemetry.fuel(&placement.module, fuel);
    let outcome = settled.and_then(|settled| {
        let value = &answer.as_ref().map_err(Clone::clone)?.value;
        Ok((settled, value.reasons.clone(), placement::keep(&*policy, value)))
    });
    if let Some(log) = &context.log {
        let told = match &outcome {
            Ok(_) => answer.map(|answer| answer.value).map_err(|failure| failure.to_string()),
            Err(failure) => Err(failure.to_string()),
        };
        log.placed(PlacementEntry { job: key.clone(), policy: policy.id().clone(), input, outcome: told, fuel });
    }
    if let (Ok((settled, ..)), Mode::Auto) = (&outcome, placement.mode) {
        context.reserved.hold(settled, request, Instant::now());
    }
    Some(Answered { policy: Some(policy.id().clone()), spec, placement, fuel, outcome })
}

fn request(spec: &JobSpec) -> WorkerRequest {
    spec.template.as_ref().map(|t| t.request).unwrap_or_default()
}

/// What the cluster could still take, for one cycle: the nodes as they were at its start.
#[derive(Debug, Default)]
pub struct Room {
    nodes: Vec<Node>,
    /// Answers by namespace and template hash: jobs of one template ask alike, and claims are of a namespace.
    known: Mutex<HashMap<(String, String), u32>>,
}

impl Room {
    pub fn new(nodes: Vec<Node>) -> Self {
        Room { nodes, known: Mutex::default() }
    }

    /// How many workers of the job would find a node now; `NONE` where that is not known or not asked for.
    pub fn fits(&self, job: &Job, spec: &JobSpec, state: &JobState, volumes: &Volumes) -> u32 {
        // The built-in policy does not look at it; a growth that was taken back does.
        let wanted = spec.scaling.as_ref().is_some_and(|s| s.own_module)
            || state.last_resize.as_ref().is_some_and(|r| r.refused);
        let Some(template) = spec.template.as_ref().filter(|_| wanted && !self.nodes.is_empty()) else { return NONE };
        let asked = (job.key.namespace.clone(), template.hash.clone());
        if let Some(known) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&asked) {
            return *known;
        }
        let object = Arc::clone(&job.entry().object);
        let own: HashSet<&str> = HashSet::new();
        let (constraints, _) = constraints(&object, volumes);
        let candidates =
            placement::prefilter(&self.nodes, &constraints, &template.request, &Reservations::default(), &own);
        let fits = placement::fits(&candidates, &template.request);
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(asked, fits);
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eto_engine::placement::NodeChoice;

    #[test]
    fn a_place_is_held_for_its_whole_time_whenever_it_was_given() {
        let (reserved, began) = (Reserved::default(), Instant::now());
        let request = WorkerRequest { cpu: 2.0, memory: 1.0, gpus: 0.0 };
        let on = |node: &str| {
            let choice = NodeChoice { node: node.to_owned(), required: false };
            Settled { places: [(1, choice)].into(), victims: Vec::new() }
        };
        reserved.hold(&on("a"), request, began);
        reserved.hold(&on("b"), request, began + HOLD);
        let held = reserved.held(began + HOLD);
        assert_eq!((held.on("a"), held.on("b")), (request, request));
        let held = reserved.held(began + HOLD + HOLD / 2);
        assert_eq!((held.on("a"), held.on("b")), (WorkerRequest::default(), request));
    }
}
