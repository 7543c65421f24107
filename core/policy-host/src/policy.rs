//! One loaded policy: immutable, shared, asked by many at once.

use std::sync::Arc;

use eto_engine::contract::{
    Description, JobFacts, PlacementDecision, PlacementInput, PolicyError, ScalingDecision, ScalingInput, SignalWant,
};
use eto_engine::policy::{Answer, Asked, CallFailure, FailureKind, PlacementPolicy, PolicyId, ScalingPolicy};
use serde::{Deserialize, Serialize};
use wasmtime::Store;
use wasmtime::component::{Instance, InstancePre};

use crate::call::{CallState, Shared, Who};
use crate::check;
use crate::config::Configs;
use crate::error::ConfigError;
use crate::log::Rate;
use crate::settings::ModuleSettings;
use crate::v0_1::Exports;

/// What a policy decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PolicyKind {
    /// How many workers a job should have.
    Scaling,
    /// Which nodes its workers should go to.
    Placement,
}

impl std::fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Scaling => "scaling",
            Self::Placement => "placement",
        })
    }
}

/// A module that passed every check and can be asked. Each call runs in a fresh instance: what a guest leaves behind
/// in its memory is gone with the call.
pub struct Policy {
    pub(crate) id: PolicyId,
    pub(crate) name: Arc<str>,
    pub(crate) kind: PolicyKind,
    pub(crate) description: Description,
    pub(crate) settings: ModuleSettings,
    pub(crate) configs: Configs,
    pub(crate) exports: Exports,
    pub(crate) pre: InstancePre<CallState>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) log_rate: Arc<Rate>,
}

impl std::fmt::Debug for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Policy").field("id", &self.id).field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Policy {
    /// Name, version and digest.
    pub fn id(&self) -> &PolicyId {
        &self.id
    }

    /// What it decides.
    pub fn kind(&self) -> PolicyKind {
        self.kind
    }

    /// What it says of itself.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The limits and default config that it runs with.
    pub fn settings(&self) -> &ModuleSettings {
        &self.settings
    }

    /// The config of a job (a JSON object, or nothing) over the module's defaults, checked against the policy's
    /// schema. Evaluating does this by itself; merging twice changes nothing.
    ///
    /// # Errors
    /// Text that is not a JSON object, or does not fit the schema: every key that is wrong, and what it must be.
    pub fn merge_config(&self, config: &str) -> Result<String, ConfigError> {
        self.configs.merge(config).map(|merged| merged.to_string())
    }

    fn merged(&self, config: &str) -> Result<Arc<str>, CallFailure> {
        self.configs
            .merge(config)
            .map_err(|error| CallFailure { kind: FailureKind::InvalidConfig, message: error.to_string() })
    }

    fn expect(&self, kind: PolicyKind) -> Result<(), CallFailure> {
        if self.kind == kind {
            return Ok(());
        }
        let (name, is) = (&self.name, self.kind);
        let message = format!("`{name}` is a {is} policy, and can't be asked as a {kind} policy: name another module");
        Err(CallFailure { kind: FailureKind::Missing, message })
    }

    fn call<T>(
        &self,
        function: &'static str,
        job: Option<&JobFacts>,
        body: impl FnOnce(&mut Store<CallState>, &Instance) -> wasmtime::Result<Result<T, PolicyError>>,
    ) -> Asked<T> {
        let job = job.map_or_else(String::new, |job| format!("{}/{}", job.namespace, job.name));
        let who = Who { policy: &self.name, rate: &self.log_rate, function, job };
        let answer = self.shared.call(&self.pre, &self.settings.limits, who, body)?;
        match answer.value {
            Ok(value) => Ok(Answer { value, fuel: answer.fuel }),
            Err(said) => Err(refused(function, said)),
        }
    }

    fn carry_over(&self, version: u32, state: &[u8]) -> Asked<Vec<u8>> {
        let answer =
            self.call("migrate", None, |store, instance| self.exports.migrate(store, instance, version, state))?;
        checked("migrate", answer, |said| check::state(Some(said), self.description.state_version))
    }
}

/// What the policy itself said against answering.
fn refused(function: &str, said: PolicyError) -> CallFailure {
    const MAX: usize = 1024;
    let (kind, text) = match said {
        PolicyError::InvalidConfig(text) => (FailureKind::InvalidConfig, text),
        PolicyError::UnusableInput(text) => (FailureKind::UnusableInput, text),
        PolicyError::Internal(text) => (FailureKind::Internal, text),
    };
    let text: String = text.chars().take(MAX).map(check::printable).collect();
    CallFailure { kind, message: format!("{function}: {text}") }
}

fn checked<T>(function: &str, answer: Answer<T>, check: impl FnOnce(&T) -> Result<(), String>) -> Asked<T> {
    match check(&answer.value) {
        Ok(()) => Ok(answer),
        Err(broken) => Err(CallFailure {
            kind: FailureKind::BadAnswer,
            message: format!("{function}: the policy answered {broken}"),
        }),
    }
}

impl ScalingPolicy for Policy {
    fn id(&self) -> &PolicyId {
        &self.id
    }

    fn state_version(&self) -> u32 {
        self.description.state_version
    }

    fn wants(&self, config: &str) -> Asked<Vec<SignalWant>> {
        let config = self.merged(config)?;
        let answer = self
            .call("validate-config", None, |store, instance| self.exports.validate_config(store, instance, &config))?;
        checked("validate-config", answer, |said| check::wants(said))
    }

    fn evaluate(&self, input: &ScalingInput) -> Asked<ScalingDecision> {
        self.expect(PolicyKind::Scaling)?;
        let config = self.merged(&input.config)?;
        let answer = self.call("evaluate", Some(&input.job), |store, instance| {
            self.exports.evaluate_scaling(store, instance, input, &config)
        })?;
        checked("evaluate", answer, |said| check::scaling(said, self.description.state_version))
    }

    fn migrate(&self, version: u32, state: &[u8]) -> Asked<Vec<u8>> {
        self.carry_over(version, state)
    }
}

impl PlacementPolicy for Policy {
    fn id(&self) -> &PolicyId {
        &self.id
    }

    fn state_version(&self) -> u32 {
        self.description.state_version
    }

    fn migrate(&self, version: u32, state: &[u8]) -> Asked<Vec<u8>> {
        self.carry_over(version, state)
    }

    fn place(&self, input: &PlacementInput) -> Asked<PlacementDecision> {
        self.expect(PolicyKind::Placement)?;
        let config = self.merged(&input.config)?;
        let answer = self.call("evaluate", Some(&input.job), |store, instance| {
            self.exports.evaluate_placement(store, instance, input, &config)
        })?;
        checked("evaluate", answer, |said| check::placement(said, input, self.description.state_version))
    }
}
