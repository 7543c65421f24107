//! Signals read from a real Prometheus that scrapes recorded pages.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::{Exporter, Job, Server, builtin, custom, now, page, until, value, wants};
use eto_engine::signals::{SignalData, SignalId, builtin as names};
use eto_signals::{Prometheus, check::looked_for};

fn job<'a>(name: &'a str, exporter: &'a Exporter) -> Job<'a> {
    Job { name, exporter, honor_labels: true, labels: &[] }
}

fn near(data: &SignalData, namespace: &str, pod: &str, expected: f64) -> bool {
    value(data, namespace, pod).is_some_and(|v| (v - expected).abs() <= expected * 0.08)
}

const W0: &str = "train-worker-0-abcde";
const W1: &str = "train-worker-1-fghij";

#[tokio::test(flavor = "multi_thread")]
async fn cpu_and_memory_count_containers_once() {
    let exporter = Exporter::start(&page("cadvisor.prom")).await;
    // Scraped by two jobs, as when a second monitoring stack is there: still one use.
    let server = Server::start(&[job("kubelet", &exporter), job("kubelet-again", &exporter)]);
    let prometheus = Prometheus::new(server.settings()).unwrap();
    let cpu = builtin(names::CPU, 4);
    let data = until(&prometheus, &cpu, &["team-a", "team-b"], |d| {
        near(d, "team-a", W0, 1.25) && near(d, "team-a", W1, 0.5) && near(d, "team-b", W0, 2.0)
    })
    .await;
    assert!(data.trouble.is_none(), "{data:?}");
    assert_eq!(data.per_pod.len(), 2, "only what was asked for: {data:?}");
    assert_eq!(data.per_pod["team-a"].len(), 2);
    let age = now().since(data.per_pod["team-a"][W0].at);
    assert!(age < Duration::from_secs(30), "{age:?}");

    let trainer = SignalId { container: Some("trainer".to_owned()), ..builtin(names::CPU, 4) };
    until(&prometheus, &trainer, &["team-a"], |d| near(d, "team-a", W0, 1.0)).await;

    let memory = builtin(names::MEMORY, 60);
    until(&prometheus, &memory, &["team-a"], |d| value(d, "team-a", W0) == Some(3.5e9)).await;

    // The exporter goes away: Prometheus would hand out its last samples for five minutes more. They show their age.
    exporter.set(None);
    until(&prometheus, &memory, &["team-a"], |d| {
        d.per_pod["team-a"].get(W0).is_none_or(|s| now().since(s.at) > Duration::from_secs(3))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn renamed_labels_are_read() {
    // A kubelet's target often has a namespace and no pod of its own, so that only the namespace is renamed.
    let partly = Exporter::start(&page("cadvisor.prom")).await;
    let fully = Exporter::start(&page("cadvisor.prom").replace("team-a", "team-c").replace("team-b", "team-d")).await;
    let server = Server::start(&[
        Job { name: "kubelet", exporter: &partly, honor_labels: false, labels: &[("namespace", "kube-system")] },
        Job {
            name: "sidecar",
            exporter: &fully,
            honor_labels: false,
            labels: &[("namespace", "monitoring"), ("pod", "cadvisor-1"), ("container", "cadvisor")],
        },
    ]);
    let prometheus = Prometheus::new(server.settings()).unwrap();
    let all = ["team-a", "team-c", "monitoring", "kube-system"];
    let cpu = builtin(names::CPU, 4);
    let data = until(&prometheus, &cpu, &all, |d| near(d, "team-a", W0, 1.25) && near(d, "team-c", W0, 1.25)).await;
    for pods in data.per_pod.values() {
        assert!(!pods.contains_key("cadvisor-1"), "the exporter itself is no workload: {data:?}");
    }
    let trainer = SignalId { container: Some("trainer".to_owned()), ..cpu };
    until(&prometheus, &trainer, &all, |d| near(d, "team-a", W0, 1.0) && near(d, "team-c", W0, 1.0)).await;
    let memory = builtin(names::MEMORY, 60);
    until(&prometheus, &memory, &all, |d| {
        value(d, "team-a", W0) == Some(3.5e9) && value(d, "team-c", W0) == Some(3.5e9)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn throughput_is_the_job_s_and_shows_its_age() {
    let agents = Exporter::start(&page("agents.prom")).await;
    // Scraped twice: still one speed.
    let server = Server::start(&[job("elastic-agents", &agents), job("elastic-agents-again", &agents)]);
    let prometheus = Prometheus::new(server.settings()).unwrap();
    let throughput = builtin(names::THROUGHPUT, 3);
    let of = |d: &SignalData, namespace: &str, job: &str| {
        d.per_key.get(namespace)?.get(&format!("elastic_job={job:?}")).copied()
    };
    let is = |d: &SignalData, namespace: &str, job: &str, expected: f64| {
        of(d, namespace, job).is_some_and(|s| (s.value - expected).abs() < 1e-6)
    };
    let data = until(&prometheus, &throughput, &["team-a", "team-b"], |d| {
        is(d, "team-a", "train", 812.5) && is(d, "team-a", "steps", 7.5) && is(d, "team-b", "train", 20.0)
    })
    .await;
    assert!(data.trouble.is_none() && data.namespace_trouble.is_empty(), "{data:?}");
    assert_eq!(data.per_key["team-a"].len(), 2, "who does not say whose it is counts for nobody: {data:?}");
    assert!(now().since(of(&data, "team-a", "train").unwrap().at) < Duration::from_secs(30), "{data:?}");
    let one = until(&prometheus, &throughput, &["team-b"], |d| is(d, "team-b", "train", 20.0)).await;
    assert_eq!(one.per_key.len(), 1, "only what was asked for: {one:?}");
    // The agents are gone: what is still averaged shows its age, and then there is nothing.
    agents.set(None);
    until(&prometheus, &throughput, &["team-a"], |d| of(d, "team-a", "train").is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gpus_of_every_kind() {
    let plain = Exporter::start(&page("dcgm.prom")).await;
    let renamed = Exporter::start(
        &page("dcgm.prom").replace("team-a", "team-c").replace("team-b", "team-d").replace("GPU-aa", "GPU-bb"),
    )
    .await;
    let old = Exporter::start(&page("dcgm_old_blank.prom")).await;
    let mig = Exporter::start(&page("dcgm_mig.prom")).await;
    let shared = Exporter::start(&page("dcgm_shared.prom")).await;
    let server = Server::start(&[
        job("dcgm", &plain),
        job("dcgm-again", &plain),
        Job {
            name: "dcgm-renamed",
            exporter: &renamed,
            honor_labels: false,
            labels: &[("namespace", "gpu-operator"), ("pod", "dcgm-exporter-x9"), ("container", "exporter")],
        },
        job("dcgm-old", &old),
        job("dcgm-mig", &mig),
        job("dcgm-shared", &shared),
    ]);
    let prometheus = Prometheus::new(server.settings()).unwrap();
    let all = ["team-a", "team-b", "team-c", "gpu-operator"];
    let close = |d: &SignalData, namespace: &str, pod: &str, expected: f64| {
        value(d, namespace, pod).is_some_and(|v| (v - expected).abs() < 1e-6)
    };
    for window in [0, 3] {
        let gpu = builtin(names::GPU, window);
        let data = until(&prometheus, &gpu, &all, |d| {
            // Two GPUs, engines active half the time, though some kernel always ran.
            close(d, "team-a", W0, 1.0)
                && close(d, "team-b", W0, 0.35)
                && close(d, "team-c", W0, 1.0)
                && close(d, "team-a", "old-worker-0-aaaaa", 0.75)
                && close(d, "team-a", "mig-worker-0-aaaaa", 0.6)
                && close(d, "team-a", "mig-worker-1-bbbbb", 0.2)
                && close(d, "team-a", "shared-worker-0-aaaaa", 0.2)
                && close(d, "team-a", "shared-worker-1-bbbbb", 0.2)
        })
        .await;
        assert!(value(&data, "team-a", "blank-worker-0-aaaaa").unwrap().is_nan(), "{data:?}");
        assert!(value(&data, "team-a", "mig-worker-2-ccccc").unwrap().is_nan(), "0 by design is not idle: {data:?}");
        assert!(!data.per_pod.contains_key("gpu-operator"), "the exporter's own pod: {data:?}");
        assert!(!data.per_pod.contains_key("team-z"), "{data:?}");
    }
    let memory = builtin(names::GPU_MEMORY, 60);
    let data = until(&prometheus, &memory, &all, |d| close(d, "team-a", W0, 1.0) && close(d, "team-c", W0, 1.0)).await;
    assert!(value(&data, "team-a", "blank-worker-0-aaaaa").unwrap().is_nan(), "{data:?}");

    let test = prometheus.check().await;
    assert!(test.reachable());
    let series = |what| test.series(what).unwrap();
    assert_eq!(series(looked_for::CPU), 0);
    assert!(series(looked_for::GPU_EXPORTED) > 0 && series(looked_for::GPU_PLAIN) > 0, "{test}");
    assert!(series(looked_for::GPU_HOSTNAME) > 0 && series(looked_for::GPU_HOSTNAME_OLD) > 0, "{test}");
    assert!(series(looked_for::GPU_MIG) > 0 && series(looked_for::GPU_ACTIVE) > 0, "{test}");
    assert!(test.to_string().contains("MIG instances: 4 series"), "{test}");
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_queries_stay_in_their_namespace() {
    let training = Exporter::start(&page("training.prom")).await;
    let cadvisor = Exporter::start(&page("cadvisor.prom")).await;
    let ksm = Exporter::start(&page("kube_state_metrics.prom")).await;
    let server = Server::start(&[job("training", &training), job("kubelet", &cadvisor), job("ksm", &ksm)]);
    let prometheus = Prometheus::new(server.settings()).unwrap();
    let both = ["team-a", "team-b"];

    let per_worker = custom("rate(training_steps_total[4s])");
    let data = until(&prometheus, &per_worker, &both, |d| {
        near(d, "team-a", W0, 4.0) && near(d, "team-a", W1, 6.0) && near(d, "team-b", W0, 20.0)
    })
    .await;
    assert!(now().since(data.per_pod["team-a"][W0].at) < Duration::from_secs(30));

    // Sums that forget the namespace are kept apart by it: none sees the other's.
    let total = custom("sum(rate(training_steps_total[4s]))");
    let per_job = |d: &SignalData, namespace: &str, expected: f64| {
        d.per_namespace.get(namespace).is_some_and(|s| (s.value - expected).abs() < expected * 0.08)
    };
    until(&prometheus, &total, &both, |d| per_job(d, "team-a", 10.0) && per_job(d, "team-b", 20.0)).await;
    let alone = until(&prometheus, &total, &["team-b"], |d| per_job(d, "team-b", 20.0)).await;
    assert_eq!(alone.per_namespace.len(), 1);

    // CPU in percent of the request, joined over kube-state-metrics.
    let share = custom(
        "100 * sum by (namespace, pod) (rate(container_cpu_usage_seconds_total{container!=\"\", image!=\"\", container!=\"POD\"}[4s]))
           / on (namespace, pod) sum by (namespace, pod) (
             kube_pod_container_resource_requests{resource=\"cpu\"}
             * on (namespace, pod) group_left ()
               max by (namespace, pod) (kube_pod_status_phase{phase=~\"Pending|Running\"} == 1))",
    );
    until(&prometheus, &share, &both, |d| near(d, "team-a", W0, 31.25) && near(d, "team-b", W0, 25.0)).await;

    // One request for all namespaces gives what each gets alone, and so do those that need a request for each.
    for query in [
        "sum(training_queue_depth)",
        "count without (namespace, queue) (sum by (queue) (training_queue_depth))",
        "quantile(0.5, training_queue_depth)",
        "topk(1, training_queue_depth)",
        "sum(training_queue_depth / on () group_left () max(training_queue_depth))",
        "sum(training_queue_depth unless ignoring (queue, namespace, scraped_by) training_odd)",
        "max_over_time(sum(training_queue_depth)[2s:200ms]) - 1",
        "training_queue_depth{queue=\"y\"} or on () count(training_queue_depth)",
        "sum(training_queue_depth) / scalar(count(training_queue_depth))",
        "absent(training_queue_depth{queue=\"y\"})",
    ] {
        let id = custom(query);
        let together =
            until(&prometheus, &id, &both, |d| d.per_namespace.len() == 2 || query.starts_with("absent")).await;
        for namespace in both {
            let alone = until(&prometheus, &id, &[namespace], |d| d.trouble.is_none()).await;
            let number = |d: &SignalData| d.per_namespace.get(namespace).map(|s| s.value);
            assert_eq!(number(&together), number(&alone), "{query} in {namespace}: {together:?}");
        }
    }

    // Two queues where one number is due: said to that team alone.
    let queues = custom("training_queue_depth");
    let data = until(&prometheus, &queues, &both, |d| d.per_namespace.contains_key("team-b")).await;
    assert!(data.namespace_trouble["team-a"].contains("2 series"), "{data:?}");
    assert!(data.trouble.is_none() && !data.per_namespace.contains_key("team-a"), "{data:?}");

    // Values are handed on as they are: the engine calls them invalid.
    let odd = custom("training_odd");
    let data = until(&prometheus, &odd, &both, |d| d.per_namespace.len() == 2).await;
    assert!(data.per_namespace["team-a"].value.is_nan());
    assert!(data.per_namespace["team-b"].value.is_infinite());

    // Nothing is not zero, unless the query says so.
    let nothing = until(&prometheus, &custom("no_such_metric"), &both, |d| d.healthy_since.is_some()).await;
    assert!(nothing.per_namespace.is_empty() && nothing.per_pod.is_empty() && nothing.trouble.is_none());
    let zero = until(&prometheus, &custom("no_such_metric or vector(0)"), &both, |d| d.per_namespace.len() == 2).await;
    assert!(zero.per_namespace["team-a"].value.abs() < f64::EPSILON);

    // A query pinned to the past is as old as the past.
    let pinned = custom(&format!("training_queue_depth{{queue=\"x\"}} @ {}", now().0 / 1000 - 1));
    until(&prometheus, &pinned, &both, |d| {
        d.per_namespace.get("team-b").is_some_and(|s| now().since(s.at) > Duration::from_secs(2))
    })
    .await;

    // One bad query does not touch the others.
    let escape = custom("training_queue_depth{namespace=\"team-b\"}");
    let ids = [&per_worker, &escape, &builtin("nosuch", 60)].map(Clone::clone);
    let set = prometheus.gather(&wants(&[&ids[0], &ids[1], &ids[2]], &["team-a"]), now()).await;
    assert!(set.signals[&ids[0]].trouble.is_none());
    assert!(set.signals[&ids[1]].trouble.as_ref().unwrap().contains("line 1, column 22"), "{set:?}");
    assert!(set.signals[&ids[2]].trouble.as_ref().unwrap().contains("no built-in signal"), "{set:?}");
}

/// All namespaces share one request, which Prometheus refuses for the series of one of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_whose_series_do_not_match_fails_alone() {
    let exporter = Exporter::start(
        r#"steps{namespace="team-a",pod="p"} 3
limit{namespace="team-a"} 2
steps{namespace="team-b",pod="p"} 3
limit{namespace="team-b",by="quota"} 2
limit{namespace="team-b",by="admin"} 2"#,
    )
    .await;
    let server = Server::start(&[job("apps", &exporter)]);
    let prometheus = Prometheus::new(server.settings()).unwrap();
    let id = custom("steps * on (namespace) group_left () limit");
    let data = until(&prometheus, &id, &["team-a", "team-b"], |d| value(d, "team-a", "p") == Some(6.0)).await;
    assert!(data.namespace_trouble["team-b"].contains("duplicate series"), "{data:?}");
    assert!(data.trouble.is_none() && data.healthy_since.is_some(), "{data:?}");
}

/// One team's query over its own many series takes Prometheus far too long; the others have none of those series.
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_whose_query_takes_too_long_fails_alone() {
    let series: Vec<String> = (0..60).map(|i| format!("heavy{{namespace=\"team-b\",n=\"{i}\"}} 0+1/s")).collect();
    let light = "queue{namespace=\"team-a\"} 3\nqueue{namespace=\"team-b\"} 4\n";
    let exporter = Exporter::start(&format!("{light}{}", series.join("\n"))).await;
    let server = Server::start(&[job("apps", &exporter)]);
    let mut settings = server.settings();
    settings.timeout = Duration::from_secs(2);
    settings.deadline = Duration::from_secs(12);
    settings.retries = 0;
    let prometheus = Prometheus::new(settings).unwrap();
    let both = ["team-a", "team-b"];
    let slow = "max(quantile_over_time(0.5, quantile_over_time(0.5, heavy[4s:1ms])[4s:1ms])) < -1";
    // Sent once for all namespaces, and once for each.
    let shared = custom(&format!("sum(queue) unless {slow}"));
    let single = custom(&format!("sum(queue) + 0 * (({slow}) or vector(0))"));
    let other = custom("max(queue)");
    let is_a = |d: &SignalData| d.per_namespace.get("team-a").is_some_and(|s| (s.value - 3.0).abs() < 1e-9);
    for id in [&shared, &single] {
        let data = until(&prometheus, id, &both, |d| is_a(d) && d.namespace_trouble.contains_key("team-b")).await;
        let why = &data.namespace_trouble["team-b"];
        assert!(why.contains("did not answer within") || why.contains("(timeout)"), "{why}");
        assert!(data.trouble.is_none() && data.healthy_since.is_some(), "{data:?}");
        assert!(!data.per_namespace.contains_key("team-b"), "{data:?}");
    }
    // A signal that is new counts from when the source was first there: the slow query was no outage.
    let before = now();
    let set = prometheus.gather(&wants(&[&shared, &other], &both), before).await;
    assert_eq!(set.signals[&other].per_namespace.len(), 2, "{set:?}");
    assert!(set.signals[&other].healthy_since.unwrap() < before, "{set:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_rewriting_writes_prometheus_reads_as_meant() {
    let training = Exporter::start(&page("training.prom")).await;
    let server = Server::start(&[job("training", &training)]);
    let prometheus = Prometheus::new(server.settings()).unwrap();
    until(&prometheus, &custom("training_queue_depth{queue=\"x\"}"), &["team-a"], |d| !d.per_namespace.is_empty())
        .await;
    for (query, expected) in [
        ("sum(training_queue_depth)", 7.0),
        ("max_over_time(sum(training_queue_depth)[2s:200ms])", 7.0),
        ("-(sum(training_queue_depth) + -1) ^ 2 % 1e1", -6.0),
        ("count(training_queue_depth{queue=~\"x|y\", queue!=\"\\\"\"} offset 1ms)", 2.0),
        ("sum(training_queue_depth > bool 3)", 1.0),
        ("sum(training_queue_depth and ignoring (scraped_by) training_queue_depth{queue='x'} @ end())", 3.0),
        ("sum(label_replace(training_queue_depth, \"q\", \"$1\", \"queue\", \"(.*)\"))", 7.0),
        ("quantile(0.5, training_queue_depth)", 3.5),
        ("scalar(sum(training_queue_depth)) / 2", 3.5),
        ("absent(training_queue_depth{queue=\"z\"})", 1.0),
        ("0x10 + 08", 24.0),
    ] {
        let data = until(&prometheus, &custom(query), &["team-a"], |d| {
            d.per_namespace.contains_key("team-a") || d.trouble.is_some() || !d.namespace_trouble.is_empty()
        })
        .await;
        let sample = data.per_namespace.get("team-a").unwrap_or_else(|| panic!("{query}: {data:?}"));
        assert!((sample.value - expected).abs() < 1e-9, "{query}: {}", sample.value);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_outage_health_begins_anew() {
    let exporter = Exporter::start(&page("cadvisor.prom")).await;
    let mut server = Server::start(&[job("kubelet", &exporter)]);
    let mut settings = server.settings();
    settings.retries = 0;
    let prometheus = Prometheus::new(settings).unwrap();
    let memory = builtin(names::MEMORY, 60);
    let first = until(&prometheus, &memory, &["team-a"], |d| value(d, "team-a", W0).is_some()).await;
    let before = first.healthy_since.unwrap();
    // A signal that is new counts from when the source was first there, not from now.
    let other = until(&prometheus, &builtin(names::CPU, 4), &["team-a"], |d| d.healthy_since.is_some()).await;
    assert_eq!(other.healthy_since, Some(before));

    server.stop();
    let down = until(&prometheus, &memory, &["team-a"], |d| d.trouble.is_some()).await;
    assert!(down.healthy_since.is_none() && down.per_pod.is_empty(), "{down:?}");
    assert!(down.trouble.as_ref().unwrap().contains("can't be reached"), "{down:?}");

    let gone = now();
    server.resume();
    let back = until(&prometheus, &memory, &["team-a"], |d| value(d, "team-a", W0).is_some()).await;
    assert!(back.healthy_since.unwrap() >= gone, "{back:?}");
    let later = until(&prometheus, &memory, &["team-a"], |_| true).await;
    assert_eq!(later.healthy_since, back.healthy_since, "it goes on");
}
