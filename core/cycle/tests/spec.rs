//! Reading specs: every problem is told at once, and nothing panics.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::needless_pass_by_value, reason = "`json!` values read better handed over")]

use std::time::Duration;

use eto_api::{ElasticJob, MAX_TENSORFLOW_WORKERS, MAX_WORKERS};
use eto_cycle::spec::job_spec;
use eto_cycle::{SpecProblems, pod};
use eto_engine::job::{ElasticityMode, JobSpec, LegalSizes};
use eto_engine::plan::NewPod;
use eto_engine::state::RoundMode;
use eto_membership::{MAX_MEMBERS, MAX_TENSORFLOW_MEMBERS};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn read(spec: Value) -> Result<JobSpec, SpecProblems> {
    job_spec(&job(&spec))
}

fn job(spec: &Value) -> ElasticJob {
    serde_json::from_value(json!({
        "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob", "metadata": {"name": "train"}, "spec": spec,
    }))
    .unwrap()
}

fn paths(spec: Value) -> Vec<String> {
    read(spec).unwrap_err().0.into_iter().map(|p| p.path).collect()
}

#[test]
fn all_problems_are_listed_with_their_paths() {
    let spec = json!({
        "replicas": 3, "backoffLimit": -1,
        "replicaSizes": {"list": [2], "multipleOf": 2},
        "scalingPolicy": {
            "module": "../etc/passwd",
            "metrics": [
                {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Value", "value": "1"}}},
                {"type": "Pods"},
                {"type": "External", "external": {"metric": {"name": "q"}, "target": {"type": "Value", "value": "ten"}}},
                {"type": "Wish"},
            ],
            "behavior": {"scaleUp": {"selectPolicy": "All", "policies": [{"type": "Pods", "value": 0, "periodSeconds": 9000}]}},
        },
        "template": {"spec": {"containers": [{"name": "c", "env": [{"name": "A", "value": 1}]}]}},
    });
    assert_eq!(
        paths(spec),
        [
            "spec.replicaSizes",
            "spec.template.spec.containers[0].env[0].value",
            "spec.backoffLimit",
            "spec.scalingPolicy.module",
            "spec.scalingPolicy.metrics[0].resource.target.type",
            "spec.scalingPolicy.metrics[1].pods",
            "spec.scalingPolicy.metrics[2].external.target.value",
            "spec.scalingPolicy.metrics[3].type",
            "spec.scalingPolicy.behavior.scaleUp.selectPolicy",
            "spec.scalingPolicy.behavior.scaleUp.policies[0].value",
            "spec.scalingPolicy.behavior.scaleUp.policies[0].periodSeconds",
        ]
    );
}

#[test]
fn sizes_out_of_range_say_what_to_do() {
    let text = |spec| read(spec).unwrap_err().to_string();
    assert!(text(json!({"replicas": 0})).contains("from 1"));
    assert!(text(json!({"replicas": 3, "minReplicas": 5, "maxReplicas": 4})).contains("lower minReplicas or raise"));
    assert!(text(json!({"replicas": 9, "maxReplicas": 4})).contains("lower replicas or raise maxReplicas"));
    let outside = json!({"replicas": 3, "scalingPolicy": {"minReplicas": 4, "maxReplicas": 9, "module": "m"}});
    assert!(text(outside).contains("with the scaling policy's range"));
}

/// As the rules of the CRD, for objects that an older one let through.
#[test]
fn a_job_that_is_too_wide_is_refused_with_what_to_do() {
    assert_eq!((MAX_WORKERS, MAX_TENSORFLOW_WORKERS), (MAX_MEMBERS, MAX_TENSORFLOW_MEMBERS), "the CRD says the same");
    let said = |spec: Value| read(spec).err().map(|problems| problems.to_string()).unwrap_or_default();
    let pytorch = said(json!({"replicas": 3, "maxReplicas": 10_000}));
    assert!(pytorch.contains("spec.maxReplicas") && pytorch.contains("can have 4096: lower it"), "{pytorch}");
    let replicas = said(json!({"replicas": 100_000}));
    assert!(replicas.contains("spec.replicas"), "{replicas}");
    let tensorflow = said(json!({"replicas": 3, "maxReplicas": 513, "frameworkType": "TensorFlow"}));
    assert!(tensorflow.contains("TF_CONFIG") && tensorflow.contains("512"), "{tensorflow}");
    for fits in [
        json!({"replicas": 4096}),
        json!({"replicas": 3, "maxReplicas": 512, "frameworkType": "TensorFlow"}),
        // What a policy may ask for is cut to the job's own range.
        json!({"replicas": 3, "maxReplicas": 8, "scalingPolicy": {"module": "m", "maxReplicas": 100_000}}),
    ] {
        assert_eq!(said(fits), "");
    }
}

#[test]
fn quantities_that_cannot_be_read_are_named_and_written_as_numbers_are_fine() {
    let bad = json!({"name": "c", "resources": {"requests": {"cpu": "100mm"}, "limits": {"memory": "8GiB"}}});
    let good =
        json!({"name": "c", "resources": {"requests": {"cpu": 1, "memory": "1.5Gi"}, "limits": {"x/gpu": "+1e0"}}});
    let spec = |worker: &Value, master: &Value| {
        json!({"replicas": 2, "template": {"spec": {"containers": [good, worker], "initContainers": [worker]}},
               "master": {"template": {"spec": {"containers": [master]}}}})
    };
    assert!(read(spec(&good, &good)).is_ok());
    assert_eq!(
        paths(spec(&bad, &bad)),
        [
            "spec.template.spec.containers[1].resources.requests.cpu",
            "spec.template.spec.containers[1].resources.limits.memory",
            "spec.template.spec.initContainers[0].resources.requests.cpu",
            "spec.template.spec.initContainers[0].resources.limits.memory",
            "spec.master.template.spec.containers[0].resources.requests.cpu",
            "spec.master.template.spec.containers[0].resources.limits.memory",
        ]
    );
}

#[test]
fn ranges_are_intersected() {
    let range = |spec| read(spec).map(|s| (s.min, s.max)).unwrap();
    assert_eq!(range(json!({"replicas": 3})), (3, 3));
    assert_eq!(range(json!({"replicas": 3, "scalingPolicy": {"module": "m", "maxReplicas": 9}})), (1, 9));
    assert_eq!(range(json!({"replicas": 3, "scalingPolicy": {"module": "m"}})), (3, 3));
    let both = json!({"replicas": 4, "minReplicas": 2, "maxReplicas": 8,
        "scalingPolicy": {"module": "m", "minReplicas": 3, "maxReplicas": 20}});
    assert_eq!(range(both), (3, 8));
}

#[test]
fn community_522_a_range_that_is_told_twice_is_one_range_and_a_contradiction_is_refused() {
    let told = |min, max| {
        read(json!({"replicas": 4, "minReplicas": 2, "maxReplicas": 6,
            "scalingPolicy": {"module": "m", "minReplicas": min, "maxReplicas": max}}))
    };
    let range = |min, max| told(min, max).map(|s| (s.min, s.max)).unwrap();
    assert_eq!((range(2, 6), range(3, 9), range(1, 5)), ((2, 6), (3, 6), (2, 5)));
    let problem = told(7, 9).unwrap_err().to_string();
    assert!(problem.contains('7') && problem.contains('6'), "{problem}");
}

#[test]
fn legal_sizes() {
    let legal = |spec| read(spec).map(|s| s.legal);
    let list = json!({"replicas": 4, "maxReplicas": 8, "replicaSizes": {"list": [8, 4, 4]}});
    assert_eq!(legal(list).unwrap(), LegalSizes::List(vec![4, 8]));
    let multiple = json!({"replicas": 4, "maxReplicas": 8, "replicaSizes": {"multipleOf": 2}});
    assert_eq!(legal(multiple).unwrap(), LegalSizes::MultipleOf(2));
    assert!(legal(json!({"replicas": 5, "maxReplicas": 7, "replicaSizes": {"multipleOf": 4}})).is_err());
}

#[test]
fn a_global_batch_makes_sizes_legal_that_share_it() {
    let legal = |spec| read(spec).map(|s| eto_engine::guard::sizes::legal(&s));
    let with = |elasticity: Value, more: Value| {
        let mut spec = json!({"replicas": 2, "minReplicas": 1, "maxReplicas": 8, "elasticity": elasticity,
            "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    assert_eq!(legal(with(json!({"globalBatchSize": 96}), json!({}))).unwrap(), [1, 2, 3, 4, 6, 8]);
    assert_eq!(legal(with(json!({"globalBatchSize": 96}), json!({"nprocPerNode": 4}))).unwrap(), [1, 2, 3, 4, 6, 8]);
    assert_eq!(legal(with(json!({"globalBatchSize": 32}), json!({"nprocPerNode": 8}))).unwrap(), [1, 2, 4]);
    let multiple = json!({"replicaSizes": {"multipleOf": 3}, "replicas": 3});
    assert_eq!(legal(with(json!({"globalBatchSize": 96}), multiple)).unwrap(), [3, 6]);
    let none = with(json!({"globalBatchSize": 7}), json!({"minReplicas": 2, "maxReplicas": 6}));
    let problems = read(none).unwrap_err().to_string();
    assert!(problems.contains("globalBatchSize") && problems.contains("7 samples"), "{problems}");
    assert_eq!(paths(with(json!({"maxMicroBatchSize": 7}), json!({}))), ["spec.elasticity.maxMicroBatchSize"]);
    assert_eq!(paths(with(json!({"globalBatchSize": 0}), json!({}))), ["spec.elasticity.globalBatchSize"]);
    assert_eq!(paths(with(json!({}), json!({"nprocPerNode": 0}))), ["spec.nprocPerNode"]);
}

#[test]
fn processes_get_the_grace_of_the_template_unless_the_job_names_one() {
    let drain = |elasticity: Value, master: Value| {
        let spec = json!({"containers": [{"name": "c", "image": "i"}], "terminationGracePeriodSeconds": 60});
        let spec = json!({"replicas": 2, "elasticity": elasticity, "template": {"spec": spec}, "master": master});
        read(spec).unwrap().elasticity.drain_deadline
    };
    assert_eq!(drain(json!({}), json!({})), Duration::from_secs(60));
    assert_eq!(drain(json!({"drainDeadlineSeconds": 10}), json!({})), Duration::from_secs(10));
    let own = json!({"template": {"spec": {"containers": [{"name": "c", "image": "i"}], "terminationGracePeriodSeconds": 90}}});
    assert_eq!(drain(json!({}), own), Duration::from_secs(90), "the longest of both");
}

#[test]
fn memory_growth_is_read_and_there_is_none_by_default() {
    let with = |elasticity: Value| json!({"replicas": 2, "elasticity": elasticity});
    let growth =
        |elasticity: Value| read(with(elasticity)).unwrap().elasticity.memory_growth.map(|g| (g.percent, g.max_bytes));
    assert_eq!(growth(json!({})), None);
    assert_eq!(growth(json!({"memoryGrowth": {"maxMemory": "1Gi"}})), Some((50, 1 << 30)));
    assert_eq!(growth(json!({"memoryGrowth": {"percent": 100, "maxMemory": 5000}})), Some((100, 5000)));
    for wrong in [json!({"maxMemory": "plenty"}), json!({"maxMemory": 0}), json!({"maxMemory": "-1Gi"})] {
        assert_eq!(paths(with(json!({"memoryGrowth": wrong}))), ["spec.elasticity.memoryGrowth.maxMemory"], "{wrong}");
    }
    let zero = json!({"memoryGrowth": {"percent": 0, "maxMemory": "1Gi"}});
    assert_eq!(paths(with(zero)), ["spec.elasticity.memoryGrowth.percent"]);
}

#[test]
fn a_hang_timeout_is_read_and_there_is_none_by_default() {
    let with = |elasticity: Value| json!({"replicas": 2, "elasticity": elasticity});
    let timeout = |elasticity: Value| read(with(elasticity)).unwrap().elasticity.hang_timeout;
    assert_eq!(timeout(json!({})), None);
    assert_eq!(timeout(json!({"hangTimeoutSeconds": 900})), Some(Duration::from_secs(900)));
    assert_eq!(paths(with(json!({"hangTimeoutSeconds": 0}))), ["spec.elasticity.hangTimeoutSeconds"]);
    let start = |elasticity: Value| read(with(elasticity)).unwrap().elasticity.hang_start_timeout;
    assert_eq!(start(json!({"hangTimeoutSeconds": 60})), None);
    let both = json!({"hangTimeoutSeconds": 60, "hangStartTimeoutSeconds": 1800});
    assert_eq!(start(both), Some(Duration::from_secs(1800)));
    assert_eq!(paths(with(json!({"hangStartTimeoutSeconds": 9}))), ["spec.elasticity.hangStartTimeoutSeconds"]);
}

#[test]
fn torchruns_own_elasticity_is_asked_for_and_is_torchs() {
    let with = |mode: Value, framework: &str| json!({"replicas": 2, "frameworkType": framework, "elasticity": mode});
    let mode = |mode: Value| read(with(mode, "PyTorch")).unwrap().elasticity.mode;
    assert_eq!(mode(json!({})), ElasticityMode::Rounds);
    assert_eq!(mode(json!({"mode": "Rounds"})), ElasticityMode::Rounds);
    assert_eq!(mode(json!({"mode": "Native"})), ElasticityMode::Native);
    assert_eq!(paths(with(json!({"mode": "Native"}), "JAX")), ["spec.elasticity.mode"]);
}

#[test]
fn behaviour_has_the_defaults_of_its_kind() {
    let behavior =
        |policy: Value| read(json!({"replicas": 3, "scalingPolicy": policy})).unwrap().scaling.unwrap().behavior;
    let metrics = json!([{"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": 70}}}]);
    assert_eq!(behavior(json!({"metrics": metrics})), None);
    let hpa = behavior(json!({"metrics": metrics, "behavior": {}})).unwrap();
    assert_eq!((hpa.up.stabilization, hpa.up.policies.len()), (Duration::ZERO, 2));
    assert_eq!((hpa.down.stabilization, hpa.down.policies.len()), (Duration::from_secs(300), 1));
    let module = behavior(json!({"module": "m", "behavior": {"scaleDown": {"tolerance": "50m"}}})).unwrap();
    assert_eq!((module.up.stabilization, module.up.policies.len()), (Duration::from_secs(60), 0));
    assert!((module.down.tolerance - 0.05).abs() < 1e-12);
}

#[test]
fn a_spec_of_the_wrong_shape_names_the_field() {
    assert_eq!(paths(json!({"replicas": "three"})), ["spec.replicas"]);
    assert_eq!(
        paths(json!({"template": {"spec": {"containers": [{"name": 5}]}}})),
        ["spec.template.spec.containers[0].name"]
    );
    assert_eq!(
        paths(json!({"volumes": [{"name": "a"}, 7], "template": {"spec": {"containers": [{"name": "c"}]}}})),
        ["spec.volumes[1]"]
    );
}

/// Any JSON, with the field names of the API far more often than chance would have them.
fn arbitrary_json() -> impl Strategy<Value = Value> {
    let keys = prop_oneof![
        Just("spec"),
        Just("replicas"),
        Just("minReplicas"),
        Just("maxReplicas"),
        Just("template"),
        Just("containers"),
        Just("env"),
        Just("name"),
        Just("value"),
        Just("scalingPolicy"),
        Just("metrics"),
        Just("type"),
        Just("target"),
        Just("behavior"),
        Just("replicaSizes"),
        Just("list"),
        Just("multipleOf"),
        Just("volumes"),
        Just("affinity"),
        Just("nodeAffinity"),
        Just("module"),
        Just("config"),
        Just("resource"),
        Just("averageValue"),
        Just("resources"),
        Just("requests"),
        Just("cpu"),
        Just("master"),
        Just("elasticity"),
        Just("topologySpreadConstraints"),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3_i64..12).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        "[-+]?[0-9.]{1,50}[eEKMGimnu]{0,2}[0-9]{0,3}".prop_map(Value::from),
        Just(Value::from("Resource")),
        Just(Value::from("AverageValue")),
        Just(Value::from("cpu")),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((keys.clone().prop_map(str::to_string), inner), 0..6)
                .prop_map(|e| Value::Object(e.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

proptest! {
    #[test]
    fn no_object_panics_and_bounds_hold(spec in arbitrary_json()) {
        let job = job(&spec);
        if let Ok(read) = job_spec(&job) {
            prop_assert!(1 <= read.min && read.min <= read.replicas && read.replicas <= read.max);
        }
        let new = NewPod { index: 1, round: 1, size: 2, incarnation: 1, mode: RoundMode::Recreate, env: vec![("RANK".into(), "1".into())].into(), node: None, memory: None };
        let _ = pod::build(&job, &new, None);
    }

    #[test]
    fn any_template_is_read_or_refused(template in arbitrary_json()) {
        let job = job(&json!({"replicas": 2, "template": template}));
        if let Ok(read) = job_spec(&job) {
            let request = read.template.map(|t| t.request).unwrap_or_default();
            prop_assert!(request.cpu >= 0.0 && request.cpu.is_finite());
        }
    }
}

fn typed(framework: &str, types: Value, more: Value) -> Value {
    let mut spec = json!({"replicas": 4, "frameworkType": framework, "replicaTypes": types,
        "template": {"spec": {"containers": [{"name": "c", "image": "i", "command": ["train"]}]}}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

#[test]
fn types_of_members_are_read_in_their_order() {
    let types = json!([{"name": "chief"}, {"name": "ps", "replicas": 2}]);
    let spec = read(typed("TensorFlow", types, json!({}))).unwrap();
    let all: Vec<(&str, u32)> = spec.types.0.iter().map(|t| (t.name.as_str(), t.replicas)).collect();
    assert_eq!((all, spec.leader()), (vec![("chief", 1), ("ps", 2)], Some(0)));
    assert!(read(typed("PyTorch", json!([]), json!({}))).unwrap().types.is_empty());
}

#[test]
fn types_that_can_not_be_are_refused_with_their_paths() {
    let wrong = |framework: &str, types: Value, more: Value| paths(typed(framework, types, more));
    let ps = || json!([{"name": "ps", "replicas": 1}]);
    assert_eq!(wrong("PyTorch", ps(), json!({})), ["spec.replicaTypes"]);
    assert_eq!(wrong("TensorFlow", json!([{"name": "ps", "replicas": 4}]), json!({})), ["spec.replicaTypes"]);
    assert_eq!(wrong("TensorFlow", ps(), json!({"minReplicas": 1})), ["spec.replicaTypes"]);
    assert_eq!(wrong("TensorFlow", json!([{"name": "scheduler"}]), json!({})), ["spec.replicaTypes[0].name"]);
    assert_eq!(
        wrong(
            "Custom",
            json!([{"name": "worker"}, {"name": "a"}, {"name": "a"}, {"name": "A b"}]),
            json!({"replicas": 9})
        ),
        ["spec.replicaTypes[0].name", "spec.replicaTypes[2].name", "spec.replicaTypes[3].name"]
    );
    assert_eq!(wrong("Custom", json!([{"name": "master"}]), json!({})), ["spec.replicaTypes[0].name"]);
    assert_eq!(
        wrong("TensorFlow", json!([{"name": "chief", "replicas": 2}]), json!({})),
        ["spec.replicaTypes[0].replicas"]
    );
    assert_eq!(wrong("Custom", json!([{"name": "ps", "replicas": 0}]), json!({})), ["spec.replicaTypes[0].replicas"]);
    assert_eq!(wrong("TensorFlow", ps(), json!({"master": {}})), ["spec.master"]);
    let batch = json!({"elasticity": {"globalBatchSize": 64}});
    assert_eq!(wrong("TensorFlow", ps(), batch), ["spec.elasticity.globalBatchSize"]);
    let own = json!([{"name": "ps", "template": {"spec": {"containers": []}}}]);
    assert_eq!(wrong("TensorFlow", own, json!({})), ["spec.replicaTypes[0].template.spec.containers"]);
    let request = json!([{"name": "ps", "template": {"spec": {"containers": [
        {"name": "c", "resources": {"requests": {"cpu": "much"}}}]}}}]);
    assert_eq!(
        wrong("TensorFlow", request, json!({})),
        ["spec.replicaTypes[0].template.spec.containers[0].resources.requests.cpu"]
    );
}

#[test]
fn what_a_type_needs_is_not_what_workers_need() {
    let own = json!([{"name": "ps", "template": {"spec": {
        "terminationGracePeriodSeconds": 90,
        "containers": [{"name": "server", "image": "s", "resources": {"requests": {"cpu": "8"}}}],
    }}}]);
    let spec = read(typed("TensorFlow", own, json!({"nprocPerNode": 2}))).unwrap();
    let template = spec.template.as_ref().unwrap();
    assert!(template.request.cpu.abs() < f64::EPSILON, "room is asked for workers");
    assert_eq!((spec.processes_of(0, false), spec.processes_of(1, false)), (1, 2));
    assert!(!template.command, "an agent needs the command of every pod");
    assert_eq!(spec.elasticity.drain_deadline, Duration::from_secs(90));
}
