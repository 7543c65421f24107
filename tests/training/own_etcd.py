"""An etcd that is not the chart's: on this machine, with certificates of the lab's authority."""
import os

import rounds
from cluster import LAB, STATE, SYSTEM, Failed, run

# The host's end of the lab's bridge, which pods reach.
ADDRESS, PORT = "10.192.0.1", 5079
SECRET = "own-etcd"


def lab(script):
    run("bash", "-c", f"set -euo pipefail; . {LAB}/env.sh; {script}")


def starts(cluster):
    pki, data = f"{STATE}/pki", os.path.join(cluster.folder, "own-etcd")
    lab(f"""
        cert own-etcd /CN=own-etcd IP:{ADDRESS}
        cert own-etcd-client /CN=operator
        start own-etcd "$BIN/etcd" --data-dir {data} --log-level warn --client-cert-auth --trusted-ca-file {pki}/ca.crt \
          --cert-file {pki}/own-etcd.crt --key-file {pki}/own-etcd.key --listen-peer-urls http://127.0.0.1:{PORT - 1} \
          --listen-client-urls https://{ADDRESS}:{PORT} --advertise-client-urls https://{ADDRESS}:{PORT}
        wait_for 30 own-etcd curl -sf --cacert {pki}/ca.crt --cert {pki}/own-etcd-client.crt \
          --key {pki}/own-etcd-client.key https://{ADDRESS}:{PORT}/health
    """)
    files = {"ca.crt": "ca.crt", "tls.crt": "own-etcd-client.crt", "tls.key": "own-etcd-client.key"}
    cluster.kubectl("create", "secret", "generic", SECRET, "-n", SYSTEM,
                    *(f"--from-file={name}={pki}/{file}" for name, file in files.items()))


def etcd_of_ones_own(t):
    """From the chart's to it and back, as docs/operations.md says: each time it is as if all data were lost."""
    before = t.trainers()
    starts(t.cluster)
    try:
        t.cluster.install(external=(f"https://{ADDRESS}:{PORT}", SECRET))
        t.goes_on(5)
        rounds.same_processes(t, before)
        if t.cluster.get("pods", *rounds.ETCD):
            raise Failed("the chart's etcd is still there")
        rounds.resizes(t)
        before = t.trainers()
        t.cluster.install()
    finally:
        lab("stop own-etcd")
        t.cluster.kubectl("delete", "secret", SECRET, "-n", SYSTEM, "--ignore-not-found")
    t.goes_on(5)
    rounds.same_processes(t, before)
    rounds.resizes(t)
