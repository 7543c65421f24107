use serde::{Deserialize, Serialize};

/// One fixed membership of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// Grows by one with every round of the job; the fence against late messages.
    pub generation: u64,
    /// Identity of the run: `<job uid>-<generation>`.
    pub id: String,
    /// In rank order.
    pub members: Vec<Member>,
    /// Position in `members` of the one the others connect to.
    pub coordinator: usize,
    /// Port on the coordinator; changes with the generation so that a lingering socket can't get in the way.
    pub port: u16,
}

/// One member of a round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Index in the job (0 is the master); stable over rounds.
    pub index: u32,
    /// Host name or address that the other members reach it by.
    pub address: String,
    /// Pod UID, where the member is known already (rounds with an agent).
    pub uid: Option<String>,
    /// Processes it runs.
    pub processes: u32,
}
