#![allow(clippy::unwrap_used)]
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{Candidate, Member, Ports, ReplicaType, ReplicaTypes};

fn round(addresses: &[&str], processes: u32) -> Round {
    let members = (0u32..).zip(addresses).map(|(index, a)| Candidate {
        member: Member { index, address: (*a).to_owned(), uid: None, processes },
        healthy_since_ms: None,
    });
    Round::plan("team-a/demo", "uid-1", 3, members.collect(), Ports::default()).unwrap()
}

fn env(framework: FrameworkKind, round: &Round, rank: usize) -> BTreeMap<String, String> {
    member_env(framework, round, rank).into_iter().collect()
}

fn process(framework: FrameworkKind, round: &Round, rank: usize, local: u32) -> BTreeMap<String, String> {
    process_env(framework, round, rank, local).into_iter().collect()
}

fn has(e: &BTreeMap<String, String>, want: &[(&str, &str)]) {
    for (key, value) in want {
        assert_eq!(e.get(*key).map(String::as_str), Some(*value), "{key}");
    }
}

const ALL: [FrameworkKind; 4] =
    [FrameworkKind::PyTorch, FrameworkKind::TensorFlow, FrameworkKind::Jax, FrameworkKind::Custom];

#[test]
fn torch_with_one_process() {
    let e = env(FrameworkKind::PyTorch, &round(&["demo-worker-0.demo", "demo-worker-1.demo"], 1), 1);
    let want = [
        ("MASTER_ADDR", "demo-worker-0.demo"),
        ("MASTER_PORT", "29503"),
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "0"),
        ("PET_NNODES", "2"),
        ("PET_NODE_RANK", "1"),
        ("PET_RDZV_ID", "uid-1-3"),
        ("PET_RDZV_ENDPOINT", "demo-worker-0.demo:29503"),
        ("ETO_HOSTS", "demo-worker-0.demo,demo-worker-1.demo"),
        ("ETO_JOB", "team-a/demo"),
        ("ETO_ROUND", "3"),
        ("ETO_ROUND_ID", "uid-1-3"),
    ];
    has(&e, &want);
}

#[test]
fn torch_with_four_processes_leaves_local_ranks_to_torchrun() {
    let e = env(FrameworkKind::PyTorch, &round(&["a", "b"], 4), 1);
    assert_eq!((e["RANK"].as_str(), e["WORLD_SIZE"].as_str(), e["PET_NPROC_PER_NODE"].as_str()), ("1", "8", "4"));
    assert!(!e.contains_key("LOCAL_RANK"));
}

