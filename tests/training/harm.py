"""What is done to a job, and how it ends, for the table of faults (faults.py)."""
import contextlib
import json
import os
import signal
import subprocess
import time
from datetime import datetime

import rounds
from cluster import GRACE, SYSTEM, Failed, ready, wait
from job import LONG, Plain

ACTS = ("agents were told", "deleting")
# How long it is watched that nothing happens, in seconds.
WATCHED = 40


class Faulty(Plain):
    def __init__(self, cluster, name, more, tells):
        super().__init__(cluster, name)
        self.more, self.tells = more, tells

    def spec(self):
        return self.more.get("spec", {})

    def environment(self):
        return {**super().environment(), **self.more.get("env", {})}

    def manifest(self, replicas):
        thing = super().manifest(replicas)
        pod, limits = thing["spec"]["template"]["spec"], self.more.get("limits", {})
        pod["containers"][0]["resources"] = {"limits": limits, "requests": limits}
        if not self.more.get("spread", True):
            del pod["topologySpreadConstraints"]
        return thing

    def ask(self, rank, what):
        """Has the process of that rank fail by itself."""
        host = self.pod_of_rank(rank)["spec"]["hostname"]
        with open(os.path.join(self.folder, f"{host}.fault"), "w") as f:
            f.write(what)

    def acted(self, since):
        """Seconds until the operator did something for this job; of a replica that can't be asked nothing is known."""
        acts = []
        for pod in self.cluster.get("pods", *rounds.OPERATOR):
            with contextlib.suppress(Failed):
                text = self.cluster.kubectl("logs", "-n", SYSTEM, pod["metadata"]["name"], "--since=10m")
                acts += [act for line in text.splitlines() for act in [self.act(line)] if act and act[0] > since]
        acts.sort()
        for at, what in acts if self.tells else []:
            print(f"        {at - since:6.1f} s  {what}", flush=True)
        return acts[0][0] - since if acts else None

    def act(self, line):
        """A line of the log that tells of something done for this job: when, and what."""
        with contextlib.suppress(ValueError, KeyError):
            entry = json.loads(line)
            if entry.get("job") == f"default/{self.name}" and entry["message"] in ACTS:
                more = " ".join(str(entry.get(k, "")) for k in ("generation", "order", "pod", "why"))
                return datetime.fromisoformat(entry["timestamp"]).timestamp(), f"{entry['message']}: {more.strip()}"
        return None

    def longest_pause(self, since, until):
        marks = sorted(e["at"] for e in self.lines("step", since - 2, rank=0) if e["at"] <= until)
        return max(b - a for a, b in zip(marks, marks[1:]))


def moment(event):
    return datetime.fromisoformat(event["eventTime"]).timestamp()


# --- how it ends -----------------------------------------------------------------------------------------------------

def again(world=2):
    """All train again, as many as before."""
    def end(t, at):
        end = t.trains(world, at, GRACE + LONG)
        return {"acts": t.acted(at), "trains": end - at}
    return end


def with_more(t, at):
    """All train again, and who ran out of memory has more."""
    seconds = again()(t, at)
    grown = wait("the memory has grown", lambda: t.status().get("grownMemory"), LONG)
    t.settled(2)
    limits = {p["spec"]["containers"][0]["resources"]["limits"]["memory"] for p in t.pods().values()}
    if len(limits) != 2:
        raise Failed(f"grown to {grown}, and the pods have {limits}")
    return seconds


def goes_on_for(seconds):
    """The same processes go on."""
    def end(t, at):
        wait("it goes on", lambda: t.lines("step", at + seconds), seconds + LONG)
        rounds.same_processes(t, t.before)
        return {"pause": t.longest_pause(at, at + seconds)}
    return end


goes_on = goes_on_for(WATCHED)


def fails(t, at):
    def failed():
        status = t.status()
        return status.get("phase") == "Failed" and time.time()
    return {"ends": wait("the job has failed", failed, LONG) - at}


def again_since(what):
    """All train again; it is from when a process noted this that counts."""
    def end(t, at):
        [first, *_] = wait(f"a process notes {what}", lambda: t.lines(what, at), LONG)
        return again()(t, first["at"])
    return end


def says_why(words):
    """The condition Running has these words, and with the right template it goes on."""
    def end(t, at):
        def told():
            conditions = {c["type"]: c for c in t.status().get("conditions", [])}
            return words in conditions.get("Running", {}).get("message", "") and time.time()
        seconds = wait("the job says what keeps it", told, LONG) - at
        t.apply(2)
        t.trains(2, at)
        return {"acts": seconds}
    return end


def told_of(reason, within):
    """It is told, and the same processes go on."""
    def end(t, at):
        told = moment(t.event(reason, within))
        rounds.same_processes(t, t.before)
        return {"acts": told - at}
    return end


def avoided(t, at):
    """The node gets no pod of this job any more while others have room."""
    node = node_of(t)
    seconds = {"acts": moment(t.event("NodeQuarantined", LONG)) - at, "trains": t.trains(2, at) - at}
    t.settled(2)
    since = time.time()
    deletes(1)(t)
    t.trains(2, since)
    if rounds.nodes_of(t) & {node}:
        raise Failed(f"a new pod is on {node}: {rounds.nodes_of(t)}")
    return seconds


# --- faults ----------------------------------------------------------------------------------------------------------

def exits(code):
    return lambda t: t.ask(1, f"exit {code}")


def signalled(which, *ranks):
    return lambda t: [os.kill(pid, which) for rank, pid in t.trainers().items() if rank in ranks]


def slows(milliseconds):
    return lambda t: t.ask(1, f"slow {milliseconds}")


