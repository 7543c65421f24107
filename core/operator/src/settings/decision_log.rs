use std::path::PathBuf;

use eto_cycle::log::{KeepInputs, LogSettings};
use serde::{Deserialize, Serialize};

/// `[decision-log]`: JSON lines, rotated by size. An empty directory means none is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct DecisionLog {
    pub dir: PathBuf,
    pub inputs: KeepInputs,
    pub max_mebibytes: u32,
    pub files: u32,
}

impl Default for DecisionLog {
    fn default() -> Self {
        DecisionLog { dir: PathBuf::new(), inputs: KeepInputs::default(), max_mebibytes: 100, files: 5 }
    }
}

impl DecisionLog {
    /// What the log is opened with; `None` = there is to be none.
    pub fn log(&self) -> Option<LogSettings> {
        let log = LogSettings {
            max_bytes: u64::from(self.max_mebibytes) * 1024 * 1024,
            max_files: self.files,
            inputs: self.inputs,
            ..LogSettings::new(&self.dir)
        };
        (!self.dir.as_os_str().is_empty()).then_some(log)
    }
}
