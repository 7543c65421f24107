//! What agents and the membership gateway say to each other: version 1.
//!
//! Both directions carry *whole states*, never steps, so that a message lost, repeated or out of order does no harm:
//! the agent reports all of itself ([`Report`]) at every change and as its heartbeat, and is told the whole
//! [`Assignment`] of its job. A generation older than one already seen is refused by whoever sees it.
//!
//! An unknown field is ignored and a missing one has its default, so that agents of one release and operators of the
//! next understand each other; a change that needs more is another version.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{FrameworkKind, Round};

/// The version of this protocol, the first part of every path of the gateway (`/v1/...`).
pub const PROTOCOL: u32 = 1;
/// How often an agent reports when nothing changes, in milliseconds.
pub const HEARTBEAT_MS: u64 = 5_000;
/// An agent that was not heard of for this long is *suspected*, in milliseconds: no more than that. A loss needs a
/// second witness.
pub const SUSPECT_AFTER_MS: u64 = 15_000;
/// What processes get to stop when a peer of theirs was lost, in milliseconds: their step is lost anyway.
pub const LOSS_GRACE_MS: u64 = 5_000;

/// What an agent tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a word of its own on the wire")]
pub struct Report {
    /// Version of the agent's release, for people.
    pub agent: String,
    /// Which run of the agent in this pod it is: another after each start of its container.
    pub incarnation: String,
    /// Grows with each report of an incarnation; one that is not higher than the last is dropped.
    pub sequence: u64,
    /// Address that its peers reach it by: the pod's IP.
    pub address: String,
    /// Processes that it starts in a round, at least 1.
    pub processes: u32,
    /// The newest generation it has been told; 0 = none yet.
    pub generation: u64,
    /// What its processes do.
    pub state: MemberState,
    /// The newest checkpoint that its processes have told of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// How far its processes are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Its command is a launcher that can change its members by itself, and it knows what [`Assignment::native`] asks for.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub native: bool,
    /// It knows what [`Native::alone`] asks for.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
    /// Its pod is being stopped (SIGTERM from the kubelet): its processes stop, and it starts no round any more. It may
    /// come before the API server tells of it: a node that shuts down deletes no pods.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// With [`MemberState::Exited`] and a code other than 0: the last lines that they wrote to stderr, as
    /// [`crate::last_lines`] gives them. Empty where there are none, or the agent does not keep them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_lines: String,
    /// With [`MemberState::Exited`] and a code other than 0: the kernel ended processes of its container for their use of
    /// memory while they ran.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub out_of_memory: bool,
    /// Microseconds of work of its own in a step, over the last minute, as its script tells it; `None` = not told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_work_us: Option<u64>,
    /// Pods of the members beside it in its round ([`crate::neighbours`]) that it used to reach and does not any more, by
    /// UID.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub out_of_reach: Vec<String>,
}

/// What the processes of a member do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum MemberState {
    /// There are none, and none have been started for [`Report::generation`]: all that ran before are gone. Of a round
    /// whose order is [`Order::Stop`] this is the acknowledgement *stopped*. It is not *checkpointed*.
    #[default]
    Idle,
    /// They run, started for this generation.
    Running {
        /// The round that they were started for; lower than [`Report::generation`] while they are being stopped.
        generation: u64,
    },
    /// They have ended by themselves, and none have been started since. Of a round whose order is [`Order::Stop`] this
    /// is the acknowledgement *stopped* too: nothing runs. An agent that was started again in its pod tells the round
    /// of its predecessor in this way, with code 137: those processes are gone, and it starts in a later round only.
    Exited {
        /// The round that they were started for.
        generation: u64,
        /// Exit code of the first that failed, else 0; 128 + n where signal n ended it.
        code: i32,
    },
}

/// A checkpoint that is complete and can be resumed from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The round that wrote it.
    pub generation: u64,
    /// The step that is in it.
    pub step: u64,
    /// When it was told, in milliseconds since the Unix epoch.
    pub at_ms: u64,
}

/// How far a training is, as its script tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// The round that it was made in.
    pub generation: u64,
    /// Steps done, from the beginning of the training.
    pub step: u64,
    /// Samples seen by all workers, from the beginning; `None` = not told.
    pub samples: Option<u64>,
    /// Epoch; `None` = not told.
    pub epoch: Option<u64>,
    /// Loss; `None` = not told.
    pub loss: Option<f64>,
    /// Milliseconds that this process has worked itself since its start, without waiting for others; `None` = not told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_ms: Option<u64>,
    /// Milliseconds that may pass until the next report, for what takes long and makes no steps: an evaluation, a
    /// checkpoint. It stands until a later step is told. `None` = not told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_ms: Option<u64>,
    /// When it was told, in milliseconds since the Unix epoch.
    pub at_ms: u64,
}

