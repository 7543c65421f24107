#!/usr/bin/env python3
"""An upgrade of the operator from an earlier version, with trainings running: no process is restarted.

  upgrade.py --operator BINARY --agent BINARY --old CHECKOUT --old-operator BINARY

The earlier version is a checkout of this repository (its chart and CRDs are used) and an operator built from it.
"""
import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import SYSTEM, Cluster, Failed, cache, ready, run, wait  # noqa: E402
from job import LONG, Plain  # noqa: E402


class Earlier(Cluster):
    """A cluster with the earlier version, until `install`."""

    def __init__(self, given):
        super().__init__(given.operator, given.agent)
        self.old, self.old_operator = given.old, given.old_operator

    def begin(self):
        self.up()
        self.image_of(self.old_operator, "eto-operator:old")
        self.kubectl("apply", "--server-side", "-f", os.path.join(self.old, "deploy/crds.yaml"))
        values = ["image.repository=localhost/eto-operator", "image.tag=old", "image.pullPolicy=Never",
                  "settings.evaluation.period=1s"]
        run("helm", "install", "elastic-training", os.path.join(self.old, "deploy/chart/elastic-training-operator"),
            "--namespace", SYSTEM, "--create-namespace", *[w for v in values for w in ("--set", v)], env=self.env)
        wait("the earlier operator is ready", lambda: [p for p in self.get("pods", "-n", SYSTEM) if ready(p)], LONG)

    def upgrade(self):
        self.images()
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "deploy/crds.yaml")
        self.install()


class Aged(Plain):
    """With what the earlier version knows of an ElasticJob."""

    def manifest(self, replicas):
        thing = super().manifest(replicas)
        del thing["spec"]["elasticity"]["checkpoint"]
        return thing


def main():
    arguments = argparse.ArgumentParser()
    for name in ("--operator", "--agent", "--old", "--old-operator"):
        arguments.add_argument(name, required=True)
    cluster = Earlier(arguments.parse_args())
    try:
        cluster.begin()
        t = Aged(cluster, "train")
        t.apply(2)
        t.trains(2, 0.0)
        wait("both pods are ready", lambda: len([p for p in t.pods().values() if ready(p)]) == 2, LONG)
        before, pods = t.trainers(), set(t.pods())
        if len(before) != 2:
            raise Failed(f"the processes are {before}")
        cluster.upgrade()
        t.goes_on(10)
        if (t.trainers(), set(t.pods())) != (before, pods):
            raise Failed(f"restarted: {before} {pods}, {t.trainers()} {set(t.pods())}")
        print("ok      upgraded, and the same processes train", flush=True)
        # The job keeps its way to carry out rounds while its round stands; a resize is a new round.
        at = t.scale(3)
        print(f"ok      grows afterwards ({t.trains(3, at) - at:.1f} s)", flush=True)
        said = [c for c in t.status()["conditions"] if c["type"] == "AgentRounds"]
        print(f"        {said}", flush=True)
        t.never_lost_a_checkpoint()
    except BaseException:
        cluster.evidence()
        raise
    finally:
        cluster.stop()
        # Images that are kept are loaded by every cluster.
        image = os.path.join(cache(), "images", "localhost_eto-operator_old.tar")
        if os.path.exists(image):
            os.remove(image)
    return 0


if __name__ == "__main__":
    sys.exit(main())
