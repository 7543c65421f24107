//! A job under `eto run`, followed by what it prints.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::curve::Curve;
use crate::job::Job;

/// Far more than a phase takes on a busy machine (the import of a framework alone may take a minute); only a hang
/// reaches it.
pub(crate) const LIMIT: Duration = Duration::from_secs(400);

pub(crate) struct Session {
    child: Child,
    lines: Receiver<Value>,
    curve: Curve,
    world: u32,
    starts: usize,
    /// Process ids of the workers that run, by index.
    pids: BTreeMap<u64, i64>,
    /// The last lines, for a failure's message.
    tail: Vec<String>,
}

impl Session {
    pub(crate) fn start(job: &mut Job, replicas: u32) -> Session {
        let mut child = Command::new(std::env::var("ETO_BIN").expect("ETO_BIN: run tests/frameworks.sh"))
            .arg("run")
            .arg(job.write(replicas))
            .args(["--output", "json", "--period", "250ms"])
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
                if sender.send(value).is_err() {
                    return;
                }
            }
        });
        let (curve, pids, tail) = (Curve::default(), BTreeMap::new(), Vec::new());
        Session { child, lines, curve, world: 0, starts: 0, pids, tail }
    }

    /// Takes the next line in; false at the end.
    fn next(&mut self, deadline: Instant) -> bool {
        let value = match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(value) => value,
            Err(RecvTimeoutError::Disconnected) => return false,
            Err(RecvTimeoutError::Timeout) => panic!("nothing came of it:\n{}", self.tail.join("\n")),
        };
        match value["kind"].as_str() {
            Some("output") => {
                self.curve.read(value["line"].as_str().unwrap_or_default());
                self.starts = self.curve.worlds().len();
                self.world = self.curve.worlds().last().copied().unwrap_or(0);
            }
            Some("worker") => {
                let index = value["index"].as_u64().unwrap();
                match value["pid"].as_i64().filter(|_| value["state"] == "running") {
                    Some(pid) => drop(self.pids.insert(index, pid)),
                    None => drop(self.pids.remove(&index)),
                }
            }
            _ => {}
        }
        if value["kind"] != "decision" {
            self.tail.push(value.to_string());
            let from = self.tail.len().saturating_sub(60);
            self.tail.drain(..from);
        }
        true
    }

    fn until(&mut self, what: &str, done: impl Fn(&Session) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !done(self) {
            assert!(self.next(deadline), "the job ended before {what}:\n{}", self.tail.join("\n"));
        }
    }

    /// Waits until this step is done in a world of this size.
    pub(crate) fn until_step(&mut self, step: u64, world: u32) {
        self.until(&format!("step {step}"), |s| s.curve.last_step() >= step);
        assert_eq!(self.world, world);
    }

    /// Waits for a start in a world of this size, and gives the step it goes on from.
    pub(crate) fn until_world(&mut self, world: u32) -> u64 {
        self.until(&format!("a world of {world}"), |s| s.world == world);
        self.curve.last_step()
    }

    /// Waits for the first start, and gives the step it goes on from.
    pub(crate) fn until_resumed(&mut self) -> u64 {
        self.until("the first start", |s| s.starts > 0);
        self.curve.resumed_from()
    }

    /// Waits for another start.
    pub(crate) fn until_restart(&mut self) {
        let before = self.starts;
        self.until("another start", |s| s.starts > before);
    }

    /// Steps that the last start did again.
    pub(crate) fn last_restart_lost(&self) -> u64 {
        self.curve.lost()
    }

    /// Kills a worker's process, as the kernel does when memory is short.
    pub(crate) fn kill_worker(&mut self, index: u64) {
        let pid = self.pids.get(&index).unwrap_or_else(|| panic!("worker {index} does not run: {:?}", self.pids));
        assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
    }

    /// Waits for the job's success.
    pub(crate) fn end(mut self) -> Curve {
        let status = self.over();
        assert!(status.success(), "{status}:\n{}", self.tail.join("\n"));
        std::mem::take(&mut self.curve)
    }

    /// Stops the job as Ctrl-C does, and gives the last step it made.
    pub(crate) fn stop(mut self) -> u64 {
        assert!(Command::new("kill").arg(self.child.id().to_string()).status().unwrap().success());
        self.over();
        self.curve.last_step()
    }

    fn over(&mut self) -> ExitStatus {
        let deadline = Instant::now() + LIMIT;
        while self.next(deadline) {}
        self.child.wait().unwrap()
    }
}

impl Drop for Session {
    /// `eto run` stops its workers when it is asked to; after its end there is nothing to stop.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = Command::new("kill").arg(self.child.id().to_string()).status();
            let _ = self.child.wait();
        }
    }
}
