//! How many processes a worker runs.
#![allow(clippy::unwrap_used)]
#![allow(clippy::needless_pass_by_value, reason = "`json!` values read better handed over")]

use eto_api::ElasticJob;
use eto_cycle::SpecProblems;
use eto_cycle::spec::job_spec;
use eto_engine::job::JobSpec;
use serde_json::{Value, json};

fn read(spec: Value) -> Result<JobSpec, SpecProblems> {
    let job: ElasticJob = serde_json::from_value(json!({
        "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob", "metadata": {"name": "train"}, "spec": spec,
    }))
    .unwrap();
    job_spec(&job)
}

#[test]
fn processes_of_a_worker_are_a_number_or_one_for_each_device() {
    let of = |asked: Value, limits: Value, env: Value| {
        let resources = json!({"limits": limits});
        let command = ["python", "train.py"];
        let container = json!({"name": "c", "image": "i", "command": command, "resources": resources, "env": env});
        let mut spec = json!({"replicas": 2, "template": {"spec": {"containers": [container]}}});
        if !asked.is_null() {
            spec["nprocPerNode"] = asked;
        }
        read(spec).map(|s| s.processes()).map_err(|e| e.to_string())
    };
    let gpus = || json!({"cpu": "3500m", "nvidia.com/gpu": 8});
    let cpus = || json!({"cpu": "3500m"});
    for (asked, limits, processes) in [
        (Value::Null, gpus(), 8),
        (Value::Null, cpus(), 1),
        (json!(1), gpus(), 1),
        (json!(4), gpus(), 4),
        (json!("4"), gpus(), 4),
        (json!("gpu"), gpus(), 8),
        (json!("gpu"), json!({"amd.com/gpu": 2}), 2),
        (json!("cpu"), gpus(), 3),
        (json!("cpu"), json!({"cpu": "500m"}), 1),
        (json!("auto"), gpus(), 8),
        (json!("auto"), cpus(), 3),
        (json!("auto"), json!({}), 1),
        (Value::Null, json!({"nvidia.com/mig-1g.5gb": 2}), 1),
        (Value::Null, json!({"gpu.intel.com/i915": 2, "gpu.intel.com/millicores": 30}), 2),
    ] {
        assert_eq!(of(asked.clone(), limits, json!([])), Ok(processes), "{asked}");
    }
    let env = |value: &str| json!([{"name": "PET_NPROC_PER_NODE", "value": value}]);
    assert_eq!(of(Value::Null, gpus(), env("gpu")), Ok(8));
    assert_eq!(of(json!(2), gpus(), env("gpu")), Ok(2), "the job's own field comes first");
    assert_eq!(of(Value::Null, gpus(), env("1")), Ok(1));
    let refused = |asked: Value, limits: Value, env: Value, what: &str| {
        let told = of(asked, limits, env).unwrap_err();
        assert!(told.contains(what), "{told}");
    };
    refused(json!("gpu"), cpus(), json!([]), "asks for no GPU");
    refused(json!("tpu"), cpus(), json!([]), "gpu, cpu or auto");
    refused(json!(-1), cpus(), json!([]), "spec.nprocPerNode");
    refused(json!("2000"), cpus(), json!([]), "from 1 to 1024");
    refused(Value::Null, cpus(), env("all"), "env PET_NPROC_PER_NODE of the first container");
}

/// A worker of eight GPUs that says nothing of processes: in a pod with an agent, and with its command alone. Nobody is
/// there to start eight of a plain script without an agent, and a world that counts them would never be whole.
#[test]
fn a_worker_has_a_process_for_each_gpu_where_somebody_starts_them() {
    let of = |more: Value, command: Value| {
        let container = json!({
            "name": "c", "image": "i", "command": command, "resources": {"limits": {"nvidia.com/gpu": 8}},
        });
        let mut spec = json!({"replicas": 2, "template": {"spec": {"containers": [container]}}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let spec = read(spec).unwrap();
        (spec.processes_of(0, false), spec.processes_of(0, true))
    };
    let plain = || json!(["python", "train.py"]);
    assert_eq!(of(json!({}), plain()), (8, 1));
    assert_eq!(of(json!({}), json!(["torchrun", "train.py"])), (8, 8));
    assert_eq!(of(json!({}), json!(["torchrun", "--nproc-per-node=2", "train.py"])), (2, 2));
    assert_eq!(of(json!({"elasticity": {"agent": "Off"}}), plain()), (1, 1), "nobody starts more");
    for command in [json!(["./run.sh"]), json!(["accelerate", "launch", "train.py"]), json!(null)] {
        assert_eq!(of(json!({}), command.clone()), (1, 1), "{command}: it may start them itself");
    }
    assert_eq!(of(json!({"launcher": "Command"}), json!(["./run.sh"])), (8, 8));
    assert_eq!(of(json!({"launcher": "Agent"}), json!(["torchrun", "train.py"])), (8, 1));
    assert_eq!(of(json!({"nprocPerNode": 4}), plain()), (4, 4), "what the user says stands");
    for other in ["JAX", "TensorFlow", "Custom"] {
        assert_eq!(of(json!({"frameworkType": other}), plain()), (1, 1), "{other}");
    }
}
