#!/usr/bin/env python3
"""The table of faults (docs/faults.md) as measured: how long until the operator acts, and until all train again.

  faults.py --operator BINARY --agent BINARY [--times N] [--tell] [WORD...]

Each fault meets a job of its own: a plain training (train.py) with a worker on each of two real nodes. *Acts* ends with
the operator's first order or deletion after the fault, by its log; *trains* with the first step of the next round that
all its workers have made. Where nothing is to be done it is the longest time between two lines of the training, which
writes one each half a second. Prints a table in Markdown. Takes about a quarter of an hour for each time.
"""
import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from datetime import datetime

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import rounds  # noqa: E402
from cluster import GRACE, SYSTEM, Cluster, Failed, ready, wait  # noqa: E402
from job import LONG, Plain  # noqa: E402

ACTS = ("agents were told", "deleting")
# How long it is watched that nothing happens, in seconds.
WATCHED = 40


class Faulty(Plain):
    def __init__(self, cluster, name, more, tells):
        super().__init__(cluster, name)
        self.more, self.limits, self.tells = more.get("spec", {}), more.get("limits", {}), tells

    def spec(self):
        return self.more

    def manifest(self, replicas):
        thing = super().manifest(replicas)
        [container] = thing["spec"]["template"]["spec"]["containers"]
        container["resources"] = {"limits": self.limits, "requests": self.limits}
        return thing

    def ask(self, rank, what):
        """Has the process of that rank fail by itself."""
        host = self.pod_of_rank(rank)["spec"]["hostname"]
        with open(os.path.join(self.folder, f"{host}.fault"), "w") as f:
            f.write(what)

    def acted(self, since):
        """Seconds until the operator did something for this job; of a replica that can't be asked nothing is known."""
        acts = []
        for pod in self.cluster.get("pods", *rounds.OPERATOR):
            with contextlib.suppress(Failed):
                text = self.cluster.kubectl("logs", "-n", SYSTEM, pod["metadata"]["name"], "--since=10m")
                acts += [act for line in text.splitlines() for act in [self.act(line)] if act and act[0] > since]
        acts.sort()
        for at, what in acts if self.tells else []:
            print(f"        {at - since:6.1f} s  {what}", flush=True)
        return acts[0][0] - since if acts else None

    def act(self, line):
        """A line of the log that tells of something done for this job: when, and what."""
        with contextlib.suppress(ValueError, KeyError):
            entry = json.loads(line)
            if entry.get("job") == f"default/{self.name}" and entry["message"] in ACTS:
                more = " ".join(str(entry.get(k, "")) for k in ("generation", "order", "pod", "why"))
                return datetime.fromisoformat(entry["timestamp"]).timestamp(), f"{entry['message']}: {more.strip()}"
        return None

    def longest_pause(self, since, until):
        marks = sorted(e["at"] for e in self.lines("step", since - 2, rank=0) if e["at"] <= until)
        return max(b - a for a, b in zip(marks, marks[1:]))


# --- how it ends -----------------------------------------------------------------------------------------------------

def again(world=2):
    """All train again, as many as before."""
    def end(t, at):
        end = t.trains(world, at, GRACE + LONG)
        return {"acts": t.acted(at), "trains": end - at}
    return end


def with_more(t, at):
    """All train again, and who ran out of memory has more."""
    seconds = again()(t, at)
    grown = wait("the memory has grown", lambda: t.status().get("grownMemory"), LONG)
    t.settled(2)
    limits = {p["spec"]["containers"][0]["resources"]["limits"]["memory"] for p in t.pods().values()}
    if len(limits) != 2:
        raise Failed(f"grown to {grown}, and the pods have {limits}")
    return seconds


def goes_on_for(seconds):
    """The same processes go on."""
    def end(t, at):
        wait("it goes on", lambda: t.lines("step", at + seconds), seconds + LONG)
        rounds.same_processes(t, t.before)
        return {"pause": t.longest_pause(at, at + seconds)}
    return end


goes_on = goes_on_for(WATCHED)


def fails(t, at):
    def failed():
        status = t.status()
        return status.get("phase") == "Failed" and time.time()
    return {"ends": wait("the job has failed", failed, LONG) - at}


