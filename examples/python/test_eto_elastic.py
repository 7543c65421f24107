"""Tests of eto_elastic: python3 -m unittest, in this folder."""

import ast
import http.server
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import eto_elastic
from eto_elastic import ElasticSampler, Job, StaleRound


class Agent:
    """Answers as the agent does, and remembers what it is told."""

    def __init__(self):
        self.round = {"generation": 3, "stopping": False}
        self.told = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer(outer.round)

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])).decode())
                outer.told.append((self.path, body))
                self.answer({"generation": 3}, 200 if body["generation"] == 3 else 409)

            def answer(self, document, status=200):
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()
        self.url = "http://127.0.0.1:%d" % self.server.server_port

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def job(generation=3, agent=None, **more):
    env = {"ETO_ROUND": str(generation)}
    if agent:
        env["ETO_AGENT"] = agent.url
    env.update(more)
    return Job(env, poll_seconds=0)


class TestCase(unittest.TestCase):
    def setUp(self):
        self.addCleanup(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "latest.ckpt")
        self.agent = Agent()
        self.addCleanup(self.agent.close)

    def text(self):
        with open(self.path, "rb") as file:
            return file.read()


class Telling(TestCase):
    def test_place(self):
        one = Job({"RANK": "2", "WORLD_SIZE": "4", "ETO_RANK": "1", "ETO_WORLD_SIZE": "2", "ETO_ROUND": "5"})
        self.assertEqual((one.rank, one.world, one.generation), (2, 4, 5))
        self.assertEqual(one.global_batch, None)
        batch = Job({"ETO_GLOBAL_BATCH_SIZE": "96", "ETO_MICRO_BATCH_SIZE": "8", "ETO_GRADIENT_ACCUMULATION_STEPS": "3"})
        self.assertEqual((batch.global_batch, batch.micro_batch, batch.accumulation_steps), (96, 8, 3))
        alone = Job({})
        self.assertEqual((alone.rank, alone.world, alone.round()), (0, 1, None))
        self.assertFalse(alone.checkpointed(1))
        alone.progress(1)
        self.assertFalse(alone.should_stop())

    def test_progress_and_checkpoint(self):
        j = job(agent=self.agent)
        j.progress(10, samples=80, epoch=1, loss=float("nan"))
        j.progress(11)  # within the second
        j.progress(12, next_seconds=90)  # told all the same: an evaluation follows
        self.assertTrue(j.checkpointed(10))
        self.assertFalse(job(2, self.agent).checkpointed(10))
        want = [
            ("/v1/progress", {"step": 10, "generation": 3, "samples": 80, "epoch": 1}),
            ("/v1/progress", {"step": 12, "generation": 3, "nextSeconds": 90.0}),
            ("/v1/checkpointed", {"step": 10, "generation": 3}),
            ("/v1/checkpointed", {"step": 10, "generation": 2}),
        ]
        self.assertEqual(self.agent.told, want)

    def test_the_drain_file_serves_where_no_agent_answers(self):
        drain = self.path + ".drain"
        j = Job({"ETO_AGENT": "http://127.0.0.1:9", "ETO_DRAIN_FILE": drain})
        self.assertTrue(j.checkpointed(12))
        with open(drain) as file:
            self.assertEqual(file.read(), "12\n")


