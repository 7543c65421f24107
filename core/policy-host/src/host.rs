//! The host: one engine, and the way from bytes to a policy that can be asked.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use eto_engine::contract::Description;
use eto_engine::policy::PolicyId;
use sha2::{Digest, Sha256};
use wasmtime::component::{Component, InstancePre, Linker};

use crate::cache::Cache;
use crate::call::{CallState, Shared, Who};
use crate::check;
use crate::config::Configs;
use crate::engine;
use crate::error::{HostError, LoadError};
use crate::gate::Gate;
use crate::golden;
use crate::inspect::{Inspected, inspect};
use crate::log;
use crate::policy::{Policy, PolicyKind};
use crate::scan;
use crate::settings::{HostSettings, ModuleSettings};
use crate::v0_1::Exports;

const WASM_PAGE: u64 = 64 * 1024;

/// Runs policies. One per process.
pub struct PolicyHost {
    settings: HostSettings,
    shared: Arc<Shared>,
    linker: Linker<CallState>,
    cache: Option<Cache>,
    pool_refused: Option<String>,
    /// One module is compiled at a time: the compiler takes every core it gets, and calls come first.
    compiling: Mutex<()>,
}

impl std::fmt::Debug for PolicyHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolicyHost")
            .field("settings", &self.settings)
            .field("pooled", &self.pooled())
            .finish_non_exhaustive()
    }
}

/// How many slots of the pool are taken now. All 0 when no call is running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUse {
    /// Instances of whole policies.
    pub policies: u64,
    /// Instances of the core modules they are made of.
    pub core_instances: u64,
    /// Linear memories.
    pub memories: usize,
    /// Tables.
    pub tables: usize,
}

impl PolicyHost {
    /// Starts the engine and its deadline thread.
    ///
    /// A machine that has no room for the pool gets a host without one ([`pooled`](Self::pooled) says so), a cache
    /// directory that can't be trusted a host without cache; both are logged.
    ///
    /// # Errors
    /// A setting out of its range, or a machine that can't run the engine at all.
    pub fn new(settings: HostSettings) -> Result<Arc<Self>, HostError> {
        check_settings(&settings)?;
        let started = engine::start(&settings)?;
        engine::tick(&started.engine, settings.tick)?;
        let mut linker = Linker::new(&started.engine);
        log::add_to_linker(&mut linker, "0.1.0").map_err(|error| HostError::Engine(format!("{error:#}")))?;
        let cache = settings.cache_dir.as_ref().and_then(|dir| match Cache::open(dir, &started.engine) {
            Ok(cache) => Some(cache),
            Err(error) => {
                tracing::warn!(%error, "no compile cache: every start compiles all policies");
                None
            }
        });
        let shared = Shared { engine: started.engine, gate: Gate::new(settings.pool_slots), tick: settings.tick };
        Ok(Arc::new(Self {
            settings,
            shared: Arc::new(shared),
            linker,
            cache,
            pool_refused: started.pool_refused,
            compiling: Mutex::new(()),
        }))
    }

    /// Whether instances come from a pool. Without one a call costs about twice as much.
    pub fn pooled(&self) -> bool {
        self.pool_refused.is_none()
    }

    /// Whether compiled modules are kept between runs.
    pub fn cached(&self) -> bool {
        self.cache.is_some()
    }

    /// The settings that the host was started with.
    pub fn settings(&self) -> &HostSettings {
        &self.settings
    }

    /// What of the pool is in use now; `None` without a pool.
    pub fn pool_use(&self) -> Option<PoolUse> {
        let metrics = self.shared.engine.pooling_allocator_metrics()?;
        Some(PoolUse {
            policies: metrics.component_instances(),
            core_instances: metrics.core_instances(),
            memories: metrics.memories(),
            tables: metrics.tables(),
        })
    }

    /// Makes a policy of a module's bytes: a component, or a core module with a `component-type` section.
    ///
    /// Takes milliseconds for a small module and seconds for one with an interpreter inside; do it off the hot path.
    ///
    /// # Errors
    /// The first check that the module does not pass. Nothing else is disturbed by it.
    pub fn load(&self, name: &str, bytes: Vec<u8>, settings: &ModuleSettings) -> Result<Arc<Policy>, LoadError> {
        if !check::is_name(name) {
            return Err(LoadError::BadName { name: name.chars().take(80).collect(), suggestion: suggest(name) });
        }
        settings.limits.check(&self.settings.ceilings)?;
        let digest = digest(&bytes);
        let Inspected { component, kind, interface } = inspect(bytes, self.settings.max_module_bytes)?;
        let component = self.compile(&component)?;
        check_resources(&component, settings)?;
        let exports = Exports::find(&component, &interface)
            .map_err(|function| LoadError::WrongShape { function, detail: "it is not exported".to_owned() })?;
        let pre = self.linker.instantiate_pre(&component).map_err(|error| LoadError::WrongShape {
            function: "log.write".to_owned(),
            detail: format!("{error:#}"),
        })?;
        let name: Arc<str> = Arc::from(name);
        let description = self.describe(&name, kind, &exports, &pre, settings)?;
        check::description(&description).map_err(|detail| LoadError::BadDescription { detail })?;
        let configs = Configs::new(&description.config_schema, settings.config.clone())
            .map_err(|detail| LoadError::BadDescription { detail })?;
        configs.check_defaults().map_err(|error| LoadError::BadDefaults { detail: error.to_string() })?;
        let id = PolicyId { name: name.to_string(), version: description.version.clone(), digest };
        Ok(Arc::new(Policy {
            id,
            name,
            kind,
            description,
            settings: settings.clone(),
            configs,
            exports,
            pre,
            shared: Arc::clone(&self.shared),
            log_rate: Arc::default(),
        }))
    }

