"""An image registry for the cluster, and the cases of jobs whose command is their image's."""
import base64
import contextlib
import json
import os
import shutil
import subprocess
import tarfile
import time
import urllib.error
import urllib.request

from cluster import LAB, REGISTRY, Failed, run, wait
from framework import HERE, Framework
from job import LONG, Plain

USER, PASSWORD = "robot", "open sesame"
HTPASSWD = "robot:$2b$05$C203QSyKbOGISCiWemRfUemHtZRNqUkxjIWAbgbA2UKmcJmaNWD1a\n"
BASIC = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


class Registry:
    """Debian's docker-registry, without TLS, for those who know the password."""

    def __init__(self, folder):
        self.folder = os.path.join(folder, "registry")
        self.process = None

    def start(self):
        if not shutil.which("docker-registry"):
            raise Failed("there is no docker-registry: tools/setup.sh registry")
        os.makedirs(self.folder)
        config = os.path.join(self.folder, "config.yml")
        with open(config, "w") as f:
            f.write("version: 0.1\nlog: {level: warn}\n"
                    f"auth: {{htpasswd: {{realm: lab, path: {self.folder}/htpasswd}}}}\n"
                    f"storage: {{filesystem: {{rootdirectory: {self.folder}/data}}}}\n"
                    f"http: {{addr: '{REGISTRY}', secret: lab}}\n")
        with open(os.path.join(self.folder, "htpasswd"), "w") as f:
            f.write(HTPASSWD)
        with open(os.path.join(self.folder, "log"), "w") as log:
            self.process = subprocess.Popen(["docker-registry", "serve", config], stdout=log, stderr=log)
        wait("the registry answers", lambda: self.ask("GET", "/v2/")[0] == 200, 20)

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def make(self, name, files, *words, **env):
        """An image of these files (in it: here) on top of busybox, on the nodes and in the registry."""
        root = os.path.join(self.folder, "root")
        os.makedirs(root)
        for to, here in files.items():
            os.makedirs(os.path.dirname(root + to), exist_ok=True)
            shutil.copy(here, root + to)
        run(os.path.join(LAB, "image.sh"), "--busybox", f"{name}:1", root, *words, env=env)
        shutil.rmtree(root)
        self.push(name, "1")

    @staticmethod
    def ask(method, path, data=None, kind="application/octet-stream"):
        url = path if path.startswith("http") else f"http://{REGISTRY}{path}"
        request = urllib.request.Request(url, data, {"Content-Type": kind, "Authorization": f"Basic {BASIC}"},
                                         method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.headers
        except urllib.error.HTTPError as error:
            raise Failed(f"{method} {url}: {error.code} {error.read()[:200]}")
        except OSError as error:
            raise Failed(f"{method} {url}: {error}")

    def push(self, name, tag):
        """The image as the lab keeps it: an OCI layout in an archive."""
        images = run("bash", "-c", f". {LAB}/env.sh && echo $IMAGES").strip()
        with tarfile.open(os.path.join(images, f"localhost_{name}_{tag}.tar")) as archive:
            of = lambda digest: archive.extractfile(f"blobs/{digest.replace(':', '/')}").read()
            [entry] = json.load(archive.extractfile("index.json"))["manifests"]
            manifest = of(entry["digest"])
            for part in [json.loads(manifest)["config"], *json.loads(manifest)["layers"]]:
                _, headers = self.ask("POST", f"/v2/{name}/blobs/uploads/", b"")
                join = "&" if "?" in headers["Location"] else "?"
                self.ask("PUT", f"{headers['Location']}{join}digest={part['digest']}", of(part["digest"]))
            self.ask("PUT", f"/v2/{name}/manifests/{tag}", manifest, "application/vnd.oci.image.manifest.v1+json")


def without_command(manifest, image, secrets):
    """The same with an image's command in place of its own."""
    template = manifest["spec"]["template"]["spec"]
    template["imagePullSecrets"] = [{"name": name} for name in secrets]
    [container] = template["containers"]
    container["image"] = image
    del container["command"]
    return manifest


def said_of_agents(job, world):
    [said] = [c for c in job.settled(world)["conditions"] if c["type"] == "AgentRounds"]
    return said["status"], said["reason"], said["message"]


class Bare(Plain):
    """Its template names no command: the image's entrypoint is the trainer."""

    def __init__(self, cluster, name, secrets=()):
        super().__init__(cluster, name)
        self.secrets = secrets

    def manifest(self, replicas):
        return without_command(super().manifest(replicas), "localhost/bare:1", self.secrets)


class FirstTry(Framework):
    """A script that knows torch alone, from an image that has but a CMD, as the guide's Dockerfile makes it."""

    all_note = True

    def __init__(self, cluster):
        super().__init__(cluster, "torch", "first-try")

    def spec(self):
        return {"frameworkType": "PyTorch"}

    def environment(self):
        path = ":".join([os.path.join(self.venv, "bin"), "/usr/bin", "/bin"])
        return {**super().environment(), "PATH": path}

    def manifest(self, replicas):
        return without_command(super().manifest(replicas), "localhost/first-try:1", ["robot"])


@contextlib.contextmanager
def served(cluster, *jobs):
    """A registry, and the credentials for it; afterwards the jobs go."""
    registry = Registry(cluster.folder)
    try:
        registry.start()
        auths = json.dumps({"auths": {REGISTRY: {"auth": BASIC}}})
        cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "robot", "namespace": "default"},
                       "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": auths}})
        yield registry
    finally:
        registry.stop()
        for job in jobs:
            job.delete()


