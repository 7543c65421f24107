#!/usr/bin/env python3
"""Drives the demo: starts `eto run`, changes how fast data arrives, and swaps the policy under the running job.

Without --check it shows the live view and changes things by the clock. With --check it reads the JSON lines of
`eto run`, changes each thing when the one before has happened, and prints one line for each thing that must happen.
"""

import argparse
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

DEMO = Path(__file__).resolve().parent.parent / "examples" / "demo"
LIMIT = 88  # seconds for all of --check
SLOW = 2.0  # seconds for a batch to arrive when the storage is slow
EVALUATIONS = 5  # that have to be seen before the swap, and after it
# A busy machine gives a worker little of a CPU, and --check goes by what it gives. Any worker exceeds the first target.
FIRST_TARGET, LATER_TARGET = 0.2, 3.0


class Stage:
    """The directory that the job runs in, and the directory of its policy."""

    def __init__(self, root, policies):
        self.work, self.policies = root / "work", root / "policies"
        self.work.mkdir()
        self.policies.mkdir()
        shutil.copy(DEMO / "train.py", self.work)
        module = policies / "target-tracking.wasm"
        if not module.exists():
            sys.exit(f"{module} is not there: `make policies` builds it")
        self.module = module.read_bytes()
        self.feed(0)
        self.serve(self.module)

    def feed(self, seconds):
        replace(self.work / "feed", f"{seconds:.1f}".encode())

    def serve(self, module, target=None):
        settings = (DEMO / "policy.toml").read_text()
        if target is not None:
            settings = re.sub(r"(?m)^target = [\d.]+", f"target = {target:.2f}", settings)
        replace(self.policies / "demo.toml", settings.encode())
        replace(self.policies / "demo.wasm", module)

    def swap(self, target=LATER_TARGET):
        """Another build of the policy with another target: new bytes, so a new digest."""
        self.serve(self.module + custom_section("build", b"2"), target)

    def environment(self):
        """The demo needs no policy but its own."""
        return {**os.environ, "ETO_BUILTIN_POLICIES": str(self.policies)}

    def command(self, eto, *more):
        return [eto, "run", str(DEMO / "job.yaml"), "--policies", str(self.policies), "--workdir", str(self.work), *more]


def replace(path, content):
    aside = path.with_name(f".{path.name}.new")
    aside.write_bytes(content)
    os.replace(aside, path)


def custom_section(name, payload):
    """A section that WebAssembly hosts pass over (id 0): size, length of the name, name, content. All below 128 bytes."""
    body = bytes([len(name)]) + name.encode() + payload
    return bytes([0, len(body)]) + body


class Run:
    """`eto run --output json` and what it has told so far."""

    def __init__(self, stage, eto):
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            stage.command(eto, "--output", "json"),
            env=stage.environment(),
            stdout=subprocess.PIPE, text=True, errors="replace",
        )
        self.lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.job, self.workers, self.decisions, self.digests, self.output, self.steps, self.changes = {}, {}, [], {}, [], [], 0

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def wait(self, what, condition):
        """Takes in news until the condition holds."""
        while not condition():
            left = LIMIT - self.seconds()
            try:
                line = self.lines.get(timeout=max(left, 0.01))
            except queue.Empty:
                raise Failure(f"{what}: not within {LIMIT} s; the last decision: {self.decisions[-1:]}") from None
            if line is None:
                raise Failure(f"{what}: eto run ended first, with {self.process.wait()}")
            self.take(json.loads(line))

    def take(self, news):
        kind = news["kind"]
        if kind == "job":
            self.job = news
        elif kind == "worker":
            self.changes += 1
            if news["state"] == "gone":
                self.workers.pop(news["name"], None)
            else:
                self.workers[news["name"]] = news
        elif kind == "decision":
            self.decisions.append(news)
            digest = (news.get("policy") or {}).get("digest")
            self.digests.setdefault(digest, time.monotonic())
        elif kind == "output" and news["worker"] == 0:
            self.output.append(news["line"])
            if news["line"].startswith("step="):
                self.steps.append(time.monotonic())

    def seconds(self):
        return time.monotonic() - self.begun

    def pids(self):
        return sorted(w["pid"] for w in self.workers.values() if w["state"] == "running")

    def trains_with(self, workers):
        ready = self.job.get("ready") == workers == self.job.get("target") == len(self.pids())
        return ready and bool(self.output) and f"world={workers}" in self.output[-1]


