//! What the spec says about failures is read.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::needless_pass_by_value, reason = "`json!` values read better handed over")]

use std::time::Duration;

use eto_api::ElasticJob;
use eto_cycle::SpecProblems;
use eto_cycle::spec::job_spec;
use eto_engine::job::{JobSpec, RestartScope};
use eto_engine::state::LossClass;
use serde_json::{Value, json};

fn read(spec: Value) -> Result<JobSpec, SpecProblems> {
    let job =
        json!({"apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob", "metadata": {"name": "train"}, "spec": spec});
    job_spec(&serde_json::from_value::<ElasticJob>(job).unwrap())
}

fn paths(spec: Value) -> Vec<String> {
    read(spec).unwrap_err().0.into_iter().map(|p| p.path).collect()
}

#[test]
fn all_start_again_unless_the_job_says_otherwise() {
    for framework in ["PyTorch", "TensorFlow", "JAX", "Custom"] {
        let with = |elasticity: Value| json!({"replicas": 2, "frameworkType": framework, "elasticity": elasticity});
        let scope = |elasticity: Value| read(with(elasticity)).unwrap().elasticity.restart_scope;
        assert_eq!(scope(json!({})), RestartScope::Group);
        assert_eq!(scope(json!({"restartScope": "Pod"})), RestartScope::Pod);
    }
}

#[test]
fn limits_of_failures_are_read_and_there_are_none_by_default() {
    let with = |elasticity: Value| json!({"replicas": 2, "elasticity": elasticity});
    let read_of = |elasticity: Value| read(with(elasticity)).unwrap().elasticity;
    let none = read_of(json!({}));
    assert_eq!((none.failure_window, none.failure_limits.len()), (None, 0));
    let some = read_of(json!({"failureWindowSeconds": 86400, "failureLimits": {"hung": 2, "outOfMemory": 0}}));
    assert_eq!(some.failure_window, Some(Duration::from_secs(86_400)));
    assert_eq!(some.failure_limits, [(LossClass::Hung, 2), (LossClass::OutOfMemory, 0)].into());
    let wrong = json!({"failureWindowSeconds": 5, "failureLimits": {"podFailed": -1}});
    assert_eq!(paths(with(wrong)), ["spec.elasticity.failureWindowSeconds", "spec.elasticity.failureLimits.podFailed"]);
}
