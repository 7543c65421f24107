#!/usr/bin/env python3
"""Trainings on two real nodes: rounds with an agent, from end to end. `make e2e-training` runs all of it.

  main.py --operator BINARY --agent BINARY [--keep] [CASE...]

One training goes through all cases, in their order; each leaves it running. What is measured is printed, in seconds.
"""
import argparse
import json
import os
import shutil
import signal
import sys
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import GRACE, SYSTEM, Cluster, Failed, environment, processes, ready, wait  # noqa: E402

JOB = "train"
# What the trainer's settings mean: a checkpoint at least every second.
PAUSE, EVERY = 0.05, 20


class Training:
    """The one job of the run, and what its processes wrote."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.folder = os.path.join(cluster.folder, "job")
        os.makedirs(self.folder)
        os.chmod(self.folder, 0o777)
        shutil.copy(os.path.join(os.path.dirname(os.path.abspath(__file__)), "train.py"), cluster.folder)

    def manifest(self, replicas):
        host = lambda name, path: {"name": name, "hostPath": {"path": path}}
        mount = lambda name, path, ro=True: {"name": name, "mountPath": path, "readOnly": ro}
        return {
            "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob",
            "metadata": {"name": JOB, "namespace": "default"},
            "spec": {
                "replicas": replicas, "minReplicas": 1, "maxReplicas": 4, "backoffLimit": 6,
                "elasticity": {"drainDeadlineSeconds": 10, "checkpoint": {"maxWaitSeconds": 2}},
                "template": {"spec": {
                    "tolerations": [{"key": f"node.kubernetes.io/{k}", "operator": "Exists", "effect": "NoExecute",
                                     "tolerationSeconds": 2} for k in ("not-ready", "unreachable")],
                    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                                                   "whenUnsatisfiable": "ScheduleAnyway"}],
                    "containers": [{
                        "name": "worker", "image": "localhost/busybox:1", "imagePullPolicy": "Never",
                        "command": ["/usr/bin/python3", "/train/train.py"],
                        "env": [{"name": "FOLDER", "value": self.folder}, {"name": "PAUSE", "value": str(PAUSE)},
                                {"name": "EVERY", "value": str(EVERY)}],
                        "volumeMounts": [mount("usr", "/usr"), mount("lib", "/lib"), mount("lib64", "/lib64"),
                                         mount("train", "/train"), mount("job", self.folder, False)],
                    }],
                    "volumes": [host("usr", "/usr"), host("lib", "/lib"), host("lib64", "/lib64"),
                                host("train", self.cluster.folder), host("job", self.folder)],
                }},
            },
        }

    def lines(self, what=None, since=0.0, **more):
        found = []
        for name in os.listdir(self.folder):
            if name.endswith(".log"):
                with open(os.path.join(self.folder, name)) as f:
                    for line in f:
                        try:
                            entry = json.loads(line)
                        except ValueError:
                            continue  # in the middle of being written
                        entry["host"] = name[:-4]
                        if what in (None, entry["what"]) and entry["at"] >= since:
                            if all(entry.get(k) == v for k, v in more.items()):
                                found.append(entry)
        return sorted(found, key=lambda e: e["at"])

    def pods(self):
        return {p["metadata"]["uid"]: p for p in self.cluster.get("pods", "-n", "default", "-l", f"elastic-job={JOB}")}

    def trainers(self):
        """The training processes, by rank: pid of each."""
        return {int(e["RANK"]): pid for pid in processes("python3") for e in [environment(pid)]
                if e.get("FOLDER") == self.folder and "RANK" in e}

    def scale(self, replicas):
        at = time.time()
        self.cluster.kubectl("scale", "elasticjob", JOB, "-n", "default", f"--replicas={replicas}")
        return at

    def trains(self, world, since, within=120.0):
        """All ranks of a round of this size, begun since then, have done a step; when the last of them did."""
        def check():
            rounds = {}
            for entry in self.lines("first", since, world=world):
                rounds.setdefault(entry["round"], {})[entry["rank"]] = entry["at"]
            whole = {r: max(ranks.values()) for r, ranks in rounds.items() if len(ranks) == world}
            return whole and whole[max(whole)]
        return wait(f"{world} workers train", check, within)

    def goes_on(self, seconds=2.0):
        """Steps are being made by the same processes all the while."""
        before = self.trainers()
        at = time.time()
        wait("steps are made", lambda: self.lines("step", at + seconds), 20)
        if self.trainers() != before:
            raise Failed(f"the processes were {before} and are {self.trainers()}")

    def settled(self, world):
        def check():
            job = json.loads(self.cluster.kubectl("get", "elasticjob", JOB, "-n", "default", "-o", "json"))
            status = job["status"]
            pods = [p for p in self.pods().values() if "deletionTimestamp" not in p["metadata"]]
            return (status.get("phase") == "Running" and not status.get("change") and len(pods) == world
                    and all(ready(p) for p in pods) and status)
        return wait(f"the job is Running with {world}", check, 60)

    def no_container_restarted(self):
        for pod in self.pods().values():
            counts = [c["restartCount"] for c in pod.get("status", {}).get("containerStatuses", [])]
            if any(counts):
                raise Failed(f"containers of {pod['metadata']['name']} restarted: {counts}")

    def never_lost_a_checkpoint(self):
        """Each round goes on from the newest checkpoint that was there when it began."""
        for entry in self.lines("resumed"):
            saved = [s["step"] for s in self.lines("saved") if s["at"] < entry["at"]]
            if entry["step"] < max(saved, default=0):
                raise Failed(f"{entry} goes back beyond the checkpoint at step {max(saved)}")


def starts(t):
    t.cluster.apply(t.manifest(2))
    at = time.time()
    took = t.trains(2, at) - at
    status = t.settled(2)
    said = [c for c in status["conditions"] if c["type"] == "AgentRounds"]
    if not said or said[0]["status"] != "True":
        raise Failed(f"AgentRounds is {said}")
    return {"apply to first step": took}


def grows(t):
    before = set(t.pods())
    at = t.scale(3)
    took = t.trains(3, at) - at
    t.settled(3)
    if not before < set(t.pods()):
        raise Failed(f"the pods {before} did not all stay: {set(t.pods())}")
    return {"scale request to first step, 2 to 3": took}


def shrinks(t):
    before = set(t.pods())
    at = t.scale(2)
    took = t.trains(2, at) - at
    t.settled(2)
    if not set(t.pods()) < before:
        raise Failed(f"other pods than before, {before}: {set(t.pods())}")
    return {"scale request to first step, 3 to 2": took}


def killed_process(t):
    before = set(t.pods())
    at = time.time()
    os.kill(t.trainers()[1], signal.SIGKILL)
    took = t.trains(2, at) - at
    t.settled(2)
    if set(t.pods()) != before:
        raise Failed(f"pods were replaced: {before}, {set(t.pods())}")
    return {"worker killed to first step": took}


def deleted_pod(t):
    before = t.pods()
    [gone] = [u for u, p in before.items() if p["metadata"]["labels"]["elastic.ai/index"] == "1"]
    at = time.time()
    t.cluster.kubectl("delete", "pod", "-n", "default", before[gone]["metadata"]["name"], "--wait=false")
    took = t.trains(2, at) - at
    t.settled(2)
    if not set(before) - {gone} < set(t.pods()):
        raise Failed(f"the survivor did not stay: {set(before)}, {set(t.pods())}")
    return {"pod deleted to first step of two again": took}


def operators_killed(t):
    """Both replicas, and with them every gateway."""
    before = t.trainers()
    for pod in t.cluster.get("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/name=elastic-training-operator"):
        t.cluster.kill(pod["metadata"]["name"])
    t.goes_on(5)
    wait("the operator is back", t.cluster.is_ready, 120)
    t.goes_on(8)
    if t.trainers() != before:
        raise Failed(f"processes were restarted: {before}, {t.trainers()}")
    return {}


def operator_rolled(t):
    """As an upgrade does it: new replicas, then the old ones end in order; agents move from one gateway to another."""
    before = t.trainers()
    t.cluster.kubectl("rollout", "restart", "-n", SYSTEM, "deployment/elastic-training-operator")
    t.cluster.kubectl("rollout", "status", "-n", SYSTEM, "deployment/elastic-training-operator", "--timeout=120s")
    t.goes_on(5)
    if t.trainers() != before:
        raise Failed(f"processes were restarted: {before}, {t.trainers()}")
    at = t.scale(3)
    t.trains(3, at)
    t.settled(3)
    at = t.scale(2)
    t.trains(2, at)
    t.settled(2)
    return {}


def leader_killed_in_a_resize(t):
    before = set(t.pods())
    leader = wait("somebody leads", t.cluster.leader)
    at = t.scale(3)
    wait("a change is on its way", lambda: json.loads(t.cluster.kubectl(
        "get", "elasticjob", JOB, "-n", "default", "-o", "json"))["status"].get("change"), 20)
    t.cluster.kill(leader)
    took = t.trains(3, at) - at
    t.settled(3)
    if not before < set(t.pods()):
        raise Failed("pods of before are gone")
    shrunk = t.scale(2)
    t.trains(2, shrunk)
    t.settled(2)
    return {"scale request to first step, the leader killed in it": took}


def etcd_loses_all(t):
    """Its pod is deleted, and what it kept with it."""
    before = t.trainers()
    [etcd] = t.cluster.get("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/name=elastic-training-etcd")
    t.cluster.kubectl("delete", "pod", "-n", SYSTEM, etcd["metadata"]["name"], "--wait=true")
    t.goes_on(3)
    wait("etcd is back", t.cluster.is_ready, 120)
    t.goes_on(10)
    if t.trainers() != before:
        raise Failed(f"processes were restarted: {before}, {t.trainers()}")
    at = t.scale(3)
    t.trains(3, at)
    t.settled(3)
    at = t.scale(2)
    t.trains(2, at)
    t.settled(2)
    return {}


def node_dies(t):
    """One that etcd is not on; the operator's other replica takes over where the leader was there."""
    [etcd] = t.cluster.get("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/name=elastic-training-etcd")
    number = {"node-1": 2, "node-2": 1}[etcd["spec"]["nodeName"]]
    on = [u for u, p in t.pods().items() if p["spec"]["nodeName"] == f"node-{number}"]
    if not on:
        raise Failed(f"no worker is on node-{number}")
    at = time.time()
    t.cluster.node("poweroff", number)
    took = t.trains(2, at, 240) - at
    return {f"node powered off to first step of two again ({GRACE} s of it until the node counts as dead)": took}


