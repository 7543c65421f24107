//! The fixtures, natively. `policies/conformance` runs the same ones in the real host.
#![allow(clippy::unwrap_used)]

use eto_policy_sdk::ScalingPolicy;
use eto_policy_sdk::testing::run_scaling;
use policy_gpu_efficiency::GpuEfficiency;

#[test]
fn without_a_query_throughput_is_the_built_in_signal_and_optional() {
    for (config, query) in [("{}", None), (r#"{"throughputQuery": "sum(x)"}"#, Some("sum(x)"))] {
        let wants = GpuEfficiency::signals(&GpuEfficiency::read_config(config).unwrap());
        let throughput = wants.iter().find(|w| w.name == "training-throughput").unwrap();
        assert_eq!((throughput.query.as_deref(), throughput.required), (query, false));
    }
}

#[test]
fn fixtures_hold() {
    let cases = run_scaling::<policy_gpu_efficiency::GpuEfficiency>(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/fixtures/gpu-efficiency.json"
    ))
    .unwrap();
    assert!(cases >= 5, "only {cases} cases");
}