def failed_twice(t):
    for _ in range(2):
        at = time.time()
        exits(1)(t)
        t.trains(2, at)
        t.settled(2)


def eats(t):
    t.ask(1, "eat 512")


def agent(which):
    return lambda t: os.kill(t.agent_of(1), which)


def deletes(*ranks):
    def do(t):
        names = [t.pod_of_rank(r)["metadata"]["name"] for r in ranks]
        t.cluster.kubectl("delete", "pod", "-n", "default", *names, "--wait=false")
    return do


def evicts(t):
    name = t.pod_of_rank(1)["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
    t.cluster.kubectl("create", "--raw", f"/api/v1/namespaces/default/pods/{name}/eviction", "-f", "-",
                      text=json.dumps(body))


def hangs_at_its_start(t):
    host = t.pod_of_rank(1)["spec"]["hostname"]
    open(os.path.join(t.folder, f"{host}.hang"), "w").close()
    signalled(signal.SIGKILL, 1)(t)


def with_another_image(t):
    thing = t.manifest(2)
    [container] = thing["spec"]["template"]["spec"]["containers"]
    container["image"] = "localhost/not-there:1"
    t.cluster.apply(thing)


def grows_without_room(t):
    t.scale(3)


def grows_over_quota(t):
    t.cluster.apply({"apiVersion": "v1", "kind": "ResourceQuota",
                     "metadata": {"name": "two", "namespace": "default"}, "spec": {"hard": {"pods": "2"}}})
    t.scale(3)


def no_quota(t):
    t.cluster.kubectl("delete", "resourcequota", "two", "-n", "default", "--ignore-not-found")


def may_be_evicted(t):
    def allowed():
        found = [b for b in t.cluster.get("pdb", "-n", "default") if b["metadata"]["name"] == t.name]
        return found and found[0].get("status", {}).get("disruptionsAllowed")
    wait("the budget is known", allowed, LONG)


def node_of(t, rank=1):
    return t.pod_of_rank(rank)["spec"]["nodeName"]


def drains(t):
    t.drain(node_of(t))


def cordons(t):
    t.cluster.kubectl("cordon", node_of(t))


def announces(t):
    t.cluster.kubectl("taint", "node", node_of(t), "karpenter.sh/disrupted:NoSchedule")


def open_again(t):
    for n in t.cluster.get("nodes"):
        name, taints = n["metadata"]["name"], n["spec"].get("taints", [])
        t.cluster.kubectl("uncordon", name)
        if any(taint["key"] == "karpenter.sh/disrupted" for taint in taints):
            t.cluster.kubectl("taint", "node", name, "karpenter.sh/disrupted:NoSchedule-")


def worker_there(t):
    """The coordinator is where etcd is, and a worker on the other node."""
    rounds.coordinator_on(t, 3 - rounds.far_node(t))


def coordinator_there(t):
    rounds.coordinator_on(t, rounds.far_node(t))


def node(command):
    """Something that is done to the node where etcd is not."""
    def do(t):
        t.number = rounds.far_node(t)
        t.cluster.node(command, t.number)
    return do


def cut_and_deleted(t):
    t.number = rounds.far_node(t)
    t.cluster.node("cut", t.number)
    t.cluster.kubectl("delete", "node", f"node-{t.number}")


def healed(t):
    t.cluster.node("heal", t.number)
    back(t)


def powered_on(t):
    t.cluster.node("start", t.number)
    back(t)


def kubelet_again(t):
    t.cluster.node("start-kubelet", t.number)
    back(t)


def kubelet_anew(t):
    """A node that was deleted registers when its kubelet starts."""
    t.cluster.node("heal", t.number)
    t.cluster.node("stop-kubelet", t.number)
    kubelet_again(t)


def back(t):
    def takes_pods():
        return any(ready(n) and not n["spec"].get("taints") for n in t.cluster.get("nodes")
                   if n["metadata"]["name"] == f"node-{t.number}")
    wait("the node is back", takes_pods, LONG)
    wait("operator and etcd are ready", t.cluster.is_ready, LONG)


def pod_cut_off(t):
    """Its network is gone, and its kubelet's is not: nobody's connection to it is closed."""
    subprocess.run(["nsenter", "-t", str(t.agent_of(1)), "-n", "ip", "link", "set", "eth0", "down"], check=True)


def operators(t):
    for pod in t.cluster.get("pods", *rounds.OPERATOR):
        t.cluster.kill(pod["metadata"]["name"])


def etcd(t):
    [pod] = t.cluster.get("pods", *rounds.ETCD)
    t.cluster.kubectl("delete", "pod", "-n", SYSTEM, pod["metadata"]["name"], "--wait=false")


def three_members(t):
    """etcd with a member on each of two nodes and one more."""
    if t.cluster.members != 3:
        rounds.etcd_becomes_three(t)


def members(number):
    """So many of the three are left."""
    def do(t):
        t.cluster.kubectl("scale", "-n", SYSTEM, f"statefulset/{rounds.ETCD_NAME}", f"--replicas={number}")
        wait("members are gone", lambda: len(t.cluster.get("pods", *rounds.ETCD)) == number, LONG)
    return do


def members_again(t):
    t.cluster.kubectl("scale", "-n", SYSTEM, f"statefulset/{rounds.ETCD_NAME}", "--replicas=3")
    ready_again(t)


def api_server_away(t):
    t.cluster.api_server(signal.SIGSTOP)


def ready_again(t):
    wait("operator and etcd are ready", t.cluster.is_ready, LONG)


def api_server_again(t):
    t.cluster.api_server(signal.SIGCONT)
    ready_again(t)
