//! What the API server itself refuses, by the rules in the CRD, and with which words.

use std::sync::Arc;

use eto_e2e::world::World;
use eto_e2e::{Failure, Outcome, ensure};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

fn refused() -> Vec<(&'static str, Value, &'static str)> {
    let spec = |name, spec: Value, words| (name, json!({"metadata": {"name": "job"}, "spec": spec}), words);
    let types = |name, more: Value, words| {
        let mut spec =
            json!({"replicas": 4, "frameworkType": "TensorFlow", "replicaTypes": [{"name": "ps", "replicas": 2}]});
        for (field, value) in more.as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
        (name, json!({"metadata": {"name": "job"}, "spec": spec}), words)
    };
    let named = |name: &str, words| ("name", json!({"metadata": {"name": name}, "spec": {"replicas": 3}}), words);
    vec![
        spec(
            "replicas below",
            json!({"replicas": 3, "minReplicas": 5, "maxReplicas": 8}),
            "must not be below minReplicas",
        ),
        spec("replicas above", json!({"replicas": 9, "maxReplicas": 4}), "must not be above maxReplicas"),
        spec("too many", json!({"replicas": 3, "maxReplicas": 10_000}), "at most 4096 workers"),
        spec("too many of them", json!({"replicas": 5_000}), "at most 4096 workers"),
        spec(
            "too many for TF_CONFIG",
            json!({"replicas": 3, "maxReplicas": 513, "frameworkType": "TensorFlow"}),
            "at most 512 workers",
        ),
        spec("default replicas below", json!({"minReplicas": 2}), "must not be below minReplicas"),
        spec("min above max", json!({"replicas": 5, "minReplicas": 5, "maxReplicas": 4}), "maxReplicas"),
        spec("none", json!({"replicas": 0}), "set suspend: true"),
        spec("negative", json!({"replicas": -1}), "replicas"),
        spec("text", json!({"replicas": "three"}), "spec.replicas"),
        spec(
            "outside the policy's range",
            json!({"replicas": 3, "scalingPolicy": {"minReplicas": 4, "maxReplicas": 9, "module": "m"}}),
            "must not be below scalingPolicy.minReplicas",
        ),
        spec(
            "nothing decides",
            json!({"replicas": 3, "scalingPolicy": {"minReplicas": 1}}),
            "needs a module or at least one entry",
        ),
        spec(
            "no built-in without metrics",
            json!({"replicas": 3, "scalingPolicy": {"module": "m", "failurePolicy": "BuiltIn"}}),
            "failurePolicy BuiltIn needs metrics",
        ),
        spec("sizes twice", json!({"replicas": 3, "replicaSizes": {"list": [1], "multipleOf": 2}}), "exactly one of"),
        spec("sizes empty", json!({"replicas": 3, "replicaSizes": {}}), "exactly one of"),
        spec(
            "torchrun for JAX",
            json!({"replicas": 3, "frameworkType": "JAX", "elasticity": {"mode": "Native"}}),
            "Native needs frameworkType PyTorch",
        ),
        types("servers of torch", json!({"frameworkType": "PyTorch"}), "needs frameworkType TensorFlow or Custom"),
        spec(
            "servers of the default framework",
            json!({"replicas": 4, "replicaTypes": [{"name": "ps"}]}),
            "needs frameworkType TensorFlow or Custom",
        ),
        types("servers alone", json!({"replicas": 2}), "one worker at least must be left"),
        types("servers to the minimum", json!({"minReplicas": 2}), "fewer members than minReplicas"),
        types("two of a name", json!({"replicaTypes": [{"name": "ps"}, {"name": "ps"}]}), "Duplicate value"),
        types(
            "a type of TensorFlow's own",
            json!({"replicaTypes": [{"name": "scheduler"}]}),
            "chief, ps and evaluator",
        ),
        types(
            "workers by name",
            json!({"frameworkType": "Custom", "replicaTypes": [{"name": "worker"}]}),
            "must not be named worker or master",
        ),
        types(
            "no label",
            json!({"frameworkType": "Custom", "replicaTypes": [{"name": "A b"}]}),
            "replicaTypes[0].name",
        ),
        types("two chiefs", json!({"replicaTypes": [{"name": "chief", "replicas": 2}]}), "one chief only"),
        types("a master beside", json!({"master": {}}), "master can't be set beside replicaTypes"),
        types("a shared batch", json!({"elasticity": {"globalBatchSize": 64}}), "globalBatchSize can't be set"),
        spec("unknown framework", json!({"replicas": 3, "frameworkType": "Caffe"}), "PyTorch"),
        spec(
            "unknown mode",
            json!({"replicas": 3, "scalingPolicy": {"module": "m", "mode": "Sometimes"}}),
            "Recommend",
        ),
        named(&"a".repeat(51), "at most 50 characters"),
        named("1abc", "must begin with a letter"),
        named("a.b", "must begin with a letter"),
    ]
}

