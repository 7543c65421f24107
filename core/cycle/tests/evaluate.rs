//! The shell of a decision with the real host and the real built-in policy (`make policies` builds it).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_methods, reason = "reads the policy under test")]

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use eto_api::ElasticJob;
use eto_cycle::evaluate::{Evaluated, Facts, evaluate, settle};
use eto_cycle::spec::job_spec;
use eto_cycle::wants::{WantsCache, questioned};
use eto_engine::contract::{Capacity, NONE, Readiness, WorkerPhase, WorkerRequest};
use eto_engine::job::JobSpec;
use eto_engine::observe::Pod;
use eto_engine::placement::{Asked, note};
use eto_engine::plan::EventReason;
use eto_engine::policy::{CallFailure, FailureKind};
use eto_engine::signals::{Sample, SignalData, SignalSet, builtin};
use eto_engine::state::{ConditionKind, ConditionReason, JobState, Memory, Phase, RoundCause, RoundMode, RoundState};
use eto_engine::time::Time;
use eto_policy_host::{Change, HostSettings, ModuleSettings, PolicyHost, Registry, Snapshot};
use serde_json::{Value, json};

const NOW: Time = Time(1_800_000_000_000);
const LONG_AGO: Time = Time(NOW.0 - 7_200_000);

fn hpa() -> Vec<u8> {
    module("hpa")
}

fn module(name: &str) -> Vec<u8> {
    let dir = std::env::var("ETO_POLICIES_OUT")
        .map_or_else(|_| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/policies"), PathBuf::from);
    let path = dir.join(format!("{name}.wasm"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}; run `make policies` first", path.display()))
}

/// The same code with another digest: an empty custom section at its end.
fn rebuilt(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.extend([0, 3, 2, b'v', b'2']);
    bytes
}

fn serving(modules: &[(&str, Vec<u8>)]) -> Arc<Snapshot> {
    let host = PolicyHost::new(HostSettings::default()).unwrap();
    let load = |(name, bytes): &(&str, Vec<u8>)| {
        Change::Serve(host.load(name, bytes.clone(), &ModuleSettings::default()).unwrap())
    };
    Registry::new().publish(modules.iter().map(load).collect())
}

fn job(scaling: &Value) -> JobSpec {
    let job: ElasticJob = serde_json::from_value(json!({
        "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob",
        "metadata": {"name": "train", "namespace": "team", "uid": "u1", "generation": 1},
        "spec": {
            "replicas": 2, "minReplicas": 1, "maxReplicas": 10, "scalingPolicy": scaling,
            "template": {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}},
        },
    }))
    .unwrap();
    job_spec(&job).unwrap()
}

fn metrics() -> Value {
    json!([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 45}}}])
}

fn running(job: &JobSpec) -> JobState {
    JobState {
        phase: Phase::Running,
        target: 2,
        based_on: 2,
        last_generation: 1,
        round: Some(RoundState {
            generation: 1,
            size: 2,
            template_hash: job.template.as_ref().unwrap().hash.clone(),
            since: LONG_AGO,
            running_since: Some(LONG_AGO),
            cause: RoundCause::Start,
            complete: Some(LONG_AGO),
            required_nodes: false,
            gaps: Vec::new(),
            restarts_charged: 0,
            agent: None,
        }),
        ..JobState::default()
    }
}

fn pods(job: &JobSpec) -> Vec<Pod> {
    let pod = |index: u32| Pod {
        name: format!("train-worker-{index}"),
        uid: format!("p{index}"),
        index,
        round: 1,
        round_size: 2,
        incarnation: 1,
        mode: RoundMode::Recreate,
        template_hash: job.template.as_ref().unwrap().hash.clone(),
        phase: WorkerPhase::Running,
        reason: None,
        ready: Readiness::Ready,
        created: LONG_AGO,
        started: Some(LONG_AGO),
        ready_changed: Some(LONG_AGO),
        ended: None,
        node: Some("n".to_string()),
        unschedulable: None,
        waiting: None,
        deleting: None,
        restarts: 0,
        exit_code: None,
        last_end: None,
        memory_limit: 0,
        disrupted: false,
        request: WorkerRequest { cpu: 1.0, memory: 0.0, gpus: 0.0 },
    };
    vec![pod(0), pod(1)]
}