def image_command(beside):
    """The operator asks the registry for the image's command, and an agent runs it: a resize keeps the pods."""
    bare, shy = Bare(beside.cluster, "bare", ["robot"]), Bare(beside.cluster, "shy")
    with served(beside.cluster, bare, shy) as registry:
        registry.make("bare", {}, *bare.command())
        without_secret(shy)
        return with_secret(bare)


def first_try(beside):
    """No command, no helper, no checkpoint: it runs and resizes, and an event says what that costs."""
    job = FirstTry(beside.cluster)
    with served(beside.cluster, job) as registry:
        registry.make("first-try", {"/app/mnist.py": os.path.join(HERE, "first_try.py")}, "python", "mnist.py",
                      IMAGE_CMD="1", IMAGE_WORKDIR="/app")
        job.apply(2)
        at = time.time()
        took = job.trains(2, at) - at
        if said_of_agents(job, 2)[:2] != ("True", "AgentDrivesRounds"):
            raise Failed(f"AgentRounds is {said_of_agents(job, 2)}")
        before = set(job.pods())
        asked = job.scale(3)
        grown = job.trains(3, asked) - asked
        status = job.settled(3)
        if not before < set(job.pods()):
            raise Failed(f"the pods {before} did not all stay: {set(job.pods())}")
        told = job.event("NoCheckpoint", LONG)["note"]
        if "round 2 starts all processes again" not in told or "all training so far is lost" not in told:
            raise Failed(f"the event says {told}")
        [said] = [c for c in status["conditions"] if c["type"] == "CheckpointsReported"]
        if (said["status"], said["reason"]) != ("False", "NoCheckpoint") or status.get("failures", 0):
            raise Failed(f"{said}; {status.get('failures', 0)} failures")
        job.no_container_restarted()
        return {"apply to first step": took, "scale request to first step, 2 to 3": grown}


def without_secret(shy):
    """It runs all the same, and says why it has no agent."""
    shy.apply(1)
    shy.trains(1, 0)
    status, reason, message = said_of_agents(shy, 1)
    if (status, reason) != ("False", "ImageNotRead") or "refuses whoever has no credentials (HTTP 401)" not in message:
        raise Failed(f"AgentRounds is {status} {reason} {message}")


def with_secret(bare):
    bare.apply(1)
    at = time.time()
    took = bare.trains(1, at) - at
    status, reason, message = said_of_agents(bare, 1)
    if (status, reason) != ("True", "AgentDrivesRounds"):
        raise Failed(f"AgentRounds is {status} {reason} {message}")
    before = set(bare.pods())
    bare.trains(2, bare.scale(2))
    bare.settled(2)
    if not before < set(bare.pods()):
        raise Failed(f"the pods {before} did not all stay: {set(bare.pods())}")
    for pod in bare.pods().values():
        container = pod["spec"]["containers"][0]
        words = container["command"] + container.get("args", [])
        if words != ["/eto/eto-agent", "run", "--", *bare.command()]:
            raise Failed(f"the command is {words}")
    bare.check()
    return {"apply to first step, the image asked for its command": took}
