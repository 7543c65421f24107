#!/usr/bin/env python3
"""How long training stands still: medians on two real nodes, beside torchrun's own elasticity in the same run.

  measure.py --operator BINARY --agent BINARY [--times 10] [--nodes 3] [--write FOLDER]

The job is the PyTorch example with real torch, two workers on two nodes, the images there already. A time ends with the
first step that all workers of the new round have made. The import of the framework is part of it and shown beside it: it
depends on the framework and the machine alone. Takes about 20 minutes; prints each figure, then a table in Markdown.
"""
import argparse
import json
import os
import signal
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import c10d  # noqa: E402
import rounds  # noqa: E402
from cluster import GRACE, Cluster, wait  # noqa: E402
from framework import Framework  # noqa: E402
from job import LONG  # noqa: E402

begun = time.time()


def tell(text):
    print(f"[{time.time() - begun:5.0f} s, load {os.getloadavg()[0]:.1f}] {text}", flush=True)


class Series:
    """Seconds of one kind of event."""

    def __init__(self):
        self.total, self.imports = [], []

    def add(self, t, since, end):
        """From `since` to the first step at `end`; the import is the longest of that round's processes."""
        at = next(e["round"] for e in t.lines("first", since) if e["at"] == end)
        self.total.append(end - since)
        self.imports.append(max(e["seconds"] for e in t.lines("imported", since, round=at)))

    def told(self):
        return f"{self.total[-1]:.1f} s, {self.imports[-1]:.1f} of it import"


def ready_for_more(t, world=2):
    t.settled(world)
    t.trained(10)


class Measured(Framework):
    """Fails more often than jobs do."""

    def spec(self):
        return {**super().spec(), "backoffLimit": 1_000_000}

    def suspend(self, whether):
        patch = json.dumps({"spec": {"suspend": whether}})
        self.cluster.kubectl("patch", "elasticjob", self.name, "-n", "default", "--type=merge", "-p", patch)


def forgotten(t):
    """A failure soon after another one waits before it starts again. A suspension forgets those that were, so that each
    is measured as the first."""
    t.suspend(True)
    wait("the pods are gone", lambda: not t.pods(), LONG)
    at = time.time()
    t.suspend(False)
    t.trains(2, at)
    ready_for_more(t)


def kills(t, series, times):
    """The worker's process, with SIGKILL: all start again in their pods."""
    for n in range(times):
        forgotten(t)
        at = time.time()
        os.kill(t.trainers()[1], signal.SIGKILL)
        series.add(t, at, t.trains(2, at))
        tell(f"process killed, {n + 1} of {times}: {series.told()}")


def pods_killed(t, smaller, again, times):
    """All of a worker's pod at once: the agent is its first process. The pod has failed and is replaced."""
    for n in range(times):
        forgotten(t)
        agent, at = t.agent_of(1), time.time()
        os.kill(agent, signal.SIGKILL)
        end = t.trains(2, at)
        first = min(e["at"] for e in t.lines("first", at))
        smaller.add(t, at, first)
        again.add(t, at, end)
        tell(f"pod killed, {n + 1} of {times}: first step {smaller.told()}; of two {again.told()}")


def resizes(t, grown, shrunk, times):
    for n in range(times):
        for world, series in ((3, grown), (2, shrunk)):
            at = t.scale(world)
            series.add(t, at, t.trains(world, at))
            ready_for_more(t, world)
        tell(f"grown and shrunk, {n + 1} of {times}: {grown.told()}; {shrunk.told()}")


def drains(t, acknowledged, moved, times):
    """`kubectl drain` of a node. Acknowledged is what the survivor's next start shows: the operator orders it when
    all have told that they have stopped and what they saved."""
    for n in range(times):
        rounds.one_on_each_node(t)
        ready_for_more(t)
        name = t.pod_of_rank(1)["spec"]["nodeName"]
        before = time.time()
        t.drain(name)
        end = t.trains(2, before)
        asked = min(e["at"] for e in t.lines("asked", before))
        saved = min(e["at"] for e in t.lines("saved", asked))
        started = min(e["at"] for e in t.lines("started", asked))
        acknowledged.append((saved - asked, started - asked))
        moved.add(t, before, end)
        t.cluster.kubectl("uncordon", name)
        tell(f"drained, {n + 1} of {times}: saved after {saved - asked:.1f} s, acknowledged after "
             f"{started - asked:.1f} s, moved after {moved.told()}")
        ready_for_more(t)


