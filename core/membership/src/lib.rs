//! Groups, rounds and members, and the rules of the next round. Pure: std and serde only.
//!
//! A *round* is one fixed membership of a job: a generation, ordered members with ranks, a coordinator and the
//! environment each member starts with. Whatever changes the members makes a new round with a higher generation.
#![warn(missing_docs)]

pub mod agent;
mod batch;
mod env;
mod fence;
mod hosts;
mod lines;
mod neighbours;
#[cfg(test)]
mod promised;
mod protocol;
mod replicas;
mod reports;
mod round;
mod stop;

pub use batch::{Batch, GlobalBatch, MAX_GLOBAL_BATCH};
pub use env::{FrameworkKind, MAX_MEMBERS, MAX_TENSORFLOW_MEMBERS, is_default, member_env, native_env, process_env};
pub use fence::Refused;
pub use hosts::{MAX_HOSTS_BYTES, discovered_hosts, hostfile};
pub use lines::{LAST_LINES, LAST_LINES_BYTES, last_lines};
pub use neighbours::{Neighbours, PROBE_EVERY_MS, PROBE_TIMEOUT_MS, neighbours};
pub use protocol::{
    Assignment, Checkpoint, Group, HEARTBEAT_MS, LOSS_GRACE_MS, MemberRecord, MemberState, Native, Notice, Order,
    PROTOCOL, Progress, Report, SUSPECT_AFTER_MS,
};
pub use replicas::{CHIEF, ReplicaType, ReplicaTypes, WORKER};
pub use reports::{PROGRESS_EVERY_MS, ReportOrder};
pub use round::{Candidate, Member, Ports, Round};
pub use stop::{STOP_SIGNALS, stop_signal};
