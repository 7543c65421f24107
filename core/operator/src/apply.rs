//! Writes to the API server. Nothing here decides; everything here may fail, and says how.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use eto_api::{ElasticJobStatus, labels};
use eto_engine::job::JobKey;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget as Budget;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::request::Request;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::leader::Leadership;
use crate::telemetry::Telemetry;

const BUDGETS: &str = "poddisruptionbudgets";

/// Why a write did not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    #[error("this replica does not lead")]
    NotLeading,
    /// Somebody else wrote in between, or what was meant is not the one that is there now.
    #[error("the object has changed: {0}")]
    Conflict(String),
    #[error("the object is gone")]
    Gone,
    /// Quota, admission, permissions: the API server understood and says no.
    #[error("refused: {0}")]
    Refused(String),
    /// The object itself is not valid.
    #[error("not valid: {0}")]
    Invalid(String),
    /// The API server was not reached, or is not able to answer now.
    #[error("not reached: {0}")]
    Unreached(String),
}

impl WriteError {
    /// Whether the API server itself is in trouble, rather than this object.
    pub fn is_outage(&self) -> bool {
        matches!(self, WriteError::Unreached(_))
    }
}

impl From<kube::Error> for WriteError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => match status.code {
                404 | 410 => WriteError::Gone,
                409 => WriteError::Conflict(status.message),
                403 => WriteError::Refused(status.message),
                400 | 422 => WriteError::Invalid(status.message),
                // A webhook that says no may choose its code; what is left is the server's own trouble.
                code if (400..500).contains(&code) && code != 429 => WriteError::Refused(status.message),
                _ => WriteError::Unreached(status.message),
            },
            other => WriteError::Unreached(other.to_string()),
        }
    }
}

/// The writer: shared by all workers, cheap to clone.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    timeout: Duration,
    leadership: Leadership,
    telemetry: Telemetry,
    /// Whether a job's URL has been built from its key is no matter of kube's `Api`: only the status is asked back.
    jobs: Arc<str>,
}

/// The part of an answer that is kept.
#[derive(Debug, Deserialize)]
struct Written {
    metadata: WrittenMeta,
    #[serde(default)]
    status: ElasticJobStatus,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenMeta {
    resource_version: String,
}

impl Writer {
    pub fn new(client: Client, timeout: Duration, leadership: Leadership, telemetry: Telemetry) -> Self {
        let jobs = format!("/apis/{}/{}/namespaces", eto_api::GROUP, eto_api::VERSION).into();
        Writer { client, timeout, leadership, telemetry, jobs }
    }

    /// For reading what no watch follows.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Runs one write under the fence and the deadline: it is begun and waited for only while this replica may act.
    async fn write<T>(
        &self,
        resource: &'static str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, WriteError> {
        if !self.leadership.may_act() {
            return Err(WriteError::NotLeading);
        }
        let answer = tokio::select! {
            answer = tokio::time::timeout(self.timeout, request) => match answer {
                Ok(answer) => answer.map_err(WriteError::from),
                Err(_) => Err(WriteError::Unreached(format!("no answer within {:?}", self.timeout))),
            },
            () = self.leadership.ended() => Err(WriteError::NotLeading),
        };
        if answer.is_err() {
            self.telemetry.write_failed(resource);
        }
        answer
    }

    /// Merges `patch` into the status of a job, if the job is still at `version`. Gives the new version and the status
    /// as the server keeps it.
    pub async fn status(
        &self,
        key: &JobKey,
        version: &str,
        patch: &Value,
    ) -> Result<(String, ElasticJobStatus), WriteError> {
        let body = json!({ "metadata": { "resourceVersion": version }, "status": patch });
        let url = format!("{}/{}/elasticjobs", self.jobs, key.namespace);
        let parameters = PatchParams { field_manager: Some(labels::MANAGER.to_owned()), ..PatchParams::default() };
        let request = Request::new(url)
            .patch_subresource("status", &key.name, &parameters, &Patch::Merge(body))
            .map_err(|e| WriteError::Invalid(e.to_string()))?;
        let written: Written = self.write("elasticjobs/status", self.client.request(request)).await?;
        self.telemetry.status_written();
        Ok((written.metadata.resource_version, written.status))
    }

    /// Creates a pod (server-side apply: doing it twice is doing it once).
    pub async fn pod(&self, namespace: &str, name: &str, pod: &Pod) -> Result<Pod, WriteError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let parameters = PatchParams::apply(labels::MANAGER).force();
        let pod = self.write("pods", api.patch(name, &parameters, &Patch::Apply(pod))).await?;
        self.telemetry.pod_created();
        Ok(pod)
    }