# --- faults ----------------------------------------------------------------------------------------------------------

def exits(code):
    return lambda t: t.ask(1, f"exit {code}")


def signalled(which, *ranks):
    return lambda t: [os.kill(pid, which) for rank, pid in t.trainers().items() if rank in ranks]


def eats(t):
    t.ask(1, "eat 512")


def agent(which):
    return lambda t: os.kill(t.agent_of(1), which)


def deletes(*ranks):
    def do(t):
        names = [t.pod_of_rank(r)["metadata"]["name"] for r in ranks]
        t.cluster.kubectl("delete", "pod", "-n", "default", *names, "--wait=false")
    return do


def evicts(t):
    name = t.pod_of_rank(1)["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
    t.cluster.kubectl("create", "--raw", f"/api/v1/namespaces/default/pods/{name}/eviction", "-f", "-",
                      text=json.dumps(body))


def grows_without_room(t):
    t.scale(3)


def grows_over_quota(t):
    t.cluster.apply({"apiVersion": "v1", "kind": "ResourceQuota",
                     "metadata": {"name": "two", "namespace": "default"}, "spec": {"hard": {"pods": "2"}}})
    t.scale(3)


def no_quota(t):
    t.cluster.kubectl("delete", "resourcequota", "two", "-n", "default", "--ignore-not-found")


def may_be_evicted(t):
    def allowed():
        found = [b for b in t.cluster.get("pdb", "-n", "default") if b["metadata"]["name"] == t.name]
        return found and found[0].get("status", {}).get("disruptionsAllowed")
    wait("the budget is known", allowed, LONG)


def node_of(t, rank=1):
    return t.pod_of_rank(rank)["spec"]["nodeName"]


def drains(t):
    t.drain(node_of(t))


def cordons(t):
    t.cluster.kubectl("cordon", node_of(t))


def announces(t):
    t.cluster.kubectl("taint", "node", node_of(t), "karpenter.sh/disrupted:NoSchedule")


def open_again(t):
    for n in t.cluster.get("nodes"):
        name, taints = n["metadata"]["name"], n["spec"].get("taints", [])
        t.cluster.kubectl("uncordon", name)
        if any(taint["key"] == "karpenter.sh/disrupted" for taint in taints):
            t.cluster.kubectl("taint", "node", name, "karpenter.sh/disrupted:NoSchedule-")


def worker_there(t):
    """The coordinator is where etcd is, and a worker on the other node."""
    rounds.coordinator_on(t, 3 - rounds.far_node(t))


def coordinator_there(t):
    rounds.coordinator_on(t, rounds.far_node(t))


def node(command):
    """Something that is done to the node where etcd is not."""
    def do(t):
        t.number = rounds.far_node(t)
        t.cluster.node(command, t.number)
    return do


def cut_and_deleted(t):
    t.number = rounds.far_node(t)
    t.cluster.node("cut", t.number)
    t.cluster.kubectl("delete", "node", f"node-{t.number}")


def healed(t):
    t.cluster.node("heal", t.number)
    back(t)


def powered_on(t):
    t.cluster.node("start", t.number)
    back(t)


def kubelet_again(t):
    t.cluster.node("start-kubelet", t.number)
    back(t)


def kubelet_anew(t):
    """A node that was deleted registers when its kubelet starts."""
    t.cluster.node("heal", t.number)
    t.cluster.node("stop-kubelet", t.number)
    kubelet_again(t)


def back(t):
    def takes_pods():
        return any(ready(n) and not n["spec"].get("taints") for n in t.cluster.get("nodes")
                   if n["metadata"]["name"] == f"node-{t.number}")
    wait("the node is back", takes_pods, LONG)
    wait("operator and etcd are ready", t.cluster.is_ready, LONG)


def pod_cut_off(t):
    """Its network is gone, and its kubelet's is not: nobody's connection to it is closed."""
    subprocess.run(["nsenter", "-t", str(t.agent_of(1)), "-n", "ip", "link", "set", "eth0", "down"], check=True)


def operators(t):
    for pod in t.cluster.get("pods", *rounds.OPERATOR):
        t.cluster.kill(pod["metadata"]["name"])


def etcd(t):
    [pod] = t.cluster.get("pods", *rounds.ETCD)
    t.cluster.kubectl("delete", "pod", "-n", SYSTEM, pod["metadata"]["name"], "--wait=false")


def api_server_away(t):
    t.cluster.api_server(signal.SIGSTOP)


def ready_again(t):
    wait("operator and etcd are ready", t.cluster.is_ready, LONG)


def api_server_again(t):
    t.cluster.api_server(signal.SIGCONT)
    ready_again(t)


HANGS = {"elasticity": {"hangTimeoutSeconds": 30}}
EVICTED = {"prepare": may_be_evicted}
# Name, what is done, how it ends; and what the job has besides, what comes before it, and what is made good afterwards.
ROWS = [
    ("a process ends with code 1", exits(1), again(), {}),
    ("code 1 with `ExitCode`", exits(1), fails, {"spec": {"restartPolicy": "ExitCode"}}),
    ("segmentation fault", signalled(signal.SIGSEGV, 1), again(), {}),
    ("a process is killed (-9)", signalled(signal.SIGKILL, 1), again(), {}),
    ("the master's process is killed", signalled(signal.SIGKILL, 0), again(), {}),
    ("all processes are killed", signalled(signal.SIGKILL, 0, 1), again(), {}),
    ("out of memory", eats, again(), {"limits": {"memory": "96Mi"}}),
    ("out of memory, with `memoryGrowth`", eats, with_more, {
        "limits": {"memory": "96Mi"}, "spec": {"elasticity": {"memoryGrowth": {"percent": 50, "maxMemory": "1Gi"}}}}),
    ("more failures than `backoffLimit`", signalled(signal.SIGKILL, 1), fails, {"spec": {"backoffLimit": 0}}),
    ("hang, `hangTimeoutSeconds: 30`", signalled(signal.SIGSTOP, 1), again(), {"spec": HANGS}),
    ("a worker's pod is killed (-9)", agent(signal.SIGKILL), again(), {}),
    ("pod evicted", evicts, again(), EVICTED),
    ("pod deleted by hand", deletes(1), again(), {}),
    ("the master is deleted", deletes(0), again(), {}),
    ("all workers are deleted", deletes(0, 1), again(), {}),
    ("growth that finds no node", grows_without_room, goes_on, {
        "limits": {"cpu": "1100m"}, "spec": {"elasticity": {"pendingDeadlineSeconds": 10}}}),
    ("growth over a quota", grows_over_quota, goes_on, {"undo": no_quota}),
    ("node drained", drains, again(), {**EVICTED, "undo": open_again}),
    ("node cordoned", cordons, goes_on, {"undo": open_again}),
    ("end of a node announced (taint)", announces, again(), {"undo": open_again}),
    ("node shuts down: SIGTERM to its agents", agent(signal.SIGTERM), again(), {}),
    ("kubelet silent, agents heard", node("stop-kubelet"), goes_on, {"prepare": worker_there, "undo": kubelet_again}),
    ("agent silent, node ready", agent(signal.SIGSTOP), goes_on, {"undo": agent(signal.SIGCONT)}),
    ("worker's network gone, node ready", pod_cut_off, again(), {}),
    ("worker's node cut off", node("cut"), again(), {"prepare": worker_there, "undo": healed}),
    ("coordinator's node cut off", node("cut"), again(), {"prepare": coordinator_there, "undo": healed}),
    ("node cut off and deleted", cut_and_deleted, again(), {"prepare": worker_there, "undo": kubelet_anew}),
    ("node powered off", node("poweroff"), again(), {"prepare": worker_there, "undo": powered_on}),
    ("all operators killed (-9)", operators, goes_on, {"undo": ready_again}),
    ("API server away for 3 min", api_server_away, goes_on_for(180), {"undo": api_server_again}),
    ("etcd's pod and data lost", etcd, goes_on, {"undo": ready_again}),
]


def measure(cluster, name, row, tells):
    """One fault of one job: seconds by what they are."""
    _, do, end, more = row
    t = Faulty(cluster, name, more, tells)
    t.apply(2)
    try:
        t.trains(2, 0.0)
        rounds.one_on_each_node(t)
        more.get("prepare", lambda _t: None)(t)
        t.settled(2)
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
