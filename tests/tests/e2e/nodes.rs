//! Nodes that are to go, and evictions: workers leave in time, and never more of them at once than the job can spare.

use std::sync::Arc;
use std::time::Duration;

use eto_e2e::operator::Operator;
use eto_e2e::world::{SOON, World};
use eto_e2e::{Outcome, ensure, wait};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget as Budget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

const JOB: &str = r"
apiVersion: elastic.ai/v1alpha1
kind: ElasticJob
metadata: {name: job}
spec:
  replicas: 3
  minReplicas: 2
  maxReplicas: 4
  template: {spec: {containers: [{name: train, image: 'example.com/train:1'}]}}
";

/// One worker per node; one that fails is replaced.
const APART: &str = r"
apiVersion: elastic.ai/v1alpha1
kind: ElasticJob
metadata: {name: job}
spec:
  replicas: 3
  restartPolicy: Never
  affinity:
    podAntiAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
      - labelSelector: {matchLabels: {elastic-job: job}}
        topologyKey: kubernetes.io/hostname
  template: {spec: {containers: [{name: train, image: 'example.com/train:1'}]}}
";

/// The eviction API is held to the job's budget, an evicted worker is replaced for free, and the budget goes when it is not
/// wanted, or when somebody else has one.
pub(crate) async fn evictions_are_held_to_the_jobs_budget(world: Arc<World>) -> Outcome {
    world.make_namespace(&world.namespace).await?;
    let setup = world.setup(&[]);
    let mut operator = Operator::start(&setup).await?;
    world.apply(JOB).await?;
    let pods = world.exactly("job", 3).await?;
    budget(&world, Some((2, 1))).await?;
    // Nobody reacts: what the API server allows is the budget's doing alone.
    operator.kill()?;
    let first = evict(&world, &pods[1]).await;
    ensure!(first.is_ok(), "the first eviction was refused: {first:?}");
    match evict(&world, &pods[2]).await {
        Err(kube::Error::Api(status)) if status.code == 429 => {}
        other => return Err(format!("a second eviction at once was not refused for its budget: {other:?}").into()),
    }
    let _operator = Operator::start(&setup).await?;
    let after = world.exactly("job", 3).await?;
    let gone = pods[1].uid();
    ensure!(after.iter().all(|p| p.uid() != gone), "the evicted pod is still there");
    let status = world.jobs().get("job").await?.status.ok_or("no status")?;
    ensure!(status.failures == 0, "{} failures were charged", status.failures);
    // At the minimum one may go.
    world.patch("job", json!({"spec": {"minReplicas": 3}})).await?;
    budget(&world, Some((2, 1))).await?;
    world.patch("job", json!({"spec": {"replicas": 4}})).await?;
    world.exactly("job", 4).await?;
    budget(&world, Some((3, 1))).await?;
    // Two budgets over one pod let nobody evict it.
    let theirs = json!({"metadata": {"name": "theirs"}, "spec": {"minAvailable": 0, "selector": {"matchLabels": {"elastic-job": "job"}}}});
    budgets(&world).create(&PostParams::default(), &serde_json::from_value(theirs)?).await?;
    budget(&world, None).await?;
    budgets(&world).delete("theirs", &DeleteParams::default()).await?;
    budget(&world, Some((3, 1))).await?;
    world.patch("job", json!({"spec": {"elasticity": {"podDisruptionBudget": "Off"}}})).await?;
    budget(&world, None).await
}

/// A taint that says that a node will go makes a new round elsewhere, before any pod is deleted, and for free. A node that
/// is only closed for new pods is left alone.
pub(crate) async fn a_node_that_is_to_go_is_left_in_time(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    world.apply(&JOB.replace("replicas: 3", "replicas: 2")).await?;
    let pods = world.exactly("job", 2).await?;
    let node = pods[1].spec.as_ref().and_then(|s| s.node_name.clone()).ok_or("a pod has no node")?;
    let left = leave(&world, &pods, &node).await;
    change(&world, &node, json!({"spec": {"taints": null, "unschedulable": null}})).await?;
    left
}