class Failure(Exception):
    pass


def require(condition, what):
    if not condition:
        raise Failure(what)


def check_swap(run, stage):
    """Workers go on as they are, and each evaluation before and after is answered: by the old policy, then by the new one."""
    # The signal is of the last 15 s: all of them with these workers, before it is what the next target rests on.
    grown = run.decisions[-1]["sequence"]
    run.wait("evaluations before the swap", lambda: used(run) and run.decisions[-1]["sequence"] >= grown + EVALUATIONS)
    pids, changes = run.pids(), run.changes
    old = run.decisions[-1]["policy"]["digest"]
    last, swapped = run.decisions[-1]["sequence"], time.monotonic()
    # Three workers are the right size for what they use now, and too many for a third of it.
    stage.swap(min(LATER_TARGET, 0.75 * used(run)))
    run.wait("swap", lambda: any(digest not in (None, old) for digest in run.digests))
    new = next(digest for digest in run.digests if digest not in (None, old))
    steps = len(run.output)

    def by_new():
        return [d for d in run.decisions if digest_of(d) == new]

    run.wait("evaluations after the swap", lambda: len(by_new()) >= EVALUATIONS and len(run.output) >= steps + 5)
    require(run.pids() == pids and run.changes == changes, f"swap: workers changed, {pids} -> {run.pids()}")
    require(all(Path(f"/proc/{pid}").exists() for pid in pids), f"swap: a worker of {pids} is gone")
    seen = [d for d in run.decisions if d["sequence"] > last - EVALUATIONS]
    check_evaluations(seen, old, new)
    seconds = run.digests[new] - swapped
    count = len(seen) - len(by_new())
    say("swap", f"{old[:19]} -> {new[:19]}, decided by the new one after {seconds:.2f} s; workers {pids} unchanged, "
        f"{count} evaluations by the old one and {len(by_new())} by the new one, all answered, none missed")


def check_evaluations(seen, old, new):
    numbers = [d["sequence"] for d in seen]
    require(numbers == list(range(numbers[0], numbers[0] + len(numbers))), f"swap: evaluations were missed: {numbers}")
    unanswered = [d["sequence"] for d in seen if not d["answered"] or d["failure"]]
    require(not unanswered, f"swap: no answer to the evaluations {unanswered} of {numbers}")
    digests = [digest_of(d) for d in seen]
    first = digests.index(new)
    require(first > 0 and digests == [old] * first + [new] * (len(seen) - first), f"swap: answers came from {digests}")
    # One that was never begun has no number. It would show as a pause, on a busy machine beside other pauses.
    pauses = [(after["at"] - before["at"]) / 1000 for before, after in zip(seen, seen[1:])]
    rest = pauses[: first - 1] + pauses[first:]
    require(pauses[first - 1] < max(2.0, 2 * max(rest)), f"swap: {pauses[first - 1]} s without an evaluation, else {rest}")


def digest_of(decision):
    return (decision.get("policy") or {}).get("digest")


def used(run):
    """What a worker uses of its request, by the last decision."""
    means = [s["mean"] for s in run.decisions[-1]["signals"] if s["name"] == "cpu-utilisation" and s["quality"] == "Ok"]
    return means[0] if means else None


