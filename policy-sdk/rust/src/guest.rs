//! The component's exports on top of the traits.

use crate::bindings::{placement::exports::elastic::policy::placement, scaling::exports::elastic::policy::scaling};
use crate::{
    Description, KeptState, PlacementDecision, PlacementInput, PlacementPolicy, PolicyError, ScalingDecision,
    ScalingInput, ScalingPolicy, SignalWant, config,
};

impl<P: ScalingPolicy> scaling::Guest for P {
    fn describe() -> Description {
        report_panics();
        Description {
            name: P::NAME.to_owned(),
            version: P::VERSION.to_owned(),
            summary: P::SUMMARY.to_owned(),
            signals: P::signals(&P::Config::default()),
            config_schema: config::schema::<P::Config>(),
            state_version: P::STATE_VERSION,
        }
    }

    fn validate_config(config: String) -> Result<Vec<SignalWant>, PolicyError> {
        report_panics();
        Ok(P::signals(&P::read_config(&config)?))
    }

    fn evaluate(input: ScalingInput) -> Result<ScalingDecision, PolicyError> {
        report_panics();
        P::evaluate(&input, &P::read_config(&input.config)?)
    }

    fn migrate(state: KeptState) -> Result<Vec<u8>, PolicyError> {
        report_panics();
        P::migrate(state.version, &state.bytes)
    }
}

impl<P: PlacementPolicy> placement::Guest for P {
    fn describe() -> Description {
        report_panics();
        Description {
            name: P::NAME.to_owned(),
            version: P::VERSION.to_owned(),
            summary: P::SUMMARY.to_owned(),
            signals: Vec::new(),
            config_schema: config::schema::<P::Config>(),
            state_version: P::STATE_VERSION,
        }
    }

    fn validate_config(config: String) -> Result<Vec<SignalWant>, PolicyError> {
        report_panics();
        P::read_config(&config).map(|_| Vec::new())
    }

    fn evaluate(input: PlacementInput) -> Result<PlacementDecision, PolicyError> {
        report_panics();
        P::evaluate(&input, &P::read_config(&input.config)?)
    }

    fn migrate(state: KeptState) -> Result<Vec<u8>, PolicyError> {
        report_panics();
        P::migrate(state.version, &state.bytes)
    }
}

/// Sends `panicked at FILE:LINE: MESSAGE` through the log import: a trap alone tells a host nothing. An instance lives
/// for one call, so this runs once in it. Natively the standard hook stays.
fn report_panics() {
    #[cfg(target_family = "wasm")]
    std::panic::set_hook(Box::new(|panic| {
        let message = panic.payload_as_str().unwrap_or("(no message)");
        crate::log::error(match panic.location() {
            Some(at) => format!("panicked at {}:{}: {message}", at.file(), at.line()),
            None => format!("panicked: {message}"),
        });
    }));
}
