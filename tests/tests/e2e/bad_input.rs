//! Input that is wrong: settings, policy files, jobs, answers of Prometheus. Each is told where people look, no job
//! shrinks for it, and all goes on by itself when it is mended.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use eto_e2e::fault::{Fault, Source};
use eto_e2e::operator::{Operator, binary};
use eto_e2e::world::World;
use eto_e2e::{Failure, Outcome, ensure};
use serde_json::json;

/// Sized by a number that the test sets, with a window as short as they come.
const JOB: &str = r"
apiVersion: elastic.ai/v1alpha1
kind: ElasticJob
metadata: {name: job}
spec:
  replicas: 4
  minReplicas: 1
  maxReplicas: 6
  scalingPolicy:
    module: target-tracking
    config: {signal: backlog, query: sum(e2e_backlog), target: 10, windowSeconds: 15}
    behavior:
      scaleUp: {stabilizationWindowSeconds: 0, policies: [{type: Pods, value: 10, periodSeconds: 1}]}
      scaleDown: {stabilizationWindowSeconds: 0, policies: [{type: Pods, value: 10, periodSeconds: 1}]}
  template: {spec: {containers: [{name: train, image: 'example.com/train:1'}]}}
";

/// Settings that can't be used end the operator at once, with exit code 2 and a sentence that names place and mend.
pub(crate) async fn wrong_settings_end_the_operator(world: Arc<World>) -> Outcome {
    let written = |text: &str| -> Outcome<PathBuf> {
        let path = world.directory.join("settings.toml");
        std::fs::write(&path, text)?;
        Ok(path)
    };
    let missing = world.directory.join("none.toml");
    for (file, variable, words) in [
        (Some(missing.as_path()), None, &["can't read the settings file", "none.toml"][..]),
        (Some(&*written("[evaluation\nperiod = 1")?), None, &["settings.toml, line 1", "not TOML"]),
        (None, Some(("ETO_EVALUATION_PERIODE", "1s")), &["ETO_EVALUATION_PERIODE", "did you mean"]),
        (None, Some(("ETO_EVALUATION_PERIOD", "often")), &["ETO_EVALUATION_PERIOD", "`often`"]),
        (None, Some(("ETO_EVALUATION_PERIOD", "10ms")), &["evaluation.period", "1s"]),
        (None, Some(("ETO_LEADER_DURATION", "2s")), &["leader", "renew-deadline"]),
        (None, Some(("ETO_PROMETHEUS_MATCHERS", "prod")), &["prometheus.matchers", "label=value"]),
        (None, Some(("ETO_LOG_LEVEL", "a=loud")), &["log.level `a=loud`"]),
        (None, Some(("ETO_LOG_LEVEL", "infoo")), &["log.level `infoo`", "error, warn, info"]),
        (None, Some(("ETO_PROMETHEUS_URL", "prometheus:9090")), &["prometheus: "]),
    ] {
        refused(file, variable, words)?;
    }
    let unknown = written("[prometheus]\n\nurll = \"http://p\"\n")?;
    refused(Some(&unknown), None, &["settings.toml, line 3", "urll", "did you mean `prometheus.url`?"])
}

fn refused(file: Option<&Path>, variable: Option<(&str, &str)>, words: &[&str]) -> Outcome {
    let output = Command::new(binary()?)
        .env_clear()
        .args(file.iter().flat_map(|f| ["--config".into(), f.as_os_str().to_owned()]))
        .envs(variable)
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(2), "{file:?} {variable:?}: ended with {}: {said}", output.status);
    for word in words {
        ensure!(said.contains(word), "{file:?} {variable:?}: `{said}` does not say `{word}`");
    }
    Ok(())
}

/// A source that is down, slow, broken, a login page or endless: the condition says which, the size stays though the
/// last load was low, and with the source back the job is sized again.
pub(crate) async fn a_broken_prometheus_shrinks_nothing(world: Arc<World>) -> Outcome {
    let address = world.prometheus.lock().await.address;
    let source = Source::start(address).await?;
    let mut setup = world.setup(&[("ETO_PROMETHEUS_TIMEOUT", "500ms"), ("ETO_PROMETHEUS_DEADLINE", "1s")]);
    setup.prometheus = source.url();
    world.make_namespace(&world.namespace).await?;
    let _operator = Operator::start(&setup).await?;
    world.exporter.gauge(&world.namespace, "job", "e2e_backlog", 40.0);
    world.apply(JOB).await?;
    world.exactly("job", 4).await?;
    world.says("job", "ScalingActive", "True", "ValidMetricFound").await?;
    source.set(Fault::Down);
    // Half of the workers would do now.
    world.exporter.gauge(&world.namespace, "job", "e2e_backlog", 20.0);
    for (fault, words) in [
        (Fault::Down, "can't be reached"),
        (Fault::Slow, "did not answer within"),
        (Fault::Error, "500"),
        (Fault::Html, "HTML"),
        (Fault::Huge, "larger than"),
    ] {
        source.set(fault);
        world
            .job_within(eto_e2e::world::SOON, "job", |j| {
                let status = j.status.as_ref().ok_or("no status")?;
                if status.target_replicas != 4 {
                    return Ok(Err(format!("{fault:?}: the target went to {}", status.target_replicas)));
                }
                let signal = status.signals.iter().find(|s| s.name == "backlog").ok_or("no signal backlog")?;
                let note = signal.note.as_deref().unwrap_or_default();
                if signal.quality != "Ok" && !note.is_empty() && note.contains(words) {
                    Ok(Ok(()))
                } else {
                    Err(format!("{fault:?}: the signal is {signal:?}"))
                }
            })
            .await?
            .map_err(Failure)?;
    }
    source.set(Fault::None);
    world.target("job", 2).await?;
    world.exactly("job", 2).await?;
    world.says("job", "ScalingActive", "True", "ValidMetricFound").await.map(drop)
}