#[test]
fn a_torch_process_among_four_gets_what_torchrun_would_give() {
    let e = process(FrameworkKind::PyTorch, &round(&["a", "b"], 4), 1, 2);
    let want = [
        ("RANK", "6"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "2"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("GROUP_RANK", "1"),
        ("GROUP_WORLD_SIZE", "2"),
        ("ETO_PROCESS_RANK", "6"),
        ("ETO_PROCESS_COUNT", "8"),
        ("ETO_RANK", "1"),
    ];
    has(&e, &want);
}

#[test]
fn a_single_process_is_told_the_same_as_its_member() {
    let r = round(&["a", "b", "c"], 1);
    for f in ALL {
        let (member, process) = (env(f, &r, 2), process(f, &r, 2, 0));
        for (key, value) in member {
            assert_eq!(process.get(&key), Some(&value), "{f:?} {key}");
        }
    }
}

#[test]
fn tensorflow_lists_all_workers_and_this_task() {
    let e = env(FrameworkKind::TensorFlow, &round(&["a", "b"], 1), 1);
    let config: serde_json::Value = serde_json::from_str(&e["TF_CONFIG"]).unwrap();
    assert_eq!(config["cluster"]["worker"], json!(["a:29503", "b:29503"]));
    assert_eq!(config["task"], json!({"type": "worker", "index": 1}));
    let one_machine = env(FrameworkKind::TensorFlow, &round(&["127.0.0.1", "127.0.0.1"], 1), 0);
    assert!(one_machine["TF_CONFIG"].contains(r#"["127.0.0.1:29503","127.0.0.1:29504"]"#));
}

fn types(all: &[(&str, u32)]) -> ReplicaTypes {
    ReplicaTypes(all.iter().map(|(name, n)| ReplicaType { name: (*name).to_owned(), replicas: *n }).collect())
}

fn tf_config(round: &Round, rank: usize) -> serde_json::Value {
    serde_json::from_str(&env(FrameworkKind::TensorFlow, round, rank)["TF_CONFIG"]).unwrap()
}

#[test]
fn tensorflow_lists_each_type_and_tells_the_evaluator_of_a_cluster_that_it_is_not_in() {
    let all = types(&[("chief", 1), ("ps", 2), ("evaluator", 1)]);
    let r = round(&["c", "p0", "p1", "e", "w0", "w1"], 1).with_types(&all);
    let cluster = json!({"chief": ["c:29503"], "ps": ["p0:29503", "p1:29503"], "worker": ["w0:29503", "w1:29503"]});
    let tasks = [("chief", 0), ("ps", 0), ("ps", 1), ("evaluator", 0), ("worker", 0), ("worker", 1)];
    for (rank, (of, index)) in tasks.into_iter().enumerate() {
        let config = tf_config(&r, rank);
        assert_eq!(config["cluster"], cluster);
        assert_eq!(config["task"], json!({"type": of, "index": index}));
        assert_eq!(config["environment"], "cloud");
    }
    let one_machine = round(&["127.0.0.1"; 6], 1).with_types(&all);
    let ports = json!({"chief": ["127.0.0.1:29503"], "ps": ["127.0.0.1:29504", "127.0.0.1:29505"],
        "worker": ["127.0.0.1:29507", "127.0.0.1:29508"]});
    assert_eq!(tf_config(&one_machine, 0)["cluster"], ports);
}

#[test]
fn servers_keep_their_place_whoever_coordinates_and_workers_have_no_gaps() {
    // Worker 3 has been there longest, worker 2 is gone.
    let candidates = [0, 1, 3, 4].map(|index| Candidate {
        member: Member { index, address: format!("h{index}"), uid: None, processes: 1 },
        healthy_since_ms: (index == 3).then_some(1),
    });
    let r = Round::plan("team-a/demo", "uid-1", 3, candidates.into(), Ports::default()).unwrap();
    let r = r.with_types(&types(&[("ps", 2)]));
    let cluster = json!({"ps": ["h0:29503", "h1:29503"], "worker": ["h3:29503", "h4:29503"]});
    let of = |rank| tf_config(&r, rank)["task"].clone();
    assert_eq!(tf_config(&r, 0)["cluster"], cluster);
    assert_eq!((of(0), of(1)), (json!({"type": "worker", "index": 0}), json!({"type": "ps", "index": 0})));
    assert_eq!((of(2), of(3)), (json!({"type": "ps", "index": 1}), json!({"type": "worker", "index": 1})));
    has(
        &env(FrameworkKind::Custom, &r, 3),
        &[
            ("ETO_RANK", "3"),
            ("ETO_REPLICA_TYPE", "worker"),
            ("ETO_REPLICA_TYPE_INDEX", "1"),
            ("ETO_REPLICA_TYPES", "worker,ps,ps,worker"),
            ("ETO_HOSTS", "h3,h0,h1,h4"),
        ],
    );
}

#[test]
fn a_round_of_workers_alone_is_told_as_before() {
    let r = round(&["a", "b"], 1);
    assert!(env(FrameworkKind::Custom, &r, 0).keys().all(|name| !name.starts_with("ETO_REPLICA")));
    let text = serde_json::to_string(&r).unwrap();
    assert!(!text.contains("types"), "{text}");
    assert_eq!(serde_json::from_str::<Round>(&text).unwrap(), r);
    let with = r.with_types(&types(&[("ps", 1)]));
    assert_eq!(serde_json::from_str::<Round>(&serde_json::to_string(&with).unwrap()).unwrap(), with);
}

#[test]
fn a_tensorflow_member_is_one_process() {
    let r = round(&["a", "b"], 2);
    has(&process(FrameworkKind::TensorFlow, &r, 1, 0), &[("ETO_PROCESS_RANK", "1"), ("ETO_PROCESS_COUNT", "2")]);
    assert_eq!(process_env(FrameworkKind::TensorFlow, &r, 1, 1), Vec::new());
}

#[test]
fn jax_gets_both_families_of_names() {
    let e = env(FrameworkKind::Jax, &round(&["fd00::1", "fd00::2"], 1), 0);
    assert_eq!(e["JAX_COORDINATOR_ADDRESS"], "[fd00::1]:29503");
    assert_eq!((e["JAX_NUM_PROCESSES"].as_str(), e["PROCESS_ID"].as_str()), ("2", "0"));
    assert_eq!((e["COORDINATOR_ADDRESS"].as_str(), e["COORDINATOR_PORT"].as_str()), ("fd00::1", "29503"));
    assert!(!e.contains_key("JAX_LOCAL_DEVICE_IDS"));
}

#[test]
fn jax_counts_processes_where_a_member_has_several() {
    let e = process(FrameworkKind::Jax, &round(&["a", "b"], 2), 1, 0);
    has(&e, &[("JAX_NUM_PROCESSES", "4"), ("JAX_PROCESS_ID", "2"), ("JAX_LOCAL_DEVICE_IDS", "0")]);
}

#[test]
fn a_stranger_gets_no_variables() {
    let r = round(&["a", "b"], 2);
    for f in ALL {
        assert_eq!(member_env(f, &r, 2), Vec::new());
        assert_eq!(process_env(f, &r, 2, 0), Vec::new());
        assert_eq!(process_env(f, &r, 1, 2), Vec::new());
    }
}

#[test]
fn no_variable_is_given_twice_and_defaults_are_among_them() {
    let r = round(&["a", "b"], 2);
    for f in ALL {
        for env in [member_env(f, &r, 1), process_env(f, &r, 1, 1)] {
            let names: BTreeSet<&str> = env.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names.len(), env.len(), "{f:?}: {env:?}");
        }
    }
    assert!(is_default("PYTHONUNBUFFERED") && !is_default("RANK") && !is_default("TF_CONFIG"));
}

proptest! {
    /// Whatever the members run, the processes have dense ids, and each framework is told the same of them.
    #[test]
    fn process_ids_are_dense(counts in proptest::collection::vec(0u32..5, 1..6)) {
        let members = (0u32..).zip(&counts).map(|(index, n)| Candidate {
            member: Member { index, address: format!("host-{index}"), uid: None, processes: *n },
            healthy_since_ms: None,
        });
        let r = Round::plan("a/b", "u", 1, members.collect(), Ports::default()).unwrap();
        let mut ids = Vec::new();
        for (rank, m) in r.members.iter().enumerate() {
            for local in 0..m.processes.max(1) {
                let torch = process(FrameworkKind::PyTorch, &r, rank, local);
                let jax = process(FrameworkKind::Jax, &r, rank, local);
                prop_assert_eq!(&torch["RANK"], &jax["JAX_PROCESS_ID"]);
                prop_assert_eq!(&torch["WORLD_SIZE"], &r.processes().to_string());
                ids.push(torch["RANK"].parse::<u32>().unwrap());
            }
        }
        prop_assert_eq!(ids, (0..r.processes()).collect::<Vec<_>>());
    }
}

#[test]
fn a_run_is_told_what_stays_true_while_members_change() {
    let first = round(&["10.0.0.1", "10.0.0.2"], 2);
    let native = crate::Native { run: 3, min: 1, max: 4, alone: false };
    let env = |round: &Round, rank| native_env(round, rank, native).into_iter().collect::<BTreeMap<_, _>>();
    let e = env(&first, 1);
    has(
        &e,
        &[
            ("PET_NNODES", "1:4"),
            ("PET_NPROC_PER_NODE", "2"),
            ("PET_RDZV_BACKEND", "c10d"),
            ("PET_RDZV_ENDPOINT", "10.0.0.1:29503"),
            ("PET_RDZV_ID", "uid-1-3"),
            ("PET_LOCAL_ADDR", "10.0.0.2"),
            ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),
            ("ETO_ROUND", "3"),
            ("ETO_ROUND_ID", "uid-1-3"),
        ],
    );
    assert!(e["PET_RDZV_CONF"].starts_with("is_host=false,"));
    // What a static rendezvous or one set of members alone would make true.
    for name in ["PET_NODE_RANK", "PET_MASTER_ADDR", "RANK", "WORLD_SIZE", "ETO_RANK", "ETO_WORLD_SIZE", "ETO_HOSTS"] {
        assert!(!e.contains_key(name), "{name}");
    }
    // Who joins in a later round of the run finds the same.
    let later = Round { generation: 5, id: "uid-1-5".to_owned(), ..first };
    assert_eq!(env(&later, 1), e);
    assert!(native_env(&later, 2, native).is_empty());
    for name in ["PET_RDZV_CONF", "PET_MAX_RESTARTS", "PET_MONITOR_INTERVAL"] {
        assert!(is_default(name) && e.contains_key(name), "{name}");
    }
}

/// The longest string that Linux takes as one variable (`MAX_ARG_STRLEN`), its name and its end included.
const MAX_ARG_STRLEN: usize = 128 * 1024;

/// A round of so many members with the longest names that a job's pods can have: namespaces have at most 63 characters,
/// names of jobs 50.
fn widest(framework: FrameworkKind) -> Round {
    let job = "j".repeat(50);
    let address = |index: u32| format!("{job}-worker-{index}.{job}.{}.svc", "n".repeat(63));
    let members = (0..framework.max_members()).map(|index| Candidate {
        member: Member { index, address: address(index), uid: None, processes: 1 },
        healthy_since_ms: None,
    });
    Round::plan("team-a/demo", "uid-1", 3, members.collect(), Ports { base: 65000, span: 1 }).unwrap()
}

#[test]
fn no_variable_is_longer_than_a_process_can_start_with() {
    for framework in ALL {
        let round = widest(framework);
        let last = round.members.len() - 1;
        for env in [member_env(framework, &round, last), process_env(framework, &round, last, 0)] {
            let longest = env.iter().map(|(name, value)| name.len() + value.len() + 2).max().unwrap_or(0);
            assert!(longest <= MAX_ARG_STRLEN, "{framework:?}: {longest}");
            // All of it is in the object of each pod, once for each of its containers.
            let all: usize = env.iter().map(|(name, value)| name.len() + value.len()).sum();
            assert!(all <= 192 * 1024, "{framework:?}: {all}");
        }
    }
}
