//! What a replica of the operator knows, and what it has in mind.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use eto_engine::job::JobSpec;
use eto_engine::observe::Pod;
use eto_engine::plan::{Action, AgentFacts, Group, PlanFacts, ProgressSeen, Refused, needs_group, plan, recover};
use eto_engine::state::{JobState, Phase, Victim};
use eto_engine::time::Time;
use eto_membership::{MemberRecord, MemberState, Order};

use crate::defects::Defect;
use crate::nodes::NodesSeen;

/// What a watch brings.
#[derive(Clone, Debug)]
pub(crate) enum News {
    Job { version: u64, spec: Arc<JobSpec>, stored: Option<Arc<JobState>> },
    Pod { uid: String, version: u64, pod: Option<Arc<Pod>> },
    Nodes(Arc<NodesSeen>),
    Group(Option<Arc<Group>>),
}

impl News {
    pub(crate) fn source(&self) -> usize {
        match self {
            News::Job { .. } => 0,
            News::Pod { .. } => 1,
            News::Nodes(_) => 2,
            News::Group(_) => 3,
        }
    }
}

/// What a leader has in mind for the job.
pub(crate) struct Mind {
    pub(crate) state: JobState,
    /// What it planned with.
    group: Option<Arc<Group>>,
    /// The last progress that it has heard of.
    progress: Option<ProgressSeen>,
    /// What it knows to be stored.
    saved: Option<Arc<JobState>>,
    pub(crate) todo: VecDeque<Action>,
    pub(crate) failed: bool,
    /// When it decided that the job is suspended, by its clock; `None` = it is not, as far as it knows.
    pub(crate) suspended: Option<Time>,
}

impl Mind {
    /// Whether, for all that it knew, a pod's agent could be told to stop.
    pub(crate) fn takes_for_reached(&self, uid: &str) -> bool {
        let heard = |g: &Group| g.members.get(uid).is_some_and(|r| !r.suspected);
        self.group.as_deref().is_none_or(heard)
    }

    /// Whether etcd, as it knew it, had word of this round.
    pub(crate) fn has_heard_of(&self, generation: u64) -> bool {
        self.group.as_deref().is_none_or(|g| g.highest_generation() >= generation)
    }

    /// Whether it knew of a pod that it trains in the round in force.
    pub(crate) fn knows_of_training(&self, uid: &str) -> bool {
        let Some((group, assigned)) = self.group.as_deref().and_then(|g| Some((g, g.assignment.as_ref()?))) else {
            return false;
        };
        let runs = MemberState::Running { generation: assigned.round.generation };
        let trains = |r: &MemberRecord| !r.suspected && r.report.state == runs && !r.report.leaving;
        assigned.order == Order::Run && group.members.get(uid).is_some_and(trains)
    }
}

/// One replica of the operator.
#[derive(Default)]
pub(crate) struct Replica {
    /// 0 = it does not run.
    pub(crate) life: u64,
    /// Another each time that it begins to lead; 0 = it does not.
    pub(crate) term: u64,
    /// Its clock against true time, in milliseconds.
    pub(crate) skew: i64,
    pub(crate) claim: Option<u64>,
    pub(crate) believes_until: u64,
    /// It stands still until then.
    pub(crate) stalled_until: u64,
    pub(crate) job: Option<(u64, Arc<JobSpec>, Option<Arc<JobState>>)>,
    pub(crate) pods: BTreeMap<String, (u64, Option<Arc<Pod>>)>,
    pub(crate) nodes: Arc<NodesSeen>,
    pub(crate) group: Option<Arc<Group>>,
    /// No watch brings anything before what it brought last.
    pub(crate) newest: [u64; 4],
    pub(crate) mind: Option<Mind>,
    pub(crate) refused: Option<Refused>,
    /// It writes or acts.
    pub(crate) busy: bool,
    /// When it looks next.
    pub(crate) look_at: u64,
}

impl Replica {
    pub(crate) fn new(skew: i64) -> Self {
        Replica { skew, ..Replica::default() }
    }

    /// What it had in mind, and all it knew, is gone.
    pub(crate) fn forget(&mut self) {
        let (skew, stalled_until) = (self.skew, self.stalled_until);
        *self = Replica { skew, stalled_until, ..Replica::default() };
    }

    pub(crate) fn stop_leading(&mut self) {
        (self.term, self.claim, self.mind, self.busy, self.refused) = (0, None, None, false, None);
    }
}

