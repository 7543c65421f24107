//! What the loops share.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use eto_cycle::log::DecisionLog;
use eto_engine::time::Time;
use eto_policy_host::Registry;
use tokio::sync::Semaphore;

use crate::apply::Writer;
use crate::cache::Watches;
use crate::checkpoint::Checkpoints;
use crate::events::Events;
use crate::gateway::Gateway;
use crate::images::Images;
use crate::leader::Leadership;
use crate::placing::Reserved;
use crate::queue::Queue;
use crate::settings::Settings;
use crate::spans::Spans;
use crate::telemetry::Telemetry;

/// What the loops share; cheap to clone.
#[derive(Clone)]
pub struct Context {
    pub settings: Arc<Settings>,
    pub caches: Watches,
    /// Jobs to plan for: a status write at most.
    pub plans: Queue,
    /// Jobs whose planned actions are to be carried out. Apart from `plans`, so that making pods never holds up the
    /// targets of other jobs.
    pub acts: Queue,
    pub checkpoints: Checkpoints,
    pub writer: Writer,
    pub pod_permits: Arc<Semaphore>,
    /// Places that placement policies gave away lately.
    pub reserved: Reserved,
    pub events: Events,
    pub gateway: Gateway,
    pub images: Images,
    pub registry: Arc<Registry>,
    pub log: Option<Arc<DecisionLog>>,
    pub leadership: Leadership,
    pub telemetry: Telemetry,
    pub spans: Spans,
}

impl Context {
    /// Whether jobs may be planned for and sized: this replica leads, and knows what was kept.
    pub fn may_begin(&self) -> bool {
        self.leadership.may_act() && self.checkpoints.are_read()
    }
}

/// The wall clock.
pub fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Back-off after that many failures in a row: 200 ms doubling to 30 s, spread so that many jobs do not come at once.
pub fn back_off(failures: u32) -> Duration {
    let base = Duration::from_millis(200) * 2_u32.saturating_pow(failures.saturating_sub(1).min(8));
    base.min(Duration::from_secs(30)).mul_f64(0.75 + rand::random::<f64>() * 0.5)
}
