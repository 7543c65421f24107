use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::Round;

/// Which variables a framework reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FrameworkKind {
    /// `torch.distributed`, started by `python` or by `torchrun` (which reads `PET_*`).
    PyTorch,
    /// `tf.distribute`, which reads `TF_CONFIG`.
    TensorFlow,
    /// `jax.distributed`.
    Jax,
    /// Anything else: the `ETO_*` variables alone.
    Custom,
}

/// The environment of the member at `rank` (position in `round.members`); empty if there is no such member.
///
/// `ETO_*` is given to every framework: `ETO_JOB` (namespace/name), `ETO_ROUND` (generation), `ETO_RANK` and
/// `ETO_WORLD_SIZE` (members, not processes), `ETO_COORDINATOR` (host:port), `ETO_HOSTS` (addresses in rank order,
/// comma-separated).
///
/// PyTorch: with one process per member `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE` and `MASTER_*` are all
/// that `python train.py` needs. With more, `RANK` is the node's rank and `WORLD_SIZE` counts processes (Kubeflow's
/// meaning), and `torchrun`, configured by `PET_*` for a static rendezvous, gives each process its own.
pub fn member_env(framework: FrameworkKind, round: &Round, rank: usize) -> Vec<(String, String)> {
    let (Some(me), Some(coordinator)) = (round.members.get(rank), round.members.get(round.coordinator)) else {
        return Vec::new();
    };
    let host = coordinator.address.as_str();
    let port = round.port.to_string();
    let endpoint = format!("{}:{port}", bracketed(host));
    let nodes = round.members.len().to_string();
    let rank_text = rank.to_string();
    let hosts: Vec<&str> = round.members.iter().map(|m| m.address.as_str()).collect();
    let mut env = vec![
        ("ETO_JOB", round.job.clone()),
        ("ETO_ROUND", round.generation.to_string()),
        ("ETO_RANK", rank_text.clone()),
        ("ETO_WORLD_SIZE", nodes.clone()),
        ("ETO_COORDINATOR", endpoint.clone()),
        ("ETO_HOSTS", hosts.join(",")),
    ];
    match framework {
        FrameworkKind::PyTorch => {
            let processes = me.processes.max(1);
            env.extend([
                ("MASTER_ADDR", host.to_owned()),
                ("MASTER_PORT", port.clone()),
                ("RANK", rank_text.clone()),
                ("WORLD_SIZE", round.processes().to_string()),
                ("PET_NNODES", nodes),
                ("PET_NPROC_PER_NODE", processes.to_string()),
                ("PET_NODE_RANK", rank_text),
                ("PET_MASTER_ADDR", host.to_owned()),
                ("PET_MASTER_PORT", port),
                ("PET_RDZV_BACKEND", "static".to_owned()),
                ("PET_RDZV_ENDPOINT", endpoint),
                ("PET_RDZV_ID", round.id.clone()),
                ("PYTHONUNBUFFERED", "1".to_owned()),
            ]);
            if processes == 1 {
                env.extend([("LOCAL_RANK", "0".to_owned()), ("LOCAL_WORLD_SIZE", "1".to_owned())]);
            }
        }
        FrameworkKind::TensorFlow => env.push(("TF_CONFIG", tf_config(round, rank))),
        FrameworkKind::Jax => env.extend([
            ("JAX_COORDINATOR_ADDRESS", endpoint),
            ("JAX_NUM_PROCESSES", nodes.clone()),
            ("JAX_PROCESS_ID", rank_text.clone()),
            ("COORDINATOR_ADDRESS", host.to_owned()),
            ("COORDINATOR_PORT", port),
            ("NUM_PROCESSES", nodes),
            ("PROCESS_ID", rank_text),
        ]),
        FrameworkKind::Custom => {}
    }
    env.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
}

/// All members are workers: without a chief, worker 0 is the chief by TensorFlow's own rule. Every worker listens, so
/// members that share one address (processes on one machine) get ports of their own.
fn tf_config(round: &Round, rank: usize) -> String {
    let shared = round.members.windows(2).any(|w| w[0].address == w[1].address);
    let workers: Vec<String> = (0u16..)
        .zip(&round.members)
        .map(|(i, m)| {
            let port = if shared { round.port.saturating_add(i) } else { round.port };
            format!("{}:{port}", bracketed(&m.address))
        })
        .collect();
    let config = json!({
        "cluster": { "worker": workers },
        "task": { "type": "worker", "index": rank },
        "environment": "cloud",
    });
    config.to_string()
}

/// An IPv6 address needs brackets before a port.
fn bracketed(host: &str) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.to_owned() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use super::*;
    use crate::{Candidate, Member, Ports};

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
        ];
        for (key, value) in want {
            assert_eq!(e.get(key).map(String::as_str), Some(value), "{key}");
        }
    }

    #[test]
    fn torch_with_four_processes_leaves_local_ranks_to_torchrun() {
        let e = env(FrameworkKind::PyTorch, &round(&["a", "b"], 4), 1);
        assert_eq!((e["RANK"].as_str(), e["WORLD_SIZE"].as_str(), e["PET_NPROC_PER_NODE"].as_str()), ("1", "8", "4"));
        assert!(!e.contains_key("LOCAL_RANK"));
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

    #[test]
    fn jax_gets_both_families_of_names() {
        let e = env(FrameworkKind::Jax, &round(&["fd00::1", "fd00::2"], 1), 0);
        assert_eq!(e["JAX_COORDINATOR_ADDRESS"], "[fd00::1]:29503");
        assert_eq!((e["JAX_NUM_PROCESSES"].as_str(), e["PROCESS_ID"].as_str()), ("2", "0"));
        assert_eq!((e["COORDINATOR_ADDRESS"].as_str(), e["COORDINATOR_PORT"].as_str()), ("fd00::1", "29503"));
    }

    #[test]
    fn a_stranger_gets_no_variables() {
        let r = round(&["a", "b"], 1);
        for f in [FrameworkKind::PyTorch, FrameworkKind::TensorFlow, FrameworkKind::Jax, FrameworkKind::Custom] {
            assert_eq!(member_env(f, &r, 2), Vec::new());
        }
    }
}
