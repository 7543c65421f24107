use std::collections::{BTreeMap, HashMap, HashSet};

use eto_engine::contract::{KeptState, MAX_STATE, NONE, Place, PlacementDecision, PlacementInput, WorkerRequest};
use eto_engine::job::{Mode, PlacementSpec};
use eto_engine::observe::{Node, Taint};
use eto_engine::placement::{
    Ask, Candidates, Constraints, Need, NodeChoice, Requirement, Reservations, Term, Toleration, fits, input,
    input_for, keep, need, prefilter, settle,
};
use eto_engine::plan::{Action, PlanFacts, plan};
use eto_engine::policy::{Answer, Asked, CallFailure, FailureKind, PlacementPolicy, PolicyId};
use eto_engine::state::{JobState, Kept};

use crate::common::*;

const ONE: WorkerRequest = WorkerRequest { cpu: 1.0, memory: 1e9, gpus: 1.0 };

fn node(name: &str, gpus: f64, used: f64) -> Node {
    let part = |n: f64| WorkerRequest { cpu: n * 4.0, memory: n * 1e10, gpus: n };
    Node {
        name: name.into(),
        labels: BTreeMap::from([("zone".into(), format!("z-{}", &name[..1])), ("gpu".into(), "8".into())]),
        taints: vec![],
        unschedulable: false,
        ready: true,
        allocatable: part(gpus),
        requested: part(used),
    }
}

fn names<'a>(c: &Candidates<'a>) -> Vec<&'a str> {
    c.nodes.iter().map(|n| n.name.as_str()).collect()
}

fn filter<'a>(nodes: &'a [Node], constraints: &Constraints) -> Vec<&'a str> {
    names(&prefilter(nodes, constraints, &ONE, &Reservations::default(), &HashSet::new()))
}

#[test]
fn full_sick_closed_and_tainted_nodes_are_left_out() {
    let mut nodes: Vec<Node> = ["a", "b", "c", "d", "e"].iter().map(|n| node(n, 2.0, 0.0)).collect();
    nodes[0].ready = false;
    nodes[1].unschedulable = true;
    nodes[2].requested.gpus = 1.5;
    nodes[3].taints = vec![Taint { key: "gpu".into(), value: "yes".into(), effect: "NoSchedule".into() }];
    nodes[4].taints = vec![Taint { key: "x".into(), value: String::new(), effect: "PreferNoSchedule".into() }];
    let mut constraints = Constraints::default();
    assert_eq!(filter(&nodes, &constraints), ["e"]);
    let toleration = |key: Option<&str>, exists, value: Option<&str>, effect: Option<&str>| Toleration {
        key: key.map(Into::into),
        exists,
        value: value.map(Into::into),
        effect: effect.map(Into::into),
    };
    for (t, want) in [
        (toleration(Some("gpu"), true, None, None), true),
        (toleration(Some("gpu"), false, Some("yes"), Some("NoSchedule")), true),
        (toleration(Some("gpu"), false, Some("no"), None), false),
        (toleration(Some("gpu"), true, None, Some("NoExecute")), false),
        (toleration(None, true, None, None), true),
        (toleration(Some("other"), true, None, None), false),
    ] {
        constraints.tolerations = vec![t.clone()];
        assert_eq!(filter(&nodes, &constraints).contains(&"d"), want, "{t:?}");
    }
    let own = HashSet::from(["a", "c"]);
    let kept = prefilter(&nodes, &Constraints::default(), &ONE, &Reservations::default(), &own);
    assert_eq!(names(&kept), ["a", "c", "e"], "nodes with members stay");
    assert_eq!(fits(&kept, &ONE), 2, "but offer nothing");
}

