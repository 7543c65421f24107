//! The operator as a process of its own, as built.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::prometheus::{free_port, get};
use crate::{Failure, Outcome};

/// A running operator; ended (SIGKILL) when dropped.
pub struct Operator {
    pub address: SocketAddr,
    pub log: PathBuf,
    process: Child,
}

/// How an operator is started.
#[derive(Clone, Debug)]
pub struct Setup {
    pub kubeconfig: PathBuf,
    pub prometheus: String,
    pub policies: PathBuf,
    /// Where its log goes.
    pub directory: PathBuf,
    /// Further settings, by variable.
    pub settings: BTreeMap<String, String>,
}

impl Operator {
    /// Starts it, and waits until its caches are filled.
    pub async fn start(setup: &Setup) -> Outcome<Operator> {
        let address = free_port()?;
        let log = setup.directory.join(format!("operator-{}.log", address.port()));
        let file = File::create(&log)?;
        let mut command = Command::new(binary()?);
        // The operator refuses settings that do not exist; those of the tests are none of its own.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ETO_")) {
            command.env_remove(name);
        }
        let process = command
            .env("KUBECONFIG", &setup.kubeconfig)
            .env("ETO_PROMETHEUS_URL", &setup.prometheus)
            .env("ETO_POLICIES_BUILTIN_DIR", &setup.policies)
            .env("ETO_SERVER_ADDRESS", address.to_string())
            .env("ETO_LOG_FORMAT", "text")
            .envs(&setup.settings)
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()?;
        let mut operator = Operator { address, log, process };
        operator.ready().await?;
        Ok(operator)
    }

    async fn ready(&mut self) -> Outcome {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        while !get(self.address, "/readyz").await.is_ok_and(|a| a.starts_with("HTTP/1.1 200")) {
            if let Some(status) = self.process.try_wait()? {
                return Err(Failure(format!("the operator ended ({status}): {}", self.tail())));
            }
            if tokio::time::Instant::now() > deadline {
                return Err(Failure(format!("the operator was not ready within 60 s: {}", self.tail())));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Its process ID.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// SIGKILL.
    pub fn kill(&mut self) -> Outcome {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// SIGTERM, and waits for the end.
    pub async fn stop(&mut self) -> Outcome<std::process::ExitStatus> {
        Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status()?;
        let waiting = async {
            loop {
                if let Some(status) = self.process.try_wait()? {
                    return Ok::<_, Failure>(status);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), waiting)
            .await
            .map_err(|_| Failure("the operator did not end within 30 s of SIGTERM".into()))?
    }

    /// The value of one series of its metrics; 0 where there is none yet.
    pub async fn metric(&self, series: &str) -> Outcome<f64> {
        let page = get(self.address, "/metrics").await?;
        let line = page.lines().find_map(|l| l.strip_prefix(series)?.strip_prefix(' '));
        Ok(line.map_or(Ok(0.0), str::parse)?)
    }

    /// The sum of all series whose name and labels begin so.
    pub async fn sum(&self, prefix: &str) -> Outcome<f64> {
        self.sum_with(prefix, "").await
    }

    /// The sum of those of them that have this label (`name="value"`).
    pub async fn sum_with(&self, prefix: &str, label: &str) -> Outcome<f64> {
        let page = get(self.address, "/metrics").await?;
        let lines = page.lines().filter(|l| l.starts_with(prefix) && l.contains(label));
        let values = lines.filter_map(|l| l.rsplit(' ').next());
        Ok(values.filter_map(|v| v.parse::<f64>().ok()).sum())
    }

    /// The end of its log.
    pub fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// `ETO_E2E_OPERATOR`, or the binary that Cargo put beside the tests.
pub fn binary() -> Outcome<PathBuf> {
    if let Ok(path) = std::env::var("ETO_E2E_OPERATOR") {
        return Ok(path.into());
    }
    let test = std::env::current_exe()?;
    let path = test.parent().and_then(Path::parent).map(|p| p.join("elastic-training-operator"));
    path.filter(|p| p.exists()).ok_or_else(|| {
        Failure("the operator is not built: cargo build -p eto-operator, or set ETO_E2E_OPERATOR".into())
    })
}
