//! The virtual world: time, what is to happen when, and the parts that it happens to.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

use eto_membership::agent::Exit;
use eto_membership::{Assignment, Report};

use crate::api::Api;
use crate::check::{Ghost, Rule, Violation};
use crate::container::Container;
use crate::defects::Defect;
use crate::etcd::Etcd;
use crate::faults::Mend;
use crate::gateway::Gateway;
use crate::nodes::Node;
use crate::random::Random;
use crate::replica::{News, Replica};
use crate::scenario::Scenario;
use crate::sweep::{Ambush, Point};
use crate::training::Training;
use crate::{Counts, Outcome};

/// Something that is to happen. `life`: of the replica or container that it is for; what ended meanwhile hears nothing.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// A replica plans.
    Look {
        at: usize,
        life: u64,
    },
    /// It writes the state that it has planned.
    Write {
        at: usize,
        life: u64,
    },
    /// It carries out the next of its actions.
    Act {
        at: usize,
        life: u64,
    },
    /// A watch brings it something.
    Seen {
        at: usize,
        life: u64,
        news: News,
    },
    /// It starts.
    Start {
        at: usize,
    },
    /// It sees whether it holds the Lease.
    Renew {
        at: usize,
        life: u64,
    },
    /// The scheduler and the node controller look.
    Schedule,
    /// A kubelet starts the container of a pod.
    Begin {
        uid: String,
    },
    /// A kubelet hears that a pod is to go.
    Signal {
        uid: String,
        life: u64,
    },
    /// Its grace has passed.
    GraceOver {
        uid: String,
        life: u64,
    },
    Heartbeat {
        uid: String,
        life: u64,
    },
    /// The gateway's watch brings an agent an assignment.
    Told {
        uid: String,
        life: u64,
        assignment: Arc<Assignment>,
    },
    /// A deadline of an agent may have come.
    Tick {
        uid: String,
        life: u64,
    },
    /// What an agent started ends.
    Ends {
        uid: String,
        life: u64,
        generation: u64,
        exit: Exit,
    },
    /// Nothing of it is left.
    Gone {
        uid: String,
        life: u64,
        generation: u64,
    },
    /// A checkpoint is complete; `exit`: of a process that was asked to stop and ends with that.
    Saved {
        uid: String,
        life: u64,
        generation: u64,
        step: u64,
        exit: bool,
    },
    /// All members of a round are to make a step.
    Train {
        generation: u64,
    },
    /// A report arrives at the gateway.
    Report {
        uid: String,
        report: Box<Report>,
    },
    /// The gateway looks who is silent.
    Sweep,
    /// A fault strikes.
    Fault,
    /// What a fault did is over.
    Mend(Mend),
}

#[derive(Debug)]
struct Entry {
    at: u64,
    number: u64,
    what: What,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Entry {}

/// All of it.
pub(crate) struct World {
    pub(crate) random: Random,
    pub(crate) scenario: Scenario,
    /// True time, in milliseconds since the Unix epoch.
    pub(crate) now: u64,
    queue: BinaryHeap<Entry>,
    number: u64,
    pub(crate) api: Api,
    pub(crate) nodes: BTreeMap<String, Node>,
    /// By pod UID.
    pub(crate) containers: BTreeMap<String, Container>,
    pub(crate) etcd: Etcd,
    pub(crate) gateway: Gateway,
    pub(crate) replicas: [Replica; 2],
    /// The replica that the Lease names, and until when.
    pub(crate) lease: (usize, u64),
    pub(crate) training: Training,
    pub(crate) ghost: Ghost,
    pub(crate) counts: Counts,
    /// What the product itself does wrong.
    pub(crate) defect: Option<Defect>,
    /// Faults strike.
    pub(crate) storm: bool,
    /// A fault that waits for a step of a transaction.
    pub(crate) ambush: Option<Ambush>,
    violation: Option<Violation>,
    lives: u64,
    trace: VecDeque<String>,
    keep: usize,
}

/// The moment at which every story begins.
pub(crate) const BEGIN: u64 = 1_800_000_000_000;

impl World {
    pub(crate) fn new(seed: u64, keep: usize) -> Self {
        let mut random = Random::new(seed);
        let calm = random.percent(40);
        Self::of(Scenario::draw(&mut random, calm), random, keep)
    }

    /// One of which no fault but those that are made to strike disturbs the course.
    pub(crate) fn new_calm(seed: u64, keep: usize) -> Self {
        let mut random = Random::new(seed);
        Self::of(Scenario::draw(&mut random, true), random, keep)
    }

