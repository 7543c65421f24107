//! Sweeps: one transaction, and one fault before each of its steps in turn, so that no step is left to chance. A step is
//! whatever changes what is stored, told or running: a write or an action of the operator, an order that reaches an agent,
//! a container that begins or is told to go, a process that ends.

use std::fmt;
use std::str::FromStr;

use crate::calm::FOLLOWS_IN;
use crate::faults::Fault;
use crate::story::RECOVERS_IN;
use crate::world::{What, World};

/// A transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// The job's first round, from no pod to all members training.
    Start,
    /// To the largest size.
    Grow,
    /// To the smallest size.
    Shrink,
    /// The job is suspended, and resumed.
    Suspend,
    /// The template changes: new pods.
    Template,
    /// A process failed, and the round begins anew.
    Restart,
    /// A pod was deleted by hand, and is replaced.
    Replace,
    /// A node is drained.
    Drain,
    /// A node's end was announced.
    Announce,
    /// A node lost its power.
    NodeLost,
    /// A process hangs, where hangs are looked for.
    Hang,
}

impl Change {
    /// All of them.
    pub const ALL: [Change; 11] = [
        Change::Start,
        Change::Grow,
        Change::Shrink,
        Change::Suspend,
        Change::Template,
        Change::Restart,
        Change::Replace,
        Change::Drain,
        Change::Announce,
        Change::NodeLost,
        Change::Hang,
    ];
}

/// What strikes.
const FAULTS: [Fault; 28] = [
    Fault::Exit(1),
    Fault::OutOfMemory,
    Fault::Hang,
    Fault::Delete,
    Fault::Evict,
    Fault::Drain,
    Fault::Announce,
    Fault::CutNode,
    Fault::CutHalf,
    Fault::PowerOff,
    Fault::DeleteNode,
    Fault::CutAgent,
    Fault::CutPod,
    Fault::GatewayAway,
    Fault::EtcdAway,
    Fault::EtcdLost,
    Fault::EtcdRestored,
    Fault::ApiAway,
    Fault::KillOperator,
    Fault::StallOperator,
    Fault::SlowNetwork,
    Fault::Scale,
    Fault::Suspend,
    Fault::Template,
    Fault::NoRoom,
    Fault::Quota,
    Fault::StatusLost,
    Fault::Exit(139),
];

/// One place of a sweep: a fault just before a step of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    change: Change,
    fault: Fault,
    at: u64,
}

impl Point {
    /// The first step of each transaction, with each fault.
    pub fn firsts() -> impl Iterator<Item = Point> {
        Change::ALL.into_iter().flat_map(|change| FAULTS.into_iter().map(move |fault| Point { change, fault, at: 0 }))
    }

    /// The same fault before the next step.
    #[must_use]
    pub fn next(self) -> Point {
        Point { at: self.at + 1, ..self }
    }

    /// The transaction in which it strikes.
    pub fn change(self) -> Change {
        self.change
    }

    /// Whether the fault is the operator's end.
    pub fn kills_operator(self) -> bool {
        self.fault == Fault::KillOperator
    }
}

/// As `Grow/KillOperator/17`.
impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{:?}/{}", self.change, self.fault, self.at)
    }
}

impl FromStr for Point {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.splitn(3, '/');
        let (change, fault, at) = (parts.next(), parts.next(), parts.next());
        let change = Change::ALL.into_iter().find(|c| Some(format!("{c:?}").as_str()) == change);
        let fault = FAULTS.into_iter().find(|f| Some(format!("{f:?}").as_str()) == fault);
        match (change, fault, at.map(str::parse)) {
            (Some(change), Some(fault), Some(Ok(at))) => Ok(Point { change, fault, at }),
            _ => Err(format!(
                "{text:?} is no point: write TRANSACTION/FAULT/STEP; transactions are {:?}, faults are {FAULTS:?}",
                Change::ALL
            )),
        }
    }
}

/// A fault that waits for a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ambush {
    fault: Fault,
    /// Steps that come before.
    left: u64,
}

impl World {
    /// True if the transaction has so many steps.
    pub(crate) fn tell_sweep(&mut self, point: Point) -> bool {
        self.set_out();
        if point.change != Change::Start && !self.settles(RECOVERS_IN) {
            self.end_well();
            return false;
        }
        self.take_backup();
        self.ambush = Some(Ambush { fault: point.fault, left: point.at });
        if !self.begin_change(point.change) {
            return false;
        }
        self.run_until(self.now + FOLLOWS_IN);
        self.settles(RECOVERS_IN);
        let reached = self.ambush.take().is_none();
        if reached {
            self.run_until(self.now + FOLLOWS_IN);
        }
        if !self.is_broken() {
            self.end_well();
        }
        reached
    }

    /// The transaction begins; false if there is none, as where the job has its largest size.
    fn begin_change(&mut self, change: Change) -> bool {
        let (min, max) = (self.api.spec.min, self.api.spec.max);
        match change {
            Change::Start => true,
            Change::Grow => self.resize(max),
            Change::Shrink => self.resize(min),
            Change::Suspend => self.strike(Fault::Suspend),
            Change::Template => self.strike(Fault::Template),
            Change::Restart => self.strike(Fault::Exit(1)),
            Change::Replace => self.strike(Fault::Delete),
            Change::Drain => self.strike(Fault::Drain),
            Change::Announce => self.strike(Fault::Announce),
            Change::NodeLost => self.strike(Fault::PowerOff),
            Change::Hang => self.strike(Fault::Hang),
        }
    }

    fn resize(&mut self, size: u32) -> bool {
        self.note(|_| format!("the user wants {size} workers"));
        let before = self.api.spec.replicas;
        self.change_spec(|s| s.replicas = size);
        size != before
    }

    /// The fault that waits for this step strikes.
    pub(crate) fn spring(&mut self, next: &What) {
        let Some(ambush) = self.ambush.as_mut().filter(|_| is_step(next)) else { return };
        if ambush.left > 0 {
            ambush.left -= 1;
            return;
        }
        let fault = ambush.fault;
        self.ambush = None;
        self.strike(fault);
    }
}

fn is_step(what: &What) -> bool {
    match what {
        What::Write { .. }
        | What::Act { .. }
        | What::Begin { .. }
        | What::Signal { .. }
        | What::GraceOver { .. }
        | What::Told { .. }
        | What::Ends { .. }
        | What::Gone { .. } => true,
        What::Saved { exit, .. } => *exit,
        What::Look { .. }
        | What::Seen { .. }
        | What::Start { .. }
        | What::Renew { .. }
        | What::Schedule
        | What::Heartbeat { .. }
        | What::Tick { .. }
        | What::Train { .. }
        | What::Report { .. }
        | What::Sweep
        | What::Fault
        | What::Mend(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_read_as_it_is_written() {
        for point in Point::firsts().map(Point::next) {
            assert_eq!(point.to_string().parse(), Ok(point));
        }
        for wrong in ["", "Grow", "Grow/KillOperator", "Grow/KillOperator/x", "Grow/Nothing/1", "grow/KillOperator/1"] {
            assert!(wrong.parse::<Point>().is_err_and(|e| e.contains("KillOperator")), "{wrong}");
        }
    }
}
