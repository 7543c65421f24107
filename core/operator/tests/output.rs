//! The operator's process where its output can't be written.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::disallowed_types)]

use std::fs::File;
use std::process::{Command, Stdio};

fn operator() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_elastic-training-operator"));
    command.env_clear().stdin(Stdio::null());
    command
}

/// A file to which nothing can be written.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// A pipe that nobody reads.
fn unread() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

#[test]
fn a_log_that_can_not_be_written_is_no_panic() {
    let empty = tempfile::tempdir().unwrap();
    for stderr in [full, unread] {
        // It logs that no cluster is configured, in both forms, and ends with the status of that error.
        for form in ["json", "text"] {
            let mut command = operator();
            command.env("HOME", empty.path()).env("ETO_LOG_FORMAT", form).stderr(stderr());
            assert_eq!(command.output().unwrap().status.code(), Some(1), "{form}");
        }
        let mut refused = operator();
        refused.args(["--config", "/no/such/file"]).stderr(stderr());
        assert_eq!(refused.output().unwrap().status.code(), Some(2));
        let mut shown = operator();
        shown.arg("--print-settings").stdout(stderr()).stderr(stderr());
        assert_eq!(shown.status().unwrap().code(), Some(1));
    }
}
