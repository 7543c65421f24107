"""The operator is killed (-9) at each step of a resize, one after the other."""
import json

from cluster import SYSTEM, Failed, wait
from gate import Gate
from job import LONG

# Each step that status.change can show, of a growth from 2 to 3 and of a shrinking from 3 to 2.
STEPS = {
    3: ["CreatingPods", "WaitingForJoins", "WaitingForCheckpoint", "Stopping", "Starting"],
    2: ["WaitingForCheckpoint", "Stopping", "Starting", "RemovingPods"],
}
# How often a resize is made until the step that is wanted is in the status.
TRIES = 5


def killed_at_each_step_of_a_resize(t):
    """Whoever goes on with it ends with the right pods, in one round, and each process was started once for it."""
    gate = Gate(t.cluster, t.name)
    try:
        for n, grown in enumerate(STEPS[3]):
            killed_at(t, gate, 3, grown)
            if n < len(STEPS[2]):
                killed_at(t, gate, 2, STEPS[2][n])
    finally:
        gate.close()
    t.trains(2, t.scale(2))
    t.settled(2)


def held_at(t, gate, to, step, where):
    """Begins the resize and holds the operator where its status has just got the step: who leads, and when it began.
    No checkpoint comes just then. Another step can be over before its status is written: the resize is made again."""
    for _ in range(TRIES):
        leader = wait("somebody leads", t.cluster.leader, LONG)
        back = len(t.pods())
        hit = gate.arm(step)
        with t.no_checkpoints():
            at = t.scale(to)
            try:
                wait(f"{where}: the step or the end", lambda: hit.is_set() or t.is_settled(to), LONG)
                if hit.is_set():
                    return leader, at
            except Failed:
                gate.open()
                raise
        gate.open()
        t.trains(back, t.scale(back))
        t.settled(back)
    raise Failed(f"{where}: the step was not seen in {TRIES} resizes; the job's change is {json.dumps(t.change())}")


def killed_at(t, gate, to, step):
    where = f"to {to}, killed at {step}"
    before, failures = set(t.pods()), t.status().get("failures", 0)
    leader, at = held_at(t, gate, to, step, where)
    try:
        t.cluster.kill(leader)
    finally:
        gate.open()
    # In a new pod it starts at once: the kubelet would wait longer each time.
    t.cluster.kubectl("delete", "pod", "-n", SYSTEM, leader, "--force", "--grace-period=0", "--wait=false")
    t.trains(to, at)
    t.settled(to)
    started = t.lines("started", at)
    if len(started) != to or len({e["round"] for e in started}) != 1:
        raise Failed(f"{where}: {len(started)} processes were started for it: {started}")
    kept = before & set(t.pods())
    if len(kept) != min(to, len(before)):
        raise Failed(f"{where}: of the pods {before} these are left: {kept}")
    charged = t.status().get("failures", 0) - failures
    if charged:
        raise Failed(f"{where}: {charged} failures were charged for nobody's fault")
    wait("two replicas are ready again", t.cluster.is_ready, LONG)
    print(f"        {where}: right, {len(started)} processes started", flush=True)
