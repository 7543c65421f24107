//! The API server as it is on bad days: conflicts, broken watches, silence, a restart.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use eto_e2e::operator::Operator;
use eto_e2e::world::{World, condition};
use eto_e2e::{Outcome, ensure, wait};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;

const JOB: &str = r"
apiVersion: elastic.ai/v1alpha1
kind: ElasticJob
metadata: {name: job}
spec:
  replicas: 3
  minReplicas: 1
  maxReplicas: 8
  scalingPolicy:
    metrics:
    - {type: External, external: {metric: {name: e2e_backlog}, target: {type: Value, value: 10}}}
    behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
  template: {spec: {containers: [{name: train, image: 'example.com/train:1'}]}}
";

/// Somebody else changes the job before each of the operator's next writes: the API server refuses them, and the
/// operator gets there all the same.
pub(crate) async fn conflicts_are_overcome(world: Arc<World>) -> Outcome {
    let (gate, setup) = world.gate(&[]).await?;
    let operator = Operator::start(&setup).await?;
    gate.make_conflicts(3);
    world.exporter.gauge(&world.namespace, "job", "e2e_backlog", 10.0);
    world.apply(JOB).await?;
    world.exactly("job", 3).await?;
    gate.make_conflicts(4);
    world.patch("job", json!({"spec": {"replicas": 5}})).await?;
    world.exactly("job", 5).await?;
    running(&world, 5).await?;
    ensure!(gate.conflicts_left() == 0, "{} writes were not disturbed", gate.conflicts_left());
    let refused =
        operator.sum("eto_api_requests_total{verb=\"patch\",resource=\"elasticjobs/status\",code=\"409\"").await?;
    ensure!(refused >= 4.0, "the API server refused {refused} writes only");
    Ok(())
}

/// The API server refuses the operator's writes as too many, and says to come again in an hour: each refusal is counted,
/// and the operator tries again in its own time.
pub(crate) async fn a_busy_api_server_is_tried_again(world: Arc<World>) -> Outcome {
    let (gate, setup) = world.gate(&[]).await?;
    let operator = Operator::start(&setup).await?;
    world.exporter.gauge(&world.namespace, "job", "e2e_backlog", 10.0);
    world.apply(JOB).await?;
    world.exactly("job", 3).await?;
    running(&world, 3).await?;
    gate.be_busy(4);
    world.patch("job", json!({"spec": {"replicas": 5}})).await?;
    world.exactly("job", 5).await?;
    running(&world, 5).await?;
    let refused = operator.sum_with("eto_api_requests_total{", "code=\"429\"").await?;
    ensure!(refused >= 4.0, "{refused} of 4 refusals were counted");
    Ok(())
}

/// All watches break, again and again, while jobs are resized: nothing is missed and nothing made twice.
pub(crate) async fn broken_watches_miss_nothing(world: Arc<World>) -> Outcome {
    let (gate, setup) = world.gate(&[]).await?;
    let operator = Operator::start(&setup).await?;
    world.exporter.gauge(&world.namespace, "job", "e2e_backlog", 10.0);
    world.apply(JOB).await?;
    world.exactly("job", 3).await?;
    let mut broken = 0;
    for size in [5, 2, 6, 4] {
        broken += gate.cut_all();
        world.patch("job", json!({"spec": {"replicas": size}})).await?;
        broken += gate.cut_all();
        world.exactly("job", usize::try_from(size)?).await?;
        running(&world, size).await?;
    }
    let made = operator.metric("eto_pods_created_total").await?;
    ensure!(made < 3.0 + 5.0 + 2.0 + 6.0 + 4.0 + 0.5, "{made} pods were made for rounds of 3, 5, 2, 6 and 4");
    // Jobs, pods and nodes are watched; a cut that the client takes for an end is no error to it, so they are counted here.
    ensure!(broken >= 3, "{broken} watches were cut");
    Ok(())
}

/// The API server does not answer the operator for a minute (`ETO_E2E_AWAY`: that many seconds), and a worker is lost
/// meanwhile: the job keeps its size, and the operator catches up by itself when it is back.
pub(crate) async fn the_api_server_is_away(world: Arc<World>) -> Outcome {
    let (gate, setup) = world.gate(&[]).await?;
    let operator = Operator::start(&setup).await?;
    world.exporter.gauge(&world.namespace, "job", "e2e_backlog", 10.0);
    world.apply(JOB).await?;
    let before = uids(&world.exactly("job", 3).await?);
    running(&world, 3).await?;
    gate.close().await;
    gate.is_closed().await?;
    wait::never(&world.pods(), "", away(), |pods| {
        if uids(pods) == before { Ok(()) } else { Err(format!("the pods changed while nobody could act: {pods:?}")) }
    })
    .await?;
    // It missed this one.
    let victim = world.exactly("job", 3).await?.remove(2);
    world.pods().delete(&victim.name_any(), &kube::api::DeleteParams::default()).await?;
    ensure!(operator.metric("eto_leader").await? < 0.5, "the operator thinks that it leads");
    gate.reopen().await?;
    let after = world.exactly("job", 3).await?;
    ensure!(uids(&after).is_disjoint(&before), "the lost worker's round goes on with the old pods");
    running(&world, 3).await
}

/// The API server itself is killed and comes back: operator, watches and jobs go on, no pod is replaced.
pub(crate) async fn the_api_server_restarts(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    world.exporter.gauge(&world.namespace, "job", "e2e_backlog", 10.0);
    world.apply(JOB).await?;
    let before = uids(&world.exactly("job", 3).await?);
    running(&world, 3).await?;
    world.cluster.restart_api_server().await?;
    ensure!(uids(&world.exactly("job", 3).await?) == before, "pods were replaced");
    world.patch("job", json!({"spec": {"replicas": 4}})).await?;
    world.exactly("job", 4).await?;
    running(&world, 4).await
}

fn away() -> Duration {
    let seconds = std::env::var("ETO_E2E_AWAY").ok().and_then(|s| s.parse().ok());
    Duration::from_secs(seconds.unwrap_or(60))
}

fn uids(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter().filter_map(ResourceExt::uid).collect()
}

async fn running(world: &World, size: i64) -> Outcome {
    world
        .job("job", |j| match (condition(j, "Running"), j.status.as_ref().map(|s| s.ready_replicas)) {
            (Some((status, _)), Some(ready)) if status == "True" && ready == size => Ok(()),
            other => Err(format!("Running and readyReplicas are {other:?}")),
        })
        .await
}
