//! A real Prometheus for a test, with exporters that play recorded pages.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "test support: starts processes, serves pages; each test file uses a part of it"
)]

pub mod server;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use eto_engine::signals::{SignalData, SignalId};
use eto_engine::time::Time;
use eto_signals::{Prometheus, PrometheusSettings, Wants};

/// The wall clock, as an adapter would give it.
pub fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Time(u64::try_from(since.as_millis()).unwrap())
}

/// Serves a recorded page. A value `100+4/s` is a counter that grows by 4 a second; `NOW` is the time in milliseconds.
#[derive(Clone)]
pub struct Exporter {
    page: Arc<Mutex<Option<String>>>,
    pub address: String,
}

impl Exporter {
    pub async fn start(page: &str) -> Exporter {
        let page = Arc::new(Mutex::new(Some(page.to_owned())));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (served, started) = (Arc::clone(&page), Instant::now());
        let app = Router::new().route(
            "/metrics",
            get(move || {
                let text = served.lock().unwrap().as_deref().map(|page| play(page, started.elapsed()));
                async move { text.ok_or(StatusCode::SERVICE_UNAVAILABLE) }
            }),
        );
        tokio::spawn(async move { axum::serve(listener, app).await });
        Exporter { page, address }
    }

    /// Another page from now on; `None` is an exporter that is down.
    pub fn set(&self, page: Option<&str>) {
        *self.page.lock().unwrap() = page.map(ToOwned::to_owned);
    }
}

fn play(page: &str, elapsed: Duration) -> String {
    let mut out = String::new();
    for line in page.lines() {
        if line.starts_with('#') {
            writeln!(out, "{line}").unwrap();
            continue;
        }
        let (series, rest) = line.rsplit_once("} ").unwrap_or_else(|| panic!("page line without value: {line}"));
        let mut words = rest.split(' ');
        let value = words.next().unwrap();
        let value = match value.strip_suffix("/s").and_then(|v| v.split_once('+')) {
            Some((base, rate)) => {
                (base.parse::<f64>().unwrap() + rate.parse::<f64>().unwrap() * elapsed.as_secs_f64()).to_string()
            }
            None => value.to_owned(),
        };
        let time = if words.next() == Some("NOW") { format!(" {}", now().0) } else { String::new() };
        writeln!(out, "{series}}} {value}{time}").unwrap();
    }
    out
}

/// One scrape job: name, exporter, whether the exporter's own labels win, and labels of the target.
pub struct Job<'a> {
    pub name: &'a str,
    pub exporter: &'a Exporter,
    pub honor_labels: bool,
    pub labels: &'a [(&'a str, &'a str)],
}

/// A running Prometheus, gone with this value.
pub struct Server {
    child: Child,
    pub url: String,
    pub dir: tempfile::TempDir,
    args: Vec<String>,
    port: u16,
}

fn spawn(args: &[String], dir: &Path) -> Child {
    Command::new("prometheus")
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(dir.join("log")).unwrap())
        .spawn()
        .unwrap_or_else(|e| panic!("{MISSING}\n({e})"))
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const MISSING: &str = "these tests need the program `prometheus` 2.40 or newer on PATH. On Debian and Ubuntu: \
    apt-get install -y --no-install-recommends prometheus (its service is not needed: systemctl disable --now prometheus)";

