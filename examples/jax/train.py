#!/usr/bin/env python3
"""Elastic data-parallel training with JAX: one program over all processes, checkpoints, resume, orderly stop.

JAX can't change its processes while it runs, and need not: each round starts all of them anew at another address, and
they go on from the checkpoint. What makes that exact:
  * coordinator, number of processes and own id come from the environment, all three passed to `initialize`;
  * a step takes the same samples with any number of processes. Arrays have the same shape on all of them, so a share
    that is smaller is filled up with rows of weight 0, which count for nothing;
  * the checkpoint holds the position in the data (epoch, samples consumed);
  * SIGTERM means: all processes finish the same step, process 0 writes a checkpoint, all exit with 143.

The data is synthetic, so that it runs anywhere: `python train.py --checkpoints /tmp/ckpt`.
"""

import argparse
import functools
import glob
import json
import os
import signal
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

STOPPED = 143  # 128 + SIGTERM: "I stopped in order and my checkpoint is written"
FEATURES = 16
SEED = 7
RATE, MOMENTUM = 0.05, 0.9


def arguments():
    env = os.environ.get
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", required=True, help="directory that all workers see")
    parser.add_argument("--samples", type=int, default=4000, help="size of the synthetic data set")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=int(env("ETO_GLOBAL_BATCH_SIZE", "96")),
                        help="samples of a step over all workers")
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds added to each step, to have time to watch")
    parser.add_argument("--audit", help="directory for a list of the samples that each step took")
    return parser.parse_args()


class Stop:
    """Set by SIGTERM; looked at between steps."""

    asked = False

    @classmethod
    def listen(cls):
        signal.signal(signal.SIGTERM, lambda *_: setattr(cls, "asked", True))


def join():
    """Joins the round. All three numbers are given, or JAX would look for a kind of cluster that it knows."""
    processes = int(os.environ.get("JAX_NUM_PROCESSES", "1"))
    if processes > 1:
        jax.distributed.initialize(
            coordinator_address=os.environ["JAX_COORDINATOR_ADDRESS"],
            num_processes=processes,
            process_id=int(os.environ["JAX_PROCESS_ID"]),
            cluster_detection_method="deactivate",
            heartbeat_timeout_seconds=10,
        )


class Checkpoints:
    """One file per checkpoint, `<step>.npz`, whole or not there. The furthest step counts, whichever round or job of
    this directory wrote it: a job that was deleted and applied again goes on where the first one was."""

    KEEP = 3

    def __init__(self, directory):
        self.directory = directory
        self.round = os.environ.get("ETO_ROUND_ID", "0")
        os.makedirs(directory, exist_ok=True)

    def files(self):
        return sorted(glob.glob(os.path.join(self.directory, "[0-9]" * 10 + ".npz")))

    def load(self):
        for cut in glob.glob(os.path.join(self.directory, "*.tmp")):  # by processes that were killed while they wrote
            os.remove(cut)
        files = self.files()
        return dict(np.load(files[-1])) if files else {}

    def save(self, step, arrays):
        path = os.path.join(self.directory, "%010d.npz" % step)
        aside = "%s.%s.tmp" % (path, self.round)  # one process of a round writes
        with open(aside, "wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        for old in self.files()[: -self.KEEP]:
            os.remove(old)
        if "ETO_DRAIN_FILE" in os.environ:  # tells the agent, and so the job's status
            with open(os.environ["ETO_DRAIN_FILE"], "w", encoding="utf-8") as file:
                file.write("%d\n" % step)


def data_set(samples):
    """Points, and what a hidden smooth function makes of them."""
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((samples, FEATURES), dtype=np.float32)
    hidden = rng.standard_normal((FEATURES, 4), dtype=np.float32) / FEATURES**0.5
    return x, np.sin(x @ hidden).sum(axis=1, keepdims=True)


def order(samples, epoch):
    """Another order each epoch, the same on all processes."""
    return np.random.default_rng(SEED + epoch).permutation(samples)


def fresh():
    """The weights to begin with, and their velocities."""
    rng = np.random.default_rng(SEED)
    shapes = {"w1": (FEATURES, 32), "b1": (32,), "w2": (32, 1), "b2": (1,)}
    weights = {k: (rng.standard_normal(s) / max(s[0], 1) ** 0.5).astype(np.float32) if k[0] == "w"
               else np.zeros(s, np.float32) for k, s in shapes.items()}
    return weights, {k: np.zeros_like(v) for k, v in weights.items()}


@functools.partial(jax.jit, donate_argnums=(0, 1))
def advance(weights, velocity, x, y, use, stop):
    """One step. The rows are spread over all devices of all processes; the sums below are over all of them, and XLA
    makes the exchange. `use` is 1 for a sample and 0 for a row that fills up."""

    def loss(w):
        out = jnp.tanh(x @ w["w1"] + w["b1"]) @ w["w2"] + w["b2"]
        return jnp.sum(use * (out - y) ** 2) / jnp.sum(use)

    value, grads = jax.value_and_grad(loss)(weights)
    velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, grads)
    weights = jax.tree.map(lambda w, v: w - RATE * v, weights, velocity)
    return weights, velocity, value, jnp.max(stop)


