//! The drain file: how a script without HTTP tells that a checkpoint is complete. It writes the step into it.

use std::path::PathBuf;

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
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        let settled = last || text == self.seen;
        self.seen = text;
        let step = self.seen.trim().parse().ok().filter(|_| settled)?;
        (self.told.replace(step) != Some(step)).then_some(step)
    }
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
}
