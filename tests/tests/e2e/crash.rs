//! The operator dies or is cut off at every point where it matters: what is left is always put right.

use std::sync::Arc;

use eto_e2e::operator::Operator;
use eto_e2e::world::{World, condition};
use eto_e2e::{Failure, Outcome, ensure};
use serde_json::json;

const JOB: &str = r"
apiVersion: elastic.ai/v1alpha1
kind: ElasticJob
metadata: {name: job}
spec:
  replicas: 2
  minReplicas: 1
  maxReplicas: 8
  template: {spec: {containers: [{name: train, image: 'example.com/train:1'}]}}
";

/// SIGKILL before the first write of a growth and of a shrink, before the second, and so on until no write is left:
/// each time the next operator ends with exactly the right pods.
pub(crate) async fn killed_before_every_write_of_a_resize(world: Arc<World>) -> Outcome {
    let (gate, setup) = world.gate(&[]).await?;
    let mut operator = Operator::start(&setup).await?;
    world.apply(JOB).await?;
    settled(&world, 2).await?;
    let (mut size, mut points) = (2, [0, 0]);
    for n in 0.. {
        let mut killed = [false, false];
        for (direction, to) in [(0, 4), (1, 2)] {
            gate.hold_after(n);
            let resized = world.patch("job", json!({"spec": {"replicas": to}})).await?;
            killed[direction] = tokio::select! {
                () = gate.held() => true,
                done = resize_done(&world, &resized) => { done?; false }
            };
            let passed = gate.passed();
            if killed[direction] {
                points[direction] += 1;
                operator.kill()?;
                gate.release();
                operator = Operator::start(&setup).await?;
            } else {
                gate.release();
            }
            let after = |Failure(why)| Failure(format!("from {size} to {to}, killed after {passed:?}: {why}"));
            settled(&world, to).await.map_err(after)?;
            size = to;
        }
        if killed == [false, false] {
            break;
        }
    }
    // At the least: the new round, two or four deletions, as many pods made, the end.
    ensure!(points.iter().all(|n| *n >= 6), "the resizes were broken off at {points:?} points only");
    let failures = world.jobs().get("job").await?.status.map(|s| s.failures);
    ensure!(failures == Some(0), "{failures:?} failures were charged for nobody's fault");
    Ok(())
}

/// Exactly those pods, and the status says that they run.
async fn settled(world: &World, size: i64) -> Outcome {
    world.exactly("job", usize::try_from(size)?).await?;
    world
        .job("job", |j| match (condition(j, "Running"), j.status.as_ref().map(|s| s.ready_replicas)) {
            (Some((status, _)), Some(ready)) if status == "True" && ready == size => Ok(()),
            other => Err(format!("Running and readyReplicas are {other:?}")),
        })
        .await
}

/// The whole of a resize has been written.
async fn resize_done(world: &World, asked: &eto_api::ElasticJob) -> Outcome {
    let (generation, wanted) = (asked.metadata.generation, asked.spec.replicas);
    world
        .job("job", |j| {
            let status = j.status.as_ref().ok_or("no status")?;
            let done = status.last_resize.as_ref().is_some_and(|r| Some(r.to) == wanted && r.done.is_some());
            let seen = status.observed_generation == generation && Some(status.ready_replicas) == wanted;
            if done && seen { Ok(()) } else { Err("the resize is not done".to_owned()) }
        })
        .await
}

/// The leader dies: the other replica goes on within the Lease's time, and serves the job as it is.
pub(crate) async fn the_other_replica_goes_on_when_the_leader_dies(world: Arc<World>) -> Outcome {
    let mut first = world.operator().await?;
    world.apply(JOB).await?;
    settled(&world, 2).await?;
    let second = Operator::start(&world.setup(&[])).await?;
    ensure!(leads(&first).await? && !leads(&second).await?, "not exactly the first replica leads");
    first.kill()?;
    let before = world.exactly("job", 2).await?;
    world.patch("job", json!({"spec": {"replicas": 3}})).await?;
    settled(&world, 3).await?;
    ensure!(leads(&second).await?, "the second replica acted without leading");
    let made = second.metric("eto_pods_created_total").await?;
    ensure!((made - 3.0).abs() < 0.5, "{made} pods were made for a round of 3");
    ensure!(before.len() == 2, "the job did not stay as it was between the leaders");
    Ok(())
}

/// A leader that can't reach the API server stops acting before the other one begins; come back, it stands by.
pub(crate) async fn a_leader_that_is_cut_off_stops_acting(world: Arc<World>) -> Outcome {
    let (gate, setup) = world.gate(&[]).await?;
    let first = Operator::start(&setup).await?;
    world.apply(JOB).await?;
    settled(&world, 2).await?;
    let second = Operator::start(&world.setup(&[])).await?;
    let made_before = first.metric("eto_pods_created_total").await?;
    gate.close().await;
    gate.is_closed().await?;
    world.patch("job", json!({"spec": {"replicas": 4}})).await?;
    settled(&world, 4).await?;
    ensure!(leads(&second).await? && !leads(&first).await?, "not exactly the second replica leads");
    gate.reopen().await?;
    world.patch("job", json!({"spec": {"replicas": 3}})).await?;
    settled(&world, 3).await?;
    let made = first.metric("eto_pods_created_total").await?;
    ensure!((made - made_before).abs() < 0.5, "the replica that had been cut off made pods: {made_before} -> {made}");
    ensure!(!leads(&first).await?, "the replica that had been cut off leads without a Lease");
    Ok(())
}

/// Told to stop, the leader gives its Lease back: the other replica leads at once, not when the Lease has run out.
pub(crate) async fn a_leader_that_stops_gives_its_lease_back(world: Arc<World>) -> Outcome {
    // A Lease of an hour: nobody waits for it to run out.
    let long =
        [("ETO_LEADER_DURATION", "3600s"), ("ETO_LEADER_RENEW_DEADLINE", "3000s"), ("ETO_LEADER_RETRY_PERIOD", "1s")];
    let mut first = world.operator_with(&long).await?;
    world.apply(JOB).await?;
    settled(&world, 2).await?;
    let second = Operator::start(&world.setup(&long)).await?;
    let status = first.stop().await?;
    ensure!(status.success(), "the operator ended with {status}");
    world.patch("job", json!({"spec": {"replicas": 3}})).await?;
    settled(&world, 3).await?;
    ensure!(leads(&second).await?, "the second replica does not lead");
    Ok(())
}

async fn leads(operator: &Operator) -> Outcome<bool> {
    Ok(operator.metric("eto_leader").await? > 0.5)
}
