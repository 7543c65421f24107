"""Helper for training scripts of elastic jobs: copy this one file beside yours.

Standard library alone, Python 3.7 and newer. Without an agent around the script (on a laptop, say) everything works,
only nobody is told anything.

    job = eto_elastic.Job()
    sampler = eto_elastic.ElasticSampler(len(data), job.rank, job.world, global_batch=256)
    state = job.load_checkpoint(PATH, torch.load)          # None at the first start
    ...
    for indices in sampler:
        train(indices)
        sampler.advance()
        step += 1
        job.progress(step, loss=loss)
        if job.should_stop(all_reduce_max):                # the same answer on all ranks
            if job.rank == 0:
                job.save_checkpoint(PATH, lambda f: torch.save(everything, f), step)
            barrier()
            job.exit_drained()

See docs/agent.md and docs/checkpoints.md.
"""

import array
import contextlib
import faulthandler
import json
import math
import os
import random
import secrets
import signal
import sys
import threading
import time
import urllib.error
import urllib.request

try:
    import fcntl
except ImportError:  # no file locks here: the fence works without, only less tightly
    fcntl = None

__all__ = ["DRAINED", "ElasticSampler", "Job", "StaleRound"]

DRAINED = 143
"""Exit code that says: I was asked to stop, and have written a checkpoint."""

_TIMEOUT = 2.0
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # localhost is never behind a proxy


class StaleRound(RuntimeError):
    """A newer round has taken the checkpoint over. This process belongs to an older one and must write no more."""


