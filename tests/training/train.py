#!/usr/bin/env python3
"""A training that needs nothing but Python: every step takes a word from all ranks, checkpoints are real files.

It stands for what users run: it knows the variables that PyTorch reads, SIGTERM, and its own checkpoint file. It tells
its agent of checkpoints where there is one. Everything that happens is a line of JSON in $LOG/<host name>.
"""
import json
import os
import signal
import socket
import struct
import sys
import time
import urllib.request

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ROUND = int(os.environ.get("ETO_ROUND", "0"))
FOLDER, STEPS = os.environ["FOLDER"], int(os.environ.get("STEPS", "1000000"))
PAUSE, EVERY = float(os.environ.get("PAUSE", "0.05")), int(os.environ.get("EVERY", "20"))
CHECKPOINT = os.path.join(FOLDER, "checkpoint.json")
# Whether each rank tells how long it worked itself: what a straggler is known by.
TELLS_WORK = "TELLS_WORK" in os.environ
# While this file is there, only a stop makes a checkpoint: a test decides how long one is waited for.
HELD = os.path.join(FOLDER, "no-checkpoints")
# Seconds that each step takes this rank longer.
slower = 0.0
log = open(os.path.join(FOLDER, socket.gethostname() + ".log"), "a", buffering=1)


def note(what, **more):
    entry = {"at": time.time(), "what": what, "pid": os.getpid(), "round": ROUND, "rank": RANK, "world": WORLD, **more}
    log.write(json.dumps(entry) + "\n")


def tell(path, **what):
    if "ETO_AGENT" in os.environ:
        body = json.dumps({**what, "generation": ROUND}).encode()
        request = urllib.request.Request(os.environ["ETO_AGENT"] + path, body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=5).read()


def hang_if_asked():
    """Once, before the first step, while there is $FOLDER/<host name>.hang."""
    path = os.path.join(FOLDER, socket.gethostname() + ".hang")
    if os.path.exists(path):
        os.remove(path)
        note("hangs")
        while True:
            signal.pause()


def fail_if_asked():
    """What a test wants of this pod, once: `exit CODE`, `eat MIB` or `slow MS` in the file $FOLDER/<host name>.fault."""
    global slower
    path = os.path.join(FOLDER, socket.gethostname() + ".fault")
    if os.path.exists(path):
        with open(path) as f:
            what, number = f.read().split()
        os.remove(path)
        if what == "exit":
            sys.exit(int(number))
        if what == "slow":
            slower = int(number) / 1000
            return
        bytearray(b"x") * (int(number) << 20)


def work():
    """A step's work of this rank's own; gives the seconds that it took."""
    at = time.monotonic()
    time.sleep(PAUSE + slower)
    return time.monotonic() - at


def load():
    try:
        with open(CHECKPOINT) as f:
            return json.load(f)["step"]
    except FileNotFoundError:
        return 0


def save(step):
    """Aside, then renamed; never over one of a later round, which a straggler of an earlier one might try."""
    try:
        with open(CHECKPOINT) as f:
            if json.load(f)["round"] > ROUND:
                return
    except FileNotFoundError:
        pass
    aside = f"{CHECKPOINT}.{ROUND}.{os.getpid()}"
    with open(aside, "w") as f:
        json.dump({"step": step, "round": ROUND}, f)
        f.flush()
        os.fsync(f.fileno())
    os.rename(aside, CHECKPOINT)
    note("saved", step=step)
    tell("/v1/checkpointed", step=step)


def receive(peer):
    data = b""
    while len(data) < 8:
        part = peer.recv(8 - len(data))
        if not part:
            raise ConnectionError("a peer is gone")
        data += part
    return struct.unpack("!q", data)[0]


def meet():
    """Rank 0 listens where all are told to come to; the others come."""
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if RANK == 0:
        server = socket.create_server(("", place[1]))
        server.settimeout(120)
        return [server.accept()[0] for _ in range(WORLD - 1)]
    for _ in range(600):
        try:
            peer = socket.create_connection(place, timeout=5)
            peer.settimeout(None)
            return [peer]
        except OSError:
            time.sleep(0.1)
    raise ConnectionError(f"nobody at {place}")


def step_together(peers, step):
    """The sum over all ranks, which all of them must agree on."""
    if RANK == 0:
        total = step + sum(receive(p) for p in peers)
        for p in peers:
            p.sendall(struct.pack("!q", total))
    else:
        peers[0].sendall(struct.pack("!q", step))
        total = receive(peers[0])
    if total != step * WORLD:
        raise ValueError(f"the ranks are not at one step: {total} is not {WORLD} times {step}")


def main():
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    note("started")
    peers = meet()
    step = load()
    note("resumed", step=step)
    hang_if_asked()
    first, worked = step + 1, 0.0
    while step < STEPS:
        step += 1
        fail_if_asked()
        try:
            step_together(peers, step)
        except (ConnectionError, ValueError) as error:
            # A peer that was asked to stop first is gone in the middle of a step.
            note("broke", step=step, why=str(error))
            sys.exit(143 if stop else 1)
        if step == first or step % 10 == 0:
            note("first" if step == first else "step", step=step)
        if TELLS_WORK:
            tell("/v1/progress", step=step, workSeconds=worked)
        elif RANK == 0:
            tell("/v1/progress", step=step)
        if RANK == 0 and step % EVERY == 0 and not os.path.exists(HELD):
            save(step)
        if stop:
            if RANK == 0:
                save(step)
            note("stopped", step=step)
            sys.exit(143)
        worked += work()
    note("done", step=step)


main()
