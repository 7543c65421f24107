//! The embedded mode's shell: it strings the engine's steps together on real processes.
//!
//! One loop, one owner of all state. Events of processes, the clock, signals and keys come in; the engine's plan says
//! which workers there should be; the process table says what that means now.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use eto_cycle::wants::WantsCache;
use eto_engine::contract::Framework;
use eto_engine::plan::{Action, Addressing, PlanFacts, Ports as EnginePorts, plan, process_envs};
use eto_engine::state::{JobState, Memory};
use eto_engine::time::Time;
use eto_policy_host::{HostSettings, PolicyHost, Registry, Watcher};
use eto_signals::{Prometheus, PrometheusSettings};
use tokio::sync::mpsc;

use crate::display::Display;
use crate::load::Job;
use crate::logs::Logs;
use crate::news::News;
use crate::notices::Notices;
use crate::options::{Outcome, RunError, RunOptions, check_policy, check_template, system};
use crate::pod;
use crate::ports::Ports;
use crate::process::{ProcessEvent, RunId, Running, start};
use crate::reread::JobFile;
use crate::sources::{Sources, Target};
use crate::stops::{Stop, Stops};
use crate::table::{Order, Table};

/// Events of processes that may wait to be handled. When it is full, workers that write wait.
const EVENTS: usize = 1024;
/// Beyond its grace, a worker that was killed is waited for this long.
const KILL_MARGIN: Duration = Duration::from_secs(5);

/// Runs a job to its end.
pub async fn run(options: RunOptions) -> Result<Outcome, RunError> {
    let file = JobFile::new(&options.job);
    let job = crate::load::job(&options.job, now())?;
    let mut runner = Runner::set_up(job, file, options)?;
    let outcome = runner.main().await;
    runner.wait_for_the_end().await;
    Ok(outcome)
}

/// The wall clock as the engine counts it.
pub(crate) fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// What processes tell, and where they tell it.
struct Events {
    sender: mpsc::Sender<(RunId, ProcessEvent)>,
    receiver: mpsc::Receiver<(RunId, ProcessEvent)>,
}

pub(crate) struct Runner {
    pub(crate) job: Job,
    pub(crate) state: JobState,
    pub(crate) memory: Memory,
    pub(crate) table: Table,
    pub(crate) sources: Sources,
    pub(crate) registry: Arc<Registry>,
    pub(crate) wants: WantsCache,
    pub(crate) display: Display,
    pub(crate) notices: Notices,
    pub(crate) options: RunOptions,
    pub(crate) file: JobFile,
    running: HashMap<String, Running>,
    ports: Ports,
    port: Option<EnginePorts>,
    logs: Option<Logs>,
    events: Events,
    stops: Stops,
    next_look: Option<Time>,
    _watcher: Watcher,
}

impl Runner {
    fn set_up(job: Job, file: JobFile, options: RunOptions) -> Result<Runner, RunError> {
        if job.spec.suspend {
            return Err(RunError::Suspended);
        }
        check_template(&job, &options)?;
        let prometheus = options
            .prometheus
            .clone()
            .map(|url| Prometheus::new(PrometheusSettings { url, ..PrometheusSettings::default() }));
        let sources = Sources::new(&job.spec.key.namespace, prometheus.transpose()?);
        let cache_dir = options.cache.clone();
        let host = PolicyHost::new(HostSettings { cache_dir, ..HostSettings::default() })?;
        let registry = Registry::new();
        let watcher = crate::slow::tell_if_slow("compiling the policies, which takes a while the first time", || {
            Watcher::start(host, &registry, options.policies.dirs())
        })?;
        check_policy(&job, &registry, &options.policies)?;
        let stops = Stops::listen(options.limit).map_err(system("listen for signals"))?;
        let logs = options.logs.as_deref().map(Logs::open).transpose()?;
        // Last, so that an error above finds the terminal as it was.
        let display = Display::open(options.form, stops.keyboard()).map_err(system("use the terminal"))?;
        let (sender, receiver) = mpsc::channel(EVENTS);
        Ok(Runner {
            memory: Memory::new(now()),
            job,
            state: JobState::default(),
            table: Table::default(),
            sources,
            registry,
            wants: WantsCache::default(),
            display,
            notices: Notices::default(),
            file,
            options,
            running: HashMap::new(),
            ports: Ports::new(std::process::id()),
            port: None,
            logs,
            events: Events { sender, receiver },
            stops,
            next_look: None,
            _watcher: watcher,
        })
    }

