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
        let output = Command::new(self.scripts.join(name)).args(arguments).output()?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        Err(format!("{name} failed: {text}").into())
    }

    pub async fn client(&self) -> Outcome<Client> {
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
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

impl Drop for Cluster {
    fn drop(&mut self) {
        if !self.borrowed
            && let Err(failure) = self.script("down.sh", &[])
        {
            eprintln!("the cluster was not stopped: {}", failure.0);
        }
    }
}
