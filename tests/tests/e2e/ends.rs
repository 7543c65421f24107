//! How rounds and jobs end: failures, losses, success, a new template.

use std::collections::BTreeSet;
use std::sync::Arc;

use eto_api::labels;
use eto_e2e::world::{SOON, World};
use eto_e2e::{Outcome, ensure, wait};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

pub(super) const JOB: &str = r"
apiVersion: elastic.ai/v1alpha1
kind: ElasticJob
metadata: {name: job}
spec:
  replicas: 3
  frameworkType: PyTorch
  restartPolicy: Never
  backoffLimit: 1
  template: {spec: {containers: [{name: train, image: 'example.com/train:1'}]}}
";

/// A failed worker makes a new round after a back-off; one failure more than `backoffLimit` is the job's end, and says
/// so; the pods that failed stay for their logs. The history has the end of the log of the one that is gone too.
pub(crate) async fn failures_beyond_the_limit_end_the_job(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    world.apply(JOB).await?;
    let first = world.exactly("job", 3).await?;
    finish(&world, &first, "1", "Failed", 1).await?;
    replaced(&world, &first).await?;
    let second = world.exactly("job", 3).await?;
    world.job("job", |j| is("failures", j.status.as_ref().map(|s| s.failures), 1)).await?;
    finish(&world, &second, "2", "Failed", 1).await?;
    let message = world.says("job", "Failed", "True", "BackoffLimitExceeded").await?;
    ensure!(message.contains("backoffLimit"), "the message is `{message}`");
    let history = world.jobs().get("job").await?.status.ok_or("no status")?.history;
    let told = history.iter().map(|e| {
        let failed = e.failed.as_ref().map(|f| (&f.pod[..], &f.last_lines[..]));
        (&e.kind[..], &e.by[..], failed)
    });
    let (lost, last) = (of(&first, "1")?.name_any(), of(&second, "2")?.name_any());
    let lines = "Traceback\nKeyError: 'x'";
    let wanted = [
        ("End", "Loss", Some((&last[..], lines))),
        ("Replacement", "Loss", Some((&lost[..], lines))),
        ("Start", "User", None),
    ];
    ensure!(told.eq(wanted), "the history is {history:?}");
    wait::until(&world.pods(), "", SOON, |pods| match pods {
        [one] if one.labels().get(labels::INDEX).is_some_and(|i| i == "2") => Ok(()),
        others => Err(format!("not only the failed pod is left: {:?}", names(others))),
    })
    .await
}

/// The end of the master is the end of the job, for which `kubectl wait` waits as docs/lifecycle.md says; the workers that
/// still run go, and after its time to live the job goes with everything that is its own.
pub(crate) async fn the_masters_success_is_the_jobs(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    world.apply(JOB).await?;
    let pods = world.exactly("job", 3).await?;
    waits_for(&world, "Running", "30s")?;
    ensure!(waits_for(&world, "Succeeded", "1s").is_err(), "kubectl does not wait for the end");
    let waiting = tokio::task::spawn_blocking({
        let world = Arc::clone(&world);
        move || waits_for(&world, "Succeeded", "60s").map_err(|failure| failure.0)
    });
    finish(&world, &pods, "0", "Succeeded", 0).await?;
    waiting.await??;
    world.says("job", "Succeeded", "True", "JobSucceeded").await?;
    wait::until(&world.pods(), "", SOON, |pods| match pods {
        [one] if one.labels().get(labels::ROLE).is_some_and(|r| r == "master") => Ok(()),
        others => Err(format!("not only the master is left: {:?}", names(others))),
    })
    .await?;
    world.patch("job", json!({"spec": {"ttlSecondsAfterFinished": 1}})).await?;
    wait::until(&world.jobs(), "", SOON, |jobs| jobs.is_empty().then_some(()).ok_or("the job is still there".into()))
        .await?;
    wait::until(&world.pods(), "", SOON, |pods| pods.is_empty().then_some(()).ok_or("a pod is still there".into()))
        .await
}

