//! Nodes are left out where the volumes of a job's claims can't be reached.

use std::collections::{BTreeMap, HashSet};

use eto_engine::contract::WorkerRequest;
use eto_engine::observe::Node;
use eto_engine::placement::{Candidates, Constraints, Requirement, Reservations, Term, fits, prefilter};
use proptest::prelude::*;

const ONE: WorkerRequest = WorkerRequest { cpu: 1.0, memory: 0.0, gpus: 0.0 };

fn node(name: &str, labels: &[(&str, &str)], cpu: f64) -> Node {
    Node {
        name: name.into(),
        labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        taints: vec![],
        unschedulable: false,
        ready: true,
        allocatable: WorkerRequest { cpu, ..WorkerRequest::default() },
        requested: WorkerRequest::default(),
    }
}

fn r(key: &str, operator: &str, values: &[&str]) -> Requirement {
    Requirement { key: key.into(), operator: operator.into(), values: values.iter().map(|v| (*v).to_owned()).collect() }
}

fn of(labels: Vec<Requirement>) -> Term {
    Term { labels, fields: vec![] }
}

fn on(name: &str) -> Term {
    Term { labels: vec![], fields: vec![r("metadata.name", "In", &[name])] }
}

fn filter<'a>(nodes: &'a [Node], constraints: &Constraints, own: &[&str]) -> Candidates<'a> {
    let own: HashSet<&str> = own.iter().copied().collect();
    prefilter(nodes, constraints, &ONE, &Reservations::default(), &own)
}

fn names<'a>(candidates: &Candidates<'a>) -> Vec<&'a str> {
    candidates.nodes.iter().map(|n| n.name.as_str()).collect()
}

#[test]
fn each_volume_must_be_in_reach_by_one_of_its_terms() {
    let nodes = [
        node("a", &[("zone", "a"), ("disks", "2")], 4.0),
        node("b", &[("zone", "b"), ("disks", "9")], 4.0),
        node("c", &[("zone", "c")], 4.0),
    ];
    let zones = |zones: &[&str]| vec![of(vec![r("zone", "In", zones)])];
    for (volumes, want) in [
        (vec![], ["a", "b", "c"].as_slice()),
        (vec![zones(&["a", "b"])], &["a", "b"]),
        (vec![zones(&["a", "b"]), zones(&["b", "c"])], &["b"]),
        (vec![zones(&["a"]), zones(&["b"])], &[]),
        (vec![vec![zones(&["a"]).remove(0), zones(&["c"]).remove(0)]], &["a", "c"]),
        (vec![vec![of(vec![r("disks", "Gt", &["3"])])]], &["b"]),
        (vec![vec![of(vec![r("disks", "Lt", &["3"])])]], &["a"]),
        (vec![vec![of(vec![r("disks", "Exists", &[]), r("zone", "NotIn", &["a"])])]], &["b"]),
        (vec![vec![of(vec![r("disks", "DoesNotExist", &[])])]], &["c"]),
        (vec![vec![on("c")]], &["c"]),
        (vec![vec![]], &[]),
    ] {
        let constraints = Constraints { volumes: volumes.clone(), ..Constraints::default() };
        assert_eq!(names(&filter(&nodes, &constraints, &[])), want, "{volumes:?}");
    }
    let user = Constraints {
        node_selector: BTreeMap::from([("zone".to_owned(), "a".to_owned())]),
        volumes: vec![zones(&["b"])],
        ..Constraints::default()
    };
    assert!(names(&filter(&nodes, &user, &[])).is_empty(), "the user's selector holds beside the volumes'");
}

#[test]
fn workers_that_must_share_a_node_are_shown_the_roomiest() {
    let nodes = [node("a", &[], 2.0), node("b", &[], 6.0), node("c", &[], 6.0), node("d", &[], 0.5)];
    let together = Constraints { together: true, ..Constraints::default() };
    let all = filter(&nodes, &together, &[]);
    assert_eq!((names(&all), fits(&all, &ONE)), (vec!["b"], 6));
    let all = filter(&nodes, &together, &["a"]);
    assert_eq!(
        (names(&all), fits(&all, &ONE)),
        (vec!["a", "b"], 6),
        "a node with members is spoken of, and offers nothing"
    );
    let here = Constraints { volumes: vec![vec![on("c")]], ..together };
    assert_eq!(names(&filter(&nodes, &here, &[])), ["c"]);
    assert!(names(&filter(&[], &here, &[])).is_empty());
}

/// What a requirement of core/v1 means, by its definition.
fn holds(node: &Node, r: &Requirement, field: bool) -> bool {
    let value = if field { Some(&node.name).filter(|_| r.key == "metadata.name") } else { node.labels.get(&r.key) };
    if field && value.is_none() {
        return false;
    }
    let number = |s: &String| s.parse::<i64>().ok();
    match (r.operator.as_str(), value) {
        ("In", Some(v)) => r.values.contains(v),
        ("NotIn", Some(v)) => !r.values.contains(v),
        ("NotIn" | "DoesNotExist", None) | ("Exists", Some(_)) => true,
        ("Gt" | "Lt", Some(v)) => match (number(v), r.values.first().and_then(number)) {
            (Some(v), Some(bound)) => (v > bound) == (r.operator == "Gt") && v != bound,
            _ => false,
        },
        _ => false,
    }
}

fn requirement() -> impl Strategy<Value = Requirement> {
    let operator = prop::sample::select(vec!["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]);
    let key = prop::sample::select(vec!["zone", "disks", "metadata.name"]);
    (key, operator, prop::collection::vec(prop::sample::select(vec!["a", "b", "3", "5"]), 0..3))
        .prop_map(|(key, operator, values)| r(key, operator, &values))
}

fn term() -> impl Strategy<Value = Term> {
    let list = || prop::collection::vec(requirement(), 0..3);
    (list(), list()).prop_map(|(labels, fields)| Term { labels, fields })
}

fn some_nodes() -> impl Strategy<Value = Vec<Node>> {
    let value = || prop::option::of(prop::sample::select(vec!["a", "b", "3", "4", "7"]));
    prop::collection::vec((value(), value()), 0..6).prop_map(|all| {
        let made = all.into_iter().zip(["a", "b", "c", "3", "5", "n"]).map(|((zone, disks), name)| {
            let labels: Vec<(&str, &str)> =
                [("zone", zone), ("disks", disks)].into_iter().filter_map(|(k, v)| Some((k, v?))).collect();
            node(name, &labels, 4.0)
        });
        made.collect()
    })
}

proptest! {
    #[test]
    fn volumes_are_met_exactly_where_kubernetes_would_say_so(
        nodes in some_nodes(),
        volumes in prop::collection::vec(prop::collection::vec(term(), 0..3), 0..3),
    ) {
        let constraints = Constraints { volumes: volumes.clone(), ..Constraints::default() };
        let kept = filter(&nodes, &constraints, &[]);
        let want: Vec<&str> = nodes
            .iter()
            .filter(|n| {
                volumes.iter().all(|terms| terms.iter().any(|t| {
                    !(t.labels.is_empty() && t.fields.is_empty())
                        && t.labels.iter().all(|r| holds(n, r, false))
                        && t.fields.iter().all(|r| holds(n, r, true))
                }))
            })
            .map(|n| n.name.as_str())
            .collect();
        prop_assert_eq!(names(&kept), want);
        let one = filter(&nodes, &Constraints { together: true, ..constraints }, &[]);
        prop_assert_eq!(one.nodes.len(), usize::from(!kept.nodes.is_empty()));
        prop_assert!(names(&one).iter().all(|n| names(&kept).contains(n)));
    }
}
