//! Who descends from whom, read from `/proc`.

use std::collections::HashMap;

/// A process and its parent.
type Pair = (i32, i32);

/// All descendants of `root` that are there now, zombies included. What ends or starts meanwhile may be missing.
pub(crate) fn descendants_of(root: i32) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let stats = entries.flatten().filter_map(|entry| {
        entry.file_name().to_str().filter(|name| name.bytes().all(|b| b.is_ascii_digit()))?;
        parse(&String::from_utf8_lossy(&std::fs::read(entry.path().join("stat")).ok()?))
    });
    below(root, &stats.collect::<Vec<_>>())
}

/// Process id and parent of a line of `/proc/PID/stat`. The name in between may hold anything, parentheses too.
fn parse(stat: &str) -> Option<Pair> {
    let pid = stat.split_once(' ')?.0.parse().ok()?;
    let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
    Some((pid, parent))
}

fn below(root: i32, all: &[Pair]) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for (pid, parent) in all {
        children.entry(*parent).or_default().push(*pid);
    }
    let mut found = Vec::new();
    let mut look = vec![root];
    while let Some(parent) = look.pop() {
        // Taken out, so that a table read while it changed can't lead in a circle.
        for child in children.remove(&parent).unwrap_or_default() {
            found.push(child);
            look.push(child);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_hold_anything() {
        assert_eq!(parse("12 (a) b) (c) S 7 12 12 0"), Some((12, 7)));
        assert_eq!(parse("12 (cut"), None);
    }

    #[test]
    fn a_tree_and_a_circle() {
        let mut found = below(1, &[(1, 0), (2, 1), (3, 2), (4, 9), (5, 1), (1, 3)]);
        found.sort_unstable();
        assert_eq!(found, [1, 2, 3, 5]);
    }
}
