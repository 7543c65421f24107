//! The environment of a member and of each process that it runs.

mod native;
mod tensorflow;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use native::native_env;
pub(crate) use native::run_id;

use crate::hosts::host_list;
use crate::{Member, Round};

/// Most members that a round can have. What every member is told of all of them grows with the square of their number:
/// at this many an order of an agent's round is about half a MiB, sent to each.
pub const MAX_MEMBERS: u32 = 4096;
/// Most members of a `TensorFlow` round. `TF_CONFIG` names all of them in one variable, for which Linux has 128 KiB
/// (`MAX_ARG_STRLEN`): 512 of the longest names that pods of a job can have are 96 KiB.
pub const MAX_TENSORFLOW_MEMBERS: u32 = 512;

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

impl FrameworkKind {
    /// Most members that a round of this framework can have.
    pub fn max_members(self) -> u32 {
        match self {
            FrameworkKind::TensorFlow => MAX_TENSORFLOW_MEMBERS,
            FrameworkKind::PyTorch | FrameworkKind::Jax | FrameworkKind::Custom => MAX_MEMBERS,
        }
    }
}

/// Variables that are only defaults: what the user sets stands. All others are facts of the round, and the user's own
/// have to give way.
const DEFAULTS: [&str; 6] = [
    "PYTHONUNBUFFERED",
    "JAX_CPU_COLLECTIVES_IMPLEMENTATION",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
    "PET_RDZV_CONF",
    "PET_MAX_RESTARTS",
    "PET_MONITOR_INTERVAL",
];

/// Whether a variable of [`member_env`], [`process_env`] or [`native_env`] gives way to one of this name that the user has set.
pub fn is_default(name: &str) -> bool {
    DEFAULTS.contains(&name)
}

/// The environment of the member at `rank` (position in `round.members`), for the *one* command that it runs, which may
/// start processes of its own (`torchrun`); empty if there is no such member. [`process_env`] has that of one process
/// among several.
///
/// `ETO_*` is given to every framework: `ETO_JOB` (namespace/name), `ETO_ROUND` (generation), `ETO_ROUND_ID` (the job's
/// UID and the generation: never that of another job of this name), `ETO_RANK` and `ETO_WORLD_SIZE` (members, not
/// processes), `ETO_COORDINATOR` (host:port), `ETO_HOSTS` (addresses in rank order, comma-separated). Where these have more
/// than [`crate::MAX_HOSTS_BYTES`] together `ETO_HOSTS` is left out, and `ETO_HOST_PATTERN` has them if they differ by the
/// members' indexes alone (`demo-worker-[0-2047].demo.team-a.svc`). Where not all members
/// are workers, also `ETO_REPLICA_TYPE`, `ETO_REPLICA_TYPE_INDEX` (see [`Round::type_of`]) and `ETO_REPLICA_TYPES` (those of
/// all members in rank order, where they have no more bytes than that).
///
/// PyTorch: with one process per member `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE` and `MASTER_*` are all
/// that `python train.py` needs. With more, `RANK` is the node's rank and `WORLD_SIZE` counts processes (Kubeflow's
/// meaning), and `torchrun`, configured by `PET_*` for a static rendezvous, gives each process its own.
pub fn member_env(framework: FrameworkKind, round: &Round, rank: usize) -> Vec<(String, String)> {
    let (Some(me), Some(place)) = (round.members.get(rank), Place::of(round)) else { return Vec::new() };
    let mut env = place.common(round, rank);
    match framework {
        FrameworkKind::PyTorch => {
            let processes = me.processes.max(1);
            env.extend(place.torch(round, rank, processes));
            env.extend([("RANK", rank.to_string()), ("WORLD_SIZE", round.processes().to_string())]);
            if processes == 1 {
                env.extend([("LOCAL_RANK", "0".to_owned()), ("LOCAL_WORLD_SIZE", "1".to_owned())]);
            }
        }
        FrameworkKind::TensorFlow => env.push(("TF_CONFIG", tensorflow::config(round, rank))),
        FrameworkKind::Jax => env.extend(place.jax(rank, round.members.len())),
        FrameworkKind::Custom => {}
    }
    owned(env)
}

