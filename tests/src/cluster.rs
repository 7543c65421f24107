//! The control plane of `tests/cluster`, for the length of a run. There is one per machine; a lock keeps runs apart.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::Outcome;

/// A running cluster; stopped when dropped, unless it was there before.
pub struct Cluster {
    scripts: PathBuf,
    pub kubeconfig: PathBuf,
    borrowed: bool,
    _lock: File,
}

impl Cluster {
    /// Starts a cluster with that many fake nodes. With `ETO_E2E_CLUSTER=keep` one that runs is used, and left running.
    pub fn start(nodes: u32) -> Outcome<Cluster> {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster");
        let lock = File::create("/tmp/cluster.lock")?;
        lock.lock()?;
        let state = std::env::var("CLUSTER_STATE").unwrap_or_else(|_| "/tmp/k8s-lab".into());
        let kubeconfig = Path::new(&state).join("kubeconfig");
        let keep = std::env::var("ETO_E2E_CLUSTER").is_ok_and(|v| v == "keep");
        let cluster = Cluster { scripts, kubeconfig, borrowed: keep, _lock: lock };
        if keep && cluster.kubeconfig.exists() {
            return Ok(cluster);
        }
        if Path::new(&state).exists() {
            // The lock is ours, so what is there was left by a run that was killed.
            cluster.script("down.sh", &[])?;
        }
        cluster.script("up.sh", &["--nodes", &nodes.to_string()])?;
        Ok(cluster)
    }

    fn script(&self, name: &str, arguments: &[&str]) -> Outcome {
        // A test does not wait for an HPA that looks every 15 seconds and remembers five minutes.
        let quick = "--horizontal-pod-autoscaler-sync-period=1s --horizontal-pod-autoscaler-downscale-stabilization=1s";
        let mut command = Command::new(self.scripts.join(name));
        let output = command.args(arguments).env("KCM_FLAGS", quick).output()?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        Err(format!("{name} failed: {text}").into())
    }

    /// Ends the API server (SIGKILL) and starts it again as it was; back when it is ready.
    pub async fn restart_api_server(&self) -> Outcome {
        let state = self.kubeconfig.parent().ok_or("the kubeconfig has no directory")?;
        let record = state.join("pids/kube-apiserver");
        let recorded = std::fs::read_to_string(&record)?;
        let pid = recorded.split_whitespace().next().ok_or("no pid is recorded")?;
        let line = std::fs::read(format!("/proc/{pid}/cmdline"))?;
        let words: Vec<String> = line
            .split(|b| *b == 0)
            .filter(|w| !w.is_empty())
            .map(|w| String::from_utf8_lossy(w).into_owned())
            .collect();
        let (program, arguments) = words.split_first().ok_or("the API server has no command line")?;
        Command::new("kill").args(["-KILL", pid]).status()?;
        // It ends a moment after the signal; until then its port is taken, and a new one would give up at once.
        let port = arguments.iter().find_map(|a| a.strip_prefix("--secure-port=")?.parse().ok()).unwrap_or(6443_u16);
        while std::net::TcpListener::bind(("0.0.0.0", port)).is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        let log = File::options().append(true).open(state.join("logs/kube-apiserver.log"))?;
        let process = Command::new("setsid")
            .arg(program)
            .args(arguments)
            .stdin(std::process::Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        // As `start` of the scripts: `setsid` becomes the program, so this is its pid; with its start time.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id()))?;
        let born = stat.split_whitespace().nth(21).unwrap_or_default();
        std::fs::write(&record, format!("{} {born}\n", process.id()))?;
        let ready = async {
            while self.kubectl(&["get", "--raw", "/readyz"]).is_err() {
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(120), ready)
            .await
            .map_err(|_| "the API server was not ready 120 s after its restart".into())
    }

    pub async fn client(&self) -> Outcome<Client> {
        client_of(&self.kubeconfig).await
    }

    /// Runs kubectl; gives its standard output, or fails with what it said.
    pub fn kubectl(&self, arguments: &[&str]) -> Outcome<String> {
        let output = Command::new("kubectl").arg("--kubeconfig").arg(&self.kubeconfig).args(arguments).output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(format!("kubectl {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr)).into())
    }
}

/// A client with what the kubeconfig says.
pub async fn client_of(kubeconfig: &Path) -> Outcome<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // What is refused (an eviction by a budget: 429) is a case's result, and is not tried again behind its back.
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !self.borrowed
            && let Err(failure) = self.script("down.sh", &[])
        {
            eprintln!("the cluster was not stopped: {}", failure.0);
        }
    }
}
