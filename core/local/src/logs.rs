//! Output of workers in files, for those who ask for it: `<directory>/worker-<index>.log`, appended to over rounds.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::options::{RunError, system};

/// The files.
#[derive(Debug)]
pub(crate) struct Logs {
    directory: PathBuf,
    open: HashMap<u32, Option<File>>,
}

impl Logs {
    pub(crate) fn open(directory: &Path) -> Result<Logs, RunError> {
        std::fs::create_dir_all(directory)
            .map_err(system(format!("make the directory of logs {}", directory.display())))?;
        Ok(Logs { directory: directory.to_path_buf(), open: HashMap::new() })
    }

    /// Writes a line. A file that can't be written to is said once, and does not stop the job.
    pub(crate) fn write(&mut self, index: u32, line: &str) {
        let path = self.directory.join(format!("worker-{index}.log"));
        let file = self.open.entry(index).or_insert_with(|| append_to(&path));
        if let Some(Err(error)) = file.as_mut().map(|file| writeln!(file, "{line}")) {
            tracing::warn!(path = %path.display(), %error, "this log can't be written to any more; the job goes on without");
            *file = None;
        }
    }
}

fn append_to(path: &Path) -> Option<File> {
    match File::options().create(true).append(true).open(path) {
        Ok(file) => Some(file),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "no log of this worker");
            None
        }
    }
}
