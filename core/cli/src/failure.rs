//! Why a command did not do what was asked.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

/// Each kind has its exit status; see `eto --help`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The answer is no.
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Usage(String),
    #[error("can't read {}: {why}", path.display())]
    Read { path: PathBuf, why: io::Error },
    #[error("can't write the output: {0}")]
    Output(io::Error),
}

impl Failure {
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Refused(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Read { .. } | Failure::Output(_) => 3,
        })
    }
}
