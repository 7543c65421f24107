//! A policy file that is replaced, again and again, while many jobs are evaluated once a second.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use eto_cycle::log::Line;
use eto_e2e::world::{SOON, World};
use eto_e2e::{Failure, Outcome, ensure, wait};
use eto_engine::decision::Decision;
use kube::ResourceExt;

const JOBS: usize = 8;
const SWAPS: u8 = 6;

fn job(n: usize) -> String {
    format!(
        "{{apiVersion: elastic.ai/v1alpha1, kind: ElasticJob, metadata: {{name: job-{n}}}, spec: {{replicas: 1, \
         scalingPolicy: {{module: mine, config: {{signal: backlog, query: sum(e2e_backlog), target: 10}}}}, \
         template: {{spec: {{containers: [{{name: train, image: 'example.com/train:1'}}]}}}}}}}}"
    )
}

/// Every job goes on being evaluated every second, none of the evaluations fails or is left out, each swap is served
/// within a second or two to all jobs, and neither operator nor pods restart.
pub(crate) async fn swapped_under_load_without_a_missed_evaluation(world: Arc<World>) -> Outcome {
    let policies = world.directory.join("policies");
    std::fs::create_dir_all(&policies)?;
    let module = std::fs::read(world.setup(&[]).policies.join("target-tracking.wasm"))?;
    put(&policies, &module, 0)?;
    let log = world.directory.join("decisions");
    let operator = world
        .operator_with(&[
            ("ETO_POLICIES_DIR", &policies.display().to_string()),
            ("ETO_DECISION_LOG_DIR", &log.display().to_string()),
        ])
        .await?;
    world.exporter.gauge(&world.namespace, "all", "e2e_backlog", 10.0);
    for n in 0..JOBS {
        world.apply(&job(n)).await?;
    }
    let before: BTreeSet<Option<String>> = running(&world).await?;
    let mut digests = vec![everyone_decided_by(&world, &BTreeSet::new()).await?];
    for swap in 1..=SWAPS {
        put(&policies, &module, swap)?;
        let known: BTreeSet<String> = digests.iter().cloned().collect();
        digests.push(everyone_decided_by(&world, &known).await?);
    }
    ensure!(running(&world).await? == before, "pods were replaced");
    let failed = operator.metric("eto_evaluations_total{outcome=\"failed\"}").await?;
    ensure!(failed < 0.5, "{failed} evaluations failed");
    drop(operator);
    for (job, decisions) in read(&log)? {
        let asked: Vec<&Decision> = decisions.iter().filter(|d| d.policy.is_some()).collect();
        let mut seen: Vec<&str> = asked.iter().filter_map(|d| d.policy.as_ref()).map(|p| p.digest.as_str()).collect();
        seen.dedup();
        ensure!(seen == digests.iter().map(String::as_str).collect::<Vec<_>>(), "{job}: versions came as {seen:?}");
        for pair in decisions.windows(2) {
            ensure!(
                pair[1].sequence == pair[0].sequence + 1,
                "{job}: {} follows {}",
                pair[1].sequence,
                pair[0].sequence
            );
            let gap = Duration::from_millis(pair[1].at.0 - pair[0].at.0);
            // Once a second; the machine may be busy, but a period that is left out twice is an evaluation that is missed.
            ensure!(gap < Duration::from_millis(3500), "{job}: nothing was evaluated for {gap:?}");
        }
    }
    Ok(())
}

/// A new version decides when it is served, however long the period is.
pub(crate) async fn a_swap_does_not_wait_for_the_period(world: Arc<World>) -> Outcome {
    let policies = world.directory.join("policies");
    std::fs::create_dir_all(&policies)?;
    let module = std::fs::read(world.setup(&[]).policies.join("target-tracking.wasm"))?;
    let directory = policies.display().to_string();
    let _operator = world.operator_with(&[("ETO_POLICIES_DIR", &directory), ("ETO_EVALUATION_PERIOD", "1h")]).await?;
    world.exporter.gauge(&world.namespace, "all", "e2e_backlog", 10.0);
    for n in 0..JOBS {
        world.apply(&job(n)).await?;
    }
    running(&world).await?;
    let mut known = BTreeSet::new();
    for version in 0..3 {
        put(&policies, &module, version)?;
        known.insert(everyone_decided_by(&world, &known).await?);
    }
    Ok(())
}

/// The same code in other bytes, by rename.
fn put(directory: &Path, module: &[u8], version: u8) -> Outcome {
    let fresh = directory.join(".mine.new");
    let mut bytes = module.to_vec();
    bytes.extend_from_slice(&[0, 3, 1, b'v', version]); // a custom section
    std::fs::write(&fresh, bytes)?;
    Ok(std::fs::rename(fresh, directory.join("mine.wasm"))?)
}

async fn running(world: &World) -> Outcome<BTreeSet<Option<String>>> {
    wait::until(&world.pods(), "", SOON, |pods| {
        let ready = pods.iter().filter(|p| eto_e2e::world::ready(p)).count();
        if ready == JOBS && pods.len() == JOBS {
            Ok(pods.iter().map(ResourceExt::uid).collect())
        } else {
            Err(format!("{ready} are ready"))
        }
    })
    .await
}

/// Waits until the last decision of every job is by one version that is not among `known`.
async fn everyone_decided_by(world: &World, known: &BTreeSet<String>) -> Outcome<String> {
    wait::until(&world.jobs(), "", SOON, |jobs| {
        let digest =
            |j: &eto_api::ElasticJob| Some(j.status.as_ref()?.last_decision.as_ref()?.policy.as_ref()?.digest.clone());
        let digests: BTreeSet<Option<String>> = jobs.iter().map(digest).collect();
        match digests.iter().next() {
            Some(Some(one)) if jobs.len() == JOBS && digests.len() == 1 && !known.contains(one) => Ok(one.clone()),
            _ => Err(format!("{} jobs were decided by {digests:?}", jobs.len())),
        }
    })
    .await
}

/// All decisions of the log, by job, in order.
fn read(log: &Path) -> Outcome<BTreeMap<String, Vec<Decision>>> {
    let mut all: BTreeMap<String, Vec<Decision>> = BTreeMap::new();
    for line in std::fs::read_to_string(log.join("decisions.jsonl"))?.lines() {
        if let Ok(Line::Decision { job, decision, .. }) = serde_json::from_str(line) {
            all.entry(job.to_string()).or_default().push(decision);
        }
    }
    if all.len() == JOBS { Ok(all) } else { Err(Failure(format!("the log has decisions of {} jobs", all.len()))) }
}
