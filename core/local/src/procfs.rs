//! Reading `/proc`: what a worker's process tree has used. The parsers are pure; [`Proc`] reads the files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// What one process has used, from `/proc/<pid>/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    pub pid: i32,
    pub parent: i32,
    pub group: i32,
    /// `R`, `S`, `D`, `Z`, ...
    pub state: char,
    /// CPU time of the process itself, user and system, in clock ticks.
    pub own_ticks: u64,
    /// CPU time of its children that have ended and were waited for, in clock ticks.
    pub children_ticks: u64,
    /// Resident memory, in pages.
    pub resident_pages: u64,
}

impl Stat {
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// Parses the text of `/proc/<pid>/stat`. The command name is in parentheses and may hold spaces, parentheses and
/// line breaks, so fields are counted from the *last* closing parenthesis.
pub fn parse_stat(text: &str) -> Option<Stat> {
    let (pid, _) = text.split_once(' ')?;
    let (_, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    // Field 3 of proc(5) is the first here.
    let number = |field: usize| -> Option<i64> { fields.get(field - 3)?.parse().ok() };
    let ticks = |a: usize, b: usize| -> Option<u64> {
        // The children's times are signed in proc(5).
        Some(u64::try_from(number(a)?).unwrap_or(0) + u64::try_from(number(b)?).unwrap_or(0))
    };
    Some(Stat {
        pid: pid.parse().ok()?,
        parent: i32::try_from(number(4)?).ok()?,
        group: i32::try_from(number(5)?).ok()?,
        state: fields.first()?.chars().next()?,
        own_ticks: ticks(14, 15)?,
        children_ticks: ticks(16, 17)?,
        resident_pages: u64::try_from(number(24)?).unwrap_or(0),
    })
}

/// Parses the proportional set size out of `/proc/<pid>/smaps_rollup`, in bytes.
pub fn parse_pss(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// What a process tree has used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TreeUsage {
    /// CPU time since the tree began, in seconds; never goes down while the tree's root lives.
    pub cpu_seconds: f64,
    /// Memory in use, in bytes (shared pages counted by share where the kernel tells).
    pub memory_bytes: f64,
    /// Processes counted, zombies left out.
    pub processes: usize,
}

/// The ids of all processes below `root` (`root` itself left out).
pub fn descendants(table: &[Stat], root: i32) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for stat in table {
        children.entry(stat.parent).or_default().push(stat.pid);
    }
    let mut found = Vec::new();
    let mut open = vec![root];
    while let Some(pid) = open.pop() {
        for child in children.remove(&pid).unwrap_or_default() {
            found.push(child);
            open.push(child);
        }
    }
    found
}

/// CPU ticks of everything below the supervisor `root`. Times of ended processes live on in the children's times of
/// whoever waited for them, in the end the supervisor (it is the subreaper of its tree), so the sum never goes down.
/// The supervisor's own time is not the worker's.
pub fn tree_ticks(table: &[Stat], root: i32) -> Option<u64> {
    let by_pid: HashMap<i32, &Stat> = table.iter().map(|stat| (stat.pid, stat)).collect();
    let supervisor = by_pid.get(&root)?;
    let below = descendants(table, root);
    let used = below.iter().filter_map(|pid| by_pid.get(pid)).map(|stat| stat.own_ticks + stat.children_ticks);
    Some(supervisor.children_ticks + used.sum::<u64>())
}

/// `/proc` of this machine (or a recorded copy of one).
#[derive(Clone, Debug)]
pub struct Proc {
    root: PathBuf,
    ticks_per_second: f64,
    page_bytes: f64,
}

impl Proc {
    /// The `/proc` of this machine, with its clock rate and page size.
    pub fn of_this_machine() -> Proc {
        use nix::unistd::{SysconfVar, sysconf};
        #[allow(clippy::cast_precision_loss, reason = "both are small numbers")]
        let ask = |what, usual: f64| sysconf(what).ok().flatten().map_or(usual, |v| v as f64);
        Proc {
            root: PathBuf::from("/proc"),
            ticks_per_second: ask(SysconfVar::CLK_TCK, 100.0),
            page_bytes: ask(SysconfVar::PAGE_SIZE, 4096.0),
        }
    }

    /// A copy of `/proc` under `root`.
    pub fn at(root: &Path, ticks_per_second: f64, page_bytes: f64) -> Proc {
        Proc { root: root.to_path_buf(), ticks_per_second, page_bytes }
    }

    /// Every process that can be read now. One that ends meanwhile is left out.
    pub fn table(&self) -> Vec<Stat> {
        let Ok(entries) = std::fs::read_dir(&self.root) else { return Vec::new() };
        entries
            .filter_map(Result::ok)
            .filter(|entry| entry.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit()))
            .filter_map(|entry| parse_stat(&read_lossy(&entry.path().join("stat"))?))
            .collect()
    }

