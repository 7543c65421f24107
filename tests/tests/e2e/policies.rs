//! Policies on a cluster: swapped while they are asked, and placing workers.

use std::collections::BTreeSet;
use std::sync::Arc;

use eto_api::{ElasticJob, PlacementStatus, labels};
use eto_e2e::world::World;
use eto_e2e::{Outcome, ensure};
use k8s_openapi::api::core::v1::{Node, PreferredSchedulingTerm};
use kube::{Api, ResourceExt};
use tempfile::TempDir;

const SCALED: &str = r"
apiVersion: elastic.ai/v1alpha1
kind: ElasticJob
metadata: {name: scaled}
spec:
  replicas: 2
  scalingPolicy:
    minReplicas: 2
    maxReplicas: 4
    metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}]
  template: {spec: {containers: [{name: train, image: 'example.com/train:1', resources: {requests: {cpu: 1}}}]}}
";

const PLACED: &str = r"
apiVersion: elastic.ai/v1alpha1
kind: ElasticJob
metadata: {name: placed}
spec:
  replicas: 4
  placementPolicy: {module: spread}
  template: {spec: {containers: [{name: train, image: 'example.com/train:1', resources: {requests: {cpu: 1}}}]}}
";

/// A new file decides from the next evaluation on, nothing restarts, and no evaluation fails; a broken one is refused
/// and changes nothing.
pub(crate) async fn a_new_version_decides_without_a_restart(world: Arc<World>) -> Outcome {
    let directory = TempDir::new()?;
    let operator = world.operator_with(&[("ETO_POLICIES_DIR", &directory.path().display().to_string())]).await?;
    world.apply(SCALED).await?;
    let first = digest(&world, "").await?;
    // The same code in other bytes: an empty custom section at the end.
    let mut module = std::fs::read(world.setup(&[]).policies.join("hpa.wasm"))?;
    module.extend_from_slice(&[0, 2, 1, b'x']);
    replace(&directory, &module)?;
    let second = digest(&world, &first).await?;
    replace(&directory, b"this is no module")?;
    let asked = operator.sum("eto_evaluations_total").await?;
    while operator.metric("eto_policy_swaps_total{outcome=\"refused\"}").await? < 1.0
        || operator.sum("eto_evaluations_total").await? < asked + 2.0
    {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    ensure!(digest(&world, &first).await? == second, "the broken file put another version in place");
    let failed = operator.metric("eto_evaluations_total{outcome=\"failed\"}").await?;
    ensure!(failed == 0.0, "{failed} evaluations failed");
    Ok(())
}

/// One zone has room for all, and the user has a say of his own: required terms stay as they were, the policy's node
/// is one more preference.
const TOGETHER: &str = r"
apiVersion: elastic.ai/v1alpha1
kind: ElasticJob
metadata: {name: together}
spec:
  replicas: 4
  placementPolicy: {module: topology, config: {within: zone}}
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions: [{key: type, operator: In, values: [kwok]}]
        - matchExpressions: [{key: pool, operator: Exists}]
      preferredDuringSchedulingIgnoredDuringExecution:
      - {weight: 1, preference: {matchExpressions: [{key: kubernetes.io/os, operator: In, values: [linux]}]}}
  template: {spec: {containers: [{name: train, image: 'example.com/train:1', resources: {requests: {cpu: 4}}}]}}
";

/// Workers are kept in one zone by a preference beside the user's own affinity, which stays as it is.
pub(crate) async fn topology_keeps_workers_in_one_zone(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    world.apply(TOGETHER).await?;
    let pods = world.exactly("together", 4).await?;
    let nodes: Api<Node> = Api::all(world.client.clone());
    let mut zones = BTreeSet::new();
    for pod in &pods {
        let spec = pod.spec.clone().unwrap_or_default();
        let node = nodes.get(&spec.node_name.unwrap_or_default()).await?;
        zones.insert(node.labels().get("topology.kubernetes.io/zone").cloned());
        let affinity = spec.affinity.and_then(|a| a.node_affinity).unwrap_or_default();
        let required = affinity.required_during_scheduling_ignored_during_execution.unwrap_or_default();
        let asked = required.node_selector_terms.iter().all(|t| t.match_fields.is_none())
            && required.node_selector_terms.len() == 2;
        ensure!(asked, "the user's terms became {required:?}");
        let preferred = affinity.preferred_during_scheduling_ignored_during_execution.unwrap_or_default();
        ensure!(preferred.iter().any(|p| p.weight == 1), "the user's preference is gone: {preferred:?}");
        let placed = pod.annotations().get(labels::PLACED_ON).cloned().unwrap_or_default();
        let names = |p: &PreferredSchedulingTerm| {
            let fields = p.preference.match_fields.clone().unwrap_or_default();
            fields.iter().any(|f| f.key == "metadata.name" && f.values == Some(vec![placed.clone()]))
        };
        ensure!(preferred.iter().any(names), "{placed} is not among the preferences {preferred:?}");
    }
    ensure!(zones.len() == 1, "the workers run in the zones {zones:?}");
    Ok(())
}

/// The placement policy's nodes are where the pods run: four workers on four nodes.
pub(crate) async fn spread_puts_workers_apart(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    world.apply(PLACED).await?;
    let pods = world.workers("placed", 4).await?;
    let nodes: BTreeSet<String> = pods.iter().filter_map(|p| p.spec.as_ref()?.node_name.clone()).collect();
    ensure!(nodes.len() == 4, "the workers run on {nodes:?}");
    for pod in &pods {
        let meant = pod.annotations().get(labels::PLACED_ON).cloned();
        let got = pod.spec.as_ref().and_then(|s| s.node_name.clone());
        ensure!(meant.is_some() && meant == got, "{}: meant for {meant:?}, runs on {got:?}", pod.name_any());
    }
    let told = world.job("placed", answer).await?;
    let said: BTreeSet<String> = told.nodes.iter().map(|n| n.node.clone()).collect();
    ensure!(said == nodes && told.apply && !told.reasons.is_empty(), "{said:?} is told of {nodes:?}: {told:?}");
    recommended(&world).await
}

/// In mode Recommend the answer is shown, and the scheduler decides. A module that is not there is a condition.
async fn recommended(world: &World) -> Outcome {
    let recommend = "{module: spread, mode: Recommend}";
    world.apply(&PLACED.replace("{module: spread}", recommend).replace("name: placed", "name: shown")).await?;
    let pods = world.workers("shown", 4).await?;
    let placed = pods.iter().filter(|p| p.annotations().contains_key(labels::PLACED_ON)).count();
    let told = world.job("shown", answer).await?;
    ensure!(placed == 0 && !told.apply && told.nodes.len() == 4, "{placed} pods were placed: {told:?}");
    world.says("shown", "PolicyHealthy", "True", "NotAsked").await?;
    world.patch("shown", serde_json::json!({"spec": {"placementPolicy": {"module": "spreat"}}})).await?;
    let why = world.says("shown", "PolicyHealthy", "False", "PolicyMissing").await?;
    ensure!(why.contains("did you mean `spread`"), "{why}");
    Ok(())
}

fn answer(job: &ElasticJob) -> Result<PlacementStatus, String> {
    let told = job.status.as_ref().and_then(|s| s.last_placement.clone());
    told.ok_or_else(|| "nothing is told of a placement policy".to_owned())
}

/// Waits for a decision by another module than `than`; gives its digest.
async fn digest(world: &World, than: &str) -> Outcome<String> {
    world
        .job("scaled", |job| {
            let decision = job.status.as_ref().and_then(|s| s.last_decision.as_ref()).ok_or("no decision")?;
            let policy = decision.policy.as_ref().ok_or("no policy was asked")?;
            if policy.digest == than { Err(format!("{than} decides")) } else { Ok(policy.digest.clone()) }
        })
        .await
}

/// By rename, as `mv` and editors do.
fn replace(directory: &TempDir, bytes: &[u8]) -> Outcome {
    let fresh = directory.path().join(".hpa.new");
    std::fs::write(&fresh, bytes)?;
    Ok(std::fs::rename(fresh, directory.path().join("hpa.wasm"))?)
}
