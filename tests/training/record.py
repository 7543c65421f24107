#!/usr/bin/env python3
"""Runs a training script of the examples as it is, and notes what it does: record.py SCRIPT ARGUMENT...

One process, so signals and exit codes are the script's own. Each line that the examples print becomes a line of JSON in
$FOLDER/<host name>.log, with the time and the place in the round. What the tests need beside that:
  * $IMPORT names the framework, which is imported first, so that its time is known apart;
  * the pauses between steps end when $FOLDER/hurry is there: the test has seen what it wanted to see;
  * $PATIENCE is the timeout of torch's process group, in seconds, which the scripts leave as it is;
  * a process that starts while $FOLDER/deaf is there sets no handler for SIGTERM, as many scripts do.
"""
import datetime
import functools
import importlib
import json
import os
import re
import runpy
import signal
import socket
import sys
import time


def first_of(*names):
    return next((int(os.environ[n]) for n in names if os.environ.get(n)), None)


FOLDER = os.environ["FOLDER"]
RANK = first_of("RANK", "JAX_PROCESS_ID", "ETO_RANK") or 0
WORLD = first_of("WORLD_SIZE", "JAX_NUM_PROCESSES", "ETO_WORLD_SIZE") or 1
ROUND = first_of("ETO_ROUND", "TORCHELASTIC_RESTART_COUNT") or 0
log = os.open(os.path.join(FOLDER, os.environ.get("NAME", socket.gethostname()) + ".log"),
              os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)


def note(what, **more):
    """One write for each line, so that a signal's handler may note something too."""
    entry = {"at": time.time(), "what": what, "pid": os.getpid(), "round": ROUND, "rank": RANK, "world": WORLD, **more}
    os.write(log, (json.dumps(entry) + "\n").encode())


class Reader:
    """Standard output: passed on, and read."""

    def __init__(self, out):
        self.out, self.line, self.resumed = out, "", None

    def write(self, text):
        self.line += text
        while "\n" in self.line:
            line, self.line = self.line.split("\n", 1)
            self.read(line)
        return self.out.write(text)

    def read(self, line):
        head, values = line.partition("=")[0], dict(re.findall(r"(\w+)=(\S+)", line))
        if head == "resume step":
            self.resumed = int(values["step"])
            note("resumed", step=self.resumed)
        elif head == "checkpoint step":
            note("saved", step=int(values["step"]))
        elif head == "step":
            step = int(values["step"])
            note("first" if step == self.resumed + 1 else "step", step=step, loss=float(values["loss"]))

    def __getattr__(self, name):
        return getattr(self.out, name)


def listen(number, handler, to=signal.signal):
    if number != signal.SIGTERM or not callable(handler):
        return to(number, handler)
    if os.path.exists(os.path.join(FOLDER, "deaf")):
        return signal.getsignal(number)

    def told(*signalled):
        note("asked")
        return handler(*signalled)
    return to(number, told)


def pause(seconds, sleep=time.sleep, hurry=os.path.join(FOLDER, "hurry")):
    if not os.path.exists(hurry):
        sleep(seconds)


def with_patience(seconds):
    """torch alone: for how long its process group waits for a peer."""
    import torch.distributed as dist
    dist.init_process_group = functools.partial(dist.init_process_group, timeout=datetime.timedelta(seconds=seconds))


def main():
    note("started")
    at = time.monotonic()
    importlib.import_module(os.environ["IMPORT"])
    note("imported", seconds=time.monotonic() - at)
    if "PATIENCE" in os.environ:
        with_patience(int(os.environ["PATIENCE"]))
    sys.stdout = Reader(sys.stdout)
    signal.signal, time.sleep = listen, pause
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")


main()