/// A job that names no module, or a config the module refuses: said with the mend, held, and mended by a change.
pub(crate) async fn wrong_policies_of_a_job_are_told(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    world.exporter.gauge(&world.namespace, "job", "e2e_backlog", 40.0);
    world.apply(&JOB.replace("module: target-tracking", "module: target-traking")).await?;
    let message = world.says("job", "ScalingActive", "False", "PolicyMissing").await?;
    ensure!(message.contains("did you mean `target-tracking`?"), "the message is `{message}`");
    world.exactly("job", 4).await?;
    world.apply(&JOB.replace("target: 10", "target: many")).await?;
    let message = world.says("job", "ScalingActive", "False", "InvalidConfig").await?;
    ensure!(message.contains("target"), "the message is `{message}`");
    world.apply(&JOB.replace("sum(e2e_backlog)", r#"'sum(e2e_backlog{namespace="other"})'"#)).await?;
    world
        .job("job", |j| {
            let signals = j.status.as_ref().map(|s| s.signals.as_slice()).unwrap_or_default();
            let note = signals.iter().find_map(|s| s.note.clone()).unwrap_or_default();
            if note.contains("namespace") { Ok(()) } else { Err(format!("the signals are {signals:?}")) }
        })
        .await?;
    world.apply(JOB).await?;
    world.says("job", "ScalingActive", "True", "ValidMetricFound").await?;
    world.exactly("job", 4).await.map(drop)
}

/// A template that is no pod template: said, and the pods that run go on as they are.
pub(crate) async fn an_unreadable_template_stops_no_pod(world: Arc<World>) -> Outcome {
    let _operator = world.operator().await?;
    world.exporter.gauge(&world.namespace, "job", "e2e_backlog", 40.0);
    world.apply(JOB).await?;
    let before = world.exactly("job", 4).await?;
    world.patch("job", json!({"spec": {"template": {"spec": {"containers": 5}}}})).await?;
    let message = world.says("job", "Created", "False", "InvalidSpec").await?;
    ensure!(message.contains("template"), "the message is `{message}`");
    let uid =
        |pods: &[k8s_openapi::api::core::v1::Pod]| pods.iter().map(|p| p.metadata.uid.clone()).collect::<Vec<_>>();
    ensure!(uid(&before) == uid(&world.exactly("job", 4).await?), "the pods were replaced");
    world.apply(JOB).await?;
    world
        .patch("job", json!({"spec": {"template": {"spec": {"containers": [{"name": "train", "image": "i:2"}]}}}}))
        .await?;
    world.says("job", "Created", "True", "JobCreated").await.map(drop)
}

/// A settings file beside a module that can't be read: that module alone is not served, its jobs hold and say so; others
/// are served, and a mended file is taken up.
pub(crate) async fn a_wrong_policy_file_holds_its_jobs(world: Arc<World>) -> Outcome {
    let policies = world.directory.join("policies");
    std::fs::create_dir_all(&policies)?;
    std::fs::copy(world.setup(&[]).policies.join("target-tracking.wasm"), policies.join("mine.wasm"))?;
    std::fs::write(policies.join("mine.toml"), "[limits\nfuel = 1")?;
    let _operator = world.operator_with(&[("ETO_POLICIES_DIR", &policies.display().to_string())]).await?;
    world.exporter.gauge(&world.namespace, "job", "e2e_backlog", 40.0);
    world.apply(&JOB.replace("module: target-tracking", "module: mine")).await?;
    let message = world.says("job", "ScalingActive", "False", "PolicyMissing").await?;
    ensure!(message.contains("mine.toml"), "the message is `{message}`");
    world.exactly("job", 4).await?;
    std::fs::remove_file(policies.join("mine.toml"))?;
    world.says("job", "PolicyHealthy", "True", "PolicyAnswers").await?;
    world.exactly("job", 4).await.map(drop)
}
