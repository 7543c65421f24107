//! Whatever comes in: no panic, no answer out of bounds, the same answer for the same input.
#![allow(clippy::unwrap_used)]

use eto_policy_sdk::ScalingPolicy;
use eto_policy_sdk::testing::{Source, any_scaling, check_scaling};
use policy_gpu_efficiency::GpuEfficiency;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_answer_is_within_the_bounds(seed: u64) {
        let input = any_scaling(&mut Source::new(seed), &["gpu-utilisation", "training-throughput"], r#"{"throughputQuery":"t"}"#);
        let config = GpuEfficiency::read_config(&input.config).unwrap();
        let decision = GpuEfficiency::evaluate(&input, &config).unwrap();
        check_scaling(&input, &decision).map_err(TestCaseError::fail)?;
        prop_assert_eq!(decision, GpuEfficiency::evaluate(&input, &config).unwrap());
    }
}