#[test]
fn selectors_and_terms_are_those_of_kubernetes() {
    let nodes = [node("a", 2.0, 0.0), node("b", 2.0, 0.0)];
    let r = |key: &str, operator: &str, values: &[&str]| Requirement {
        key: key.into(),
        operator: operator.into(),
        values: values.iter().map(|v| (*v).to_owned()).collect(),
    };
    let term = |labels: Vec<Requirement>| Term { labels, fields: vec![] };
    let with = |terms: Vec<Term>| Constraints { affinity: Some(terms), ..Constraints::default() };
    let both = ["a", "b"].as_slice();
    for (terms, want) in [
        (vec![], [].as_slice()),
        (vec![Term::default()], &[]),
        (vec![term(vec![r("zone", "In", &["z-a", "z-x"])])], &["a"]),
        (vec![term(vec![r("zone", "NotIn", &["z-a"])])], &["b"]),
        (vec![term(vec![r("none", "NotIn", &["z-a"])])], both),
        (vec![term(vec![r("zone", "Exists", &[]), r("none", "DoesNotExist", &[])])], both),
        (vec![term(vec![r("gpu", "Gt", &["7"])])], both),
        (vec![term(vec![r("gpu", "Lt", &["8"])])], &[]),
        (vec![term(vec![r("gpu", "Near", &["8"])])], &[]),
        (vec![term(vec![r("zone", "In", &["z-a"])]), term(vec![r("zone", "In", &["z-b"])])], both),
        (vec![Term { labels: vec![], fields: vec![r("metadata.name", "In", &["b"])] }], &["b"]),
    ] {
        assert_eq!(filter(&nodes, &with(terms.clone())), want, "{terms:?}");
    }
    let selector = BTreeMap::from([("zone".to_owned(), "z-b".to_owned())]);
    assert_eq!(filter(&nodes, &Constraints { node_selector: selector, ..Constraints::default() }), ["b"]);
}

#[test]
fn room_is_counted_by_the_scarcest() {
    let nodes = [node("a", 8.0, 3.0), node("b", 8.0, 7.5)];
    let all = prefilter(&nodes, &Constraints::default(), &ONE, &Reservations::default(), &HashSet::new());
    assert_eq!((names(&all), fits(&all, &ONE)), (vec!["a"], 5));
    assert_eq!(fits(&all, &WorkerRequest::default()), NONE, "nothing is requested");
    let mut reservations = Reservations::default();
    reservations.reserve("a", &ONE);
    reservations.reserve("a", &ONE);
    let less = prefilter(&nodes, &Constraints::default(), &ONE, &reservations, &HashSet::new());
    assert_eq!(fits(&less, &ONE), 3);
    // 1.0 - 0.9 is a little less than 0.1.
    let tight = Node { requested: WorkerRequest { cpu: 0.9, memory: 0.0, gpus: 0.0 }, ..node("a", 0.25, 0.0) };
    let tenth = WorkerRequest { cpu: 0.1, memory: 0.0, gpus: 0.0 };
    let nodes = [tight];
    let all = prefilter(&nodes, &Constraints::default(), &tenth, &Reservations::default(), &HashSet::new());
    assert_eq!(fits(&all, &tenth), 1);
}

fn placed_job() -> eto_engine::job::JobSpec {
    let mut spec = job(1, 3, 4);
    spec.placement = Some(PlacementSpec { module: "spread".into(), config: "{}".into(), mode: Mode::Auto });
    spec
}

fn question(candidates: &Candidates<'_>, add: &[u32], drop: u32) -> PlacementInput {
    let spec = placed_job();
    let pods = pods(3);
    input(&Ask {
        state: &running(&spec, 3),
        job: &spec,
        memory: &memory(),
        pods: &pods,
        candidates,
        need: &Need { add: add.to_vec(), drop },
        request: ONE,
        zone_label: "zone",
        rack_label: "rack",
        faults: &HashMap::from([("node-1".to_owned(), 2)]),
        now: NOW,
    })
}

