//! Pods with an agent: what is put in, and what is left as it was.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::needless_pass_by_value, reason = "`json!` values read better handed over")]

use eto_api::ElasticJob;
use eto_cycle::image::ImageConfig;
use eto_cycle::pod::{self, AUDIENCE, Agent, AgentSetup, BuiltPod};
use eto_cycle::{SpecProblems, template};
use eto_engine::plan::NewPod;
use eto_engine::state::RoundMode;
use serde_json::{Value, json};

fn job(template: Value) -> ElasticJob {
    serde_json::from_value(json!({
        "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob",
        "metadata": {"name": "train", "namespace": "team", "uid": "u1"},
        "spec": {"replicas": 4, "template": {"spec": template}},
    }))
    .unwrap()
}

fn trainer(extra: Value) -> Value {
    let mut container =
        json!({"name": "main", "image": "i", "command": ["python", "train.py"], "args": ["--epochs=3"]});
    container.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    json!({"containers": [container, {"name": "side", "image": "s"}]})
}

fn setup() -> AgentSetup {
    AgentSetup {
        image: "agent:1".to_owned(),
        pull_policy: String::new(),
        url: "https://gateway.elastic-system.svc:8443".to_owned(),
        ca: "PEM".to_owned(),
    }
}

fn new() -> NewPod {
    NewPod {
        index: 2,
        round: 1,
        size: 4,
        incarnation: 1,
        mode: RoundMode::Agent,
        env: vec![].into(),
        node: None,
        memory: None,
    }
}

fn build(template: Value) -> Result<BuiltPod, SpecProblems> {
    pod::build(&job(template), &new(), Some((&setup()).into())).map(Option::unwrap)
}

fn spec(template: Value) -> Value {
    serde_json::to_value(build(template).unwrap().pod).unwrap()["spec"].clone()
}

#[test]
fn the_images_command_runs_under_the_agent_where_the_template_names_none() {
    let image = ImageConfig::parse(br#"{"config": {"Entrypoint": ["python"], "Cmd": ["train.py"]}}"#).unwrap();
    let built = |container: Value, image: Option<&ImageConfig>| {
        let template = json!({"containers": [container]});
        let setup = setup();
        let built = pod::build(&job(template), &new(), Some(Agent { setup: &setup, image }));
        built.map(|b| serde_json::to_value(b.unwrap().pod).unwrap()["spec"]["containers"][0].clone())
    };
    let bare = json!({"name": "main", "image": "i"});
    let main = built(bare.clone(), Some(&image)).unwrap();
    assert_eq!(main["command"], json!(["/eto/eto-agent", "run", "--", "python"]));
    assert_eq!(main["args"], json!(["train.py"]), "the image's would not be used beside a command");
    let with_args = json!({"name": "main", "image": "i", "args": ["other.py", "$(RANK)"]});
    let main = built(with_args, Some(&image)).unwrap();
    assert_eq!(main["args"], json!(["other.py", "$(RANK)"]));
    let commanded = json!({"name": "main", "image": "i", "command": ["torchrun"]});
    let main = built(commanded, Some(&image)).unwrap();
    assert_eq!(main["command"], json!(["/eto/eto-agent", "run", "--", "torchrun"]));
    assert!(main["args"].is_null());
    let problem = built(bare, None).unwrap_err().to_string();
    assert!(problem.starts_with("spec.template.spec.containers[0].command: is missing"), "{problem}");
}

fn named<'v>(list: &'v Value, name: &str) -> &'v Value {
    list.as_array().unwrap().iter().find(|e| e["name"] == name).unwrap_or_else(|| panic!("no {name} in {list}"))
}

#[test]
fn the_command_runs_under_the_agent() {
    let spec = spec(trainer(json!({})));
    let main = &spec["containers"][0];
    assert_eq!(main["command"], json!(["/eto/eto-agent", "run", "--", "python", "train.py"]));
    assert_eq!(main["args"], json!(["--epochs=3"]), "arguments stay");
    assert_eq!(main["image"], "i");
    assert_eq!(main["readinessProbe"]["httpGet"], json!({"path": "/readyz", "port": 9400}));
    let side = &spec["containers"][1];
    assert!(side["command"].is_null() && side["readinessProbe"].is_null(), "the other containers are as they were");
    let init = &spec["initContainers"][0];
    assert_eq!(
        (&init["image"], &init["command"]),
        (&json!("agent:1"), &json!(["/eto-agent", "install", "/eto/eto-agent"]))
    );
    for (container, name, path) in
        [(init, "eto-agent", "/eto"), (main, "eto-agent", "/eto"), (main, "eto-token", "/var/run/secrets/elastic.ai")]
    {
        assert_eq!(named(&container["volumeMounts"], name)["mountPath"], path);
    }
}

