"""A gate in the operator's way to the API server: an admission webhook on this machine that holds what it is told to.

With it an operator can be killed at an exact point: when a step of a change has just been written, and before anything
else is.
"""
import base64
import http.server
import json
import os
import ssl
import threading

from cluster import LAB, STATE, SYSTEM, run, wait

NAME = "gate.training.test"
OPERATOR = f"system:serviceaccount:{SYSTEM}:elastic-training-operator"


class Gate:
    """Lets everything pass until it is armed. Then the first status of the job with that step passes, and nothing of
    the operator after it until `open`."""

    def __init__(self, cluster, job):
        self.cluster, self.job = cluster, job
        self.lock = threading.Lock()
        self.step, self.hit, self.opened, self.asked = None, threading.Event(), threading.Event(), 0
        self.server = self.serve()
        self.register()
        wait("the API server asks the gate", self.is_asked, 60)

    # --- used by tests -----------------------------------------------------------------------------------------------

    def arm(self, step):
        with self.lock:
            self.step, self.hit, self.opened = step, threading.Event(), threading.Event()
        return self.hit

    def open(self):
        with self.lock:
            self.step = None
            self.opened.set()

    def close(self):
        """The end of the gate."""
        self.open()
        self.cluster.kubectl("delete", "validatingwebhookconfiguration", NAME, "--ignore-not-found")
        self.server.shutdown()
        self.server.server_close()

    # --- the webhook -------------------------------------------------------------------------------------------------

    def admits(self, request):
        """Whether a request of the operator may pass; answers when that is known."""
        with self.lock:
            self.asked += 1
            if self.step is None:
                return True
            if not self.hit.is_set():
                if self.is_step(request):
                    self.hit.set()
                return True
            opened = self.opened
        # Its client is dead by then; if it is not, it may try again.
        opened.wait(25)
        return False

    def is_step(self, request):
        thing = request.get("object") or {}
        change = thing.get("status", {}).get("change") or {}
        return request["name"] == self.job and change.get("step") == self.step

    def is_asked(self):
        """Asks for something that would be the operator's, and changes nothing."""
        self.cluster.kubectl("run", "gate", "--image=none", "--dry-run=server", f"--as={OPERATOR}")
        return self.asked

    def serve(self):
        run("bash", "-c", f'. "{LAB}/env.sh"; cert gate /CN=gate IP:127.0.0.1')
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        pki = os.path.join(STATE, "pki")
        context.load_cert_chain(f"{pki}/gate.crt", f"{pki}/gate.key")
        gate = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = {"uid": review["request"]["uid"], "allowed": gate.admits(review["request"])}
                if not answer["allowed"]:
                    answer["status"] = {"message": "held by a test", "code": 503}
                body = json.dumps({**review, "request": None, "response": answer}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass  # a client that went away

        server = Server(("127.0.0.1", 0), Handler)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def register(self):
        with open(os.path.join(STATE, "pki", "ca.crt"), "rb") as f:
            ca = base64.b64encode(f.read()).decode()
        rule = lambda group, resource, *operations: {
            "apiGroups": [group], "apiVersions": ["*"], "resources": [resource], "operations": list(operations),
            "scope": "Namespaced"}
        self.cluster.apply({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": NAME},
            "webhooks": [{
                "name": NAME, "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore",
                "timeoutSeconds": 30,
                "clientConfig": {"url": f"https://127.0.0.1:{self.server.server_address[1]}/", "caBundle": ca},
                "rules": [rule("elastic.ai", "elasticjobs/status", "UPDATE"), rule("", "pods", "CREATE", "DELETE")],
                "matchConditions": [{"name": "operator", "expression": f"request.userInfo.username == '{OPERATOR}'"}],
            }],
        })