/// What a source would answer to what the job wants: both workers at 0.9 cores.
fn busy(job: &JobSpec, cache: &WantsCache, policies: &Snapshot) -> SignalSet {
    let mut set = SignalSet { at: NOW, ..SignalSet::default() };
    for (id, namespaces) in cache.collect([job], policies, NOW) {
        assert_eq!(id.name, builtin::CPU);
        assert!(namespaces.contains("team"));
        let sample = Sample { value: 0.9, at: Time(NOW.0 - 5000) };
        let of_pods: HashMap<_, _> = ["train-worker-0", "train-worker-1"].map(|p| (p.to_string(), sample)).into();
        let data = SignalData {
            per_pod: [("team".to_string(), of_pods)].into(),
            healthy_since: Some(LONG_AGO),
            ..SignalData::default()
        };
        set.signals.insert(id, data);
    }
    set
}

struct World {
    job: JobSpec,
    state: JobState,
    memory: Memory,
    cache: WantsCache,
    policies: Arc<Snapshot>,
}

impl World {
    fn new(scaling: &Value, modules: &[(&str, Vec<u8>)]) -> World {
        let job = job(scaling);
        let state = running(&job);
        let memory = Memory::new(LONG_AGO);
        World { job, state, memory, cache: WantsCache::default(), policies: serving(modules) }
    }

    fn decide(&mut self) -> Evaluated {
        let signals = busy(&self.job, &self.cache, &self.policies);
        self.decide_by(&signals)
    }

    fn decide_by(&mut self, signals: &SignalSet) -> Evaluated {
        let pods = pods(&self.job);
        let facts = Facts {
            job: &self.job,
            state: &self.state,
            pods: &pods,
            signals,
            capacity: Capacity { fits: NONE, pending: 0 },
            policies: &self.policies,
            now: NOW,
        };
        evaluate(&facts, &self.cache, &mut self.memory)
    }
}

#[test]
fn busy_workers_make_the_job_grow() {
    let mut w = World::new(&json!({"metrics": metrics()}), &[("hpa", hpa())]);
    let evaluated = w.decide();
    let d = &evaluated.decision;
    assert_eq!((d.from, d.proposed, d.target), (2, Some(4), 4), "{d:#?}");
    assert!(d.fuel > 0 && d.failure.is_none());
    let input = evaluated.input.as_ref().unwrap();
    assert!(serde_json::from_str::<Value>(&input.config).unwrap().is_object());
    let settled = settle(&w.job, &mut w.state, &mut w.memory, d, None, NOW);
    assert!(settled.moved && settled.changed && settled.events.is_empty(), "{settled:?}");
    assert_eq!(w.state.target, 4);
}

#[test]
fn a_recorded_input_gives_the_recorded_answer() {
    let mut w = World::new(&json!({"metrics": metrics()}), &[("hpa", hpa())]);
    let evaluated = w.decide();
    let text = serde_json::to_string(&evaluated.input.unwrap()).unwrap();
    let again = w.policies.scaling("hpa").unwrap().evaluate(&serde_json::from_str(&text).unwrap()).unwrap();
    assert_eq!(again.value.target, evaluated.decision.proposed);
    assert_eq!(again.value.reasons, evaluated.decision.reasons);
}

