"""The cluster of the training tests: two real nodes, the operator from its chart, and what there is to look at."""
import glob
import json
import os
import shutil
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LAB = os.path.join(ROOT, "tests", "cluster")
STATE = os.environ.get("CLUSTER_STATE", "/tmp/k8s-lab")
TOOLS = os.path.expanduser("~/.cache/elastic-training-operator/bin")
SYSTEM = "elastic-system"
# Where a case serves a registry: the host's end of the lab's bridge, which pods reach.
REGISTRY = "10.192.0.1:5080"
# A node that is silent for this long counts as dead, in seconds. On a busy machine a short one kills live nodes.
GRACE = int(os.environ.get("ETO_E2E_NODE_GRACE", "40"))


class Failed(Exception):
    """What was expected, and what was seen."""


def run(*command, env=None, text=None):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, input=text,
                          env={**os.environ, "PATH": TOOLS + ":" + os.environ["PATH"], **(env or {})})
    if done.returncode:
        raise Failed(f"{' '.join(command)[:200]}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def cache():
    """Where the cluster's binaries and images are kept (CLUSTER_CACHE)."""
    return run("bash", "-c", '. tests/cluster/env.sh && echo "$CLUSTER_CACHE"').strip()


def wait(what, check, within=60.0):
    """Waits until `check` gives something that is true; gives that."""
    end, last = time.time() + within, None
    while time.time() < end:
        try:
            last = check()
            if last:
                return last
        except Failed as failure:
            last = failure
        time.sleep(0.1)
    raise Failed(f"{what}: not within {within:.0f} s; last seen: {last}")


class Cluster:
    def __init__(self, operator, agent):
        self.operator, self.agent = operator, agent
        self.folder = tempfile.mkdtemp(prefix="eto-training-")
        os.chmod(self.folder, 0o777)

    def start(self):
        self.up()
        self.images()
        self.kubectl("apply", "-f", "deploy/crds.yaml")
        self.install()

    def up(self):
        subprocess.run([os.path.join(LAB, "down.sh")], capture_output=True)  # what a killed run may have left
        run(os.path.join(LAB, "up.sh"), "--kubelets", "2",
            env={"NODE_GPUS": "0", "KCM_FLAGS": f"--node-monitor-grace-period={GRACE}s"})

    env = {"KUBECONFIG": os.path.join(STATE, "kubeconfig")}

    def images(self):
        """The operator with the libraries it needs, the agent alone, and etcd."""
        self.image_of(self.operator, "eto-operator:dev")
        image, root = os.path.join(LAB, "image.sh"), os.path.join(self.folder, "image")
        os.makedirs(root)
        shutil.copy(self.agent, f"{root}/eto-agent")
        run(image, "eto-agent:dev", root, "/eto-agent", env={"IMAGE_USER": "65532:65532"})
        shutil.rmtree(root)
        run(image, "etcd:dev", os.path.join(cache(), "bin", "etcd"))

    def image_of(self, operator, name, *more):
        """A program with the libraries that it needs, and more files where they are on this machine."""
        root = os.path.join(self.folder, "image")
        os.makedirs(f"{root}/usr/bin")
        os.makedirs(f"{root}/usr/share/elastic-training/policies")
        shutil.copy(operator, f"{root}/usr/bin/elastic-training-operator")
        for word in [*run("ldd", operator).split(), *more]:
            if word.startswith("/"):
                os.makedirs(os.path.dirname(root + word), exist_ok=True)
                shutil.copy(word, root + word)
        run(os.path.join(LAB, "image.sh"), name, root, "/usr/bin/elastic-training-operator")
        shutil.rmtree(root)

    def install(self, members=1, external=None):
        """The chart, with so many members of etcd, or with one that is not its own (address, Secret); again for an upgrade."""
        self.members = 0 if external else members
        of = lambda name: (f"{name}.tag=dev", f"{name}.pullPolicy=Never")
        values = ["image.repository=localhost/eto-operator", *of("image"), "gateway.enabled=true",
                  "gateway.agentImage.repository=localhost/eto-agent", *of("gateway.agentImage"),
                  "gateway.etcd.image.repository=localhost/etcd", *of("gateway.etcd.image"),
                  f"gateway.etcd.replicas={members}",
                  "settings.evaluation.period=1s", "settings.log.level=info\\,eto_operator=debug",
                  # A leader that was killed is replaced sooner than by default.
                  "settings.leader.duration=6s", "settings.leader.renew-deadline=4s",
                  "settings.leader.retry-period=1s",
                  # Where images of the nodes may be asked for their commands (registry.py).
                  f"settings.images.mirrors=localhost={REGISTRY}", f"settings.images.plain-http={REGISTRY}",
                  "images.pullSecrets=true"]
        if external:
            address, secret = external
            values += [f"gateway.etcd.external.endpoints={{{address}}}", f"gateway.etcd.external.secretName={secret}"]
        if members > 1:
            values += ["gateway.etcd.persistence.enabled=true", "gateway.etcd.persistence.storageClass=etcd"]
            self.volumes(members)
        sets = [word for value in values for word in ("--set", value)]
        run("helm", "upgrade", "--install", "elastic-training", "deploy/chart/elastic-training-operator",
            "--namespace", SYSTEM, "--create-namespace", *sets, env=self.env)
        self.kubectl("label", "namespace", SYSTEM, "pod-security.kubernetes.io/enforce=restricted", "--overwrite")
        wait("operator and etcd are ready", self.is_ready, 300)

    def volumes(self, count):
        """Folders of this machine, which both nodes see: one for each member of etcd."""
        for n in range(count):
            folder = os.path.join(self.folder, f"etcd-{n}")
            os.makedirs(folder)
            os.chown(folder, 65532, 65532)
            self.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"etcd-{n}"},
                        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                                 "storageClassName": "etcd", "hostPath": {"path": folder}}})

    def is_ready(self):
        pods = self.get("pods", "-n", SYSTEM)
        return len(pods) == 2 + self.members and all(ready(p) for p in pods)

    def stop(self):
        subprocess.run([os.path.join(LAB, "down.sh")], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def kubectl(self, *arguments, text=None):
        return run("kubectl", *arguments, env=self.env, text=text)

    def get(self, *arguments):
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))["items"]

    def apply(self, thing):
        self.kubectl("apply", "-f", "-", text=json.dumps(thing))

    def node(self, command, number):
        run(os.path.join(LAB, "node.sh"), command, str(number))

    def node_ready(self, number):
        return any(ready(n) for n in self.get("nodes") if n["metadata"]["name"] == f"node-{number}")

    def api_server(self, which):
        """A signal to the API server: stopped it answers nobody."""
        with open(f"{STATE}/pids/kube-apiserver") as f:
            os.kill(int(f.read().split()[0]), which)

    def leader(self):
        """The pod of the operator that leads."""
        lease = json.loads(self.kubectl("get", "lease", "-n", SYSTEM, "elastic-training-operator", "-o", "json"))
        holder = lease["spec"].get("holderIdentity") or ""
        pods = [p for p in self.get("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/name=elastic-training-operator")
                if holder.startswith(p["metadata"]["name"])]
        return pods[0]["metadata"]["name"] if pods else None

    def kill(self, pod):
        """SIGKILL to the operator's process in that pod."""
        for pid in processes("elastic-training-operator"):
            if environment(pid).get("HOSTNAME") == pod:
                os.kill(pid, 9)
                return
        raise Failed(f"no process of {pod}")

    def evidence(self):
        for what in (["get", "elasticjobs,pods", "-A", "-o", "wide"], ["get", "elasticjobs", "-o", "yaml"],
                     ["get", "events", "--sort-by=.lastTimestamp"],
                     ["logs", "-n", SYSTEM, "-l", "app.kubernetes.io/name=elastic-training-operator", "--tail=60",
                      "--prefix"]):
            done = subprocess.run(["kubectl", *what], capture_output=True, text=True, env={**os.environ, **self.env})
            print(f"  -- {' '.join(what)}\n{done.stdout[-9000:]}{done.stderr}")


def ready(pod):
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def processes(name):
    """Processes of this machine, containers among them, whose program has this name."""
    for entry in glob.glob("/proc/[0-9]*"):
        try:
            words = open(f"{entry}/cmdline", "rb").read().split(b"\0")
        except OSError:
            continue
        if words and os.path.basename(words[0].decode(errors="replace")) == name:
            yield int(os.path.basename(entry))


def environment(pid):
    try:
        pairs = open(f"/proc/{pid}/environ", "rb").read().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(p.split("=", 1) for p in pairs if "=" in p)
