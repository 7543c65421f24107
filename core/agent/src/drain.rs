//! The drain file: how a script without HTTP tells that a checkpoint is complete. It writes the step into it.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc::O_NONBLOCK;

/// Longest number with spaces around it, in bytes. What else a script puts there must take neither memory nor time.
const MOST: u64 = 64;

/// The drain file of the round that runs.
#[derive(Debug)]
pub(crate) struct DrainFile {
    path: PathBuf,
    /// As it was at the last look.
    seen: String,
    told: Option<u64>,
}

impl DrainFile {
    /// The file at `path`, emptied of what an earlier agent's round left there.
    pub(crate) fn fresh(path: PathBuf) -> DrainFile {
        let _ = std::fs::remove_file(&path);
        DrainFile { path, seen: String::new(), told: None }
    }

    /// The step in it, if it is news. While the script runs (`last` is false), only what was the same at two looks: a
    /// number may be half written. At the `last` look, after its end, whatever is there.
    pub(crate) fn look(&mut self, last: bool) -> Option<u64> {
        let text = read(&self.path).unwrap_or_default();
        let settled = last || text == self.seen;
        self.seen = text;
        let step = self.seen.trim().parse().ok().filter(|_| settled)?;
        (self.told.replace(step) != Some(step)).then_some(step)
    }
}

/// The text of a regular file, if it is short. Others (a pipe, a device) are not waited for.
fn read(path: &Path) -> Option<String> {
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path).ok()?;
    let meta = file.metadata().ok().filter(|m| m.is_file() && m.len() <= MOST)?;
    let mut text = String::new();
    file.take(meta.len()).read_to_string(&mut text).ok()?;
    Some(text)
}

impl Drop for DrainFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_number_counts_once_and_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("drain.1");
        std::fs::write(&path, "99").unwrap();
        let mut file = DrainFile::fresh(path.clone());
        assert_eq!((file.look(false), file.look(true)), (None, None), "an older one does not count");
        std::fs::write(&path, "12").unwrap();
        assert_eq!(file.look(false), None);
        std::fs::write(&path, "120\n").unwrap();
        assert_eq!((file.look(false), file.look(false), file.look(false)), (None, Some(120), None));
        std::fs::write(&path, "130").unwrap();
        assert_eq!((file.look(true), file.look(true)), (Some(130), None));
        std::fs::write(&path, "soon").unwrap();
        assert_eq!(file.look(true), None);
    }

    #[test]
    fn what_is_no_short_regular_file_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("drain.1");
        let mut file = DrainFile::fresh(path.clone());
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert_eq!(file.look(true), None);
        for odd in ["/dev/zero", "/"] {
            std::fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink(odd, &path).unwrap();
            assert_eq!(file.look(true), None, "{odd}");
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert_eq!((file.look(true), file.seen.capacity()), (None, 0));
        std::fs::write(&path, "7").unwrap();
        assert_eq!(file.look(true), Some(7));
    }
}
