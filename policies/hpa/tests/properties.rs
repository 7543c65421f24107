//! Whatever comes in: no panic, no answer that the host would refuse, the same answer for the same input. Bounds are the
//! guard's: the controller's calculation knows none.

use eto_policy_sdk::testing::{Source, any_scaling, check_scaling};
use eto_policy_sdk::{MAX_TARGET, ScalingPolicy};
use policy_hpa::{Hpa, HpaConfig};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_answer_is_one_that_the_host_takes(seed: u64) {
        let mut input = any_scaling(&mut Source::new(seed), &["cpu", "queue"], "{}");
        let answer = Hpa::evaluate(&input, &HpaConfig::default());
        (input.bounds.min, input.bounds.max) = (0, MAX_TARGET);
        if let Ok(decision) = &answer {
            check_scaling(&input, decision).map_err(TestCaseError::fail)?;
        }
        prop_assert_eq!(answer.is_ok(), Hpa::evaluate(&input, &HpaConfig::default()).is_ok());
    }

    /// A sample less never makes the job smaller: absent is not zero.
    #[test]
    fn a_missing_sample_never_shrinks_further(levels in prop::collection::vec(0u32..300, 2..8), lost in 0usize..8) {
        let lost = lost % levels.len();
        let ask = |gone: Option<usize>| {
            let values: Vec<_> = levels.iter().enumerate()
                .map(|(i, l)| (Some(i) != gone).then(|| f64::from(*l) / 100.0)).collect();
            let input = eto_policy_sdk::testing::scaling_input(&serde_json::json!({
                "workers": levels.len(), "signals": { "cpu": values },
                "metrics": [{ "kind": "Resource", "name": "cpu", "signal": 0, "target": { "Utilization": 80 } }],
            })).map_err(TestCaseError::fail)?;
            Ok::<_, TestCaseError>(Hpa::evaluate(&input, &HpaConfig::default()).ok().and_then(|d| d.target))
        };
        let size = u32::try_from(levels.len()).unwrap_or(0);
        if let (Some(all), Some(less)) = (ask(None)?, ask(Some(lost))?) {
            // What is left may lean either way, but a shrink beyond that of all samples would rest on absence.
            let mean_left: u32 = levels.iter().enumerate().filter(|(i, _)| *i != lost).map(|(_, l)| *l).sum();
            let filled = f64::from(mean_left + 100) / f64::from(size);
            prop_assert!(less >= all.min(size) || filled < 80.0, "{all} -> {less}");
        }
    }
}
