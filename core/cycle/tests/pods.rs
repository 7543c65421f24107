//! How pods are made from jobs, point by point.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::needless_pass_by_value, reason = "`json!` values read better handed over")]

use eto_api::ElasticJob;
use eto_cycle::pod::{self, BuiltPod, KeepOff};
use eto_cycle::{spec, template};
use eto_engine::placement::NodeChoice;
use eto_engine::plan::{NewPod, hostname};
use eto_engine::state::RoundMode;
use serde_json::{Value, json};

fn job(spec: Value) -> ElasticJob {
    serde_json::from_value(json!({
        "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob",
        "metadata": {"name": "train", "namespace": "team", "uid": "u1"}, "spec": spec,
    }))
    .unwrap()
}

fn with_container(extra: Value) -> Value {
    let mut container = json!({"name": "main", "image": "i"});
    container.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    json!({"replicas": 4, "template": {"spec": {"containers": [container]}}})
}

fn member(index: u32, round: u64) -> NewPod {
    NewPod {
        index,
        round,
        size: 4,
        incarnation: round,
        mode: RoundMode::Recreate,
        env: vec![("RANK".to_string(), index.to_string())].into(),
        node: None,
        memory: None,
    }
}

fn on_n1(required: bool) -> NewPod {
    NewPod { node: Some(NodeChoice { node: "n1".to_string(), required }), ..member(1, 1) }
}

fn built(job: &ElasticJob, index: u32) -> BuiltPod {
    pod::build(job, &member(index, 1), None).unwrap().unwrap()
}

fn json_of(b: &BuiltPod) -> Value {
    serde_json::to_value(&b.pod).unwrap()
}

#[test]
fn the_rounds_variables_win_and_the_user_is_told() {
    let env = json!({"env": [
        {"name": "RANK", "value": "7"}, {"name": "MINE", "value": "$(RANK)"}, {"name": "PYTHONUNBUFFERED", "value": "0"},
    ]});
    let b = built(&job(with_container(env.clone())), 2);
    assert_eq!(b.overridden, ["RANK"]);
    let facts = eto_cycle::spec::job_spec(&job(with_container(env))).unwrap().template.unwrap();
    assert_eq!(facts.overridden, ["RANK"]);
    assert_eq!(
        json_of(&b)["spec"]["containers"][0]["env"],
        json!([
            {"name": "RANK", "value": "2"},
            {"name": "MINE", "value": "$(RANK)"},
            {"name": "PYTHONUNBUFFERED", "value": "0"},
        ])
    );
}

#[test]
fn the_end_of_a_failed_log_is_kept_unless_the_template_or_the_job_says_otherwise() {
    let policy =
        |spec: Value| json_of(&built(&job(spec), 1))["spec"]["containers"][0]["terminationMessagePolicy"].clone();
    assert_eq!(policy(with_container(json!({}))), "FallbackToLogsOnError");
    assert_eq!(policy(with_container(json!({"terminationMessagePolicy": "File"}))), "File");
    let mut off = with_container(json!({}));
    off["elasticity"] = json!({"keepFailureLogs": false});
    assert_eq!(policy(off), Value::Null);
}

#[test]
fn a_worker_that_ran_out_of_memory_gets_more_where_it_has_a_limit() {
    let resources = |own: Value, bytes: u64| {
        let new = NewPod { memory: Some(bytes), ..member(1, 1) };
        let b = pod::build(&job(with_container(json!({"resources": own}))), &new, None).unwrap().unwrap();
        json_of(&b)["spec"]["containers"][0]["resources"].clone()
    };
    let both = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}});
    let got = resources(both.clone(), 3 << 30);
    assert_eq!((&got["limits"]["memory"], &got["requests"]["memory"]), (&json!("3221225472"), &json!("1610612736")));
    assert_eq!(got["requests"]["cpu"], "1");
    assert_eq!(resources(both.clone(), 1 << 30), both, "never less than the template says");
    let limit = json!({"limits": {"memory": "2Gi"}});
    assert_eq!(resources(limit, 3 << 30), json!({"limits": {"memory": "3221225472"}}), "the request follows the limit");
    let none = json!({"requests": {"memory": "2Gi"}});
    assert_eq!(resources(none.clone(), 3 << 30), none);
}

#[test]
fn a_containers_own_variable_beats_the_short_form() {
    let mut spec = with_container(json!({"env": [{"name": "A", "value": "own"}]}));
    spec["env"] = json!([{"name": "A", "value": "short"}, {"name": "B", "value": "short"}]);
    let pod = json_of(&built(&job(spec), 1));
    let env = pod["spec"]["containers"][0]["env"].as_array().unwrap();
    let value = |name: &str| env.iter().find(|e| e["name"] == name).unwrap()["value"].clone();
    assert_eq!((value("A"), value("B")), (json!("own"), json!("short")));
    assert_eq!(env.iter().filter(|e| e["name"] == "A").count(), 1);
}

