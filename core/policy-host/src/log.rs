//! The one import of a policy: a log that can't be flooded.

use std::sync::Arc;

use wasmtime::component::{ComponentType, Lift, Linker, WasmStr};
use wasmtime::{Result, StoreContextMut};

use crate::call::CallState;

/// What one call may write.
const MAX_LINES: u32 = 64;
const MAX_BYTES: usize = 16 * 1024;
/// Longest line that is kept for the message of a failure.
const MAX_KEPT: usize = 512;

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
    lines: u32,
    bytes: usize,
    last_error: Option<String>,
}

impl Log {
    /// `job` is `namespace/name`, or empty where the call is about no job.
    pub(crate) fn new(policy: Arc<str>, job: String) -> Self {
        Self { policy, job, lines: 0, bytes: 0, last_error: None }
    }

    /// The last line at level error: where a guest that panicked says why, with file and line.
    pub(crate) fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    fn full(&self) -> bool {
        self.lines >= MAX_LINES || self.bytes >= MAX_BYTES
    }

    fn write(&mut self, level: Level, message: &str) {
        let line = clean(message, MAX_BYTES - self.bytes);
        self.lines += 1;
        self.bytes += line.len();
        let (policy, job) = (&*self.policy, self.job.as_str());
        match level {
            Level::Debug => tracing::debug!(target: "eto_policy_host::guest", policy, job, "{line}"),
            Level::Info => tracing::info!(target: "eto_policy_host::guest", policy, job, "{line}"),
            Level::Warn => tracing::warn!(target: "eto_policy_host::guest", policy, job, "{line}"),
            Level::Error => tracing::error!(target: "eto_policy_host::guest", policy, job, "{line}"),
        }
        if self.full() {
            tracing::warn!(target: "eto_policy_host::guest", policy, job, "the policy logs too much; the rest of this call is dropped");
        }
        if level == Level::Error {
            self.last_error = Some(clean(&line, MAX_KEPT));
        }
    }
}

/// The text without control characters, so that a guest can't forge lines of the log, cut to `max` bytes.
fn clean(text: &str, max: usize) -> String {
    let mut line = String::with_capacity(text.len().min(max));
    for c in text.chars() {
        let c = if c.is_control() { ' ' } else { c };
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
        store.data_mut().log.write(level, &message);
        Ok(())
    };
    linker.instance(&format!("elastic:policy/log@{version}"))?.func_wrap("write", write)
}

#[cfg(test)]
mod tests {
    use super::{Level, Log, MAX_BYTES, MAX_LINES, clean};

    #[test]
    fn keeps_its_bounds() {
        let mut log = Log::new("p".into(), "a/b".to_owned());
        let mut written = 0;
        while !log.full() {
            log.write(Level::Error, "no\nnew lines");
            written += 1;
        }
        assert_eq!(written, MAX_LINES);
        assert_eq!(log.last_error(), Some("no new lines"));
        let mut log = Log::new("p".into(), String::new());
        log.write(Level::Info, &"é".repeat(MAX_BYTES));
        assert!(log.full() && log.bytes <= MAX_BYTES);
    }

    #[test]
    fn cuts_between_characters() {
        assert_eq!(clean("aéb", 2), "a");
        assert_eq!(clean("aéb", 3), "aé");
    }
}