impl Server {
    /// Starts one that scrapes these jobs every 200 ms and waits until it is ready.
    pub fn start(jobs: &[Job<'_>]) -> Server {
        Server::start_with(jobs, None, "http")
    }

    /// As `start`, with a web config (TLS).
    pub fn start_with(jobs: &[Job<'_>], web_config: Option<&str>, scheme: &str) -> Server {
        for _ in 0..5 {
            if let Some(server) = Server::attempt(jobs, web_config, scheme) {
                return server;
            }
        }
        panic!("prometheus did not start on any of 5 free ports; its log is above");
    }

    fn attempt(jobs: &[Job<'_>], web_config: Option<&str>, scheme: &str) -> Option<Server> {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("prometheus.yml");
        std::fs::write(&config, scrape_config(jobs)).unwrap();
        // Free at this moment; should another process be faster, the next attempt takes another.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut args = vec![
            format!("--config.file={}", config.display()),
            format!("--storage.tsdb.path={}", dir.path().join("data").display()),
            format!("--web.listen-address=127.0.0.1:{port}"),
            "--log.level=warn".to_owned(),
        ];
        if let Some(text) = web_config {
            let path = dir.path().join("web.yml");
            std::fs::write(&path, text).unwrap();
            args.push(format!("--web.config.file={}", path.display()));
        }
        let child = spawn(&args, dir.path());
        let mut server = Server { child, url: format!("{scheme}://127.0.0.1:{port}"), dir, args, port };
        server.listens().then_some(server)
    }

    /// Whether it comes to listen; false if it ended instead. (It listens a moment before it serves.)
    fn listens(&mut self) -> bool {
        let give_up = Instant::now() + Duration::from_secs(30);
        loop {
            if self.child.try_wait().unwrap().is_some() {
                eprintln!("{}", self.log());
                return false;
            }
            if std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return true;
            }
            assert!(Instant::now() < give_up, "prometheus is not listening after 30 s:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it, as a node that fails does.
    pub fn stop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again with its data, after `stop`.
    pub fn resume(&mut self) {
        self.child = spawn(&self.args, self.dir.path());
        assert!(self.listens(), "prometheus did not come back");
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    pub fn settings(&self) -> PrometheusSettings {
        PrometheusSettings { url: self.url.clone(), ..PrometheusSettings::default() }
    }
}

fn scrape_config(jobs: &[Job<'_>]) -> String {
    let mut text = "global:\n  scrape_interval: 200ms\n  scrape_timeout: 200ms\nscrape_configs:\n".to_owned();
    if jobs.is_empty() {
        text = text.replace("scrape_configs:\n", "");
    }
    for job in jobs {
        write!(
            text,
            "  - job_name: {}\n    honor_labels: {}\n    static_configs:\n      - targets: ['{}']\n        labels:\n          scraped_by: test\n",
            job.name, job.honor_labels, job.exporter.address
        )
        .unwrap();
        for (name, value) in job.labels {
            writeln!(text, "          {name}: {value}").unwrap();
        }
    }
    text
}

pub fn page(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pages").join(name)).unwrap()
}

pub fn builtin(name: &str, window_s: u32) -> SignalId {
    SignalId { name: name.to_owned(), query: None, container: None, window_s }
}

pub fn custom(query: &str) -> SignalId {
    SignalId { name: "mine".to_owned(), query: Some(query.to_owned()), container: None, window_s: 60 }
}

pub fn wants(ids: &[&SignalId], namespaces: &[&str]) -> Wants {
    let namespaces: BTreeSet<String> = namespaces.iter().map(|n| (*n).to_owned()).collect();
    ids.iter().map(|id| ((*id).clone(), namespaces.clone())).collect()
}

/// Gathers one signal until `ready` likes it, for at most 30 s.
pub async fn until(
    prometheus: &Prometheus,
    id: &SignalId,
    namespaces: &[&str],
    ready: impl Fn(&SignalData) -> bool,
) -> SignalData {
    let give_up = Instant::now() + Duration::from_secs(30);
    loop {
        let mut set = prometheus.gather(&wants(&[id], namespaces), now()).await;
        let data = set.signals.remove(id).unwrap();
        if ready(&data) {
            return data;
        }
        assert!(Instant::now() < give_up, "not within 30 s; last: {data:#?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

pub fn value(data: &SignalData, namespace: &str, pod: &str) -> Option<f64> {
    data.per_pod.get(namespace).and_then(|pods| pods.get(pod)).map(|sample| sample.value)
}