#[test]
fn names_are_the_same_for_a_retry_and_differ_between_rounds() {
    let job = job(with_container(json!({})));
    let name =
        |index, round| pod::build(&job, &member(index, round), None).unwrap().unwrap().pod.metadata.name.unwrap();
    assert_eq!(name(1, 3), name(1, 3));
    assert_ne!(name(1, 3), name(1, 4));
    assert!(name(0, 1).starts_with("train-master-0-"), "{}", name(0, 1));
    assert!(name(3, 1).starts_with("train-worker-3-"), "{}", name(3, 1));
}

#[test]
fn the_longest_name_gives_a_legal_host_name() {
    let longest = "a".repeat(eto_api::MAX_NAME);
    let last = u32::try_from(spec::MAX_SIZE_FIELD).unwrap() - 1;
    assert!(hostname(&longest, last).len() <= 63);
}

#[test]
fn shared_memory_is_mounted_once() {
    let plain = json_of(&built(&job(with_container(json!({}))), 0));
    assert_eq!(plain["spec"]["volumes"][0]["emptyDir"], json!({"medium": "Memory"}));
    assert_eq!(plain["spec"]["containers"][0]["volumeMounts"][0]["mountPath"], json!("/dev/shm"));
    let own =
        json_of(&built(&job(with_container(json!({"volumeMounts": [{"name": "s", "mountPath": "/dev/shm/"}]}))), 0));
    assert_eq!(own["spec"]["containers"][0]["volumeMounts"].as_array().unwrap().len(), 1);
    assert_eq!(own["spec"]["volumes"], Value::Null);
}

#[test]
fn a_required_node_is_anded_into_every_term_and_empty_terms_stay_empty() {
    let mut spec = with_container(json!({}));
    spec["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]},
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
        {},
    ]}}});
    let b = pod::build(&job(spec), &on_n1(true), None).unwrap().unwrap();
    let pod = json_of(&b);
    let terms =
        &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    let node = json!([{"key": "metadata.name", "operator": "In", "values": ["n1"]}]);
    assert_eq!(terms[0]["matchFields"], node);
    assert_eq!(terms[1]["matchFields"], node);
    assert_eq!(terms[2], json!({}));
}

#[test]
fn a_preferred_node_is_a_preference_beside_the_users_terms() {
    let b = pod::build(&job(with_container(json!({}))), &on_n1(false), None).unwrap().unwrap();
    let affinity = json_of(&b)["spec"]["affinity"]["nodeAffinity"].clone();
    assert_eq!(affinity["requiredDuringSchedulingIgnoredDuringExecution"], Value::Null);
    let preferred = &affinity["preferredDuringSchedulingIgnoredDuringExecution"][0];
    assert_eq!(preferred["preference"]["matchFields"][0]["values"], json!(["n1"]));
}

#[test]
fn a_pod_is_kept_off_nodes_in_every_term_and_by_preference() {
    let bare = job(with_container(json!({})));
    let keep_off = |never: &[&str], rather_not: &[&str]| KeepOff {
        never: never.iter().map(ToString::to_string).collect(),
        rather_not: rather_not.iter().map(ToString::to_string).collect(),
    };
    let affinity = |job: &ElasticJob, nodes: &KeepOff| {
        let kept = built(job, 1).keep_off(nodes);
        json_of(&kept)["spec"]["affinity"]["nodeAffinity"].clone()
    };
    assert_eq!(affinity(&bare, &KeepOff::default()), Value::Null);
    let not = |name: &str| json!({"key": "metadata.name", "operator": "NotIn", "values": [name]});
    assert_eq!(
        affinity(&bare, &keep_off(&["a", "b"], &["c", "d"])),
        json!({
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [not("a"), not("b")]}]},
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 100, "preference": {"matchFields": [not("c"), not("d")]}},
            ],
        })
    );
    let zone = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}]});
    let terms = json!({"nodeSelectorTerms": [zone, {}]});
    let mut spec = with_container(json!({}));
    spec["template"]["spec"]["affinity"] =
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
    let got = affinity(&job(spec), &keep_off(&["a"], &[]));
    let terms = &got["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    assert_eq!((&terms[0]["matchFields"], &terms[1]), (&json!([not("a")]), &json!({})));
}

#[test]
fn the_master_may_have_a_template_of_its_own() {
    let mut spec = with_container(json!({}));
    spec["master"] = json!({"template": {"spec": {"containers": [{"name": "boss", "image": "j"}]}}});
    let job = job(spec);
    assert_eq!(json_of(&built(&job, 0))["spec"]["containers"][0]["name"], json!("boss"));
    assert_eq!(json_of(&built(&job, 1))["spec"]["containers"][0]["name"], json!("main"));
}

