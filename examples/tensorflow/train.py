#!/usr/bin/env python3
"""Elastic data-parallel training with TensorFlow: MultiWorkerMirroredStrategy, checkpoints, resume, orderly stop.

The strategy reads TF_CONFIG, which is another one in each round: all workers start anew and go on from the checkpoint.
The loop is its own, not Keras' `fit`, since that knows no position in the middle of an epoch. What makes a resize exact:
  * a step takes the same samples with any number of workers, and its gradient is their mean;
  * the checkpoint holds the position in the data (epoch, samples consumed);
  * SIGTERM means: all workers finish the same step, worker 0 writes a checkpoint, all exit with 143.

The data is synthetic, so that it runs anywhere: `python train.py --checkpoints /tmp/ckpt`.
"""

import argparse
import glob
import json
import os
import signal
import sys
import time

import numpy as np
import tensorflow as tf

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
    """Set by SIGTERM; looked at between steps. Until training begins SIGTERM ends the process: nothing is lost."""

    asked = False

    @classmethod
    def listen(cls):
        signal.signal(signal.SIGTERM, lambda *_: setattr(cls, "asked", True))


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

    def newest(self):
        """Step of the furthest one; 0 where there is none."""
        for cut in glob.glob(os.path.join(self.directory, "*.tmp")):  # by processes that were killed while they wrote
            os.remove(cut)
        files = self.files()
        return int(os.path.basename(files[-1])[: -len(".npz")]) if files else 0

    def path(self, step):
        return os.path.join(self.directory, "%010d.npz" % step)

    def save(self, step, arrays):
        path = self.path(step)
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
    """Another order each epoch, the same on all workers."""
    return np.random.default_rng(SEED + epoch).permutation(samples)


class Net:
    """Weights and their velocities, the same on all workers: all begin alike and apply the same gradients."""

    def __init__(self):
        rng = np.random.default_rng(SEED)
        shapes = {"w1": (FEATURES, 32), "b1": (32,), "w2": (32, 1), "b2": (1,)}
        first = {k: rng.standard_normal(s) / s[0] ** 0.5 if k[0] == "w" else np.zeros(s) for k, s in shapes.items()}
        self.weights = {k: tf.Variable(v, dtype=tf.float32) for k, v in first.items()}
        self.velocity = {k: tf.Variable(tf.zeros_like(v)) for k, v in self.weights.items()}

    def __call__(self, x):
        w = self.weights
        return tf.tanh(x @ w["w1"] + w["b1"]) @ w["w2"] + w["b2"]

    def arrays(self):
        return {p + k: v.numpy() for p, of in (("w_", self.weights), ("v_", self.velocity)) for k, v in of.items()}

    def take(self, arrays):
        for prefix, of in (("w_", self.weights), ("v_", self.velocity)):
            for k, v in of.items():
                v.assign(arrays[prefix + k])


def advance_with(strategy, net):
    """The compiled step. The exchange is explicit: gradients, loss and the wish to stop are summed over all workers, so
    that shares of different sizes (and empty ones) count by their samples."""

    def local(x, y, total, stop):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((net(x) - y) ** 2) / total
        names = list(net.weights)
        # What is exchanged must be made on this device: an argument as it came is on none.
        parts = tape.gradient(loss, [net.weights[k] for k in names]) + [loss, tf.identity(stop)]
        parts = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, parts)
        for k, grad in zip(names, parts):
            net.velocity[k].assign(MOMENTUM * net.velocity[k] + grad)
            net.weights[k].assign_sub(RATE * net.velocity[k])
        return parts[-2], parts[-1]

    signature = [tf.TensorSpec((None, FEATURES)), tf.TensorSpec((None, 1)), tf.TensorSpec(()), tf.TensorSpec(())]

    @tf.function(input_signature=signature)
    def advance(x, y, total, stop):
        return strategy.run(local, args=(x, y, total, stop))

    return advance


def agree(strategy, numbers):
    """The sum of these over all workers; each waits for all others."""

    def local():
        sum_up = tf.distribute.ReduceOp.SUM
        return tf.distribute.get_replica_context().all_reduce(sum_up, tf.constant(numbers, tf.float64))

    return [int(n) for n in strategy.run(local).numpy()]


def train(args):
    # Before anything else of TensorFlow: it connects the workers.
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    me, world = strategy.cluster_resolver.task_id or 0, strategy.num_replicas_in_sync
    x, y = data_set(args.samples)
    net, checkpoints = Net(), Checkpoints(args.checkpoints)
    step, epoch, consumed = 0, 0, 0
    # Worker 0 decides where to go on: a file may appear between the looks of two workers.
    [newest] = agree(strategy, [checkpoints.newest() if me == 0 else 0])
    if newest:
        found = np.load(checkpoints.path(newest))
        net.take(found)
        step, epoch, consumed = (int(v) for v in found["at"])
    advance = advance_with(strategy, net)

    def save():
        checkpoints.save(step, {**net.arrays(), "at": np.array([step, epoch, consumed], np.int64)})
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
        loss, stop = advance(tf.constant(x[mine]), tf.constant(y[mine]), tf.constant(float(len(batch))),
                             tf.constant(float(Stop.asked)))
        loss, stop = float(loss), float(stop) > 0  # here the workers wait for each other
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
            # Worker 0 serves the others: nobody leaves before the checkpoint is there.
            agree(strategy, [1])
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
    try:
        code = train(args)
    except tf.errors.OpError as error:
        # A peer died in the middle of a step: the last checkpoint holds, this step is done again.
        print("stopping: %s" % str(error).splitlines()[0], file=sys.stderr, flush=True)
        code = 1
    sys.stdout.flush()
    # Taking the group down in order would wait for peers that may be gone already.
    os._exit(code)


if __name__ == "__main__":
    main()
