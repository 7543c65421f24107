//! Crashes, changes of the leader, refusals: what must come out right all the same.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use eto_api::labels;
use eto_e2e::operator::Operator;
use eto_e2e::world::{World, condition};
use eto_e2e::{Failure, Outcome, ensure};
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

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

/// Killed as soon as the new size is in the status, in the middle of a growth and of a shrink, twice each: the next
/// operator ends with exactly the right pods.
pub(crate) async fn killed_in_the_middle_of_a_resize(world: Arc<World>) -> Outcome {
    let mut operator = world.operator().await?;
    world.apply(JOB).await?;
    world.workers("job", 2).await?;
    for size in [6, 3, 8, 2] {
        patch(&world, json!({"spec": {"replicas": size}})).await?;
        world.job("job", |j| is("target", j.status.as_ref().map(|s| &s.target_replicas), &size)).await?;
        operator.kill()?;
        operator = Operator::start(&world.setup(&[])).await?;
        // What is left of the old round may have the right number by chance: the new round has to run.
        world
            .job("job", |j| {
                let round = j.status.as_ref().and_then(|s| s.round.as_ref()).ok_or("no round")?;
                let runs = round.size == size && round.running_since.is_some();
                if runs { Ok(()) } else { Err(format!("round {} of {} does not run", round.generation, round.size)) }
            })
            .await?;
        let pods = world.workers("job", usize::try_from(size)?).await?;
        let indexes: BTreeSet<String> = pods.iter().filter_map(|p| p.labels().get(labels::INDEX).cloned()).collect();
        ensure!(indexes.len() == pods.len(), "an index is there twice: {indexes:?}");
        ensure!(indexes.contains("0"), "the master is gone: {indexes:?}");
    }
    let failures = world.jobs().get("job").await?.status.map(|s| s.failures);
    ensure!(failures == Some(0), "{failures:?} failures were charged for nobody's fault");
    Ok(())
}

/// A job that stays as it is costs no request, however often it is evaluated.
pub(crate) async fn nothing_is_asked_at_steady_state(world: Arc<World>) -> Outcome {
    let operator = world.operator().await?;
    world.apply(JOB).await?;
    world.workers("job", 2).await?;
    world.job("job", |j| is("Running", condition(j, "Running").map(|c| c.0).as_deref(), "True")).await?;
    let waiting = async {
        // Events and counters of the start may still be on their way: the first quiet stretch counts.
        loop {
            let before = requests(&operator).await?;
            let seen = operator.sum("eto_evaluations_total").await?;
            while operator.sum("eto_evaluations_total").await? < seen + 5.0 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            if requests(&operator).await? <= before {
                return Ok::<_, Failure>(());
            }
        }
    };
    let quiet = tokio::time::timeout(Duration::from_secs(60), waiting).await;
    quiet.map_err(|_| Failure("five evaluations in a row never went without a request".into()))?
}

/// Suspended, a job has no pods; resumed, it has all of them, in a new round.
pub(crate) async fn suspended_and_resumed(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    world.apply(JOB).await?;
    let before = world.workers("job", 2).await?;
    patch(&world, json!({"spec": {"suspend": true}})).await?;
    world.workers("job", 0).await?;
    world.job("job", |j| is("Suspended", condition(j, "Suspended").map(|c| c.0).as_deref(), "True")).await?;
    patch(&world, json!({"spec": {"suspend": false}})).await?;
    let after = world.workers("job", 2).await?;
    ensure!(before[0].labels().get(labels::ROUND) != after[0].labels().get(labels::ROUND), "the round is the old one");
    Ok(())
}

/// A quota that has no room for a growth: it is taken back, said in a condition, and the job goes on.
pub(crate) async fn a_growth_beyond_the_quota_is_taken_back(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(world.client.clone(), &world.namespace);
    let quota = serde_json::from_value(json!({"metadata": {"name": "few"}, "spec": {"hard": {"pods": "3"}}}))?;
    quotas.create(&PostParams::default(), &quota).await?;
    world.apply(JOB).await?;
    world.workers("job", 2).await?;
    patch(&world, json!({"spec": {"replicas": 6}})).await?;
    world.workers("job", 3).await?;
    world.job("job", |j| is("Running", condition(j, "Running").map(|c| c.0).as_deref(), "True")).await
}

async fn patch(world: &World, change: Value) -> Outcome {
    world.jobs().patch("job", &PatchParams::default(), &Patch::Merge(change)).await?;
    Ok(())
}

/// All requests but those for the Lease and the watches that are begun again now and then.
async fn requests(operator: &Operator) -> Outcome<f64> {
    let mut all = 0.0;
    for verb in ["get", "list", "create", "patch", "delete"] {
        all += operator.sum(&format!("eto_api_requests_total{{verb=\"{verb}\"")).await?;
        all -= operator.sum(&format!("eto_api_requests_total{{verb=\"{verb}\",resource=\"leases\"")).await?;
    }
    Ok(all)
}

fn is<T: PartialEq + std::fmt::Debug + ?Sized>(what: &str, got: Option<&T>, wanted: &T) -> Result<(), String> {
    if got == Some(wanted) { Ok(()) } else { Err(format!("{what} is {got:?}, not {wanted:?}")) }
}
