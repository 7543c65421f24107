#!/usr/bin/env python3
"""A chief, parameter servers and workers with the standard library alone, placed by TF_CONFIG as TensorFlow reads it. Each
worker sends to the server all the time, and the chief asks it how many have."""
import json
import os
import signal
import socket
import sys
import time

CONFIG = json.loads(os.environ["TF_CONFIG"])
KIND, INDEX = CONFIG["task"]["type"], CONFIG["task"]["index"]
ROUND = int(os.environ["ETO_ROUND"])
ENOUGH = os.path.join(os.environ["FOLDER"], "enough")
log = open(os.path.join(os.environ["FOLDER"], socket.gethostname() + ".log"), "a", buffering=1)


def note(what, **more):
    entry = {"at": time.time(), "what": what, "round": ROUND, "task": f"{KIND} {INDEX}", **more}
    log.write(json.dumps(entry) + "\n")


def serve(port):
    """Answers each name with the number of the different ones that it has had."""
    known = set()
    with socket.create_server(("", port)) as server:
        while True:
            peer, _ = server.accept()
            with peer:
                known.add(peer.recv(100))
                peer.sendall(str(len(known)).encode())
                if len(known) == 1:
                    note("first", step=1)


def ask():
    host, port = CONFIG["cluster"]["ps"][0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=5) as server:
        server.sendall(f"{KIND} {INDEX}".encode())
        return int(server.recv(10))


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if KIND == "ps":
        serve(int(CONFIG["cluster"]["ps"][INDEX].rsplit(":", 1)[1]))
    everybody, told = 1 + len(CONFIG["cluster"]["worker"]), False
    while True:
        try:
            all_there = ask() == everybody
        except OSError:  # the server has not started yet, or is told to stop first
            all_there = False
        if all_there and not told:
            note("first", step=1)
            told = True
        if KIND == "chief" and all_there and os.path.exists(ENOUGH):
            note("done")
            return
        time.sleep(0.05)


main()
