//! The process table as a kubelet keeps it: which workers there should be, what became of each, what is due. Pure:
//! it takes `now` and gives [`Order`]s, which the runner carries out on real processes.

use std::time::Duration;

use eto_engine::contract::{Readiness, WorkerPhase, WorkerRequest};
use eto_engine::observe::{ContainerEnd, Pod};
use eto_engine::state::RoundMode;
use eto_engine::time::Time;

use crate::process::Launch;

/// First wait before a restart in place; doubles with each.
const BACK_OFF: Duration = Duration::from_secs(1);
/// Longest wait before a restart in place.
const MAX_BACK_OFF: Duration = Duration::from_secs(60);
/// A worker that ran this long starts its back-off anew.
const RESET_AFTER: Duration = Duration::from_secs(600);

/// A worker to be: what its pod says, as far as it matters to a process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Blueprint {
    /// Name of its pod.
    pub name: String,
    pub index: u32,
    /// Generation of its round, and the workers in it.
    pub round: u64,
    pub size: u32,
    pub template_hash: String,
    pub request: WorkerRequest,
    pub launch: Launch,
    /// SIGTERM to SIGKILL.
    pub grace: Duration,
    /// If it fails it is started again here (`restartPolicy: OnFailure`), else it has failed.
    pub restart_in_place: bool,
}

/// Something to do to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Start the worker with this uid as run `run`.
    Start {
        uid: String,
        run: u64,
    },
    Stop {
        uid: String,
        grace: Duration,
    },
}

/// Where a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not started: workers of an older round still run.
    Waiting,
    /// Its supervisor was started.
    Starting,
    Running,
    /// It failed and is started again at this time.
    BackOff(Time),
    Ended(i32),
}

/// One worker.
#[derive(Clone, Debug)]
pub struct Worker {
    pub uid: String,
    pub plan: Blueprint,
    pub created: Time,
    pub started: Option<Time>,
    pub changed: Option<Time>,
    pub state: State,
    pub restarts: u32,
    pub deleting: Option<Time>,
    /// Process id of the command, which is its process group's too.
    pub pid: Option<i32>,
    /// Which start this is, over all workers.
    pub run: u64,
    /// How it ended last, for people.
    pub note: Option<String>,
    /// Restarts in a row without a long run between them.
    failures_in_a_row: u32,
    /// Exit code of the process before the one that runs or is to run.
    pub last_code: Option<i32>,
}

impl Worker {
    /// Whether a process of it is there.
    pub fn has_process(&self) -> bool {
        matches!(self.state, State::Starting | State::Running)
    }

    fn pod(&self) -> Pod {
        let (phase, ready) = match self.state {
            State::Waiting | State::Starting => (WorkerPhase::Pending, Readiness::NotReady),
            State::Running => (WorkerPhase::Running, Readiness::Ready),
            // As a pod whose container waits in CrashLoopBackOff.
            State::BackOff(_) => (WorkerPhase::Running, Readiness::NotReady),
            State::Ended(0) => (WorkerPhase::Succeeded, Readiness::NotReady),
            State::Ended(_) => (WorkerPhase::Failed, Readiness::NotReady),
        };
        Pod {
            name: self.plan.name.clone(),
            uid: self.uid.clone(),
            index: self.plan.index,
            round: self.plan.round,
            round_size: self.plan.size,
            incarnation: self.plan.round,
            mode: RoundMode::Recreate,
            template_hash: self.plan.template_hash.clone(),
            phase,
            reason: None,
            ready,
            created: self.created,
            started: self.started,
            ready_changed: self.changed,
            ended: self.changed.filter(|_| matches!(self.state, State::Ended(_))),
            node: Some(NODE.to_owned()),
            unschedulable: None,
            waiting: matches!(self.state, State::BackOff(_)).then(|| "CrashLoopBackOff".to_owned()),
            deleting: self.deleting,
            restarts: self.restarts,
            exit_code: if let State::Ended(code) = self.state { Some(code) } else { None },
            last_end: self.last_code.map(|code| Box::new(ContainerEnd { code, ..ContainerEnd::default() })),
            memory_limit: 0,
            disrupted: false,
            request: self.plan.request,
        }
    }
}

/// The name of the one node there is.
pub const NODE: &str = "localhost";

/// All workers of the job.
#[derive(Debug, Default)]
pub struct Table {
    workers: Vec<Worker>,
    created: u64,
    runs: u64,
}

impl Table {
    pub fn workers(&self) -> &[Worker] {
        &self.workers
    }

    pub fn get(&self, uid: &str) -> Option<&Worker> {
        self.workers.iter().find(|worker| worker.uid == uid)
    }