    /// Loads the module of a file with the settings beside it, `NAME.toml`, and asks it the golden cases beside it,
    /// `NAME.golden.json`. The file's stem is the policy's name.
    ///
    /// # Errors
    /// As [`load`](Self::load), [`LoadError::GoldenFailed`] for an answer that is another one, and
    /// [`LoadError::Unreadable`] if one of them is not a regular file that can be read.
    pub fn load_file(&self, path: &Path) -> Result<Arc<Policy>, LoadError> {
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let bytes = scan::read_module(path, self.settings.max_module_bytes)?;
        self.load_beside(name, bytes, path)
    }

    /// The bytes of the module at `path`, with what lies beside it.
    pub(crate) fn load_beside(&self, name: &str, bytes: Vec<u8>, path: &Path) -> Result<Arc<Policy>, LoadError> {
        let settings = scan::read_settings(path)?;
        let golden = scan::read_golden(path)?;
        let policy = self.load(name, bytes, &settings)?;
        golden::run(&policy, &golden)?;
        Ok(policy)
    }

    fn compile(&self, component: &[u8]) -> Result<Component, LoadError> {
        let _one = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        let work = || match &self.cache {
            Some(cache) => cache.load(&self.shared.engine, component),
            None => Component::new(&self.shared.engine, component),
        };
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Ok(component)) => Ok(component),
            Ok(Err(error)) => Err(LoadError::CompileFailed { detail: format!("{error:#}") }),
            Err(_) => Err(LoadError::CompileFailed {
                detail: "the compiler panicked on it; its message is in the operator's log".to_owned(),
            }),
        }
    }

    /// Checks the types of every function, then asks the guest to describe itself, under its limits.
    fn describe(
        &self,
        name: &Arc<str>,
        kind: PolicyKind,
        exports: &Exports,
        pre: &InstancePre<CallState>,
        settings: &ModuleSettings,
    ) -> Result<Description, LoadError> {
        let who = Who { policy: name, rate: &Arc::default(), function: "describe", job: String::new() };
        let answer = self.shared.call(pre, &settings.limits, who, |store, instance| {
            match exports.check(store, instance, kind == PolicyKind::Scaling) {
                Ok(()) => exports.describe(store, instance).map(Ok),
                Err(shape) => Ok(Err(shape)),
            }
        });
        match answer {
            Ok(answer) => answer
                .value
                .map_err(|(function, detail)| LoadError::WrongShape { function: function.to_owned(), detail }),
            Err(failure) => Err(LoadError::DescribeFailed { failure }),
        }
    }
}

/// `sha256:` and the hash in hex.
pub(crate) fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

/// A legal name near one that is not.
pub(crate) fn suggest(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    let legal: String = lower.chars().take(63).map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let legal = legal.trim_matches('-').to_owned();
    if legal.is_empty() { "policy".to_owned() } else { legal }
}

fn check_resources(component: &Component, settings: &ModuleSettings) -> Result<(), LoadError> {
    let Some(needs) = component.resources_required() else {
        return Err(LoadError::CompileFailed { detail: "it instantiates modules that it does not contain".to_owned() });
    };
    let memory = needs.max_initial_memory_size.unwrap_or(0).saturating_mul(WASM_PAGE);
    if memory > settings.limits.memory_bytes {
        return Err(LoadError::NeedsMoreMemory { needs: memory, limit: settings.limits.memory_bytes });
    }
    let table = needs.max_initial_table_size.unwrap_or(0);
    let limit = u64::from(settings.limits.table_elements);
    if table > limit {
        return Err(LoadError::NeedsMoreTables { needs: table, limit });
    }
    Ok(())
}

fn check_settings(settings: &HostSettings) -> Result<(), HostError> {
    let wrong = |setting, value: String, range| Err(HostError::Setting { setting, value, range });
    if !(1..=1000).contains(&settings.pool_slots) {
        return wrong("pool_slots", settings.pool_slots.to_string(), "1 to 1000");
    }
    if !(Duration::from_millis(1)..=Duration::from_secs(1)).contains(&settings.tick) {
        return wrong("tick", format!("{:?}", settings.tick), "1 ms to 1 s");
    }
    if settings.stack_bytes < 64 * 1024 || settings.stack_bytes > 16 * 1024 * 1024 {
        return wrong("stack_bytes", settings.stack_bytes.to_string(), "64 KiB to 16 MiB");
    }
    if settings.ceilings.memory_bytes < WASM_PAGE || settings.ceilings.memory_bytes > 4 * 1024 * 1024 * 1024 {
        return wrong("ceilings.memory_bytes", settings.ceilings.memory_bytes.to_string(), "64 KiB to 4 GiB");
    }
    Ok(())
}
