"""System prompts whose KV umads share over a store that all of them use, though they share no conversation."""

import signal
import unittest

import postgres
import redis
import test_cluster_states
import uma

OPTIONS = {"max_tokens": 8, "ignore_eos": True, "temperature": 0}
SYSTEM = "You are a librarian. Answer in one sentence, and never recommend a book that you have not read yourself. " * 16
UNIFIED = ("--kv-cells", "4096", "--slots", "8")
SPLIT = ("--kv-cells", "16384", "--slots", "8")


class Prefixes(test_cluster_states.SharedStore):
    """Tests for the classes below, one for each kind of store."""

    def start(self, *flags):
        daemon = uma.Daemon(uma.TINY_REGISTER, *flags)
        self.stack.callback(daemon.kill)
        return daemon.start().wait_ready()

    def client(self, name, flags=UNIFIED):
        node = self.start(*flags, "--catalog", self.database.address(), "--node", name, "--shared-states", self.store.address)
        return self.stack.enter_context(node.client())

    def ask(self, client, text, system=SYSTEM, **fields):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        reply = client.generate(messages=messages, **OPTIONS, **fields)
        self.assertEqual("length", reply.reason, reply.last)
        return reply

    def ask_in_session(self, client, text, **fields):
        session = client.create_session(mode="chat", system=SYSTEM, **fields)
        reply = client.generate(messages=[{"role": "user", "content": text}], session_id=session, **OPTIONS)
        self.assertEqual("length", reply.reason, reply.last)
        return reply

    def alone(self, text, flags=UNIFIED):
        """The tokens of the reply of a node that shares nothing."""
        with self.start(*flags).client() as client:
            return self.tokens(self.ask(client, text))

    def tokens(self, reply):
        return [token["token_id"] for token in reply.tokens]

    def share_from(self, client):
        """Two conversations, of which the client's node stores the system prompt."""
        self.ask(client, "What is new?")
        self.assertEqual([], self.store.states(), "it may be one conversation's alone")
        self.ask(client, "What is old?")
        uma.until(lambda: client.metrics()["shared_prefixes_written_total"] == 1, "the system prompt is stored")
        self.assertEqual(1, len(self.store.states()))

    def assert_shared(self, reply):
        self.assertEqual(("shared", "prefix"), (reply.usage["tier"], reply.usage["reuse_reason"]), reply.usage)
        self.assertGreater(reply.usage["reused_tokens"], 256)
        self.assertLess(reply.usage["recomputed_tokens"], 40)

    def assert_computed(self, reply):
        self.assertEqual(("none", 0), (reply.usage["tier"], reply.usage["reused_tokens"]), reply.usage)

    def test_a_node_goes_on_from_a_system_prompt_that_it_has_never_seen(self):
        a, b = self.client("a"), self.client("b")
        wanted = self.alone("Who is Ada?")
        self.share_from(a)
        reply = self.ask(b, "Who is Ada?")
        self.assert_shared(reply)
        self.assertEqual(wanted, self.tokens(reply))
        figures = b.metrics()
        self.assertEqual([1, 1, 1], [figures[name] for name in ("shared_prefix_lookups_total", "shared_prefixes_found_total", "shared_hits_total")])
        again = self.ask(b, "Who is Bob?")
        self.assertEqual("hot", again.usage["tier"], again.usage)
        self.assertEqual(1, b.metrics()["shared_prefix_lookups_total"], "it is known")
        self.assertEqual(0, b.metrics()["shared_prefixes_written_total"], "it is there")

    def test_slots_with_cells_of_their_own_share_it_with_their_like(self):
        a, b, c = self.client("a", SPLIT), self.client("b", SPLIT), self.client("c", UNIFIED)
        self.share_from(a)
        reply = self.ask(b, "Who is Ada?")
        self.assert_shared(reply)
        self.assertEqual(self.alone("Who is Ada?", SPLIT), self.tokens(reply))
        self.assert_computed(self.ask(c, "Who is Ada?"))

    def test_sessions_and_requests_without_one_share_it(self):
        a, b, c = (self.client(name) for name in "abc")
        for text in ("What is new?", "What is old?"):
            self.ask_in_session(a, text)
        uma.until(lambda: a.metrics()["shared_prefixes_written_total"] == 1, "the system prompt is stored")
        self.assert_shared(self.ask(b, "Who is Ada?"))
        self.assert_shared(self.ask_in_session(c, "Who is Ada?"))

    def test_that_of_a_public_session_is_stored_at_once(self):
        a, b = self.client("a"), self.client("b")
        self.ask_in_session(a, "What is new?", public=True)
        uma.until(lambda: a.metrics()["shared_prefixes_written_total"] == 1, "the system prompt is stored")
        self.assert_shared(self.ask(b, "Who is Ada?"))

    def test_wrong_bytes_are_found_and_computed(self):
        a, b = self.client("a"), self.client("b")
        wanted = self.alone("Who is Ada?")
        self.share_from(a)
        self.store.change_all(lambda data: data[:-5000] + bytes([data[-5000] ^ 1]) + data[-4999:])
        reply = self.ask(b, "Who is Ada?")
        self.assertEqual("refused", reply.usage["reuse_reason"], reply.usage)
        self.assert_computed(reply)
        self.assertEqual(wanted, self.tokens(reply))
        self.assertEqual(1, b.metrics()["shared_refused_total"])
        self.assertEqual([], self.store.states(), "it is removed")

    def test_other_settings_compute(self):
        a, b = self.client("a"), self.client("b", (*UNIFIED, "--rope-freq-base", "20000"))
        self.share_from(a)
        self.assert_computed(self.ask(b, "Who is Ada?"))
        self.assertEqual(0, b.metrics()["shared_reads_total"], "it is not read")

    def test_a_store_that_is_down_costs_time_and_nothing_else(self):
        a, b = self.client("a"), self.client("b")
        with self.store.down():
            for client in (a, b):
                reply = self.ask(client, "Who is Ada?")
                self.assert_computed(reply)
            self.ask(a, "Who is Bob?")
        self.assertEqual(self.alone("Who is Ada?"), self.tokens(reply))


@postgres.needed
class PrefixesInFolder(Prefixes, unittest.TestCase):
    def open_store(self):
        return test_cluster_states.Folder()


@postgres.needed
@redis.needed
class PrefixesInRedis(Prefixes, unittest.TestCase):
    def open_store(self):
        return test_cluster_states.RedisStates()

    def test_a_server_that_hangs_costs_time_and_nothing_else(self):
        b = self.client("b")
        self.store.process.send_signal(signal.SIGSTOP)
        try:
            reply = self.ask(b, "Who is Ada?")
        finally:
            self.store.process.send_signal(signal.SIGCONT)
        self.assert_computed(reply)


if __name__ == "__main__":
    unittest.main()
