//! The world of the cases: one cluster, one exporter, one Prometheus; per case a namespace and its operator.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use eto_api::{ElasticJob, labels};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::Mutex;

use crate::cluster::Cluster;
use crate::exporter::Exporter;
use crate::gate::Gate;
use crate::operator::{Operator, Setup};
use crate::prometheus::Prometheus;
use crate::{Failure, Outcome, ensure, rights, wait};

/// How long what takes seconds may take on a busy machine.
pub const SOON: Duration = Duration::from_secs(60);

/// What a case has to its hands.
pub struct World {
    pub cluster: Arc<Cluster>,
    pub client: Client,
    pub exporter: Arc<Exporter>,
    pub prometheus: Arc<Mutex<Prometheus>>,
    /// URL of Prometheus.
    pub signals: String,
    /// The case's namespace.
    pub namespace: String,
    /// Files of the case: logs of its operators.
    pub directory: PathBuf,
    /// Speaks for the operator's account, with the rights that `deploy/` gives it.
    operators_kubeconfig: PathBuf,
    root: Arc<TempDir>,
}

impl World {
    /// Starts what all cases share.
    pub async fn start() -> Outcome<World> {
        let cluster = Arc::new(Cluster::start(4)?);
        let client = cluster.client().await?;
        install_crd(&client).await?;
        let exporter = Arc::new(Exporter::start(client.clone()).await?);
        let prometheus = Prometheus::start(exporter.address).await?;
        let signals = prometheus.url();
        let root = TempDir::new()?;
        let operators_kubeconfig = rights::grant(&cluster, root.path())?;
        Ok(World {
            cluster,
            client,
            exporter,
            prometheus: Arc::new(Mutex::new(prometheus)),
            signals,
            namespace: "default".into(),
            directory: root.path().into(),
            operators_kubeconfig,
            root: Arc::new(root),
        })
    }

    /// The same world, for one case.
    pub fn for_case(&self, case: &str) -> Outcome<World> {
        let namespace = case.replace([':', '_'], "-").replace("--", "-");
        let directory = self.root.path().join(&namespace);
        std::fs::create_dir_all(&directory)?;
        Ok(World {
            cluster: Arc::clone(&self.cluster),
            client: self.client.clone(),
            exporter: Arc::clone(&self.exporter),
            prometheus: Arc::clone(&self.prometheus),
            signals: self.signals.clone(),
            namespace,
            directory,
            operators_kubeconfig: self.operators_kubeconfig.clone(),
            root: Arc::clone(&self.root),
        })
    }

    /// Makes the case's namespace and starts an operator that serves it alone, with a period of one second.
    pub async fn operator(&self) -> Outcome<Operator> {
        self.operator_with(&[]).await
    }

    /// The same with further settings.
    pub async fn operator_with(&self, settings: &[(&str, &str)]) -> Outcome<Operator> {
        self.make_namespace(&self.namespace).await?;
        Operator::start(&self.setup(settings)).await
    }

