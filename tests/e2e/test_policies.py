"""Scheduling policies: the same executor and the same answers, in another order."""

import unittest

import uma

POLICIES = ("continuous", "static_batch", "iterative", "time_slice", "sequential")


class Policies(unittest.TestCase):
    def timeline(self, daemon, tokens=60, streams=3):
        """Starts streams one after the other on one connection; returns the order in which their tokens came."""
        with daemon.client() as client:
            ids = [client.start(type="generate", prompt=f"Stream {number}", max_tokens=tokens, ignore_eos=True) for number in range(streams)]
            order = []
            open_ids = set(ids)
            while open_ids:
                event = client.pump()
                if event["event"] == "token":
                    order.append(ids.index(event["id"]))
                else:
                    self.assertEqual("length", event.get("reason"), event)
                    open_ids.discard(event["id"])
            return order

    def test_everybody_is_served_whatever_the_policy(self):
        for policy in POLICIES:
            with self.subTest(policy), uma.Daemon(uma.TINY, "--policy", policy, "--slots", 4) as daemon:
                def talk(number, daemon=daemon):
                    with daemon.client() as client:
                        return client.generate(f"Client {number}", max_tokens=20, ignore_eos=True)
                replies = uma.parallel(*[lambda number=number: talk(number) for number in range(6)])
                self.assertEqual(["length"] * 6, [reply.reason for reply in replies])
                self.assertEqual([20] * 6, [reply.usage["completion_tokens"] for reply in replies])

    def test_sequential_is_one_after_the_other(self):
        with uma.Daemon(uma.TINY, "--policy", "sequential") as daemon:
            order = self.timeline(daemon)
        self.assertEqual([0] * 60 + [1] * 60 + [2] * 60, order)

    def test_iterative_goes_round(self):
        with uma.Daemon(uma.TINY, "--policy", "iterative") as daemon:
            order = self.timeline(daemon)
        # While all three run, no stream gets two tokens in a row.
        together = order[max(order.index(number) for number in range(3)):][:60]
        self.assertTrue(all(a != b for a, b in zip(together, together[1:])), order)

    def test_a_slice_is_a_slice(self):
        config = "scheduler: {slice_ms: 5}\npolicy: time_slice\n"
        with uma.Daemon(uma.TINY, config=config) as daemon:
            order = self.timeline(daemon, tokens=200)
        changes = sum(a != b for a, b in zip(order, order[1:]))
        self.assertGreater(changes, 2, "more than one turn each")
        self.assertLess(changes, len(order) // 2, "and turns of several tokens")

    def test_a_static_batch_takes_no_latecomer(self):
        config = "scheduler: {static_batch_wait_ms: 1}\npolicy: static_batch\n"
        with uma.Daemon(uma.TINY, config=config) as daemon, daemon.client() as client:
            first = client.start(type="generate", prompt="First", max_tokens=300, ignore_eos=True)
            client.wait_token(first)
            late = client.start(type="generate", prompt="Late", max_tokens=1)
            client.finish(late)
            self.assertEqual("eos", client.replies[first].last["event"], "the batch had ended before the latecomer began")


if __name__ == "__main__":
    unittest.main()
