"""Cases of one plain training that goes through all of them: sizes, losses, and what drives the job."""
import os
import signal
import time

from cluster import GRACE, SYSTEM, Failed, wait
from job import LONG, Plain

OPERATOR = ("-n", SYSTEM, "-l", "app.kubernetes.io/name=elastic-training-operator")
ETCD = ("-n", SYSTEM, "-l", "app.kubernetes.io/name=elastic-training-etcd")
ETCD_NAME = "elastic-training-operator-etcd"


def starts(t):
    t.apply(2)
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


def resizes(t):
    """There and back, as the end of a case: the operator does its work."""
    t.trains(3, t.scale(3))
    t.settled(3)
    t.trains(2, t.scale(2))
    t.settled(2)


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
    gone = t.pod_of_rank(1)["metadata"]
    at = time.time()
    t.cluster.kubectl("delete", "pod", "-n", "default", gone["name"], "--wait=false")
    took = t.trains(2, at) - at
    t.settled(2)
    if not set(before) - {gone["uid"]} < set(t.pods()):
        raise Failed(f"the survivor did not stay: {set(before)}, {set(t.pods())}")
    return {"pod deleted to first step of two again": took}


def image_not_there(beside):
    """A template with an image that can't be had: the job says so in the kubelet's words. With the right one it goes on
    from its checkpoint, and nothing is charged."""
    t = Plain(beside.cluster, "typo")

    def told():
        conditions = {c["type"]: c for c in t.status().get("conditions", [])}
        return "ErrImageNeverPull" in conditions.get("Running", {}).get("message", "")

    def with_image(image):
        thing = t.manifest(2)
        [container] = thing["spec"]["template"]["spec"]["containers"]
        container["image"] = image or container["image"]
        at = time.time()
        t.cluster.apply(thing)
        return at
    try:
        t.trains(2, with_image(None))
        t.settled(2)
        wait("a checkpoint", lambda: t.lines("saved", rank=0), LONG)
        at = with_image("localhost/not-there:1")
        known = wait("the job says what keeps it", lambda: told() and time.time(), LONG) - at
        at = with_image(None)
        took = t.trains(2, at) - at
        if t.settled(2).get("failures", 0):
            raise Failed(f"failures were charged: {t.status()}")
        t.check()
    finally:
        t.delete()
    return {"image that is not there, told": known, "mended to first step": took}


def announced_node(t):
    """An autoscaler's taint: nobody deletes a pod, and the worker's replacement has joined before it goes."""
    number = far_node(t)
    name, other = f"node-{number}", f"node-{3 - number}"
    one_on_each_node(t)
    before = set(t.pods())
    charged = t.status().get("failures", 0)
    at = time.time()
    t.cluster.kubectl("taint", "node", name, "elastic.ai/leaving:NoSchedule")
    try:
        wait(f"the worker of {name} has moved", lambda: nodes_of(t) == {other} and len(t.pods()) == 2, LONG)
        took = t.trains(2, at) - at
        status = t.settled(2)
    finally:
        t.cluster.kubectl("taint", "node", name, "elastic.ai/leaving:NoSchedule-")
    if status["round"]["cause"] != "Moved" or status.get("failures", 0) != charged:
        raise Failed(f"it was no move, or not free: {status}")
    if len(before & set(t.pods())) != 1:
        raise Failed(f"the survivor did not stay: {before}, {set(t.pods())}")
    return {"end of a node announced to first step after the move": took}


def operators_killed(t):
    """Both replicas, and with them every gateway."""
    before = t.trainers()
    for pod in t.cluster.get("pods", *OPERATOR):
        t.cluster.kill(pod["metadata"]["name"])
    t.goes_on(5)
    wait("the operator is back", t.cluster.is_ready, LONG)
    t.goes_on(8)
    same_processes(t, before)


def operator_rolled(t):
    """As an upgrade does it: new replicas, then the old ones end in order; agents move from one gateway to another."""
    before = t.trainers()
    t.cluster.kubectl("rollout", "restart", "-n", SYSTEM, "deployment/elastic-training-operator")
    t.cluster.kubectl("rollout", "status", "-n", SYSTEM, "deployment/elastic-training-operator", f"--timeout={LONG}s")
    t.goes_on(5)
    same_processes(t, before)
    resizes(t)


def api_server_away(t):
    """It answers nobody for longer than the leader holds its Lease and than a node may be silent: neither the operator nor
    Kubernetes' own controllers may take a node for lost that only could not say that it is there."""
    before = t.trainers()
    t.cluster.api_server(signal.SIGSTOP)
    try:
        end = time.time() + GRACE + 20
        while time.time() < end:
            t.goes_on(5)
    finally:
        t.cluster.api_server(signal.SIGCONT)
    wait("the operator is back", t.cluster.is_ready, LONG)
    t.goes_on(10)
    same_processes(t, before)
    resizes(t)


