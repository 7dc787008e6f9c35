"""The KV of sessions that move between umads of one database, over a store that all of them use: a folder, or a Redis server."""

import contextlib
import pathlib
import shutil
import signal
import tempfile
import unittest

import postgres
import redis
import uma

OPTIONS = {"max_tokens": 8, "ignore_eos": True, "temperature": 0}
FLAGS = ("--kv-cells", "4096", "--slots", "8")
CONFIG = "scheduler:\n  reproducible: on\n"
PROMPT = "Once upon a time there was a little girl who lived in a house near the woods. " * 12


class Folder:
    """A folder that the nodes share."""

    def __init__(self):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="uma-states-"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)

    @property
    def address(self):
        return str(self.path)

    def states(self):
        """What is stored. A folder may be removed while it is read."""
        while True:
            with contextlib.suppress(FileNotFoundError):
                return sorted(self.path.glob("*/*/*.kv"))

    def change_all(self, change):
        """Changes the bytes of all states."""
        for path in self.states():
            path.write_bytes(change(path.read_bytes()))

    @contextlib.contextmanager
    def down(self):
        """The folder is not mounted in the block."""
        moved = self.path.with_name(self.path.name + "-gone")
        self.path.rename(moved)
        try:
            yield
        finally:
            moved.rename(self.path)


class SharedStore:
    """A database and a store of states for nodes."""

    def open_store(self):
        raise NotImplementedError

    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.database = self.stack.enter_context(postgres.Postgres())
        self.store = self.stack.enter_context(self.open_store())


