//! The supervisor: a small process between `eto run` and one worker, so that nothing of a worker outlives its owner.
//!
//! `eto run` starts one per worker and keeps the other end of its standard input, a socket. The supervisor starts the
//! command in a process group of its own and waits. When the socket closes (also because `eto` was killed with -9)
//! or says so, it stops the group: SIGTERM, grace, SIGKILL. It is the *subreaper* of all that the worker starts, so
//! a child that left the group or lost its parent is still found below it and is stopped too, as everything in a
//! container is when its first process ends.
//!
//! The socket carries lines. Towards the supervisor: at first `with <JSON>` for each [`Further`] process of the worker and
//! then `go`, later `stop <grace in ms>` and `kill`. Back come [`Report`]s as JSON.
//!
//! Several processes of one worker are one worker: if one fails the others are stopped, and its exit code is the worker's.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::time::Instant;

use crate::procfs::{Proc, descendants};

/// What the supervisor tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Report {
    /// The command runs; its process id is also its process group's.
    Started { pid: i32 },
    /// The command could not be started.
    NotStarted { why: String },
    /// The command has ended, and so has all that it started. `signal` is set where a signal ended it.
    Ended { code: i32, signal: Option<i32> },
}

/// A process of the worker beside the one that the supervisor's own arguments name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Further {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Set over the environment of the first.
    pub env: BTreeMap<String, String>,
}

/// Grace of the other processes of a worker when one of them has failed, as an agent gives them.
const PEER_GRACE: Duration = Duration::from_secs(5);
/// Grace when the owner has gone without a word.
pub const ORPHAN_GRACE: Duration = Duration::from_secs(5);
/// How long is spent on ending what SIGKILL does not end at once (a process in the kernel).
const REAP_LIMIT: Duration = Duration::from_secs(2);

/// Runs `command` (program and arguments) under supervision until it has ended; the exit code is the command's, or
/// 128 and the signal that ended it. Needs to be a process of its own: it waits for every child it has.
pub async fn supervise(command: &[OsString], orphan_grace: Duration) -> ExitCode {
    match run(command, orphan_grace).await {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => {
            // The output of the worker is the only place left to say it.
            let _ = writeln_stderr(&format!("eto supervise: {error}"));
            ExitCode::from(127)
        }
    }
}

fn writeln_stderr(text: &str) -> std::io::Result<()> {
    use std::io::Write;
    writeln!(std::io::stderr(), "{text}")
}

/// Why supervision could not begin.
#[derive(Debug, thiserror::Error)]
enum SuperviseError {
    #[error("no command was given")]
    NoCommand,
    #[error("standard input is not the socket that `eto run` gives it ({0}); this command is not for use by hand")]
    NoLink(std::io::Error),
    #[error("`eto run` has gone before it said what to start")]
    NoStart,
    #[error("could not {what}: {source}")]
    System { what: &'static str, source: std::io::Error },
}

fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> SuperviseError {
    move |source| SuperviseError::System { what, source }
}

struct Link {
    lines: Lines<BufReader<OwnedReadHalf>>,
    back: OwnedWriteHalf,
}

impl Link {
    fn open() -> Result<Link, SuperviseError> {
        let stdin = std::io::stdin();
        let fd = stdin.as_fd().try_clone_to_owned().map_err(SuperviseError::NoLink)?;
        let socket = std::os::unix::net::UnixStream::from(fd);
        socket.peer_addr().map_err(SuperviseError::NoLink)?;
        socket.set_nonblocking(true).map_err(SuperviseError::NoLink)?;
        let (read, back) = UnixStream::from_std(socket).map_err(SuperviseError::NoLink)?.into_split();
        Ok(Link { lines: BufReader::new(read).lines(), back })
    }

    /// What there is to start beside the command; `None` if the owner goes before it has said so.
    async fn further(&mut self) -> Option<Vec<Further>> {
        let mut all = Vec::new();
        loop {
            let line = self.lines.next_line().await.ok()??;
            match line.split_once(' ') {
                Some(("with", json)) => all.push(serde_json::from_str(json).ok()?),
                None if line == "go" => return Some(all),
                _ => return None,
            }
        }
    }

