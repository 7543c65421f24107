//! One call of a guest: a fresh instance under all limits, and what its failure is called.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use eto_engine::policy::{Answer, Asked, CallFailure, FailureKind};
use wasmtime::component::{Instance, InstancePre};
use wasmtime::{Engine, ResourceLimiter, Store, Trap, WasmBacktrace};

use crate::engine::{CORE_INSTANCES, MEMORIES, TABLES};
use crate::gate::Gate;
use crate::log::{Log, Rate};
use crate::settings::Limits;

/// What all calls of a host share.
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) gate: Gate,
    pub(crate) tick: Duration,
}

/// What the store of a call holds.
pub(crate) struct CallState {
    limiter: Limiter,
    pub(crate) log: Log,
}

/// Refuses growth with a trap of its own type, so that running out of memory can be told from other traps. Counts what
/// all memories and tables have together: a guest may have many, and each would fit by itself.
struct Limiter {
    memory_bytes: Budget,
    table_elements: Budget,
}

/// What a guest has of something, and may have.
struct Budget {
    what: &'static str,
    used: usize,
    limit: usize,
}

impl Budget {
    /// Counts growth, of one memory or table, that is about to happen.
    fn grow(&mut self, current: usize, desired: usize) -> wasmtime::Result<bool> {
        let all = self.used.saturating_add(desired.saturating_sub(current));
        if all > self.limit {
            return Err(wasmtime::Error::new(GrowthRefused { what: self.what, desired: all, limit: self.limit }));
        }
        self.used = all;
        Ok(true)
    }
}

/// Why memory or a table did not grow.
#[derive(Debug, thiserror::Error)]
#[error("{what} would grow to {desired}, over the limit of {limit}")]
struct GrowthRefused {
    what: &'static str,
    desired: usize,
    limit: usize,
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        self.memory_bytes.grow(current, desired)
    }

    fn table_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        self.table_elements.grow(current, desired)
    }

    // What the pool has room for holds without a pool too: a policy is served by every host or by none.
    fn instances(&self) -> usize {
        CORE_INSTANCES as usize
    }

    fn tables(&self) -> usize {
        TABLES as usize
    }

    fn memories(&self) -> usize {
        MEMORIES as usize
    }
}

/// Who calls whom: for logs and messages.
pub(crate) struct Who<'a> {
    pub(crate) policy: &'a Arc<str>,
    /// How much the policy has logged of late.
    pub(crate) rate: &'a Arc<Rate>,
    /// The exported function.
    pub(crate) function: &'static str,
    /// `namespace/name`, or empty.
    pub(crate) job: String,
}

impl Shared {
    /// Runs `body` on a fresh instance. Everything the guest does, its start function too, happens under `limits`.
    pub(crate) fn call<T>(
        &self,
        pre: &InstancePre<CallState>,
        limits: &Limits,
        who: Who<'_>,
        body: impl FnOnce(&mut Store<CallState>, &Instance) -> wasmtime::Result<T>,
    ) -> Asked<T> {
        let _pass = self.gate.enter();
        let function = who.function;
        // A fault of the engine itself must stay with this call; the store is dropped either way.
        let run = || {
            let mut store = self.store(limits, who)?;
            let instance = match pre.instantiate(&mut store) {
                Ok(instance) => instance,
                Err(error) => return Err(not_begun(&error, function, limits, store.data().log.last_error())),
            };
            let outcome = body(&mut store, &instance);
            let left = store.get_fuel().unwrap_or(0);
            match outcome {
                Ok(value) => Ok(Answer { value, fuel: limits.fuel.saturating_sub(left) }),
                Err(error) => Err(failure(&error, function, limits, store.data().log.last_error())),
            }
        };
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
            Err(CallFailure {
                kind: FailureKind::Internal,
                message: format!("{function}: the WebAssembly engine panicked; its message is in the operator's log"),
            })
        })
    }

    fn store(&self, limits: &Limits, who: Who<'_>) -> Result<Store<CallState>, CallFailure> {
        let budget = |what, limit: u64| Budget { what, used: 0, limit: usize::try_from(limit).unwrap_or(usize::MAX) };
        let limiter = Limiter {
            memory_bytes: budget("memory in bytes", limits.memory_bytes),
            table_elements: budget("table in elements", limits.table_elements.into()),
        };
        let log = Log::new(Arc::clone(who.policy), who.job, Arc::clone(who.rate));
        let mut store = Store::new(&self.engine, CallState { limiter, log });
        store.limiter(|state| &mut state.limiter);
        store.set_hostcall_fuel(usize::try_from(limits.output_bytes).unwrap_or(usize::MAX));
        store.set_fuel(limits.fuel).map_err(|error| CallFailure {
            kind: FailureKind::Internal,
            message: format!("{}: the engine does not count fuel: {error:#}", who.function),
        })?;
        store.set_epoch_deadline(ticks(limits.deadline_ms, self.tick));
        Ok(store)
    }
}

