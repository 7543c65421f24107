#!/usr/bin/env python3
"""Data-parallel training with nothing but Python's standard library.

A logistic regression on synthetic data, by synchronous SGD. The global batch of a step is the same for every number
of workers: each takes its share of it, and the gradients are summed over TCP at the coordinator (rank 0). So the
loss at a step does not depend on how many workers computed it, and a resize can be checked to the digit.

What makes it elastic, and what any training script needs:
  * RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT come from the environment and are read once;
  * rank 0 writes a checkpoint (aside, then renamed) and every start resumes from it;
  * SIGTERM means: finish the step together with the others, write the checkpoint, exit with 143.

--feed names a file with the seconds that one batch takes to arrive from storage. 0 (or no file) is a feed that keeps
up: the workers are bound by their CPU. More makes them wait for data, as a slow disk would.
"""

import argparse
import array
import json
import math
import os
import random
import signal
import socket
import struct
import sys
import time
from operator import mul

FEATURES = 32
POOL = 32768  # samples there are
BATCH = 16384  # samples of one step, over all workers
RATE = 0.05
CONNECT_SECONDS = 60
STOPPED = 143  # 128 + SIGTERM: "I stopped in order and my checkpoint is written"


class Stop:
    """Set by SIGTERM; looked at between steps."""

    asked = False

    @classmethod
    def ask(cls, *_):
        cls.asked = True


def samples(seed=7):
    """The data set: points and the labels a hidden line gives them, with some noise."""
    rng = random.Random(seed)
    hidden = [rng.gauss(0, 1) for _ in range(FEATURES)]
    data = []
    for _ in range(POOL):
        x = [rng.gauss(0, 1) for _ in range(FEATURES)]
        y = 1.0 if sum(map(mul, hidden, x)) + rng.gauss(0, 0.5) > 0 else 0.0
        data.append((x, y))
    return data


def shard(step, rank, world):
    """Which samples of the step's batch this worker computes."""
    start = step * BATCH % POOL
    return [(start + i) % POOL for i in range(rank, BATCH, world)]


def gradient(weights, data, indexes):
    """Summed gradient and summed loss over some samples."""
    grad = [0.0] * FEATURES
    loss = 0.0
    for i in indexes:
        x, y = data[i]
        z = sum(map(mul, weights, x))
        p = 1.0 / (1.0 + math.exp(-z)) if z >= 0 else 1.0 - 1.0 / (1.0 + math.exp(min(z, 700.0)))
        loss -= math.log(max(p if y else 1.0 - p, 1e-12))
        error = p - y
        for j, xj in enumerate(x):
            grad[j] += error * xj
    return grad, loss


def send(conn, values, flag):
    body = array.array("d", values).tobytes()
    conn.sendall(struct.pack("!IB", len(body), flag) + body)


def receive(conn):
    size, flag = struct.unpack("!IB", read_exactly(conn, 5))
    values = array.array("d")
    values.frombytes(read_exactly(conn, size))
    return list(values), flag


def read_exactly(conn, size):
    parts = bytearray()
    while len(parts) < size:
        part = conn.recv(size - len(parts))
        if not part:
            raise ConnectionError("a peer has gone")
        parts += part
    return bytes(parts)


class Group:
    """All workers of the round. Rank 0 sums; the others send and take the sum."""

    def __init__(self, rank, world, address, port):
        self.rank, self.world = rank, world
        self.peers = {}
        if world == 1:
            return
        deadline = time.monotonic() + CONNECT_SECONDS
        if rank == 0:
            self._gather(address, port, deadline)
        else:
            self.peers[0] = self._join(address, port, deadline)

    def _gather(self, address, port, deadline):
        with socket.create_server((address, port)) as server:
            server.settimeout(0.2)
            while len(self.peers) < self.world - 1:
                leave_if_asked(deadline)
                try:
                    conn, _ = server.accept()
                except TimeoutError:
                    continue
                conn.settimeout(None)
                conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _, rank = receive(conn)
                self.peers[rank] = conn

    def _join(self, address, port, deadline):
        while True:
            leave_if_asked(deadline)
            try:
                conn = socket.create_connection((address, port), timeout=1)
            except OSError:
                time.sleep(0.05)
                continue
            conn.settimeout(None)
            conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            send(conn, [], self.rank)
            return conn

    def total(self, values, stop):
        """The sum over all workers, and whether any of them was asked to stop: the same answer for everyone, so all
        stop after the same step."""
        if self.world == 1:
            return values, stop
        if self.rank != 0:
            send(self.peers[0], values, stop)
            return receive(self.peers[0])
        total = values
        for rank in sorted(self.peers):
            theirs, flag = receive(self.peers[rank])
            total = [a + b for a, b in zip(total, theirs)]
            stop = stop or flag
        for conn in self.peers.values():
            send(conn, total, stop)
        return total, stop


def leave_if_asked(deadline):
    if Stop.asked:
        sys.exit(STOPPED)  # nothing was computed yet, nothing is lost
    if time.monotonic() > deadline:
        sys.exit("the other workers did not come in time")


def load(path):
    """(steps done, weights); from the start if there is no checkpoint."""
    try:
        with open(path, encoding="utf-8") as file:
            kept = json.load(file)
        return kept["step"], kept["weights"]
    except FileNotFoundError:
        return 0, [0.0] * FEATURES


def save(path, step, weights):
    """Whole or not at all: written aside, then renamed over the old one."""
    aside = f"{path}.{os.getpid()}"
    with open(aside, "w", encoding="utf-8") as file:
        json.dump({"step": step, "weights": weights}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def wait_for_data(feed):
    """The batch arrives from storage. The worker has nothing to do meanwhile."""
    try:
        with open(feed, encoding="utf-8") as file:
            seconds = float(file.read().strip() or 0)
    except (OSError, ValueError, TypeError):
        return
    end = time.monotonic() + seconds
    while not Stop.asked and time.monotonic() < end:
        time.sleep(min(0.05, max(0.0, end - time.monotonic())))


def train(args, rank, world):
    data = samples()
    group = Group(rank, world, os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500")))
    done, weights = load(args.checkpoint)
    # Every worker reads the same file, but only rank 0's answer counts: it may be newer than what another saw.
    (done, *weights), _ = group.total([float(done), *weights] if rank == 0 else [0.0] * (1 + FEATURES), False)
    done = int(done)
    if rank == 0:
        print(f"resume step={done} world={world}", flush=True)
    while done < args.steps:
        wait_for_data(args.feed)
        grad, loss = gradient(weights, data, shard(done, rank, world))
        (loss, *grad), stop = group.total([loss, *grad], Stop.asked)
        weights = [w - RATE * g / BATCH for w, g in zip(weights, grad)]
        done += 1
        if rank == 0:
            print(f"step={done} loss={loss / BATCH:.6f} world={world}", flush=True)
            if stop or done % args.every == 0 or done == args.steps:
                save(args.checkpoint, done, weights)
                print(f"checkpoint step={done}", flush=True)
        if stop:
            return STOPPED
    return 0


def main():
    signal.signal(signal.SIGTERM, Stop.ask)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", required=True, help="file to resume from and to write")
    parser.add_argument("--feed", help="file with the seconds that a batch takes to arrive")
    parser.add_argument("--steps", type=int, default=10**9, help="steps in all")
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    args = parser.parse_args()
    try:
        return train(args, int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
    except ConnectionError as error:
        # A peer died in the middle of a step: the last checkpoint holds, this step is done again.
        print(f"stopping: {error}", file=sys.stderr, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