class States(SharedStore):
    """Tests for the classes below, one for each kind of store."""

    def start(self, name, *flags):
        daemon = uma.Daemon(uma.TINY_REGISTER, *FLAGS, "--catalog", self.database.address(), "--node", name, "--shared-states",
                            self.store.address, *flags, config=CONFIG)
        self.stack.callback(daemon.kill)
        return daemon.start().wait_ready()

    def client(self, node):
        return self.stack.enter_context(node.client())

    def begin(self, client, prompt=PROMPT):
        session = client.create_session(mode="text")
        reply = client.generate(prompt, session_id=session, **OPTIONS)
        self.assertEqual("length", reply.reason, reply.last)
        return session

    def go_on(self, client, session):
        reply = client.generate(" And then", session_id=session, **OPTIONS)
        self.assertEqual("length", reply.reason, reply.last)
        return reply

    def expected(self, client):
        """The tokens of the second reply in a session that stays where it is."""
        session = self.begin(client)
        reply = self.go_on(client, session)
        client.call(type="end_session", session_id=session)
        return [token["token_id"] for token in reply.tokens]

    def assert_restored(self, wanted, reply):
        self.assertEqual(("shared", "shared"), (reply.usage["tier"], reply.usage["reuse_reason"]), reply.usage)
        self.assertGreater(reply.usage["reused_tokens"], reply.usage["recomputed_tokens"])
        self.assertEqual(wanted, [token["token_id"] for token in reply.tokens])

    def assert_computed(self, wanted, reply):
        self.assertEqual(("none", 0), (reply.usage["tier"], reply.usage["reused_tokens"]), reply.usage)
        self.assertEqual(wanted, [token["token_id"] for token in reply.tokens])

    def test_a_conversation_that_moves_goes_on_from_its_state(self):
        a, b = (self.client(self.start(name)) for name in "ab")
        wanted = self.expected(a)
        session = self.begin(a)
        self.assert_restored(wanted, self.go_on(b, session))
        back = self.go_on(a, session)
        self.assertGreater(back.usage["reused_tokens"], back.usage["recomputed_tokens"])
        figures = b.metrics()
        self.assertEqual(1, figures["shared_hits_total"])
        self.assertEqual(1, figures["shared_reads_total"])
        self.assertGreater(figures["shared_read_bytes_total"], 0)
        self.assertGreaterEqual(a.metrics()["shared_writes_total"], 1)

    def test_a_node_that_ends_leaves_its_states(self):
        first = self.start("a")
        a, b = self.client(first), self.client(self.start("b"))
        wanted = self.expected(a)
        sessions = [self.begin(a) for _ in range(3)]
        self.assertEqual(0, first.terminate(), first.log())
        for session in sessions:
            self.assert_restored(wanted, self.go_on(b, session))

    def test_a_node_that_was_killed_leaves_the_states_of_idle_sessions(self):
        first = self.start("a")
        a, b = self.client(first), self.client(self.start("b"))
        wanted = self.expected(a)
        session = self.begin(a)
        uma.until(lambda: a.metrics()["shared_writes_total"] >= 1, "the idle session's state is stored")
        first.process.kill()
        self.database.run_sql("UPDATE daemons SET lease_until = clock_timestamp() - interval '1 s' WHERE node = 'a'")
        self.assert_restored(wanted, self.go_on(b, session))

    def moved_after(self, change):
        """A session's next reply on b, after all that a has stored was changed; returns it, and its tokens if nothing moves."""
        first = self.start("a")
        a, b = self.client(first), self.client(self.start("b"))
        wanted = self.expected(a)
        session = self.begin(a)
        self.assertEqual(0, first.terminate(), first.log())
        self.assertEqual(1, len(self.store.states()))
        self.store.change_all(change)
        return b, wanted, self.go_on(b, session)

    def test_wrong_bytes_are_found_and_computed_again(self):
        b, wanted, reply = self.moved_after(lambda data: data[:-5000] + bytes([data[-5000] ^ 1]) + data[-4999:])
        self.assertEqual("refused", reply.usage["reuse_reason"])
        self.assert_computed(wanted, reply)
        self.assertEqual(1, b.metrics()["shared_refused_total"])
        self.assertEqual([], self.store.states(), "it is removed")

    def test_a_state_that_was_cut_is_computed_again(self):
        _, wanted, reply = self.moved_after(lambda data: data[: len(data) // 2])
        self.assert_computed(wanted, reply)

    def test_other_settings_compute_again(self):
        first = self.start("a")
        a, b = self.client(first), self.client(self.start("b", "--rope-freq-base", "20000"))
        session = self.begin(a)
        self.assertEqual(0, first.terminate(), first.log())
        reply = self.go_on(b, session)
        self.assertEqual(0, reply.usage["reused_tokens"])
        self.assertEqual(0, b.metrics()["shared_reads_total"], "it is not read")

    def test_a_store_that_is_down_costs_time_and_nothing_else(self):
        a, b = (self.client(self.start(name)) for name in "ab")
        wanted = self.expected(a)
        with self.store.down():
            session = self.begin(a)
            self.assert_computed(wanted, self.go_on(b, session))
        self.assertGreater(a.metrics()["shared_failed_total"] + b.metrics()["shared_failed_total"], 0)

    def test_the_end_of_a_session_removes_its_states(self):
        a = self.client(self.start("a"))
        session = self.begin(a)
        uma.until(self.store.states, "the idle session's state is stored")
        self.assertEqual("ack", a.call(type="end_session", session_id=session)["event"])
        uma.until(lambda: not self.store.states(), "the state is removed")


@postgres.needed
class StatesInFolder(States, unittest.TestCase):
    def open_store(self):
        return Folder()


class RedisStates(redis.Redis):
    """A server that has the states."""

    def states(self):
        return sorted(self.ask("KEYS", "uma:1:h:*"))

    def change_all(self, change):
        for key in self.ask("KEYS", "uma:1:c:*"):
            self.ask("SET", key, change(self.ask("GET", key)))

    @contextlib.contextmanager
    def down(self):
        self.stop()
        try:
            yield
        finally:
            self.start()


@postgres.needed
@redis.needed
class StatesInRedis(States, unittest.TestCase):
    def open_store(self):
        return RedisStates()

    def test_a_server_that_was_flushed_costs_time_and_nothing_else(self):
        first = self.start("a")
        a, b = self.client(first), self.client(self.start("b"))
        wanted = self.expected(a)
        session = self.begin(a)
        self.assertEqual(0, first.terminate(), first.log())
        self.store.ask("FLUSHALL")
        self.assert_computed(wanted, self.go_on(b, session))

    def test_a_full_server_costs_time_and_nothing_else(self):
        self.store.ask("CONFIG", "SET", "maxmemory", "1")
        first = self.start("a")
        a, b = self.client(first), self.client(self.start("b"))
        wanted = self.expected(a)
        session = self.begin(a)
        self.assertEqual(0, first.terminate(), first.log())
        self.assertIn("OOM", first.log())
        self.assert_computed(wanted, self.go_on(b, session))

    def test_a_server_that_hangs_costs_time_and_nothing_else(self):
        a, b = (self.client(self.start(name)) for name in "ab")
        wanted = self.expected(a)
        session = self.begin(a)
        self.store.process.send_signal(signal.SIGSTOP)
        try:
            self.assert_computed(wanted, self.go_on(b, session))
        finally:
            self.store.process.send_signal(signal.SIGCONT)


if __name__ == "__main__":
    unittest.main()