/// Ticks until a deadline: rounded up, and one more since the present tick has partly gone by.
fn ticks(deadline_ms: u64, tick: Duration) -> u64 {
    let tick = u64::try_from(tick.as_millis()).unwrap_or(u64::MAX).max(1);
    deadline_ms.div_ceil(tick).saturating_add(1)
}

/// Why there is no instance: the guest's start function failed, or else the host has no room.
fn not_begun(error: &wasmtime::Error, function: &str, limits: &Limits, last_error: Option<&str>) -> CallFailure {
    let failure = failure(error, function, limits, last_error);
    match failure.kind {
        FailureKind::BadAnswer => {
            let message = format!("{function}: the host can't make an instance: {error:#}");
            CallFailure { kind: FailureKind::Internal, message }
        }
        _ => failure,
    }
}

/// Gives a failed call its name. The message says what, where in the guest, and what to do.
fn failure(error: &wasmtime::Error, function: &str, limits: &Limits, last_error: Option<&str>) -> CallFailure {
    if let Some(refused) = error.downcast_ref::<GrowthRefused>() {
        let message = format!("{function}: its {refused}; use less, or raise the limit in the module's settings file");
        return CallFailure { kind: FailureKind::Memory, message };
    }
    let place = place(error, last_error);
    let (kind, message) = match error.downcast_ref::<Trap>() {
        Some(Trap::OutOfFuel) => (
            FailureKind::OutOfFuel,
            format!(
                "{function}: all {} units of fuel burnt{place}; do less per call, or raise limits.fuel",
                limits.fuel
            ),
        ),
        Some(Trap::Interrupt) => (
            FailureKind::Deadline,
            format!(
                "{function}: no answer within {} ms{place}; do less per call, or raise limits.deadline_ms",
                limits.deadline_ms
            ),
        ),
        Some(Trap::StackOverflow) => (
            FailureKind::StackOverflow,
            format!("{function}: the call stack is exhausted{place}; look for a recursion without end"),
        ),
        // A guest's own stack lies in its memory: what grows below it leaves the memory, where the host's limit is not met yet.
        Some(trap @ Trap::MemoryOutOfBounds) => (
            FailureKind::Trap,
            format!(
                "{function}: the guest trapped ({trap}){place}; if not a bad index, look for a recursion without end"
            ),
        ),
        Some(trap) => (FailureKind::Trap, format!("{function}: the guest trapped ({trap}){place}")),
        // No trap: the canonical ABI refused what the guest gave (a bad pointer, text that is not UTF-8, too much).
        None => {
            (FailureKind::BadAnswer, format!("{function}: the answer can't be read: {}{place}", error.root_cause()))
        }
    };
    CallFailure { kind, message }
}

/// Where in the guest: the line it logged as it panicked, else the functions it was in.
fn place(error: &wasmtime::Error, last_error: Option<&str>) -> String {
    if let Some(line) = last_error {
        return format!(": {line}");
    }
    let Some(trace) = error.downcast_ref::<WasmBacktrace>() else { return String::new() };
    let names: Vec<String> = trace
        .frames()
        .iter()
        .take(4)
        .map(|frame| match frame.func_name() {
            Some(name) => name.chars().take(120).collect(),
            None => format!("function {}", frame.func_index()),
        })
        .collect();
    if names.is_empty() { String::new() } else { format!(" in {}", names.join(" < ")) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use super::{Budget, ticks};

    #[test]
    fn memories_are_counted_together() {
        let mut budget = Budget { what: "memory in bytes", used: 0, limit: 100 };
        assert!(budget.grow(0, 60).is_ok());
        // Another one, which would fit by itself.
        let refused = budget.grow(0, 60).unwrap_err();
        assert!(refused.to_string().contains("grow to 120, over the limit of 100"), "{refused}");
        assert!(budget.grow(60, 100).is_ok());
        assert!(budget.grow(100, 101).is_err());
    }

    #[test]
    fn a_deadline_is_never_early() {
        assert_eq!(ticks(100, Duration::from_millis(5)), 21);
        assert_eq!(ticks(101, Duration::from_millis(5)), 22);
        assert_eq!(ticks(1, Duration::from_micros(10)), 2);
        assert_eq!(ticks(u64::MAX, Duration::from_millis(1)), u64::MAX);
    }
}