def etcd_loses_all(t):
    """Its pod is deleted, and what it kept with it."""
    before = t.trainers()
    [etcd] = t.cluster.get("pods", *ETCD)
    t.cluster.kubectl("delete", "pod", "-n", SYSTEM, etcd["metadata"]["name"], "--wait=true")
    t.goes_on(3)
    wait("etcd is back", t.cluster.is_ready, LONG)
    t.goes_on(10)
    same_processes(t, before)
    resizes(t)


def etcd_becomes_three(t):
    """As docs/operations.md says to do it: it is as if all data were lost."""
    before = t.trainers()
    t.cluster.kubectl("delete", "-n", SYSTEM, f"statefulset/{ETCD_NAME}", f"secret/{ETCD_NAME}")
    t.cluster.install(members=3)
    t.goes_on(5)
    same_processes(t, before)
    resizes(t)


def etcd_without_one_of_three(t):
    """One member is away for as long as it takes to resize; then another one loses its pod."""
    before = t.trainers()
    t.cluster.kubectl("scale", "-n", SYSTEM, f"statefulset/{ETCD_NAME}", "--replicas=2")
    wait("a member is gone", lambda: len(t.cluster.get("pods", *ETCD)) == 2, LONG)
    t.goes_on(2)
    same_processes(t, before)
    resizes(t)
    t.cluster.kubectl("scale", "-n", SYSTEM, f"statefulset/{ETCD_NAME}", "--replicas=3")
    wait("operator and etcd are ready", t.cluster.is_ready, LONG)
    before = t.trainers()
    t.cluster.kubectl("delete", "pod", "-n", SYSTEM, f"{ETCD_NAME}-0")
    wait("operator and etcd are ready", t.cluster.is_ready, LONG)
    t.goes_on(3)
    same_processes(t, before)
    resizes(t)


def same_processes(t, before):
    if t.trainers() != before:
        raise Failed(f"processes were restarted: {before}, {t.trainers()}")


def far_node(t):
    """The node with the fewer members of etcd, by number: with it etcd is not lost."""
    on = [p["spec"]["nodeName"] for p in t.cluster.get("pods", *ETCD)]
    return min((1, 2), key=lambda n: on.count(f"node-{n}"))


def nodes_of(t):
    return {p["spec"].get("nodeName") for p in t.pods().values() if "deletionTimestamp" not in p["metadata"]}


def moved(t, rank):
    """Deletes the pod of that rank and waits for its replacement, which the scheduler puts on the emptier node."""
    at = time.time()
    t.cluster.kubectl("delete", "pod", "-n", "default", t.pod_of_rank(rank)["metadata"]["name"], "--wait=false")
    t.trains(2, at)
    t.settled(2)


def one_on_each_node(t):
    if nodes_of(t) != {"node-1", "node-2"}:
        moved(t, 1)
    if nodes_of(t) != {"node-1", "node-2"}:
        raise Failed(f"the workers are on {nodes_of(t)}")


def coordinator_on(t, number):
    """Makes the worker on that node the coordinator: the other one loses its pod, and who stays comes first."""
    one_on_each_node(t)
    if t.pod_of_rank(0)["spec"]["nodeName"] != f"node-{number}":
        moved(t, 0)
    if t.pod_of_rank(0)["spec"]["nodeName"] != f"node-{number}":
        raise Failed(f"the coordinator is not on node-{number}")


def node_cut_and_healed(t, with_coordinator=True):
    """A node is unplugged, and who is left goes on. Plugged in again, what ran there finds no round that names it."""
    number = far_node(t)
    coordinator_on(t, number if with_coordinator else 3 - number)
    lost = t.pod_of_rank(0 if with_coordinator else 1)
    at = time.time()
    t.cluster.node("cut", number)
    took = t.trains(2, at, GRACE + LONG) - at
    healed = time.time()
    t.cluster.node("heal", number)
    wait("the node is ready again", lambda: t.cluster.node_ready(number), LONG)
    wait("the lost pod is gone", lambda: lost["metadata"]["uid"] not in t.pods(), LONG)
    wait("operator and etcd are ready", t.cluster.is_ready, LONG)
    t.settled(2)
    t.goes_on(3)
    late = t.lines("step", healed, host=lost["metadata"]["name"])
    if late:
        raise Failed(f"a worker that was given up made steps: {late[:3]}")
    who = "coordinator" if with_coordinator else "worker"
    return {f"{who}'s node cut to first step of two": took}


def workers_node_cut_and_healed(t):
    return node_cut_and_healed(t, with_coordinator=False)


def node_dies(t):
    """The operator's other replica takes over where the leader was there."""
    number = far_node(t)
    one_on_each_node(t)
    at = time.time()
    t.cluster.node("poweroff", number)
    took = t.trains(2, at, GRACE + LONG) - at
    return {"node powered off to first step of two again": took}


CASES = [starts, grows, shrinks, killed_process, deleted_pod, image_not_there, announced_node, operators_killed, operator_rolled,
         api_server_away, etcd_loses_all, etcd_becomes_three, etcd_without_one_of_three]
LAST = [workers_node_cut_and_healed, node_cut_and_healed, node_dies]
# Of these, what runs only where it is named, or with --all.
MORE = [etcd_loses_all, workers_node_cut_and_healed]
