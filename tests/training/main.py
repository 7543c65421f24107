#!/usr/bin/env python3
"""Trainings on two real nodes: rounds with an agent, from end to end. `make e2e-training` runs all of it.

  main.py --operator BINARY --agent BINARY [--keep] [--all] [CASE...]

One plain training goes through most cases, in their order; each leaves it running. The cases of real frameworks have jobs
of their own. What is measured is printed, in seconds.
"""
import argparse
import json
import os
import sys
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import crashes  # noqa: E402
import native  # noqa: E402
import own_etcd  # noqa: E402
import registry  # noqa: E402
import rounds  # noqa: E402
import shapes  # noqa: E402
import stories  # noqa: E402
from cluster import Cluster, Failed  # noqa: E402
from job import Plain  # noqa: E402

CASES = [*rounds.CASES, registry.image_command, registry.first_try, shapes.several_processes_in_a_worker,
         shapes.parameter_servers, crashes.killed_at_each_step_of_a_resize, stories.real_frameworks,
         native.native, *rounds.LAST]
CASES.insert(CASES.index(rounds.etcd_becomes_three), own_etcd.etcd_of_ones_own)
if os.environ.get("TENSORFLOW"):
    CASES.insert(CASES.index(stories.real_frameworks) + 1, stories.tensorflow_too)


def chosen(words, everything):
    """All but the long ones, or those that are named; the first is what the others need."""
    if words:
        return [c for c in CASES if c is rounds.starts or any(w in c.__name__ for w in words)]
    return [c for c in CASES if everything or c not in rounds.MORE]


def run(case, training):
    """Whether it passed."""
    at = time.time()
    try:
        figures = case(training) or {}
        training.check()
    except Exception as failure:  # noqa: BLE001
        print(f"FAILED  {case.__name__} after {time.time() - at:.1f} s: {failure}", flush=True)
        if not isinstance(failure, Failed):
            traceback.print_exc()
        training.cluster.evidence()
        for line in training.lines()[-40:]:
            print("  ", json.dumps(line))
        return False
    told = "".join(f"; {name}: {seconds:.1f} s" for name, seconds in figures.items())
    print(f"ok      {case.__name__} ({time.time() - at:.0f} s){told}", flush=True)
    return True


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--operator", required=True)
    arguments.add_argument("--agent", required=True)
    arguments.add_argument("--keep", action="store_true", help="leave the cluster running")
    arguments.add_argument("--all", action="store_true", help="also cases that take long and show little more")
    arguments.add_argument("cases", nargs="*")
    given = arguments.parse_args()
    cases = chosen(given.cases, given.all)
    cluster = Cluster(given.operator, given.agent)
    passed = 0
    try:
        at = time.time()
        cluster.start()
        print(f"ready in {time.time() - at:.0f} s", flush=True)
        training = Plain(cluster, "train")
        for case in cases:
            if not run(case, training):
                break
            passed += 1
    finally:
        if not given.keep:
            cluster.stop()
    print(f"{passed} passed, {int(passed < len(cases))} failed")
    return int(passed < len(cases))


if __name__ == "__main__":
    sys.exit(main())
