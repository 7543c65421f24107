//! `eto-agent run`: the loop that carries events to the machine and does what it says.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

use eto_membership::agent::{Agent, Command, Event, Identity, Launch, Refusal};
use eto_membership::{MemberState, Order, Report, Round};
use hyper::StatusCode;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep_until, timeout};

use crate::api::{self, Wish};
use crate::children::Children;
use crate::client::Link;
use crate::clock::Clock;
use crate::drain::DrainFile;
use crate::memory::Memory;
use crate::metrics::Meter;
use crate::oom::OomKills;
use crate::probe::Probes;
use crate::serve::{Answer, Call, listen, serve};
use crate::settings::Settings;
use crate::signals::{Seen, Signals};
use crate::store::Stores;

/// How often the drain file is looked at while processes run.
const LOOK: Duration = Duration::from_millis(250);
/// How often it is looked at whether the gateway is reached, and what the kernel has done to processes.
const SLOW_LOOK: Duration = Duration::from_secs(15);
/// What a script gets to say where it stands, when it hangs, before it is asked to stop.
const DUMP: Duration = Duration::from_secs(1);
/// What the last report may take. What it says is seen in the pod's status too, only later.
const LAST_WORD: Duration = Duration::from_millis(1_500);

/// Why the agent could not begin.
#[derive(Debug, thiserror::Error)]
#[error("could not {what}: {source}")]
pub struct RunError {
    what: &'static str,
    source: std::io::Error,
}

fn failed(what: &'static str) -> impl FnOnce(std::io::Error) -> RunError {
    move |source| RunError { what, source }
}

/// A line of the agent's own among the script's output.
pub(crate) fn say(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "eto-agent: {text}");
}

/// Runs `command` in the rounds that name this pod, until the job or the pod ends; gives the exit code.
///
/// It waits for every child of the process, so the process must be its own.
pub async fn run(settings: Settings, command: &[OsString]) -> Result<i32, RunError> {
    let memory = Memory::open(settings.folder.as_deref()).map_err(failed("find a folder that it can write to"))?;
    let (launcher, stop_signal) = (settings.launcher, settings.stop_signal);
    let mut signals = Signals::listen(stop_signal).map_err(failed("listen for signals"))?;
    let oom = OomKills::of(&settings.cgroup);
    let children = Children::new(command, launcher, settings.keeps_lines, stop_signal, oom)
        .map_err(failed("become the parent of what its processes leave behind"))?;
    let (calls_in, mut calls) = mpsc::channel(16);
    let local = TcpListener::bind(("127.0.0.1", 0)).await.map_err(failed("listen on localhost"))?;
    let api_url = format!("http://{}", local.local_addr().map_err(failed("listen on localhost"))?);
    if let Err(error) = memory.set_api(&api_url) {
        say(&format!("could not note where its API is, so `eto-agent ready` can't ask: {error}"));
    }
    tokio::spawn(serve(local, true, calls_in.clone()));
    serve_metrics(&settings, calls_in).await;

    let clock = Clock::start();
    let stores = Stores::at(settings.own_address());
    let agent = Agent::new(Identity {
        pod_uid: settings.pod_uid,
        address: settings.pod_ip,
        processes: settings.processes,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        incarnation: format!("{:016x}", rand::random::<u64>()),
        stop_grace_ms: settings.stop_grace_ms,
        stop_signal: settings.stop_signal as i32,
        native: children.is_torchrun(),
        lost_generation: memory.started(),
    });
    let link = settings.client.connect();
    link.send(agent.report());
    let meter = Meter::new(clock.now_ms());
    let mut shell = Shell {
        agent,
        children,
        stores,
        link,
        memory,
        clock,
        meter,
        drain: None,
        probes: Probes::new(),
        api_url,
        terminate_at: None,
        code: None,
    };
    let (mut look, mut slow_look) = (interval(LOOK), interval(SLOW_LOOK));
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    slow_look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    slow_look.tick().await;
    let code = loop {
        if let Some(code) = shell.code {
            break code;
        }
        let deadline = shell.agent.next_deadline().map(|at| shell.clock.instant(at));
        tokio::select! {
            assignment = shell.link.next() => shell.assigned(assignment),
            signal = signals.next() => shell.signalled(&signal),
            Some(call) = calls.recv() => shell.answer(call),
            () = until(deadline) => { shell.happen(Event::Tick); }
            () = until(shell.terminate_at) => {
                shell.terminate_at = None;
                shell.children.terminate();
            }
            _ = look.tick(), if shell.drain.is_some() => shell.look(),
            _ = slow_look.tick() => shell.look_around(),
            () = shell.probes.news() => shell.link.send(shell.report()),
        }
    };
    // Whoever asks now is told that it ends.
    drop(calls);
    let _ = timeout(LAST_WORD, shell.link.delivered()).await;
    Ok(code)
}