def check_steps(output):
    """Every start goes on exactly where the checkpoint was, and every stop was at a checkpoint: no step was lost."""
    done, saved, losses, resumes = 0, 0, [], 0
    for line in output:
        if found := re.match(r"resume step=(\d+)", line):
            require(int(found[1]) == saved, f"steps: resumed at {found[1]}, the checkpoint is at {saved}")
            require(saved == done, f"steps: {done - saved} steps after the checkpoint were lost")
            resumes += 1
        elif found := re.match(r"step=(\d+) loss=([\d.]+)", line):
            require(int(found[1]) == done + 1, f"steps: {found[1]} follows {done}")
            done = int(found[1])
            losses.append(float(found[2]))
        elif found := re.match(r"checkpoint step=(\d+)", line):
            saved = int(found[1])
    require(resumes == 3, f"steps: {resumes} rounds, 3 were expected")
    require(saved == done, f"steps: the last checkpoint is at {saved}, the last step was {done}")
    third = max(1, len(losses) // 3)
    means = [sum(part) / len(part) for part in (losses[:third], losses[third : 2 * third], losses[2 * third :])]
    require(means == sorted(means, reverse=True), f"steps: the loss does not go down: {means}")
    say("steps", f"1 to {done} without a gap over {resumes} rounds, each from the checkpoint of the one before; "
        f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")


def check_end(run):
    pids = run.pids()
    run.process.send_signal(signal.SIGINT)
    try:
        code = run.process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        raise Failure("stop: eto run did not end within 20 s of SIGINT") from None
    while (line := run.lines.get(timeout=5)) is not None:
        run.take(json.loads(line))
    require(code == 130, f"stop: exit code {code}, 130 was expected")
    require(not any(Path(f"/proc/{pid}").exists() for pid in pids), f"stop: a worker of {pids} still runs")
    say("stop", f"exit code {code}, no process left")


def say(what, text):
    print(f"ok {what}: {text}", flush=True)


def check(stage, eto):
    stage.serve(stage.module, FIRST_TARGET)
    run = Run(stage, eto)
    try:
        run.wait("start", lambda: run.trains_with(1))
        say("start", f"1 worker trains after {run.seconds():.1f} s")
        run.wait("grow", lambda: run.trains_with(3))
        say("grow", f"1 -> 3 workers at {run.seconds():.1f} s, {why(run, 3)}")
        check_swap(run, stage)
        # Workers that wait for data four times as long as they work use a fifth.
        step = (run.steps[-1] - run.steps[-5]) / 4
        stage.feed(max(SLOW, 4 * step))
        run.wait("shrink", lambda: run.trains_with(1))
        say("shrink", f"3 -> 1 workers at {run.seconds():.1f} s, {why(run, 1)}")
        steps = len(run.output)
        run.wait("training after the shrink", lambda: len(run.output) >= steps + 2)
        check_end(run)
        check_steps(run.output)
    except Failure as failure:
        print(f"FAILED {failure}", flush=True)
        return 1
    finally:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGINT)
            run.process.wait()
    print(f"all as it should be, in {run.seconds():.0f} s")
    return 0


def why(run, target):
    decision = next(d for d in reversed(run.decisions) if d["target"] == target and d["from"] != target)
    return decision["reasons"][0]["message"] if decision["reasons"] else "no reason given"


def show(stage, eto):
    """The live view. Storage is fast, then slow, and so on; the policy is swapped once while it runs."""
    over = threading.Event()

    def change():
        if not over.wait(35):
            stage.swap()
        while not over.wait(15):
            stage.feed(SLOW)
            if not over.wait(45):
                stage.feed(0)

    threading.Thread(target=change, daemon=True).start()
    # Ctrl-C is for eto, which stops its workers; it is waited for.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = subprocess.call(
        stage.command(eto),
        env=stage.environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    over.set()
    return 0 if code == 130 else code


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--eto", required=True, help="the eto program")
    parser.add_argument("--policies", required=True, type=Path, help="directory of the built policies")
    parser.add_argument("--check", action="store_true", help="no terminal: check what must happen")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eto-demo-") as root:
        stage = Stage(Path(root), args.policies)
        return (check if args.check else show)(stage, args.eto)


if __name__ == "__main__":
    sys.exit(main())