#[test]
fn a_missing_module_holds_and_is_told_once() {
    let mut w = World::new(&json!({"module": "mine", "metrics": metrics()}), &[("hpa", hpa())]);
    let first = w.decide().decision;
    assert_eq!((first.target, first.failure.as_ref().unwrap().kind), (2, FailureKind::Missing));
    let settled = settle(&w.job, &mut w.state, &mut w.memory, &first, None, NOW);
    assert!(!settled.moved);
    assert_eq!(settled.events.iter().map(|e| e.reason).collect::<Vec<_>>(), [EventReason::PolicyFailed]);
    let second = w.decide().decision;
    assert!(!settle(&w.job, &mut w.state, &mut w.memory, &second, Some(&first), NOW).is_news());
    // What is wrong with a signal is shown, so a change of it is news though nothing moves.
    let mut worse = second.clone();
    worse.signals.push(eto_engine::decision::SignalSeen {
        name: "cpu".into(),
        metric: None,
        quality: eto_engine::contract::Quality::Absent,
        coverage: 0.0,
        age_ms: 0,
        mean: None,
        note: Some("there is no sample".into()),
    });
    assert!(settle(&w.job, &mut w.state, &mut w.memory, &worse, Some(&second), NOW).is_news());
    assert!(!settle(&w.job, &mut w.state, &mut w.memory, &worse.clone(), Some(&worse), NOW).is_news());
}

#[test]
fn the_built_in_policy_stands_in_where_the_job_wants_it() {
    let scaling = json!({"module": "mine", "metrics": metrics(), "failurePolicy": "BuiltIn"});
    let d = World::new(&scaling, &[("hpa", hpa())]).decide().decision;
    assert!(d.answered && d.failure.is_some());
    assert_eq!(d.proposed, Some(4), "{d:#?}");
}

#[test]
fn a_config_that_the_module_refuses_holds_and_names_the_key() {
    let mut w = World::new(&json!({"metrics": metrics(), "config": {"nonsense": 1}}), &[("hpa", hpa())]);
    let d = w.decide().decision;
    let failure = d.failure.unwrap();
    assert_eq!((d.target, failure.kind), (2, FailureKind::InvalidConfig));
    assert!(failure.message.contains("nonsense"), "{}", failure.message);
}

#[test]
fn another_version_of_the_module_is_told() {
    let mut w = World::new(&json!({"metrics": metrics()}), &[("hpa", hpa())]);
    let first = w.decide().decision;
    w.policies = serving(&[("hpa", rebuilt(hpa()))]);
    let second = w.decide().decision;
    assert_ne!(first.policy.as_ref().unwrap().digest, second.policy.as_ref().unwrap().digest);
    let settled = settle(&w.job, &mut w.state, &mut w.memory, &second, Some(&first), NOW);
    assert_eq!(settled.events.iter().map(|e| e.reason).collect::<Vec<_>>(), [EventReason::PolicySwapped]);
}

/// Both jobs of a namespace have `sum(q)`, whose answer is their common backlog.
#[test]
fn a_second_job_with_the_same_query_holds_both_until_the_query_tells_them_apart() {
    let target = |query: &str, others: &[(&str, &str)]| {
        let config = |query: &str| json!({"signal": "backlog", "query": query, "target": 10});
        let at_once = json!({"scaleUp": {"stabilizationWindowSeconds": 0}});
        let scaling = json!({"module": "target-tracking", "config": config(query), "behavior": at_once});
        let mut w = World::new(&scaling, &[("target-tracking", module("target-tracking"))]);
        let other = |(name, query): &(&str, &str)| {
            let mut other = w.job.clone();
            (other.key.name, other.uid) = ((*name).to_owned(), (*name).to_owned());
            other.scaling.as_mut().unwrap().config = config(query).to_string();
            other
        };
        let all: Vec<JobSpec> = others.iter().map(other).chain([w.job.clone()]).collect();
        let mut signals = SignalSet { at: NOW, ..SignalSet::default() };
        signals.claims = w.cache.claims(&all, &w.policies, NOW);
        // The others are not due.
        let wants = w.cache.collect([&w.job], &w.policies, NOW);
        assert_eq!(questioned(&wants), BTreeSet::from(["team"]));
        for (id, _) in wants {
            let sample = Sample { value: 40.0, at: Time(NOW.0 - 5000) };
            let data = SignalData {
                per_namespace: [("team".to_string(), sample)].into(),
                healthy_since: Some(LONG_AGO),
                ..SignalData::default()
            };
            signals.signals.insert(id, data);
        }
        let d = w.decide_by(&signals).decision;
        settle(&w.job, &mut w.state, &mut w.memory, &d, None, NOW);
        let active = w.state.conditions.into_iter().find(|c| c.kind == ConditionKind::ScalingActive).unwrap();
        (d.target, active.status, active.message)
    };
    assert_eq!(target("sum(q)", &[]).0, 4, "alone its backlog is its own");
    for same in ["sum(q)", "sum( q )", "sum(q{})"] {
        let (size, is_active, message) = target("sum(q)", &[("other", same)]);
        assert_eq!((size, is_active), (2, false), "held by {same}");
        assert!(message.contains("the job \"other\" of this namespace has the same query"), "{message}");
    }
    let own = "sum(q{run=\"$job\"})";
    assert_eq!(target(own, &[("other", own)]).0, 4);
}

