//! What to do: the life of a job as a pure step from facts to actions.
//!
//! Pods are recreated per round: a *round* is all pods made for one generation and size, with a fixed environment. A
//! resize, a changed template or a lost pod makes a new round: the old pods are deleted first, and the new ones are
//! made when all of them are gone. [`plan`] is idempotent: with its state written and its actions carried out,
//! planning again yields nothing.

mod agent;
mod budget;
mod checkpoint;
mod env;
mod gang;
mod history;
mod life;
mod memory;
mod outcome;
mod recover;
mod rounds;
mod step;
mod target;
mod victims;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::job::JobSpec;
use crate::observe::Pod;
use crate::placement::NodeChoice;
use crate::state::{ConditionReason, JobState, RoundMode};
use crate::time::Time;

pub use agent::{GATEWAY_PATIENCE, ProgressSeen, Stragglers};
pub use budget::budget;
pub use checkpoint::is_first_checkpoint;
pub use env::PodEnv;
pub use eto_membership::{Assignment, Checkpoint, Group, Ports};
pub use recover::{needs_group, recover};
pub use rounds::process_envs;
pub use target::{apply, effective_target};

/// When a job is looked at again after its actions were carried out, if nothing is heard before. What they did comes by the
/// watches of pods and of the group, which are faster; this is for what those do not tell.
pub const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// The next step for one job. Planning again on the same facts gives no actions (idempotent).
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The state to keep. If it differs from the one handed in, it is written *before* the actions are carried out,
    /// so that a crash in between continues with the same round and the same victims.
    pub state: JobState,
    /// What to do, in this order; actions of one kind may be carried out side by side.
    pub actions: Vec<Action>,
    /// What to tell; each of them once, when `state` was written.
    pub events: Vec<Event>,
    /// When to look again even if nothing happens (deadlines, back-off).
    pub next_look: Option<Time>,
    /// Pods are to be made with an agent, and [`PlanFacts::image`] does not say what it is to run: read it, and plan again.
    pub wants_image: bool,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// The headless service of the job must exist, named [`service_name`].
    EnsureService,
    /// Make a pod. Its name is to be a function of job, index and incarnation, so that making it twice (from a cache
    /// that lags behind) is refused, and a pod before it that still terminates is not in the way.
    CreatePod(NewPod),
    /// Delete a pod, if it still has this UID.
    DeletePod {
        /// Its name.
        name: String,
        /// Its UID: a precondition of the deletion.
        uid: String,
        /// Why, for the log.
        why: String,
    },
    /// Tell the agents of the job: write this to the job's group, unless what is there is of a higher generation or a
    /// later order. Asked for again until [`PlanFacts::group`] shows it.
    Assign(Box<Assignment>),
    /// The time to live has passed: delete the job itself.
    DeleteJob,
}

/// A pod to make.
#[derive(Clone, Debug, PartialEq)]
pub struct NewPod {
    /// Index in the job; 0 is the master.
    pub index: u32,
    /// Generation of the round that stands when it is made.
    pub round: u64,
    /// Workers in the round; with an agent, workers that the job is to have.
    pub size: u32,
    /// Which pod of its index it is: its name is a function of job, index and incarnation. Of pods that are recreated
    /// per round it is the round.
    pub incarnation: u64,
    /// How rounds are carried out in it: with [`RoundMode::Agent`] an agent runs the user's command.
    pub mode: RoundMode,
    /// Framework environment of this member (ranks, addresses), to override the user's. Empty with an agent, which
    /// gives each round's to the processes.
    pub env: PodEnv,
    /// Where the placement policy wants it; `None` = the scheduler chooses.
    pub node: Option<NodeChoice>,
    /// Bytes of memory that its training container can have at least, where it has a limit; `None` = as the template
    /// says.
    pub memory: Option<u64>,
}

/// An event to tell.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Warning rather than Normal.
    pub warning: bool,
    /// What it is about.
    pub reason: EventReason,
    /// One sentence for people.
    pub message: String,
}

/// The closed set of event reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventReason {
    /// A new round was decided.
    RoundStarted,
    /// All workers of the round are ready.
    RoundRunning,
    /// A resize is done.
    SuccessfulRescale,
    /// A worker failed or went away.
    WorkerLost,
    /// The members made no progress any more.
    Hung,
    /// A member is much slower than the others, for long.
    Straggler,
    /// No member has told of a checkpoint, or none can: what a restart loses, or would lose.
    NoCheckpoint,
    /// A worker's end was announced; another is to take its place.
    WorkerLeaving,
    /// Workers failed on a node again and again; new ones avoid it.
    NodeQuarantined,
    /// Somebody took a worker's owner reference away.
    WorkerReleased,
    /// Containers restarted in place.
    ContainersRestarted,
    /// The workers did not start in time and were released together.
    StartTimedOut,
    /// A growth was taken back.
    GrowthRefused,
    /// The user suspended the job.
    Suspended,
    /// The user resumed the job.
    Resumed,
    /// The end.
    JobSucceeded,
    /// The end.
    JobFailed,
    /// The user's template sets variables that belong to the operator.
    RankVariablesOverridden,
    /// The user's template has fields that no pod has; the pods are without them.
    UnknownFields,
    /// The job can't be scaled now.
    ScalingNotActive,
    /// A policy did not answer.
    PolicyFailed,
    /// A policy is not asked for a while.
    CircuitOpened,
    /// Another version of the module answers.
    PolicySwapped,
    /// A condition turned False or True with this reason.
    Condition(ConditionReason),
}

