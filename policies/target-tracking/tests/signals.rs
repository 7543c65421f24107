//! Which signals it can be told to hold, and within which range.
#![allow(clippy::unwrap_used)]

use eto_policy_sdk::ScalingPolicy;
use policy_target_tracking::TargetTracking;

#[test]
fn any_built_in_signal_and_any_query_can_be_held() {
    let range_of = |config: &str| {
        let config = TargetTracking::read_config(config).map_err(|e| format!("{e:?}"))?;
        let problems = TargetTracking::problems(&config);
        if !problems.is_empty() {
            return Err(problems.join("; "));
        }
        let [want] = &TargetTracking::signals(&config)[..] else { return Err("one signal".to_owned()) };
        Ok((want.low, want.high))
    };
    for share in ["cpu-utilisation", "memory-utilisation", "gpu-utilisation", "gpu-memory-utilisation"] {
        assert_eq!(range_of(&format!(r#"{{"signal": "{share}"}}"#)), Ok((0.0, 1.0)), "{share}");
    }
    let throughput =
        r#"{"signal": "training-throughput", "target": 200, "per": "job", "direction": "moreMeansShrink"}"#;
    assert_eq!(range_of(throughput), Ok((0.0, 2000.0)), "samples per second are no share");
    assert_eq!(range_of(r#"{"signal": "queue", "query": "queue_length", "target": 5}"#), Ok((0.0, 50.0)));
    // A process may use more than it requests, where `high` says so; and a sum over workers is no share.
    let beyond = r#"{"signal": "cpu-utilisation", "target": 1.5"#;
    assert_eq!(range_of(&format!(r#"{beyond}, "high": 4}}"#)), Ok((0.0, 4.0)));
    assert_eq!(range_of(&format!(r#"{beyond}, "per": "job"}}"#)), Ok((0.0, 1.0)));
    let per_cent = range_of(&format!("{beyond}}}")).unwrap_err();
    assert!(per_cent.contains("0.8 is 80 %") && per_cent.contains("`high`"), "{per_cent}");
    let unknown = range_of(r#"{"signal": "queue"}"#).unwrap_err();
    assert!(unknown.contains("not built in") && unknown.contains("training-throughput"), "{unknown}");
}
