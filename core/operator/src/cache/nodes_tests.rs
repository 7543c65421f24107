#![allow(clippy::unwrap_used, clippy::float_cmp)]

use super::*;
use serde_json::json;

fn pod(uid: &str, node: &str, cpu: &str, phase: &str) -> core::Pod {
    serde_json::from_value(json!({
        "metadata": {"name": uid, "uid": uid},
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
        "status": {"phase": phase},
    }))
    .unwrap()
}

fn node() -> core::Node {
    serde_json::from_value(json!({
        "metadata": {"name": "n", "labels": {"zone": "a"}},
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {"allocatable": {"cpu": "8", "nvidia.com/gpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .unwrap()
}

/// A pod of a job on a node.
fn observed(node: &str) -> Pod {
    let labels = json!({"elastic.ai/index": "0", "elastic.ai/round": "1"});
    let pod =
        json!({"metadata": {"name": "p", "uid": "u", "labels": labels}, "spec": {"nodeName": node, "containers": []}});
    crate::cache::observe::observe(&serde_json::from_value(pod).unwrap()).unwrap()
}

#[test]
fn requests_follow_the_pods() {
    let nodes = Nodes::default();
    nodes.seen(&node());
    nodes.pod(&pod("a", "n", "2", "Running"));
    nodes.pod(&pod("b", "n", "1", "Pending"));
    nodes.pod(&pod("b", "n", "1", "Running"));
    let got = nodes.all();
    assert_eq!((got[0].requested.cpu, got[0].allocatable.gpus, got[0].ready), (3.0, 4.0, true));
    nodes.pod(&pod("a", "n", "2", "Succeeded"));
    assert_eq!(nodes.all()[0].requested.cpu, 1.0, "an ended pod holds nothing");
    nodes.pod_gone("b");
    assert_eq!(nodes.all()[0].requested.cpu, 0.0);
}

#[test]
fn a_node_that_is_to_go_takes_the_pods_that_were_there_before() {
    let nodes = Nodes::default();
    nodes.seen(&node());
    assert!(!nodes.seen(&node()), "nothing new");
    nodes.pod_list_begins();
    nodes.pod(&pod("old", "n", "1", "Running"));
    nodes.pod(&pod("done", "n", "1", "Succeeded"));
    nodes.pod_list_ends();
    let mut leaving = node();
    let taint = json!({"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"});
    leaving.spec.as_mut().unwrap().taints = Some(vec![serde_json::from_value(taint).unwrap()]);
    assert!(nodes.seen(&leaving));
    assert!(!nodes.seen(&leaving));
    nodes.pod(&pod("sent before", "n", "1", "Pending"));
    let long_ago = Instant::now().checked_sub(LATE).unwrap();
    nodes.with(|i| i.ends.get_mut("n").unwrap().seen = long_ago);
    nodes.pod(&pod("new", "n", "1", "Running"));
    let on = |uid: &str| Pod { uid: uid.into(), ..observed("n") };
    let all = ["old", "done", "sent before", "new"].map(on);
    let got = nodes.leaving(&all, BTreeSet::new);
    let known: Vec<_> = got.iter().map(|(uid, a)| (uid.as_str(), a.why.as_str(), a.by)).collect();
    let why = "taint node.kubernetes.io/out-of-service of node n";
    assert_eq!(known, [("old", why, None), ("sent before", why, None)]);
    assert_eq!(nodes.avoided(), ["n"]);
    assert!(nodes.seen(&node()), "it stays after all");
    assert!(nodes.leaving(&all, BTreeSet::new).is_empty());
}

#[test]
fn what_the_first_list_brings_was_there_before() {
    let nodes = Nodes::default();
    let mut leaving = node();
    let taint = json!({"key": "karpenter.sh/disrupted", "effect": "NoSchedule"});
    leaving.spec.as_mut().unwrap().taints = Some(vec![serde_json::from_value(taint).unwrap()]);
    nodes.seen(&leaving);
    let long_ago = Instant::now().checked_sub(LATE).unwrap();
    nodes.with(|i| i.ends.get_mut("n").unwrap().seen = long_ago);
    nodes.pod_list_begins();
    nodes.pod(&pod("u", "n", "1", "Running"));
    nodes.pod_list_ends();
    assert_eq!(nodes.leaving(&[observed("n")], BTreeSet::new).len(), 1);
}

#[test]
fn a_pod_may_say_itself_that_it_will_go_unless_its_template_says_so() {
    let settings = settings::Nodes { leaving_annotations: "example.com/go@1m".into(), ..settings::Nodes::default() };
    let nodes = Nodes::new(&settings);
    let mut going = pod("u", "n", "1", "Running");
    going.metadata.annotations = Some([("example.com/go".to_owned(), String::new())].into());
    nodes.pod(&going);
    let told = nodes.leaving(&[observed("n")], BTreeSet::new);
    assert_eq!(told["u"].why, "annotation example.com/go of the pod");
    assert!(told["u"].by.is_some());
    assert!(nodes.leaving(&[observed("n")], || ["example.com/go".to_owned()].into()).is_empty());
    going.metadata.annotations = None;
    nodes.pod(&going);
    assert!(nodes.leaving(&[observed("n")], BTreeSet::new).is_empty());
}

#[test]
fn of_what_a_pod_says_of_its_end_the_one_that_leaves_least_time_holds() {
    let list = "example.com/a,example.com/b=soon@5m,example.com/b=now@30s,example.com/c@2m";
    let settings = settings::Nodes { leaving_annotations: list.into(), ..settings::Nodes::default() };
    let nodes = Nodes::new(&settings);
    let told = |annotations: &[(&str, &str)], template: &[&str]| {
        let mut going = pod("u", "n", "1", "Running");
        let all = annotations.iter().map(|(k, v)| (format!("example.com/{k}"), (*v).to_owned())).collect();
        going.metadata.annotations = Some(all);
        nodes.pod(&going);
        let of_template = || template.iter().map(|k| format!("example.com/{k}")).collect();
        let told = nodes.leaving(&[observed("n")], of_template);
        told.get("u").map(|a| (a.why.replace("annotation example.com/", "").replace(" of the pod", ""), a.by))
    };
    let why = |told: &Option<(String, Option<eto_engine::time::Time>)>| told.as_ref().map(|(why, _)| why.clone());
    let first = told(&[("a", ""), ("b", "soon")], &[]);
    assert_eq!(why(&first).as_deref(), Some("b"));
    assert_eq!(told(&[("a", ""), ("b", "soon")], &[]), first, "told again it counts from the first word");
    assert_eq!(why(&told(&[("a", ""), ("b", "soon")], &["b"])).as_deref(), Some("a"));
    assert_eq!(why(&told(&[("a", ""), ("b", "soon"), ("c", "")], &["a"])).as_deref(), Some("c"));
    let now = told(&[("a", ""), ("b", "now"), ("c", "")], &["a"]);
    assert!(why(&now).as_deref() == Some("b") && now.unwrap().1 < first.unwrap().1);
    assert_eq!(told(&[("a", "")], &["a"]), None);
}

#[test]
fn a_pod_that_goes_by_itself_leaves_its_node_to_others() {
    let settings = settings::Nodes { leaving_annotations: "example.com/go".into(), ..settings::Nodes::default() };
    let nodes = Nodes::new(&settings);
    nodes.seen(&node());
    let mut going = pod("u", "n", "1", "Running");
    going.metadata.annotations = Some([("example.com/go".to_owned(), String::new())].into());
    nodes.pod(&going);
    assert_eq!(
        (nodes.leaving(&[observed("n")], BTreeSet::new).len(), nodes.ending(&[observed("n")])),
        (1, BTreeSet::new())
    );
    let mut leaving = node();
    let taint = json!({"key": "karpenter.sh/disrupted", "effect": "NoSchedule"});
    leaving.spec.as_mut().unwrap().taints = Some(vec![serde_json::from_value(taint).unwrap()]);
    nodes.seen(&leaving);
    assert_eq!(nodes.ending(&[observed("n")]), ["n".to_owned()].into(), "its node goes too");
}

#[test]
fn a_known_end_comes_its_notice_after_it_was_first_seen() {
    let nodes = Nodes::default();
    let mut spot = node();
    let taint = json!({"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"});
    spot.spec.as_mut().unwrap().taints = Some(vec![serde_json::from_value(taint).unwrap()]);
    nodes.pod(&pod("u", "n", "1", "Running"));
    let before = now();
    nodes.seen(&spot);
    nodes.seen(&spot);
    let by = nodes.leaving(&[observed("n")], BTreeSet::new)["u"].by.unwrap();
    assert!(by >= before.plus(Duration::from_secs(120)) && by <= now().plus(Duration::from_secs(120)), "{by:?}");
}

#[test]
fn a_fault_of_a_gpu_is_known_of_its_node() {
    let nodes = Nodes::default();
    let mut faulty = node();
    let condition = json!({"type": "GPUXIDErrors", "status": "True"});
    faulty.status.as_mut().unwrap().conditions.as_mut().unwrap().push(serde_json::from_value(condition).unwrap());
    assert!(nodes.seen(&faulty));
    assert_eq!(nodes.faulty(&[observed("n"), observed("m")]), ["n".to_owned()].into());
    assert!(!nodes.is_sick("n"), "a fault is no witness of a loss");
    nodes.gone("n");
    assert!(nodes.avoided().is_empty());
}

#[test]
fn lists_take_what_they_do_not_have() {
    let nodes = Nodes::default();
    nodes.seen(&node());
    nodes.pod(&pod("a", "n", "2", "Running"));
    nodes.pod_list_begins();
    nodes.pod(&pod("c", "n", "5", "Running"));
    nodes.pod_list_ends();
    assert_eq!(nodes.all()[0].requested.cpu, 5.0);
    nodes.list_begins();
    nodes.list_ends();
    assert!(nodes.all().is_empty());
}

#[test]
fn a_failure_counts_once_on_its_node() {
    let nodes = Nodes::default();
    let on = |of: &str, node: &str| Failure { of: of.into(), job: "j".into(), node: node.into(), among_others: true };
    nodes.lead(true);
    for (of, node) in [("a", "n"), ("b", "n"), ("a", "n"), ("c", "m")] {
        nodes.fault(on(of, node), Duration::ZERO);
    }
    assert_eq!(nodes.faults(), [("n".to_owned(), 2), ("m".to_owned(), 1)].into());
    assert!(nodes.quarantined().is_empty(), "the job fails elsewhere too");
    for (of, job) in [("d", "k"), ("e", "k")] {
        nodes.fault(Failure { job: job.into(), ..on(of, "n") }, Duration::ZERO);
    }
    assert_eq!(nodes.quarantined(), ["n"]);
    assert_eq!(nodes.newly_quarantined(), [("n".to_owned(), "k".to_owned())].into());
    assert!(nodes.newly_quarantined().is_empty(), "told once");
}

#[test]
fn only_the_leader_tells_of_quarantine_and_only_while_it_lasts() {
    let nodes = Nodes::new(&settings::Nodes { quarantine_failures: 1, ..settings::Nodes::default() });
    let on = |of: &str, node: &str| Failure { of: of.into(), job: of.into(), node: node.into(), among_others: true };
    assert!(nodes.fault(on("a", "n"), Duration::ZERO));
    nodes.lead(true);
    assert!(nodes.newly_quarantined().is_empty(), "the leader of then has told of it");
    assert!(nodes.fault(on("b", "m"), Duration::ZERO) && nodes.fault(on("c", "o"), Duration::ZERO));
    nodes.with(|i| i.told_of.insert("out again".into(), "d".into()));
    let told = [("m".to_owned(), "b".to_owned()), ("o".to_owned(), "c".to_owned())];
    assert_eq!(nodes.newly_quarantined(), told.into());
    nodes.fault(on("e", "p"), Duration::ZERO);
    nodes.lead(false);
    nodes.lead(true);
    assert!(nodes.newly_quarantined().is_empty());
}

#[test]
fn a_node_that_is_gone_is_sick_and_one_that_was_never_seen_is_not() {
    let nodes = Nodes::default();
    assert!(!nodes.is_sick("n"));
    nodes.seen(&node());
    nodes.gone("n");
    assert!(nodes.is_sick("n"));
    nodes.seen(&node());
    assert!(!nodes.is_sick("n"), "it is back");
    nodes.list_begins();
    nodes.list_ends();
    assert!(nodes.is_sick("n"));
}
