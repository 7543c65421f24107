#!/usr/bin/env python3
"""Elastic training with TensorFlow's parameter servers: checkpoints, resume, orderly stop.

The job's `replicaTypes` name a chief, parameter servers and, if wanted, an evaluator; all other members are workers, whose
number changes. TF_CONFIG tells each process what it is:
  * the chief hands out steps, reads the parameters for a checkpoint and ends the job;
  * servers hold the parameters, workers compute; both serve until they are stopped;
  * the evaluator looks at each new checkpoint.
All processes start anew in each round and go on from the checkpoint: what the servers held is gone with them. Workers go
through a wave of steps, one each, without waiting for each other within it; how many there are therefore changes the
order of updates, and not which samples an epoch has.

The data is synthetic, so that it runs anywhere, also on one machine under `eto run`.
"""

import argparse
import glob
import json
import os
import signal
import sys
import time

os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")  # a server that is gone is an error, not a wait
import numpy as np
import tensorflow as tf

STOPPED = 143  # 128 + SIGTERM: "I stopped in order and the checkpoint is written"
FEATURES = 16
SEED = 7
RATE = 0.05


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", required=True, help="directory that all members see")
    parser.add_argument("--samples", type=int, default=4000, help="size of the synthetic data set")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32, help="samples of a step, which one worker computes")
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds added to each wave, to have time to watch")
    return parser.parse_args()


class Stop:
    """Set by SIGTERM. Until a member is set up SIGTERM ends it: nothing is lost."""

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

    def newest(self):
        files = sorted(glob.glob(os.path.join(self.directory, "[0-9]" * 10 + ".npz")))
        return files[-1] if files else None

    def save(self, step, arrays):
        path = os.path.join(self.directory, "%010d.npz" % step)
        aside = "%s.%s.tmp" % (path, self.round)  # one process of a round writes
        with open(aside, "wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        for old in sorted(glob.glob(os.path.join(self.directory, "[0-9]" * 10 + ".npz")))[: -self.KEEP]:
            os.remove(old)
        if "ETO_DRAIN_FILE" in os.environ:  # tells the agent, and so the job's status
            with open(os.environ["ETO_DRAIN_FILE"], "w", encoding="utf-8") as file:
                file.write("%d\n" % step)

    def over(self):
        """The file by which the chief tells those who serve that it needs them no more in this round."""
        return os.path.join(self.directory, "over-%s" % self.round)


def data_set(samples):
    """Points, and what a hidden smooth function makes of them."""
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((samples, FEATURES), dtype=np.float32)
    hidden = rng.standard_normal((FEATURES, 4), dtype=np.float32) / FEATURES**0.5
    return x, np.sin(x @ hidden).sum(axis=1, keepdims=True)


def first_weights():
    rng = np.random.default_rng(SEED)
    shapes = {"w1": (FEATURES, 32), "b1": (32,), "w2": (32, 1), "b2": (1,)}
    return {k: rng.standard_normal(s) / s[0] ** 0.5 if k[0] == "w" else np.zeros(s) for k, s in shapes.items()}


def predict(w, x):
    return tf.tanh(x @ w["w1"] + w["b1"]) @ w["w2"] + w["b2"]


def serve(resolver, checkpoints):
    """A server or a worker: at the chief's service until it is stopped, and then until the chief is done."""
    server = tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id,
                                  protocol="grpc", start=True)
    Stop.listen()
    print("serving as %s %d at %s" % (resolver.task_type, resolver.task_id, server.target), flush=True)
    while not Stop.asked:
        time.sleep(0.05)
    # The chief has yet to read the parameters. One that is dead is waited for until the drain deadline.
    while not os.path.exists(checkpoints.over()):
        time.sleep(0.05)
    return STOPPED


def evaluate(args, checkpoints):
    """Knows the cluster and is not in it."""
    Stop.listen()
    x, y = data_set(args.samples)
    seen = None
    while not Stop.asked:
        path = checkpoints.newest()
        if path and path != seen:
            try:
                found = np.load(path)
                weights = {k: tf.constant(found["w_" + k], tf.float32) for k in first_weights()}
            except FileNotFoundError:  # a newer one has taken its place
                continue
            loss = float(tf.reduce_mean((predict(weights, x) - y) ** 2))
            print("evaluated step=%d loss=%.4f" % (int(found["at"][0]), loss), flush=True)
            seen = path
        time.sleep(0.2)
    return STOPPED


def lead(args, resolver, checkpoints):
    """The chief. It reaches servers and workers when it makes the strategy, and waits for them."""
    workers = resolver.cluster_spec().num_tasks("worker")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights = {k: tf.Variable(v, dtype=tf.float32, name=k) for k, v in first_weights().items()}
    step, epoch, consumed = 0, 0, 0
    for cut in glob.glob(os.path.join(args.checkpoints, "*.tmp")):  # by processes that were killed while they wrote
        os.remove(cut)
    newest = checkpoints.newest()
    if newest:
        found = np.load(newest)
        for k, v in weights.items():
            v.assign(found["w_" + k])
        step, epoch, consumed = (int(v) for v in found["at"])
    x, y = data_set(args.samples)

    @tf.function(input_signature=[tf.TensorSpec((None, FEATURES)), tf.TensorSpec((None, 1))])
    def advance(x, y):
        def local(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((predict(weights, x) - y) ** 2)
            for k, grad in zip(weights, tape.gradient(loss, list(weights.values()))):
                weights[k].assign_sub(RATE * grad)
            return loss

        return strategy.run(local, args=(x, y))

    def save():
        arrays = {"w_" + k: v.numpy() for k, v in weights.items()}
        checkpoints.save(step, {**arrays, "at": np.array([step, epoch, consumed], np.int64)})
        print("checkpoint step=%d" % step, flush=True)

    print("resume step=%d workers=%d" % (step, workers), flush=True)
    saved = step
    Stop.listen()
    while epoch < args.epochs:
        permutation = np.random.default_rng(SEED + epoch).permutation(args.samples)
        wave = [permutation[at : at + args.batch] for at in range(consumed, args.samples, args.batch)][:workers]
        losses = [coordinator.schedule(advance, args=(x[batch], y[batch])) for batch in wave]
        coordinator.join()
        step, consumed = step + len(wave), consumed + sum(len(batch) for batch in wave)
        if consumed >= args.samples:
            epoch, consumed = epoch + 1, 0
        loss = float(np.mean([loss.fetch() for loss in losses]))
        print("step=%d epoch=%d loss=%.6f workers=%d" % (step, epoch, loss, workers), flush=True)
        if Stop.asked or epoch == args.epochs or step - saved >= args.every:
            save()
            saved = step
        if Stop.asked:
            return STOPPED
        time.sleep(args.pause)
    return 0


def main():
    args = arguments()
    checkpoints = Checkpoints(args.checkpoints)
    task = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
    if task == "evaluator":
        return evaluate(args, checkpoints)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if task != "chief":
        return serve(resolver, checkpoints)
    try:
        return lead(args, resolver, checkpoints)
    finally:
        open(checkpoints.over(), "w", encoding="utf-8").close()


if __name__ == "__main__":
    try:
        code = main()
    except tf.errors.OpError as error:
        # A member died: the last checkpoint holds, the steps since are done again.
        print("stopping: %s" % str(error).splitlines()[0], file=sys.stderr, flush=True)
        code = 1
    sys.stdout.flush()
    # Taking the cluster down in order would wait for members that may be gone already.
    os._exit(code)