    /// Deletes the pod of that UID. Gives the pod as it is on its way out, or `None` where it is gone already.
    pub async fn delete_pod(&self, namespace: &str, name: &str, uid: &str) -> Result<Option<Pod>, WriteError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        match self.write("pods", api.delete(name, &only(uid))).await {
            Ok(answer) => {
                self.telemetry.pod_deleted();
                Ok(answer.left())
            }
            // Another pod has the name now: the one that was meant is gone.
            Err(WriteError::Gone | WriteError::Conflict(_)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Makes the service as given.
    pub async fn service(&self, namespace: &str, name: &str, service: &Service) -> Result<(), WriteError> {
        let api: Api<Service> = Api::namespaced(self.client.clone(), namespace);
        let parameters = PatchParams::apply(labels::MANAGER).force();
        self.write("services", api.patch(name, &parameters, &Patch::Apply(service))).await.map(drop)
    }

    /// Keeps a policy's state as given.
    pub async fn policy_state(&self, namespace: &str, name: &str, map: &ConfigMap) -> Result<(), WriteError> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let parameters = PatchParams::apply(labels::MANAGER).force();
        self.write("configmaps", api.patch(name, &parameters, &Patch::Apply(map))).await.map(drop)?;
        self.telemetry.policy_state_written();
        Ok(())
    }

    /// Makes a budget; `Conflict` where one of that name is there.
    pub async fn create_budget(&self, namespace: &str, budget: &Budget) -> Result<Budget, WriteError> {
        let api: Api<Budget> = Api::namespaced(self.client.clone(), namespace);
        let parameters = PostParams { field_manager: Some(labels::MANAGER.to_owned()), ..PostParams::default() };
        self.write(BUDGETS, api.create(&parameters, budget)).await
    }

    /// Makes the budget of that UID as given; `Conflict` or `Invalid` where there is none, or another one of its name.
    pub async fn change_budget(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        budget: Budget,
    ) -> Result<Budget, WriteError> {
        let api: Api<Budget> = Api::namespaced(self.client.clone(), namespace);
        let budget = of_uid(budget, uid);
        let parameters = PatchParams::apply(labels::MANAGER).force();
        self.write(BUDGETS, api.patch(name, &parameters, &Patch::Apply(&budget))).await
    }

    /// Deletes the budget of that UID; done, too, where it is gone and another one has its name.
    pub async fn delete_budget(&self, namespace: &str, name: &str, uid: &str) -> Result<(), WriteError> {
        let api: Api<Budget> = Api::namespaced(self.client.clone(), namespace);
        match self.write(BUDGETS, api.delete(name, &only(uid))).await {
            Ok(_) | Err(WriteError::Gone | WriteError::Conflict(_)) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Deletes a job and, in the background, what it owns.
    pub async fn delete_job(&self, key: &JobKey, uid: &str) -> Result<(), WriteError> {
        let api: Api<eto_api::ElasticJob> = Api::namespaced(self.client.clone(), &key.namespace);
        let parameters = DeleteParams { preconditions: only(uid).preconditions, ..DeleteParams::background() };
        match self.write("elasticjobs", api.delete(&key.name, &parameters)).await {
            Ok(_) | Err(WriteError::Gone | WriteError::Conflict(_)) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

fn only(uid: &str) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
        ..DeleteParams::default()
    }
}

/// An apply that names a UID neither makes the object nor takes over another one.
fn of_uid(mut budget: Budget, uid: &str) -> Budget {
    budget.metadata.uid = Some(uid.to_owned());
    budget
}

/// The merge patch (RFC 7386) that turns `old` into `new`; `None` where they are equal.
pub fn merge_patch(old: &Value, new: &Value) -> Option<Value> {
    match (old, new) {
        _ if old == new => None,
        (Value::Object(old), Value::Object(new)) => {
            let mut patch: BTreeMap<&String, Value> = BTreeMap::new();
            for (key, value) in new {
                match old.get(key) {
                    Some(before) => {
                        if let Some(change) = merge_patch(before, value) {
                            patch.insert(key, change);
                        }
                    }
                    None => {
                        patch.insert(key, value.clone());
                    }
                }
            }
            for key in old.keys().filter(|k| !new.contains_key(*k)) {
                patch.insert(key, Value::Null);
            }
            Some(Value::Object(patch.into_iter().map(|(k, v)| (k.clone(), v)).collect::<Map<_, _>>()))
        }
        _ => Some(new.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_names_what_changed_and_what_went() {
        let old = json!({"phase": "Running", "n": 1, "round": {"a": 1, "b": 2}, "list": [1, 2], "gone": true});
        let new = json!({"phase": "Running", "n": 2, "round": {"a": 1, "b": 3}, "list": [2], "come": {"x": 1}});
        let patch = json!({"n": 2, "round": {"b": 3}, "list": [2], "come": {"x": 1}, "gone": null});
        assert_eq!(merge_patch(&old, &new), Some(patch));
        assert_eq!(merge_patch(&new, &new), None);
        assert_eq!(merge_patch(&Value::Null, &new), Some(new));
    }

    #[test]
    fn changes_and_deletes_are_of_one_uid() {
        let body = serde_json::to_value(of_uid(Budget::default(), "u")).unwrap_or_default();
        assert_eq!(body.pointer("/metadata/uid"), Some(&json!("u")));
        let preconditions = only("u").preconditions.unwrap_or_default();
        assert_eq!((preconditions.uid.as_deref(), preconditions.resource_version), (Some("u"), None));
    }

    #[test]
    fn refusals_conflicts_and_outages_are_told_apart() {
        let said = |code: u16| {
            let status = kube::core::Status { code, message: "m".into(), ..kube::core::Status::default() };
            WriteError::from(kube::Error::Api(Box::new(status)))
        };
        assert_eq!(said(403), WriteError::Refused("m".into()));
        assert_eq!(said(409), WriteError::Conflict("m".into()));
        assert_eq!(said(404), WriteError::Gone);
        assert_eq!(said(422), WriteError::Invalid("m".into()));
        assert!(said(429).is_outage() && said(500).is_outage() && said(503).is_outage());
    }
}
