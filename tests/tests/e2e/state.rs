//! What a policy keeps, where it is too large for status.

use std::sync::Arc;
use std::time::Duration;

use eto_e2e::operator::Operator;
use eto_e2e::world::{SOON, World, guest};
use eto_e2e::{Failure, Outcome, ensure, wait};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt};
use serde::Deserialize;
use tempfile::TempDir;

const JOB: &str = r"
apiVersion: elastic.ai/v1alpha1
kind: ElasticJob
metadata: {name: job}
spec:
  replicas: 2
  scalingPolicy: {minReplicas: 1, maxReplicas: 4, module: remembers}
  template: {spec: {containers: [{name: train, image: 'example.com/train:1', resources: {requests: {cpu: 1}}}]}}
";

/// What the guest keeps; see `tests/guests/remembers`.
#[derive(Debug, Deserialize)]
struct Kept {
    born_ms: u64,
    calls: u64,
    ballast: String,
}

/// 40 KiB of state are kept in a `ConfigMap` of the job's, no more often than they may be. The next operator goes on with
/// them, whether the one before was killed or stopped, and they go with the job.
pub(crate) async fn a_large_state_outlives_the_operator(world: Arc<World>) -> Outcome {
    let directory = TempDir::new()?;
    std::fs::copy(guest("remembers"), directory.path().join("remembers.wasm"))?;
    let path = directory.path().display().to_string();
    let settings = [("ETO_POLICIES_DIR", path.as_str()), ("ETO_EVALUATION_LARGE_STATE_PERIOD", "3s")];
    let mut operator = world.operator_with(&settings).await?;
    let began = tokio::time::Instant::now();
    world.apply(JOB).await?;
    let first = kept(&world, |k| k.calls >= 1).await?;
    ensure!(first.ballast.len() == 40 * 1024, "{} bytes were kept", first.ballast.len());
    let second = kept(&world, |k| k.calls > first.calls).await?;
    let (writes, seconds) = (operator.metric("eto_policy_state_writes_total").await?, began.elapsed().as_secs_f64());
    ensure!(writes <= 1.0 + seconds / 3.0, "{writes} writes in {seconds} s");

    operator.kill()?;
    operator = Operator::start(&world.setup(&settings)).await?;
    let third = kept(&world, |k| k.calls > second.calls).await?;
    ensure!(third.born_ms == first.born_ms, "after SIGKILL the policy began anew: {} calls", third.calls);
    ensure!(third.ballast == first.ballast, "the state came back damaged");

    let asked = operator.sum("eto_evaluations_total").await?;
    while operator.sum("eto_evaluations_total").await? < asked + 1.0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let before = kept(&world, |_| true).await?;
    operator.stop().await?;
    let left = kept(&world, |k| k.calls >= before.calls).await?;
    operator = Operator::start(&world.setup(&settings)).await?;
    let fourth = kept(&world, |k| k.calls > left.calls).await?;
    ensure!(fourth.born_ms == first.born_ms, "after SIGTERM the policy began anew: {} calls", fourth.calls);

    world.cluster.kubectl(&["delete", "elasticjob", "job", "-n", &world.namespace])?;
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), &world.namespace);
    wait::until(&maps, "elastic.ai/policy-state", SOON, |all| {
        if all.is_empty() { Ok(()) } else { Err(format!("{} maps are left", all.len())) }
    })
    .await?;
    drop(operator);
    Ok(())
}

/// Waits until what is stored is so.
async fn kept(world: &World, wanted: impl Fn(&Kept) -> bool) -> Outcome<Kept> {
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), &world.namespace);
    wait::until(&maps, "elastic.ai/policy-state,elastic-job=job", SOON, |all| {
        let [map] = all else { return Err(format!("there are {} maps", all.len())) };
        let bytes = map.binary_data.as_ref().and_then(|d| d.get("state")).ok_or("no state")?;
        let kept: Kept = serde_json::from_slice(&bytes.0).map_err(|e| e.to_string())?;
        let owned = map.owner_references().iter().any(|o| o.kind == "ElasticJob" && o.name == "job");
        if !owned {
            return Err("it does not belong to the job".to_owned());
        }
        if wanted(&kept) { Ok(kept) } else { Err(format!("{} calls", kept.calls)) }
    })
    .await
    .map_err(|Failure(why)| Failure(format!("the stored state: {why}")))
}