class Job:
    """This process's place in its job, and its line to the agent."""

    def __init__(self, env=None, poll_seconds=1.0, progress_seconds=1.0):
        """Reads its place from `env` (os.environ) and takes note of SIGTERM from now on.

        poll_seconds: how often at most `should_stop` asks the agent, beside SIGTERM (frameworks may take that signal
        for themselves, as JAX does). progress_seconds: how often at most `progress` tells it.
        """
        env = os.environ if env is None else env
        self.generation = int(env.get("ETO_ROUND") or 0)
        # "<uid>-<generation>". Another job of this name, made after this one was deleted, has another UID.
        self.job_uid = env.get("ETO_ROUND_ID", "").rpartition("-")[0]
        self.rank = _first(env, ("ETO_PROCESS_RANK", "RANK", "ETO_RANK"), 0)
        self.world = _first(env, ("ETO_PROCESS_COUNT", "WORLD_SIZE", "ETO_WORLD_SIZE"), 1)
        # Of jobs with elasticity.globalBatchSize, else None: samples of a step over all processes, what one process takes
        # at once, and how often it does so before the optimiser's step.
        self.global_batch = _first(env, ("ETO_GLOBAL_BATCH_SIZE",), None)
        self.micro_batch = _first(env, ("ETO_MICRO_BATCH_SIZE",), None)
        self.accumulation_steps = _first(env, ("ETO_GRADIENT_ACCUMULATION_STEPS",), None)
        self._agent = env.get("ETO_AGENT")
        self._drain_file = env.get("ETO_DRAIN_FILE")
        self._poll_seconds, self._progress_seconds = poll_seconds, progress_seconds
        self._next_poll = self._next_progress = 0.0
        self._worked = None
        self._stop = False
        self._claimed = set()
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, number, frame):
        self._stop = True
        if callable(self._previous):
            self._previous(number, frame)

    # --- the agent ---------------------------------------------------------------------------------------------------

    def round(self):
        """What the agent knows of the round, as a dict (`generation`, `rank`, `worldSize`, `members`, `stopping`, ...);
        None where no agent answers."""
        return self._ask("/v1/round")

    def checkpointed(self, step):
        """Tells that a checkpoint with this step is complete. True if it was taken."""
        if self._ask("/v1/checkpointed", {"step": int(step), "generation": self.generation}) is not None:
            return True
        if not self._drain_file:
            return False
        try:
            _write_whole(self._drain_file, str(int(step)))
            return True
        except OSError:
            return False

    def progress(self, step, samples=None, epoch=None, loss=None, next_seconds=None):
        """Tells how far the training is: steps and samples (of all workers) from the beginning of the training, epoch,
        loss. Call it at every step; it speaks to the agent once a second, and at once with next_seconds: how long the
        next step may take, where an evaluation, a checkpoint or a compilation comes before it. Without that it counts as
        a hang after `elasticity.hangTimeoutSeconds`. Never raises for an agent's sake."""
        now = time.monotonic()
        if self._agent is None or (now < self._next_progress and next_seconds is None):
            return
        self._next_progress = now + self._progress_seconds
        told = {"step": int(step), "generation": self.generation}
        if samples is not None:
            told["samples"] = int(samples)
        if epoch is not None:
            told["epoch"] = int(epoch)
        if loss is not None and math.isfinite(float(loss)):
            told["loss"] = float(loss)
        if self._worked is not None:
            told["workSeconds"] = self._worked
        if next_seconds is not None:
            told["nextSeconds"] = min(float(next_seconds), 86400.0)  # JSON has no infinity, and nobody waits longer
        self._ask("/v1/progress", told)

    @contextlib.contextmanager
    def working(self):
        """Around what this process does by itself in a step: loading its batch, its forward pass. Nothing in which it
        waits for others (all-reduce, barriers, the backward pass of DDP) may be in it, and what runs on a GPU must have
        ended in it. With this, a worker that keeps the others waiting is found (`status.stragglers`)."""
        since = time.monotonic()
        try:
            yield
        finally:
            self._worked = (self._worked or 0.0) + time.monotonic() - since

    def print_stacks_when_hung(self, number=None):
        """Asks the agent for a signal (SIGUSR1, or `number`) when the job is stopped because it makes no progress any more
        (`elasticity.hangTimeoutSeconds`), and prints the stacks of all threads to stderr when it comes. It works in a
        process that hangs in C too. The signal must not have another use. True if the agent will send it."""
        if self._agent is None or not hasattr(signal, "SIGUSR1"):
            return False
        chosen = signal.Signals(signal.SIGUSR1 if number is None else number)
        try:
            faulthandler.register(chosen, all_threads=True)
        except (OSError, ValueError, RuntimeError, AttributeError):  # stderr is no file, say
            return False
        told = {"pid": os.getpid(), "signal": chosen.name}
        if self.generation:
            told["generation"] = self.generation
        return self._ask("/v1/on-hang", told) is not None

    def _ask(self, path, told=None):
        if self._agent is None:
            return None
        data = None if told is None else json.dumps(told).encode()
        request = urllib.request.Request(self._agent + path, data, {"Content-Type": "application/json"})
        try:
            with _opener.open(request, timeout=_TIMEOUT) as answer:
                return json.loads(answer.read().decode())
        except (OSError, ValueError):  # an HTTP error is an OSError
            return None

    # --- stopping ----------------------------------------------------------------------------------------------------

    def should_stop(self, all_reduce_max=None):
        """Whether to write a checkpoint and stop, now.

        Ranks hear of it at different moments. Where they act on it together (any collective operation, a checkpoint of
        shards) give `all_reduce_max`, a function that takes an int and returns the largest of all ranks: then all of
        them get the same answer at the same step. Every rank must call this at every step."""
        mine = self._stop or self._agent_says_stop()
        if all_reduce_max is None:
            return mine
        return int(all_reduce_max(1 if mine else 0)) > 0

    def _agent_says_stop(self):
        now = time.monotonic()
        if self._agent is None or now < self._next_poll:
            return False
        self._next_poll = now + self._poll_seconds
        told = self.round() or {}
        self._stop = bool(told.get("stopping")) or (told.get("generation") or 0) > self.generation > 0
        return self._stop

    def exit_drained(self, at_once=False):
        """Ends the process with the code that says: a checkpoint is written. The code alone says it, so call this
        only when it is true. `at_once` leaves out Python's own clean-up, where a framework's can hang while its peers
        go; what else waits for the end (loggers that upload, say) must be finished before."""
        if at_once:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(DRAINED)
        sys.exit(DRAINED)

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def save_checkpoint(self, path, write, step=None):
        """Writes a checkpoint: aside, flushed, renamed, so that whoever reads `path` finds a whole one. `write` gets an
        open binary file. With `step` the agent is told.

        Raises StaleRound, and leaves `path` alone, if a process of a newer round has read or written it: an older
        round that lives on behind a broken network can't undo the newer one's progress. So it is for a job that was
        deleted and has a successor."""
        path = os.fspath(path)
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        self._check_fence(path, path in self._claimed)
        # Nobody else's: generations begin anew with each job, and in containers process ids are alike.
        aside = "%s.%s.%d.%s.tmp" % (path, self.job_uid or "alone", self.generation, secrets.token_hex(6))
        try:
            with open(aside, "xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            with _locked(path + ".lock"):
                self._check_fence(path, path in self._claimed)
                self._raise_fence(path)
                os.replace(aside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(aside)
            raise
        _sync_folder(path)
        if step is not None:
            self.checkpointed(step)

    def load_checkpoint(self, path, read):
        """What `read` makes of the checkpoint (it gets an open binary file), None if there is none. From then on
        processes of older rounds can't write it any more. Call it on all ranks before the first step."""
        path = os.fspath(path)
        folder, name = os.path.split(path)
        # One that can't be made is known before the first step, not when hours of work are to be saved.
        os.makedirs(folder or ".", exist_ok=True)
        with _locked(path + ".lock"):
            self._check_fence(path, path in self._claimed)
            self._raise_fence(path)
        for other in os.listdir(folder or "."):
            # Of a process that was killed while it wrote, in an earlier round or job; one that lives may write no more.
            cut = other[len(name) + 1 :].split(".") if other.startswith(name + ".") else []
            ours = len(cut) == 4 and cut[3] == "tmp" and cut[1].isdigit()
            if ours and (cut[0] != (self.job_uid or "alone") or int(cut[1]) < self.generation):
                with contextlib.suppress(OSError):
                    os.remove(os.path.join(folder, other))
        try:
            file = open(path, "rb")
        except FileNotFoundError:
            return None
        with file:
            return read(file)

    def _check_fence(self, path, claimed):
        generation, job_uid = _read_fence(path)
        if job_uid != self.job_uid:
            # A job before this one left it, or one after it has taken it over.
            if claimed:
                raise StaleRound("another job has read or written %s since this one did" % path)
        elif generation > self.generation:
            raise StaleRound("round %d wrote or read %s; this is round %d" % (generation, path, self.generation))

    def _raise_fence(self, path):
        mine = (self.generation, self.job_uid)
        if _read_fence(path) != mine:
            _write_whole(path + ".round", "%d %s" % mine)
        self._claimed.add(path)


class ElasticSampler:
    """Deals the samples of an epoch out to the ranks, in global batches; goes on where it was in a round of any size.

    Each sample comes once per epoch: none is repeated after a resize in mid-epoch, and none is added to make shares
    even. Iterating gives, batch by batch, the list of indices of this rank, as torch's DataLoader takes it
    (`batch_sampler=`). Every rank gets the same number of batches; shares of one batch differ by one sample at most
    and may be empty in the last, so weigh a mean over the share with `len(indices) / batch_total()`.

    `global_batch` is the batch of all ranks together. Left as it is, a resize does not change the maths.
    """

    def __init__(self, size, rank, world, global_batch, seed=0, shuffle=True):
        if size < 0 or global_batch < 1 or not 0 <= rank < world:
            raise ValueError("size >= 0, global_batch >= 1 and 0 <= rank < world, please")
        self.size, self.rank, self.world, self.global_batch = size, rank, world, global_batch
        self.seed, self.shuffle = seed, shuffle
        self.epoch, self.position = 0, 0

    def __len__(self):
        """Batches that are left of the epoch."""
        return -(-(self.size - self.position) // self.global_batch)

    def __iter__(self):
        order = array.array("q", range(self.size))
        if self.shuffle:
            random.Random("%s/%s" % (self.seed, self.epoch)).shuffle(order)
        for begin in range(self.position, self.size, self.global_batch):
            count = min(self.global_batch, self.size - begin)
            first, last = (begin + count * r // self.world for r in (self.rank, self.rank + 1))
            yield list(order[first:last])

    def batch_total(self):
        """Samples of the batch that is being trained, over all ranks."""
        return min(self.global_batch, self.size - self.position)

    def advance(self):
        """One global batch is trained. Data loaders read ahead, so iterating alone moves nothing."""
        self.position = min(self.size, self.position + self.global_batch)

    def next_epoch(self):
        """Begins the next epoch."""
        self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self):
        """For the checkpoint. The same on all ranks, and for any number of them."""
        return {"epoch": self.epoch, "position": self.position, "seed": self.seed, "size": self.size}

    def load_state_dict(self, state):
        """Goes on from a checkpoint, in a world of any size."""
        if state["size"] != self.size:
            raise ValueError("the checkpoint is of %d samples, here are %d" % (state["size"], self.size))
        self.epoch, self.position, self.seed = state["epoch"], state["position"], state["seed"]


def _first(env, names, default):
    for name in names:
        if env.get(name):
            return int(env[name])
    return default


def _read_fence(path):
    """Generation and job of the newest round that has read or written a checkpoint."""
    try:
        with open(path + ".round") as file:
            generation, _, job_uid = file.read().strip().partition(" ")
            return int(generation or 0), job_uid
    except (FileNotFoundError, ValueError):  # none, or of something else
        return 0, ""


def _write_whole(path, text):
    aside = "%s.%s.new" % (path, secrets.token_hex(6))
    try:
        with open(aside, "x") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(aside)
        raise


def _sync_folder(path):
    with contextlib.suppress(OSError):  # some file systems can't, and need not
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def _locked(path):
    with open(path, "a") as file:
        if fcntl is not None:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
