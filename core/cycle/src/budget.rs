//! The budget that says how many workers of a job may be evicted at a time.

use std::collections::BTreeMap;

use eto_api::{ElasticJob, labels};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::pod::owner;

/// Its name: the job's own.
pub fn name(job: &ElasticJob) -> String {
    job.metadata.name.clone().unwrap_or_default()
}

/// The budget that keeps so many workers. One that is not ready may always go: it keeps no drain waiting.
pub fn build(job: &ElasticJob, min_available: u32) -> PodDisruptionBudget {
    let job_name = job.metadata.name.clone().unwrap_or_default();
    let selected: BTreeMap<String, String> = [(labels::ELASTIC_JOB.to_string(), job_name)].into();
    PodDisruptionBudget {
        metadata: ObjectMeta {
            name: Some(name(job)),
            namespace: job.metadata.namespace.clone(),
            labels: Some(
                selected
                    .clone()
                    .into_iter()
                    .chain([(labels::MANAGED_BY.to_string(), labels::MANAGER.to_string())])
                    .collect(),
            ),
            owner_references: owner(job).map(|o| vec![o]),
            ..ObjectMeta::default()
        },
        spec: Some(PodDisruptionBudgetSpec {
            min_available: Some(IntOrString::Int(i32::try_from(min_available).unwrap_or(i32::MAX))),
            selector: Some(LabelSelector { match_labels: Some(selected), ..LabelSelector::default() }),
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_string()),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}
