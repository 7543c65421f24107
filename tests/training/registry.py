"""An image registry for the cluster, and the case of a job whose command is its image's."""
import base64
import json
import os
import shutil
import subprocess
import tarfile
import time
import urllib.error
import urllib.request

from cluster import LAB, REGISTRY, Failed, run, wait
from job import Plain


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


class Bare(Plain):
    """Its template names no command: the image's entrypoint is the trainer."""

    def __init__(self, cluster, name, secrets=()):
        super().__init__(cluster, name)
        self.secrets = secrets

    def manifest(self, replicas):
        manifest = super().manifest(replicas)
        template = manifest["spec"]["template"]["spec"]
        template["imagePullSecrets"] = [{"name": name} for name in self.secrets]
        [container] = template["containers"]
        container["image"] = "localhost/bare:1"
        del container["command"]
        return manifest

    def agent_rounds(self):
        [said] = [c for c in self.settled(1)["conditions"] if c["type"] == "AgentRounds"]
        return said["status"], said["reason"], said["message"]


def image_command(beside):
    """The operator asks the registry for the image's command, and an agent runs it: a resize keeps the pods."""
    cluster, registry = beside.cluster, Registry(beside.cluster.folder)
    jobs = [Bare(cluster, "bare", ["robot"]), Bare(cluster, "shy")]
    try:
        registry.start()
        nothing = os.path.join(registry.folder, "nothing")
        os.makedirs(nothing)
        run(os.path.join(LAB, "image.sh"), "--busybox", "bare:1", nothing, *jobs[0].command())
        registry.push("bare", "1")
        auths = json.dumps({"auths": {REGISTRY: {"auth": BASIC}}})
        cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "robot", "namespace": "default"},
                       "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": auths}})
        without_secret(jobs[1])
        return with_secret(jobs[0])
    finally:
        registry.stop()
        for job in jobs:
            job.delete()


def without_secret(shy):
    """It runs all the same, and says why it has no agent."""
    shy.apply(1)
    shy.trains(1, 0)
    status, reason, message = shy.agent_rounds()
    if (status, reason) != ("False", "ImageNotRead") or "refuses whoever has no credentials (HTTP 401)" not in message:
        raise Failed(f"AgentRounds is {status} {reason} {message}")


def with_secret(bare):
    bare.apply(1)
    at = time.time()
    took = bare.trains(1, at) - at
    status, reason, message = bare.agent_rounds()
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