    /// The workers as the engine wants to see them.
    pub fn pods(&self) -> Vec<Pod> {
        let mut pods: Vec<Pod> = self.workers.iter().map(Worker::pod).collect();
        pods.sort_by(|a, b| (a.index, &a.uid).cmp(&(b.index, &b.uid)));
        pods
    }

    /// Adds a worker; it is started by [`Table::due`].
    pub fn create(&mut self, plan: Blueprint, now: Time) {
        self.created += 1;
        self.workers.push(Worker {
            uid: format!("{}-{}", plan.name, self.created),
            plan,
            created: now,
            started: None,
            changed: None,
            state: State::Waiting,
            restarts: 0,
            deleting: None,
            pid: None,
            run: 0,
            note: None,
            failures_in_a_row: 0,
            last_code: None,
        });
    }

    /// Gives a worker up: it is stopped, and gone once its process has ended.
    pub fn delete(&mut self, uid: &str, now: Time) -> Vec<Order> {
        let Some(worker) = self.workers.iter_mut().find(|worker| worker.uid == uid) else { return Vec::new() };
        if !worker.has_process() {
            self.workers.retain(|worker| worker.uid != uid);
            return Vec::new();
        }
        if worker.deleting.is_some() {
            return Vec::new();
        }
        worker.deleting = Some(now);
        vec![Order::Stop { uid: uid.to_owned(), grace: worker.plan.grace }]
    }

    /// Gives all workers up.
    pub fn delete_all(&mut self, now: Time) -> Vec<Order> {
        let uids: Vec<String> = self.workers.iter().map(|worker| worker.uid.clone()).collect();
        uids.iter().flat_map(|uid| self.delete(uid, now)).collect()
    }

    /// What is due: workers that may start now. A round starts only when no process of an older one is left, so that
    /// two rounds never write the same checkpoint.
    pub fn due(&mut self, now: Time) -> Vec<Order> {
        let oldest = self.workers.iter().filter(|worker| worker.has_process()).map(|worker| worker.plan.round).min();
        let mut orders = Vec::new();
        for worker in self.workers.iter_mut().filter(|worker| worker.deleting.is_none()) {
            let may_start = match worker.state {
                State::Waiting => oldest.is_none_or(|oldest| oldest >= worker.plan.round),
                State::BackOff(until) => until <= now,
                _ => false,
            };
            if may_start {
                self.runs += 1;
                worker.run = self.runs;
                worker.state = State::Starting;
                worker.pid = None;
                orders.push(Order::Start { uid: worker.uid.clone(), run: worker.run });
            }
        }
        orders
    }

    /// When something is due next without anything happening.
    pub fn next_due(&self) -> Option<Time> {
        let restarts = self.workers.iter().filter_map(|worker| match worker.state {
            State::BackOff(until) => Some(until),
            _ => None,
        });
        restarts.min()
    }

    /// The worker's command runs.
    pub fn started(&mut self, uid: &str, run: u64, pid: i32, now: Time) {
        if let Some(worker) = self.of_run(uid, run) {
            worker.state = State::Running;
            worker.note = None;
            worker.pid = Some(pid);
            worker.started.get_or_insert(now);
            worker.changed = Some(now);
        }
    }

    /// The worker's command has ended (or could not be started).
    pub fn ended(&mut self, uid: &str, run: u64, code: i32, note: Option<String>, now: Time) {
        let Some(worker) = self.of_run(uid, run) else { return };
        let ran_long =
            worker.state == State::Running && worker.changed.is_some_and(|changed| now.since(changed) >= RESET_AFTER);
        worker.pid = None;
        worker.note = note;
        worker.changed = Some(now);
        worker.started.get_or_insert(now);
        if worker.deleting.is_some() {
            self.workers.retain(|worker| worker.uid != uid);
        } else if code != 0 && worker.plan.restart_in_place {
            worker.failures_in_a_row = if ran_long { 1 } else { worker.failures_in_a_row + 1 };
            worker.restarts += 1;
            worker.last_code = Some(code);
            worker.state = State::BackOff(now.plus(back_off(worker.failures_in_a_row)));
        } else {
            worker.state = State::Ended(code);
        }
    }

    fn of_run(&mut self, uid: &str, run: u64) -> Option<&mut Worker> {
        self.workers.iter_mut().find(|worker| worker.uid == uid && worker.run == run && worker.has_process())
    }
}

