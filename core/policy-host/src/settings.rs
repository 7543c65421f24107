//! What a host may spend, and what one module may spend.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::LoadError;

const MIB: u64 = 1024 * 1024;

/// How a [`PolicyHost`](crate::PolicyHost) is set up. Resolved once, at the start of the process.
#[derive(Clone, Debug)]
pub struct HostSettings {
    /// How many guests may run at the same time, 1 to 1000. More callers wait for a free slot.
    pub pool_slots: u32,
    /// Where compiled modules are kept between runs; `None` compiles every time. The host makes a private
    /// directory (mode 0700) of its own below it and uses nothing it does not own.
    pub cache_dir: Option<PathBuf>,
    /// How often deadlines are looked at, 1 ms to 1 s. A guest is stopped at most one tick late.
    pub tick: Duration,
    /// Modules larger than this are refused before they are parsed, in bytes.
    pub max_module_bytes: u64,
    /// Call stack of a guest in bytes, at least 64 KiB. The same for all, since it is a property of the engine.
    pub stack_bytes: usize,
    /// The most that the settings beside a module may ask for.
    pub ceilings: Limits,
}

impl Default for HostSettings {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Self {
            pool_slots: u32::try_from(cpus * 4).unwrap_or(64).clamp(8, 64),
            cache_dir: None,
            tick: Duration::from_millis(5),
            max_module_bytes: 32 * MIB,
            stack_bytes: 512 * 1024,
            ceilings: Limits {
                fuel: 20_000_000_000,
                deadline_ms: 10_000,
                memory_bytes: 256 * MIB,
                table_elements: 20_000,
                output_bytes: 8 * MIB,
            },
        }
    }
}

/// What one call of a guest may use. One value owns all of it, so that no limit can be set without the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Instructions, roughly. The contract: the same input runs out at the same place on every machine.
    pub fuel: u64,
    /// Wall-clock time in milliseconds, counted from the guest's entry. The backstop behind the fuel: set it well above
    /// what the fuel takes, or a busy machine decides which policies answer.
    pub deadline_ms: u64,
    /// Linear memory in bytes, all memories of the guest together.
    pub memory_bytes: u64,
    /// Elements of tables, all of the guest's together.
    pub table_elements: u32,
    /// Bytes that the guest may hand to the host in one call (its answer, or one log line).
    pub output_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { fuel: 50_000_000, deadline_ms: 500, memory_bytes: 16 * MIB, table_elements: 10_000, output_bytes: MIB }
    }
}

impl Limits {
    /// Refuses limits that are zero or above the host's ceilings.
    pub(crate) fn check(&self, ceilings: &Limits) -> Result<(), LoadError> {
        let pairs = [
            ("fuel", self.fuel, ceilings.fuel),
            ("deadline_ms", self.deadline_ms, ceilings.deadline_ms),
            ("memory_bytes", self.memory_bytes, ceilings.memory_bytes),
            ("table_elements", u64::from(self.table_elements), u64::from(ceilings.table_elements)),
            ("output_bytes", self.output_bytes, ceilings.output_bytes),
        ];
        for (limit, asked, ceiling) in pairs {
            if asked == 0 || asked > ceiling {
                return Err(LoadError::LimitOutOfRange { limit, asked, ceiling });
            }
        }
        Ok(())
    }
}

/// What stands in `<name>.toml` beside `<name>.wasm`. Every key may be missing.
///
/// ```toml
/// [limits]
/// fuel = 200_000_000
/// deadline_ms = 2_000
///
/// [config]            # defaults, under the config of each job
/// target = 0.7
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModuleSettings {
    /// What one call may use.
    pub limits: Limits,
    /// Defaults for the policy's config, under what the job says.
    pub config: Map<String, Value>,
}

impl ModuleSettings {
    /// Reads the text of a settings file.
    ///
    /// # Errors
    /// [`LoadError::BadSettings`] with line and key if the text is not TOML or has an unknown key.
    pub fn from_toml(text: &str) -> Result<Self, LoadError> {
        toml::from_str(text).map_err(|error| LoadError::BadSettings { detail: shortened(&error.to_string()) })
    }
}

/// The message goes into logs and conditions, and it quotes the line of the file: a long one is cut.
fn shortened(message: &str) -> String {
    const LINE: usize = 200;
    let cut = |line: &str| match line.char_indices().nth(LINE) {
        Some((at, _)) => format!("{}...", &line[..at]),
        None => line.to_owned(),
    };
    message.lines().map(cut).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::ModuleSettings;

    /// The page for operators shows all keys with their defaults.
    #[test]
    fn the_defaults_are_those_of_the_page() {
        let page = include_str!("../../../docs/operations.md");
        let block = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
        let text = block.into_iter().find(|text| text.contains("[limits]")).unwrap();
        let shown = ModuleSettings::from_toml(text).unwrap();
        assert_eq!(shown, ModuleSettings::default());
        for (key, value) in serde_json::to_value(shown.limits).unwrap().as_object().unwrap() {
            assert!(text.contains(&format!("\n{key} = ")), "{key} = {value} is not shown");
        }
    }
}