#[test]
fn the_token_is_the_gateways_alone() {
    let spec = spec(trainer(json!({})));
    let token = &named(&spec["volumes"], "eto-token")["projected"]["sources"][0]["serviceAccountToken"];
    assert_eq!(token, &json!({"audience": AUDIENCE, "expirationSeconds": 3600, "path": "token"}));
    assert!(named(&spec["volumes"], "eto-agent")["emptyDir"].is_object());
}

#[test]
fn the_environment_says_who_it_is_and_leaves_the_round_to_the_agent() {
    let env = json!({"env": [{"name": "RANK", "value": "7"}, {"name": "ETO_GATEWAY", "value": "mine"}, {"name": "LR", "value": "1"}]});
    let built = build(trainer(env)).unwrap();
    assert_eq!(built.overridden, ["ETO_GATEWAY", "RANK"]);
    let spec = serde_json::to_value(built.pod).unwrap()["spec"].clone();
    let env = &spec["containers"][0]["env"];
    for (name, value) in [
        ("ETO_GATEWAY", "https://gateway.elastic-system.svc:8443"),
        ("ETO_GATEWAY_CA", "PEM"),
        ("ETO_TOKEN_FILE", "/var/run/secrets/elastic.ai/token"),
        ("ETO_JOB", "team/train"),
        ("ETO_INDEX", "2"),
        ("ETO_PROCESSES", "1"),
        ("ETO_TERMINATION_GRACE_SECONDS", "30"),
        ("LR", "1"),
    ] {
        assert_eq!(named(env, name)["value"], value, "{name}");
    }
    for (name, field) in
        [("ETO_POD_NAME", "metadata.name"), ("ETO_POD_UID", "metadata.uid"), ("ETO_POD_IP", "status.podIP")]
    {
        assert_eq!(named(env, name)["valueFrom"]["fieldRef"]["fieldPath"], field);
    }
    let side = &spec["containers"][1]["env"];
    assert!(!side.as_array().unwrap().iter().any(|e| e["name"] == "ETO_GATEWAY" || e["name"] == "RANK"), "{side}");
}

/// The runtime sends it to the agent, and the script waits for it.
#[test]
fn the_agent_is_told_by_which_signal_the_container_is_stopped() {
    let told = |own: Option<&str>, images: Value| {
        let mut container = json!({"name": "main", "image": "i"});
        if let Some(own) = own {
            container["lifecycle"] = json!({ "stopSignal": own });
        }
        let image = json!({"config": {"Cmd": ["train"], "StopSignal": images}}).to_string();
        let (setup, image) = (setup(), ImageConfig::parse(image.as_bytes()).unwrap());
        let agent = Agent { setup: &setup, image: Some(&image) };
        let built = pod::build(&job(json!({"containers": [container]})), &new(), Some(agent)).unwrap().unwrap();
        let pod = serde_json::to_value(built.pod).unwrap();
        let env = pod["spec"]["containers"][0]["env"].as_array().unwrap();
        let of = env.iter().find(|e| e["name"] == "ETO_STOP_SIGNAL");
        of.map(|e| e["value"].as_str().unwrap().to_owned())
    };
    for written in ["SIGINT", "INT", "2", "sigint"] {
        assert_eq!(told(None, json!(written)).as_deref(), Some("SIGINT"), "{written}");
    }
    assert_eq!(told(None, json!("SIGQUIT")).as_deref(), Some("SIGQUIT"));
    // SIGTERM, or none that an agent can take: the command is read all the same.
    for written in
        [json!("SIGTERM"), json!("15"), json!("SIGKILL"), json!("SIGRTMIN+3"), json!(""), json!(2), json!(null)]
    {
        assert_eq!(told(None, written.clone()), None, "{written}");
    }
    assert_eq!(told(Some("SIGUSR1"), json!("SIGINT")).as_deref(), Some("SIGUSR1"), "the template's comes first");
    assert_eq!(told(Some("SIGTERM"), json!("SIGINT")), None);
}

