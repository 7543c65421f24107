//! The little that must outlive the agent's process: which round it has started.
//!
//! The folder is the volume that the init container put the agent into. It lives as long as the pod, so it outlives a
//! container that the kubelet starts again.

use std::path::{Path, PathBuf};

const FILE: &str = "started";

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
        let aside = self.folder.join(format!("{FILE}.{}", std::process::id()));
        std::fs::write(&aside, generation.to_string())?;
        std::fs::rename(&aside, self.folder.join(FILE))
    }

    /// The drain file of a round. One per round, so that what an older one wrote late is not taken for news.
    pub(crate) fn drain_file(&self, generation: u64) -> PathBuf {
        self.folder.join(format!("drain.{generation}"))
    }
}
