"""The examples' training scripts with real frameworks, in pods.

A user's image has the framework inside. Here the pods are busybox with the machine's Python and a virtual environment
(setup.sh) mounted in place, so that no image of a gigabyte has to be built and loaded; nothing else differs.
"""
import os
import subprocess
import time

import curve
from cluster import ROOT, Failed, wait
from job import LONG, Job, Notes, mount

VENVS = os.environ.get("ETO_TRAINING", os.path.expanduser("~/.cache/elastic-training-operator/training"))
HERE = os.path.dirname(os.path.abspath(__file__))
RECORD = os.path.join(HERE, "record.py")
EVERY = 20  # steps between checkpoints
SAMPLES, BATCH = 4000, 96
# Threads of its own for each of several processes on two cores would only be in each other's way.
QUIET = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}


class Framework(Job):
    all_note = False
    # By the name of the environment: module, example, and the job's frameworkType.
    KINDS = {"torch": ("torch", "pytorch", "PyTorch"), "jax": ("jax", "jax", "JAX"),
             "tensorflow": ("tensorflow", "tensorflow", "TensorFlow")}

    def __init__(self, cluster, kind, name=None, epochs=30, pause=0.25, audit=True):
        super().__init__(cluster, name or kind)
        self.kind, self.epochs, self.pause, self.audit = kind, epochs, pause, audit
        self.module, self.example, self.type = self.KINDS[kind]
        self.venv = os.path.join(VENVS, kind)
        if not os.path.exists(os.path.join(self.venv, "stamp")):
            raise Failed(f"{self.venv} is not there: run tests/training/setup.sh {kind}")

    def script(self, folder):
        audit = ["--audit", os.path.join(folder, "audit")] if self.audit else []
        return [os.path.join(self.venv, "bin/python3"), RECORD,
                os.path.join(ROOT, "examples", self.example, "train.py"), *audit,
                "--checkpoints", os.path.join(folder, "checkpoints"),
                "--samples", str(SAMPLES), "--batch", str(BATCH), "--epochs", str(self.epochs), "--every", str(EVERY)]

    def command(self):
        return [*self.script(self.folder), "--pause", str(self.pause)]

    def environment(self):
        return {**super().environment(), "IMPORT": self.module, **QUIET}

    def mounts(self):
        return [*super().mounts(), mount(self.venv), mount(HERE), mount(os.path.join(ROOT, "examples"))]

    def spec(self):
        return {"frameworkType": self.type, "elasticity": {"globalBatchSize": BATCH, "drainDeadlineSeconds": 8}}

    def undisturbed(self):
        """The same training by one process from beginning to end, with nothing of ours around it: what it noted."""
        folder = os.path.join(self.folder, "undisturbed")
        os.makedirs(folder)
        env = {**os.environ, **self.environment(), "FOLDER": folder, "RANK": "0", "WORLD_SIZE": "1",
               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        done = subprocess.run(self.script(folder), env=env, capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"the undisturbed run ended with {done.returncode}: {done.stderr[-2000:]}")
        return Notes(folder).read()

    # --- how it is steered -------------------------------------------------------------------------------------------

    def make(self, name):
        open(os.path.join(self.folder, name), "w").close()

    def restarts(self):
        return curve.restarts(self.lines())

    def trained(self, more=8):
        """Some steps more than there are."""
        goal = self.step() + more
        wait(f"{self.name} is at step {goal}", lambda: self.step() >= goal, LONG)

    def resumes(self, world, since, within=LONG):
        """Waits for the first step of a round of this size; gives the moment, and the steps that were done again."""
        at = self.trains(world, since, within)
        [*_, last] = [r for r in self.restarts() if r["at"] <= at]
        return at, last["lost"]

    def ends(self):
        """Lets the rest of the training go fast, and waits for its success."""
        self.make("hurry")
        at = time.time()
        wait(f"{self.name} has succeeded", lambda: self.status().get("phase") == "Succeeded", 3 * LONG)
        return time.time() - at

    def shows_nothing_of_it(self, reference):
        """The losses are those of the reference, each sample was taken once, and no step was lost that a checkpoint
        held. Gives how far the losses were off at most, and the most steps that a restart did again."""
        curve.learns(reference)
        off = curve.agrees(self.lines(), reference)
        steps = max(e["step"] for e in reference if e["what"] in ("first", "step"))
        curve.samples_once(os.path.join(self.folder, "audit"), SAMPLES, steps)
        self.never_lost_a_checkpoint()
        worst = max(r["lost"] for r in self.restarts())
        if worst > EVERY:
            raise Failed(f"{worst} steps were lost, and every {EVERY}th is in a checkpoint")
        return off, worst