#[test]
fn the_question_speaks_of_nodes_by_position() {
    let nodes = [node("a", 2.0, 0.0), node("node-1", 2.0, 1.0), node("apple", 2.0, 2.0)];
    let own = HashSet::from(["node-1"]);
    let candidates = prefilter(&nodes, &Constraints::default(), &ONE, &Reservations::default(), &own);
    let q = question(&candidates, &[3], 0);
    assert_eq!(q.nodes.free_gpus, [2.0, 1.0]);
    assert_eq!((q.nodes.zone, q.nodes.rack), (vec![0, 1], vec![NONE, NONE]));
    assert_eq!((q.nodes.members, q.nodes.faults), (vec![0, 1], vec![0, 2]));
    assert_eq!(q.members.node, [NONE, 1, NONE]);
    assert_eq!(q.members.protected, [true, false, false]);
}

#[test]
fn one_bad_element_and_nothing_of_the_answer_counts() {
    let nodes = [node("a", 1.0, 0.0), node("b", 8.0, 0.0)];
    let candidates = prefilter(&nodes, &Constraints::default(), &ONE, &Reservations::default(), &HashSet::new());
    let q = question(&candidates, &[3, 4], 1);
    let place = |worker, node| Place { worker, node, required: false };
    let answer = |places, victims| PlacementDecision { places, victims, reasons: vec![], state: None };
    for (bad, what) in [
        (answer(vec![place(9, 0)], vec![]), "not one of those to place"),
        (answer(vec![place(3, 7)], vec![]), "not in the list"),
        (answer(vec![place(3, 0), place(4, 0)], vec![]), "no room for 2 workers"),
        (answer(vec![place(3, 1), place(3, 1)], vec![]), "placed twice"),
        (answer(vec![], vec![0]), "the master"),
        (answer(vec![], vec![8]), "not a member"),
        (answer(vec![], vec![1, 1]), "named twice"),
    ] {
        let mut reservations = Reservations::default();
        let failure = settle(&q, &candidates, &bad, &mut reservations).unwrap_err();
        assert!(failure.message.contains(what), "{}", failure.message);
        assert_eq!(reservations, Reservations::default());
    }
    let mut reservations = Reservations::default();
    let good = answer(vec![place(3, 0), place(4, 1)], vec![2, 1]);
    let settled = settle(&q, &candidates, &good, &mut reservations).unwrap();
    assert_eq!(settled.places[&4], NodeChoice { node: "b".into(), required: false });
    assert_eq!(settled.victims, [2], "one was asked for");
    assert_eq!((reservations.on("a"), reservations.on("b")), (ONE, ONE));
}

#[test]
fn the_plan_follows_the_answer() {
    let spec = placed_job();
    let facts = PlanFacts::default();
    let draft = plan(&spec, &JobState::default(), &[], &facts, NOW);
    let asked = need(&spec, &JobState::default(), &draft).unwrap();
    assert_eq!(asked, Need { add: vec![0, 1, 2], drop: 0 });
    let places = BTreeMap::from([(1, NodeChoice { node: "b".into(), required: true })]);
    let facts = PlanFacts { places: Some(&places), ..facts };
    let done = plan(&spec, &JobState::default(), &[], &facts, NOW);
    let node_of = |index| {
        done.actions.iter().find_map(|a| match a {
            Action::CreatePod(p) if p.index == index => Some(p.node.clone()),
            _ => None,
        })
    };
    assert_eq!(node_of(1).unwrap().unwrap().node, "b");
    assert_eq!(node_of(2), Some(None));
    assert!(done.state.round.as_ref().unwrap().required_nodes);
    // A shrink asks for victims, once.
    let mut state = running(&spec, 3);
    state.target = 2;
    let pods = pods(3);
    let draft = plan(&spec, &state, &pods, &PlanFacts::default(), NOW);
    assert_eq!(need(&spec, &state, &draft), Some(Need { add: vec![], drop: 1 }));
    let facts = PlanFacts { victims: &[1], ..PlanFacts::default() };
    let done = plan(&spec, &state, &pods, &facts, NOW);
    assert_eq!(done.state.victims.iter().map(|v| v.index).collect::<Vec<_>>(), [1]);
    assert_eq!(done.state.round.as_ref().unwrap().gaps, [1]);
    assert_eq!(need(&spec, &done.state, &plan(&spec, &done.state, &pods, &PlanFacts::default(), NOW)), None);
}

