//! The decision log: every decision as a line of JSON, in files that rotate by size.
//!
//! Four kinds of line, told apart by `kind`:
//! - `input`: what a policy was shown, under its content hash. `eto policy eval --input` takes its `input` as it is,
//!   so a decision can be asked for again.
//! - `decision`: job, decision and the hash of its input.
//! - `placement-input` and `placement`: the same of placement policies; `state` is in the input.
//!
//! Writing never holds up a decision: entries go through a bounded queue to a thread of the log's own, which hashes,
//! encodes and writes; what does not fit is dropped and counted.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "adapter: this module owns the log's files")]

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;

use eto_engine::contract::{PlacementDecision, PlacementInput, ScalingInput};
use eto_engine::decision::Decision;
use eto_engine::job::JobKey;
use eto_engine::policy::PolicyId;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Where and how much to log.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// Directory of the files; made if it is missing. The newest is `decisions.jsonl`, older ones `decisions.1.jsonl`
    /// and so on.
    pub dir: PathBuf,
    /// Size at which a file is put aside, in bytes, at least 4096.
    pub max_bytes: u64,
    /// Files kept in all, at least 1.
    pub max_files: u32,
    /// Which inputs are kept in full.
    pub inputs: KeepInputs,
    /// Entries that may wait to be written.
    pub queue: usize,
}

impl LogSettings {
    /// 10 files of 64 MiB, inputs of the decisions that matter.
    pub fn new(dir: impl Into<PathBuf>) -> LogSettings {
        LogSettings {
            dir: dir.into(),
            max_bytes: 64 * 1024 * 1024,
            max_files: 10,
            inputs: KeepInputs::Changes,
            queue: 16_384,
        }
    }
}

/// Which inputs are kept in full; the others are in the log by their hash alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeepInputs {
    /// All of them: about 1 KiB + 150 bytes per worker for each evaluation.
    All,
    /// Those of decisions that moved the size, were limited, or failed.
    #[default]
    Changes,
    None,
}

/// One decision to log.
#[derive(Clone, Debug)]
pub struct LogEntry {
    pub job: JobKey,
    pub decision: Decision,
    /// What the policy was shown; `None` where none was asked.
    pub input: Option<ScalingInput>,
}

/// One answer of a placement policy to log.
#[derive(Clone, Debug)]
pub struct PlacementEntry {
    pub job: JobKey,
    /// Which code was asked.
    pub policy: PolicyId,
    /// What it was shown.
    pub input: PlacementInput,
    /// What it answered, or why it did not.
    pub outcome: Result<PlacementDecision, String>,
    pub fuel: u64,
}

#[derive(Debug)]
enum Entry {
    Scaling(Box<LogEntry>),
    Placement(Box<PlacementEntry>),
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[allow(clippy::large_enum_variant)] // Lines are made and written one at a time.
pub enum Line {
    Input {
        hash: String,
        input: ScalingInput,
    },
    Decision {
        job: JobKey,
        input: Option<String>,
        decision: Decision,
    },
    PlacementInput {
        hash: String,
        input: PlacementInput,
    },
    Placement {
        job: JobKey,
        policy: PolicyId,
        input: String,
        decision: Option<PlacementDecision>,
        failure: Option<String>,
        fuel: u64,
    },
}

/// The log could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("the decision log in {} can't be written: {why}; mend the directory's permissions or set another", dir.display())]
pub struct LogError {
    dir: PathBuf,
    why: io::Error,
}

#[derive(Debug, Default)]
struct Counters {
    written: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

/// A handle to the log. Dropping it writes what waits and ends its thread.
#[derive(Debug)]
pub struct DecisionLog {
    queue: Option<SyncSender<Entry>>,
    thread: Option<JoinHandle<()>>,
    counters: Arc<Counters>,
}

impl DecisionLog {
    /// Opens the log and starts its thread. An existing file is continued.
    ///
    /// # Errors
    /// Directory or file can't be made or written.
    pub fn open(settings: LogSettings) -> Result<DecisionLog, LogError> {
        let dir = settings.dir.clone();
        let failed = |why| LogError { dir: dir.clone(), why };
        fs::create_dir_all(&dir).map_err(failed)?;
        let (send, receive) = sync_channel(settings.queue.max(1));
        let counters = Arc::new(Counters::default());
        let (shared, keep) = (Arc::clone(&counters), settings.inputs);
        let mut files = Files::open(settings).map_err(failed)?;
        let thread = std::thread::Builder::new()
            .name("decision-log".to_string())
            .spawn(move || write_all(&receive, &mut files, keep, &shared))
            .map_err(failed)?;
        Ok(DecisionLog { queue: Some(send), thread: Some(thread), counters })
    }

    /// Hands an entry over. Returns at once; an entry that finds the queue full is dropped and counted.
    pub fn write(&self, entry: LogEntry) {
        self.send(Entry::Scaling(Box::new(entry)));
    }

    /// The same for an answer of a placement policy. Its input is always kept, unless none are: such a policy is asked only
    /// where workers come or go.
    pub fn placed(&self, entry: PlacementEntry) {
        self.send(Entry::Placement(Box::new(entry)));
    }

