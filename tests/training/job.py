"""A job on the cluster, and what its training processes noted."""
import contextlib
import json
import os
import time

from cluster import Failed, environment, processes, ready, wait

# What a phase may take on a busy machine, in seconds: only a hang reaches it.
LONG = float(os.environ.get("ETO_TRAINING_LIMIT", "180"))


def mount(path, to=None, writable=False):
    """A folder of the machine in a pod: (volume, mount)."""
    name = "m" + (to or path).replace("/", "-").replace("_", "-").replace(".", "-").lower()[-50:]
    return ({"name": name, "hostPath": {"path": path}},
            {"name": name, "mountPath": to or path, "readOnly": not writable})


class Notes:
    """The lines of JSON in the files FOLDER/<host>.log, read on from where they were at the last look."""

    def __init__(self, folder):
        self.folder, self.offsets, self.entries = folder, {}, []

    def read(self):
        for name in os.listdir(self.folder):
            if name.endswith(".log"):
                with open(os.path.join(self.folder, name), "rb") as f:
                    f.seek(self.offsets.get(name, 0))
                    whole, end, _ = f.read().rpartition(b"\n")
                self.offsets[name] = self.offsets.get(name, 0) + len(whole) + len(end)
                self.entries += [{**json.loads(line), "host": name[:-4]} for line in whole.splitlines()]
        self.entries.sort(key=lambda e: e["at"])
        return self.entries


