#![allow(clippy::unwrap_used)]
use super::*;
use serde_json::{Value, json};

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A claim `n/NAME`.
fn claim(volumes: &Volumes, name: &str, spec: &Value, selected: Option<&str>) {
    let annotations = selected.map(|node| json!({SELECTED_NODE: node}));
    volumes
        .claim(&read(json!({"metadata": {"namespace": "n", "name": name, "annotations": annotations}, "spec": spec})));
}

fn volume(volumes: &Volumes, name: &str, zones: &[&str], rest: &Value) {
    let mut spec = rest.clone();
    if !zones.is_empty() {
        let term = |zone: &&str| json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]});
        let terms: Vec<Value> = zones.iter().map(term).collect();
        spec["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": terms}});
    }
    volumes.volume(&read(json!({"metadata": {"name": name}, "spec": spec})));
}

fn pod(uid: &str, node: &str, claim: &str, phase: &str) -> core::Pod {
    read(json!({
        "metadata": {"namespace": "n", "name": uid, "uid": uid},
        "spec": {"nodeName": node, "containers": [{"name": "c"}],
                 "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "v", "persistentVolumeClaim": {"claimName": claim}}]},
        "status": {"phase": phase},
    }))
}

fn zone(values: &[&str]) -> Term {
    let values = values.iter().map(|v| (*v).to_owned()).collect();
    Term { labels: vec![Requirement { key: "zone".into(), operator: "In".into(), values }], fields: Vec::new() }
}

fn on(nodes: &[&str]) -> Vec<Term> {
    vec![on_nodes(nodes.iter().map(|n| (*n).to_owned()))]
}

fn of(volumes: &Volumes, claims: &[&str]) -> Reach {
    let wanted: Vec<Wanted> = claims.iter().map(|c| Wanted::Claim((*c).to_owned())).collect();
    volumes.reach("n", &wanted)
}

#[test]
fn a_bound_claim_is_where_its_volume_is() {
    let volumes = Volumes::default();
    claim(&volumes, "data", &json!({"volumeName": "pv-data"}), None);
    claim(&volumes, "logs", &json!({"volumeName": "pv-logs"}), Some("left-over"));
    claim(&volumes, "any", &json!({"volumeName": "pv-any"}), None);
    volume(
        &volumes,
        "pv-data",
        &["a", "b"],
        &json!({"accessModes": ["ReadWriteMany"], "csi": {"driver": "d", "volumeHandle": "h"}}),
    );
    volume(&volumes, "pv-logs", &["b"], &json!({"accessModes": ["ReadWriteOnce"], "local": {"path": "/l"}}));
    volume(&volumes, "pv-any", &[], &json!({"accessModes": ["ReadWriteMany"], "nfs": {"server": "s", "path": "/p"}}));
    let reach = of(&volumes, &["data", "logs", "any", "missing"]);
    assert_eq!(reach.terms, [vec![zone(&["a"]), zone(&["b"])], vec![zone(&["b"])]]);
    assert_eq!((reach.together, reach.unbound.len()), (false, 0));
    assert_eq!(volumes.reach("other", &[Wanted::Claim("data".into())]), Reach::default(), "claims are of a namespace");
    assert!(!volumes.with(|i| i.volumes.known.contains_key("pv-any")), "what restricts nothing is not kept");
}

#[test]
fn a_claim_without_a_volume_restricts_by_what_is_known_of_it() {
    let volumes = Volumes::default();
    let class = |name: &str, mode: &str, allowed: Value| {
        let all = json!({"metadata": {"name": name}, "provisioner": "p", "volumeBindingMode": mode, "allowedTopologies": allowed});
        volumes.class(&read(all));
    };
    let allowed = json!([{"matchLabelExpressions": [{"key": "zone", "values": ["a", "c"]}]}]);
    class("lazy", "WaitForFirstConsumer", Value::Null);
    class("zoned", "WaitForFirstConsumer", allowed.clone());
    class("eager", "Immediate", allowed);
    for (name, spec, selected, want) in [
        ("lazy", json!({"storageClassName": "lazy"}), None, Reach::default()),
        (
            "chosen",
            json!({"storageClassName": "lazy"}),
            Some("n1"),
            Reach { terms: vec![on(&["n1"])], ..Reach::default() },
        ),
        (
            "zoned",
            json!({"storageClassName": "zoned"}),
            None,
            Reach { terms: vec![vec![zone(&["a", "c"])]], ..Reach::default() },
        ),
        (
            "eager",
            json!({"storageClassName": "eager"}),
            None,
            Reach { unbound: vec!["eager".into()], ..Reach::default() },
        ),
        ("none", json!({"storageClassName": ""}), None, Reach { unbound: vec!["none".into()], ..Reach::default() }),
    ] {
        claim(&volumes, name, &spec, selected);
        assert_eq!(of(&volumes, &[name]), want, "{name}");
    }
    assert_eq!(volumes.reach("n", &[Wanted::PerPod(Some("zoned".into()))]).terms, [vec![zone(&["a", "c"])]]);
    assert_eq!(volumes.reach("n", &[Wanted::PerPod(Some("eager".into())), Wanted::PerPod(None)]), Reach::default());
}

#[test]
fn a_volume_of_one_node_keeps_the_others_there() {
    let volumes = Volumes::default();
    let csi = json!({"driver": "d", "volumeHandle": "h"});
    for (name, modes, together) in [
        ("once", json!(["ReadWriteOnce"]), true),
        ("both", json!(["ReadWriteOnce", "ReadOnlyMany"]), false),
        ("many", json!(["ReadWriteMany"]), false),
        ("pod", json!(["ReadWriteOncePod"]), false),
    ] {
        claim(&volumes, name, &json!({"volumeName": name}), None);
        volume(&volumes, name, &[], &json!({"accessModes": modes, "csi": csi}));
        assert_eq!(of(&volumes, &[name]), Reach { together, ..Reach::default() }, "{name}");
    }
    claim(&volumes, "nfs", &json!({"volumeName": "nfs"}), None);
    volume(&volumes, "nfs", &[], &json!({"accessModes": ["ReadWriteOnce"], "nfs": {"server": "s", "path": "/p"}}));
    assert_eq!(of(&volumes, &["nfs"]), Reach::default(), "a file server is not attached to a node");

    volumes.pod(&pod("p1", "n1", "once", "Running"));
    volumes.pod(&pod("p2", "n1", "once", "Pending"));
    volumes.pod(&pod("p3", "n9", "many", "Running"));
    assert_eq!(of(&volumes, &["once", "many"]).terms, [on(&["n1"])]);
    volumes.pod(&pod("p1", "n1", "once", "Succeeded"));
    assert_eq!(of(&volumes, &["once"]).terms, [on(&["n1"])], "another still has it");
    volumes.pod_gone("p2");
    assert_eq!(of(&volumes, &["once"]), Reach { together: true, ..Reach::default() });
}

#[test]
fn lists_take_what_they_do_not_have() {
    let volumes = Volumes::default();
    claim(&volumes, "data", &json!({"volumeName": "pv"}), None);
    volume(
        &volumes,
        "pv",
        &["a"],
        &json!({"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "h"}}),
    );
    volumes.pod(&pod("p1", "n1", "data", "Running"));
    assert_eq!(of(&volumes, &["data"]).terms.len(), 2);
    volumes.pod_list(true);
    volumes.pod_list(false);
    assert_eq!(of(&volumes, &["data"]), Reach { terms: vec![vec![zone(&["a"])]], together: true, ..Reach::default() });
    assert!(volumes.with(|i| i.nodes.is_empty() && i.users.known.is_empty()));
    volumes.volume_list(true);
    volumes.volume_list(false);
    assert_eq!(of(&volumes, &["data"]), Reach::default());
    volumes.claim_list(true);
    volumes.claim_list(false);
    assert!(volumes.with(|i| i.claims.known.is_empty()));
    volumes.volume(&read(json!({"metadata": {"name": "pv"}, "spec": {"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "h"}}})));
    claim(&volumes, "data", &json!({"volumeName": "pv"}), None);
    volumes.volume_gone("pv");
    volumes.claim_gone(&read(json!({"metadata": {"namespace": "n", "name": "data"}})));
    assert!(volumes.with(|i| i.claims.known.is_empty() && i.volumes.known.is_empty()));
}
