//! What the user guide shows, as it stands there.

use std::sync::Arc;

use eto_api::labels;
use eto_e2e::world::{World, condition, variable};
use eto_e2e::{Outcome, ensure, wait};
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::events::v1::Event;
use kube::{Api, ResourceExt};

const STRUCTURE: &str = include_str!("../../guide/01-structure.yaml");
const FIRST: &str = include_str!("../../guide/02-first-job.yaml");
const REST: [(&str, &str); 4] = [
    ("pytorch-scaled", include_str!("../../guide/03-scaling-policy.yaml")),
    ("pytorch-demo", include_str!("../../guide/04-affinity-env-zones.yaml")),
    ("pytorch-data", include_str!("../../guide/05-volume-restart.yaml")),
    ("pytorch-short", include_str!("../../guide/06-short-forms.yaml")),
];

/// The outline without a template is accepted, waits, and says what is missing.
pub(crate) async fn structure_waits_for_its_template(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    world.apply(STRUCTURE).await?;
    world
        .job("pytorch-mnist", |job| {
            let conditions = &job.status.as_ref().ok_or("no status")?.conditions;
            let said =
                conditions.iter().find(|c| c.reason == "TemplateMissing").ok_or("no condition TemplateMissing")?;
            said.message.contains("spec.template").then_some(()).ok_or(format!("the message is `{}`", said.message))
        })
        .await?;
    ensure!(
        world.pods().list(&kube::api::ListParams::default()).await?.items.is_empty(),
        "pods were made without a template"
    );
    Ok(())
}

/// One master and two workers, each with its rank, behind a headless service.
pub(crate) async fn first_job_runs_with_master_and_workers(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    world.apply(FIRST).await?;
    let pods = world.exactly("pytorch-demo", 3).await?;
    // What `kubectl logs -l` selects.
    let found =
        world.cluster.kubectl(&["-n", &world.namespace, "get", "pods", "-l", "job-name=pytorch-demo", "-o", "name"])?;
    ensure!(found.lines().count() == 3, "job-name=pytorch-demo selects {found}");
    let mut roles: Vec<String> = pods.iter().filter_map(|p| p.labels().get(labels::ROLE).cloned()).collect();
    roles.sort();
    ensure!(roles == ["master", "worker", "worker"], "the roles are {roles:?}");
    for pod in &pods {
        let master = variable(pod, "MASTER_ADDR").unwrap_or_default();
        ensure!(master.starts_with("pytorch-demo-worker-0.pytorch-demo."), "{}: MASTER_ADDR {master}", pod.name_any());
        let owner = pod.owner_references().first().map(|o| (o.kind.clone(), o.controller));
        ensure!(owner == Some(("ElasticJob".into(), Some(true))), "{}: owner {owner:?}", pod.name_any());
    }
    let services: Api<Service> = Api::namespaced(world.client.clone(), &world.namespace);
    let headless = |s: &Service| {
        let spec = s.spec.clone().unwrap_or_default();
        spec.cluster_ip.as_deref() == Some("None") && spec.publish_not_ready_addresses == Some(true)
    };
    let all = services.list(&kube::api::ListParams::default()).await?.items;
    ensure!(all.iter().any(headless), "there is no headless service: {all:?}");
    world
        .job("pytorch-demo", |job| match condition(job, "Running") {
            Some((status, _)) if status == "True" => Ok(()),
            other => Err(format!("Running is {other:?}")),
        })
        .await
}

