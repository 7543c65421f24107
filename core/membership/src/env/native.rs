//! The environment of a `torchrun` that changes its members by itself.

use super::{Place, owned};
use crate::{Native, Round};

/// How its rendezvous behaves. The store is not its to serve; a member whose pod is gone is missed after three seconds,
/// and who comes within two seconds of the last is waited for. By torch's own settings it would be 15 and 30.
const CONF: &str = "is_host=false,last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3";
/// Each member that leaves costs every other one of these, and so does each failure of a script. With torch's own number
/// (none) the first loss would end them all. When they are used up `torchrun` ends, which is a failure of the job like any
/// other, and the next run has as many again.
const RESTARTS: &str = "100";
/// Seconds between two looks at whether members wait to join.
const INTERVAL: &str = "0.5";

/// The identity of a run, from that of one of its rounds.
pub(crate) fn run_id(round: &str, run: u64) -> String {
    let uid = round.rsplit_once('-').map_or(round, |(uid, _)| uid);
    format!("{uid}-{run}")
}

/// The environment of the member at `rank` for the one `torchrun` that it runs, which meets the others of its run at the
/// store that the agent of the coordinator serves; empty if there is no such member.
///
/// Only what stays true while members come and go is in it. `ETO_ROUND` and `ETO_ROUND_ID` are those of the round that
/// the run began with, so that all processes of it count as of one round; ranks, sizes and addresses are what `torchrun`
/// gives to each process.
///
/// `TORCH_DISABLE_SHARE_RDZV_TCP_STORE`: torch 2.5 and later cache where rank 0 is found in the first rendezvous, and a
/// member that joins later waits for it until all of them end.
pub fn native_env(round: &Round, rank: usize, native: Native) -> Vec<(String, String)> {
    let (Some(me), Some(place)) = (round.members.get(rank), Place::of(round)) else { return Vec::new() };
    let id = run_id(&round.id, native.run);
    owned(vec![
        ("ETO_JOB", round.job.clone()),
        ("ETO_ROUND", native.run.to_string()),
        ("ETO_ROUND_ID", id.clone()),
        ("ETO_COORDINATOR", place.endpoint.clone()),
        ("PET_NNODES", format!("{}:{}", native.min.max(1), native.max.max(native.min))),
        ("PET_NPROC_PER_NODE", me.processes.max(1).to_string()),
        ("PET_RDZV_BACKEND", "c10d".to_owned()),
        ("PET_RDZV_ENDPOINT", place.endpoint),
        ("PET_RDZV_ID", id),
        ("PET_RDZV_CONF", CONF.to_owned()),
        ("PET_LOCAL_ADDR", me.address.clone()),
        ("PET_MAX_RESTARTS", RESTARTS.to_owned()),
        ("PET_MONITOR_INTERVAL", INTERVAL.to_owned()),
        ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1".to_owned()),
        ("PYTHONUNBUFFERED", "1".to_owned()),
    ])
}
