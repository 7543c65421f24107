//! What goes into the machine and what comes out of it.

use super::{Exit, Launch};
use crate::{Assignment, Progress, Refused};

/// Who an agent is. Fixed while it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// UID of its pod: the name by which rounds call it.
    pub pod_uid: String,
    /// See [`crate::Report::address`].
    pub address: String,
    /// See [`crate::Report::processes`].
    pub processes: u32,
    /// See [`crate::Report::agent`].
    pub version: String,
    /// See [`crate::Report::incarnation`].
    pub incarnation: String,
    /// What processes get to stop when the pod itself is stopped, in milliseconds: the pod's grace period less a margin
    /// for the last report.
    pub stop_grace_ms: u64,
    /// The number of the signal that asks processes to stop, where that is not SIGTERM; 0 = it is.
    pub stop_signal: i32,
    /// See [`crate::Report::native`].
    pub native: bool,
    /// The round that an earlier run of the agent in this pod started last, if there was one. Its processes ended
    /// with that agent, and its peers run or wait: this agent must not start in it again, only tell that they are gone.
    pub lost_generation: Option<u64>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The gateway told the job's assignment.
    Assigned(Box<Assignment>),
    /// A process ended; others of its group may run on.
    ProcessEnded {
        /// The round that it was started for: that of [`Command::Start`], also where it has gone on in others since.
        generation: u64,
        /// How it ended.
        exit: Exit,
        /// One that the agent started itself; else one that lost its parent.
        main: bool,
        /// Processes started by the agent that run on.
        left: u32,
    },
    /// Nothing is left of what was started for this round, strays included.
    GroupGone {
        /// The round.
        generation: u64,
    },
    /// The pod is being stopped: SIGTERM from the kubelet.
    Signalled,
    /// The script says that a checkpoint is complete.
    CheckpointTold {
        /// The round it believes to be in; `None` = the one that runs.
        generation: Option<u64>,
        /// The step in it.
        step: u64,
    },
    /// The script says how far it is. `at_ms` is set by the machine; generation 0 = the one that runs.
    ProgressTold(Progress),
    /// Time has passed.
    Tick,
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Start the processes of a round. Nothing runs at this moment.
    Start(Box<Launch>),
    /// What runs goes on in this round, which follows another of the same run ([`crate::Native`]): note it as started.
    GoOn {
        /// The round.
        generation: u64,
    },
    /// Ask the processes to stop: SIGTERM, or the signal that the container has in its place.
    Terminate,
    /// End the group and every stray: SIGKILL.
    Kill,
    /// Send [`super::Agent::report`] now.
    Report,
    /// What the event asked for or told is not taken.
    Refuse(Refusal),
    /// Send the last report and end with this exit code. Nothing runs, and nothing but refusals
    /// follows.
    End {
        /// 0 to 255.
        code: i32,
    },
}

/// Why an event was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// An assignment that can't take the place of the one in force.
    Round(Refused),
    /// Told for a round that does not run here.
    OtherRound,
    /// The agent is about to end.
    Leaving,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Round(refused) => refused.fmt(f),
            Refusal::OtherRound => f.write_str("the round it was told for does not run here"),
            Refusal::Leaving => f.write_str("the agent is about to end"),
        }
    }
}
