//! The agents and their leader.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use eto_agent::client::{Client, Link, Token};
use eto_gateway::{Change, Fence, Groups, Identity, Store, StoreSettings};
use eto_membership::{Assignment, Group, MemberState, Order, Report};
use futures::StreamExt;
use tokio::sync::{mpsc, watch};

use crate::support::facts::{assignment, report};

/// Agents that begin in each tenth of a second: a cluster starts pods, not all at one moment.
const PER_TICK: usize = 10;

/// After the last has begun.
const JOIN: Duration = Duration::from_secs(300);

pub(crate) struct Fleet {
    store: Store,
    groups: Groups,
    fence: Fence,
    jobs: Vec<Job>,
    agents: usize,
    generation: u64,
}

struct Job {
    uid: String,
    group: watch::Receiver<Option<Arc<Group>>>,
    told: mpsc::UnboundedReceiver<(u64, Order, Instant)>,
}

/// How long things took.
#[derive(Default)]
pub(crate) struct Rounds {
    pub(crate) told: Vec<Duration>,
    pub(crate) stopped: Vec<Duration>,
    pub(crate) whole: Vec<Duration>,
}

impl Fleet {
    /// All agents join their jobs, and the leader sees them.
    pub(crate) async fn join(
        settings: &StoreSettings,
        identity: &Identity,
        url: &str,
        jobs: usize,
        agents: usize,
    ) -> Self {
        let store = Store::connect(settings).unwrap();
        let groups = store.follow();
        let fence = store.lead("bench").await.unwrap();
        let tls = Client::tls(identity.ca_pem.as_bytes()).unwrap();
        let mut senders = HashMap::new();
        let mut all = Vec::new();
        let mut begun = 0;
        for job in 0..jobs {
            let uid = format!("job-{job}");
            let (tell, told) = mpsc::unbounded_channel();
            for agent in 0..agents {
                let token = Token::Text(format!("pod-{job}-{agent}@{uid}"));
                let link = Client::with_tls(url, Arc::clone(&tls), token).unwrap().connect();
                tokio::spawn(live(link, tell.clone()));
                begun += 1;
                if begun % PER_TICK == 0 {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            let (group_in, group) = watch::channel(None);
            senders.insert(uid.clone(), group_in);
            all.push(Job { uid, group, told });
        }
        tokio::spawn(spread(groups.clone(), senders));
        let complete = |uid: &str| groups.get(uid).is_some_and(|g| g.members.len() == agents);
        let limit = Instant::now() + JOIN;
        for job in &all {
            while !complete(&job.uid) {
                assert!(Instant::now() < limit, "the agents of {} did not join", job.uid);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        Fleet { store, groups, fence, jobs: all, agents, generation: 0 }
    }

    /// A new round for the first `jobs` of them, `at_once` at a time.
    pub(crate) async fn rounds(&mut self, at_once: usize, jobs: usize) -> Rounds {
        assert!(self.groups.synced());
        self.generation += 1;
        let (store, fence, generation, agents) = (&self.store, &self.fence, self.generation, self.agents);
        let round = |job| round(store, fence, job, generation, agents);
        let done: Vec<_> =
            futures::stream::iter(self.jobs.iter_mut().take(jobs)).map(round).buffer_unordered(at_once).collect().await;
        let mut rounds = Rounds::default();
        for (told, stopped, whole) in done {
            rounds.told.extend(told);
            rounds.stopped.push(stopped);
            rounds.whole.push(whole);
        }
        rounds
    }
}

/// One round of a job, as the operator makes it: all stop, all have said so, all run.
async fn round(
    store: &Store,
    fence: &Fence,
    job: &mut Job,
    generation: u64,
    agents: usize,
) -> ([Duration; 2], Duration, Duration) {
    let began = Instant::now();
    store.assign(fence, &job.uid, &shaped(generation, Order::Stop, agents)).await.unwrap();
    let last = all_told(job, generation, Order::Stop, agents).await;
    let stop_told = last - began;
    job.group.wait_for(|g| g.as_ref().is_some_and(|g| is_stopped(g, generation, agents))).await.unwrap();
    let stopped = began.elapsed();
    let running = Instant::now();
    store.assign(fence, &job.uid, &shaped(generation, Order::Run, agents)).await.unwrap();
    let last = all_told(job, generation, Order::Run, agents).await;
    ([stop_told, last - running], stopped, last - began)
}

/// An assignment with as many members.
fn shaped(generation: u64, order: Order, agents: usize) -> Assignment {
    let mut assignment = assignment(generation, order);
    let first = assignment.round.members[0].clone();
    assignment.round.members =
        (0..u32::try_from(agents).unwrap()).map(|index| eto_membership::Member { index, ..first.clone() }).collect();
    assignment
}

fn is_stopped(group: &Group, generation: u64, agents: usize) -> bool {
    let stopped = |r: &Report| r.generation == generation && r.state == MemberState::Idle;
    group.members.values().filter(|m| stopped(&m.report)).count() == agents
}

/// Waits until all agents of a job were told; when the last was.
async fn all_told(job: &mut Job, generation: u64, order: Order, agents: usize) -> Instant {
    let mut last = Instant::now();
    let mut left = agents;
    while left > 0 {
        let (g, o, at) = job.told.recv().await.unwrap();
        if (g, o) == (generation, order) {
            last = at;
            left -= 1;
        }
    }
    last
}

/// An agent: does at once what it is told, and says so.
async fn live(mut link: Link, tell: mpsc::UnboundedSender<(u64, Order, Instant)>) {
    link.send(report(0));
    loop {
        let assignment = link.next().await;
        let generation = assignment.round.generation;
        if tell.send((generation, assignment.order, Instant::now())).is_err() {
            return;
        }
        let state = match assignment.order {
            Order::Run => MemberState::Running { generation },
            Order::Stop | Order::End => MemberState::Idle,
        };
        link.send(Report { generation, state, ..report(0) });
    }
}

/// Hands each job's group to whoever waits for it.
async fn spread(groups: Groups, jobs: HashMap<String, watch::Sender<Option<Arc<Group>>>>) {
    let mut changes = groups.subscribe();
    loop {
        if let Change::Group { job_uid, group, .. } = changes.next().await
            && let Some(sender) = jobs.get(&job_uid)
        {
            sender.send_replace(group);
        }
    }
}