    /// What the tree below the supervisor `root` has used; `None` if the supervisor is not there any more.
    #[allow(clippy::cast_precision_loss, reason = "ticks and pages stay far below 2^52")]
    pub fn tree_usage(&self, table: &[Stat], root: i32) -> Option<TreeUsage> {
        let ticks = tree_ticks(table, root)?;
        let below = descendants(table, root);
        let mut usage = TreeUsage { cpu_seconds: ticks as f64 / self.ticks_per_second, ..TreeUsage::default() };
        for stat in table.iter().filter(|stat| !stat.is_zombie() && below.contains(&stat.pid)) {
            let rollup = self.root.join(stat.pid.to_string()).join("smaps_rollup");
            let pss = read_lossy(&rollup).and_then(|text| parse_pss(&text));
            usage.memory_bytes += pss.map_or(stat.resident_pages as f64 * self.page_bytes, |bytes| bytes as f64);
            usage.processes += 1;
        }
        Some(usage)
    }
}

/// A process may have any bytes in its name.
fn read_lossy(path: &Path) -> Option<String> {
    std::fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    /// Recorded on Linux 6.1; the second has a name made to mislead.
    const PYTHON: &str = "4242 (python3) R 4200 4242 4242 0 -1 4194304 2101 310 0 0 1543 27 12 3 20 0 4 0 90210 \
        131350528 4410 18446744073709551615 1 1 0 0 0 0 0 16781312 16386 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0";
    const ODD: &str = "77 (a) R 1 (b c)\n) S 4242 4242 4242 0 -1 4194304 0 0 0 0 5 6 0 0 20 0 1 0 90300 \
        4096 10 18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0";

    #[test]
    fn a_recorded_stat_is_read() {
        let stat = parse_stat(PYTHON).unwrap();
        assert_eq!(
            stat,
            Stat {
                pid: 4242,
                parent: 4200,
                group: 4242,
                state: 'R',
                own_ticks: 1570,
                children_ticks: 15,
                resident_pages: 4410
            }
        );
    }

    #[test]
    fn a_name_with_parentheses_does_not_mislead() {
        let stat = parse_stat(ODD).unwrap();
        assert_eq!((stat.pid, stat.parent, stat.state, stat.own_ticks), (77, 4242, 'S', 11));
    }

    #[test]
    fn half_a_line_is_none_and_no_panic() {
        for end in 0..PYTHON.len() {
            let _ = parse_stat(&PYTHON[..end]);
        }
        assert_eq!(parse_stat(""), None);
        assert_eq!(parse_stat("12 (x) R 1"), None);
        assert_eq!(parse_stat("x (x) R 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1"), None);
    }

    #[test]
    fn the_proportional_size_is_read_from_a_rollup() {
        let text = "55d0c0000000-7ffd0000 ---p 00000000 00:00 0    [rollup]\nRss:               17640 kB\n\
                    Pss:                9281 kB\nPss_Anon:           5120 kB\n";
        assert_eq!(parse_pss(text), Some(9281 * 1024));
        assert_eq!(parse_pss("Rss: 1 kB\n"), None);
        assert_eq!(parse_pss("Pss: many kB\n"), None);
    }

    fn stat(pid: i32, parent: i32, own: u64, children: u64) -> Stat {
        Stat { pid, parent, group: pid, state: 'S', own_ticks: own, children_ticks: children, resident_pages: 0 }
    }

    #[test]
    fn the_sum_over_a_tree_does_not_fall_when_a_process_ends() {
        let before = [stat(1, 0, 9, 0), stat(10, 1, 500, 0), stat(11, 10, 100, 0), stat(12, 11, 30, 5)];
        // 12 ended and was waited for by 11; then 11 ended too and was waited for by the supervisor 10.
        let between = [stat(1, 0, 9, 0), stat(10, 1, 500, 0), stat(11, 10, 100, 35)];
        let after = [stat(1, 0, 9, 0), stat(10, 1, 500, 135)];
        assert_eq!(tree_ticks(&before, 10), Some(135));
        assert_eq!(tree_ticks(&between, 10), Some(135));
        assert_eq!(tree_ticks(&after, 10), Some(135));
        assert_eq!(tree_ticks(&after, 99), None);
    }

    #[test]
    fn only_the_tree_below_is_found_and_loops_end() {
        let table = [stat(10, 1, 0, 0), stat(11, 10, 0, 0), stat(12, 11, 0, 0), stat(20, 1, 0, 0), stat(5, 5, 0, 0)];
        let mut found = descendants(&table, 10);
        found.sort_unstable();
        assert_eq!(found, [11, 12]);
        assert!(descendants(&table, 5).contains(&5)); // its own parent, as recorded text could claim
    }

    #[test]
    fn this_process_can_be_read() {
        let proc = Proc::of_this_machine();
        let me = i32::try_from(std::process::id()).unwrap();
        let table = proc.table();
        let stat = table.iter().find(|stat| stat.pid == me).expect("this process");
        assert!(stat.resident_pages > 0);
        assert_eq!(tree_ticks(&table, me).unwrap(), stat.children_ticks);
    }
}