    /// Best effort: the owner may have gone.
    async fn tell(&mut self, report: &Report) {
        if let Ok(mut line) = serde_json::to_string(report) {
            line.push('\n');
            let _ = self.back.write_all(line.as_bytes()).await;
        }
    }
}

async fn run(command: &[OsString], orphan_grace: Duration) -> Result<i32, SuperviseError> {
    let (program, arguments) = command.split_first().ok_or(SuperviseError::NoCommand)?;
    let mut link = Link::open()?;
    // A session of its own: no terminal, and none of its signals. It fails only where we lead one already, which is as good.
    let _ = nix::unistd::setsid();
    nix::sys::prctl::set_child_subreaper(true)
        .map_err(std::io::Error::from)
        .map_err(system("become the subreaper of the worker"))?;
    let mut signals = Signals::listen().map_err(system("listen for signals"))?;
    let Some(further) = link.further().await else { return Err(SuperviseError::NoStart) };
    let mut group = match Group::start(program, arguments, &further) {
        Ok(group) => group,
        Err(why) => {
            end_the_rest().await;
            link.tell(&Report::NotStarted { why }).await;
            return Ok(127);
        }
    };
    link.tell(&Report::Started { pid: group.leader.as_raw() }).await;
    let status =
        watch(&mut group, &mut link, &mut signals, orphan_grace).await.map_err(system("wait for the worker"))?;
    let _ = killpg(group.leader, Signal::SIGKILL);
    end_the_rest().await;
    let signal = status.signal();
    let code = status.code().or(signal.map(|s| 128 + s)).unwrap_or(1);
    link.tell(&Report::Ended { code, signal }).await;
    Ok(code)
}

/// The processes of the worker that were started here; one process group.
struct Group {
    /// The first of them, whose number is the group's.
    leader: Pid,
    mains: Vec<(Pid, Child)>,
}

impl Group {
    /// Starts all of them, or says which could not be started; others may run then.
    fn start(program: &OsString, arguments: &[OsString], further: &[Further]) -> Result<Group, String> {
        let mut first = Command::new(program);
        first.args(arguments);
        let (leader, child) = spawn(first, 0)?;
        let mut group = Group { leader, mains: vec![(leader, child)] };
        for one in further {
            let (program, arguments) = one.command.split_first().ok_or("a further process has no command")?;
            let mut command = Command::new(program);
            command.args(arguments).envs(&one.env);
            group.mains.push(spawn(command, leader.as_raw())?);
        }
        Ok(group)
    }
}

fn spawn(mut command: Command, group: i32) -> Result<(Pid, Child), String> {
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    let child = command.stdin(Stdio::null()).process_group(group).spawn().map_err(|e| format!("{program}: {e}"))?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 1);
    // Group 0 would be our own, so there is no default for it.
    let pid = pid.ok_or_else(|| format!("{program}: its process id can't be learned"))?;
    Ok((Pid::from_raw(pid), child))
}

struct Signals {
    term: SignalStream,
    int: SignalStream,
    child: SignalStream,
}

impl Signals {
    fn listen() -> std::io::Result<Signals> {
        Ok(Signals {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            child: signal(SignalKind::child())?,
        })
    }
}

/// Waits for all processes to end and stops them when told to, when nobody is left to tell, or when one has failed. Gives
/// the end of the first that failed, else of the last.
async fn watch(
    group: &mut Group,
    link: &mut Link,
    signals: &mut Signals,
    orphan_grace: Duration,
) -> std::io::Result<ExitStatus> {
    let pids: Vec<Pid> = group.mains.iter().map(|(pid, _)| *pid).collect();
    let mut ends: FuturesUnordered<_> = group.mains.iter_mut().map(|(_, child)| child.wait()).collect();
    let mut failure: Option<ExitStatus> = None;
    let mut deadline: Option<Instant> = None;
    let (mut linked, mut asked) = (true, false);
    loop {
        let kill_at = async {
            match deadline {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let grace = tokio::select! {
            Some(status) = ends.next() => {
                let status = status?;
                let first = failure.is_none() && !status.success();
                failure = failure.or(first.then_some(status));
                if ends.is_empty() {
                    return Ok(failure.unwrap_or(status));
                }
                // Where all were asked to stop each has its time.
                if !first || asked {
                    continue;
                }
                PEER_GRACE
            },
            line = link.lines.next_line(), if linked => if let Ok(Some(line)) = line {
                let Some(grace) = command(&line) else { continue };
                grace
            } else {
                linked = false;
                orphan_grace
            },
            _ = signals.term.recv() => orphan_grace,
            _ = signals.int.recv() => orphan_grace,
            _ = signals.child.recv() => {
                reap_adopted(&pids);
                continue;
            }
            () = kill_at => Duration::ZERO,
        };
        asked = true;
        if grace.is_zero() {
            deadline = None;
            let _ = killpg(group.leader, Signal::SIGKILL);
        } else {
            let _ = killpg(group.leader, Signal::SIGTERM);
            let at = Instant::now() + grace;
            // A later order can only bring the end nearer.
            deadline = Some(deadline.map_or(at, |before| before.min(at)));
        }
    }
}

/// The grace a command of the link gives; zero means at once.
fn command(line: &str) -> Option<Duration> {
    match line.split_once(' ') {
        None if line == "kill" => Some(Duration::ZERO),
        Some(("stop", grace)) => grace.trim().parse().ok().map(Duration::from_millis),
        _ => None,
    }
}

/// Waits for children that were adopted and have ended, so that they do not pile up. What was started here is left to its
/// own waiter.
fn reap_adopted(mains: &[Pid]) {
    let me = Pid::this().as_raw();
    for stat in Proc::of_this_machine().table() {
        if stat.parent == me && stat.is_zombie() && !mains.contains(&Pid::from_raw(stat.pid)) {
            let _ = waitpid(Pid::from_raw(stat.pid), Some(WaitPidFlag::WNOHANG));
        }
    }
}

/// Ends whatever there is below the supervisor.
async fn end_the_rest() {
    let proc = Proc::of_this_machine();
    let give_up = Instant::now() + REAP_LIMIT;
    loop {
        let left = descendants(&proc.table(), Pid::this().as_raw());
        if left.is_empty() || Instant::now() > give_up {
            return;
        }
        for pid in left {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_the_link() {
        assert_eq!(command("stop 1500"), Some(Duration::from_millis(1500)));
        assert_eq!(command("stop 0"), Some(Duration::ZERO));
        assert_eq!(command("kill"), Some(Duration::ZERO));
        assert_eq!(command("stop soon"), None);
        assert_eq!(command(""), None);
    }
}