#[test]
fn a_size_by_hand_asks_nobody() {
    let mut w = World::new(&json!({"mode": "Off"}), &[]);
    let evaluated = w.decide();
    assert_eq!((evaluated.decision.target, evaluated.input.is_none()), (2, true));
    assert!(evaluated.decision.failure.is_none());
}

#[test]
fn a_placement_policy_that_can_not_answer_is_told_once_and_the_size_is_decided_all_the_same() {
    let modules = [("hpa", hpa()), ("spread", module("spread"))];
    let mut world = World::new(&json!({"metrics": metrics()}), &modules);
    let told = |world: &mut World, placement: &Value| {
        let placement: eto_api::PlacementPolicy = serde_json::from_value(placement.clone()).unwrap();
        world.job.placement = Some(eto_engine::job::PlacementSpec {
            module: placement.module,
            config: placement.config.map_or_else(|| "{}".to_string(), |c| c.to_string()),
            mode: eto_engine::job::Mode::Auto,
        });
        let before = world.memory.last.clone();
        let decision = world.decide().decision;
        let settled = settle(&world.job, &mut world.state, &mut world.memory, &decision, before.as_ref(), NOW);
        let healthy = world.state.conditions.iter().find(|c| c.kind == ConditionKind::PolicyHealthy).unwrap();
        let events = settled.events.iter().filter(|e| e.reason == EventReason::PolicyFailed).count();
        (decision.answered, healthy.status, healthy.reason, healthy.message.clone(), events)
    };
    let (answered, healthy, reason, message, events) = told(&mut world, &json!({"module": "spreat"}));
    assert_eq!((answered, healthy, reason, events), (true, false, ConditionReason::PolicyMissing, 1));
    assert!(message.contains("did you mean `spread`"), "{message}");
    assert_eq!(told(&mut world, &json!({"module": "spreat"})).4, 0, "told once");
    let wrong = told(&mut world, &json!({"module": "spread", "config": {"acros": "zone"}}));
    assert_eq!((wrong.1, wrong.2, wrong.4), (false, ConditionReason::InvalidConfig, 1), "{}", wrong.3);
    let good = json!({"module": "spread"});
    assert_eq!(told(&mut world, &good).2, ConditionReason::PolicyAnswers);
    // It failed when it was asked last: until there is another version of it, or of the job.
    let id = world.policies.placement("spread").unwrap().id().clone();
    let failure = CallFailure { kind: FailureKind::Trap, message: "at src/lib.rs:3".into() };
    let asked = Asked { policy: Some(&id), generation: world.job.generation, apply: true, fuel: 0, now: NOW };
    note(&mut world.memory.placement, asked, Err(&failure), None);
    let failed = told(&mut world, &good);
    assert_eq!((failed.1, failed.2, failed.4), (false, ConditionReason::PolicyFailed, 1), "{}", failed.3);
    world.job.generation += 1;
    assert_eq!(told(&mut world, &good).2, ConditionReason::PolicyAnswers);
}
