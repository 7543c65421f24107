//! What a policy implements.

use crate::{
    Config, PlacementDecision, PlacementInput, PolicyError, ScalingDecision, ScalingInput, SignalWant, config,
};

/// Decides how many workers a job should have. Export it with `export_policy!(Scaling: MyPolicy);`.
pub trait ScalingPolicy: 'static {
    /// Lower-case name, `[a-z0-9-]`, at most 63 characters.
    const NAME: &'static str;
    /// Semantic version of the policy's code: `env!("CARGO_PKG_VERSION")`.
    const VERSION: &'static str;
    /// One line for people.
    const SUMMARY: &'static str;
    /// Version of the layout of the state it keeps; 0 = it keeps none.
    const STATE_VERSION: u32 = 0;
    /// What `spec.scalingPolicy.config` holds; [`crate::NoConfig`] for nothing.
    type Config: Config;

    /// The signals that it needs with this config. None by default: a policy of `metrics[]` gets the signals of those.
    fn signals(_config: &Self::Config) -> Vec<SignalWant> {
        Vec::new()
    }

    /// What is wrong with a config beyond its types, one line per problem, each naming its key. Empty = nothing.
    fn problems(_config: &Self::Config) -> Vec<String> {
        Vec::new()
    }

    /// Decides. The config has been read and has no [`ScalingPolicy::problems`].
    ///
    /// # Errors
    /// See [`PolicyError`]: the size stays as it is in every case.
    fn evaluate(input: &ScalingInput, config: &Self::Config) -> Result<ScalingDecision, PolicyError>;

    /// Carries state of an older `version` over to [`ScalingPolicy::STATE_VERSION`].
    ///
    /// # Errors
    /// An error (the default) drops the old state: the policy starts without.
    fn migrate(version: u32, _bytes: &[u8]) -> Result<Vec<u8>, PolicyError> {
        Err(no_way_from(version))
    }

    /// Reads a config as `evaluate` and `validate-config` do.
    ///
    /// # Errors
    /// `InvalidConfig`, naming every key that is wrong.
    fn read_config(text: &str) -> Result<Self::Config, PolicyError> {
        checked(config::read(text)?, Self::problems)
    }
}

/// Decides which node each new worker should go to, and which workers to give up. Export it with
/// `export_policy!(Placement: MyPolicy);`.
pub trait PlacementPolicy: 'static {
    /// Lower-case name, `[a-z0-9-]`, at most 63 characters.
    const NAME: &'static str;
    /// Semantic version of the policy's code: `env!("CARGO_PKG_VERSION")`.
    const VERSION: &'static str;
    /// One line for people.
    const SUMMARY: &'static str;
    /// Version of the layout of the state it keeps; 0 = it keeps none.
    const STATE_VERSION: u32 = 0;
    /// What `spec.placementPolicy.config` holds; [`crate::NoConfig`] for nothing.
    type Config: Config;

    /// What is wrong with a config beyond its types, one line per problem, each naming its key. Empty = nothing.
    fn problems(_config: &Self::Config) -> Vec<String> {
        Vec::new()
    }

    /// Decides. The config has been read and has no [`PlacementPolicy::problems`].
    ///
    /// # Errors
    /// See [`PolicyError`]: the scheduler and the host then choose.
    fn evaluate(input: &PlacementInput, config: &Self::Config) -> Result<PlacementDecision, PolicyError>;

    /// Carries state of an older `version` over to [`PlacementPolicy::STATE_VERSION`].
    ///
    /// # Errors
    /// An error (the default) drops the old state: the policy starts without.
    fn migrate(version: u32, _bytes: &[u8]) -> Result<Vec<u8>, PolicyError> {
        Err(no_way_from(version))
    }

    /// Reads a config as `evaluate` and `validate-config` do.
    ///
    /// # Errors
    /// `InvalidConfig`, naming every key that is wrong.
    fn read_config(text: &str) -> Result<Self::Config, PolicyError> {
        checked(config::read(text)?, Self::problems)
    }
}

fn checked<C>(config: C, problems: impl Fn(&C) -> Vec<String>) -> Result<C, PolicyError> {
    let problems = problems(&config);
    if problems.is_empty() { Ok(config) } else { Err(PolicyError::InvalidConfig(problems.join("; "))) }
}

fn no_way_from(version: u32) -> PolicyError {
    PolicyError::Internal(format!("this policy can't read state of version {version}"))
}