    /// How this case's operator is started.
    pub fn setup(&self, settings: &[(&str, &str)]) -> Setup {
        let mut all: BTreeMap<String, String> = [
            ("ETO_KUBERNETES_NAMESPACE", self.namespace.as_str()),
            ("ETO_LEADER_NAMESPACE", rights::NAMESPACE),
            ("ETO_LEADER_NAME", self.namespace.as_str()),
            ("ETO_LEADER_DURATION", "4s"),
            ("ETO_LEADER_RENEW_DEADLINE", "3s"),
            ("ETO_LEADER_RETRY_PERIOD", "1s"),
            ("ETO_EVALUATION_PERIOD", "1s"),
            ("ETO_LOG_LEVEL", "info,eto_operator=debug"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
        // Compiled once for all operators of the run.
        all.insert("ETO_POLICIES_CACHE_DIR".into(), self.root.path().join("compiled").display().to_string());
        all.extend(settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
        Setup {
            kubeconfig: self.operators_kubeconfig.clone(),
            prometheus: self.signals.clone(),
            policies: policies(),
            directory: self.directory.clone(),
            settings: all,
        }
    }

    /// A gate for this case's operators, and how one is started behind it.
    pub async fn gate(&self, settings: &[(&str, &str)]) -> Outcome<(Gate, Setup)> {
        self.make_namespace(&self.namespace).await?;
        let gate = Gate::open(
            crate::cluster::client_of(&self.operators_kubeconfig).await?,
            self.client.clone(),
            &self.directory,
        )
        .await?;
        let setup = Setup { kubeconfig: gate.kubeconfig.clone(), ..self.setup(settings) };
        Ok((gate, setup))
    }

    pub async fn make_namespace(&self, name: &str) -> Outcome {
        let namespace = Namespace {
            metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        let api: Api<Namespace> = Api::all(self.client.clone());
        match api.create(&PostParams::default(), &namespace).await {
            Err(kube::Error::Api(s)) if s.is_already_exists() => {}
            other => drop(other?),
        }
        // Pods need the namespace's service account, which a controller makes.
        let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(self.client.clone(), name);
        wait::until(&accounts, "", SOON, |all| {
            all.iter().any(|a| a.name_any() == "default").then_some(()).ok_or_else(|| "no service account".to_owned())
        })
        .await
    }

    pub fn jobs(&self) -> Api<ElasticJob> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Applies a manifest (YAML, one object) with kubectl, into the case's namespace unless it names another.
    pub async fn apply(&self, yaml: &str) -> Outcome<ElasticJob> {
        let mut object: Value = serde_yaml::from_str(yaml)?;
        if object.pointer("/metadata/namespace").is_none() {
            object["metadata"]["namespace"] = self.namespace.clone().into();
        }
        let (name, namespace) = (text(&object, "/metadata/name"), text(&object, "/metadata/namespace"));
        let api: Api<ElasticJob> = Api::namespaced(self.client.clone(), &namespace);
        let parameters = PatchParams::apply("e2e").force();
        Ok(api.patch(&name, &parameters, &Patch::Apply(object)).await?)
    }

    /// Waits until the job's status is as `check` wants it.
    pub async fn job<T>(&self, name: &str, check: impl FnMut(&ElasticJob) -> Result<T, String>) -> Outcome<T> {
        self.job_within(SOON, name, check).await
    }

    /// The same, for what may take longer.
    pub async fn job_within<T>(
        &self,
        within: Duration,
        name: &str,
        mut check: impl FnMut(&ElasticJob) -> Result<T, String>,
    ) -> Outcome<T> {
        wait::until(&self.jobs(), "", within, |all| match all.iter().find(|j| j.name_any() == name) {
            Some(job) => check(job).map_err(|m| format!("ElasticJob {name}: {m}; status {}", status_of(job))),
            None => Err(format!("there is no ElasticJob {name}")),
        })
        .await
    }

    /// Waits until the job has exactly that many pods, all of one round, all ready, none on its way out.
    pub async fn workers(&self, job: &str, count: usize) -> Outcome<Vec<Pod>> {
        let selector = format!("{}={job}", labels::ELASTIC_JOB);
        wait::until(&self.pods(), &selector, SOON, |all| {
            let said: Vec<String> = all.iter().map(describe).collect();
            let rounds: std::collections::BTreeSet<_> =
                all.iter().map(|p| p.labels().get(labels::ROUND).cloned()).collect();
            // Some of a larger round that is being taken down are not the round that is waited for.
            let whole = |p: &Pod| p.labels().get(labels::ROUND_SIZE).is_some_and(|n| *n == count.to_string());
            let settled = all.iter().all(|p| ready(p) && whole(p) && p.metadata.deletion_timestamp.is_none());
            if all.len() == count && rounds.len() <= 1 && settled {
                Ok(all.to_vec())
            } else {
                Err(format!("expected {count} ready pods of one round, there are {}: {}", all.len(), said.join(", ")))
            }
        })
        .await
    }

    /// Waits until the job has exactly that many pods, as [`World::workers`], and checks that they fit together: every
    /// index once, ranks from 0, one world size, one master's address.
    pub async fn exactly(&self, job: &str, count: usize) -> Outcome<Vec<Pod>> {
        let pods = self.workers(job, count).await?;
        let of =
            |name: &str| -> BTreeSet<String> { pods.iter().map(|p| variable(p, name).unwrap_or_default()).collect() };
        let indexes: BTreeSet<_> = pods.iter().map(|p| p.labels().get(labels::INDEX).cloned()).collect();
        ensure!(indexes.len() == count, "{count} pods have the indexes {indexes:?}");
        let ranks: BTreeSet<String> = (0..count).map(|n| n.to_string()).collect();
        ensure!(of("RANK") == ranks, "the ranks are {:?}", of("RANK"));
        ensure!(of("WORLD_SIZE") == BTreeSet::from([count.to_string()]), "WORLD_SIZE is {:?}", of("WORLD_SIZE"));
        let masters = of("MASTER_ADDR");
        ensure!(masters.len() == 1 && !masters.contains(""), "MASTER_ADDR is {masters:?}");
        Ok(pods)
    }

    /// Merges a change into the job.
    pub async fn patch(&self, job: &str, change: Value) -> Outcome<ElasticJob> {
        Ok(self.jobs().patch(job, &PatchParams::default(), &Patch::Merge(change)).await?)
    }

    /// Waits for a condition of the job with this status and reason; gives its message.
    pub async fn says(&self, job: &str, kind: &str, status: &str, reason: &str) -> Outcome<String> {
        self.job_within(SOON * 2, job, |j| {
            let conditions = j.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
            match conditions.iter().find(|c| c.kind == kind) {
                Some(c) if c.status == status && c.reason == reason => Ok(c.message.clone()),
                other => Err(format!("expected {kind}={status} {reason}, it is {other:?}")),
            }
        })
        .await
    }

    /// Waits until the job aims at this size.
    pub async fn target(&self, job: &str, wanted: i64) -> Outcome {
        self.job_within(SOON * 3, job, |j| match j.status.as_ref().map(|s| s.target_replicas) {
            Some(target) if target == wanted => Ok(()),
            other => Err(format!("the target is {other:?}, not {wanted}")),
        })
        .await
    }

    /// What to look at when a case has failed.
    pub fn evidence(&self) -> String {
        let mut text = String::new();
        for what in ["elasticjobs -o yaml", "pods -o wide", "events"] {
            let arguments: Vec<&str> = ["-n", &self.namespace, "get"].into_iter().chain(what.split(' ')).collect();
            let said = self.cluster.kubectl(&arguments).unwrap_or_else(|Failure(why)| why);
            let lines: Vec<&str> = said.lines().take(150).collect();
            let _ = writeln!(text, "  -- {what}\n  {}", lines.join("\n  "));
        }
        let logs = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let logs = logs.filter(|e| e.file_name().to_string_lossy().starts_with("operator-"));
        let newest = logs.max_by_key(|e| e.metadata().and_then(|m| m.modified()).ok());
        if let Some(newest) = newest {
            let log = std::fs::read_to_string(newest.path()).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let _ =
                writeln!(text, "  -- log of the operator\n  {}", lines[lines.len().saturating_sub(60)..].join("\n  "));
        }
        text
    }

    /// Takes the case's namespace away, without waiting for it.
    pub async fn end(&self) {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let _ = api.delete(&self.namespace, &DeleteParams::background()).await;
    }
}

/// Installs the CRD and waits until it is served.
pub async fn install_crd(client: &Client) -> Outcome {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let crd = eto_api::crd();
    let name = crd.name_any();
    api.patch(&name, &PatchParams::apply("e2e").force(), &Patch::Apply(&crd)).await?;
    wait::until(&api, "", SOON, |all| {
        let conditions = |c: &CustomResourceDefinition| c.status.clone().and_then(|s| s.conditions).unwrap_or_default();
        let established = |c: &CustomResourceDefinition| {
            c.name_any() == name && conditions(c).iter().any(|x| x.type_ == "Established" && x.status == "True")
        };
        all.iter().any(established).then_some(()).ok_or_else(|| "the CRD is not established".to_owned())
    })
    .await
}

/// Where `tools/build-policies.sh` puts the policies, or `ETO_E2E_POLICIES`.
pub fn policies() -> PathBuf {
    std::env::var("ETO_E2E_POLICIES")
        .map_or_else(|_| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/policies"), PathBuf::from)
}

/// One of the policies of `tests/guests`.
pub fn guest(name: &str) -> PathBuf {
    policies().join("guests").join(format!("{name}.wasm"))
}

fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn status_of(job: &ElasticJob) -> String {
    serde_json::to_string(&job.status).unwrap_or_default()
}

/// Whether a pod is ready.
pub fn ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

fn describe(pod: &Pod) -> String {
    let phase = pod.status.as_ref().and_then(|s| s.phase.clone()).unwrap_or_default();
    let leaving = if pod.metadata.deletion_timestamp.is_some() { ", leaving" } else { "" };
    let round = pod.labels().get(labels::ROUND).cloned().unwrap_or_default();
    format!("{} ({phase}, round {round}{leaving})", pod.name_any())
}

/// The named condition of a job: status and reason.
pub fn condition(job: &ElasticJob, kind: &str) -> Option<(String, String)> {
    let status = job.status.as_ref()?;
    status.conditions.iter().find(|c| c.kind == kind).map(|c| (c.status.clone(), c.reason.clone()))
}

/// The value of an environment variable of a pod's first container.
pub fn variable(pod: &Pod, name: &str) -> Option<String> {
    let container = pod.spec.as_ref()?.containers.first()?;
    container.env.as_ref()?.iter().find(|e| e.name == name)?.value.clone()
}
