//! Placement and volumes: workers are placed where the volumes of their claims can be reached.

use std::collections::BTreeSet;
use std::sync::Arc;

use eto_api::labels;
use eto_e2e::world::{SOON, World};
use eto_e2e::{Outcome, ensure, wait};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

const ZONE: &str = "topology.kubernetes.io/zone";

/// Makes a volume and the claim `data` bound to it, and waits until they are.
async fn bound(world: &World, mode: &str, rest: Value) -> Outcome<String> {
    let (namespace, name) = (&world.namespace, format!("{}-data", world.namespace));
    let mut volume = json!({
        "metadata": {"name": name},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": [mode], "storageClassName": "",
                 "persistentVolumeReclaimPolicy": "Retain", "claimRef": {"namespace": namespace, "name": "data"}},
    });
    for (key, value) in rest.as_object().into_iter().flatten() {
        volume["spec"][key] = value.clone();
    }
    let volumes: Api<PersistentVolume> = Api::all(world.client.clone());
    volumes.create(&PostParams::default(), &serde_json::from_value(volume)?).await?;
    let claim = json!({
        "metadata": {"name": "data"},
        "spec": {"accessModes": [mode], "storageClassName": "", "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}},
    });
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(world.client.clone(), namespace);
    claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
    wait::until(&claims, "", SOON, |all| {
        let phase = all.first().and_then(|c| c.status.as_ref()?.phase.clone());
        if phase.as_deref() == Some("Bound") { Ok(()) } else { Err(format!("the claim is {phase:?}")) }
    })
    .await?;
    Ok(name)
}

fn job(name: &str, replicas: u32, policy: &str) -> String {
    json!({
        "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob", "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "placementPolicy": {"module": policy},
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            "template": {"spec": {"containers": [
                {"name": "train", "image": "example.com/train:1", "resources": {"requests": {"cpu": "500m"}}},
            ]}},
        },
    })
    .to_string()
}

/// The node that each pod was meant for, and the one it runs on.
fn nodes(pods: &[Pod]) -> Vec<(Option<String>, Option<String>)> {
    let of = |pod: &Pod| {
        let meant = pod.annotations().get(labels::PLACED_ON).cloned();
        (meant, pod.spec.as_ref().and_then(|s| s.node_name.clone()))
    };
    pods.iter().map(of).collect()
}

/// A volume that two nodes can reach: a policy that would spread four workers over four nodes is shown those two, and the
/// pods run where it put them. The same for one that would fill one node.
pub(crate) async fn placement_stays_where_the_volumes_are(world: Arc<World>) -> Outcome {
    world.make_namespace(&world.namespace).await?;
    let all: Vec<Node> = Api::<Node>::all(world.client.clone()).list(&kube::api::ListParams::default()).await?.items;
    let zone_of = |n: &Node| n.labels().get(ZONE).cloned();
    let twice = |zone: &Option<String>| zone.is_some() && all.iter().filter(|n| zone_of(n) == *zone).count() == 2;
    let zone = all.iter().map(zone_of).find(twice).flatten().ok_or("no zone has two nodes")?;
    let inside: BTreeSet<String> =
        all.iter().filter(|n| zone_of(n).as_ref() == Some(&zone)).map(ResourceExt::name_any).collect();
    let affinity = json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]},
    ]}});
    let files = json!({"server": "192.0.2.1", "path": "/data"});
    let volume = bound(&world, "ReadWriteMany", json!({"nodeAffinity": affinity, "nfs": files})).await?;
    let _operator = world.operator().await?;
    for (name, policy, used) in [("spread", "spread", 2), ("packed", "binpack", 1)] {
        world.apply(&job(name, 4, policy)).await?;
        let placed = nodes(&world.workers(name, 4).await?);
        for (meant, got) in &placed {
            ensure!(meant.is_some() && meant == got, "{name}: meant for {meant:?}, runs on {got:?}");
            ensure!(got.as_ref().is_some_and(|n| inside.contains(n)), "{name}: {got:?} is not one of {inside:?}");
        }
        let nodes: BTreeSet<_> = placed.into_iter().map(|(_, got)| got).collect();
        ensure!(nodes.len() == used, "{name}: the workers run on {nodes:?}");
    }
    clean(&world, &volume).await
}

/// A volume that is attached to one node at a time, and a pod has it: the workers are placed on the node of that pod.
pub(crate) async fn workers_go_where_a_claim_of_one_node_is_in_use(world: Arc<World>) -> Outcome {
    world.make_namespace(&world.namespace).await?;
    let disk = json!({"csi": {"driver": "disk.example.com", "volumeHandle": world.namespace}});
    let volume = bound(&world, "ReadWriteOnce", disk).await?;
    let node = Api::<Node>::all(world.client.clone()).list(&kube::api::ListParams::default()).await?.items;
    let node = node.last().map(ResourceExt::name_any).ok_or("there are no nodes")?;
    let user = json!({
        "metadata": {"name": "user"},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "example.com/user:1"}],
                 "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]},
    });
    world.pods().create(&PostParams::default(), &serde_json::from_value(user)?).await?;
    let _operator = world.operator().await?;
    world.apply(&job("beside", 2, "spread")).await?;
    let placed = nodes(&world.workers("beside", 2).await?);
    let here = (Some(node.clone()), Some(node));
    ensure!(placed.iter().all(|p| *p == here), "meant for and run on {placed:?}, not {here:?}");
    clean(&world, &volume).await
}

/// Volumes are of the cluster, and would outlive the case's namespace.
async fn clean(world: &World, volume: &str) -> Outcome {
    Api::<PersistentVolume>::all(world.client.clone()).delete(volume, &DeleteParams::default()).await?;
    Ok(())
}