/// What follows from a plan.
pub(crate) enum Next {
    Write,
    Act,
    Wait(Option<Time>),
}

impl Replica {
    pub(crate) fn take_job(&mut self, version: u64, spec: Arc<JobSpec>, stored: Option<Arc<JobState>>) {
        if self.job.as_ref().is_some_and(|(known, ..)| *known >= version) {
            return;
        }
        // Another replica has written since. A status that was lost is written again from what it has in mind.
        if stored.is_some() && self.mind.as_ref().is_some_and(|m| m.saved != stored) {
            self.mind = None;
        }
        self.job = Some((version, spec, stored));
    }

    pub(crate) fn take_pod(&mut self, uid: String, version: u64, pod: Option<Arc<Pod>>) {
        let known = self.pods.entry(uid).or_insert((0, None));
        if known.0 < version {
            *known = (version, pod);
        }
    }

    /// Who is to be given up, as far as it knows.
    pub(crate) fn victims(&self) -> Vec<Victim> {
        let stored = || self.job.as_ref().and_then(|(.., stored)| stored.as_deref());
        self.mind.as_ref().map(|m| &m.state).or_else(stored).map_or_else(Vec::new, |s| s.victims.clone())
    }

    /// UIDs of the pods on nodes that are not ready whose agents are not heard of, for all that it knows.
    pub(crate) fn cut_off(&self) -> Vec<String> {
        let Some(group) = self.group.as_deref().filter(|_| !self.nodes.sick.is_empty()) else { return Vec::new() };
        let sick = |p: &&Arc<Pod>| p.node.as_ref().is_some_and(|n| self.nodes.sick.contains(n));
        let silent = |p: &&Arc<Pod>| group.members.get(&p.uid).is_none_or(|r| r.suspected);
        let pods = self.pods.values().filter_map(|(_, p)| p.as_ref());
        pods.filter(sick).filter(silent).map(|p| p.uid.clone()).collect()
    }

    /// Plans, and says what comes next.
    pub(crate) fn think(&mut self, now: Time, defect: Option<Defect>) -> Option<Next> {
        let (_, spec, stored) = self.job.clone()?;
        let pods: Vec<Pod> = self.pods.values().filter_map(|(_, p)| p.as_deref().cloned()).collect();
        let group = self.group.clone();
        if self.mind.is_none() && stored.is_none() && needs_group(&pods, true, group.as_deref()) {
            return None;
        }
        let mind = self.mind.get_or_insert_with(|| Mind {
            state: match &stored {
                Some(stored) => (**stored).clone(),
                None => recover(&spec, &pods, group.as_deref(), now),
            },
            group: None,
            progress: None,
            saved: stored.clone(),
            todo: VecDeque::new(),
            failed: false,
            suspended: None,
        });
        mind.progress = ProgressSeen::next(mind.progress, &mind.state, group.as_deref(), now);
        let refused = self.refused.take();
        let leaving = self.nodes.leaving(pods.iter());
        let facts = PlanFacts {
            refused: refused.as_ref(),
            sick_nodes: Some(&self.nodes.sick),
            leaving: Some(&leaving),
            group: group.as_deref(),
            agent: AgentFacts { gateway: true },
            progress: mind.progress.filter(|_| defect != Some(Defect::SeesNoHang)),
            ..PlanFacts::default()
        };
        let mut planned = plan(&spec, &mind.state, &pods, &facts, now);
        if let Some(defect) = defect {
            defect.spoil(&mut planned, &mind.state, spec.max);
        }
        mind.group.clone_from(&group);
        mind.state = planned.state;
        mind.todo = planned.actions.into();
        mind.suspended = (mind.state.phase == Phase::Suspended).then(|| mind.suspended.unwrap_or(now));
        mind.failed = false;
        Some(if stored.as_deref() != Some(&mind.state) {
            Next::Write
        } else if mind.todo.is_empty() {
            Next::Wait(planned.next_look)
        } else {
            Next::Act
        })
    }

    pub(crate) fn to_write(&self) -> Option<(u64, JobState)> {
        let version = self.job.as_ref().map(|(version, ..)| *version)?;
        Some((version, self.mind.as_ref()?.state.clone()))
    }

    pub(crate) fn written(&mut self, version: u64, state: &Arc<JobState>) {
        if let Some((known, _, stored)) = &mut self.job {
            (*known, *stored) = (version, Some(Arc::clone(state)));
        }
        if let Some(mind) = &mut self.mind {
            mind.saved = Some(Arc::clone(state));
        }
    }
}
