//! One worker as a process: started under its supervisor, its output taken line by line, stopped on order.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::orphans;
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
/// A supervisor that has not ended its worker so long after the grace is not at work itself: it was stopped, say. More than
/// it takes for what SIGKILL does not end at once.
const SUPERVISOR_MARGIN: Duration = Duration::from_secs(3);
/// What is read of a worker's output once its supervisor and all that it left behind were killed.
const LAST_OUTPUT: Duration = Duration::from_secs(2);
/// Longest time for an order to a supervisor.
const LINK_LIMIT: Duration = Duration::from_millis(200);

/// A running worker: the way to stop it. Dropping it stops the worker too (the supervisor sees the link close).
#[derive(Debug)]
pub struct Running {
    /// Process id of the supervisor, the root of the worker's tree.
    pub supervisor: i32,
    link: OwnedWriteHalf,
    /// When the supervisor itself is killed.
    overdue: watch::Sender<Option<Instant>>,
}

impl Running {
    /// Asks for the end: SIGTERM to the process group now, SIGKILL after `grace` (at once if zero).
    pub async fn stop(&mut self, grace: Duration) {
        let line = if grace.is_zero() { "kill\n".to_owned() } else { format!("stop {}\n", grace.as_millis()) };
        let at = Instant::now() + grace + SUPERVISOR_MARGIN;
        // A later order can only bring the end nearer.
        self.overdue.send_modify(|overdue| *overdue = Some(overdue.map_or(at, |before| before.min(at))));
        // If the supervisor has gone, its end is on its way as an event. One that takes nothing is killed in time.
        let _ = tokio::time::timeout(LINK_LIMIT, self.link.write_all(line.as_bytes())).await;
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
    let mut child = orphans::spawn(&mut command)?;
    // The command holds the other end of the socket; the link closes only when that is gone.
    drop(command);
    // Little text, and read at once. If the supervisor has gone, its end is on its way as an event.
    let _ = std::io::Write::write_all(&mut ours, orders(launch)?.as_bytes());
    ours.set_nonblocking(true)?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0);
    let (read, link) = UnixStream::from_std(ours)?.into_split();
    let (overdue, when) = watch::channel(None);
    let output = [
        child.stdout.take().map(|out| tokio::spawn(forward(out, id.clone(), events.clone()))),
        child.stderr.take().map(|err| tokio::spawn(forward(err, id.clone(), events.clone()))),
    ];
    tokio::spawn(async move {
        let (ended, by) = follow(child, BufReader::new(read), when, &id, &events).await;
        let until = Instant::now() + LAST_OUTPUT;
        for mut task in output.into_iter().flatten() {
            // All output comes before the end. What is in the kernel may keep a pipe open that nobody writes to.
            if by == EndOf::Worker {
                let _ = task.await;
            } else if tokio::time::timeout_at(until, &mut task).await.is_err() {
                task.abort();
            }
        }
        let _ = events.send((id, ended)).await;
    });
    Ok(Running { supervisor: pid, link, overdue })
}

/// What a supervisor is told first.
fn orders(launch: &Launch) -> std::io::Result<String> {
    let with = |further| Ok(format!("with {}\n", serde_json::to_string(further)?));
    let mut text: String = launch.further.iter().map(with).collect::<std::io::Result<_>>()?;
    text.push_str("go\n");
    Ok(text)
}

/// Whose end is told.
#[derive(PartialEq, Eq)]
enum EndOf {
    Worker,
    /// Of the supervisor alone, before it told of the worker's.
    Supervisor,
}

/// Follows the reports until the supervisor has gone, and gives the event of the end. A supervisor that was told to stop
/// and is there after `overdue` is killed.
async fn follow(
    mut child: Child,
    reports: impl AsyncBufReadExt + Unpin,
    mut overdue: watch::Receiver<Option<Instant>>,
    id: &RunId,
    events: &mpsc::Sender<(RunId, ProcessEvent)>,
) -> (ProcessEvent, EndOf) {
    let supervisor = child.id().and_then(|pid| i32::try_from(pid).ok());
    let (mut ended, mut is_killed) = (None, false);
    let mut lines = reports.lines();
    loop {
        let line = tokio::select! {
            line = lines.next_line() => line,
            () = passed(&mut overdue), if !is_killed => {
                is_killed = true;
                let _ = child.start_kill();
                continue;
            }
        };
        let Ok(Some(line)) = line else { break };
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
    supervisor.into_iter().for_each(orphans::forget);
    if let Some(ended) = ended {
        return (ended, EndOf::Worker);
    }
    // Nobody else watches over what the worker started now.
    orphans::end();
    let why =
        if is_killed { "its supervisor did not stop it in time, and was killed" } else { "its supervisor was killed" };
    (ProcessEvent::Ended { code: 137, message: Some(why.to_owned()) }, EndOf::Supervisor)
}

/// Waits for the moment that is told, which may be told later, or anew.
async fn passed(at: &mut watch::Receiver<Option<Instant>>) {
    loop {
        let until = *at.borrow_and_update();
        let sleep = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = sleep => return,
            Ok(()) = at.changed() => {}
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
