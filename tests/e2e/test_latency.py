"""Nobody freezes: long prompts beside streams, classes, clients that share, an idle daemon."""

import contextlib
import pathlib
import time
import unittest

import uma

LONG = " ".join(["word"] * 1500)


class LongPrompts(uma.DaemonTest):
    flags = ("--n-ctx", "8192", "--slots", "4", "--threads", "2")
    config = "kv: {layout: split}\n"

    def test_a_stream_goes_on_beside_them_and_says_the_same(self):
        alone = self.client.generate("a stream", max_tokens=300, ignore_eos=True).text
        stream = self.client.start(type="generate", prompt="a stream", max_tokens=300, ignore_eos=True)
        self.client.wait_token(stream)
        with self.daemon.client() as other:
            prompts = [other.start(type="generate", prompt=f"{n} {LONG}", max_tokens=3, progress=True) for n in range(3)]
            replies = [other.finish(request) for request in prompts]
        self.assertEqual(alone, self.client.finish(stream).text)
        for reply in replies:
            self.assertEqual("length", reply.reason)
            self.assertEqual(reply.usage["prompt_tokens"], reply.usage["recomputed_tokens"])
        self.assertGreater(self.client.metrics()["handovers_total"], 0)

    def test_a_session_finds_its_prompt_in_the_slot(self):
        stream = self.client.start(type="generate", prompt="a stream", max_tokens=2000, ignore_eos=True)
        self.client.wait_token(stream)
        with self.daemon.client() as other:
            session = other.create_session()
            first = other.generate(LONG, session_id=session, max_tokens=3)
            second = other.generate("and more", session_id=session, max_tokens=3)
        self.assertEqual("hot", second.usage["tier"])
        self.assertGreaterEqual(second.usage["reused_tokens"], first.usage["prompt_tokens"])
        self.client.call(type="cancel", target=stream)
        self.client.finish(stream)

    def test_lanes_off_and_turns_say_the_same(self):
        def replies(lanes):
            config = f"scheduler: {{lanes: {lanes}}}\nkv: {{layout: split}}\n"
            with uma.Daemon(uma.TINY, *self.flags, config=config) as daemon, daemon.client() as client:
                stream = client.start(type="generate", prompt="a stream", max_tokens=200, ignore_eos=True)
                client.wait_token(stream)
                prompt = client.start(type="generate", prompt=LONG, max_tokens=1)
                return [client.finish(stream).text, client.finish(prompt).reason, client.metrics()["handovers_total"] > 0]

        self.assertEqual([True, True, False], [replies(lanes)[2] for lanes in ("split", "turns", "off")])
        self.assertEqual(replies("turns")[:2], replies("off")[:2])


class Sharing(uma.DaemonTest):
    flags = ("--n-ctx", "4096", "--slots", "1")
    config = "kv: {layout: split}\n"

    def test_one_request_is_not_behind_fifty_of_another_client(self):
        with self.daemon.client() as greedy:
            many = [greedy.start(type="generate", prompt=f"one of many {n}", max_tokens=20, ignore_eos=True, deadline_ms=0)
                    for n in range(50)]
            greedy.finish(many[0])
            self.client.generate("only one", max_tokens=20, ignore_eos=True)
            # Everything of the greedy client that had ended by then has been read or waits in its socket.
            ended = 1 + sum(1 for _ in self.ended_now(greedy, many[1:]))
            self.assertLess(ended, 10)
            for request in many:
                greedy.call(type="cancel", target=request)

    def ended_now(self, client, requests):
        before = client.metrics()
        yield from range(50 - before["queue_depth"] - before["sequences_active"] - 1)

    def test_an_interactive_request_takes_the_slot_of_a_background_one(self):
        alone = self.client.generate("a report", max_tokens=400, ignore_eos=True).text
        background = self.client.start(type="generate", prompt="a report", max_tokens=400, ignore_eos=True, **{"class": "background"})
        self.client.wait_token(background)
        before = self.client.metrics()["preemptions_total"]
        with self.daemon.client() as other:
            self.assertEqual("length", other.generate("now", max_tokens=5, ignore_eos=True).reason)
        self.assertEqual(alone, self.client.finish(background).text)
        self.assertGreater(self.client.metrics()["preemptions_total"], before)


class Idle(uma.DaemonTest):
    flags = ("--n-ctx", "2048", "--threads", "2")

    def test_all_threads_of_an_idle_daemon_sleep(self):
        self.client.generate("something to do", max_tokens=50, ignore_eos=True)
        self.wait_idle()

        def wakings():
            """How often each thread has gone to sleep; empty where one is awake. Who spins or polls never keeps the same number."""
            counts = {}
            for task in pathlib.Path(f"/proc/{self.daemon.process.pid}/task").iterdir():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                    status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
                    if status["State"].split()[0] != "S":
                        return {}
                    counts[task.name] = status["voluntary_ctxt_switches"]
            return counts

        def rests():
            before = wakings()
            time.sleep(0.05)  # in which a thread that polls wakes
            return before and before == wakings()

        uma.until(rests, "all threads of the daemon sleep")


if __name__ == "__main__":
    unittest.main()