/// What the step needs to know besides the job, its state and its pods. The default: nothing special.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlanFacts<'a> {
    /// The last attempt to make pods was refused.
    pub refused: Option<&'a Refused>,
    /// What the API server says to each try to make pods of this round, a while now: it fails, and does not refuse.
    pub failing: Option<&'a str>,
    /// Nodes that are not ready or are gone.
    pub sick_nodes: Option<&'a BTreeSet<String>>,
    /// Nodes that are ready and have a fault (of a GPU, say): their workers are given up before others.
    pub faulty_nodes: Option<&'a BTreeSet<String>>,
    /// Pods that are at work and are to go soon, by UID: somebody announced the end of their node, or theirs.
    pub leaving: Option<&'a BTreeMap<String, Announced>>,
    /// How many workers would find a node now that is none of those that are to go, beside the workers there are; `None` =
    /// not known. Looked at where pods are recreated for each round and one of them is to go.
    pub room: Option<u32>,
    /// Where the placement policy wants new workers, by index.
    pub places: Option<&'a BTreeMap<u32, NodeChoice>>,
    /// Workers that the placement policy would give up, most dispensable first.
    pub victims: &'a [u32],
    /// How members reach each other.
    pub addressing: Addressing<'a>,
    /// Ports of the rounds.
    pub ports: Ports,
    /// What agents told, and what they were told last; `None` = there is no gateway, or it was not read yet. Rounds
    /// with an agent stand still without it.
    pub group: Option<&'a Group>,
    /// What there is to drive rounds with.
    pub agent: AgentFacts,
    /// The last progress that was seen; `None` = none since the operator began to look.
    pub progress: Option<ProgressSeen>,
    /// What is known of the command that the image has, for templates without one.
    pub image: ImageCommand<'a>,
    /// Members that are slow by their own word; `None` = nothing can be told of that.
    pub stragglers: Option<&'a Stragglers>,
}

/// What is known of the command (ENTRYPOINT and CMD) that a container's image has. An agent is put around a command, so
/// it has to be known before pods are made, where the template names none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageCommand<'a> {
    /// Images are not read: pods of such a template are recreated for each round.
    #[default]
    Unread,
    /// It can be had, and is not known now; a plan that needs it asks for it ([`Plan::wants_image`]). It is not so for
    /// longer than [`IMAGE_PATIENCE`] after that.
    Pending {
        /// Why it was not had the last time; `None` = it was not tried.
        last: Option<&'a str>,
    },
    /// It is known.
    Known,
    /// It was tried in vain, and is not tried again yet: why, and what to do.
    Failed(&'a str),
}

/// The longest that a job waits for its image to be read before its pods are made without an agent.
pub const IMAGE_PATIENCE: Duration = Duration::from_secs(15);

/// What there is to drive rounds with. The default: nothing, so that pods are recreated for each round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentFacts {
    /// A membership gateway is set up, which agents can reach.
    pub gateway: bool,
}

/// An end that was announced: of a node (by its taints, conditions or annotations), or of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// What said so, for people: `taint karpenter.sh/disrupted of node a`.
    pub why: String,
    /// When it will be over, where that is known.
    pub by: Option<Time>,
}

/// The API server refused to make pods (quota, admission, webhook).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Generation of the round whose pods were refused; a refusal of another round is ignored.
    pub round: u64,
    /// Pods of that round that exist.
    pub created: u32,
    /// What the API server said.
    pub message: String,
}

/// How the members of a round reach each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Addressing<'a> {
    /// By DNS names of the job's headless service.
    #[default]
    Service,
    /// All of them are processes on this host.
    Host(&'a str),
}

/// The stable host name of a worker (`spec.hostname` of its pod): `<job>-worker-<index>`, the master included.
pub fn hostname(job: &str, index: u32) -> String {
    format!("{job}-worker-{index}")
}

/// The name of the headless service of a job (`spec.subdomain` of its pods): the job's own.
pub fn service_name(job: &str) -> &str {
    job
}

/// The next step of a job. Reads nothing but its arguments; costs O(pods x log pods).
///
/// The shell writes `state` if it differs, then carries out `actions`, then tells `events`.
pub fn plan(job: &JobSpec, state: &JobState, pods: &[Pod], facts: &PlanFacts<'_>, now: Time) -> Plan {
    let mut step = step::Step::new(job, state, pods, facts, now);
    step.run();
    step.finish()
}
