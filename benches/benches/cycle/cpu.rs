//! What this process has used, as Linux tells it.

use std::fs;

/// CPU time of all threads that live, in milliseconds. A thread that has ended is not counted, so what is measured must
/// keep its threads.
pub(crate) fn milliseconds() -> f64 {
    // A running thread's own time is brought up to date when it gives way.
    std::thread::yield_now();
    let tasks = fs::read_dir("/proc/self/task").expect("Linux");
    let ns = tasks.filter_map(|task| {
        let text = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    ns.sum::<f64>() / 1e6
}

/// The most memory that was resident so far, in MiB.
pub(crate) fn peak_mib() -> f64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).expect("VmHWM");
    line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") / 1024.0
}