    fn of(scenario: Scenario, mut random: Random, keep: usize) -> Self {
        let nodes = Node::draw(&scenario, &mut random);
        let job = scenario.job.clone();
        let skews = scenario.skews;
        World {
            random,
            now: BEGIN,
            queue: BinaryHeap::new(),
            number: 0,
            api: Api::new(job),
            nodes,
            containers: BTreeMap::new(),
            etcd: Etcd::default(),
            gateway: Gateway::new(BEGIN),
            replicas: [Replica::new(skews[0]), Replica::new(skews[1])],
            lease: (0, 0),
            training: Training::new(&scenario),
            ghost: Ghost::default(),
            counts: Counts::default(),
            defect: None,
            storm: false,
            ambush: None,
            violation: None,
            lives: 0,
            trace: VecDeque::new(),
            keep,
            scenario,
        }
    }

    pub(crate) fn after(&mut self, ms: u64, what: What) {
        self.number += 1;
        self.queue.push(Entry { at: self.now.saturating_add(ms), number: self.number, what });
    }

    /// A number that no replica or container has had.
    pub(crate) fn new_life(&mut self) -> u64 {
        self.lives += 1;
        self.lives
    }

    /// The next thing happens; false when a rule was broken.
    pub(crate) fn step(&mut self) -> bool {
        if self.violation.is_some() {
            return false;
        }
        let Some(entry) = self.queue.pop() else { return false };
        self.now = self.now.max(entry.at);
        self.counts.events += 1;
        self.spring(&entry.what);
        self.happen(entry.what);
        self.violation.is_none()
    }

    /// What happens until then.
    pub(crate) fn run_until(&mut self, at: u64) -> bool {
        while self.queue.peek().is_some_and(|e| e.at <= at) {
            if !self.step() {
                return false;
            }
        }
        self.now = self.now.max(at);
        self.violation.is_none()
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Look { at, life } => self.look(at, life),
            What::Write { at, life } => self.write(at, life),
            What::Act { at, life } => self.act(at, life),
            What::Seen { at, life, news } => self.seen(at, life, news),
            What::Start { at } => self.start_replica(at),
            What::Renew { at, life } => self.renew(at, life),
            What::Schedule => self.schedule(),
            What::Begin { uid } => self.begin(&uid),
            What::Signal { uid, life } => self.signal(&uid, life),
            What::GraceOver { uid, life } => self.grace_over(&uid, life),
            What::Heartbeat { uid, life } => self.heartbeat(&uid, life),
            What::Told { uid, life, assignment } => self.told(&uid, life, &assignment),
            What::Tick { uid, life } => self.tick(&uid, life),
            What::Ends { uid, life, generation, exit } => self.process_ends(&uid, life, generation, exit),
            What::Gone { uid, life, generation } => self.group_gone(&uid, life, generation),
            What::Saved { uid, life, generation, step, exit } => self.saved(&uid, life, generation, step, exit),
            What::Train { generation } => self.train(generation),
            What::Report { uid, report } => self.take_report(&uid, *report),
            What::Sweep => self.sweep(),
            What::Fault => self.fault(),
            What::Mend(mend) => self.mend(mend),
        }
    }

    /// Notes an event for people. Costs nothing where nobody asked for it.
    pub(crate) fn note(&mut self, text: impl FnOnce(&World) -> String) {
        if self.keep == 0 {
            return;
        }
        let ms = self.now - BEGIN;
        let line = format!("{:>6}.{:03} {}", ms / 1000, ms % 1000, text(self));
        if self.trace.len() >= self.keep {
            self.trace.pop_front();
        }
        self.trace.push_back(line);
    }

    /// A rule that does not hold ends the run.
    pub(crate) fn demand(&mut self, holds: bool, rule: Rule, what: impl FnOnce() -> String) {
        if holds || self.violation.is_some() {
            return;
        }
        let violation = Violation { rule, at_ms: self.now - BEGIN, what: what() };
        self.note(|_| format!("VIOLATION {violation}"));
        self.violation = Some(violation);
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.violation.is_some()
    }

    pub(crate) fn outcome(self, seed: u64, point: Option<Point>) -> Outcome {
        let counts = Counts { virtual_ms: self.now - BEGIN, ..self.counts };
        Outcome { seed, point, violation: self.violation, trace: self.trace.into(), counts }
    }
}