/// Contradictions are refused, with a message that says what to do.
pub(crate) async fn contradictions_are_refused_with_their_reason(world: Arc<World>) -> Outcome {
    world.make_namespace(&world.namespace).await?;
    let url = format!("/apis/elastic.ai/v1alpha1/namespaces/{}/elasticjobs", world.namespace);
    for (name, mut job, words) in refused() {
        job["apiVersion"] = "elastic.ai/v1alpha1".into();
        job["kind"] = "ElasticJob".into();
        let request = axum::http::Request::post(&url).body(serde_json::to_vec(&job)?)?;
        match world.client.request::<Value>(request).await {
            Ok(_) => return Err(Failure(format!("{name}: {job} was accepted"))),
            Err(kube::Error::Api(status)) => {
                ensure!(
                    status.code == 422,
                    "{name}: refused with {} and not as invalid: {}",
                    status.code,
                    status.message
                );
                ensure!(status.message.contains(words), "{name}: `{}` does not say `{words}`", status.message);
            }
            Err(other) => return Err(other.into()),
        }
    }
    ensure!(world.jobs().list(&kube::api::ListParams::default()).await?.items.is_empty(), "a job was made");
    Ok(())
}

/// Changes are held to the same rules; the framework stays what it is.
pub(crate) async fn changes_are_held_to_the_rules(world: Arc<World>) -> Outcome {
    world.make_namespace(&world.namespace).await?;
    let job = json!({"apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob", "metadata": {"name": "job"},
        "spec": {"replicas": 3, "maxReplicas": 5, "frameworkType": "PyTorch"}});
    let typed = json!({"apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob", "metadata": {"name": "typed"},
        "spec": {"replicas": 4, "frameworkType": "TensorFlow", "replicaTypes": [{"name": "chief"}, {"name": "ps"}]}});
    world.jobs().create(&PostParams::default(), &serde_json::from_value(job)?).await?;
    world.jobs().create(&PostParams::default(), &serde_json::from_value(typed)?).await?;
    let types = |all: Value| json!({"spec": {"replicaTypes": all}});
    for (name, change, words) in [
        ("job", json!({"spec": {"frameworkType": "JAX"}}), "frameworkType can't be changed"),
        ("job", json!({"spec": {"replicas": 6}}), "must not be above maxReplicas"),
        ("job", json!({"spec": {"maxReplicas": 2}}), "must not be above maxReplicas"),
        ("typed", types(json!([{"name": "chief"}, {"name": "ps", "replicas": 2}])), "can't be changed"),
        ("typed", types(json!([{"name": "ps"}, {"name": "chief"}])), "can't be changed"),
        ("typed", types(Value::Null), "can't be changed"),
        ("typed", json!({"spec": {"replicas": 2}}), "one worker at least must be left"),
    ] {
        match world.jobs().patch(name, &PatchParams::default(), &Patch::Merge(&change)).await {
            Err(kube::Error::Api(status)) if status.code == 422 && status.message.contains(words) => {}
            other => return Err(Failure(format!("{change}: expected `{words}`, got {other:?}"))),
        }
    }
    let template = json!({"spec": {"containers": [{"name": "server", "image": "cpu"}]}});
    let other = types(json!([{"name": "chief"}, {"name": "ps", "template": template}]));
    world.jobs().patch("typed", &PatchParams::default(), &Patch::Merge(&other)).await?;
    let n = world.namespace.as_str();
    let said = world.cluster.kubectl(&["-n", n, "scale", "elasticjob", "job", "--replicas=40"]);
    let Err(Failure(said)) = said else { return Err(Failure("scaling to 40 was accepted".into())) };
    ensure!(said.contains("must not be above maxReplicas"), "kubectl scale says `{said}`");
    world.cluster.kubectl(&["-n", n, "scale", "elasticjob", "job", "--replicas=4"])?;
    let replicas = world.jobs().get("job").await?.spec.replicas;
    ensure!(replicas == Some(4), "scale set replicas to {replicas:?}");
    Ok(())
}
