//! Every job of the user guide is read and gives pods; what the pods look like is kept as snapshots.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use eto_api::ElasticJob;
use eto_cycle::pod;
use eto_cycle::{service, spec};
use eto_engine::placement::NodeChoice;
use eto_engine::plan::NewPod;
use eto_engine::state::RoundMode;

const GUIDE: [(&str, &str); 6] = [
    ("01-structure", include_str!("fixtures/guide/01-structure.yaml")),
    ("02-first-job", include_str!("fixtures/guide/02-first-job.yaml")),
    ("03-scaling-policy", include_str!("fixtures/guide/03-scaling-policy.yaml")),
    ("04-affinity-env-zones", include_str!("fixtures/guide/04-affinity-env-zones.yaml")),
    ("05-volume-restart", include_str!("fixtures/guide/05-volume-restart.yaml")),
    ("06-short-forms", include_str!("fixtures/guide/06-short-forms.yaml")),
];

fn job(file: &str) -> ElasticJob {
    let (_, text) = GUIDE.into_iter().find(|(name, _)| *name == file).unwrap();
    let mut job: ElasticJob = serde_yaml::from_str(text).unwrap();
    assert_eq!(job.spec.undecodable, None, "{file}");
    job.metadata.uid = Some("3f0c7a52-0000-4000-8000-000000000001".to_string());
    job.metadata.namespace.get_or_insert_with(|| "default".to_string());
    job
}

fn member(index: u32) -> NewPod {
    NewPod {
        incarnation: 1,
        mode: RoundMode::Recreate,
        index,
        round: 1,
        size: 2,
        node: None,
        memory: None,
        env: vec![("RANK".to_string(), index.to_string()), ("WORLD_SIZE".to_string(), "2".to_string())].into(),
    }
}

#[test]
fn the_guides_jobs_give_these_pods() {
    for (file, _) in GUIDE.into_iter().skip(1) {
        let job = job(file);
        spec::job_spec(&job).unwrap_or_else(|e| panic!("{file}: {e}"));
        let built = pod::build(&job, &member(0), None).unwrap().unwrap();
        assert_eq!(built.overridden, Vec::<String>::new(), "{file}");
        insta::assert_yaml_snapshot!(file.trim_end_matches(""), built.pod);
    }
}

#[test]
fn a_worker_with_a_required_node() {
    let job = job("04-affinity-env-zones");
    let new = NewPod { node: Some(NodeChoice { node: "node-7".to_string(), required: true }), ..member(1) };
    insta::assert_yaml_snapshot!(pod::build(&job, &new, None).unwrap().unwrap().pod);
}

#[test]
fn the_service() {
    insta::assert_yaml_snapshot!(service::build(&job("02-first-job")));
}

#[test]
fn a_job_without_template_is_accepted_and_has_no_pods() {
    let job = job("01-structure");
    let spec = spec::job_spec(&job).unwrap();
    assert_eq!((spec.min, spec.replicas, spec.max), (2, 4, 8));
    assert_eq!(spec.template, None);
    assert_eq!(pod::build(&job, &member(0), None).unwrap(), None);
}

#[test]
fn ranges_of_the_guide() {
    let sizes = |file| {
        let s = spec::job_spec(&job(file)).unwrap();
        (s.min, s.replicas, s.max)
    };
    assert_eq!(sizes("02-first-job"), (3, 3, 5));
    assert_eq!(sizes("03-scaling-policy"), (2, 3, 10));
    assert_eq!(sizes("05-volume-restart"), (2, 2, 2));
}