/// All other manifests: accepted, and their pods are made.
pub(crate) async fn every_manifest_is_accepted(world: Arc<World>) -> Outcome {
    // The fifth is in a namespace of its own; the operator serves all of them here.
    let _operator = world.operator_with(&[("ETO_KUBERNETES_NAMESPACE", "")]).await?;
    world.make_namespace("team-a").await?;
    for (name, yaml) in REST {
        let job = world.apply(yaml).await?;
        let pods: Api<Pod> = Api::namespaced(world.client.clone(), &job.namespace().unwrap_or_default());
        let selector = format!("{}={name}", labels::JOB_NAME);
        let wanted = usize::try_from(job.spec.replicas.unwrap_or(1))?;
        let some = wait::until(&pods, &selector, eto_e2e::world::SOON, |all| {
            if all.len() == wanted { Ok(all.to_vec()) } else { Err(format!("{name}: {} of {wanted} pods", all.len())) }
        })
        .await?;
        if name == "pytorch-short" {
            let mounts = some[0].spec.as_ref().and_then(|s| s.containers[0].volume_mounts.clone()).unwrap_or_default();
            ensure!(mounts.iter().any(|m| m.mount_path == "/data"), "the short form's mount is missing: {mounts:?}");
        }
        if name == "pytorch-demo" {
            ensure!(variable(&some[0], "AMP_ENABLED").as_deref() == Some("1"), "the short form's env is missing");
            let spread = some[0].spec.as_ref().and_then(|s| s.topology_spread_constraints.clone()).unwrap_or_default();
            ensure!(
                spread.iter().any(|c| c.label_selector.is_some()),
                "the spread constraint selects nothing: {spread:?}"
            );
        }
    }
    world.jobs().delete("pytorch-demo", &kube::api::DeleteParams::default()).await?;
    Ok(())
}

/// `kubectl patch`, `scale`, `get` and `delete`.
pub(crate) async fn patch_scale_get_and_delete(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    world.apply(FIRST).await?;
    world.workers("pytorch-demo", 3).await?;
    let n = world.namespace.as_str();
    let kubectl = |arguments: &[&str]| {
        let all: Vec<&str> = ["-n", n].into_iter().chain(arguments.iter().copied()).collect();
        world.cluster.kubectl(&all)
    };
    kubectl(&["patch", "elasticjob", "pytorch-demo", "-p", r#"{"spec":{"replicas":4}}"#, "--type=merge"])?;
    world.exactly("pytorch-demo", 4).await?;
    kubectl(&["scale", "elasticjob", "pytorch-demo", "--replicas=5"])?;
    world.exactly("pytorch-demo", 5).await?;
    world
        .job("pytorch-demo", |j| match j.status.as_ref().map(|s| s.ready_replicas) {
            Some(5) => Ok(()),
            other => Err(format!("readyReplicas is {other:?}")),
        })
        .await?;
    let table = kubectl(&["get", "elasticjobs"])?;
    let (head, row) = table.split_once('\n').unwrap_or_default();
    for column in ["PHASE", "DESIRED", "READY", "MIN", "MAX", "POLICY", "AGE"] {
        ensure!(head.contains(column), "no column {column} in `{head}`");
    }
    ensure!(row.contains("Running"), "the row is `{row}`");
    // What `kubectl describe` tells: each resize with its own words.
    let events: Api<Event> = Api::namespaced(world.client.clone(), n);
    for wanted in ["from 3 to 4", "from 4 to 5"] {
        wait::until(&events, "", eto_e2e::world::SOON, |all| {
            let rescales = all.iter().filter(|e| e.reason.as_deref() == Some("SuccessfulRescale"));
            let notes: Vec<&str> = rescales.filter_map(|e| e.note.as_deref()).collect();
            notes.iter().any(|n| n.contains(wanted)).then_some(()).ok_or(format!("no `{wanted}` in {notes:?}"))
        })
        .await?;
    }
    kubectl(&["delete", "elasticjob", "pytorch-demo"])?;
    wait::until(&world.pods(), "", eto_e2e::world::SOON, |all| {
        if all.is_empty() { Ok(()) } else { Err(format!("{} pods are left", all.len())) }
    })
    .await?;
    let services: Api<Service> = Api::namespaced(world.client.clone(), n);
    wait::until(&services, "", eto_e2e::world::SOON, |all| {
        if all.is_empty() { Ok(()) } else { Err(format!("{} services are left", all.len())) }
    })
    .await
}
