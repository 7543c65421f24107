"""Jobs of another shape than one process in each of several equal workers."""
import json
import os
import signal
import time

from cluster import Failed, environment, processes, wait
from job import LONG, Job, Plain, mount

HERE = os.path.dirname(os.path.abspath(__file__))


class Pairs(Plain):
    """Two processes in each worker."""

    def spec(self):
        return {"frameworkType": "PyTorch", "nprocPerNode": 2}

    def places(self):
        """By rank: the pid, and where the process is: the worker, and its local rank."""
        return {int(e["RANK"]): (pid, int(e["ETO_RANK"]), int(e["LOCAL_RANK"])) for pid in processes("python3")
                for e in [environment(pid)] if e.get("FOLDER") == self.folder and "RANK" in e}

    def trainers(self):
        return {rank: pid for rank, (pid, *_) in self.places().items()}


def several_processes_in_a_worker(beside):
    """Ranks count processes; a worker's processes start, stop and fail together, and the pods stay."""
    t = Pairs(beside.cluster, "pairs")
    try:
        t.apply(2)
        t.trains(4, 0.0)
        t.settled(2)
        before = set(t.pods())
        at = t.scale(3)
        grown = t.trains(6, at) - at
        t.settled(3)
        places = {rank: place for rank, (_, *place) in t.places().items()}
        if places != {rank: [rank // 2, rank % 2] for rank in range(6)} or not before < set(t.pods()):
            raise Failed(f"worker and local rank by rank: {places}; pods {before}, {set(t.pods())}")
        at = t.scale(2)
        t.trains(4, at)
        t.settled(2)
        before, at = t.trainers(), time.time()
        pods = set(t.pods())
        os.kill(before[3], signal.SIGKILL)
        again = t.trains(4, at) - at
        status = t.settled(2)
        if set(before.values()) & set(t.trainers().values()) or set(t.pods()) != pods:
            raise Failed(f"processes {before}, {t.trainers()}; pods {pods}, {set(t.pods())}")
        if status.get("failures") != 1:
            raise Failed(f"{status.get('failures')} failures were charged for one process")
        t.check()
        return {"four processes to six": grown, "one of four killed to first step of four": again}
    finally:
        t.delete()


class Served(Job):
    """A chief, a parameter server and workers that find each other by TF_CONFIG (served.py)."""

    def command(self):
        return ["/usr/bin/python3", os.path.join(HERE, "served.py")]

    def mounts(self):
        return [*super().mounts(), mount(HERE)]

    def spec(self):
        return {"frameworkType": "TensorFlow", "minReplicas": 3, "maxReplicas": 5,
                "replicaTypes": [{"name": "chief"}, {"name": "ps"}]}

    def places(self):
        """Who takes part in the newest round, by the notes of all that started in it."""
        entries = self.lines("first")
        newest = max((e["round"] for e in entries), default=0)
        return sorted(e["task"] for e in entries if e["round"] == newest)

    def is_made_of(self, workers):
        want = sorted(["chief 0", "ps 0", *(f"worker {i}" for i in range(workers))])
        wait(f"a chief, a server and {workers} workers take part", lambda: self.places() == want, LONG)
        self.settled(2 + workers)


def parameter_servers(beside):
    """Workers come and go; the chief and the server stay in their pods, and the job is done when its chief is."""
    t = Served(beside.cluster, "served")
    try:
        t.apply(3)
        t.is_made_of(1)
        before = {p["metadata"]["labels"]["elastic.ai/role"]: uid for uid, p in t.pods().items()}
        at = t.scale(5)
        t.is_made_of(3)
        grown = max(e["at"] for e in t.lines("first", at)) - at
        t.scale(4)
        t.is_made_of(2)
        after = {uid for uid in t.pods()}
        if not {before["chief"], before["ps"]} <= after:
            raise Failed(f"chief and server did not stay: {before}, {after}")
        open(os.path.join(t.folder, "enough"), "w").close()
        wait("the job has succeeded", lambda: t.status().get("phase") == "Succeeded", LONG)
        if t.status().get("failures", 0):
            raise Failed(f"failures were charged: {json.dumps(t.status())}")
        return {"one worker to three, beside chief and server": grown}
    finally:
        t.delete()
