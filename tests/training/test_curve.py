#!/usr/bin/env python3
"""The checks of trainings find what they are there to find. Run before the trainings, in no time."""
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import curve  # noqa: E402
from cluster import Failed  # noqa: E402


def lines(losses, begin=0):
    return [{"at": begin + n, "what": "step", "step": n + 1, "loss": loss} for n, loss in enumerate(losses)]


class Curves(unittest.TestCase):
    reference = lines([1 / (n + 1) for n in range(40)])

    def test_a_curve_agrees_with_itself_and_with_steps_done_again(self):
        again = {**self.reference[30], "at": 50}
        self.assertEqual(curve.agrees([*self.reference, again], self.reference), 0)

    def test_missing_steps_and_other_losses_are_found(self):
        other = {**self.reference[30], "loss": self.reference[30]["loss"] + 0.001}
        for wrong in (self.reference[:-1], [*self.reference, other], [*self.reference, {**other, "step": 41}]):
            with self.assertRaises(Failed):
                curve.agrees(wrong, self.reference)

    def test_a_flat_curve_shows_nothing(self):
        curve.learns(self.reference)
        with self.assertRaises(Failed):
            curve.learns(lines([1.0] * 40))

    def test_steps_done_again_are_counted(self):
        resumed = [{"at": 0.5, "what": "resumed", "step": s, "world": 2, "round": r} for s, r in ((0, 1), (20, 2))]
        found = curve.restarts([resumed[0], *self.reference[:25], resumed[1], *self.reference[20:]])
        self.assertEqual([r["lost"] for r in found], [0, 5])


class Samples(unittest.TestCase):
    def audit(self, *taken):
        with tempfile.TemporaryDirectory() as folder:
            for generation, rank, step, samples in taken:
                with open(os.path.join(folder, f"{generation:08}-{rank}.jsonl"), "a") as f:
                    f.write(json.dumps({"round": generation, "step": step, "epoch": 0, "samples": samples}) + "\n")
            curve.samples_once(folder, 4, 2)

    def test_each_once_over_two_rounds_of_another_size(self):
        self.audit((1, 0, 0, [0]), (1, 1, 0, [1]), (1, 0, 1, [2]), (2, 0, 1, [2, 3]))

    def test_twice_and_never_are_found(self):
        for second in ((1, 0, 1, [2, 2]), (1, 0, 1, [2]), (1, 0, 2, [2, 3])):
            with self.assertRaises(Failed):
                self.audit((1, 0, 0, [0, 1]), second)


if __name__ == "__main__":
    unittest.main()
