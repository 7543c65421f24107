//! The operator's settings: a TOML file, then the environment (`ETO_*`), then flags; resolved once, into one value.
//!
//! Every setting has a path (`prometheus.url`). The file holds it under its section, the environment as
//! `ETO_PROMETHEUS_URL`, the command line as `--prometheus-url`. The set of paths is read off [`Settings::default`],
//! so that file, environment, flags, help and `--print-settings` can't drift apart.

mod decision_log;
mod duration;
mod gateway;
mod help;
mod images;
mod keys;
mod nodes;
mod resolve;
mod traces;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use decision_log::DecisionLog;
pub use duration::Span;
pub use gateway::Gateway;
pub use images::{Images, names};
pub use nodes::{Nodes, Sign, Signs};
pub use resolve::{Source, command, resolve};
pub use traces::Traces;

/// All settings, resolved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    pub kubernetes: Kubernetes,
    pub evaluation: Evaluation,
    pub reconcile: Reconcile,
    pub prometheus: Prometheus,
    pub policies: Policies,
    pub placement: Placement,
    pub nodes: Nodes,
    pub leader: Leader,
    pub server: Server,
    pub gateway: Gateway,
    pub images: Images,
    pub decision_log: DecisionLog,
    pub traces: Traces,
    pub log: Log,
}

/// `[kubernetes]`: what is watched, and how the API server is spoken to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Kubernetes {
    pub namespace: String,
    pub watch_all_pods: bool,
    pub request_timeout: Span,
}

impl Default for Kubernetes {
    fn default() -> Self {
        Kubernetes { namespace: String::new(), watch_all_pods: true, request_timeout: Span::seconds(30) }
    }
}

/// `[evaluation]`: how often jobs are sized.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Evaluation {
    pub period: Span,
    pub threads: u32,
    pub checkpoint_period: Span,
    pub large_state_period: Span,
}

impl Default for Evaluation {
    fn default() -> Self {
        Evaluation {
            period: Span::seconds(15),
            threads: 0,
            checkpoint_period: Span::seconds(300),
            large_state_period: Span::seconds(60),
        }
    }
}

/// `[reconcile]`: how the answers are carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Reconcile {
    pub status_writers: u32,
    pub pod_writers: u32,
    pub status_delay: Span,
    pub events_per_second: u32,
}

impl Default for Reconcile {
    fn default() -> Self {
        Reconcile { status_writers: 32, pod_writers: 32, status_delay: Span::millis(500), events_per_second: 20 }
    }
}

/// `[prometheus]`: where signals come from. An empty URL means there are no signals (jobs hold).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Prometheus {
    pub url: String,
    pub timeout: Span,
    pub concurrency: u32,
    pub deadline: Span,
    pub scrape_interval: Span,
    pub namespace_label: String,
    pub matchers: String,
    pub method: Method,
    pub retries: u32,
    pub max_response_mebibytes: u32,
    pub headers_file: PathBuf,
    pub gpu_utilisation: String,
    pub gpu_engine_active: String,
    pub gpu_memory_used: String,
    pub gpu_memory_free: String,
    pub bearer_token_file: PathBuf,
    pub username: String,
    pub password_file: PathBuf,
    pub ca_file: PathBuf,
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
    pub server_name: String,
    pub insecure_skip_verify: bool,
}

/// How queries are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Method {
    #[default]
    Post,
    Get,
}

impl Default for Prometheus {
    fn default() -> Self {
        Prometheus {
            url: String::new(),
            timeout: Span::seconds(5),
            concurrency: 8,
            deadline: Span::seconds(10),
            scrape_interval: Span::seconds(0),
            namespace_label: "namespace".into(),
            matchers: String::new(),
            method: Method::Post,
            retries: 2,
            max_response_mebibytes: 64,
            headers_file: PathBuf::new(),
            gpu_utilisation: "DCGM_FI_DEV_GPU_UTIL".into(),
            gpu_engine_active: "DCGM_FI_PROF_GR_ENGINE_ACTIVE".into(),
            gpu_memory_used: "DCGM_FI_DEV_FB_USED".into(),
            gpu_memory_free: "DCGM_FI_DEV_FB_FREE".into(),
            bearer_token_file: PathBuf::new(),
            username: String::new(),
            password_file: PathBuf::new(),
            ca_file: PathBuf::new(),
            cert_file: PathBuf::new(),
            key_file: PathBuf::new(),
            server_name: String::new(),
            insecure_skip_verify: false,
        }
    }
}

/// `[policies]`: where modules are served from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Policies {
    pub builtin_dir: PathBuf,
    pub dir: PathBuf,
    pub cache_dir: PathBuf,
}

impl Default for Policies {
    fn default() -> Self {
        Policies {
            builtin_dir: PathBuf::from("/usr/share/elastic-training/policies"),
            dir: PathBuf::new(),
            cache_dir: PathBuf::new(),
        }
    }
}

/// `[placement]`: how nodes are described to placement policies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Placement {
    pub zone_label: String,
    pub rack_label: String,
}

impl Default for Placement {
    fn default() -> Self {
        Placement { zone_label: "topology.kubernetes.io/zone".into(), rack_label: "topology.kubernetes.io/rack".into() }
    }
}