#[test]
fn the_hash_changes_with_what_pods_are_made_from_and_with_nothing_else() {
    let base = job(with_container(json!({})));
    let mut sized = base.clone();
    sized.spec.replicas = Some(2);
    sized.spec.max_replicas = Some(9);
    sized.spec.suspend = Some(true);
    assert_eq!(template::hash(&base), template::hash(&sized));
    let mut env = base.clone();
    env.spec.env = Some(json!([{"name": "A", "value": "1"}]));
    assert_ne!(template::hash(&base), template::hash(&env));
    let image = job(with_container(json!({"image": "other"})));
    assert_ne!(template::hash(&base), template::hash(&image));
}

#[test]
fn restart_policies_and_the_grace_period() {
    let with = |policy: Value| {
        let mut spec = with_container(json!({}));
        spec["restartPolicy"] = policy;
        spec["elasticity"] = json!({"drainDeadlineSeconds": 45});
        json_of(&built(&job(spec), 1))["spec"].clone()
    };
    assert_eq!(with(Value::Null)["restartPolicy"], json!("OnFailure"));
    assert_eq!(with(json!("Never"))["restartPolicy"], json!("Never"));
    assert_eq!(with(json!("ExitCode"))["restartPolicy"], json!("Never"));
    assert_eq!(with(json!("Never"))["terminationGracePeriodSeconds"], json!(45));
}

#[test]
fn members_of_a_type_have_its_name_and_may_have_its_template() {
    let mut spec = with_container(json!({}));
    spec["frameworkType"] = "TensorFlow".into();
    spec["nprocPerNode"] = 2.into();
    spec["replicaTypes"] = json!([
        {"name": "chief"},
        {"name": "ps", "replicas": 2, "template": {"spec": {"containers": [{"name": "server", "image": "cpu"}]}}},
    ]);
    let job = job(spec);
    let of = |index| {
        let pod = json_of(&built(&job, index));
        let label = |name: &str| pod["metadata"]["labels"][name].clone();
        let name = pod["metadata"]["name"].as_str().unwrap().rsplit_once('-').unwrap().0.to_owned();
        let image = pod["spec"]["containers"][0]["image"].clone();
        let labels = ["elastic.ai/role", "elastic.ai/index", "training.kubeflow.org/replica-index"].map(label);
        (name, image, labels, pod["spec"]["hostname"].clone())
    };
    let labels = |role: &str, index: &str, within: &str| [role, index, within].map(Value::from);
    assert_eq!(of(0), ("train-chief-0".into(), "i".into(), labels("chief", "0", "0"), "train-worker-0".into()));
    assert_eq!(of(2), ("train-ps-1".into(), "cpu".into(), labels("ps", "2", "1"), "train-worker-2".into()));
    assert_eq!(of(3), ("train-worker-3".into(), "i".into(), labels("worker", "3", "3"), "train-worker-3".into()));
}

#[test]
fn the_labels_of_a_role_are_those_that_its_pods_have() {
    let template =
        json!({"metadata": {"labels": {"tier": "cpu"}}, "spec": {"containers": [{"name": "s", "image": "i"}]}});
    let mut spec = with_container(json!({}));
    spec["template"]["metadata"] = json!({"labels": {"tier": "gpu"}});
    let plain = job(spec.clone());
    spec["frameworkType"] = "TensorFlow".into();
    spec["replicaTypes"] = json!([{"name": "chief"}, {"name": "ps", "replicas": 2, "template": template}]);
    for (job, indexes) in [(plain, vec![1, 0]), (job(spec), vec![3, 0, 2])] {
        let sets = eto_cycle::pod::labels_by_role(&job);
        assert_eq!(sets.len(), indexes.len());
        for (set, index) in sets.iter().zip(indexes) {
            let pod = built(&job, index).pod.metadata.labels.unwrap();
            let missing: Vec<_> = set.iter().filter(|(k, v)| pod.get(*k) != Some(v)).collect();
            assert!(missing.is_empty() && set.contains_key("tier"), "{index}: {missing:?}");
            assert!(set.contains_key("training.kubeflow.org/replica-type"), "{set:?}");
        }
    }
}

#[test]
fn a_changed_template_of_a_type_makes_new_pods() {
    let with = |image: &str| {
        let mut spec = with_container(json!({}));
        spec["replicaTypes"] =
            json!([{"name": "ps", "template": {"spec": {"containers": [{"name": "server", "image": image}]}}}]);
        template::hash(&job(spec))
    };
    assert_ne!(with("a"), with("b"));
    let mut empty = with_container(json!({}));
    empty["replicaTypes"] = json!([]);
    assert_eq!(template::hash(&job(empty)), template::hash(&job(with_container(json!({})))));
}
