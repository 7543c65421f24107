//! Numbers that the documentation gives to users: who changes one changes it there too.

use crate::*;

#[test]
fn numbers_are_as_the_documentation_has_them() {
    // docs/lifecycle.md, docs/faults.md: when an agent is suspected, and what processes get when a peer is lost.
    assert_eq!((SUSPECT_AFTER_MS, LOSS_GRACE_MS), (15_000, 5_000));
    // Suspicion comes with the third heartbeat that is missed.
    assert_eq!(HEARTBEAT_MS * 3, SUSPECT_AFTER_MS);
    // docs/agent.md: SIGKILL every second until nothing is left.
    assert_eq!(agent::KILL_AGAIN_MS, 1_000);
    // docs/faults.md: reports of progress reach the operator every 10 s.
    assert_eq!(PROGRESS_EVERY_MS, 10_000);
    // docs/lifecycle.md: at most 2 KiB in 40 lines.
    assert_eq!((LAST_LINES, LAST_LINES_BYTES), (40, 2_048));
    // docs/sizing.md, docs/user-guide.md.
    assert_eq!((MAX_MEMBERS, MAX_TENSORFLOW_MEMBERS, MAX_HOSTS_BYTES), (4_096, 512, 32 * 1024));
    // The range of `elasticity.globalBatchSize` in the API.
    assert_eq!(MAX_GLOBAL_BATCH, 16_777_216);
}
