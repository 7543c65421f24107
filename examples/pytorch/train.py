#!/usr/bin/env python3
"""Elastic data-parallel training with PyTorch: DistributedDataParallel, checkpoints, resume, orderly stop.

The number of workers may change whenever it likes; the training does not notice. What makes that so:
  * rank, world size and address come from the environment and are read once (`init_process_group` does it);
  * a step takes the same samples with any number of workers, and its gradient is their mean: the loss at a step does
    not depend on who computed it;
  * the checkpoint holds the position in the data (epoch, samples consumed), not a step of some world: a resize in the
    middle of an epoch repeats no sample and skips none;
  * SIGTERM means: all ranks finish the same step, rank 0 writes a checkpoint, all exit with 143.

The data is synthetic, so that it runs anywhere: `python train.py --checkpoints /tmp/ckpt`.
"""

import argparse
import contextlib
import glob
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

STOPPED = 143  # 128 + SIGTERM: "I stopped in order and my checkpoint is written"
FEATURES = 16
SEED = 7


def arguments():
    env = os.environ.get
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", required=True, help="directory that all workers see")
    parser.add_argument("--samples", type=int, default=4000, help="size of the synthetic data set")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=int(env("ETO_GLOBAL_BATCH_SIZE", "96")),
                        help="samples of a step over all workers")
    parser.add_argument("--micro", type=int, default=int(env("ETO_MICRO_BATCH_SIZE", "0")),
                        help="most samples a worker takes at once (0: its whole share)")
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds added to each step, to have time to watch")
    parser.add_argument("--audit", help="directory for a list of the samples that each step took")
    return parser.parse_args()


class Stop:
    """Set by SIGTERM; looked at between steps. Until training begins SIGTERM ends the process: nothing is lost, and a
    handler in Python would not be heard while the process waits for its peers or sets up its model."""

    asked = False

    @classmethod
    def listen(cls):
        signal.signal(signal.SIGTERM, lambda *_: setattr(cls, "asked", True))


class Checkpoints:
    """One file per checkpoint, `<step>.pt`, whole or not there. The furthest step counts, whichever round or job of
    this directory wrote it: a job that was deleted and applied again goes on where the first one was."""

    KEEP = 3

    def __init__(self, directory):
        self.directory = directory
        self.round = os.environ.get("ETO_ROUND_ID", "0")
        os.makedirs(directory, exist_ok=True)

    def files(self):
        return sorted(glob.glob(os.path.join(self.directory, "[0-9]" * 10 + ".pt")))

    def load(self):
        for cut in glob.glob(os.path.join(self.directory, "*.tmp")):  # by processes that were killed while they wrote
            os.remove(cut)
        files = self.files()
        return torch.load(files[-1], map_location="cpu") if files else None

    def save(self, state):
        path = os.path.join(self.directory, "%010d.pt" % state["step"])
        aside = "%s.%s.tmp" % (path, self.round)  # one process of a round writes
        with open(aside, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        for old in self.files()[: -self.KEEP]:
            os.remove(old)
        if "ETO_DRAIN_FILE" in os.environ:  # tells the agent, and so the job's status
            with open(os.environ["ETO_DRAIN_FILE"], "w", encoding="utf-8") as file:
                file.write("%d\n" % state["step"])


def data_set(samples):
    """Points, and what a hidden smooth function makes of them."""
    rng = torch.Generator().manual_seed(SEED)
    x = torch.randn(samples, FEATURES, generator=rng)
    hidden = torch.randn(FEATURES, 4, generator=rng) / FEATURES**0.5
    return x, torch.sin(x @ hidden).sum(dim=1, keepdim=True)


def order(samples, epoch):
    """Another order each epoch, the same on all ranks."""
    return torch.randperm(samples, generator=torch.Generator().manual_seed(SEED + epoch))


def gradients(model, loss_of, samples, micro, scale):
    """Adds up the gradients over this worker's share in pieces of `micro`; gives the summed loss. Workers exchange
    gradients once, with the last piece. A share may be empty: its gradient is zero, and the exchange still happens."""
    pieces = list(samples.split(micro)) if micro and len(samples) else [samples]
    total = 0.0
    for at, piece in enumerate(pieces):
        exchange = contextlib.nullcontext() if at == len(pieces) - 1 else model.no_sync()
        with exchange:
            loss = loss_of(piece)
            (loss * scale).backward()
            total += loss.item()
    return total


def train(args):
    rank, world = dist.get_rank(), dist.get_world_size()
    x, y = data_set(args.samples)
    torch.manual_seed(SEED)
    net = torch.nn.Sequential(torch.nn.Linear(FEATURES, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    checkpoints = Checkpoints(args.checkpoints)

    # Rank 0 decides where to go on: a file may appear between the looks of two ranks.
    found = [checkpoints.load() if rank == 0 else None]
    dist.broadcast_object_list(found)
    state = found[0] or {"step": 0, "epoch": 0, "consumed": 0}
    if found[0]:
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    step, epoch, consumed = state["step"], state["epoch"], state["consumed"]
    model = torch.nn.parallel.DistributedDataParallel(net)

    def save():
        checkpoints.save({"step": step, "epoch": epoch, "consumed": consumed,
                          "model": net.state_dict(), "optimizer": optimizer.state_dict()})
        print("checkpoint step=%d" % step, flush=True)

    def loss_of(piece):
        return torch.nn.functional.mse_loss(model(x[piece]), y[piece], reduction="sum")

    if rank == 0:
        print("resume step=%d world=%d" % (step, world), flush=True)
    audit = Audit(args.audit, rank) if args.audit else None
    permutation = order(args.samples, epoch)
    Stop.listen()
    while epoch < args.epochs:
        batch = permutation[consumed : consumed + args.batch]
        mine = batch[rank::world]  # shares differ by at most one sample; none is padded, none is left out
        if audit:
            audit.took(step, epoch, mine.tolist())
        optimizer.zero_grad()
        # DDP takes the mean over workers; with this factor the result is the mean over the samples of the batch.
        loss = gradients(model, loss_of, mine, args.micro, world / len(batch))
        # The loss and the wish to stop travel together: every rank gets the same answer and stops after the same step.
        both = torch.tensor([loss, float(Stop.asked)], dtype=torch.float64)
        dist.all_reduce(both)
        optimizer.step()
        step, consumed = step + 1, consumed + len(batch)
        if consumed >= args.samples:
            epoch, consumed = epoch + 1, 0
            permutation = order(args.samples, epoch)
        stop, end = both[1].item() > 0, epoch == args.epochs
        if rank == 0:
            print("step=%d epoch=%d loss=%.6f world=%d" % (step, epoch, both[0].item() / len(batch), world), flush=True)
            if stop or end or step % args.every == 0:
                save()
        if stop:
            dist.barrier()  # nobody leaves before the checkpoint is there
            return STOPPED
        time.sleep(args.pause)
    dist.barrier()
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
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        code = train(args)
    except RuntimeError as error:
        # A peer died in the middle of a step: the last checkpoint holds, this step is done again. What is left of the
        # group can't be taken down in order, so it is left as it is.
        print("stopping: %s" % str(error).splitlines()[0], file=sys.stderr, flush=True)
        os._exit(1)
    dist.destroy_process_group()
    return code


if __name__ == "__main__":
    sys.exit(main())
