//! The headless service of a job, through which its pods find each other by host name.

use eto_api::{ElasticJob, labels};
use eto_engine::plan::service_name;
use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::pod::owner;

/// Name of the job's service, which is its pods' subdomain too.
pub fn name(job: &ElasticJob) -> String {
    service_name(job.metadata.name.as_deref().unwrap_or_default()).to_string()
}

/// The service. Addresses are published before pods are ready: members have to find each other to become so. It has
/// no ports, since the port of a round changes with its generation.
pub fn build(job: &ElasticJob) -> Service {
    let job_name = job.metadata.name.clone().unwrap_or_default();
    Service {
        metadata: ObjectMeta {
            name: Some(name(job)),
            namespace: job.metadata.namespace.clone(),
            labels: Some(
                [
                    (labels::ELASTIC_JOB.to_string(), job_name.clone()),
                    (labels::MANAGED_BY.to_string(), labels::MANAGER.to_string()),
                ]
                .into(),
            ),
            owner_references: owner(job).map(|o| vec![o]),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_string()),
            publish_not_ready_addresses: Some(true),
            selector: Some([(labels::ELASTIC_JOB.to_string(), job_name)].into()),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}
