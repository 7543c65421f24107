//! Plays cAdvisor: a metrics page with a CPU counter (and a working set) for every running pod of an ElasticJob.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::Outcome;

/// The exporter; ends when dropped.
pub struct Exporter {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    /// Cores that each pod of a job uses, by `namespace/job`.
    cores: HashMap<String, f64>,
    /// CPU seconds used so far, and when that was, by pod UID.
    used: HashMap<String, (f64, Instant)>,
    /// Jobs whose pods are left out of the page.
    hidden: Vec<String>,
    /// Plain values, by metric with its labels.
    gauges: BTreeMap<String, f64>,
}

impl Exporter {
    pub async fn start(client: Client) -> Outcome<Exporter> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (pods, writer) = reflector::store::<Pod>();
        let selector = watcher::Config::default().labels(eto_api::labels::ELASTIC_JOB);
        let follow = watcher(Api::<Pod>::all(client), selector).default_backoff().reflect(writer);
        let state = Arc::<Mutex<State>>::default();
        let tasks = vec![
            tokio::spawn(async move { follow.for_each(|_| async {}).await }),
            tokio::spawn(serve(listener, pods, Arc::clone(&state))),
        ];
        Ok(Exporter { address, state, tasks })
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// From now on each pod of the job uses that many cores.
    pub fn cpu(&self, namespace: &str, job: &str, cores: f64) {
        self.with(|s| s.cores.insert(format!("{namespace}/{job}"), cores));
    }

    /// A value of the namespace under any name, as an application would export it; `job` becomes its `elastic_job`.
    pub fn gauge(&self, namespace: &str, job: &str, metric: &str, value: f64) {
        let series = format!("{metric}{{namespace=\"{namespace}\",elastic_job=\"{job}\"}}");
        self.with(|s| s.gauges.insert(series, value));
    }

    /// Leaves the pods of a job out of the page, or takes them in again.
    pub fn hide(&self, namespace: &str, job: &str, hidden: bool) {
        let key = format!("{namespace}/{job}");
        self.with(|s| {
            s.hidden.retain(|h| *h != key);
            if hidden {
                s.hidden.push(key);
            }
        });
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

async fn serve(listener: TcpListener, pods: Store<Pod>, state: Arc<Mutex<State>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let page = page(&pods, &mut state.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        tokio::spawn(answer(stream, page));
    }
}

async fn answer(mut stream: TcpStream, page: String) {
    let mut request = Vec::new();
    let mut part = [0_u8; 1024];
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        match stream.read(&mut part).await {
            Ok(n) if n > 0 => request.extend_from_slice(&part[..n]),
            _ => return,
        }
    }
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        page.len()
    );
    // A scraper that has gone away is no matter of ours.
    let _ = stream.write_all(format!("{head}{page}").as_bytes()).await;
}

fn page(pods: &Store<Pod>, state: &mut State, now: Instant) -> String {
    let mut page = String::from("# TYPE container_cpu_usage_seconds_total counter\n");
    let mut memory = String::from("# TYPE container_memory_working_set_bytes gauge\n");
    for pod in pods.state() {
        if pod.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Running") {
            continue;
        }
        let (namespace, name, uid) =
            (pod.namespace().unwrap_or_default(), pod.name_any(), pod.uid().unwrap_or_default());
        let job = pod.labels().get(eto_api::labels::ELASTIC_JOB).cloned().unwrap_or_default();
        let key = format!("{namespace}/{job}");
        if state.hidden.contains(&key) {
            continue;
        }
        let cores = state.cores.get(&key).copied().unwrap_or(0.0);
        let (used, at) = state.used.entry(uid.clone()).or_insert((0.0, now));
        *used += cores * now.duration_since(*at).as_secs_f64();
        *at = now;
        let container =
            pod.spec.as_ref().and_then(|s| s.containers.first()).map(|c| c.name.clone()).unwrap_or_default();
        let labels = format!(
            "id=\"/kubepods/pod{uid}/{container}\",image=\"i\",name=\"{container}\",container=\"{container}\",\
             namespace=\"{namespace}\",pod=\"{name}\""
        );
        let _ = writeln!(page, "container_cpu_usage_seconds_total{{cpu=\"total\",{labels}}} {used}");
        let _ = writeln!(memory, "container_memory_working_set_bytes{{{labels}}} 1073741824");
    }
    for (series, value) in &state.gauges {
        let _ = writeln!(memory, "{series} {value}");
    }
    page + &memory
}
