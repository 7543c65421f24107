#!/usr/bin/env python3
"""The table of faults (docs/faults.md) as measured: how long until the operator acts, and until all train again.

  faults.py --operator BINARY --agent BINARY [--times N] [--tell] [WORD...]

Each fault meets a job of its own: a plain training (train.py) with a worker on each of two real nodes. *Acts* ends with
the operator's first order or deletion after the fault, by its log; *trains* with the first step of the next round that
all its workers have made. Where nothing is to be done it is the longest time between two lines of the training, which
writes one each half a second. Prints a table in Markdown. Takes about a quarter of an hour for each time.
"""
import argparse
import os
import signal
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import clocks  # noqa: E402
import harm  # noqa: E402
import rounds  # noqa: E402
from cluster import Cluster, wait  # noqa: E402
from harm import again, agent, deletes, exits, fails, goes_on, node, signalled  # noqa: E402
from job import LONG  # noqa: E402

# Three workers, each of which tells of its own work; seconds until one that is slow for 5 min is told of.
SLOW, SLOW_WITHIN = {"workers": 3, "env": {"TELLS_WORK": "1"}}, 300 + LONG
HANGS = {"elasticity": {"hangTimeoutSeconds": 30}}
LATE = {"elasticity": {"hangTimeoutSeconds": 30, "hangStartTimeoutSeconds": 40}}
EVICTED = {"prepare": harm.may_be_evicted}
# Name, what is done, how it ends; and what the job has besides, what comes before it, and what is made good afterwards.
ROWS = [
    ("a process ends with code 1", exits(1), again(), {}),
    ("code 1 with `ExitCode`", exits(1), fails, {"spec": {"restartPolicy": "ExitCode"}}),
    ("segmentation fault", signalled(signal.SIGSEGV, 1), again(), {}),
    ("a process is killed (-9)", signalled(signal.SIGKILL, 1), again(), {}),
    ("the master's process is killed", signalled(signal.SIGKILL, 0), again(), {}),
    ("all processes are killed", signalled(signal.SIGKILL, 0, 1), again(), {}),
    ("out of memory", harm.eats, again(), {"limits": {"memory": "96Mi"}}),
    ("out of memory, with `memoryGrowth`", harm.eats, harm.with_more, {
        "limits": {"memory": "96Mi"}, "spec": {"elasticity": {"memoryGrowth": {"percent": 50, "maxMemory": "1Gi"}}}}),
    ("more failures than `backoffLimit`", signalled(signal.SIGKILL, 1), fails, {"spec": {"backoffLimit": 0}}),
    ("hang, `hangTimeoutSeconds: 30`", signalled(signal.SIGSTOP, 1), again(), {"spec": HANGS}),
    ("hang before the first progress, `hangStartTimeoutSeconds: 40`", harm.hangs_at_its_start, harm.again_since("hangs"), {
        "spec": LATE}),
    ("straggler", harm.slows(100), harm.told_of("Straggler", SLOW_WITHIN), SLOW),
    ("a worker's pod is killed (-9)", agent(signal.SIGKILL), again(), {}),
    ("pod evicted", harm.evicts, again(), EVICTED),
    ("pod deleted by hand", deletes(1), again(), {}),
    ("the master is deleted", deletes(0), again(), {}),
    ("all workers are deleted", deletes(0, 1), again(), {}),
    ("a template whose image is not there, told", harm.with_another_image, harm.says_why("ErrImageNeverPull"), {}),
    ("growth that finds no node", harm.grows_without_room, goes_on, {
        "limits": {"cpu": "1100m"}, "spec": {"elasticity": {"pendingDeadlineSeconds": 10}}}),
    ("growth over a quota", harm.grows_over_quota, goes_on, {"undo": harm.no_quota}),
    ("node drained", harm.drains, again(), {**EVICTED, "undo": harm.open_again}),
    ("node cordoned", harm.cordons, goes_on, {"undo": harm.open_again}),
    ("end of a node announced (taint)", harm.announces, again(), {"undo": harm.open_again}),
    ("node shuts down: SIGTERM to its agents", agent(signal.SIGTERM), again(), {}),
    ("kubelet silent, agents heard", node("stop-kubelet"), goes_on, {
        "prepare": harm.worker_there, "undo": harm.kubelet_again}),
    ("agent silent, node ready", agent(signal.SIGSTOP), goes_on, {"undo": agent(signal.SIGCONT)}),
    ("worker's network gone, node ready", harm.pod_cut_off, again(), {}),
    ("worker's node cut off", node("cut"), again(), {"prepare": harm.worker_there, "undo": harm.healed}),
    ("coordinator's node cut off", node("cut"), again(), {
        "prepare": harm.coordinator_there, "undo": harm.healed}),
    ("the node of half of the workers cut off", node("cut"), again(4), {"workers": 4, "undo": harm.healed}),
    ("node cut off and deleted", harm.cut_and_deleted, again(), {
        "prepare": harm.worker_there, "undo": harm.kubelet_anew}),
    ("node powered off", node("poweroff"), again(), {"prepare": harm.worker_there, "undo": harm.powered_on}),
    ("all operators killed (-9)", harm.operators, goes_on, {"undo": harm.ready_again}),
    ("API server away for 3 min", harm.api_server_away, harm.goes_on_for(180), {"undo": harm.api_server_again}),
    ("etcd's pod and data lost", harm.etcd, goes_on, {"undo": harm.ready_again}),
    ("a replica takes over whose clock is 8 s ahead", clocks.taken_over, goes_on, {
        "prepare": clocks.another_replica, "undo": clocks.given_back}),
    ("one of three members of etcd lost", harm.members(2), goes_on, {
        "prepare": harm.three_members, "undo": harm.members_again}),
    ("the quorum of etcd lost", harm.members(1), goes_on, {
        "prepare": harm.three_members, "undo": harm.members_again}),
    # The last: what is held against nodes is forgotten with the operator.
    ("third failure on a node", exits(1), harm.avoided, {
        "prepare": harm.failed_twice, "spread": False, "undo": lambda t: (harm.operators(t), harm.ready_again(t))}),
]


