//! The one WebAssembly engine of the process, and the thread that watches deadlines.

use std::thread;
use std::time::Duration;

use wasmtime::{Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use crate::error::HostError;
use crate::settings::HostSettings;

/// Instances, tables and memories that the parts of one component may add up to. A Rust guest has three core
/// instances (itself, the shims of its imports, and their fix-up); guests with an interpreter inside have more.
pub(crate) const CORE_INSTANCES: u32 = 32;
pub(crate) const TABLES: u32 = 8;
pub(crate) const MEMORIES: u32 = 2;
/// Bytes of a slot's memory and tables that stay resident when it is free: what makes a fresh instance cheap.
const KEEP_MEMORY: usize = 1024 * 1024;
const KEEP_TABLE: usize = 64 * 1024;

/// The engine, and whether it has its pool.
pub(crate) struct Started {
    pub(crate) engine: Engine,
    /// Why there is no pool, if there is none.
    pub(crate) pool_refused: Option<String>,
}

/// Starts the engine with a pool of slots; where the machine can't give the address space for one, without.
pub(crate) fn start(settings: &HostSettings) -> Result<Started, HostError> {
    let mut pooled = base(settings);
    pooled.allocation_strategy(InstanceAllocationStrategy::Pooling(pool(settings)));
    match Engine::new(&pooled) {
        Ok(engine) => Ok(Started { engine, pool_refused: None }),
        Err(refused) => {
            let refused = format!("{refused:#}");
            tracing::warn!(reason = %refused, "no pool for policy instances: each call maps its own memory, about twice as slow");
            let mut plain = base(settings);
            plain.allocation_strategy(InstanceAllocationStrategy::OnDemand);
            let engine = Engine::new(&plain).map_err(|error| HostError::Engine(format!("{error:#}")))?;
            Ok(Started { engine, pool_refused: Some(refused) })
        }
    }
}

fn base(settings: &HostSettings) -> Config {
    let mut config = Config::new();
    config
        .wasm_component_model(true)
        .concurrency_support(false)
        .consume_fuel(true)
        .epoch_interruption(true)
        .memory_init_cow(true)
        .max_wasm_stack(settings.stack_bytes)
        // The same input gives the same bits on every machine.
        .cranelift_nan_canonicalization(true)
        .wasm_relaxed_simd(false)
        .relaxed_simd_deterministic(true)
        .wasm_memory64(false);
    config
}

fn pool(settings: &HostSettings) -> PoolingAllocationConfig {
    let slots = settings.pool_slots;
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(slots)
        .total_core_instances(slots.saturating_mul(CORE_INSTANCES))
        .max_core_instances_per_component(CORE_INSTANCES)
        .total_memories(slots.saturating_mul(MEMORIES))
        .max_memories_per_component(MEMORIES)
        .total_tables(slots.saturating_mul(TABLES))
        .max_tables_per_component(TABLES)
        .table_elements(settings.ceilings.table_elements as usize)
        .max_memory_size(usize::try_from(settings.ceilings.memory_bytes).unwrap_or(usize::MAX))
        .linear_memory_keep_resident(KEEP_MEMORY)
        .table_keep_resident(KEEP_TABLE)
        .max_unused_warm_slots(slots);
    if PoolingAllocationConfig::is_pagemap_scan_available() {
        pool.pagemap_scan(Enabled::Yes);
    }
    pool
}

/// Starts the thread that advances the engine's clock. It ends by itself once nothing holds the engine any more.
#[allow(clippy::disallowed_methods, reason = "the clock of deadlines: this thread does nothing but sleep")]
pub(crate) fn tick(engine: &Engine, period: Duration) -> Result<(), HostError> {
    let weak = engine.weak();
    let run = move || {
        while let Some(engine) = weak.upgrade() {
            engine.increment_epoch();
            drop(engine);
            // A tick that comes late is late once: missed ticks are never made up for, which would stop guests early.
            thread::sleep(period);
        }
    };
    let spawned = thread::Builder::new().name("policy-deadlines".to_owned()).spawn(run);
    spawned.map(drop).map_err(HostError::Thread)
}