class Rows:
    """Puts this process's rows of a step where the global array wants them."""

    def __init__(self, batch):
        devices = jax.devices()
        self.mesh = Mesh(np.array(devices), ("data",))
        self.count = -(-batch // len(devices)) * jax.local_device_count()
        self.everywhere = NamedSharding(self.mesh, P())
        self.spread = NamedSharding(self.mesh, P("data"))

    def same(self, tree):
        """Values that all processes have alike."""
        return jax.tree.map(lambda v: jax.make_array_from_process_local_data(self.everywhere, v), tree)

    def place(self, rows):
        full = np.zeros((self.count,) + rows.shape[1:], np.float32)
        full[: len(rows)] = rows
        return jax.make_array_from_process_local_data(self.spread, full)


def train(args):
    me, world = jax.process_index(), jax.process_count()
    x, y = data_set(args.samples)
    checkpoints = Checkpoints(args.checkpoints)
    weights, velocity = fresh()
    at = np.zeros(3, np.int64)  # step, epoch, samples consumed of the epoch
    # Process 0 decides where to go on: a file may appear between the looks of two processes.
    found = checkpoints.load() if me == 0 else {}
    if found:
        at = found["at"]
        weights = {k: found["w_" + k] for k in weights}
        velocity = {k: found["v_" + k] for k in velocity}
    at, weights, velocity = multihost_utils.broadcast_one_to_all((at, weights, velocity))
    step, epoch, consumed = (int(v) for v in at)
    rows = Rows(args.batch)
    weights, velocity = rows.same(weights), rows.same(velocity)

    def save():
        arrays = {"w_" + k: np.asarray(v) for k, v in weights.items()}
        arrays.update({"v_" + k: np.asarray(v) for k, v in velocity.items()})
        checkpoints.save(step, {**arrays, "at": np.array([step, epoch, consumed], np.int64)})
        print("checkpoint step=%d" % step, flush=True)

    if me == 0:
        print("resume step=%d world=%d" % (step, world), flush=True)
    audit = Audit(args.audit, me) if args.audit else None
    permutation = order(args.samples, epoch)
    Stop.listen()
    while epoch < args.epochs:
        batch = permutation[consumed : consumed + args.batch]
        mine = batch[me::world]
        if audit:
            audit.took(step, epoch, mine.tolist())
        stops = np.full((rows.count, 1), float(Stop.asked), np.float32)
        weights, velocity, loss, stop = advance(
            weights, velocity, rows.place(x[mine]), rows.place(y[mine]), rows.place(np.ones((len(mine), 1))),
            rows.place(stops))
        loss, stop = float(loss), float(stop) > 0  # here the processes wait for each other
        step, consumed = step + 1, consumed + len(batch)
        if consumed >= args.samples:
            epoch, consumed = epoch + 1, 0
            permutation = order(args.samples, epoch)
        end = epoch == args.epochs
        if me == 0:
            print("step=%d epoch=%d loss=%.6f world=%d" % (step, epoch, loss, world), flush=True)
            if stop or end or step % args.every == 0:
                save()
        if stop or end:
            multihost_utils.sync_global_devices("the checkpoint is there")
            return STOPPED if stop else 0
        time.sleep(args.pause)
    return 0


class Audit:
    """What each step took, before its result can count: for tests that each sample is seen once per epoch."""

    def __init__(self, directory, rank):
        os.makedirs(directory, exist_ok=True)
        self.round = int(os.environ.get("ETO_ROUND", "0"))
        self.file = open(os.path.join(directory, "%08d-%d.jsonl" % (self.round, rank)), "a", encoding="utf-8")

    def took(self, step, epoch, samples):
        self.file.write(json.dumps({"round": self.round, "step": step, "epoch": epoch, "samples": samples}) + "\n")
        self.file.flush()


def main():
    args = arguments()
    join()
    # JAX's own service catches SIGTERM and only notes it. Until training begins it ends the process: nothing is lost.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        return train(args)
    except (ValueError, RuntimeError) as error:
        # A peer died in the middle of a step (the collective fails): the last checkpoint holds, this step is done
        # again. Taking the group down in order would wait for the dead, so this process simply ends.
        print("stopping: %s" % str(error).splitlines()[0], file=sys.stderr, flush=True)
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
