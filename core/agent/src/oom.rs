//! Whether the kernel ended processes of this container for their use of memory.
//!
//! With cgroup v2 the kubelet has the kernel end the whole container, agent and all, and knows of it. With cgroup v1, and with
//! its setting `singleProcessOOMKill`, the process alone is taken: only the container's own counter tells.

use std::path::{Path, PathBuf};

/// The counter of one container.
#[derive(Debug)]
pub(crate) struct OomKills {
    file: Option<PathBuf>,
    /// How many there were when the processes that run were started, or as of the look before the last one.
    before: u64,
    /// As of the last look.
    last: u64,
}

impl OomKills {
    /// `cgroup`: where the container finds its own cgroup, `/sys/fs/cgroup` most often. Where there is no counter nothing is
    /// ever told.
    pub(crate) fn of(cgroup: &Path) -> OomKills {
        let files = ["memory.events", "memory/memory.oom_control"].map(|name| cgroup.join(name));
        OomKills { file: files.into_iter().find(|file| read(file).is_some()), before: 0, last: 0 }
    }

    /// What happened before does not count any more.
    pub(crate) fn begin(&mut self) {
        self.last = self.count();
        self.before = self.last;
    }

    /// To be called now and then: what happened before the look that preceded this one has been survived, and does not count
    /// any more. A helper that was taken long ago is not why a process fails now.
    pub(crate) fn look(&mut self) {
        self.before = self.last;
        self.last = self.count();
    }

    /// Whether there was one since.
    pub(crate) fn is_any(&self) -> bool {
        self.count() > self.before
    }

    fn count(&self) -> u64 {
        self.file.as_deref().and_then(read).unwrap_or(0)
    }
}

/// Lines of a name and a number each.
fn read(file: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn both_kinds_of_cgroup_are_read_and_only_what_is_new_counts() {
        for (name, text) in [
            ("memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill N\noom_group_kill 0\n"),
            ("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill N\n"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            let set = |n: &str| std::fs::write(&file, text.replace('N', n)).unwrap();
            set("2");
            let mut kills = OomKills::of(folder.path());
            kills.begin();
            assert!(!kills.is_any(), "{name}");
            set("3");
            assert!(kills.is_any(), "{name}");
            kills.begin();
            assert!(!kills.is_any(), "{name}");
            set("4");
            kills.look();
            assert!(kills.is_any(), "{name}: just now");
            kills.look();
            assert!(!kills.is_any(), "{name}: it was survived");
        }
    }

    #[test]
    fn without_a_counter_nothing_is_told() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("memory.events"), "oom_kill many\n").unwrap();
        let mut kills = OomKills::of(folder.path());
        kills.begin();
        assert!(!kills.is_any());
    }
}
