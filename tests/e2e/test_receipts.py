"""The receipt of every kind of reply: what was reused, from where and why."""

import unittest

import uma

OPTIONS = {"max_tokens": 6, "ignore_eos": True}
TEXT = "was told about a little girl who lived in a house near the woods, and her grandmother. " * 8

REASONS = {"none": {"one_shot", "not_cached", "diverged", "refused"}, "hot": {"hot", "prefix"}, "warm": {"warm", "prefix"},
           "cold": {"cold", "prefix"}}


class Receipts(unittest.TestCase):
    config = "kv: {layout: split}\n"

    def setUp(self):
        self.daemon = uma.Daemon(uma.TINY, "--kv-cells", "4096", "--slots", "4", config=self.config)
        self.addCleanup(self.daemon.kill)
        self.daemon.start().wait_ready()
        self.client = self.daemon.client()
        self.addCleanup(lambda: self.client.close())

    def receipt(self, reply):
        """Returns tier and reason, after checks that hold for every receipt."""
        self.assertEqual("length", reply.reason, reply.last)
        usage = reply.usage
        self.assertEqual({"prompt_tokens", "reused_tokens", "recomputed_tokens", "completion_tokens", "reasoning_tokens", "tier", "reuse_reason",
                          "restore_ms", "queue_ms", "ttft_ms", "tokens_per_s", "seed", "dropped_turns", "dropped_tokens", "unseen_images"}, set(usage) - {"cache_miss"})
        self.assertEqual(usage["prompt_tokens"], usage["reused_tokens"] + usage["recomputed_tokens"], usage)
        self.assertGreater(usage["recomputed_tokens"], 0, "the last token is always computed")
        self.assertEqual(usage["reused_tokens"] == 0, usage["tier"] == "none", usage)
        self.assertEqual(usage["restore_ms"] > 0, usage["tier"] in ("warm", "cold"), usage)
        self.assertIn(usage["reuse_reason"], REASONS[usage["tier"]], usage)
        return usage["tier"], usage["reuse_reason"]

    def say(self, text, session=None):
        fields = {} if session is None else {"session_id": session}
        return self.receipt(self.client.generate(text, **fields, **OPTIONS))

    def test_one_shot_requests(self):
        self.assertEqual(("none", "one_shot"), self.say(f"One {TEXT}"))
        self.assertEqual(("hot", "prefix"), self.say(f"One {TEXT} and then"))

    def test_sessions_of_all_kinds(self):
        for number, fields in enumerate(({}, {"public": True}, {"ephemeral": True})):
            with self.subTest(**fields):
                session = self.client.create_session(mode="text", **fields)
                self.assertEqual(("none", "not_cached"), self.say(f"{number} {TEXT}", session))
                self.assertEqual(("hot", "hot"), self.say(" And then", session))
                self.client.call(type="end_session", session_id=session)

    def test_forks_rewinds_and_other_replies(self):
        session = self.client.create_session(mode="text")
        self.say(f"Two {TEXT}", session)
        self.say(" And then", session)
        fork = self.client.call(type="fork_session", session_id=session)["session_id"]
        self.assertEqual(("hot", "prefix"), self.say(" But", fork))
        self.assertEqual(("hot", "hot"), self.say(" And then", fork))
        again = self.client.finish(self.client.start(type="regenerate", session_id=session, **OPTIONS))
        self.assertEqual(("hot", "hot"), self.receipt(again))
        self.client.call(type="rewind_session", session_id=session, turn=0)
        self.assertEqual(("hot", "hot"), self.say(" Instead", session))

    def test_where_a_session_was(self):
        session = self.client.create_session(mode="text")
        self.say(f"Three {TEXT}", session)
        for number in range(4):
            other = self.client.create_session(mode="text")
            self.say(f"other {number} {TEXT} {TEXT}", other)  # more valuable, because it is longer
        detail = self.client.session(session)
        self.assertEqual("warm", detail["tier"])
        self.assertEqual((0, True), (detail["hot_bytes"], detail["warm_bytes"] > 0))
        self.assertEqual(("warm", "warm"), self.say(" And then", session))
        self.assertGreater(self.client.session(session)["hot_bytes"], 0)
        # A state that left its context is written; the copy in memory goes with the end of that.
        uma.until(lambda: self.client.session(session)["warm_bytes"] == 0, "the warm copy to go")
        self.client.close()
        self.assertEqual(0, self.daemon.terminate(), self.daemon.log())
        self.daemon.start().wait_ready()
        self.client = self.daemon.client()
        (listed,) = [entry for entry in self.client.call(type="list_sessions")["sessions"] if entry["session_id"] == session]
        self.assertEqual((0, 0, True), (listed["hot_bytes"], listed["warm_bytes"], listed["cold_bytes"] > 0))
        self.assertEqual(("cold", "cold"), self.say(" And then", session))
        metrics = self.client.metrics()
        self.assertEqual(1, metrics["cold_hits_total"])
        self.assertGreater(metrics["cold_restore_ms_avg"], 0)
        self.assertEqual(0, metrics["warm_restore_ms_avg"])

    def test_a_request_that_ended_before_it_began(self):
        running = [self.client.start(type="generate", prompt=f"{number} {TEXT}", max_tokens=800, ignore_eos=True) for number in range(4)]
        for request in running:
            self.client.wait_token(request)
        late = self.client.start(type="generate", prompt="y", **OPTIONS)
        self.client.call(type="cancel", target=late)
        reply = self.client.finish(late)
        self.assertEqual("cancelled", reply.reason)
        self.assertEqual((0, "none", ""), (reply.usage["prompt_tokens"], reply.usage["tier"], reply.usage["reuse_reason"]))
        for request in running:
            self.client.call(type="cancel", target=request)
            self.assertEqual("cancelled", self.client.finish(request).reason)


class UnifiedReceipts(Receipts):
    config = "kv: {layout: unified}\n"


if __name__ == "__main__":
    unittest.main()