/// A pod that somebody deletes makes a new round of the same size, is no failure, and costs no wait.
pub(crate) async fn a_deleted_pod_makes_a_new_round(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    world.apply(JOB).await?;
    let before = world.exactly("job", 3).await?;
    running(&world).await?;
    world.pods().delete(&of(&before, "1")?.name_any(), &kube::api::DeleteParams::default()).await?;
    replaced(&world, &before).await?;
    world.exactly("job", 3).await?;
    running(&world).await?;
    let status = world.jobs().get("job").await?.status.ok_or("no status")?;
    ensure!(
        status.failures == 0 && status.disruptions == 1,
        "{} failures, {} disruptions",
        status.failures,
        status.disruptions
    );
    Ok(())
}

/// Another template is a new round whose pods are all made from it.
pub(crate) async fn a_new_template_is_a_new_round(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    world.apply(JOB).await?;
    let before = world.exactly("job", 3).await?;
    world.apply(&JOB.replace("train:1", "train:2")).await?;
    wait::until(&world.pods(), "", SOON, |pods| {
        let new =
            |p: &Pod| p.spec.as_ref().is_some_and(|s| s.containers[0].image.as_deref() == Some("example.com/train:2"));
        if pods.len() == 3 && pods.iter().all(new) { Ok(()) } else { Err(format!("{:?}", names(pods))) }
    })
    .await?;
    let after = world.exactly("job", 3).await?;
    let hash =
        |pods: &[Pod]| pods.iter().map(|p| p.labels().get(labels::TEMPLATE_HASH).cloned()).collect::<BTreeSet<_>>();
    ensure!(hash(&after).len() == 1 && hash(&after) != hash(&before), "the hashes are {:?}", hash(&after));
    Ok(())
}

/// `kubectl wait` for a condition of the job.
fn waits_for(world: &World, condition: &str, timeout: &str) -> Outcome<String> {
    let (of, within) = (format!("--for=condition={condition}"), format!("--timeout={timeout}"));
    world.cluster.kubectl(&["-n", &world.namespace, "wait", &of, "elasticjob/job", &within])
}

/// All pods are others than before: no peer of a lost worker goes on in the next round.
async fn replaced(world: &World, before: &[Pod]) -> Outcome {
    wait::until(&world.pods(), "", SOON, |pods| {
        let all = pods.len() == before.len() && uids(pods).is_disjoint(&uids(before));
        if all { Ok(()) } else { Err(format!("the pods are {:?}", names(pods))) }
    })
    .await
}

async fn running(world: &World) -> Outcome {
    world.says("job", "Running", "True", "AllReady").await.map(drop)
}

fn of<'a>(pods: &'a [Pod], index: &str) -> Outcome<&'a Pod> {
    Ok(pods.iter().find(|p| p.labels().get(labels::INDEX).is_some_and(|i| i == index)).ok_or("no pod of that index")?)
}

/// As the kubelet tells of a pod's end.
pub(super) async fn finish(world: &World, pods: &[Pod], index: &str, phase: &str, code: i32) -> Outcome {
    let ended = json!({"name": "train", "image": "i", "imageID": "i", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": code, "message": "Traceback\nKeyError: 'x'\n"}}});
    let status: Value = json!({"status": {"phase": phase, "containerStatuses": [ended]}});
    let name = of(pods, index)?.name_any();
    world.pods().patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

fn uids(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter().filter_map(ResourceExt::uid).collect()
}

fn names(pods: &[Pod]) -> Vec<String> {
    pods.iter().map(ResourceExt::name_any).collect()
}

fn is(what: &str, got: Option<i64>, wanted: i64) -> Result<(), String> {
    if got == Some(wanted) { Ok(()) } else { Err(format!("{what} is {got:?}, not {wanted}")) }
}
