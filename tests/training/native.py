"""torchrun's own elasticity (elasticity.mode: Native) in pods: who stays keeps its torchrun, and the training shows nothing
of those who come and go."""
import time

import curve
from cluster import Failed, environment, processes
from framework import EVERY, Framework


class Torchrun(Framework):
    def __init__(self, cluster):
        # Which samples were taken is told apart by rounds, and a run is one round to its processes.
        super().__init__(cluster, "torch", name="native", audit=False)

    def command(self):
        python, *script = self.script(self.folder)
        return [python, "-m", "torch.distributed.run", *script, "--pause", str(self.pause)]

    def environment(self):
        return {**super().environment(), "TMPDIR": self.folder}

    def spec(self):
        return {"frameworkType": self.type, "elasticity": {"mode": "Native", "drainDeadlineSeconds": 8}}

    def trainers(self):
        return {int(e["RANK"]): pid for pid in processes("python3") for e in [environment(pid)]
                if e.get("FOLDER") == self.folder and "RANK" in e and "PET_RDZV_ID" in e}

    def launchers(self):
        """The torchrun of each pod, by its address."""
        return {e["PET_LOCAL_ADDR"]: pid for pid in processes("python3") for e in [environment(pid)]
                if e.get("FOLDER") == self.folder and "RANK" not in e and "PET_LOCAL_ADDR" in e}

    def run(self):
        return self.status()["round"]["agent"].get("native", {}).get("run")

    def is_still(self, run, launchers):
        now = self.launchers()
        if self.run() != run or not launchers.items() <= now.items():
            raise Failed(f"run {run} with {launchers} was to go on; it is {self.run()} with {now}")

    def lose(self, rank):
        """A worker's pod is deleted; gives the moment before."""
        at = time.time()
        gone = self.pod_of_rank(rank)["metadata"]["name"]
        self.cluster.kubectl("delete", "pod", "-n", "default", gone, "--wait=false")
        return at


def native(beside):
    t = Torchrun(beside.cluster)
    reference = t.undisturbed()
    t.apply(2)
    t.trains(2, 0.0)
    [said] = [c for c in t.settled(2)["conditions"] if c["type"] == "AgentRounds"]
    if said["reason"] != "NativeElasticity":
        raise Failed(f"AgentRounds is {said}")
    t.trained()
    run, first = t.run(), t.launchers()
    if run is None or len(first) != 2:
        raise Failed(f"run {run} with {first}")

    at = t.scale(3)
    took = {"scale request to first step, 2 to 3": t.trains(3, at) - at}
    t.settled(3)
    t.is_still(run, first)
    t.trained()

    at = t.scale(2)
    took["3 to 2"] = t.trains(2, at) - at
    t.settled(2)
    t.is_still(run, {})
    t.trained()

    coordinator = t.pod_of_rank(0)["status"]["podIP"]
    kept = {coordinator: t.launchers()[coordinator]}
    at = t.lose(1)
    took["a worker deleted, to all at work again"] = t.trains(2, at) - at
    t.settled(2)
    t.is_still(run, kept)
    t.trained()

    at = t.lose(0)
    took["the coordinator deleted"] = t.trains(2, at) - at
    t.settled(2)
    if t.run() in (None, run):
        raise Failed(f"the store is lost and the run is {t.run()} after {run}")
    t.trained()
    if t.status().get("failures", 0):
        raise Failed(f"{t.status()['failures']} failures were charged, and none was the job's own")

    t.ends()
    curve.agrees(t.lines(), reference)
    t.never_lost_a_checkpoint()
    worst = max(r["lost"] for r in t.restarts())
    if worst > EVERY:
        raise Failed(f"{worst} steps were lost, and every {EVERY}th is in a checkpoint")
    t.delete()
    return took