/// What the agents of a job are to do: one document per job, written by the leader alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Assignment {
    /// Who is in, in which order.
    pub round: Round,
    /// What to do about it.
    pub order: Order,
    /// Which environment its processes get.
    pub framework: FrameworkKind,
    /// What processes of earlier rounds get to stop before they are killed, in milliseconds.
    pub grace_ms: u64,
    /// The run that this round is a part of, where the launcher that is the command changes its members by itself;
    /// `None`: all processes are started anew for each round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<Native>,
    /// With [`Native::alone`]: indexes in rank order that the run began with. Who is started has the rank of its index in
    /// here, or is not started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<u32>,
    /// Variables beside those of the round, the same for all members.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// With [`Order::Stop`]: what runs made no progress any more. A script that wants it so is asked to say where it
    /// stands before it is asked to stop.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hung: bool,
}

impl Assignment {
    /// A round of no run, with nothing else to say of it.
    pub fn new(round: Round, order: Order, framework: FrameworkKind, grace_ms: u64) -> Self {
        let (env, why) = (BTreeMap::new(), String::new());
        Assignment { round, order, framework, grace_ms, native: None, ranks: Vec::new(), env, why, hung: false }
    }
}

/// A run: a row of rounds through which processes go on. Of [`Native::alone`] the members know nothing of each other's
/// restarts and none serves a store; else it is that of a launcher that changes its members by itself: `torchrun` with
/// its c10d rendezvous. The agent of the coordinator serves the store that the members meet at, on the port of the round;
/// it keeps it through all rounds of the run, so the coordinator is the same in all of them.
///
/// In the next round of a run nobody has to stop: who runs for an earlier round of it and is a member goes on, who is
/// none stops, and the others start. An agent that can do this says so ([`Report::native`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Native {
    /// Generation of the round that it began with. A store that is lost is never filled again: another run follows.
    pub run: u64,
    /// Fewest members that the launcher trains with, at least 1. Fixed while the run lasts.
    pub min: u32,
    /// Most members that it takes. Fixed while the run lasts.
    pub max: u32,
    /// The command is started as in any round, with the ranks that it has in the round that it is started for; a member that
    /// is started alone has the same rank as the one whose place it takes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
}

/// What to do about a round. Within one generation it only moves forward, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Order {
    /// Stop what runs of earlier rounds, and wait. Members of old and new round alike.
    Stop,
    /// Everybody of the earlier round has stopped or is known to be gone: members start. Who was not told `Stop`
    /// stops first; who is no member stays stopped.
    Run,
    /// The job has ended: stop, and end with the code of the last processes.
    End,
}

/// One line of the stream that an agent watches (`GET /v1/watch`), as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind", content = "data")]
#[allow(clippy::large_enum_variant, reason = "one is held at a time")]
pub enum Notice {
    /// The assignment in force: sent at once and at every change.
    Assignment(Box<Assignment>),
    /// Nothing new; sent every [`HEARTBEAT_MS`], so that a dead connection is noticed.
    Ping,
    /// From a later version; to be passed over.
    #[serde(other)]
    Unknown,
}

/// A member as the leader sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberRecord {
    /// Name of the pod.
    pub pod: String,
    /// What it told last.
    pub report: Report,
    /// When it was first heard of, in milliseconds since the Unix epoch.
    pub joined_ms: u64,
    /// It has not been heard of for [`SUSPECT_AFTER_MS`].
    #[serde(default)]
    pub suspected: bool,
}

/// What is known of a job's members: what agents told, and the assignment that they were given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// The assignment in force; `None` before the first.
    pub assignment: Option<Assignment>,
    /// By pod UID. Who is not in here has not joined, or was not heard of since its gateway was lost.
    pub members: BTreeMap<String, MemberRecord>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_report_of_an_older_agent_is_read() {
        let r: Report =
            serde_json::from_str(r#"{"sequence": 3, "state": {"state": "exited", "generation": 2, "code": 143}}"#)
                .unwrap();
        assert_eq!((r.sequence, r.state), (3, MemberState::Exited { generation: 2, code: 143 }));
        assert_eq!(r.checkpoint, None);
    }

    #[test]
    fn a_notice_of_a_later_gateway_is_passed_over() {
        for line in [r#"{"kind": "ping"}"#, r#"{"kind": "somethingNew"}"#] {
            assert!(!matches!(serde_json::from_str::<Notice>(line).unwrap(), Notice::Assignment(_)), "{line}");
        }
    }

    #[test]
    fn orders_move_forward() {
        assert!(Order::Stop < Order::Run && Order::Run < Order::End);
    }
}
