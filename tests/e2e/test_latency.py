"""No client waits too long: long prompts beside streams, priority classes, clients that share, an idle daemon."""

import contextlib
import pathlib
import time
import unittest

import uma

LONG = " ".join(["word"] * 1500)


class LongPrompts(uma.DaemonTest):
    model = uma.TINY_REGISTER
    flags = ("--kv-cells", "32768", "--slots", "4", "--threads", "2")
    config = "scheduler: {tick_ms: 1}\nkv: {layout: split}\n"  # every prompt of some length is offloaded, however fast the machine is

    @contextlib.contextmanager
    def stream(self, client):
        """A stream that runs for seconds. Yields a list that has its text so far after the block."""
        text = []
        stream = client.start(type="generate", prompt="a stream", max_tokens=8000, ignore_eos=True)
        client.wait_token(stream)
        yield text
        client.call(type="cancel", target=stream)
        text.append(client.finish(stream).text)

    def test_a_stream_goes_on_beside_them_and_says_the_same(self):
        with self.stream(self.client) as text, self.daemon.client() as other:
            prompts = [other.start(type="generate", prompt=f"{n} {LONG}", max_tokens=3, progress=True) for n in range(3)]
            replies = [other.finish(request) for request in prompts]
        alone = self.client.generate("a stream", max_tokens=8000, ignore_eos=True).text
        self.assert_begin_alike(alone, text[0])
        for reply in replies:
            self.assertEqual("length", reply.reason)
            self.assertEqual(reply.usage["prompt_tokens"], reply.usage["recomputed_tokens"])
        self.assertGreater(self.client.metrics()["handovers_total"], 0)

    def test_a_session_finds_its_prompt_in_the_slot(self):
        with self.stream(self.client), self.daemon.client() as other:
            session = other.create_session()
            first = other.generate(LONG, session_id=session, max_tokens=3)
            second = other.generate("and more", session_id=session, max_tokens=3)
        self.assertEqual("hot", second.usage["tier"])
        self.assertGreaterEqual(second.usage["reused_tokens"], first.usage["prompt_tokens"])

    def test_lanes_off_and_turns_say_the_same(self):
        def replies(lanes):
            config = f"scheduler: {{lanes: {lanes}, tick_ms: 1}}\nkv: {{layout: split}}\n"
            with uma.Daemon(self.model, *self.flags, config=config) as daemon, daemon.client() as client:
                with self.stream(client) as text:
                    self.assertEqual("length", client.generate(LONG, max_tokens=1).reason)
                return text[0], client.metrics()["handovers_total"] > 0

        texts, handed_over = zip(*(replies(lanes) for lanes in ("split", "turns", "off")))
        self.assertEqual((True, True, False), handed_over)
        for text in texts[1:]:
            self.assert_begin_alike(texts[0], text)

    def assert_begin_alike(self, one, other):
        """One of the texts is the beginning of the other, and neither is empty."""
        length = min(len(one), len(other))
        self.assertGreater(length, 0)
        self.assertEqual(one[:length], other[:length])


class Sharing(uma.DaemonTest):
    flags = ("--kv-cells", "4096", "--slots", "1")
    config = "kv: {layout: split}\n"

    def test_one_request_is_not_behind_fifty_of_another_client(self):
        with self.daemon.client() as greedy:
            many = [greedy.start(type="generate", prompt=f"one of many {n}", max_tokens=20, ignore_eos=True, deadline_ms=0)
                    for n in range(50)]
            greedy.finish(many[0])
            self.client.generate("only one", max_tokens=20, ignore_eos=True)
            # All replies of the greedy client that had ended by then have been read or wait in its socket.
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
    flags = ("--kv-cells", "2048", "--threads", "2")

    def test_all_threads_of_an_idle_daemon_sleep(self):
        self.client.generate("something to do", max_tokens=50, ignore_eos=True)
        self.wait_idle()

        def wakings():
            """How often each thread has gone to sleep; empty if one is awake. The number of a thread that polls changes."""
            counts = {}
            for task in pathlib.Path(f"/proc/{self.daemon.process.pid}/task").iterdir():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
                    status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
                    if status["State"].split()[0] != "S":
                        return {}
                    counts[task.name] = status["voluntary_ctxt_switches"]
            return counts

        def rests():
            before = wakings()
            time.sleep(0.05)  # long enough for a thread that polls to wake
            return before and before == wakings()

        uma.until(rests, "all threads of the daemon sleep")


if __name__ == "__main__":
    unittest.main()