    /// Runs until the job has ended or is told to stop. Workers may still be on their way out afterwards.
    async fn main(&mut self) -> Outcome {
        let mut tick = tokio::time::interval(self.options.period);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (changed, mut changes) = mpsc::channel(1);
        self.registry.on_change(move |_| {
            let _ = changed.try_send(());
        });
        self.tell_policies();
        self.tell_not_here();
        loop {
            let ended = self.step().await;
            self.refresh();
            if let Some(outcome) = ended {
                return outcome;
            }
            let wake = self.next_wake();
            tokio::select! {
                Some((id, event)) = self.events.receiver.recv() => self.take(&id, event),
                _ = tick.tick() => {
                    self.reread(now());
                    self.look();
                    self.decide();
                }
                Some(()) = changes.recv() => self.tell_policies(),
                stop = self.stops.next() => {
                    self.tell_stop(stop);
                    return Outcome::Stopped(stop.code());
                }
                () = wake => {}
            }
            // What else has come in is taken before planning: a worker that writes much costs no plan per line.
            for _ in 0..EVENTS {
                let Ok((id, event)) = self.events.receiver.try_recv() else { break };
                self.take(&id, event);
            }
        }
    }

    /// Stops every worker that is left and waits until all have ended. A second request to stop kills them.
    async fn wait_for_the_end(&mut self) {
        let orders = self.table.delete_all(now());
        self.carry_out(orders).await;
        let longest = self.table.workers().iter().map(|worker| worker.plan.grace).max().unwrap_or_default();
        let give_up = tokio::time::Instant::now() + longest + KILL_MARGIN;
        while self.table.workers().iter().any(crate::table::Worker::has_process) {
            tokio::select! {
                Some((id, event)) = self.events.receiver.recv() => self.take(&id, event),
                _ = self.stops.next() => {
                    for running in self.running.values_mut() {
                        running.stop(Duration::ZERO).await;
                    }
                }
                () = tokio::time::sleep_until(give_up) => break,
            }
            self.tell_changes();
            self.refresh();
        }
        self.tell_changes();
        self.tell_left();
    }

    /// What SIGKILL did not end (in the kernel, say) is named, so that somebody can look after it.
    fn tell_left(&mut self) {
        let left = self.table.workers().iter().filter(|worker| worker.has_process());
        let names: Vec<String> = left
            .map(|w| match self.running.get(&w.uid) {
                Some(running) => format!("{} (supervisor {})", w.plan.name, running.supervisor),
                None => w.plan.name.clone(),
            })
            .collect();
        if names.is_empty() {
            return;
        }
        let message = format!("not ended by SIGKILL: {}; look for their processes", names.join(", "));
        self.display.tell(now(), &News::Event { warning: true, reason: "NotEnded".to_owned(), message });
    }

    /// Plans and acts until there is nothing to do now. Gives the outcome once the job has ended.
    async fn step(&mut self) -> Option<Outcome> {
        // Each pass does something that can't be done twice; the bound only keeps a fault from spinning.
        for _ in 0..16 {
            let now = now();
            let pods = self.table.pods();
            let facts = PlanFacts {
                addressing: Addressing::Host(pod::ADDRESS),
                ports: self.round_ports(),
                ..PlanFacts::default()
            };
            let next = plan(&self.job.spec, &self.state, &pods, &facts, now);
            self.state = next.state;
            self.next_look = next.next_look;
            for event in &next.events {
                self.display.tell(now, &crate::notices::event(event));
            }
            let mut orders = Vec::new();
            for action in &next.actions {
                orders.extend(self.act(action, &facts, now));
            }
            orders.extend(self.table.due(now));
            let acted = !next.actions.is_empty() || !orders.is_empty();
            self.carry_out(orders).await;
            self.tell_changes();
            if !acted {
                break;
            }
        }
        self.outcome()
    }