/// A placement policy of a name and a layout of its state; an older layout it carries over, but not the very first.
struct Keeper(PolicyId, u32);

impl Keeper {
    fn new(name: &str, digest: &str, version: u32) -> Self {
        Keeper(PolicyId { name: name.into(), version: "1".into(), digest: digest.into() }, version)
    }
}

impl PlacementPolicy for Keeper {
    fn id(&self) -> &PolicyId {
        &self.0
    }

    fn state_version(&self) -> u32 {
        self.1
    }

    fn place(&self, input: &PlacementInput) -> Asked<PlacementDecision> {
        let mut state = input.state.clone().map(|s| s.bytes).unwrap_or_default();
        state.push(u8::try_from(self.1).unwrap());
        let value = PlacementDecision { places: vec![], victims: vec![], reasons: vec![], state: Some(state) };
        Ok(Answer { value, fuel: 1 })
    }

    fn migrate(&self, version: u32, state: &[u8]) -> Asked<Vec<u8>> {
        if version == 1 {
            return Err(CallFailure { kind: FailureKind::Internal, message: "too old".into() });
        }
        Ok(Answer { value: [&[100], state].concat(), fuel: 1 })
    }
}

#[test]
fn a_placement_policy_is_given_what_it_kept() {
    let spec = placed_job();
    let (state, pods, faults) = (running(&spec, 3), pods(3), HashMap::new());
    let (candidates, need) = (Candidates::default(), Need { add: vec![3], drop: 0 });
    let mut memory = memory();
    let mut ask = |policy: &Keeper| {
        let asked = Ask {
            state: &state,
            job: &spec,
            memory: &memory,
            pods: &pods,
            candidates: &candidates,
            need: &need,
            request: ONE,
            zone_label: "zone",
            rack_label: "rack",
            faults: &faults,
            now: NOW,
        };
        let input = input_for(&asked, policy);
        let answer = policy.place(&input).unwrap().value;
        if let Some(kept) = keep(policy, &answer) {
            memory.placement.kept = kept;
        }
        (input.state.map(|s| s.bytes), memory.placement.kept.clone())
    };
    let near = |digest: &str, version| Keeper::new("near", digest, version);
    assert_eq!(ask(&near("a", 2)).0, None, "at first there is none");
    assert_eq!(ask(&near("a", 2)).0, Some(vec![2]));
    assert_eq!(ask(&near("b", 2)).0, Some(vec![2, 2]), "another digest of the same name: a hot swap");
    assert_eq!(ask(&near("c", 3)).0, Some(vec![100, 2, 2, 2]), "another layout: carried over");
    let before = ask(&near("c", 0)).1;
    assert_eq!(
        before.state.map(|s| s.version),
        Some(3),
        "one that keeps no state is not given any, and leaves what is there"
    );
    assert_eq!(ask(&Keeper::new("far", "a", 3)).0, None, "another policy is not given it");
    let first = Kept { state: Some(KeptState { version: 1, bytes: vec![7] }), of: Some("near".into()) };
    memory.placement.kept = first;
    let asked = Ask {
        state: &state,
        job: &spec,
        memory: &memory,
        pods: &pods,
        candidates: &candidates,
        need: &need,
        request: ONE,
        zone_label: "zone",
        rack_label: "rack",
        faults: &faults,
        now: NOW,
    };
    assert_eq!(input_for(&asked, &near("c", 3)).state, None, "what can't be carried over is dropped");
}

#[test]
fn a_state_that_is_too_large_is_a_bad_answer() {
    let candidates = Candidates::default();
    let q = question(&candidates, &[3], 0);
    let with =
        |length| PlacementDecision { places: vec![], victims: vec![], reasons: vec![], state: Some(vec![0; length]) };
    let settled = |length| settle(&q, &candidates, &with(length), &mut Reservations::default());
    assert!(settled(MAX_STATE).is_ok());
    let failure = settled(MAX_STATE + 1).unwrap_err();
    assert!(failure.kind == FailureKind::BadAnswer && failure.message.contains("bytes of state"), "{failure}");
}
