//! What the agent is told by its environment.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use nix::sys::signal::Signal;

use crate::client::{Client, ClientError, Token};
use crate::signals;

/// The agent's settings. The operator sets them in the pod; docs/agent.md lists them.
#[derive(Debug)]
pub struct Settings {
    /// The gateway.
    pub client: Client,
    /// Of the pod.
    pub pod_uid: String,
    /// Of the pod: what peers reach it by. Empty where the pod has none.
    pub pod_ip: String,
    /// Processes to start in a round, at least 1.
    pub processes: u32,
    /// Whether the command starts them by itself; `None` = to be seen from the command.
    pub launcher: Option<bool>,
    /// What processes get to stop when the pod is stopped, in milliseconds.
    pub stop_grace_ms: u64,
    /// What asks processes to stop.
    pub stop_signal: Signal,
    /// Where `/metrics` is served: 0 = nowhere.
    pub metrics_port: u16,
    /// Whether the last lines that failed processes wrote to stderr are told.
    pub keeps_lines: bool,
    /// Where the container finds its own cgroup.
    pub cgroup: PathBuf,
    /// Folder for the drain files and for what must outlive the agent's process; `None` = where the program is.
    pub folder: Option<PathBuf>,
}

/// A setting that is missing or can't be read.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// Not set.
    #[error("{0} is not set: the operator sets it in pods of jobs with `elasticity.agent`")]
    Missing(&'static str),
    /// Not a number in its range.
    #[error("{name} is `{value}`; it must be {wanted}")]
    Invalid {
        /// The variable.
        name: &'static str,
        /// What it is.
        value: String,
        /// What it may be.
        wanted: &'static str,
    },
    /// The gateway's address or certificate.
    #[error("ETO_GATEWAY, ETO_GATEWAY_CA: {0}")]
    Gateway(#[from] ClientError),
}

/// Kubernetes' own default.
const GRACE_SECONDS: u64 = 30;
/// Kept of the pod's grace for the last report.
const MARGIN_MS: u64 = 2_000;
/// Of agents, unless they are told another.
pub(crate) const METRICS_PORT: u16 = 9400;
const CGROUP: &str = "/sys/fs/cgroup";
const TOKEN_FILE: &str = "/var/run/secrets/elastic.ai/token";

impl Settings {
    /// Reads the settings through `var`, which gives the value of a variable.
    pub fn read(var: impl Fn(&str) -> Option<String>) -> Result<Settings, SettingsError> {
        let given = |name: &'static str| var(name).filter(|v| !v.is_empty());
        let needed = |name| given(name).ok_or(SettingsError::Missing(name));
        let number = |name, default: u64, allowed: RangeInclusive<u64>, wanted| match given(name) {
            None => Ok(default),
            Some(value) => {
                value.parse().ok().filter(|n| allowed.contains(n)).ok_or(SettingsError::Invalid { name, value, wanted })
            }
        };
        let token = Token::File(given("ETO_TOKEN_FILE").map_or_else(|| PathBuf::from(TOKEN_FILE), PathBuf::from));
        let grace = number(
            "ETO_TERMINATION_GRACE_SECONDS",
            GRACE_SECONDS,
            0..=u64::from(u32::MAX),
            "the pod's grace period, in whole seconds",
        )?;
        let grace_ms = grace.saturating_mul(1_000);
        let processes = number("ETO_PROCESSES", 1, 1..=1_024, "a number of processes, 1 to 1024")?;
        let launcher = match given("ETO_LAUNCHER").as_deref() {
            None => None,
            Some("agent") => Some(false),
            Some("command") => Some(true),
            Some(other) => {
                let (name, value) = ("ETO_LAUNCHER", other.to_owned());
                return Err(SettingsError::Invalid { name, value, wanted: "agent or command" });
            }
        };
        let keeps_lines = number("ETO_LAST_LINES", 1, 0..=1, "0 or 1")? > 0;
        let port = number("ETO_METRICS_PORT", METRICS_PORT.into(), 0..=u16::MAX.into(), "a port, or 0 for none")?;
        let stop_signal = match given("ETO_STOP_SIGNAL") {
            None => Signal::SIGTERM,
            Some(value) => signals::stop_signal(&value).ok_or(SettingsError::Invalid {
                name: "ETO_STOP_SIGNAL",
                value,
                wanted: "SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 or SIGWINCH",
            })?,
        };
        Ok(Settings {
            client: Client::new(&needed("ETO_GATEWAY")?, needed("ETO_GATEWAY_CA")?.as_bytes(), token)?,
            pod_uid: needed("ETO_POD_UID")?,
            pod_ip: given("ETO_POD_IP").unwrap_or_default(),
            processes: u32::try_from(processes).unwrap_or(1).max(1),
            launcher,
            // Of a short grace half is left for the processes.
            stop_grace_ms: grace_ms.saturating_sub(MARGIN_MS).max(grace_ms / 2),
            stop_signal,
            metrics_port: u16::try_from(port).unwrap_or(METRICS_PORT),
            keeps_lines,
            cgroup: given("ETO_CGROUP").map_or_else(|| PathBuf::from(CGROUP), PathBuf::from),
            folder: given("ETO_FOLDER").map(PathBuf::from),
        })
    }

    /// The address that metrics and stores are served on: the pod's own, else all.
    pub(crate) fn own_address(&self) -> IpAddr {
        self.pod_ip.parse().unwrap_or(IpAddr::from([0, 0, 0, 0]))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(more: &[(&str, &str)]) -> Result<Settings, String> {
        let key = rcgen::KeyPair::generate().unwrap();
        let ca = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap().pem();
        let base = [("ETO_GATEWAY", "https://gateway.test:8443"), ("ETO_GATEWAY_CA", &ca), ("ETO_POD_UID", "u")];
        let find = |name: &str| more.iter().chain(&base).find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        Settings::read(find).map_err(|e| e.to_string())
    }

    #[test]
    fn defaults() {
        let s = read(&[]).unwrap();
        assert_eq!((s.processes, s.stop_grace_ms, s.metrics_port, s.keeps_lines), (1, 28_000, 9400, true));
        assert!(!read(&[("ETO_LAST_LINES", "0")]).unwrap().keeps_lines);
        assert_eq!(s.stop_signal, Signal::SIGTERM);
        for written in ["SIGINT", "INT", "2"] {
            assert_eq!(read(&[("ETO_STOP_SIGNAL", written)]).unwrap().stop_signal, Signal::SIGINT, "{written}");
        }
        assert_eq!(read(&[("ETO_TERMINATION_GRACE_SECONDS", "3")]).unwrap().stop_grace_ms, 1_500);
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(read(&[("ETO_POD_UID", "")]).unwrap_err().contains("ETO_POD_UID is not set"));
        for wrong in ["many", "0", "1025"] {
            assert!(read(&[("ETO_PROCESSES", wrong)]).unwrap_err().contains(&format!("ETO_PROCESSES is `{wrong}`")));
        }
        assert!(read(&[("ETO_LAUNCHER", "mpi")]).unwrap_err().contains("must be agent or command"));
        assert!(read(&[("ETO_STOP_SIGNAL", "SIGKILL")]).unwrap_err().contains("ETO_STOP_SIGNAL is `SIGKILL`"));
        assert!(read(&[("ETO_METRICS_PORT", "70000")]).unwrap_err().contains("port"));
        assert!(read(&[("ETO_GATEWAY", "http://gateway")]).unwrap_err().contains("https"));
        assert!(read(&[("ETO_GATEWAY_CA", "nonsense")]).unwrap_err().contains("certificate"));
    }
}
