//! `eto-agent install`: the init container's part. The agent's image has nothing but the agent, no `cp` either.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Why the agent could not be copied.
#[derive(Debug, thiserror::Error)]
#[error("could not copy itself to {}: {what}: {source}; the init container needs the shared volume there, writable", .destination.display())]
pub struct InstallError {
    destination: PathBuf,
    what: &'static str,
    source: std::io::Error,
}

/// Copies the running program to `destination`, executable for everybody (the training container may run as any user).
/// Whoever looks there sees the whole program or none.
pub fn install(destination: &Path) -> Result<(), InstallError> {
    let failed = |what| move |source| InstallError { destination: destination.to_owned(), what, source };
    let program = std::fs::read("/proc/self/exe").map_err(failed("reading the program"))?;
    let mut name = destination.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let aside = destination.with_file_name(name);
    let outcome = write(&aside, &program)
        .map_err(failed("writing"))
        .and_then(|()| std::fs::rename(&aside, destination).map_err(failed("renaming")));
    if outcome.is_err() {
        let _ = std::fs::remove_file(&aside);
    }
    outcome
}

fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o755))?;
    file.sync_all()
}
