//! Sizes that follow what Prometheus says.

use std::sync::Arc;
use std::time::Duration;

use eto_api::ElasticJob;
use eto_e2e::world::{SOON, World, variable};
use eto_e2e::{Outcome, ensure, wait};
use kube::ResourceExt;
use kube::api::DeleteParams;

/// A job of one-core workers whose shortest reactions are asked for, so that a test need not wait for HPA's windows.
const JOB: &str = r"
apiVersion: elastic.ai/v1alpha1
kind: ElasticJob
metadata: {name: busy}
spec:
  replicas: 2
  frameworkType: PyTorch
  scalingPolicy:
    minReplicas: 2
    maxReplicas: 6
    metrics:
    - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}
    behavior:
      scaleUp: {stabilizationWindowSeconds: 0, policies: [{type: Pods, value: 10, periodSeconds: 1}]}
      scaleDown: {stabilizationWindowSeconds: 0, policies: [{type: Pods, value: 10, periodSeconds: 1}]}
  template:
    spec:
      containers:
      - {name: train, image: example.com/train:1, resources: {requests: {cpu: 1}}}
";

/// A window of a minute has to pass after a round began before its samples count, and one more for slack.
const WARM: Duration = Duration::from_secs(180);

/// CPU utilisation above the target adds workers, below it takes them away; never beyond the bounds.
pub(crate) async fn grows_and_shrinks_on_prometheus_values(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    world.exporter.cpu(&world.namespace, "busy", 0.5);
    world.apply(JOB).await?;
    world.workers("busy", 2).await?;
    // Twice the target: 2 workers become 4.
    world.exporter.cpu(&world.namespace, "busy", 1.0);
    target(&world, |t| t == 4).await?;
    let pods = world.workers("busy", 4).await?;
    ensure!(variable(&pods[1], "WORLD_SIZE").as_deref() == Some("4"), "WORLD_SIZE does not follow the growth");
    // A tenth of the target: back to the minimum, not below.
    world.exporter.cpu(&world.namespace, "busy", 0.05);
    target(&world, |t| t == 2).await?;
    let pods = world.workers("busy", 2).await?;
    ensure!(variable(&pods[1], "WORLD_SIZE").as_deref() == Some("2"), "WORLD_SIZE does not follow the shrink");
    Ok(())
}

async fn target(world: &World, wanted: impl Fn(i64) -> bool) -> Outcome {
    world
        .job_within(WARM, "busy", |job| {
            let status = job.status.as_ref().ok_or("no status")?;
            if wanted(status.target_replicas) { Ok(()) } else { Err(format!("target {}", status.target_replicas)) }
        })
        .await
}

/// Sized by a module and its own query; no window of a rate has to pass for it.
const TRACKED: &str = r"
apiVersion: elastic.ai/v1alpha1
kind: ElasticJob
metadata: {name: busy}
spec:
  replicas: 2
  minReplicas: 1
  maxReplicas: 6
  scalingPolicy:
    module: target-tracking
    mode: Auto
    config: {signal: backlog, query: sum(e2e_backlog), target: 10, windowSeconds: 15}
    behavior:
      scaleUp: {stabilizationWindowSeconds: 0, policies: [{type: Pods, value: 10, periodSeconds: 1}]}
      scaleDown: {stabilizationWindowSeconds: 0, policies: [{type: Pods, value: 10, periodSeconds: 1}]}
  template: {spec: {containers: [{name: train, image: 'example.com/train:1'}]}}
";

/// A module with its config and query: up, and down again, never below the minimum.
pub(crate) async fn a_module_grows_and_shrinks(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    world.exporter.gauge(&world.namespace, "busy", "e2e_backlog", 20.0);
    world.apply(TRACKED).await?;
    world.exactly("busy", 2).await?;
    world.exporter.gauge(&world.namespace, "busy", "e2e_backlog", 50.0);
    world.target("busy", 5).await?;
    world.exactly("busy", 5).await?;
    world.exporter.gauge(&world.namespace, "busy", "e2e_backlog", 0.0);
    world.target("busy", 1).await?;
    world.exactly("busy", 1).await?;
    let status = world.jobs().get("busy").await?.status.ok_or("no status")?;
    let policy = status.last_decision.and_then(|d| d.policy).ok_or("nobody decided")?;
    ensure!(policy.name == "target-tracking" && policy.digest.starts_with("sha256:"), "{policy:?} decided");
    Ok(())
}

/// A query whose answer may be of either of two jobs sizes neither, and each is told of the other. One of them alone has it.
pub(crate) async fn one_query_of_two_jobs_is_nobodys(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    world.exporter.gauge(&world.namespace, "busy", "e2e_backlog", 20.0);
    world.apply(TRACKED).await?;
    world.exactly("busy", 2).await?;
    // Written in another way, it is the same.
    world
        .apply(&TRACKED.replace("name: busy", "name: also").replace("sum(e2e_backlog)", "'sum( e2e_backlog )'"))
        .await?;
    for (job, rival) in [("busy", "\"also\""), ("also", "\"busy\"")] {
        let tells = |job: &ElasticJob| {
            let signal = job.status.iter().flat_map(|s| &s.signals).find(|s| s.name == "backlog");
            let told = signal.is_some_and(|s| s.quality == "Absent" && s.note.iter().any(|n| n.contains(rival)));
            if told { Ok(()) } else { Err(format!("the signal does not tell of {rival}: {signal:?}")) }
        };
        world.job_within(SOON * 2, job, tells).await?;
    }
    world.exporter.gauge(&world.namespace, "busy", "e2e_backlog", 50.0);
    wait::never(&world.jobs(), "", Duration::from_secs(5), |jobs| {
        let target = |j: &ElasticJob| j.status.as_ref().map(|s| s.target_replicas);
        jobs.iter()
            .find(|j| target(j) != Some(2))
            .map_or(Ok(()), |j| Err(format!("{} aims at {:?}", j.name_any(), target(j))))
    })
    .await?;
    world.jobs().delete("also", &DeleteParams::default()).await?;
    world.target("busy", 5).await
}

/// Recommend shows what would be done and does not do it; Off asks nobody and leaves the size to the user.
pub(crate) async fn recommend_shows_and_off_asks_nobody(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    world.exporter.gauge(&world.namespace, "busy", "e2e_backlog", 50.0);
    world.apply(&TRACKED.replace("mode: Auto", "mode: Recommend")).await?;
    world.exactly("busy", 2).await?;
    world
        .job("busy", |j| {
            let status = j.status.as_ref().ok_or("no status")?;
            let decision = status.last_decision.as_ref().ok_or("no decision")?;
            let shown =
                !decision.apply && decision.target == 5 && decision.limits.iter().any(|l| l.by == "RecommendOnly");
            if shown { Ok(()) } else { Err(format!("the decision is {decision:?}")) }
        })
        .await?;
    let status = world.jobs().get("busy").await?.status.ok_or("no status")?;
    ensure!(status.target_replicas == 2, "a recommendation moved the target to {}", status.target_replicas);
    world.apply(&TRACKED.replace("mode: Auto", "mode: 'Off'")).await?;
    world.says("busy", "ScalingActive", "False", "ScalingDisabled").await?;
    world.patch("busy", serde_json::json!({"spec": {"replicas": 3}})).await?;
    world.exactly("busy", 3).await?;
    // In mode Auto the same numbers move it: they were there all the time.
    world.apply(&TRACKED.replace("replicas: 2", "replicas: 3")).await?;
    world.target("busy", 5).await?;
    world.exactly("busy", 5).await.map(drop)
}