async fn until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

async fn serve_metrics(settings: &Settings, calls: mpsc::Sender<Call>) {
    if settings.metrics_port == 0 {
        return;
    }
    let address = SocketAddr::new(settings.own_address(), settings.metrics_port);
    let Some(listener) = listen(address).await else { return };
    tokio::spawn(serve(listener, false, calls));
}

struct Shell {
    agent: Agent,
    children: Children,
    stores: Stores,
    link: Link,
    memory: Memory,
    clock: Clock,
    meter: Meter,
    drain: Option<DrainFile>,
    probes: Probes,
    api_url: String,
    /// When processes that were sent another signal before are asked to stop.
    terminate_at: Option<tokio::time::Instant>,
    /// Set at the end.
    code: Option<i32>,
}

impl Shell {
    /// Gives an event to the machine, does what it says, and what comes of that.
    fn happen(&mut self, event: Event) -> Option<Refusal> {
        let mut refusal = None;
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            if matches!(event, Event::GroupGone { .. })
                && let Some(step) = self.drain.as_mut().and_then(|d| d.look(true))
            {
                events.push_front(event);
                events.push_front(Event::CheckpointTold { generation: None, step });
                continue;
            }
            let now_ms = self.clock.now_ms();
            for command in self.agent.step(event, now_ms) {
                match command {
                    Command::Start(launch) => events.extend(self.start(&launch, now_ms)),
                    Command::GoOn { generation } => self.go_on(generation),
                    Command::Terminate => self.terminate(),
                    Command::Kill => {
                        self.meter.kill();
                        self.children.kill();
                    }
                    Command::Report => self.link.send(self.report()),
                    Command::Refuse(why) => {
                        self.meter.refuse();
                        refusal = Some(why);
                    }
                    Command::End { code } => self.code = Some(code),
                }
            }
            self.meter.observe(&self.agent, now_ms);
        }
        let round = self.agent.assignment().filter(|_| self.agent.is_ready()).map(|a| &a.round);
        self.probes.enter(round.zip(self.agent.rank()));
        refusal
    }

    /// Asks the processes to stop; those of a job that hangs can say where they stand before.
    fn terminate(&mut self) {
        let hung = self.agent.assignment().is_some_and(|a| a.hung);
        if hung && self.children.dump() {
            say("no progress any more: asked the script to say where it stands");
            self.terminate_at = Some(tokio::time::Instant::now() + DUMP);
        } else {
            self.children.terminate();
        }
    }

    /// What the machine tells, with what is known of processes that failed.
    fn report(&self) -> Report {
        let step_work_us = self.meter.step_work_us(self.clock.now_ms());
        let report = Report { step_work_us, out_of_reach: self.probes.out_of_reach(), ..self.agent.report() };
        match report.state {
            MemberState::Exited { code, .. } if code != 0 => {
                let (last_lines, out_of_memory) =
                    (self.children.last_lines().to_owned(), self.children.out_of_memory());
                Report { last_lines, out_of_memory, ..report }
            }
            _ => report,
        }
    }

    fn start(&mut self, launch: &Launch, now_ms: u64) -> Vec<Event> {
        let generation = launch.generation();
        let (rank, size) = (launch.rank, launch.assignment.round.members.len());
        say(&format!("round {generation}: starting as member {rank} of {size}"));
        self.note_started(generation);
        self.meter.start(now_ms);
        // It was meant for those before.
        self.terminate_at = None;
        if let Err(error) = self.stores.prepare(launch) {
            say(&format!("round {generation}: the store can't be served: {error}"));
            return self.children.refuse(generation);
        }
        let path = self.memory.drain_file(generation);
        let mut more = BTreeMap::from([
            ("ETO_DRAIN_FILE".to_owned(), path.clone().into_os_string()),
            ("ETO_AGENT".to_owned(), OsString::from(&self.api_url)),
        ]);
        more.extend(self.tell_hosts(&launch.assignment.round));
        self.drain = Some(DrainFile::fresh(path));
        self.children.start(launch, &more)
    }

    /// What runs works for this round from now on.
    fn go_on(&mut self, generation: u64) {
        say(&format!("round {generation}: what runs goes on in it"));
        self.note_started(generation);
        if let Some(round) = self.agent.assignment().map(|a| a.round.clone()) {
            self.tell_hosts(&round);
        }
    }

    fn note_started(&self, generation: u64) {
        if let Err(error) = self.memory.set_started(generation) {
            say(&format!("could not note the round, so an agent started again here may join it twice: {error}"));
        }
    }

    /// Writes the members of a round for launchers that read files. Gives the variables that name them.
    fn tell_hosts(&self, round: &Round) -> Vec<(String, OsString)> {
        let hosts = [
            ("ETO_HOSTFILE", self.memory.set_hostfile(round)),
            ("ETO_HOST_DISCOVERY_SCRIPT", self.memory.set_discovery(round)),
        ];
        let named = |(name, written): (&str, std::io::Result<std::path::PathBuf>)| match written {
            Ok(path) => Some((name.to_owned(), path.into_os_string())),
            Err(error) => {
                say(&format!("could not write the file of {name}: {error}"));
                None
            }
        };
        hosts.into_iter().filter_map(named).collect()
    }

    fn assigned(&mut self, assignment: eto_membership::Assignment) {
        let (generation, order, why) = (assignment.round.generation, assignment.order, assignment.why.clone());
        let before = (self.agent.generation(), self.agent.assignment().map(|a| a.order));
        let refusal = self.happen(Event::Assigned(Box::new(assignment)));
        if let Some(refusal) = refusal {
            say(&format!("round {generation}, {order:?}, is refused: {refusal}"));
        } else if before != (generation, Some(order)) && order != Order::Run {
            say(&format!("round {generation}: {order:?}{}{why}", if why.is_empty() { "" } else { ": " }));
        } else if before != (generation, Some(order)) && self.agent.rank().is_none() {
            say(&format!("round {generation} runs without this pod"));
        }
    }

    fn signalled(&mut self, seen: &Seen) {
        match seen {
            Seen::Child => {
                for event in self.children.reap() {
                    self.happen(event);
                }
            }
            Seen::Stop => {
                say("asked to stop");
                self.happen(Event::Signalled);
            }
            Seen::Other(name) => self.children.forward(*name),
        }
    }

    /// Looks at the drain file while the script runs.
    fn look(&mut self) {
        if let Some(step) = self.drain.as_mut().and_then(|d| d.look(false)) {
            self.happen(Event::CheckpointTold { generation: None, step });
        }
    }

    fn look_around(&mut self) {
        self.children.look();
        if let (false, Some(trouble)) = (self.link.counts().is_connected(), self.link.counts().trouble()) {
            say(&format!("the membership gateway is not reached, training goes on: {trouble}"));
        }
    }

    fn answer(&mut self, call: Call) {
        let answer = match api::read(call.local, call.method.as_str(), &call.path, &call.body) {
            Ok(wish) => self.grant(wish),
            Err(answer) => answer,
        };
        // Whoever asked may have gone.
        let _ = call.answer.send(answer);
    }

    fn grant(&mut self, wish: Wish) -> Answer {
        match wish {
            Wish::Alive => Answer::text(StatusCode::OK, "ok\n"),
            Wish::Ready if self.agent.is_ready() => Answer::text(StatusCode::OK, "ok\n"),
            Wish::Ready => Answer::text(StatusCode::SERVICE_UNAVAILABLE, "no process of the round in force runs\n"),
            Wish::Metrics => {
                let page = self.meter.page(&self.agent, self.link.counts(), self.clock.now_ms());
                Answer::text(StatusCode::OK, page)
            }
            Wish::Round => Answer::json(StatusCode::OK, &api::round(&self.agent)),
            Wish::Dump { generation, pid, signal } => {
                if self.children.wants_dump(generation, pid, signal) {
                    Answer::json(StatusCode::OK, &json!({ "generation": self.agent.generation() }))
                } else {
                    let error = "the process is none of the round that runs here";
                    Answer::json(StatusCode::CONFLICT, &json!({ "error": error }))
                }
            }
            Wish::Tell(event) => {
                if let Some(why) = self.happen(event) {
                    return Answer::json(StatusCode::CONFLICT, &json!({ "error": why.to_string() }));
                }
                self.link.update(self.report());
                Answer::json(StatusCode::OK, &json!({ "generation": self.agent.round_of_processes() }))
            }
        }
    }
}
