//! The processes of a round: started in a group of their own, stopped, and waited for with all that they started.
//!
//! The agent is the parent of every process that lost its own, as PID 1 of the container or else as the *subreaper* of
//! what it starts. So when it has no child left, nothing is left.
//!
//! SIGTERM (or the signal that the container has in its place) goes to the processes that the agent started, and when those
//! are gone to what they left behind: helpers of a script (torch's data loaders, say) that die before it does would make it
//! fail in the middle of its checkpoint, and what stays after a shell or launcher that died of the signal gets it next.
//! SIGKILL goes to all, in the group or not.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use eto_membership::agent::{CommandKind, Event, Exit, Launch, beginning};
use eto_membership::is_default;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::oom::OomKills;
use crate::proc::descendants_of;
use crate::tail::Tail;

/// What the script has no business with.
const HIDDEN: [&str; 3] = ["ETO_GATEWAY", "ETO_GATEWAY_CA", "ETO_TOKEN_FILE"];
/// Processes of a pod that can have a signal when the job hangs: far more than there are GPUs in a node.
const MOST_DUMPS: usize = 1024;
/// As a shell says that it has no such command, and that it can't run it.
const NOT_FOUND: i32 = 127;
const NOT_RUNNABLE: i32 = 126;

/// All processes that the agent has to do with.
#[derive(Debug)]
pub(crate) struct Children {
    command: Vec<OsString>,
    /// What it does about several processes, as the job says or as it looks.
    kind: CommandKind,
    /// Whether the end of what they write to stderr is kept.
    keeps_lines: bool,
    /// What asks them to stop.
    stop_signal: Signal,
    /// Of the last group that is gone.
    last_lines: String,
    /// Whether the last group that is gone ran out of memory.
    out_of_memory: bool,
    oom: OomKills,
    group: Option<Group>,
}

#[derive(Debug)]
struct Group {
    generation: u64,
    /// Its number, that of the first process; `None` if that could not be started.
    leader: Option<Pid>,
    /// Processes that the agent started and that run.
    mains: Vec<Pid>,
    /// They were asked to stop.
    asked: bool,
    /// So was what they left behind.
    rest_asked: bool,
    /// Who wants to be sent which signal when the job hangs.
    dumps: BTreeMap<i32, Signal>,
    /// What they write to stderr; `None` = that is the agent's own.
    tail: Option<Tail>,
}

impl Group {
    /// Nothing of it has been started yet.
    fn new(generation: u64) -> Group {
        let (leader, mains, dumps) = (None, Vec::new(), BTreeMap::new());
        Group { generation, leader, mains, asked: false, rest_asked: false, dumps, tail: None }
    }
}

/// The beginning of a file that a command names; `None` where there is none. Pipes are left alone: opening one would wait
/// for who writes it.
fn script(name: &str) -> Option<String> {
    beginning(std::fs::File::open(Some(Path::new(name)).filter(|p| p.is_file())?).ok()?)
}

impl Children {
    /// Becomes the parent of what loses its own, and prepares to start `command`. `launcher`: whether that starts the
    /// processes of this member by itself; `None` = see [`CommandKind`].
    pub(crate) fn new(
        command: &[OsString],
        launcher: Option<bool>,
        keeps_lines: bool,
        stop_signal: Signal,
        oom: OomKills,
    ) -> std::io::Result<Children> {
        nix::sys::prctl::set_child_subreaper(true)?;
        let words: Vec<String> = command.iter().map(|a| a.to_string_lossy().into_owned()).collect();
        let kind = CommandKind::of(&words, script);
        let kind = match launcher {
            Some(true) if kind != CommandKind::Torchrun => CommandKind::Launcher,
            Some(false) => CommandKind::Other,
            _ => kind,
        };
        let (command, last_lines) = (command.to_vec(), String::new());
        Ok(Children { command, kind, keeps_lines, stop_signal, last_lines, out_of_memory: false, oom, group: None })
    }

    /// The last lines that the group which is gone wrote to stderr.
    pub(crate) fn last_lines(&self) -> &str {
        &self.last_lines
    }

    pub(crate) fn out_of_memory(&self) -> bool {
        self.out_of_memory
    }

    /// Whether the command is a `torchrun` that starts the processes of this member.
    pub(crate) fn is_torchrun(&self) -> bool {
        self.kind == CommandKind::Torchrun
    }

    /// Tells a round as one whose processes could not be started.
    pub(crate) fn refuse(&mut self, generation: u64) -> Vec<Event> {
        self.forget();
        self.group = Some(Group::new(generation));
        let mut events = vec![Event::ProcessEnded { generation, exit: Exit::Code(NOT_RUNNABLE), main: true, left: 0 }];
        events.extend(self.reap());
        events
    }

    /// Starts the processes of a round, with `more` variables beside its own. What could not be started is told as a
    /// process that ended.
    pub(crate) fn start(&mut self, launch: &Launch, more: &BTreeMap<String, OsString>) -> Vec<Event> {
        let generation = launch.generation();
        self.forget();
        let tail = if self.keeps_lines { Tail::begin() } else { Ok(None) };
        let tail = tail.unwrap_or_else(|error| {
            crate::run::say(&format!("the last lines of the processes are not kept: {error}"));
            None
        });
        let mut group = Group { tail, ..Group::new(generation) };
        let mut failure = None;
        for env in launch.environments(self.kind.starts_processes()) {
            match self.spawn(&env, more, &group) {
                Ok(pid) => {
                    group.leader.get_or_insert(pid);
                    group.mains.push(pid);
                }
                Err(error) => {
                    let what = self.command.first().map(|c| c.to_string_lossy().into_owned()).unwrap_or_default();
                    crate::run::say(&format!("{what} could not be started: {error}"));
                    let missing = error.kind() == std::io::ErrorKind::NotFound;
                    failure = Some(Exit::Code(if missing { NOT_FOUND } else { NOT_RUNNABLE }));
                    break;
                }
            }
        }
        if let Some(tail) = &mut group.tail {
            tail.close();
        }
        let left = u32::try_from(group.mains.len()).unwrap_or(u32::MAX);
        self.group = Some(group);
        let mut events: Vec<Event> =
            failure.map(|exit| Event::ProcessEnded { generation, exit, main: true, left }).into_iter().collect();
        if left == 0 {
            events.extend(self.reap());
        }
        events
    }

