"""Replicas of the operator whose clocks differ, by a library that the dynamic linker puts before the system's.

All processes of a machine share its clock, so this is as near as one machine comes: the program is the operator's own.
"""
import json

import rounds
from cluster import SYSTEM, ready, wait
from job import LONG

LIBRARY = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"  # Debian's package libfaketime
AHEAD = "+8s"
NAME, OTHER = "elastic-training-operator", "elastic-training-operator-ahead"


def another_replica(t):
    """One more of the operator, whose clock is ahead. Only the wall clock: no machine's monotonic clock is set."""
    t.cluster.image_of(t.cluster.operator, "eto-operator:ahead", LIBRARY)
    deployment = json.loads(t.cluster.kubectl("get", "deployment", NAME, "-n", SYSTEM, "-o", "json"))
    spec, label = deployment["spec"], {"clock": "ahead"}
    spec["replicas"] = 1
    spec["selector"]["matchLabels"].update(label)
    spec["template"]["metadata"]["labels"].update(label)
    for container in spec["template"]["spec"]["containers"]:
        container["image"] = "localhost/eto-operator:ahead"
        container.setdefault("env", []).extend({"name": k, "value": v} for k, v in {
            "LD_PRELOAD": LIBRARY, "FAKETIME": AHEAD, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}.items())
    t.cluster.apply({"apiVersion": "apps/v1", "kind": "Deployment",
                     "metadata": {"name": OTHER, "namespace": SYSTEM}, "spec": spec})
    wait("the other replica is ready", lambda: [p for p in others(t) if ready(p)], LONG)


def others(t):
    return t.cluster.get("pods", "-n", SYSTEM, "-l", "clock=ahead")


def replicas(t, name, count):
    t.cluster.kubectl("scale", "deployment", name, "-n", SYSTEM, f"--replicas={count}")


def taken_over(t):
    """It alone is left, and leads."""
    replicas(t, NAME, 0)
    [other] = [p["metadata"]["name"] for p in others(t)]
    wait("it leads", lambda: t.cluster.leader() == other, LONG)


def given_back(t):
    """The others lead again, whose clocks are behind the last leader's."""
    replicas(t, NAME, 2)
    wait("the others are ready", lambda: sum(map(ready, t.cluster.get("pods", *rounds.OPERATOR))) == 3, LONG)
    t.cluster.kubectl("delete", "deployment", OTHER, "-n", SYSTEM, "--ignore-not-found")
    wait("operator and etcd are ready", t.cluster.is_ready, LONG)
    t.goes_on(10)