#[test]
fn a_stop_signal_that_the_agent_can_t_take_is_told() {
    for own in ["SIGKILL", "SIGRTMIN+3", "nonsense"] {
        let problems = build(trainer(json!({"lifecycle": {"stopSignal": own}}))).unwrap_err();
        assert_eq!(problems.0[0].path, "spec.template.spec.containers[0].lifecycle.stopSignal");
        let told = problems.to_string();
        assert!([own, "SIGUSR1", "spec.elasticity.agent"].iter().all(|part| told.contains(part)), "{told}");
    }
    let recreated = NewPod { mode: RoundMode::Recreate, ..new() };
    let template = trainer(json!({"lifecycle": {"stopSignal": "SIGRTMIN+3"}}));
    let pod = pod::build(&job(template), &recreated, None).unwrap().unwrap().pod;
    let lifecycle = pod.spec.unwrap().containers[0].lifecycle.clone().unwrap();
    assert_eq!(lifecycle.stop_signal.as_deref(), Some("SIGRTMIN+3"), "without an agent it is the script's alone");
}

#[test]
fn in_the_hosts_network_the_agent_is_asked_from_within() {
    let mut template = trainer(json!({}));
    template["hostNetwork"] = json!(true);
    let probe = spec(template)["containers"][0]["readinessProbe"].clone();
    assert_eq!(probe["exec"], json!({"command": ["/eto/eto-agent", "ready"]}));
    assert!(probe["httpGet"].is_null(), "that may be another pod's port");
}

#[test]
fn the_users_readiness_probe_stays() {
    let probe = json!({"httpGet": {"path": "/", "port": 80}});
    let spec = spec(trainer(json!({"readinessProbe": probe})));
    assert_eq!(spec["containers"][0]["readinessProbe"], probe);
}

/// The kubelet would restart training on its word alone: docs/decisions/0021-no-liveness-probe.md.
#[test]
fn no_liveness_probe_is_put_in_and_the_users_stays() {
    assert!(spec(trainer(json!({})))["containers"][0]["livenessProbe"].is_null());
    let probe = json!({"httpGet": {"path": "/healthz", "port": 9400}, "failureThreshold": 10});
    let spec = spec(trainer(json!({"livenessProbe": probe})));
    assert_eq!(spec["containers"][0]["livenessProbe"], probe);
}

/// A pod whose containers all have requests equal to limits is of class Guaranteed, and must stay so.
#[test]
fn the_init_container_is_small_unprivileged_and_keeps_the_class_of_the_pod() {
    let init = spec(trainer(json!({})))["initContainers"][0].clone();
    assert_eq!(init["resources"]["requests"], init["resources"]["limits"]);
    assert_eq!(
        init["securityContext"],
        json!({
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": true,
            "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"},
        })
    );
    let mut as_root = trainer(json!({}));
    as_root["securityContext"] = json!({"runAsUser": 0});
    assert_eq!(spec(as_root)["initContainers"][0]["securityContext"]["runAsUser"], 65532, "root would be refused");
}

#[test]
fn without_a_gateway_no_pod_waits_for_one() {
    let problems = pod::build(&job(trainer(json!({}))), &new(), None).unwrap_err();
    assert!(problems.to_string().contains("no gateway"), "{problems}");
}

#[test]
fn names_of_ours_in_a_template_are_told() {
    let mut taken = trainer(json!({"volumeMounts": [{"name": "mine", "mountPath": "/eto/"}]}));
    taken["volumes"] = json!([{"name": "eto-token", "emptyDir": {}}, {"name": "mine", "emptyDir": {}}]);
    taken["initContainers"] = json!([{"name": "eto-agent", "image": "x"}]);
    let problems = build(taken).unwrap_err();
    let paths: Vec<&str> = problems.0.iter().map(|p| p.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "spec.template.spec.volumes[0].name",
            "spec.template.spec.initContainers[0].name",
            "spec.template.spec.containers[0].volumeMounts[0].mountPath",
        ]
    );
    assert!(problems.to_string().contains("spec.elasticity.agent"), "{problems}");
}

/// Pods of the release before agents carry this hash: another one would restart every job at an upgrade.
#[test]
fn the_template_hash_is_that_of_the_release_before() {
    let job = job(trainer(json!({})));
    let before = "52a0eb86cb9a";
    assert_eq!(template::hash(&job), before);
    let with = build(trainer(json!({}))).unwrap().pod;
    let recreated = NewPod { mode: RoundMode::Recreate, ..new() };
    let without = pod::build(&job, &recreated, None).unwrap().unwrap().pod;
    for pod in [with, without] {
        assert_eq!(pod.metadata.labels.unwrap()[eto_api::labels::TEMPLATE_HASH], before);
    }
}
