//! A real `HorizontalPodAutoscaler` on the `scale` subresource of a job that has no scaling policy of its own.

use std::sync::Arc;

use eto_e2e::metrics_api::MetricsApi;
use eto_e2e::world::World;
use eto_e2e::{Outcome, ensure};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

const JOB: &str = r"
apiVersion: elastic.ai/v1alpha1
kind: ElasticJob
metadata: {name: job}
spec:
  replicas: 2
  minReplicas: 1
  maxReplicas: 6
  template: {spec: {containers: [{name: train, image: 'example.com/train:1'}]}}
";

fn autoscaler() -> Value {
    let prompt =
        json!({"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 10, "periodSeconds": 1}]});
    json!({
        "metadata": {"name": "job"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob", "name": "job"},
            "minReplicas": 1, "maxReplicas": 6,
            "metrics": [{"type": "External", "external": {"metric": {"name": "backlog"},
                "target": {"type": "AverageValue", "averageValue": "10"}}}],
            "behavior": {"scaleUp": prompt, "scaleDown": prompt},
        }
    })
}

/// The controller manager's HPA reads the size, the selector and its metric, and writes the size: workers follow, up
/// and down.
pub(crate) async fn a_real_hpa_sizes_a_job(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    let metrics = MetricsApi::start(&world.client, &world.cluster, &world.namespace).await?;
    let outcome = grow_and_shrink(&world, &metrics).await;
    metrics.end(&world.cluster)?;
    outcome
}

async fn grow_and_shrink(world: &World, metrics: &MetricsApi) -> Outcome {
    metrics.set("backlog", 20);
    world.apply(JOB).await?;
    world.exactly("job", 2).await?;
    let api: Api<HorizontalPodAutoscaler> = Api::namespaced(world.client.clone(), &world.namespace);
    api.create(&PostParams::default(), &serde_json::from_value(autoscaler())?).await?;
    // 50 waiting, 10 for each worker: 5.
    metrics.set("backlog", 50);
    world.target("job", 5).await?;
    world.exactly("job", 5).await?;
    let replicas = world.jobs().get("job").await?.spec.replicas;
    ensure!(replicas == Some(5), "the HPA wrote to something else: spec.replicas is {replicas:?}");
    metrics.set("backlog", 25);
    world.target("job", 3).await?;
    world.exactly("job", 3).await?;
    ensure!(metrics.asked() > 0, "nobody asked for the metric");
    Ok(())
}