class Job:
    """An ElasticJob whose processes note what they do, a line of JSON each, into `folder`."""

    # Whether every rank notes its steps, or rank 0 alone (whose step has needed all others).
    all_note = True

    def __init__(self, cluster, name):
        self.cluster, self.name = cluster, name
        self.folder = os.path.join(cluster.folder, name)
        os.makedirs(self.folder)
        os.chmod(self.folder, 0o777)
        self.notes = Notes(self.folder)

    # --- what it is --------------------------------------------------------------------------------------------------

    def command(self):
        raise NotImplementedError

    def environment(self):
        return {"FOLDER": self.folder}

    def mounts(self):
        return [mount("/usr"), mount("/lib"), mount("/lib64"), mount(self.folder, writable=True)]

    def spec(self):
        """What differs from job to job."""
        return {}

    def manifest(self, replicas):
        mounts = self.mounts()
        elasticity = {"drainDeadlineSeconds": 10, "checkpoint": {"maxWaitSeconds": 2}}
        spec = self.spec()
        return {
            "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob",
            "metadata": {"name": self.name, "namespace": "default"},
            "spec": {
                "replicas": replicas, "minReplicas": 1, "maxReplicas": 4, "backoffLimit": 6, **spec,
                "elasticity": {**elasticity, **spec.get("elasticity", {})},
                "template": {"spec": {
                    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                                                   "whenUnsatisfiable": "ScheduleAnyway"}],
                    "containers": [{
                        "name": "worker", "image": "localhost/busybox:1", "imagePullPolicy": "Never",
                        "command": self.command(),
                        "env": [{"name": k, "value": str(v)} for k, v in self.environment().items()],
                        "volumeMounts": [m for _, m in mounts],
                    }],
                    "volumes": [v for v, _ in mounts],
                }},
            },
        }

    # --- what is done with it ----------------------------------------------------------------------------------------

    def apply(self, replicas):
        self.cluster.apply(self.manifest(replicas))

    def scale(self, replicas):
        """Asks for another size, and gives the moment before."""
        at = time.time()
        self.cluster.kubectl("scale", "elasticjob", self.name, "-n", "default", f"--replicas={replicas}")
        return at

    def delete(self):
        self.cluster.kubectl("delete", "elasticjob", self.name, "-n", "default", "--ignore-not-found")
        wait(f"the pods of {self.name} are gone", lambda: not self.pods(), LONG)

    def drain(self, node):
        """`kubectl drain` of a node, of the pods of this job alone."""
        self.cluster.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={LONG:.0f}s",
                             f"--pod-selector=elastic-job={self.name}")

    # --- what is seen of it ------------------------------------------------------------------------------------------

    def status(self):
        job = json.loads(self.cluster.kubectl("get", "elasticjob", self.name, "-n", "default", "-o", "json"))
        return job.get("status", {})

    def change(self):
        return self.status().get("change")

    def event(self, reason, within):
        """The job's first event of that reason."""
        def first():
            found = self.cluster.get("events.events.k8s.io", "-n", "default", "--field-selector",
                                     f"reason={reason},regarding.name={self.name}")
            return min(found, key=lambda e: e["eventTime"], default=None)
        return wait(f"an event {reason}", first, within)

    def pods(self):
        """By UID."""
        return {p["metadata"]["uid"]: p
                for p in self.cluster.get("pods", "-n", "default", "-l", f"elastic-job={self.name}")}

    def pod_of_rank(self, rank):
        """The pod that the round has at this rank."""
        members = self.status()["round"]["agent"]["members"]
        return self.pods()[members[rank]["uid"]]

    def agent_of(self, rank):
        """The pid of the agent in the pod of that rank: the first process of all that is in it."""
        name = self.pod_of_rank(rank)["metadata"]["name"]
        [agent] = [pid for pid in processes("eto-agent") if environment(pid).get("ETO_POD_NAME") == name]
        return agent

    def trainers(self):
        """The training processes, by rank: pid of each."""
        return {int(e["ETO_RANK"]): pid for pid in processes("python3") for e in [environment(pid)]
                if e.get("FOLDER") == self.folder and "ETO_RANK" in e}

    def lines(self, what=None, since=0.0, **more):
        """What was noted, in its order."""
        return [e for e in self.notes.read() if what in (None, e["what"]) and e["at"] >= since
                and all(e.get(k) == v for k, v in more.items())]

    def step(self):
        """The last step that was noted."""
        return max((e["step"] for what in ("first", "step") for e in self.lines(what)), default=0)

    # --- what is waited for ------------------------------------------------------------------------------------------

    def trains(self, world, since, within=LONG):
        """All ranks of a round of this size, begun since then, have done a step; when the last of them did."""
        need = world if self.all_note else 1

        def check():
            rounds = {}
            for entry in self.lines("first", since, world=world):
                rounds.setdefault(entry["round"], {})[entry["rank"]] = entry["at"]
            whole = {r: max(ranks.values()) for r, ranks in rounds.items() if len(ranks) == need}
            return whole and whole[max(whole)]
        return wait(f"{world} workers train", check, within)

    def goes_on(self, seconds=2.0):
        """Steps are being made by the same processes all the while."""
        before = self.trainers()
        at = time.time()
        wait("steps are made", lambda: self.lines("step", at + seconds), 20 + LONG / 4)
        if self.trainers() != before:
            raise Failed(f"the processes were {before} and are {self.trainers()}")

    def is_settled(self, world):
        """Its status, when it runs with so many workers and is to run with as many."""
        status = self.status()
        pods = [p for p in self.pods().values() if "deletionTimestamp" not in p["metadata"]]
        return (status.get("phase") == "Running" and not status.get("change") and len(pods) == world
                and all(ready(p) for p in pods) and status)

    def settled(self, world, within=LONG):
        return wait(f"{self.name} is Running with {world}", lambda: self.is_settled(world), within)

    # --- what always holds -------------------------------------------------------------------------------------------

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

    def check(self):
        self.no_container_restarted()
        self.never_lost_a_checkpoint()


class Plain(Job):
    """A training that needs nothing but Python (train.py): quick to start, so that what is seen is the operator's part."""

    # A checkpoint at least every second.
    PAUSE, EVERY = 0.05, 20

    def command(self):
        return ["/usr/bin/python3", os.path.join(os.path.dirname(os.path.abspath(__file__)), "train.py")]

    def mounts(self):
        return [*super().mounts(), mount(os.path.dirname(os.path.abspath(__file__)))]

    def environment(self):
        return {**super().environment(), "PAUSE": self.PAUSE, "EVERY": self.EVERY}

    @contextlib.contextmanager
    def no_checkpoints(self):
        """Only a stop makes a checkpoint: one that is waited for does not come by itself."""
        held = os.path.join(self.folder, "no-checkpoints")
        open(held, "w").close()
        try:
            yield
        finally:
            os.remove(held)
