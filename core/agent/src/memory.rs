//! The agent's folder: the files that scripts are given, and the little that must outlive the agent's process, which
//! is the round that it started last.
//!
//! The folder is the volume that the init container put the agent into. It lives as long as the pod, so it outlives a
//! container that the kubelet starts again.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use eto_membership::{Round, discovered_hosts, hostfile};

const FILE: &str = "started";
/// The address of the API on localhost, for other programs of the pod.
const API: &str = "api";

/// The agent's folder.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    folder: PathBuf,
}

impl Memory {
    /// The first of the wished folder, that of the program and the temporary one that can be written to.
    pub(crate) fn open(wished: Option<&Path>) -> std::io::Result<Memory> {
        let program = std::env::current_exe().ok().and_then(|p| p.parent().map(Path::to_owned));
        let candidates = wished.map(Path::to_owned).into_iter().chain(program).chain([std::env::temp_dir()]);
        let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
        for folder in candidates {
            let probe = folder.join(format!(".probe.{}", std::process::id()));
            match std::fs::write(&probe, b"") {
                Ok(()) => {
                    let _ = std::fs::remove_file(&probe);
                    return Ok(Memory { folder });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The round that an agent in this pod started last.
    pub(crate) fn started(&self) -> Option<u64> {
        std::fs::read_to_string(self.folder.join(FILE)).ok()?.trim().parse().ok()
    }

    /// Notes that this round is being started.
    pub(crate) fn set_started(&self, generation: u64) -> std::io::Result<()> {
        self.write(FILE, &generation.to_string(), 0o644).map(|_| ())
    }

    /// Notes where the agent's API is.
    pub(crate) fn set_api(&self, url: &str) -> std::io::Result<()> {
        self.write(API, url, 0o644).map(|_| ())
    }

    /// Where the API of the agent in this pod is.
    pub(crate) fn api(&self) -> std::io::Result<String> {
        std::fs::read_to_string(self.folder.join(API))
    }

    /// Writes the members of a round as a hostfile, and gives its path.
    pub(crate) fn set_hostfile(&self, round: &Round) -> std::io::Result<PathBuf> {
        self.write("hostfile", &hostfile(round), 0o644)
    }

    /// Writes a script that prints the members of a round, and gives its path.
    pub(crate) fn set_discovery(&self, round: &Round) -> std::io::Result<PathBuf> {
        let script = format!("#!/bin/sh\ncat <<'END'\n{}END\n", discovered_hosts(round));
        self.write("discover-hosts.sh", &script, 0o755)
    }

    /// Whoever reads the file finds the old text or the new one.
    fn write(&self, name: &str, text: &str, mode: u32) -> std::io::Result<PathBuf> {
        let aside = self.folder.join(format!("{name}.{}", std::process::id()));
        std::fs::write(&aside, text)?;
        std::fs::set_permissions(&aside, Permissions::from_mode(mode))?;
        let path = self.folder.join(name);
        std::fs::rename(&aside, &path)?;
        Ok(path)
    }

    /// The drain file of a round. One per round, so that what an older one wrote late is not taken for news.
    pub(crate) fn drain_file(&self, generation: u64) -> PathBuf {
        self.folder.join(format!("drain.{generation}"))
    }
}
