//! What `deploy/` installs: accepted by a real API server as it stands, and with rights that suffice. Fake nodes run
//! nothing, so the pods here show that the objects fit; the operator itself runs beside them, under their account.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use eto_e2e::operator::Operator;
use eto_e2e::prometheus::get;
use eto_e2e::rights::{grant_all, in_manifests, with_token};
use eto_e2e::world::{SOON, World, ready};
use eto_e2e::{Failure, Outcome, ensure, wait};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::json;

use super::ends;

const NAMESPACE: &str = "elastic-system";
const NAME: &str = "elastic-training-operator";
const FIRST: &str = include_str!("../../guide/02-first-job.yaml");

fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file)
}

fn kubectl(world: &World, arguments: &str, file: &str) -> Outcome<String> {
    let path = deploy(file);
    let path = path.to_str().ok_or("the path is not UTF-8")?;
    let arguments: Vec<&str> = arguments.split(' ').chain(["-f", path]).collect();
    world.cluster.kubectl(&arguments)
}

fn chart() -> String {
    deploy("chart/elastic-training-operator").display().to_string()
}

fn helm(world: &World, arguments: &[&str]) -> Outcome<String> {
    let output = Command::new("helm").args(arguments).env("KUBECONFIG", &world.cluster.kubeconfig).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(Failure(format!("helm {}: {}", arguments.join(" "), text(&output.stderr))))
    }
}

async fn refused_nothing(operator: &Operator) -> Outcome {
    let page = get(operator.address, "/metrics").await?;
    ensure!(page.contains("eto_api_requests_total"), "no requests are counted: {page}");
    let refused: Vec<&str> = page.lines().filter(|l| l.contains("code=\"403\"")).collect();
    ensure!(refused.is_empty(), "the role lacks rights: {refused:#?}");
    Ok(())
}

async fn operator_pods(world: &World, count: usize) -> Outcome {
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), NAMESPACE);
    let selector = format!("app.kubernetes.io/name={NAME}");
    wait::until(&pods, &selector, SOON, |all| {
        let n = all.iter().filter(|p| ready(p)).count();
        if n == count && all.len() == count {
            Ok(())
        } else {
            Err(format!("{n} of {} pods are ready, not {count}", all.len()))
        }
    })
    .await?;
    let shown = world.cluster.kubectl(&["get", "pods", "-n", NAMESPACE])?;
    ensure!(
        shown.lines().any(|l| l.starts_with(NAME) && l.contains("1/1") && l.contains("Running")),
        "kubectl shows {shown}"
    );
    Ok(())
}

/// The two `kubectl apply` of the guide, twice (the second changes nothing), then away again.
pub(crate) async fn plain_manifests_are_accepted(world: Arc<World>) -> Outcome {
    kubectl(&world, "apply", "crds.yaml")?;
    kubectl(&world, "apply", "operator.yaml")?;
    operator_pods(&world, 1).await?;
    let again = kubectl(&world, "apply", "operator.yaml")?;
    ensure!(again.lines().all(|l| l.ends_with("unchanged")), "applying again changed something: {again}");
    kubectl(&world, "delete --wait --timeout=60s", "operator.yaml")?;
    Ok(())
}

/// `helm install` as the guide has it, and away again.
pub(crate) async fn the_chart_installs(world: Arc<World>) -> Outcome {
    helm(&world, &["install", "elastic-training", &chart(), "--namespace", NAMESPACE, "--create-namespace"])?;
    operator_pods(&world, 2).await?;
    helm(&world, &["uninstall", "elastic-training", "--namespace", NAMESPACE, "--wait"])?;
    world.cluster.kubectl(&["delete", "namespace", NAMESPACE, "--wait", "--timeout=60s"])?;
    Ok(())
}

/// An operator with the installed account's token, and nothing more, does its work and is refused nothing.
pub(crate) async fn the_rights_suffice(world: Arc<World>) -> Outcome {
    kubectl(&world, "apply", "operator.yaml")?;
    let token = world.cluster.kubectl(&["create", "token", NAME, "-n", NAMESPACE, "--duration=1h"])?;
    let kubeconfig = world.directory.join("kubeconfig");
    std::fs::write(&kubeconfig, with_token(&world.cluster.kubeconfig, token.trim())?)?;

    world.make_namespace(&world.namespace).await?;
    let mut setup = world.setup(&[
        ("ETO_LEADER_NAMESPACE", NAMESPACE),
        ("ETO_LEADER_NAME", NAME),
        ("ETO_KUBERNETES_NAMESPACE", ""),
    ]);
    setup.kubeconfig = kubeconfig;
    let operator = Operator::start(&setup).await?;
    world.apply(FIRST).await?;
    world.workers("pytorch-demo", 3).await?;
    let more = r#"{"spec":{"replicas":4}}"#;
    let namespace = world.namespace.clone();
    world.cluster.kubectl(&["-n", &namespace, "patch", "elasticjob", "pytorch-demo", "--type=merge", "-p", more])?;
    world.workers("pytorch-demo", 4).await?;

    refused_nothing(&operator).await?;
    drop(operator);
    kubectl(&world, "delete --wait --timeout=60s", "operator.yaml")?;
    Ok(())
}

/// The same where the chart is told to serve one namespace: its rights are there, and of the cluster it only reads nodes
/// and volumes.
pub(crate) async fn the_rights_in_one_namespace_suffice(world: Arc<World>) -> Outcome {
    let (own, name) = (format!("{}-system", world.namespace), "one-namespace");
    for namespace in [&own, &world.namespace] {
        world.make_namespace(namespace).await?;
    }
    let served = format!("settings.kubernetes.namespace={}", world.namespace);
    let called = format!("fullnameOverride={name}");
    let of = ["template", "t", &chart(), "--kube-version", "1.29", "--namespace", &own];
    let text = helm(&world, &[&of[..], &["--set", &served, "--set", &called]].concat())?;
    let rights = in_manifests(&text)?;
    let kubeconfig = grant_all(&world.cluster, &world.directory, &rights, &own, name)?;
    let whole = world.cluster.kubectl(&[
        "auth",
        "can-i",
        "list",
        "pods",
        "-A",
        &format!("--kubeconfig={}", kubeconfig.display()),
    ]);
    ensure!(whole.is_err(), "it may list the pods of all namespaces: {whole:?}");

    ensure!(text.contains("watch-all-pods = false"), "the chart's settings are not for one namespace: {text}");
    let mut setup = world.setup(&[
        ("ETO_LEADER_NAMESPACE", &own),
        ("ETO_LEADER_NAME", name),
        ("ETO_KUBERNETES_WATCH_ALL_PODS", "false"),
    ]);
    setup.kubeconfig = kubeconfig;
    let operator = Operator::start(&setup).await?;
    world.apply(ends::JOB).await?;
    world.exactly("job", 3).await?;
    world.patch("job", json!({"spec": {"replicas": 4, "ttlSecondsAfterFinished": 1}})).await?;
    let pods = world.exactly("job", 4).await?;
    ends::finish(&world, &pods, "0", "Succeeded", 0).await?;
    wait::until(&world.jobs(), "", SOON, |jobs| jobs.is_empty().then_some(()).ok_or("the job is still there".into()))
        .await?;
    refused_nothing(&operator).await
}