    fn send(&self, entry: Entry) {
        let Some(queue) = &self.queue else { return };
        match queue.try_send(entry) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.counters.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Decisions written.
    pub fn written(&self) -> u64 {
        self.counters.written.load(Ordering::Relaxed)
    }

    /// Decisions dropped since the queue was full.
    pub fn dropped(&self) -> u64 {
        self.counters.dropped.load(Ordering::Relaxed)
    }

    /// Decisions that could not be written (disk full, ...).
    pub fn failed(&self) -> u64 {
        self.counters.failed.load(Ordering::Relaxed)
    }
}

impl Drop for DecisionLog {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the decision log's thread had ended by a fault");
        }
    }
}

fn write_all(queue: &Receiver<Entry>, files: &mut Files, keep: KeepInputs, counters: &Counters) {
    let mut healthy = true;
    loop {
        let entry = match queue.try_recv() {
            Ok(entry) => entry,
            Err(TryRecvError::Disconnected) => break,
            // Nothing waits: the moment to flush.
            Err(TryRecvError::Empty) => {
                note(files.flush(), &mut healthy, files.dir());
                match queue.recv() {
                    Ok(entry) => entry,
                    Err(_) => break,
                }
            }
        };
        let outcome = encode(entry, keep).and_then(|text| files.append(&text));
        let counter = if outcome.is_ok() { &counters.written } else { &counters.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        note(outcome, &mut healthy, files.dir());
    }
    note(files.flush(), &mut healthy, files.dir());
}

/// Tells of trouble when it begins and when it ends, not with every line.
fn note(outcome: io::Result<()>, healthy: &mut bool, dir: &Path) {
    match outcome {
        Err(why) if *healthy => {
            *healthy = false;
            tracing::error!(dir = %dir.display(), error = %why, "decisions can't be logged; deciding goes on");
        }
        Ok(()) if !*healthy => {
            *healthy = true;
            tracing::info!(dir = %dir.display(), "decisions are logged again");
        }
        _ => {}
    }
}

/// The lines of one entry.
fn encode(entry: Entry, keep: KeepInputs) -> io::Result<Vec<u8>> {
    match entry {
        Entry::Scaling(entry) => encode_scaling(*entry, keep),
        Entry::Placement(entry) => encode_placement(*entry, keep),
    }
}

fn encode_placement(entry: PlacementEntry, keep: KeepInputs) -> io::Result<Vec<u8>> {
    let PlacementEntry { job, policy, input, outcome, fuel } = entry;
    let mut text = Vec::new();
    let hash = content_hash(&input)?;
    if keep != KeepInputs::None {
        push_line(&mut text, &Line::PlacementInput { hash: hash.clone(), input })?;
    }
    let (decision, failure) = match outcome {
        Ok(decision) => (Some(decision), None),
        Err(failure) => (None, Some(failure)),
    };
    push_line(&mut text, &Line::Placement { job, policy, input: hash, decision, failure, fuel })?;
    Ok(text)
}

fn encode_scaling(entry: LogEntry, keep: KeepInputs) -> io::Result<Vec<u8>> {
    let LogEntry { job, decision, input } = entry;
    let mut text = Vec::new();
    let mut hash = None;
    if let Some(input) = input {
        let digest = content_hash(&input)?;
        if keep == KeepInputs::All || (keep == KeepInputs::Changes && matters(&decision)) {
            push_line(&mut text, &Line::Input { hash: digest.clone(), input })?;
        }
        hash = Some(digest);
    }
    push_line(&mut text, &Line::Decision { job, input: hash, decision })?;
    Ok(text)
}

fn push_line(text: &mut Vec<u8>, line: &Line) -> io::Result<()> {
    serde_json::to_writer(&mut *text, line)?;
    text.push(b'\n');
    Ok(())
}

fn matters(d: &Decision) -> bool {
    d.target != d.from || d.proposed.is_some_and(|p| p != d.from) || d.failure.is_some()
}

/// `sha256:` and the digest of the input's JSON.
///
/// # Errors
/// Only if the input can't be encoded.
pub fn content_hash(input: &impl Serialize) -> io::Result<String> {
    Ok(format!("sha256:{}", hex::encode(Sha256::digest(serde_json::to_vec(input)?))))
}

/// The files: one that grows, and older ones.
struct Files {
    dir: PathBuf,
    max_bytes: u64,
    /// Files in all, this one and those put aside.
    keep: u32,
    current: BufWriter<File>,
    size: u64,
}

impl Files {
    fn open(settings: LogSettings) -> io::Result<Files> {
        let (current, size) = open_current(&settings.dir)?;
        Ok(Files {
            dir: settings.dir,
            max_bytes: settings.max_bytes.max(4096),
            keep: settings.max_files.max(1),
            current,
            size,
        })
    }

    fn dir(&self) -> &Path {
        &self.dir
    }

    /// Lines that belong together go into one file.
    fn append(&mut self, text: &[u8]) -> io::Result<()> {
        let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
        if self.size > 0 && self.size.saturating_add(length) > self.max_bytes {
            self.rotate()?;
        }
        self.current.write_all(text)?;
        self.size += length;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.current.flush()
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.current.flush()?;
        let name =
            |n: u32| if n == 0 { current_path(&self.dir) } else { self.dir.join(format!("decisions.{n}.jsonl")) };
        gone(fs::remove_file(name(self.keep - 1)))?;
        for n in (0..self.keep - 1).rev() {
            gone(fs::rename(name(n), name(n + 1)))?;
        }
        (self.current, self.size) = open_current(&self.dir)?;
        Ok(())
    }
}

/// A file that is not there is as good as one that was moved.
fn gone(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn current_path(dir: &Path) -> PathBuf {
    dir.join("decisions.jsonl")
}

/// Opens the newest file. A last line that was cut off by a crash is closed, so that the next begins on its own.
fn open_current(dir: &Path) -> io::Result<(BufWriter<File>, u64)> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(current_path(dir))?;
    let mut size = file.seek(SeekFrom::End(0))?;
    if size > 0 {
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0_u8];
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
            size += 1;
        }
    }
    Ok((BufWriter::new(file), size))
}