    /// The job's end, once the engine has said so and nothing of it is left to stop.
    fn outcome(&self) -> Option<Outcome> {
        use eto_engine::state::Phase;
        match self.state.phase {
            Phase::Succeeded => Some(Outcome::Succeeded),
            Phase::Failed => Some(Outcome::Failed),
            _ => None,
        }
    }

    fn act(&mut self, action: &Action, facts: &PlanFacts<'_>, now: Time) -> Vec<Order> {
        match action {
            Action::CreatePod(new) => {
                let each = process_envs(&self.job.spec, &self.state, facts, new.index);
                match pod::blueprint(&self.job, new, &each, self.options.directory.as_deref()) {
                    Ok(plan) => self.table.create(plan, now),
                    // Checked before the start; the same template can't fail later.
                    Err(error) => tracing::error!(%error, index = new.index, "a worker can't be made"),
                }
                Vec::new()
            }
            Action::DeletePod { uid, .. } => self.table.delete(uid, now),
            // There is no service to make and no object to delete here, and no agent to tell: there is no gateway.
            Action::EnsureService | Action::DeleteJob | Action::Assign(_) => Vec::new(),
        }
    }

    /// The port of the next round: a new one whenever no worker is there, since the next to be made begin a round.
    fn round_ports(&mut self) -> EnginePorts {
        if self.table.workers().is_empty() || self.port.is_none() {
            let count = match self.job.spec.framework {
                // Each TensorFlow worker listens.
                Framework::TensorFlow => u16::try_from(self.job.spec.max).unwrap_or(u16::MAX),
                _ => 1,
            };
            let base = self.ports.take(count).unwrap_or_else(|| EnginePorts::default().base);
            self.port = Some(EnginePorts { base, span: 1 });
        }
        self.port.unwrap_or_default()
    }

    async fn carry_out(&mut self, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Start { uid, run } => self.start(&uid, run),
                Order::Stop { uid, grace } => {
                    if let Some(running) = self.running.get_mut(&uid) {
                        running.stop(grace).await;
                    }
                }
            }
        }
    }

    fn start(&mut self, uid: &str, run: u64) {
        let Some(worker) = self.table.get(uid) else { return };
        let id = RunId { uid: uid.to_owned(), run };
        match start(&self.options.supervisor, &worker.plan.launch, id, self.events.sender.clone()) {
            Ok(running) => {
                self.running.insert(uid.to_owned(), running);
            }
            Err(error) => {
                let why = format!("its supervisor could not be started: {error}");
                self.table.ended(uid, run, 127, Some(why), now());
            }
        }
    }

    fn take(&mut self, id: &RunId, event: ProcessEvent) {
        match event {
            ProcessEvent::Started { pid } => self.table.started(&id.uid, id.run, pid, now()),
            ProcessEvent::Output { line } => {
                let Some(index) = self.table.get(&id.uid).map(|worker| worker.plan.index) else { return };
                match &mut self.logs {
                    Some(logs) => logs.write(index, &line),
                    None => self.display.tell(now(), &News::Output { worker: index, line }),
                }
            }
            ProcessEvent::Ended { code, message } => {
                self.running.remove(&id.uid);
                self.table.ended(&id.uid, id.run, code, message, now());
            }
        }
    }

    /// Takes a reading of every running worker.
    fn look(&mut self) {
        let targets: Vec<Target> = self
            .table
            .workers()
            .iter()
            .filter_map(|worker| {
                let supervisor = self.running.get(&worker.uid)?.supervisor;
                Some(Target { name: worker.plan.name.clone(), run: worker.run, supervisor })
            })
            .collect();
        self.sources.look(&targets, now());
    }

    /// Until the engine or the process table has something due.
    fn next_wake(&self) -> impl Future<Output = ()> + use<> {
        let due = [self.next_look, self.table.next_due()].into_iter().flatten().min();
        async move {
            match due {
                Some(at) => tokio::time::sleep(at.since(now()).max(Duration::from_millis(10))).await,
                None => std::future::pending().await,
            }
        }
    }

    pub(crate) fn tell_not_here(&mut self) {
        for news in crate::notices::not_here(&self.job) {
            self.display.tell(now(), &news);
        }
    }

    fn tell_stop(&mut self, stop: Stop) {
        let news = News::Event { warning: false, reason: "Stopping".to_owned(), message: stop.to_string() };
        self.display.tell(now(), &news);
    }
}
