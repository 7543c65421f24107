"""What a training must show however its workers came and went: the losses of an undisturbed one, and each sample once."""
import glob
import json
import os

from cluster import Failed

# Losses are printed with six digits. Sums of another order differ by less than this, relative to a loss of 1.
TOLERANCE = 2e-4


def agrees(lines, reference, tolerance=TOLERANCE):
    """Every step is there, and each time it was done its loss was that of the reference."""
    want = {e["step"]: e["loss"] for e in reference if e["what"] in ("first", "step")}
    done = [(e["step"], e["loss"]) for e in lines if e["what"] in ("first", "step")]
    if {step for step, _ in done} != set(want):
        raise Failed(f"steps are missing or too many: {sorted({s for s, _ in done} ^ set(want))[:20]}")
    worst = max(done, key=lambda d: abs(d[1] - want[d[0]]) / max(abs(want[d[0]]), 1.0))
    off = abs(worst[1] - want[worst[0]]) / max(abs(want[worst[0]]), 1.0)
    if off > tolerance:
        raise Failed(f"step {worst[0]}: a loss of {worst[1]} in place of {want[worst[0]]}")
    return off


def learns(reference):
    """What makes the comparison worth something: the loss goes down."""
    losses = [e["loss"] for e in reference if e["what"] in ("first", "step")]
    first, last = (sum(part) / 20 for part in (losses[:20], losses[-20:]))
    if not last < first / 2:
        raise Failed(f"the mean loss went from {first} to {last}")


def restarts(lines):
    """Of each start: its world, the step it went on from, and how many steps were done again for it."""
    found, last = [], 0
    for entry in lines:
        if entry["what"] == "resumed":
            found.append({"at": entry["at"], "world": entry["world"], "step": entry["step"],
                          "lost": last - entry["step"], "round": entry["round"]})
        elif entry["what"] in ("first", "step"):
            last = entry["step"]
    return found


def samples_once(audit, samples, steps):
    """Of each step the newest try counts, by round and within a round by order. Together these took each sample once
    per epoch."""
    newest = {}
    for path in sorted(glob.glob(os.path.join(audit, "*.jsonl"))):
        rank = path.rsplit("-", 1)[1]
        with open(path) as f:
            all_taken = [json.loads(line) for line in f]
        for taken in all_taken:
            of, ranks = newest.get(taken["step"], (-1, {}))
            if taken["round"] > of:
                of, ranks = taken["round"], {}
            if taken["round"] == of:
                ranks[rank] = taken
            newest[taken["step"]] = (of, ranks)
    if sorted(newest) != list(range(steps)):
        raise Failed(f"samples were noted for {len(newest)} steps, and {steps} were made")
    seen = {}
    for _, ranks in newest.values():
        for taken in ranks.values():
            seen.setdefault(taken["epoch"], []).extend(taken["samples"])
    for epoch, taken in seen.items():
        if sorted(taken) != list(range(samples)):
            raise Failed(f"epoch {epoch} took {len(taken)} samples, {len(set(taken))} of them different, of {samples}")
