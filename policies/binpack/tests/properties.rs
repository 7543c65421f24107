//! Whatever comes in: no panic, no node taken twice over, never a protected victim, the same answer for the same input.
#![allow(clippy::unwrap_used)]

use eto_policy_sdk::PlacementPolicy;
use eto_policy_sdk::testing::{Source, any_placement, check_placement};
use policy_binpack::Binpack;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_answer_can_be_carried_out(seed: u64) {
        let input = any_placement(&mut Source::new(seed), r#"{"maxPerNode":2}"#);
        let config = Binpack::read_config(&input.config).unwrap();
        let decision = Binpack::evaluate(&input, &config).unwrap();
        check_placement(&input, &decision).map_err(TestCaseError::fail)?;
        prop_assert_eq!(decision, Binpack::evaluate(&input, &config).unwrap());
    }
}
