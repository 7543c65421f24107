//! Pods that can't be made, or find no node: a job is never left half there, and goes on when it can.

use std::sync::Arc;

use eto_e2e::world::World;
use eto_e2e::{Outcome, ensure};
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

/// One worker per node, and there are four nodes.
const APART: &str = r"
apiVersion: elastic.ai/v1alpha1
kind: ElasticJob
metadata: {name: job}
spec:
  replicas: 3
  minReplicas: 2
  maxReplicas: 8
  elasticity: {pendingDeadlineSeconds: 2, roundTimeoutSeconds: 4}
  affinity:
    podAntiAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
      - labelSelector: {matchLabels: {elastic-job: job}}
        topologyKey: kubernetes.io/hostname
  template: {spec: {containers: [{name: train, image: 'example.com/train:1'}]}}
";

/// Workers of a growth that get no node in time: the growth is taken back to what there is room for, and said.
pub(crate) async fn a_growth_without_room_is_taken_back(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    world.apply(APART).await?;
    world.exactly("job", 3).await?;
    world.patch("job", json!({"spec": {"replicas": 6}})).await?;
    world.exactly("job", 4).await?;
    world.says("job", "Running", "True", "AllReady").await?;
    let status = world.jobs().get("job").await?.status.ok_or("no status")?;
    let resize = status.last_resize.ok_or("no resize is recorded")?;
    ensure!(resize.refused && (resize.from, resize.to) == (6, 4), "the resize is {resize:?}");
    let last = status.history.first().ok_or("no history")?;
    ensure!(
        (&last.kind[..], &last.by[..], last.outcome.as_deref()) == ("Resize", "User", Some("Refused"))
            && (last.from, last.to) == (3, 4),
        "the history begins with {last:?}"
    );
    ensure!(status.failures == 0, "{} failures were charged", status.failures);
    Ok(())
}

/// Workers that can't reach the minimum are released together and tried again; with room they run.
pub(crate) async fn a_gang_that_can_not_start_is_released(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    world.apply(&APART.replace("replicas: 3", "replicas: 6").replace("minReplicas: 2", "minReplicas: 6")).await?;
    world.says("job", "Scheduled", "False", "PodsUnschedulable").await?;
    world
        .job("job", |j| match j.status.as_ref().and_then(|s| s.round.as_ref()).map(|r| r.cause.as_str()) {
            Some("StartTimedOut") => Ok(()),
            other => Err(format!("the cause of the round is {other:?}")),
        })
        .await?;
    world.patch("job", json!({"spec": {"minReplicas": 2, "replicas": 4}})).await?;
    world.exactly("job", 4).await?;
    world.says("job", "Running", "True", "AllReady").await.map(drop)
}

/// A quota that has no room even for the minimum: the condition says what the API server said, and when the quota is
/// lifted the job starts by itself.
pub(crate) async fn refused_pods_are_told_and_tried_again(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(world.client.clone(), &world.namespace);
    let quota = serde_json::from_value(json!({"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}))?;
    quotas.create(&PostParams::default(), &quota).await?;
    world.apply(APART).await?;
    let message = world.says("job", "Scheduled", "False", "PodsRefused").await?;
    ensure!(message.contains("exceeded quota"), "the message is `{message}`");
    quotas.delete("few", &kube::api::DeleteParams::default()).await?;
    world.exactly("job", 3).await?;
    world.says("job", "Running", "True", "AllReady").await.map(drop)
}