class Stopping(TestCase):
    def test_sigterm_counts_and_goes_on_to_an_earlier_handler(self):
        seen = []
        signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
        j = job()
        self.assertFalse(j.should_stop())
        os.kill(os.getpid(), signal.SIGTERM)
        self.assertTrue(j.should_stop())
        self.assertEqual(seen, [1])

    def test_the_agent_says_it_where_the_signal_was_taken(self):
        j = job(agent=self.agent)
        self.assertFalse(j.should_stop())
        self.agent.round["stopping"] = True
        self.assertTrue(j.should_stop())

    def test_all_ranks_agree_on_the_step(self):
        world, stops_at = 4, {}
        barrier = threading.Barrier(world)
        flags = [0] * world

        def train(rank):
            j = Job({"RANK": str(rank)})

            def all_reduce_max(mine):
                flags[rank] = mine
                barrier.wait()
                most = max(flags)
                barrier.wait()
                return most

            for step in range(20):
                # They hear of it at different steps.
                j._stop = step >= 5 + rank
                if j.should_stop(all_reduce_max):
                    stops_at[rank] = step
                    return

        threads = [threading.Thread(target=train, args=(rank,)) for rank in range(world)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(stops_at, {0: 5, 1: 5, 2: 5, 3: 5})

    def test_drained(self):
        with self.assertRaises(SystemExit) as ended:
            job().exit_drained()
        self.assertEqual(ended.exception.code, 143)

    def test_drained_at_once(self):
        script = (
            "import atexit, eto_elastic\n"
            "atexit.register(print, 'cleaned up')\n"
            "print('written')\n"
            "eto_elastic.Job({}).exit_drained(at_once=True)\n"
        )
        here = os.path.dirname(os.path.abspath(eto_elastic.__file__))
        run = subprocess.run([sys.executable, "-c", script], cwd=here, stdout=subprocess.PIPE)
        self.assertEqual((run.returncode, run.stdout.split()), (143, [b"written"]))


class Checkpoints(TestCase):
    def test_save_and_load(self):
        j = job(agent=self.agent)
        self.assertIsNone(j.load_checkpoint(self.path, lambda f: f.read()))
        j.save_checkpoint(self.path, lambda f: f.write(b"one"), step=7)
        self.assertEqual(j.load_checkpoint(self.path, lambda f: f.read()), b"one")
        self.assertEqual(self.agent.told, [("/v1/checkpointed", {"step": 7, "generation": 3})])

    def test_a_folder_that_is_not_there_is_made_at_the_start(self):
        folder = os.path.dirname(self.path)
        path = os.path.join(folder, "new", "er", "c.json")
        self.assertIsNone(job().load_checkpoint(path, json.load))
        self.assertTrue(os.path.isdir(os.path.dirname(path)))
        path = os.path.join(folder, "other", "c.json")
        job().save_checkpoint(path, lambda f: f.write(b"5"))
        self.assertEqual(job().load_checkpoint(path, json.load), 5)
        with open(self.path, "w"), self.assertRaises(OSError):
            job().load_checkpoint(os.path.join(self.path, "c.json"), json.load)

    def test_the_oldest_python_that_is_promised_can_read_it(self):
        with open(eto_elastic.__file__) as file:
            ast.parse(file.read(), feature_version=(3, 7))

    def test_an_older_round_overwrites_nothing(self):
        old, new = job(3), job(4)
        old.save_checkpoint(self.path, lambda f: f.write(b"old"))
        new.save_checkpoint(self.path, lambda f: f.write(b"new"))
        with self.assertRaises(StaleRound):
            old.save_checkpoint(self.path, lambda f: f.write(b"late"))
        with self.assertRaises(StaleRound):
            old.load_checkpoint(self.path, lambda f: f.read())
        self.assertEqual(self.text(), b"new")

    def test_a_newer_round_that_only_reads_fences_too_even_while_the_older_writes(self):
        old, new = job(3), job(4)
        old.save_checkpoint(self.path, lambda f: f.write(b"old"))

        def slowly(file):
            file.write(b"late")
            self.assertEqual(new.load_checkpoint(self.path, lambda f: f.read()), b"old")

        with self.assertRaises(StaleRound):
            old.save_checkpoint(self.path, slowly)
        self.assertEqual(self.text(), b"old")

    def test_a_job_made_anew_takes_over_what_the_one_before_it_left(self):
        before = job(7, ETO_ROUND_ID="uid-a-7")
        before.save_checkpoint(self.path, lambda f: f.write(b"seven"))
        after = job(1, ETO_ROUND_ID="uid-b-1")
        self.assertEqual(after.load_checkpoint(self.path, lambda f: f.read()), b"seven")
        with self.assertRaises(StaleRound):
            before.save_checkpoint(self.path, lambda f: f.write(b"late"))
        after.save_checkpoint(self.path, lambda f: f.write(b"one"))
        self.assertEqual(self.text(), b"one")
        job(2, ETO_ROUND_ID="uid-b-2").save_checkpoint(self.path, lambda f: f.write(b"two"))
        with self.assertRaises(StaleRound):
            after.save_checkpoint(self.path, lambda f: f.write(b"late"))

    def test_a_write_that_fails_leaves_the_last_one_and_nothing_beside_it(self):
        j = job()
        j.save_checkpoint(self.path, lambda f: f.write(b"good"))

        def fails(file):
            file.write(b"half")
            raise OSError("no space left")

        with self.assertRaises(OSError):
            j.save_checkpoint(self.path, fails)
        self.assertEqual(self.text(), b"good")
        left = sorted(os.listdir(os.path.dirname(self.path)))
        self.assertEqual(left, ["latest.ckpt", "latest.ckpt.lock", "latest.ckpt.round"])

    def test_what_a_killed_process_left_is_cleared_away(self):
        gone = [self.path + end for end in (".uid-a.2.0a.tmp", ".uid-b.7.0b.tmp", ".alone.9.0c.tmp")]
        kept = [self.path + end for end in (".uid-a.3.0d.tmp", ".mine.tmp", ".2.99.tmp")]
        for name in gone + kept:
            with open(name, "wb"):
                pass
        job(3, ETO_ROUND_ID="uid-a-3").load_checkpoint(self.path, lambda f: f.read())
        self.assertEqual([os.path.exists(name) for name in gone], [False] * 3)
        self.assertEqual([os.path.exists(name) for name in kept], [True] * 3)

    def test_a_job_and_its_successor_write_at_once_in_the_same_round_and_process_id(self):
        """As in two containers: the one that is being deleted writes while the new one loads and saves."""
        old, new = job(1, ETO_ROUND_ID="uid-a-1"), job(1, ETO_ROUND_ID="uid-b-1")
        old.save_checkpoint(self.path, lambda f: f.write(b"first"))

        def slowly(file):
            file.write(b"o" * 10)
            self.assertEqual(new.load_checkpoint(self.path, lambda f: f.read()), b"first")
            new.save_checkpoint(self.path, lambda f: f.write(b"n" * 10))
            file.write(b"o" * 10)

        with self.assertRaises(StaleRound):
            old.save_checkpoint(self.path, slowly)
        self.assertEqual(self.text(), b"n" * 10)
        left = sorted(os.listdir(os.path.dirname(self.path)))
        self.assertEqual(left, ["latest.ckpt", "latest.ckpt.lock", "latest.ckpt.round"])

    def test_rounds_that_write_at_once_end_with_the_newest(self):
        script = (
            "import sys, eto_elastic as e\n"
            "j = e.Job({'ETO_ROUND': sys.argv[1]})\n"
            "for i in range(30):\n"
            "    j.save_checkpoint(sys.argv[2], lambda f: f.write(sys.argv[1].encode()))\n"
        )
        here = os.path.dirname(os.path.abspath(eto_elastic.__file__))
        run = [subprocess.Popen([sys.executable, "-c", script, str(g), self.path], cwd=here,
                                stderr=subprocess.DEVNULL) for g in (5, 6, 7)]
        codes = [p.wait() for p in run]
        self.assertEqual(codes[2], 0)
        self.assertEqual(self.text(), b"7")


class Sampling(unittest.TestCase):
    def test_each_sample_once_per_epoch_through_any_resizes(self):
        luck = random.Random(7)
        for _ in range(200):
            size, state, epochs = luck.randrange(0, 60), None, 3
            seen = [[] for _ in range(epochs)]
            while True:
                world, batch = luck.randrange(1, 7), luck.randrange(1, 20)
                ranks = [ElasticSampler(size, r, world, batch, seed=1) for r in range(world)]
                for s in ranks:
                    if state:
                        s.load_state_dict(state)
                steps = luck.randrange(0, 5)
                self.assertEqual(len({len(list(s)) for s in ranks}), 1)
                self.assertEqual(len(list(ranks[0])), len(ranks[0]))
                for shares in list(zip(*ranks))[:steps]:
                    dealt = [i for share in shares for i in share]
                    self.assertEqual(len(dealt), ranks[0].batch_total())
                    self.assertLessEqual(max(map(len, shares)) - min(map(len, shares)), 1)
                    seen[ranks[0].epoch] += dealt
                    for s in ranks:
                        s.advance()
                if len(ranks[0]) == 0:
                    for s in ranks:
                        s.next_epoch()
                state = ranks[-1].state_dict()
                if state["epoch"] == epochs:
                    break
            for dealt in seen:
                self.assertEqual(sorted(dealt), list(range(size)))

    def test_the_order_is_the_epoch_s_whatever_the_size(self):
        def order(world, epoch):
            ranks = [ElasticSampler(40, r, world, 8, seed=3) for r in range(world)]
            for s in ranks:
                s.epoch = epoch
            return [i for shares in zip(*ranks) for share in shares for i in share]

        self.assertEqual(order(1, 0), order(4, 0))
        self.assertNotEqual(order(1, 0), order(1, 1))
        plain = ElasticSampler(5, 0, 1, 2, shuffle=False)
        self.assertEqual(list(plain), [[0, 1], [2, 3], [4]])

    def test_a_checkpoint_of_other_data_is_refused(self):
        with self.assertRaises(ValueError):
            ElasticSampler(5, 0, 1, 2).load_state_dict(ElasticSampler(6, 0, 1, 2).state_dict())
        with self.assertRaises(ValueError):
            ElasticSampler(5, 2, 2, 2)


if __name__ == "__main__":
    unittest.main()