CASES = [starts, grows, shrinks, killed_process, deleted_pod, operators_killed, operator_rolled,
         leader_killed_in_a_resize, etcd_loses_all, node_dies]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--operator", required=True)
    arguments.add_argument("--agent", required=True)
    arguments.add_argument("--keep", action="store_true", help="leave the cluster running")
    arguments.add_argument("cases", nargs="*")
    given = arguments.parse_args()
    cases = [c for c in CASES if not given.cases or c is starts or any(w in c.__name__ for w in given.cases)]
    cluster = Cluster(given.operator, given.agent)
    failed = 0
    try:
        at = time.time()
        cluster.start()
        print(f"ready in {time.time() - at:.0f} s", flush=True)
        training = Training(cluster)
        for case in cases:
            at = time.time()
            try:
                figures = case(training)
                training.no_container_restarted()
                training.never_lost_a_checkpoint()
            except Exception as failure:  # noqa: BLE001
                failed += 1
                print(f"FAILED  {case.__name__} after {time.time() - at:.1f} s: {failure}", flush=True)
                if not isinstance(failure, Failed):
                    traceback.print_exc()
                cluster.evidence()
                for line in training.lines()[-40:]:
                    print("  ", json.dumps(line))
                break
            told = "".join(f"; {name}: {seconds:.1f} s" for name, seconds in figures.items())
            print(f"ok      {case.__name__} ({time.time() - at:.0f} s){told}", flush=True)
    finally:
        if not given.keep:
            cluster.stop()
    print(f"{len(cases) - failed if not failed else cases.index(case)} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