fn back_off(failures_in_a_row: u32) -> Duration {
    let doublings = failures_in_a_row.saturating_sub(1).min(16);
    (BACK_OFF * 2_u32.pow(doublings)).min(MAX_BACK_OFF)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    fn new(index: u32, round: u64, size: u32) -> Blueprint {
        Blueprint {
            name: format!("demo-worker-{index}"),
            index,
            round,
            size,
            grace: Duration::from_secs(3),
            restart_in_place: true,
            ..Blueprint::default()
        }
    }

    /// Starts all that is due and reports each as running.
    fn run_due(table: &mut Table, now: Time) -> Vec<String> {
        let orders = table.due(now);
        let mut uids = Vec::new();
        for order in orders {
            let Order::Start { uid, run } = order else { panic!("only starts are due") };
            table.started(&uid, run, 1000 + i32::try_from(run).unwrap(), now);
            uids.push(uid);
        }
        uids
    }

    #[test]
    fn a_round_waits_for_the_one_before() {
        let mut table = Table::default();
        for index in 0..2 {
            table.create(new(index, 1, 2), Time(0));
        }
        let first = run_due(&mut table, Time(0));
        assert_eq!(first.len(), 2);
        assert!(table.pods().iter().all(|pod| pod.ready == Readiness::Ready));
        // The next round is there already while the old one still stops.
        let orders = table.delete_all(Time(10));
        assert_eq!(orders.len(), 2);
        assert_eq!(orders[0], Order::Stop { uid: first[0].clone(), grace: Duration::from_secs(3) });
        assert!(table.delete(&first[0], Time(11)).is_empty(), "stopped once");
        for index in 0..3 {
            table.create(new(index, 2, 3), Time(12));
        }
        assert!(table.due(Time(13)).is_empty());
        table.ended(&first[0], 1, 143, None, Time(14));
        assert!(table.due(Time(14)).is_empty());
        table.ended(&first[1], 2, 143, None, Time(15));
        assert_eq!(run_due(&mut table, Time(15)).len(), 3);
        assert_eq!(table.pods().len(), 3);
        assert!(table.due(Time(16)).is_empty(), "nothing is due twice");
    }

    #[test]
    fn a_failed_worker_restarts_in_place_with_back_off() {
        let mut table = Table::default();
        table.create(new(0, 1, 1), Time(0));
        let uid = run_due(&mut table, Time(0)).remove(0);
        let mut now = Time(100);
        for (nth, wait) in [1000_u64, 2000, 4000, 8000].into_iter().enumerate() {
            let run = table.get(&uid).unwrap().run;
            table.ended(&uid, run, 1, None, now);
            let pod = table.pods().remove(0);
            assert_eq!(pod.restarts, u32::try_from(nth).unwrap() + 1);
            assert_eq!(pod.last_end.map(|end| end.code), Some(1));
            assert_eq!((pod.phase, pod.ready), (WorkerPhase::Running, Readiness::NotReady));
            assert_eq!(table.next_due(), Some(Time(now.0 + wait)));
            assert!(table.due(Time(now.0 + wait - 1)).is_empty());
            now = Time(now.0 + wait);
            assert_eq!(run_due(&mut table, now), std::slice::from_ref(&uid));
        }
        // After a long run the back-off begins anew.
        let run = table.get(&uid).unwrap().run;
        let later = now.plus(RESET_AFTER);
        table.ended(&uid, run, 1, None, later);
        assert_eq!(table.next_due(), Some(later.plus(BACK_OFF)));
    }

    #[test]
    fn without_restarts_it_has_failed_and_success_is_success() {
        let mut table = Table::default();
        table.create(Blueprint { restart_in_place: false, ..new(0, 1, 2) }, Time(0));
        table.create(Blueprint { restart_in_place: false, ..new(1, 1, 2) }, Time(0));
        let uids = run_due(&mut table, Time(0));
        table.ended(&uids[0], 1, 3, Some("why".to_owned()), Time(5));
        table.ended(&uids[1], 2, 0, None, Time(6));
        let pods = table.pods();
        assert_eq!((pods[0].phase, pods[0].exit_code), (WorkerPhase::Failed, Some(3)));
        assert_eq!((pods[1].phase, pods[1].exit_code), (WorkerPhase::Succeeded, Some(0)));
        assert!(table.delete_all(Time(7)).is_empty());
        assert!(table.workers().is_empty());
    }

    #[test]
    fn late_news_of_an_older_run_change_nothing() {
        let mut table = Table::default();
        table.create(new(0, 1, 1), Time(0));
        let uid = run_due(&mut table, Time(0)).remove(0);
        table.ended(&uid, 1, 1, None, Time(1));
        run_due(&mut table, Time(2000));
        table.ended(&uid, 1, 0, None, Time(2001));
        table.started(&uid, 1, 7, Time(2002));
        let worker = table.get(&uid).unwrap();
        assert_eq!((worker.state, worker.pid, worker.restarts), (State::Running, Some(1002), 1));
    }
}
