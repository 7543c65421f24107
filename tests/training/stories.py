"""Real frameworks in pods: whatever happens to the workers, the training's result shows nothing of it.

torch and JAX run at the same time, each with a job of its own. Each story ends with the same questions: is the loss of every step
that of an undisturbed run, was each sample taken once an epoch, was no step lost that a checkpoint held?
"""
import os
import signal
import threading
import time

import rounds
from cluster import GRACE, Failed, wait
from framework import EVERY, Framework
from job import LONG

# Stories run side by side, and what is done to a node is seen by all: one at a time.
of_nodes = threading.Lock()


def planned(t, to):
    """A resize of a script that listens loses nothing."""
    at, lost = t.resumes(to, t.scale(to))
    if lost:
        raise Failed(f"{lost} steps were lost in a planned resize: a stop in order ends with a checkpoint")
    t.settled(to)
    t.trained()


def process_killed(t, rank):
    """The others' collective fails, and all start again in their pods."""
    before = set(t.pods())
    at = time.time()
    os.kill(t.trainers()[rank], signal.SIGKILL)
    _, lost = t.resumes(len(before), at)
    if lost > EVERY:
        raise Failed(f"{lost} steps were lost, and every {EVERY}th is in a checkpoint")
    t.settled(len(before))
    if set(t.pods()) != before:
        raise Failed("pods were replaced for a process that failed")
    t.trained()


def pod_deleted(t):
    """Its processes have time for an orderly stop."""
    world = len(t.pods())
    gone = t.pod_of_rank(0)["metadata"]
    at = time.time()
    t.cluster.kubectl("delete", "pod", "-n", "default", gone["name"], "--wait=false")
    t.resumes(world, at)
    t.settled(world)
    if gone["uid"] in t.pods():
        raise Failed(f"{gone['name']} is still there")
    t.trained()


def deaf_to_sigterm(t):
    """JAX catches SIGTERM itself and goes on where the script has no handler: the deadline's SIGKILL ends it, and the
    newest checkpoint counts."""
    t.make("deaf")
    at = time.time()
    os.kill(t.trainers()[1], signal.SIGKILL)  # those who start now are deaf
    t.resumes(2, at)
    t.settled(2)
    t.trained()
    deaf = set(t.trainers().values())
    asked = t.scale(3)
    _, lost = t.resumes(3, asked)
    if t.lines("asked", asked):
        raise Failed("a handler was called, and there was to be none")
    if lost > EVERY or deaf & set(t.trainers().values()):
        raise Failed(f"{lost} steps were lost; {deaf} are still there, or not: {t.trainers()}")
    t.settled(3)
    os.remove(os.path.join(t.folder, "deaf"))
    t.resumes(2, t.scale(2))  # those who start now listen
    t.settled(2)
    t.trained()


def drained(t):
    """`kubectl drain` of a node, while the script listens: its worker stops in order and is replaced on the other."""
    with of_nodes:
        drain_of_one(t)


def drain_of_one(t):
    number = rounds.far_node(t)
    name = f"node-{number}"
    rounds.one_on_each_node(t)
    before = set(t.pods())
    at = time.time()
    try:
        t.drain(name)
        _, lost = t.resumes(2, at)
        if lost:
            raise Failed(f"{lost} steps were lost in a drain: it gives time for a checkpoint")
        t.settled(2)
        if len(before & set(t.pods())) != 1 or rounds.nodes_of(t) == {"node-1", "node-2"}:
            raise Failed(f"the worker of {name} did not move: {before}, {set(t.pods())} on {rounds.nodes_of(t)}")
        t.trained()
    finally:
        t.cluster.kubectl("uncordon", name)


class NodeLost:
    """A node is unplugged under all stories at once when each has a worker on it, and plugged in again when all train."""

    def __init__(self, cluster, stories):
        self.cluster, self.at, self.number = cluster, None, None
        self.all = threading.Barrier(stories)

    def __call__(self, t):
        with of_nodes:
            rounds.one_on_each_node(t)
        if self.all.wait(2 * LONG) == 0:
            self.number = rounds.far_node(t)
            self.at = time.time()
            self.cluster.node("cut", self.number)
        self.all.wait(LONG)
        _, lost = t.resumes(2, self.at, GRACE + LONG)
        if lost > EVERY:
            raise Failed(f"{lost} steps were lost with a node, and every {EVERY}th is in a checkpoint")
        if self.all.wait(GRACE + LONG) == 0:
            self.heal()
        self.all.wait(LONG)
        t.settled(2)
        t.trained()

    def heal(self):
        self.cluster.node("heal", self.number)
        wait("the node is ready again", lambda: self.cluster.node_ready(self.number), LONG)
        wait("operator and etcd are ready", self.cluster.is_ready, LONG)


def no_more_failures_than(t, most):
    """Disruptions and resizes are free, and what one failure does to its peers is not a second one."""
    failures = t.status().get("failures", 0)
    if failures > most:
        raise Failed(f"{failures} failures were charged, and {most} processes failed by themselves")


def survives(t, kills, faults, failures):
    """A growth and a shrink, the process of one rank killed, and then these faults. Of all, so many count as failures."""
    reference = t.undisturbed()
    t.apply(2)
    t.trains(2, 0.0)
    t.settled(2)
    t.trained()
    planned(t, 3)
    planned(t, 2)
    process_killed(t, kills)
    for fault in faults:
        fault(t)
    no_more_failures_than(t, failures)
    t.ends()
    return t.shows_nothing_of_it(reference)


# By the name of the framework: the rank that is killed, the faults after it, and the failures of all.
STORIES = {
    "torch": (0, [pod_deleted, drained], 1),
    "jax": (0, [drained, deaf_to_sigterm], 2),
    "tensorflow": (1, [pod_deleted], 1),
}


def real_frameworks(beside):
    return together(beside, ["torch", "jax"])


def tensorflow_too(beside):
    """1.5 GB more to install, so it runs where TENSORFLOW=1 asks for it."""
    return together(beside, ["tensorflow"])


def together(beside, kinds):
    """These stories at the same time, each with a job of its own, beside the plain training; last, a node of all is lost."""
    jobs = {kind: Framework(beside.cluster, kind, epochs=45) for kind in kinds}
    node_lost, ends = NodeLost(beside.cluster, len(kinds)), {}

    def tell(kind):
        at = time.time()
        kills, faults, failures = STORIES[kind]
        try:
            ends[kind] = (*survives(jobs[kind], kills, [*faults, node_lost], failures), time.time() - at)
        except Exception as failure:  # noqa: BLE001
            node_lost.all.abort()
            ends[kind] = failure
    threads = [threading.Thread(target=tell, args=(kind,)) for kind in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = {}
    for kind, end in ends.items():
        if isinstance(end, Exception):
            tail = "\n".join(str(line) for line in jobs[kind].lines()[-30:])
            raise Failed(f"{kind}: {end}\n{tail}") from end
        off, worst, took = end
        told[f"{kind}, losses off by {off:.1e} and {worst} steps done again at most"] = took
        jobs[kind].delete()
    beside.settled(2)
    return told
