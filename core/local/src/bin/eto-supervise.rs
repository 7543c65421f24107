//! `eto supervise` as a program of its own: for tests, and for those who embed the library without the `eto` binary.

use std::ffi::OsString;
use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let command: Vec<OsString> = std::env::args_os().skip(1).collect();
    eto_local::supervise::supervise(&command, eto_local::supervise::ORPHAN_GRACE).await
}
