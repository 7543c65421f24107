//! The supervisor: a small process between `eto run` and one worker, so that nothing of a worker outlives its owner.
//!
//! `eto run` starts one per worker and keeps the other end of its standard input, a socket. The supervisor starts the
//! command in a process group of its own and waits. When the socket closes (also because `eto` was killed with -9)
//! or says so, it stops the group: SIGTERM, grace, SIGKILL. It is the *subreaper* of all that the worker starts, so
//! a child that left the group or lost its parent is still found below it and is stopped too, as everything in a
//! container is when its first process ends.
//!
//! The socket carries lines: `stop <grace in ms>` and `kill` towards the supervisor, one JSON [`Report`] per line back.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::Child;
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
    // A session of its own: no terminal, and a mark on all that the worker starts by which `eto run` finds it should
    // this process be killed. It fails only where we lead a session already, which is as good.
    let _ = nix::unistd::setsid();
    nix::sys::prctl::set_child_subreaper(true)
        .map_err(std::io::Error::from)
        .map_err(system("become the subreaper of the worker"))?;
    let mut signals = Signals::listen().map_err(system("listen for signals"))?;
    let started = tokio::process::Command::new(program).args(arguments).stdin(Stdio::null()).process_group(0).spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            link.tell(&Report::NotStarted { why: format!("{}: {error}", program.to_string_lossy()) }).await;
            return Ok(127);
        }
    };
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 1);
    // Group 0 would be our own, so there is no default for it.
    let pid = pid.ok_or(std::io::ErrorKind::NotFound.into()).map_err(system("learn the id of the worker"))?;
    link.tell(&Report::Started { pid }).await;
    let status = watch(&mut child, Pid::from_raw(pid), &mut link, &mut signals, orphan_grace)
        .await
        .map_err(system("wait for the worker"))?;
    end_the_rest(Pid::from_raw(pid)).await;
    let signal = status.signal();
    let code = status.code().or(signal.map(|s| 128 + s)).unwrap_or(1);
    link.tell(&Report::Ended { code, signal }).await;
    Ok(code)
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

/// Waits for the command to end and stops it when told to, or when nobody is left to tell.
async fn watch(
    child: &mut Child,
    group: Pid,
    link: &mut Link,
    signals: &mut Signals,
    orphan_grace: Duration,
) -> std::io::Result<ExitStatus> {
    let mut deadline: Option<Instant> = None;
    let mut linked = true;
    loop {
        let kill_at = async {
            match deadline {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let grace = tokio::select! {
            status = child.wait() => return status,
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
                reap_adopted(group);
                continue;
            }
            () = kill_at => Duration::ZERO,
        };
        if grace.is_zero() {
            deadline = None;
            let _ = killpg(group, Signal::SIGKILL);
        } else {
            let _ = killpg(group, Signal::SIGTERM);
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

/// Waits for children that were adopted and have ended, so that they do not pile up. The command itself is left to
/// its own waiter.
fn reap_adopted(command: Pid) {
    let me = Pid::this().as_raw();
    for stat in Proc::of_this_machine().table() {
        if stat.parent == me && stat.is_zombie() && stat.pid != command.as_raw() {
            let _ = waitpid(Pid::from_raw(stat.pid), Some(WaitPidFlag::WNOHANG));
        }
    }
}

/// Ends whatever the command left behind, in its group or out of it.
async fn end_the_rest(group: Pid) {
    let _ = killpg(group, Signal::SIGKILL);
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
