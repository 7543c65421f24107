//! The one import of a policy: a log that can't be flooded, neither by one call nor by the calls of many jobs.

#![allow(clippy::disallowed_methods, reason = "adapter: a rate needs a clock")]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use wasmtime::component::{ComponentType, Lift, Linker, WasmStr};
use wasmtime::{Result, StoreContextMut};

use crate::call::CallState;
use crate::check::printable;

/// What one call may write.
const MAX_LINES: u32 = 64;
const MAX_BYTES: usize = 16 * 1024;
/// Longest line that is kept for the message of a failure.
const MAX_KEPT: usize = 512;
/// Lines that a policy may write in a second, in all its calls.
const MAX_RATE: u32 = 100;

/// How much a policy has written of late. Shared by all its calls.
#[derive(Debug, Default)]
pub(crate) struct Rate(Mutex<Recent>);

#[derive(Debug, Default)]
struct Recent {
    since: Option<Instant>,
    lines: u32,
    dropped: u64,
}

impl Rate {
    /// Whether a line may be written now; if so, how many were dropped before it.
    fn pass(&self, now: Instant) -> Option<u64> {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.since.is_none_or(|since| now.saturating_duration_since(since) >= Duration::from_secs(1)) {
            let dropped = recent.dropped;
            *recent = Recent { since: Some(now), lines: 1, dropped: 0 };
            return Some(dropped);
        }
        if recent.lines < MAX_RATE {
            recent.lines += 1;
            return Some(0);
        }
        recent.dropped += 1;
        None
    }
}

/// `log.level`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ComponentType, Lift)]
#[component(enum)]
#[repr(u8)]
#[allow(dead_code, reason = "built by lifting only")]
pub(crate) enum Level {
    #[component(name = "debug")]
    Debug,
    #[component(name = "info")]
    Info,
    #[component(name = "warn")]
    Warn,
    #[component(name = "error")]
    Error,
}

/// The log of one call.
pub(crate) struct Log {
    policy: Arc<str>,
    job: String,
    rate: Arc<Rate>,
    lines: u32,
    bytes: usize,
    last_error: Option<String>,
}

impl Log {
    /// `job` is `namespace/name`, or empty where the call is about no job.
    pub(crate) fn new(policy: Arc<str>, job: String, rate: Arc<Rate>) -> Self {
        Self { policy, job, rate, lines: 0, bytes: 0, last_error: None }
    }

    /// The last line at level error: where a guest that panicked says why, with file and line.
    pub(crate) fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    fn full(&self) -> bool {
        self.lines >= MAX_LINES || self.bytes >= MAX_BYTES
    }

    fn write(&mut self, level: Level, message: &str, now: Instant) {
        let line = clean(message, MAX_BYTES - self.bytes);
        self.lines += 1;
        self.bytes += line.len();
        if let Some(dropped) = self.rate.pass(now) {
            self.emit(level, &line, dropped);
        }
        if level == Level::Error {
            self.last_error = Some(clean(&line, MAX_KEPT));
        }
    }

    fn emit(&self, level: Level, line: &str, dropped: u64) {
        let (policy, job) = (&*self.policy, self.job.as_str());
        if dropped > 0 {
            tracing::warn!(target: "eto_policy_host::guest", policy, dropped, "the policy logs over {MAX_RATE} lines a second; the rest was dropped");
        }
        match level {
            Level::Debug => tracing::debug!(target: "eto_policy_host::guest", policy, job, "{line}"),
            Level::Info => tracing::info!(target: "eto_policy_host::guest", policy, job, "{line}"),
            Level::Warn => tracing::warn!(target: "eto_policy_host::guest", policy, job, "{line}"),
            Level::Error => tracing::error!(target: "eto_policy_host::guest", policy, job, "{line}"),
        }
        if self.full() {
            tracing::warn!(target: "eto_policy_host::guest", policy, job, "the policy logs too much; the rest of this call is dropped");
        }
    }
}

/// The text without control characters, so that a guest can't forge lines of the log, cut to `max` bytes.
fn clean(text: &str, max: usize) -> String {
    let mut line = String::with_capacity(text.len().min(max));
    for c in text.chars().map(printable) {
        if line.len() + c.len_utf8() > max {
            break;
        }
        line.push(c);
    }
    line
}

/// Gives guests their log, under the interface's name in contract `version`.
pub(crate) fn add_to_linker(linker: &mut Linker<CallState>, version: &str) -> Result<()> {
    let write = |mut store: StoreContextMut<'_, CallState>, (level, message): (Level, WasmStr)| -> Result<()> {
        if store.data().log.full() {
            return Ok(());
        }
        let message = message.to_str(&store)?.into_owned();
        store.data_mut().log.write(level, &message, Instant::now());
        Ok(())
    };
    linker.instance(&format!("elastic:policy/log@{version}"))?.func_wrap("write", write)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::{Level, Log, MAX_BYTES, MAX_LINES, MAX_RATE, Rate, clean};

    #[test]
    fn keeps_its_bounds() {
        let rate = Arc::<Rate>::default();
        let mut log = Log::new("p".into(), "a/b".to_owned(), Arc::clone(&rate));
        let mut written = 0;
        while !log.full() {
            log.write(Level::Error, "no\nnew lines", Instant::now());
            written += 1;
        }
        assert_eq!(written, MAX_LINES);
        assert_eq!(log.last_error(), Some("no new lines"));
        let mut log = Log::new("p".into(), String::new(), rate);
        log.write(Level::Info, &"é".repeat(MAX_BYTES), Instant::now());
        assert!(log.full() && log.bytes <= MAX_BYTES);
    }

    #[test]
    fn all_calls_of_a_policy_share_a_rate() {
        let (rate, start) = (Rate::default(), Instant::now());
        let passed = |at: Instant| (0..250).filter(|_| rate.pass(at).is_some()).count();
        assert_eq!(passed(start), MAX_RATE as usize);
        assert_eq!(rate.pass(start + Duration::from_millis(999)), None);
        // The next second says what was lost, once.
        assert_eq!(rate.pass(start + Duration::from_secs(1)), Some(151));
        assert_eq!(rate.pass(start + Duration::from_secs(1)), Some(0));
    }

    #[test]
    fn cuts_between_characters() {
        assert_eq!(clean("aéb", 2), "a");
        assert_eq!(clean("aéb", 3), "aé");
    }
}