    /// What is known of the group before.
    fn forget(&mut self) {
        self.last_lines.clear();
        self.out_of_memory = false;
        self.oom.begin();
    }

    fn spawn(
        &self,
        env: &BTreeMap<String, String>,
        more: &BTreeMap<String, OsString>,
        group: &Group,
    ) -> std::io::Result<Pid> {
        let (program, arguments) = self.command.split_first().ok_or(std::io::ErrorKind::NotFound)?;
        let mut command = Command::new(program);
        let own = env.iter().filter(|(name, _)| !(is_default(name) && std::env::var_os(name).is_some()));
        command.args(arguments).envs(own).envs(more).stdin(Stdio::null());
        command.process_group(group.leader.map_or(0, Pid::as_raw));
        if let Some(tail) = &group.tail {
            command.stderr(tail.stderr()?);
        }
        for name in HIDDEN {
            command.env_remove(name);
        }
        let pid = i32::try_from(command.spawn()?.id()).map_err(|_| std::io::ErrorKind::InvalidData)?;
        Ok(Pid::from_raw(pid))
    }

    /// A process of the group wants this signal when the job hangs. False where it is none of this round's.
    pub(crate) fn wants_dump(&mut self, generation: Option<u64>, pid: i32, signal: Signal) -> bool {
        let ours = descendants_of(Pid::this().as_raw()).contains(&pid);
        let group = self.group.as_mut().filter(|g| ours && generation.is_none_or(|of| of == g.generation));
        let known = |g: &&mut Group| g.dumps.len() < MOST_DUMPS || g.dumps.contains_key(&pid);
        group.filter(known).map(|g| g.dumps.insert(pid, signal)).is_some()
    }

    /// The job hangs: sends those who want it their signal. True if there are any.
    pub(crate) fn dump(&self) -> bool {
        let there = descendants_of(Pid::this().as_raw());
        let wanted = self.group.iter().flat_map(|g| &g.dumps).filter(|(pid, _)| there.contains(pid));
        wanted.map(|(pid, signal)| kill(Pid::from_raw(*pid), *signal).is_ok()).fold(false, |any, sent| any | sent)
    }

    /// Asks the processes to stop.
    pub(crate) fn terminate(&mut self) {
        if let Some(group) = &mut self.group {
            group.asked = true;
            for pid in &group.mains {
                let _ = kill(*pid, self.stop_signal);
            }
        }
    }

    /// Passes a signal on to the processes that the agent started.
    pub(crate) fn forward(&self, signal: Signal) {
        for pid in self.group.iter().flat_map(|g| &g.mains) {
            let _ = kill(*pid, signal);
        }
    }

    /// Looks around while they run; now and then.
    pub(crate) fn look(&mut self) {
        self.oom.look();
    }

    /// Ends everything.
    pub(crate) fn kill(&self) {
        let Some(group) = &self.group else { return };
        if let Some(leader) = group.leader {
            let _ = killpg(leader, Signal::SIGKILL);
        }
        signal_all(Signal::SIGKILL);
    }

    /// Takes the ends of all processes that have ended since.
    pub(crate) fn reap(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let nothing_left = loop {
            let (pid, exit) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, Exit::Code(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, Exit::Signal(signal as i32)),
                Ok(WaitStatus::StillAlive) => break false,
                Err(Errno::ECHILD) => break true,
                // Ended by a real-time signal, which has no name here: looked for below.
                Ok(_) | Err(_) => continue,
            };
            events.extend(self.ended(pid, exit));
        };
        events.extend(self.vanished());
        let Some(group) = &mut self.group else { return events };
        if nothing_left {
            events.push(Event::GroupGone { generation: group.generation });
            self.last_lines = group.tail.take().map(Tail::finish).unwrap_or_default();
            self.out_of_memory = self.oom.is_any();
            self.group = None;
        } else if group.mains.is_empty() && group.asked && !group.rest_asked {
            group.rest_asked = true;
            signal_all(self.stop_signal);
        }
        events
    }

    fn ended(&mut self, pid: Pid, exit: Exit) -> Option<Event> {
        let group = self.group.as_mut()?;
        let main = group.mains.iter().position(|m| *m == pid).map(|at| group.mains.swap_remove(at)).is_some();
        let left = u32::try_from(group.mains.len()).unwrap_or(u32::MAX);
        Some(Event::ProcessEnded { generation: group.generation, exit, main, left })
    }

    /// Processes of ours that have been waited for without a word how they ended.
    fn vanished(&mut self) -> Vec<Event> {
        let gone = |pid: &&Pid| kill(**pid, None) == Err(Errno::ESRCH);
        let gone: Vec<Pid> = self.group.iter().flat_map(|g| g.mains.iter().filter(gone)).copied().collect();
        gone.into_iter().filter_map(|pid| self.ended(pid, Exit::Signal(FIRST_REAL_TIME))).collect()
    }
}

/// The first real-time signal, which stands for all of them.
const FIRST_REAL_TIME: i32 = 34;

fn signal_all(signal: Signal) {
    for pid in descendants_of(Pid::this().as_raw()) {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}
