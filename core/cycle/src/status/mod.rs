//! The engine's state as `status`, and back.
//!
//! Everything of [`JobState`] makes the way there and back; of [`Memory`] all but the signal history and the last
//! decision (which is there for people to read). What can't be read counts as lost: the state is rebuilt from the live
//! pods then, and there is no shrink for one stabilisation window.

mod placed;
mod read;
mod write;

use eto_engine::state::{JobState, Memory};

pub use read::{from_status, restore, take_up};
pub(crate) use write::rfc3339;
pub use write::{StatusFacts, to_status};

use eto_api::ElasticJobStatus;

/// What is known again of a job after a restart.
#[derive(Clone, Debug, PartialEq)]
pub struct Restored {
    /// As it was written.
    pub state: JobState,
    /// As it was written, or a new one where the old is too old to stand for what happened since.
    pub memory: Memory,
}

/// Whether `new` says something that is worth a write: anything but what differs with each evaluation (values and ages
/// of signals, times, sequence and fuel of a decision, the checkpoint of memory, wording).
///
/// At steady state this is false, so that evaluating costs no API request.
pub fn worth_writing(old: Option<&ElasticJobStatus>, new: &ElasticJobStatus) -> bool {
    old.is_none_or(|old| essence(old) != essence(new))
}

fn essence(status: &ElasticJobStatus) -> ElasticJobStatus {
    let mut s = status.clone();
    s.memory = None;
    s.undecodable = None;
    for signal in &mut s.signals {
        signal.coverage = 0.0;
        signal.age_milliseconds = 0;
        signal.mean = None;
        signal.note = signal.note.take().map(|note| gist(&note));
    }
    for condition in &mut s.conditions {
        condition.message.clear();
        condition.last_transition_time.clear();
        condition.observed_generation = None;
    }
    if let Some(d) = &mut s.last_decision {
        d.time.clear();
        d.sequence = 0;
        d.generation = 0;
        d.fuel = 0;
        d.from = 0;
        d.proposed = None;
        d.reasons.clear();
        d.next_look = None;
        d.mend = None;
        for limit in &mut d.limits {
            limit.from = 0;
            limit.to = 0;
            limit.until = None;
            limit.message.clear();
        }
        if let Some(f) = &mut d.failure {
            f.message.clear();
            f.in_a_row = f.in_a_row.min(3);
        }
    }
    if let Some(p) = &mut s.last_placement {
        p.time.clear();
        p.generation = 0;
        p.fuel = 0;
        p.reasons.clear();
        if let Some(f) = &mut p.failure {
            f.message.clear();
            f.in_a_row = f.in_a_row.min(3);
        }
    }
    s
}

/// What a note is about, without what may differ each time it is told: Prometheus that is down and Prometheus that
/// answers with an error page are two things, two time-outs are one.
pub(crate) fn gist(note: &str) -> String {
    let words = |part: &str| -> String {
        let letters = part.split_whitespace().filter(|w| !w.contains(|c: char| c.is_ascii_digit()));
        letters.take(4).collect::<Vec<_>>().join(" ")
    };
    note.split(": ").take(2).map(words).collect::<Vec<_>>().join(": ")
}

/// Bytes of a policy's state that `status` carries at most; more is kept in a [`PolicyCheckpoint`](crate::checkpoint::PolicyCheckpoint).
pub const MAX_STORED_POLICY_STATE: usize = 3 * 1024;
