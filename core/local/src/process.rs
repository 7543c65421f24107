//! One worker as a process: started under its supervisor, its output taken line by line, stopped on order.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use crate::procfs::Proc;
use crate::supervise::{Further, Report};

/// How a supervisor is started: the program and what comes before the worker's command.
#[derive(Clone, Debug)]
pub struct Supervisor {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
}

/// What to start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// Program and arguments, references expanded.
    pub command: Vec<String>,
    /// Set over the environment that `eto run` has.
    pub env: BTreeMap<String, String>,
    /// Processes of the same worker beside this one.
    pub further: Vec<Further>,
    /// `None` = where `eto run` was started.
    pub directory: Option<PathBuf>,
}

/// Which start of which worker a [`ProcessEvent`] speaks of. A restarted worker keeps its uid and gets a new run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunId {
    /// UID of the worker.
    pub uid: String,
    /// Counts the starts of all workers.
    pub run: u64,
}

/// Something that happened to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessEvent {
    /// The command runs under this process id (which is its process group's too).
    Started { pid: i32 },
    /// A line of its output, without the line break.
    Output { line: String },
    /// It could not be started, or has ended with all it had started.
    Ended { code: i32, message: Option<String> },
}

/// Most bytes of one line of output; a longer one is split.
const MAX_LINE: usize = 16 * 1024;
/// Sweeps over the process table to end a session; each takes about a millisecond.
const MAX_SWEEPS: usize = 100;

/// A running worker: the way to stop it. Dropping it stops the worker too (the supervisor sees the link close).
#[derive(Debug)]
pub struct Running {
    /// Process id of the supervisor, the root of the worker's tree.
    pub supervisor: i32,
    link: OwnedWriteHalf,
}

impl Running {
    /// Asks for the end: SIGTERM to the process group now, SIGKILL after `grace` (at once if zero).
    pub async fn stop(&mut self, grace: Duration) {
        let line = if grace.is_zero() { "kill\n".to_owned() } else { format!("stop {}\n", grace.as_millis()) };
        // If the supervisor has gone, its end is on its way as an event.
        let _ = self.link.write_all(line.as_bytes()).await;
    }
}

/// Starts a worker. Its events come on `events`, which holds output back (and so the worker) while nobody reads.
pub fn start(
    supervisor: &Supervisor,
    launch: &Launch,
    id: RunId,
    events: mpsc::Sender<(RunId, ProcessEvent)>,
) -> std::io::Result<Running> {
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    let mut command = Command::new(&supervisor.program);
    command
        .args(&supervisor.arguments)
        .args(&launch.command)
        .envs(&launch.env)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(directory) = &launch.directory {
        command.current_dir(directory);
    }
    let mut child = command.spawn()?;
    // The command holds the other end of the socket; the link closes only when that is gone.
    drop(command);
    // Little text, and read at once. If the supervisor has gone, its end is on its way as an event.
    let _ = std::io::Write::write_all(&mut ours, orders(launch)?.as_bytes());
    ours.set_nonblocking(true)?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0);
    let (read, link) = UnixStream::from_std(ours)?.into_split();
    let output = [
        child.stdout.take().map(|out| tokio::spawn(forward(out, id.clone(), events.clone()))),
        child.stderr.take().map(|err| tokio::spawn(forward(err, id.clone(), events.clone()))),
    ];
    tokio::spawn(async move {
        let ended = follow(child, BufReader::new(read), &id, &events).await;
        for task in output.into_iter().flatten() {
            let _ = task.await; // all output comes before the end
        }
        let _ = events.send((id, ended)).await;
    });
    Ok(Running { supervisor: pid, link })
}

/// What a supervisor is told first.
fn orders(launch: &Launch) -> std::io::Result<String> {
    let with = |further| Ok(format!("with {}\n", serde_json::to_string(further)?));
    let mut text: String = launch.further.iter().map(with).collect::<std::io::Result<_>>()?;
    text.push_str("go\n");
    Ok(text)
}

/// Follows the reports until the supervisor has gone, and gives the event of the end.
async fn follow(
    mut child: Child,
    reports: impl AsyncBufReadExt + Unpin,
    id: &RunId,
    events: &mpsc::Sender<(RunId, ProcessEvent)>,
) -> ProcessEvent {
    let session = child.id().and_then(|pid| i32::try_from(pid).ok());
    let mut ended = None;
    let mut lines = reports.lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            Ok(Report::Started { pid }) => {
                let _ = events.send((id.clone(), ProcessEvent::Started { pid })).await;
            }
            Ok(Report::NotStarted { why }) => {
                let message = format!("could not be started: {why}");
                ended = Some(ProcessEvent::Ended { code: 127, message: Some(message) });
            }
            Ok(Report::Ended { code, signal }) => {
                let message = signal.map(|signal| format!("ended by signal {signal}"));
                ended = Some(ProcessEvent::Ended { code, message });
            }
            Err(error) => tracing::warn!(%error, line, "a report of a supervisor can't be read"),
        }
    }
    let _ = child.wait().await;
    ended.unwrap_or_else(|| {
        // The supervisor itself was killed: nobody else watches over its session now.
        session.into_iter().for_each(end_session);
        ProcessEvent::Ended { code: 137, message: Some("its supervisor was killed".to_owned()) }
    })
}

/// Kills all processes of a session, also those that are started meanwhile.
fn end_session(session: i32) {
    let proc = Proc::of_this_machine();
    for _ in 0..MAX_SWEEPS {
        let left: Vec<i32> =
            proc.table().iter().filter(|s| s.session == session && !s.is_zombie()).map(|s| s.pid).collect();
        if left.is_empty() {
            return;
        }
        for pid in left {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

async fn forward(from: impl AsyncRead + Unpin, id: RunId, events: mpsc::Sender<(RunId, ProcessEvent)>) {
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = (&mut reader).take(MAX_LINE as u64);
        match limited.read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        let text = String::from_utf8_lossy(&line).into_owned();
        if events.send((id.clone(), ProcessEvent::Output { line: text })).await.is_err() {
            return;
        }
    }
}