def measure(cluster, name, row, tells):
    """One fault of one job: seconds by what they are."""
    _, do, end, more = row
    t = harm.Faulty(cluster, name, more, tells)
    workers = more.get("workers", 2)
    t.apply(workers)
    try:
        t.trains(workers, 0.0)
        rounds.one_on_each_node(t)
        more.get("prepare", lambda _t: None)(t)
        t.settled(workers)
        wait("a checkpoint", lambda: t.lines("saved", rank=0), LONG)
        t.before, at = t.trainers(), time.time()
        try:
            do(t)
            seconds = end(t, at)
        finally:
            more.get("undo", lambda _t: None)(t)
        t.never_lost_a_checkpoint()
        return seconds
    finally:
        t.delete()


def cell(values):
    known = [v for v in values if v is not None]
    if not known:
        return ""
    spread = f" ({min(known):.1f} to {max(known):.1f}; {len(known)})" if len(known) > 1 else ""
    return f"{statistics.median(known):.1f}{spread}"


def table(seen):
    rows = ["| fault | the operator acts | all train again | nothing happens; longest pause | the job has failed |",
            "| --- | --- | --- | --- | --- |"]
    for what, runs in seen.items():
        cells = [cell([r.get(kind) for r in runs]) for kind in ("acts", "trains", "pause", "ends")]
        rows.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--operator", required=True)
    arguments.add_argument("--agent", required=True)
    arguments.add_argument("--times", type=int, default=1)
    arguments.add_argument("--tell", action="store_true", help="also what the operator does, step by step")
    arguments.add_argument("words", nargs="*", help="only faults with one of these words in their names")
    given = arguments.parse_args()
    rows = [r for r in ROWS if not given.words or any(w in r[0] for w in given.words)]
    cluster, seen = Cluster(given.operator, given.agent), {}
    try:
        cluster.start()
        for n in range(given.times):
            for i, row in enumerate(rows):
                seconds = measure(cluster, f"fault-{n}-{i}", row, given.tell)
                seen.setdefault(row[0], []).append(seconds)
                told = ", ".join(f"{k} {v:.1f} s" for k, v in seconds.items() if v is not None)
                print(f"[load {os.getloadavg()[0]:.1f}] {row[0]}: {told}", flush=True)
    except BaseException:
        cluster.evidence()
        raise
    finally:
        cluster.stop()
        print(table(seen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
