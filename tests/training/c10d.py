"""torchrun's own elasticity (c10d) on the job that ours is measured with, as processes of this machine.

Set as it works best: the store is a process of its own, so that any worker may go, and PET_* as torch 2.15 needs it to
let anybody join at all. Without pods nothing has to be scheduled or started, which is in its favour.
"""
import os
import signal
import socket
import subprocess
import time

from cluster import wait
from framework import QUIET
from job import LONG, Notes

# torch's keep-alive is 5 s, three times; the last call for joiners 30 s. `A` shortens the latter, `B` all.
SETTINGS = {"A": "last_call_timeout=5", "B": "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"}
STORE = """
import sys, time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print("serves", flush=True)
time.sleep(1e9)
"""


# Seconds that a process group waits for a peer which answers no more. Nothing else ends that wait; gloo's own is 1800.
PATIENCE = 60


class Group:
    """Agents of torchrun that meet at one store."""

    host, more = "127.0.0.1", {}

    def __init__(self, job, folder, settings):
        os.makedirs(folder)
        self.job, self.folder, self.settings = job, folder, settings
        self.notes, self.agents = Notes(folder), []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.python = os.path.join(job.venv, "bin/python3")
        self.store = subprocess.Popen([self.python, "-c", STORE, str(self.port)], stdout=subprocess.PIPE,
                                      stderr=subprocess.DEVNULL)
        self.store.stdout.readline()

    def place(self):
        """Where the next agent runs: what its command begins with, its interface and address."""
        return [], "lo", self.host

    def join(self):
        """Starts one agent more, and gives the moment before."""
        before, interface, address = self.place()
        env = {
            **os.environ, **QUIET, "FOLDER": self.folder, "IMPORT": "torch", "GLOO_SOCKET_IFNAME": interface,
            "PET_NNODES": "1:4", "PET_NPROC_PER_NODE": "1", "PET_MAX_RESTARTS": "1000", "PET_MONITOR_INTERVAL": "0.5",
            "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": f"{self.host}:{self.port}", "PET_RDZV_ID": "measured",
            "PET_RDZV_CONF": f"is_host=false,{SETTINGS[self.settings]}", "PET_LOCAL_ADDR": address,
            **self.more, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        _, *script = self.job.script(self.folder)
        at = time.time()
        self.agents.append(subprocess.Popen(
            [*before, self.python, "-m", "torch.distributed.run", *script, "--pause", str(self.job.pause)], env=env,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return at

    def leave(self, how):
        """The newest agent goes: told to (SIGTERM), or killed with its worker as a lost pod is."""
        agent = self.agents.pop()
        victims = [agent.pid] if how == signal.SIGTERM else [agent.pid, *children(agent.pid)]
        at = time.time()
        for pid in victims:
            os.kill(pid, how)
        agent.wait(LONG)
        return at

    def trains(self, world, since):
        """The moment of the first step of a world of this size."""
        def check():
            found = [e["at"] for e in self.notes.read() if e["what"] == "first" and e["world"] == world
                     and e["at"] >= since]
            return found and found[0]
        return wait(f"torchrun trains with {world}", check, LONG)

    def goes_on(self):
        at = time.time()
        wait("torchrun makes steps", lambda: [e for e in self.notes.read() if e["what"] == "step" and e["at"] > at + 1],
             LONG)

    def end(self):
        for agent in self.agents:
            for pid in [agent.pid, *children(agent.pid)]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            agent.wait()
        self.store.kill()
        self.store.wait()


class Linked(Group):
    """The same with a network of its own for each agent, so that one can vanish without a word."""

    net, host, more = "10.193.7", "10.193.7.1", {"PATIENCE": str(PATIENCE)}

    def __init__(self, job, folder, settings):
        self.bridge, self.lost, self.count = f"eto{os.getpid() % 100_000}", [], 0
        self.ip("link", "add", self.bridge, "type", "bridge")
        self.ip("address", "add", f"{self.host}/24", "dev", self.bridge)
        self.ip("link", "set", self.bridge, "up")
        super().__init__(job, folder, settings)

    def ip(self, *words):
        subprocess.run(["ip", *words], check=True)

    def link(self, n):
        """The namespace of the nth agent, and the host's end of its link."""
        return f"{self.bridge}-{n}"

    def place(self):
        self.count += 1
        name, address = self.link(self.count), f"{self.net}.{self.count + 1}"
        self.ip("netns", "add", name)
        self.ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        self.ip("link", "set", name, "master", self.bridge, "up")
        for words in (("address", "add", f"{address}/24", "dev", "eth0"), ("link", "set", "eth0", "up"),
                      ("link", "set", "lo", "up")):
            self.ip("-n", name, *words)
        return ["ip", "netns", "exec", name], "eth0", address

    def vanish(self):
        """The newest agent's link is gone: nobody's connection to it is closed."""
        at = time.time()
        self.ip("link", "set", self.link(self.count), "down")
        self.lost.append(self.agents.pop())
        return at

    def end(self):
        self.agents += self.lost
        super().end()
        for n in range(1, self.count + 1):
            # A namespace ends with its last connection, which may be minutes later.
            self.ip("link", "delete", self.link(n))
            self.ip("netns", "delete", self.link(n))
        self.ip("link", "delete", self.bridge)


def children(pid):
    """Of a process, with theirs."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parent = int(open(f"/proc/{entry}/stat").read().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            if parent == pid:
                found += [int(entry), *children(int(entry))]
    return found


def measure(job, folder, settings, times, tell):
    """Seconds of each joining and each way of leaving."""
    group = Group(job, folder, settings)
    series = {"join": [], "term": [], "kill": []}
    try:
        for _ in range(2):
            at = group.join()
        group.trains(2, at)
        group.goes_on()
        for n in range(times):
            for how, number in (("term", signal.SIGTERM), ("kill", signal.SIGKILL)):
                at = group.join()
                series["join"].append(group.trains(3, at) - at)
                group.goes_on()
                at = group.leave(number)
                series[how].append(group.trains(2, at) - at)
                group.goes_on()
            tell(f"torchrun with settings {settings}, {n + 1} of {times}: " +
                 ", ".join(f"{k} {v[-1]:.1f}" for k, v in series.items()))
    finally:
        group.end()
    return series


def measure_links(job, folder, times, tell):
    """Seconds from a vanished link until the others train again."""
    group, series = Linked(job, folder, "B"), []
    try:
        for _ in range(2):
            at = group.join()
        group.trains(2, at)
        for n in range(times):
            group.trains(3, group.join())
            group.goes_on()
            at = group.vanish()
            series.append(group.trains(2, at) - at)
            group.goes_on()
            tell(f"torchrun, a link vanished, {n + 1} of {times}: {series[-1]:.1f}")
    finally:
        group.end()
    return series