async fn leave(world: &World, before: &[Pod], node: &str) -> Outcome {
    change(world, node, json!({"spec": {"unschedulable": true}})).await?;
    let there = || before.iter().map(ResourceExt::uid).collect::<Vec<_>>();
    wait::never(&world.pods(), "elastic-job=job", Duration::from_secs(3), |pods| {
        let moved = pods.iter().find(|p| !there().contains(&p.uid()) || p.metadata.deletion_timestamp.is_some());
        moved.map_or(Ok(()), |p| Err(format!("a cordon moved {}", p.name_any())))
    })
    .await?;
    let taint = json!([{"key": "elastic.ai/leaving", "effect": "NoSchedule"}]);
    change(world, node, json!({"spec": {"taints": taint}})).await?;
    wait::until(&world.pods(), "elastic-job=job", SOON, |pods| {
        let on = |p: &Pod| p.spec.as_ref().and_then(|s| s.node_name.clone());
        let said: Vec<_> = pods.iter().map(|p| (p.name_any(), on(p))).collect();
        let new = pods.iter().all(|p| !there().contains(&p.uid()) && on(p).is_some_and(|n| n != node));
        if pods.len() == 2 && new { Ok(()) } else { Err(format!("the pods are {said:?}")) }
    })
    .await?;
    world.exactly("job", 2).await?;
    let status = world.jobs().get("job").await?.status.ok_or("no status")?;
    let cause = status.round.as_ref().map(|r| r.cause.clone());
    ensure!(cause.as_deref() == Some("Moved"), "the cause of the round is {cause:?}");
    ensure!(status.failures == 0, "{} failures were charged", status.failures);
    let events: Api<Event> = Api::namespaced(world.client.clone(), &world.namespace);
    wait::until(&events, "", SOON, |all| {
        let told = |e: &Event| {
            e.reason.as_deref() == Some("WorkerLeaving") && e.message.as_ref().is_some_and(|m| m.contains(node))
        };
        if all.iter().any(told) { Ok(()) } else { Err("no event says why the worker moved".to_owned()) }
    })
    .await
}

