//! A pod: a folder, and the agent's program in it around a shell script.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use eto_membership::{Assignment, Candidate, FrameworkKind, Member, Order, Ports, Round};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::gateway::{Gateway, PATIENCE};

pub(crate) const UID: &str = "uid-me";

/// An assignment with these members, one process each.
pub(crate) fn assignment(generation: u64, order: Order, uids: &[&str]) -> Assignment {
    let members = (0u32..).zip(uids).map(|(index, uid)| Candidate {
        member: Member { index, address: "127.0.0.1".to_owned(), uid: Some((*uid).to_owned()), processes: 1 },
        healthy_since_ms: None,
    });
    let round = Round::plan("team/job", "job-uid", generation, members.collect(), Ports::default()).unwrap();
    Assignment { why: "test".to_owned(), ..Assignment::new(round, order, FrameworkKind::PyTorch, 30_000) }
}

/// The agent at work.
pub(crate) struct Pod {
    pub(crate) folder: TempDir,
    pub(crate) agent: Child,
}

impl Pod {
    /// Runs `script` with `sh` under an agent that speaks to `gateway`. `OUT` in its environment is the pod's folder.
    pub(crate) fn start(gateway: &Gateway, script: &str) -> Pod {
        Pod::with(gateway, script, &[])
    }

    pub(crate) fn with(gateway: &Gateway, script: &str, env: &[(&str, &str)]) -> Pod {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "first\n").unwrap();
        Pod::again(folder, gateway, &["sh", "-c", script], env)
    }

    /// The agent in a folder that may have been used before.
    pub(crate) fn again(folder: TempDir, gateway: &Gateway, command: &[&str], env: &[(&str, &str)]) -> Pod {
        Pod::running(folder, gateway, command, env, Stdio::inherit())
    }

    /// The same, with its stderr to be read here.
    pub(crate) fn piped(folder: TempDir, gateway: &Gateway, command: &[&str], env: &[(&str, &str)]) -> Pod {
        Pod::running(folder, gateway, command, env, Stdio::piped())
    }

    fn running(folder: TempDir, gateway: &Gateway, command: &[&str], env: &[(&str, &str)], stderr: Stdio) -> Pod {
        let agent = Command::new(env!("CARGO_BIN_EXE_eto-agent"))
            .args(["run", "--"])
            .args(command)
            .env("ETO_GATEWAY", gateway.url())
            .env("ETO_GATEWAY_CA", &gateway.ca)
            .env("ETO_TOKEN_FILE", folder.path().join("token"))
            .env("ETO_POD_UID", UID)
            .env("ETO_POD_IP", "127.0.0.1")
            .env("ETO_METRICS_PORT", "0")
            .env("ETO_FOLDER", folder.path())
            .env("OUT", folder.path())
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Pod { folder, agent }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.agent.id().expect("the agent runs")).unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Waits for a file that the script writes, and gives its text without the space around it.
    pub(crate) async fn file(&self, name: &str) -> String {
        let path = self.path().join(name);
        let what = format!("the file {name}");
        let whole = || std::fs::read_to_string(&path).ok().filter(|t| t.ends_with('\n'));
        let text = eventually(&what, whole).await;
        text.trim().to_owned()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.path().join(name).exists()
    }

    /// Waits for the agent's end.
    pub(crate) async fn ended(&mut self) -> i32 {
        let status: ExitStatus = timeout(PATIENCE, self.agent.wait()).await.expect("the agent ends").unwrap();
        status.code().unwrap_or_else(|| panic!("signal {:?} ended the agent", status.signal()))
    }
}

impl Drop for Pod {
    /// A pod whose test failed leaves nothing behind: its agent stops what it started.
    fn drop(&mut self) {
        if let Some(pid) = self.agent.id().and_then(|pid| i32::try_from(pid).ok()) {
            for below in descendants(pid) {
                let _ = kill(Pid::from_raw(below), Signal::SIGKILL);
            }
        }
    }
}

/// Waits until `look` finds something.
pub(crate) async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("it never came: {what}"))
}

/// State letter and parent of a process.
pub(crate) fn stat(pid: i32) -> Option<(char, i32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut rest = text.rsplit_once(')')?.1.split_whitespace();
    Some((rest.next()?.chars().next()?, rest.next()?.parse().ok()?))
}

/// Whether a process is there and no zombie.
pub(crate) fn runs(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z')
}

/// All processes with this parent, with their states.
pub(crate) fn children(parent: i32) -> Vec<(i32, char)> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|e| e.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| stat(pid).filter(|s| s.1 == parent).map(|s| (pid, s.0))).collect()
}

/// All that a process has started and that is there, with what those have started.
pub(crate) fn descendants(root: i32) -> Vec<i32> {
    let below: Vec<i32> = children(root).into_iter().map(|c| c.0).collect();
    below.iter().copied().chain(below.iter().flat_map(|pid| descendants(*pid))).collect()
}
