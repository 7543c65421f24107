//! What a supervisor that was killed leaves behind.
//!
//! A supervisor is the subreaper of its worker, and this process is the supervisors': where one is killed, whatever the worker
//! had started becomes a child of this process, in whichever session it is, and is ended here.

use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock, PoisonError};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use crate::procfs::{Proc, Stat, descendants};

/// Sweeps over the process table; each takes about a millisecond. What is in the kernel may outlast them.
const MAX_SWEEPS: usize = 100;

/// Children of this process that are nobody's orphans: supervisors that live, and what was there before the first of them.
static KNOWN: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());
static ADOPTS: OnceLock<()> = OnceLock::new();

fn children(table: &[Stat]) -> impl Iterator<Item = &Stat> {
    let me = Pid::this().as_raw();
    table.iter().filter(move |stat| stat.parent == me)
}

/// Starts a supervisor. Nothing is swept meanwhile.
pub(crate) fn spawn(command: &mut Command) -> std::io::Result<Child> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    ADOPTS.get_or_init(|| {
        // Where the kernel refuses, orphans are init's, as they are without this.
        let _ = nix::sys::prctl::set_child_subreaper(true);
        known.extend(children(&Proc::of_this_machine().table()).map(|stat| stat.pid));
    });
    let child = command.spawn()?;
    known.extend(child.id().and_then(|pid| i32::try_from(pid).ok()));
    Ok(child)
}

/// A supervisor has ended and was waited for.
pub(crate) fn forget(supervisor: i32) {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).remove(&supervisor);
}

/// Kills all orphans with all below them, also those that are started meanwhile.
pub(crate) fn end() {
    let proc = Proc::of_this_machine();
    for _ in 0..MAX_SWEEPS {
        let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let table = proc.table();
        let orphans: Vec<i32> = children(&table).map(|stat| stat.pid).filter(|pid| !known.contains(pid)).collect();
        if orphans.is_empty() {
            return;
        }
        for orphan in orphans {
            for pid in std::iter::once(orphan).chain(descendants(&table, orphan)) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            let _ = waitpid(Pid::from_raw(orphan), Some(WaitPidFlag::WNOHANG));
        }
    }
}