/// `[leader]`: the Lease that makes one replica act.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Leader {
    pub enabled: bool,
    pub name: String,
    pub namespace: String,
    pub identity: String,
    pub duration: Span,
    pub renew_deadline: Span,
    pub retry_period: Span,
}

impl Default for Leader {
    fn default() -> Self {
        Leader {
            enabled: true,
            name: "elastic-training-operator".into(),
            namespace: String::new(),
            identity: String::new(),
            duration: Span::seconds(15),
            renew_deadline: Span::seconds(10),
            retry_period: Span::seconds(2),
        }
    }
}

/// `[server]`: `/healthz`, `/readyz` and `/metrics`, on one port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Server {
    pub address: SocketAddr,
    pub per_job_metrics: bool,
}

impl Default for Server {
    fn default() -> Self {
        Server { address: SocketAddr::from(([0, 0, 0, 0], 8080)), per_job_metrics: false }
    }
}

/// `[log]`: the operator's own log, on standard error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Log {
    pub format: LogFormat,
    pub level: String,
}

impl Default for Log {
    fn default() -> Self {
        Log { format: LogFormat::Json, level: "info".into() }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Json,
    Text,
}

/// What is wrong with the settings: where it was read, what it is, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("can't read the settings file {path}: {message}")]
    Unreadable { path: String, message: String },
    #[error("{place}: this is not TOML: {message}")]
    Syntax { place: Place, message: String },
    #[error("{place}: there is no setting `{key}`{}", nearest(.near.as_deref()))]
    UnknownKey { place: Place, key: String, near: Option<String> },
    #[error("{place}: `{key}` = {value}: {message}")]
    BadValue { place: Place, key: String, value: String, message: String },
    #[error("{0}")]
    Inconsistent(String),
}

fn nearest(near: Option<&str>) -> String {
    near.map_or_else(|| "; `--print-settings` lists all of them".to_owned(), |n| format!("; did you mean `{n}`?"))
}

/// Where a setting was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    File {
        path: String,
        line: usize,
    },
    Environment(String),
    Flag(String),
    /// The parts were read all right; together they do not fit.
    Resolved,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File { path, line } => write!(f, "{path}, line {line}"),
            Place::Environment(name) => write!(f, "environment variable {name}"),
            Place::Flag(name) => write!(f, "flag {name}"),
            Place::Resolved => write!(f, "resolved settings"),
        }
    }
}

impl Settings {
    /// What holds between settings, beyond each value's own type.
    pub fn check(&self) -> Result<(), SettingsError> {
        let bad = |m: &str| Err(SettingsError::Inconsistent(m.to_owned()));
        if self.evaluation.period.get().as_millis() < 1000 {
            return bad("evaluation.period is below 1s, the shortest there is");
        }
        if self.evaluation.large_state_period.get().as_millis() < 1000 {
            return bad("evaluation.large-state-period is below 1s, the shortest there is");
        }
        if self.evaluation.threads > 1024 {
            return bad("evaluation.threads must be from 0 to 1024");
        }
        let l = &self.leader;
        if l.retry_period >= l.renew_deadline || l.renew_deadline >= l.duration {
            return bad(
                "leader: retry-period < renew-deadline < duration must hold, or two replicas could act at once",
            );
        }
        if l.duration.get().as_secs() < 1 {
            return bad("leader.duration is below 1s; a Lease counts whole seconds");
        }
        let p = &self.prometheus;
        if p.cert_file.as_os_str().is_empty() != p.key_file.as_os_str().is_empty() {
            return bad("prometheus: cert-file and key-file belong together; set both or none");
        }
        if p.username.is_empty() != p.password_file.as_os_str().is_empty() {
            return bad("prometheus: username and password-file belong together; set both or none");
        }
        if self.reconcile.status_writers == 0 || self.reconcile.pod_writers == 0 {
            return bad("reconcile.status-writers and reconcile.pod-writers must be at least 1");
        }
        // The source checks these too, under its own names for them.
        if !(1..=256).contains(&p.concurrency) {
            return bad("prometheus.concurrency must be from 1 to 256");
        }
        if !(1..=1024).contains(&p.max_response_mebibytes) {
            return bad("prometheus.max-response-mebibytes must be from 1 to 1024");
        }
        self.gateway.check().map_err(SettingsError::Inconsistent)?;
        self.images.check().map_err(SettingsError::Inconsistent)?;
        self.nodes.check().map_err(SettingsError::Inconsistent)?;
        self.traces.check().map_err(SettingsError::Inconsistent)?;
        Ok(())
    }

    /// The resolved settings as TOML, secrets hidden: what `--print-settings` shows.
    pub fn shown(&self) -> String {
        let mut shown = self.clone();
        shown.prometheus.url = hide_userinfo(&shown.prometheus.url);
        toml::to_string_pretty(&shown).unwrap_or_else(|e| format!("# can't be shown: {e}\n"))
    }
}

/// `http://user:secret@host` -> `http://***@host`.
fn hide_userinfo(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.find('/').map_or((rest, ""), |i| rest.split_at(i));
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://***@{host}{path}"),
        None => url.to_owned(),
    }
}