def nodes_lost(t, series, times):
    """From power off to both workers training on the other node; Kubernetes calls the node dead in between."""
    for n in range(times):
        number = rounds.far_node(t)
        rounds.one_on_each_node(t)
        ready_for_more(t)
        at = time.time()
        t.cluster.node("poweroff", number)
        series.add(t, at, t.trains(2, at, GRACE + LONG))
        tell(f"node lost, {n + 1} of {times}: {series.told()}")
        t.cluster.node("start", number)
        wait("the node is back", lambda: t.cluster.node_ready(number), LONG)
        wait("operator and etcd are ready", t.cluster.is_ready, LONG)
        ready_for_more(t)


def cell(values):
    if not values:
        return ""
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f}; {len(values)})"


def table(ours, acknowledged, theirs, links):
    """Median, least and most, and how many there were."""
    rows = [("from", "to the first step of", "seconds", "without import", "aim without import", "torchrun, best settings",
             "torchrun, its keep-alive"), ("---",) * 7]

    def row(what, end, series, aim, kind=None):
        bare = [t - i for t, i in zip(series.total, series.imports)]
        rows.append((what, end, cell(series.total), cell(bare), aim,
                     *(cell(theirs.get(s, {}).get(kind)) for s in ("B", "A"))))
    row("a worker's process killed (-9)", "the same two", ours["process"], "8", "kill")
    row("a worker's pod killed (-9)", "whoever is left", ours["pod"], "8", "kill")
    row("the same", "two again", ours["pod again"], "")
    row("growth asked for", "three", ours["grow"], "6", "join")
    row("shrinking asked for", "two", ours["shrink"], "6", "term")
    row("node drained", "two, on the other node", ours["drain"], "")
    row("node powered off", "two, on the other node", ours["node"], "45")
    rows[-1] = (*rows[-1][:5], f"{cell(links)} with a timeout of {c10d.PATIENCE} s for collectives", "")
    saved, told = ([a[i] for a in acknowledged] for i in (0, 1))
    rows.append(("SIGTERM by a drain", "(checkpoint acknowledged)", cell(told), "",
                 f"2 more than the checkpoint: {cell(saved)}", "", ""))
    return "".join("| " + " | ".join(r) + " |\n" for r in rows)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--operator", required=True)
    arguments.add_argument("--agent", required=True)
    arguments.add_argument("--times", type=int, default=10, help="repetitions of all but those of lost nodes")
    arguments.add_argument("--nodes", type=int, default=10, help="how often a node is lost")
    arguments.add_argument("--slow", type=int, default=2, help="repetitions of torchrun with its own keep-alive")
    arguments.add_argument("--write", help="folder for training.md and training.json")
    given = arguments.parse_args()
    cluster = Cluster(given.operator, given.agent)
    ours = {k: Series() for k in ("process", "pod", "pod again", "grow", "shrink", "drain", "node")}
    acknowledged = []
    try:
        cluster.start()
        t = Measured(cluster, "torch", "medians", epochs=1_000_000, pause=0.05, audit=False)
        links = c10d.measure_links(t, os.path.join(cluster.folder, "c10d-links"), given.nodes, tell)
        theirs = {s: c10d.measure(t, os.path.join(cluster.folder, f"c10d-{s}"), s, n, tell)
                  for s, n in (("B", given.times), ("A", given.slow)) if n}
        t.apply(2)
        t.trains(2, 0.0)
        ready_for_more(t)
        resizes(t, ours["grow"], ours["shrink"], given.times)
        drains(t, acknowledged, ours["drain"], given.times)
        kills(t, ours["process"], given.times)
        pods_killed(t, ours["pod"], ours["pod again"], given.times)
        forgotten(t)
        nodes_lost(t, ours["node"], given.nodes)
        t.never_lost_a_checkpoint()
    except BaseException:
        cluster.evidence()
        raise
    finally:
        cluster.stop()
    text = table(ours, acknowledged, theirs, links)
    print(text)
    if given.write:
        os.makedirs(given.write, exist_ok=True)
        with open(os.path.join(given.write, "training.md"), "w") as f:
            f.write(text)
        with open(os.path.join(given.write, "training.json"), "w") as f:
            json.dump({"ours": {k: vars(s) for k, s in ours.items()}, "acknowledged": acknowledged,
                       "torchrun": theirs, "torchrun, link": links, "grace": GRACE, "load": os.getloadavg()}, f, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