/// The environment of one process of the member at `rank`, of those that [`crate::Member::processes`] counts and that
/// an agent starts itself: `local` is its place among them, from 0. Empty if there is no such process.
///
/// Beside what [`member_env`] gives, every framework gets `ETO_PROCESS_RANK` and `ETO_PROCESS_COUNT` (over all members)
/// and `ETO_LOCAL_RANK` and `ETO_LOCAL_WORLD_SIZE` (in this member). The framework's own variables count processes:
/// torch's are those that `torchrun` would give. TensorFlow uses all devices of a machine from one process, so its
/// members run one whatever they count.
pub fn process_env(framework: FrameworkKind, round: &Round, rank: usize, local: u32) -> Vec<(String, String)> {
    let (Some(me), Some(place)) = (round.members.get(rank), Place::of(round)) else { return Vec::new() };
    let of = |m: &Member| if framework == FrameworkKind::TensorFlow { 1 } else { m.processes.max(1) };
    let here = of(me);
    if local >= here {
        return Vec::new();
    }
    let count = |members: &[Member]| members.iter().map(of).fold(0u32, u32::saturating_add);
    let id = count(&round.members[..rank]).saturating_add(local);
    let all = count(&round.members);
    let mut env = place.common(round, rank);
    env.extend([
        ("ETO_PROCESS_RANK", id.to_string()),
        ("ETO_PROCESS_COUNT", all.to_string()),
        ("ETO_LOCAL_RANK", local.to_string()),
        ("ETO_LOCAL_WORLD_SIZE", here.to_string()),
    ]);
    match framework {
        FrameworkKind::PyTorch => {
            // One process, in the eyes of a `torchrun` that a script starts by itself.
            env.extend(place.torch(round, rank, here));
            env.extend([
                ("RANK", id.to_string()),
                ("WORLD_SIZE", all.to_string()),
                ("LOCAL_RANK", local.to_string()),
                ("LOCAL_WORLD_SIZE", here.to_string()),
                ("GROUP_RANK", rank.to_string()),
                ("GROUP_WORLD_SIZE", round.members.len().to_string()),
            ]);
        }
        FrameworkKind::TensorFlow => env.push(("TF_CONFIG", tensorflow::config(round, rank))),
        FrameworkKind::Jax => {
            let (id, all) = (usize::try_from(id).unwrap_or(usize::MAX), usize::try_from(all).unwrap_or(usize::MAX));
            env.extend(place.jax(id, all));
            if here > 1 {
                env.push(("JAX_LOCAL_DEVICE_IDS", local.to_string()));
            }
        }
        FrameworkKind::Custom => {}
    }
    owned(env)
}

type Variables = Vec<(&'static str, String)>;

fn owned(env: Variables) -> Vec<(String, String)> {
    env.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
}

/// Where the members of a round meet.
struct Place<'a> {
    host: &'a str,
    port: String,
    /// host:port
    endpoint: String,
}

impl<'a> Place<'a> {
    fn of(round: &'a Round) -> Option<Place<'a>> {
        let host = round.members.get(round.coordinator)?.address.as_str();
        let port = round.port.to_string();
        Some(Place { host, endpoint: format!("{}:{port}", bracketed(host)), port })
    }

    fn common(&self, round: &Round, rank: usize) -> Variables {
        let mut common = vec![
            ("ETO_JOB", round.job.clone()),
            ("ETO_ROUND", round.generation.to_string()),
            ("ETO_ROUND_ID", round.id.clone()),
            ("ETO_RANK", rank.to_string()),
            ("ETO_WORLD_SIZE", round.members.len().to_string()),
            ("ETO_COORDINATOR", self.endpoint.clone()),
        ];
        common.extend(host_list(round));
        if let Some((name, place)) = round.type_of(rank).filter(|_| !round.types.is_empty()) {
            common.extend([("ETO_REPLICA_TYPE", name.to_owned()), ("ETO_REPLICA_TYPE_INDEX", place.to_string())]);
            let types: Vec<&str> = round.members.iter().map(|m| round.types.name(m.index)).collect();
            let types = types.join(",");
            common.extend(Some(("ETO_REPLICA_TYPES", types)).filter(|(_, t)| t.len() <= crate::MAX_HOSTS_BYTES));
        }
        common
    }

    /// What torch reads, apart from ranks.
    fn torch(&self, round: &Round, rank: usize, processes: u32) -> Variables {
        vec![
            ("MASTER_ADDR", self.host.to_owned()),
            ("MASTER_PORT", self.port.clone()),
            ("PET_NNODES", round.members.len().to_string()),
            ("PET_NPROC_PER_NODE", processes.to_string()),
            ("PET_NODE_RANK", rank.to_string()),
            ("PET_MASTER_ADDR", self.host.to_owned()),
            ("PET_MASTER_PORT", self.port.clone()),
            ("PET_RDZV_BACKEND", "static".to_owned()),
            ("PET_RDZV_ENDPOINT", self.endpoint.clone()),
            ("PET_RDZV_ID", round.id.clone()),
            ("PYTHONUNBUFFERED", "1".to_owned()),
        ]
    }

    /// Both families of names: Kubeflow's first version and its second. JAX itself reads the address alone, so a script
    /// passes the two numbers on.
    fn jax(&self, id: usize, processes: usize) -> Variables {
        vec![
            ("JAX_COORDINATOR_ADDRESS", self.endpoint.clone()),
            ("JAX_NUM_PROCESSES", processes.to_string()),
            ("JAX_PROCESS_ID", id.to_string()),
            ("COORDINATOR_ADDRESS", self.host.to_owned()),
            ("COORDINATOR_PORT", self.port.clone()),
            ("NUM_PROCESSES", processes.to_string()),
            ("PROCESS_ID", id.to_string()),
            // Of no effect on accelerators; on CPUs, versions that have no default of their own can't communicate
            // without it.
            ("JAX_CPU_COLLECTIVES_IMPLEMENTATION", "gloo".to_owned()),
        ]
    }
}

/// An IPv6 address needs brackets before a port.
fn bracketed(host: &str) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.to_owned() }
}