/// Pods that fail on one node while their job runs on others put it into quarantine: new pods prefer other nodes, without a
/// placement policy, and the node and the job have an event.
pub(crate) async fn a_node_where_workers_fail_is_avoided(world: Arc<World>) -> Outcome {
    // What it may tell of nodes, it tells where it serves all namespaces.
    let settings = [("ETO_NODES_QUARANTINE_FAILURES", "1"), ("ETO_KUBERNETES_NAMESPACE", "")];
    let operator = world.operator_with(&settings).await?;
    world.apply(APART).await?;
    let pods = world.exactly("job", 3).await?;
    let node = pods[1].spec.as_ref().and_then(|s| s.node_name.clone()).ok_or("a pod has no node")?;
    let failed = json!({"status": {"phase": "Failed", "containerStatuses": null}});
    world.pods().patch_status(&pods[1].name_any(), &PatchParams::default(), &Patch::Merge(failed)).await?;
    let told = |events: &[Event], kind: &str| {
        let of = |e: &Event| {
            e.involved_object.kind.as_deref() == Some(kind) && e.reason.as_deref() == Some("NodeQuarantined")
        };
        events.iter().any(|e| of(e) && e.message.as_ref().is_some_and(|m| m.contains(&node)))
    };
    let events: Api<Event> = Api::namespaced(world.client.clone(), &world.namespace);
    wait::until(&events, "", SOON, |all| told(all, "ElasticJob").then_some(()).ok_or("the job has no event".into()))
        .await?;
    let events: Api<Event> = Api::namespaced(world.client.clone(), "default");
    wait::until(&events, "", SOON, |all| told(all, "Node").then_some(()).ok_or("the node has no event".into())).await?;
    let after = world.exactly("job", 3).await?;
    let prefers_others = |p: &Pod| {
        let affinity = p.spec.as_ref().and_then(|s| s.affinity.as_ref()?.node_affinity.clone());
        let text = serde_json::to_string(&affinity.map(|a| a.preferred_during_scheduling_ignored_during_execution));
        text.is_ok_and(|t| t.contains("NotIn") && t.contains(&node))
    };
    ensure!(after.iter().all(prefers_others), "a new pod does not avoid {node}");
    while operator.metric("eto_nodes{state=\"quarantined\"}").await? < 1.0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Pods of a higher priority, each for a node of its own, take workers down to the minimum, and the job goes on with those.
pub(crate) async fn preemption_takes_workers_down_to_the_minimum(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    let four = APART.replace("replicas: 3", "replicas: 4\n  minReplicas: 2\n  elasticity: {pendingDeadlineSeconds: 2}");
    world.apply(&four).await?;
    world.exactly("job", 4).await?;
    budget(&world, Some((2, 2))).await?;
    let class = format!("{}-high", world.namespace);
    let classes: Api<PriorityClass> = Api::all(world.client.clone());
    let high = json!({"metadata": {"name": class}, "value": 1000});
    classes.create(&PostParams::default(), &serde_json::from_value(high)?).await?;
    let kept = async {
        urgent_pods_find_nodes(&world, &class).await?;
        world.exactly("job", 2).await?;
        world.says("job", "Running", "True", "AllReady").await?;
        let status = world.jobs().get("job").await?.status.ok_or("no status")?;
        ensure!(status.failures == 0, "{} failures were charged", status.failures);
        budget(&world, Some((1, 1))).await
    };
    let kept = kept.await;
    classes.delete(&class, &DeleteParams::default()).await?;
    kept
}

/// Two pods of a higher priority that need a node each without workers. A scheduler whose victim was deleted by somebody
/// else at the same moment looks at its pod again after minutes only: whoever waits makes the pod anew.
async fn urgent_pods_find_nodes(world: &World, class: &str) -> Outcome {
    let apart = |key: &str| json!({"labelSelector": {"matchExpressions": [{"key": key, "operator": "Exists"}]}, "topologyKey": "kubernetes.io/hostname"});
    let affinity = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart("elastic-job"), apart("urgent")]}});
    let pods = world.pods();
    let mut last = Ok(());
    for _ in 0..4 {
        for name in ["one", "two"] {
            let pod = json!({"metadata": {"name": name, "labels": {"urgent": ""}}, "spec": {
                "priorityClassName": class, "affinity": affinity, "containers": [{"name": "c", "image": "example.com/urgent:1"}],
            }});
            pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        }
        last = wait::until(&pods, "urgent", SOON / 4, |all| {
            let waits = all.iter().filter(|p| p.spec.as_ref().is_none_or(|s| s.node_name.is_none())).count();
            if all.len() == 2 && waits == 0 { Ok(()) } else { Err(format!("{waits} of {} find no node", all.len())) }
        })
        .await;
        if last.is_ok() {
            break;
        }
        for name in ["one", "two"] {
            pods.delete(name, &DeleteParams::default().grace_period(0)).await?;
        }
        wait::until(&pods, "urgent", SOON, |all| if all.is_empty() { Ok(()) } else { Err("they go".to_owned()) })
            .await?;
    }
    last
}

async fn change(world: &World, node: &str, change: Value) -> Outcome {
    let nodes: Api<Node> = Api::all(world.client.clone());
    nodes.patch(node, &PatchParams::default(), &Patch::Merge(change)).await?;
    Ok(())
}

fn budgets(world: &World) -> Api<Budget> {
    Api::namespaced(world.client.clone(), &world.namespace)
}

/// Waits until the job's budget keeps so many and lets so many go, or until there is none.
async fn budget(world: &World, wanted: Option<(i32, i32)>) -> Outcome {
    wait::until(&budgets(world), "elastic-job=job", SOON, |all| {
        let numbers = |b: &Budget| {
            let kept = match b.spec.as_ref()?.min_available.as_ref()? {
                IntOrString::Int(n) => *n,
                IntOrString::String(_) => return None,
            };
            Some((kept, b.status.as_ref()?.disruptions_allowed))
        };
        let own = all.iter().find(|b| b.name_any() == "job");
        match (own.map(numbers), wanted) {
            (None, None) => Ok(()),
            (Some(is), Some(wanted)) if is == Some(wanted) => Ok(()),
            (is, _) => Err(format!("the budget keeps and lets go {is:?}, not {wanted:?}")),
        }
    })
    .await
}

async fn evict(world: &World, pod: &Pod) -> kube::Result<()> {
    world.pods().evict(&pod.name_any(), &kube::api::EvictParams::default()).await.map(drop)
}
