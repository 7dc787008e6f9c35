"""Requests that end early: cancelled while queued, prefilling or streaming; deadlines of waiting; timeouts of the whole."""

import unittest

import uma

LONG = " ".join(["word"] * 3000)  # a prefill of thousands of tokens


class Cancel(uma.DaemonTest):
    flags = ("--kv-cells", "8192", "--slots", "1")
    config = "kv: {layout: split}\n"

    def start_long_stream(self, client=None):
        client = client or self.client
        running = client.start(type="generate", prompt="one", max_tokens=2000, ignore_eos=True)
        client.wait_token(running)
        return running

    def test_a_stream(self):
        running = self.start_long_stream()
        answer = self.client.call(type="cancel", target=running)
        self.assertEqual(("ack", True), (answer["event"], answer["cancelled"]))
        reply = self.client.finish(running)
        self.assertEqual("cancelled", reply.reason)
        self.assertLess(reply.usage["completion_tokens"], 2000)
        self.wait_idle()

    def test_a_prefill(self):
        before = self.client.metrics()["prompt_tokens_total"]
        running = self.client.start(type="generate", prompt=LONG, max_tokens=1)
        self.wait_active()
        self.assertTrue(self.client.call(type="cancel", target=running)["cancelled"])
        last = self.client.finish(running).last
        self.assertEqual(("eos", "cancelled"), (last["event"], last.get("reason")))
        self.wait_idle()
        computed = self.client.metrics()["prompt_tokens_total"] - before
        print(f"\n  cancelled after {computed} prompt tokens of about {len(LONG.split())}", end=" ")

    def test_a_waiting_request(self):
        running = self.start_long_stream()
        waiting = self.client.start(type="generate", prompt="two", max_tokens=5)
        self.assertTrue(self.client.call(type="cancel", target=waiting)["cancelled"])
        self.assertEqual("cancelled", self.client.finish(waiting).reason)
        self.client.call(type="cancel", target=running)
        self.client.finish(running)

    def test_unknown_and_finished_requests_are_no_error(self):
        self.assertFalse(self.client.call(type="cancel", target="never")["cancelled"])
        done = self.client.generate("one", max_tokens=1)
        self.assertFalse(self.client.call(type="cancel", target=done.id)["cancelled"])
        session = self.client.create_session()
        self.assertFalse(self.client.call(type="cancel", session_id=session)["cancelled"])

    def test_requests_of_other_connections_are_out_of_reach(self):
        running = self.start_long_stream()
        self.assertFalse(self.another_client().call(type="cancel", target=running)["cancelled"])
        self.client.call(type="cancel", target=running)
        self.assertEqual("cancelled", self.client.finish(running).reason)

    def test_a_disconnect_cancels_what_runs_and_what_waits(self):
        before = self.client.metrics()

        def counted(name):
            return self.client.metrics()[name] - before[name]

        client = self.daemon.client()
        self.start_long_stream(client)
        for number in range(5):
            client.start(type="generate", prompt=f"waiting {number}", max_tokens=2000, ignore_eos=True)
        uma.until(lambda: self.client.metrics()["queue_depth"] == 5, "five wait for the slot")
        client.close()
        self.wait_idle()
        uma.until(lambda: counted("requests_cancelled_total") == 6, "all are cancelled")
        self.assertLess(counted("tokens_total"), 2000)

    def test_a_disconnect_in_the_prefill(self):
        client = self.daemon.client()
        client.start(type="generate", prompt=LONG, max_tokens=1)
        self.wait_active()
        client.close()
        self.wait_idle()
        self.assertEqual("eos", self.client.generate("one", max_tokens=1).last["event"])

    def test_a_deadline_of_waiting(self):
        running = self.start_long_stream()
        late = self.client.start(type="generate", prompt="two", max_tokens=5, deadline_ms=30)
        self.assert_error(self.client.finish(late), "E_LIMIT_003")
        patient = self.client.start(type="generate", prompt="two", max_tokens=5, ignore_eos=True, deadline_ms=0)
        self.assertEqual("length", self.client.finish(running).reason)
        self.assertEqual("length", self.client.finish(patient).reason)

    def test_a_deadline_does_not_bound_what_has_begun(self):
        reply = self.client.generate("one", max_tokens=1000, ignore_eos=True, deadline_ms=20)
        if reply.last["event"] == "eos":  # on a busy machine it may wait longer than its deadline
            self.assertEqual(1000, reply.usage["completion_tokens"])
        else:
            self.assert_error(reply, "E_LIMIT_003")

    def test_a_timeout_of_the_whole(self):
        reply = self.client.generate("one", max_tokens=2000, ignore_eos=True, timeout_ms=60)
        self.assertEqual(("eos", "timeout"), (reply.last["event"], reply.reason))
        self.assertLess(reply.usage["completion_tokens"], 2000)
        self.assertEqual("length", self.client.generate("one", max_tokens=2, ignore_eos=True, timeout_ms=600_000).reason)

    def test_a_timeout_while_waiting(self):
        running = self.start_long_stream()
        waiting = self.client.start(type="generate", prompt="two", timeout_ms=30)
        last = self.client.finish(waiting).last
        self.assertEqual(("eos", "timeout"), (last["event"], last.get("reason")))
        self.client.call(type="cancel", target=running)
        self.client.finish(running)


class BoundedQueue(uma.DaemonTest):
    flags = ("--kv-cells", "4096", "--slots", "1")
    config = "limits: {queue_max: 2}\nkv: {layout: split}\n"

    def test_a_full_queue_refuses_with_its_length(self):
        running = self.client.start(type="generate", prompt="one", max_tokens=2000, ignore_eos=True)
        self.client.wait_token(running)
        waiting = [self.client.start(type="generate", prompt="two", max_tokens=1) for _ in range(6)]
        refused = [self.client.finish(request_id) for request_id in waiting[2:]]
        for reply in refused:
            self.assert_error(reply, "E_LIMIT_003", "2")
        self.client.call(type="cancel", target=running)
        self.client.finish(running)
        for request_id in waiting[:2]:
            self.assertEqual("eos", self.client.finish(request_id).last["event"])


class DefaultDeadline(uma.DaemonTest):
    flags = ("--kv-cells", "4096", "--slots", "1")
    config = "limits: {deadline_ms: 50}\nkv: {layout: split}\n"

    def test_it_is_the_configurations(self):
        running = self.client.start(type="generate", prompt="one", max_tokens=2000, ignore_eos=True, deadline_ms=0)
        self.client.wait_token(running)
        self.assert_error(self.client.generate("two"), "E_LIMIT_003")
        self.client.call(type="cancel", target=running)
        self.client.finish(running)


if __name__ == "__main__":
    unittest.main()
