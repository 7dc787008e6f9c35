"""The live view: GET /v1/events and the socket's watch, while the daemon does something."""

import contextlib
import http.client
import json
import pathlib
import signal
import tempfile
import time
import unittest

import test_http_operations
import uma

FIELDS = {"unix_ms", "uptime_s", "rss_bytes", "oldest_waiting_s", "status", "threads", "crashes_total", "requests_open", "contract_ms", "totals",
          "latency", "workers", "queue", "queue_depth", "tiers", "moves", "memory", "models", "devices", "tenants", "calls", "calls_left_out"}
WATCH = {"type": "watch", "interval_ms": 100, "history_s": 60}


class Events:
    """The events of one GET /v1/events, as they come."""

    def __init__(self, test, port, query="interval_ms=100", **headers):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=uma.WAIT_S)
        test.addCleanup(self.connection.close)
        self.connection.request("GET", f"/v1/events?{query}", headers=headers)
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200, self.answer.read()

    def next(self):
        """Returns (name, object) of the next event; None at the end of the stream."""
        lines = {}
        while True:
            line = self.answer.readline().decode()
            if not line:
                return None
            if line == "\n" and "data" in lines:
                return lines["event"], json.loads(lines["data"])
            name, _, value = line.rstrip("\n").partition(": ")
            if name:
                lines[name] = value

    def until(self, condition, what):
        """Returns the first snapshot for which the condition holds."""
        for _ in range(100):
            name, snapshot = self.next()
            if name == "snapshot" and condition(snapshot):
                return snapshot
        raise AssertionError(f"never {what}")


def states(snapshot):
    return [slot["state"] for worker in snapshot["workers"] for slot in worker["slots"]]


class Live(uma.DaemonTest):
    flags = ("--http", "127.0.0.1:0", "--slots", "2", "--kv-cells", "4096")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.port = int(cls.daemon.log().partition("http://127.0.0.1:")[2].partition("/")[0])

    def long_replies(self, count):
        """Starts replies that go on until the test ends them; returns the client and their ids."""
        client = self.enterContext(self.daemon.client())
        ids = [client.start(type="generate", prompt=f"{number} once upon a time", max_tokens=1500, ignore_eos=True) for number in range(count)]
        return client, ids

    def cancel(self, client, ids):
        for each in ids:
            client.call(type="cancel", target=each)
            client.finish(each)

    def test_history_and_snapshots_over_http(self):
        events = Events(self, self.port)
        self.assertEqual("text/event-stream", self.answer_type(events))
        name, history = events.next()
        self.assertEqual("history", name)
        self.assertEqual("tokens_per_s", history["names"][0])
        for point in history["points"]:
            self.assertEqual(1 + len(history["names"]), len(point))
        idle = events.until(lambda snapshot: True, "a snapshot")
        self.assertEqual(FIELDS, set(idle))
        self.assertEqual(["idle", "idle"], states(idle))
        before_ms = 1000 * int(time.time())
        client, ids = self.long_replies(1)
        client.wait_token(ids[0])
        busy = events.until(lambda snapshot: "decode" in states(snapshot) and any(call["pause_ms"] for call in snapshot["calls"]), "a stream")
        slot = next(slot for slot in busy["workers"][0]["slots"] if slot["state"] == "decode")
        self.assertGreater(slot["tokens"], slot["prompt_tokens"])
        # The request, and perhaps the preparation of its prompt, which had ended when the router last looked.
        self.assertIn(busy["models"][0]["in_use"], (1, 2))
        self.assertTrue(before_ms <= busy["calls"][-1]["began_ms"] <= busy["unix_ms"], busy["calls"][-1])
        self.assertEqual([slot["tenant"]], [tenant["tenant"] for tenant in busy["tenants"]])
        self.cancel(client, ids)
        events.until(lambda snapshot: set(states(snapshot)) == {"idle"}, "at rest")

    def test_agents_are_named(self):
        events = Events(self, self.port)
        body = {"messages": [{"role": "user", "content": "once"}], "max_tokens": 1500, "uma": {"ignore_eos": True}, "stream": True}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=uma.WAIT_S)) as connection:
            names = {"X-Claude-Code-Session-Id": "s1", "X-Claude-Code-Agent-Id": "a1"}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json", **names})
            agent = {"program": "claude-code", "id": "a1", "parent": "s1"}
            events.until(lambda snapshot: any(slot.get("agent") == agent for worker in snapshot["workers"] for slot in worker["slots"]), "its slot")
        short = {**body, "max_tokens": 2, "stream": False, "prompt_cache_key": "k1"}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=uma.WAIT_S)) as connection:
            connection.request("POST", "/v1/chat/completions", json.dumps(short), {"Content-Type": "application/json"})
            self.assertEqual({"id": "k1"}, json.loads(connection.getresponse().read())["uma"]["usage"]["agent"])
        uma.until(lambda: " agent=k1 tokens=" in self.daemon.log(), "a line of the access log")

    def answer_type(self, events):
        return events.answer.getheader("Content-Type")

    def test_the_queue_has_positions(self):
        events = Events(self, self.port)
        client, ids = self.long_replies(5)
        snapshot = events.until(lambda snapshot: len(snapshot["queue"]) == 3, "three waiting")
        self.assertEqual([1, 2, 3], [waiting["position"] for waiting in snapshot["queue"]])
        self.assertLessEqual({waiting["stage"] for waiting in snapshot["queue"]}, {"queued", "swapped"})
        self.assertEqual(3, snapshot["queue_depth"])
        self.assertEqual(5, len({waiting["request"] for waiting in snapshot["queue"]} | {slot["request"] for slot in snapshot["workers"][0]["slots"]}))
        self.assertEqual(3, snapshot["tenants"][0]["queue_depth"])
        self.cancel(client, ids)
        events.until(lambda snapshot: not snapshot["queue"] and snapshot["queue_depth"] == 0, "nobody waiting")

    def test_a_watch_on_the_socket_until_it_is_cancelled(self):
        client = self.enterContext(self.daemon.client())
        watch = client.start(WATCH)
        reply = client.replies[watch]
        while not reply.events or reply.last["event"] != "snapshot":
            client.pump()
        self.assertEqual("history", reply.events[0]["event"])
        self.assertEqual(FIELDS, set(reply.last["snapshot"]))
        self.assertTrue(client.generate("the cat", max_tokens=4).text, "other requests go on beside it")
        self.assert_error(client.call(WATCH), "E_LIMIT_003")
        self.assertTrue(client.call(type="cancel", target=watch)["cancelled"])
        self.assertEqual("watch_end", client.finish(watch).last["event"])
        self.assertEqual("pong", client.call(type="ping")["event"])

    def test_numbers_beyond_the_limits(self):
        with self.daemon.client() as client:
            self.assert_error(client.call(type="watch", interval_ms=99), "E_PROTO_003", "interval_ms")
            self.assert_error(client.call(type="watch", history_s=3601), "E_PROTO_003", "history_s")

    def test_watchers_that_vanish_leave_nothing(self):
        self.client.call(type="ping")  # the connection of this test counts
        before = self.daemon.descriptors()
        for _ in range(40):  # more than may watch at once
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=uma.WAIT_S)) as connection:
                uma.until(lambda connection=connection: self.asks(connection), "an answer")
        uma.until(lambda: self.daemon.descriptors() <= before, "all are closed")

    def asks(self, connection):
        connection.request("GET", "/v1/events")
        answer = connection.getresponse()
        if answer.status != 200:  # the daemon has not noticed yet that others have left
            answer.read()
            return False
        return answer.read1(64).startswith(b"event: history")


class Shutdown(unittest.TestCase):
    def test_watchers_do_not_delay_it(self):
        with uma.Daemon(uma.TINY, "--http", "127.0.0.1:0") as daemon:
            port = int(daemon.log().partition("http://127.0.0.1:")[2].partition("/")[0])
            events = Events(self, port)
            events.next()
            reads_nothing = Events(self, port)
            with daemon.client() as client:
                watch = client.start(WATCH)
                while not client.replies[watch].events:
                    client.pump()
                daemon.signal(signal.SIGTERM)
                self.assertEqual("watch_end", client.finish(watch).last["event"])
            self.assertEqual(0, daemon.wait())
            while events.next():
                pass
            self.assertNotIn("time limit reached", daemon.log())
            reads_nothing.connection.close()


class WhoSeesWhat(unittest.TestCase):
    def test_names_of_others_are_for_the_administrator(self):
        key, line = test_http_operations.new_key("ci")
        admin, admin_line = test_http_operations.new_key("boss")
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="uma-e2e-keys-")))
        (folder / "keys").write_text(f"{line} requests_per_minute=1\n{admin_line} admin=true\n")
        log = folder / "access.log"
        listener = test_http_operations.Listener(self, {"keys_file": str(folder / "keys"), "access_log": str(log)})
        with listener.daemon.client() as client:
            ordinary = Events(self, listener.port, Authorization=f"Bearer {key}")
            boss = Events(self, listener.port, Authorization=f"Bearer {admin}")
            running = [client.start(type="generate", prompt=f"{number} the cat", max_tokens=1500, ignore_eos=True) for number in range(12)]
            hidden = ordinary.until(lambda snapshot: "decode" in states(snapshot), "a stream")
            shown = boss.until(lambda snapshot: "decode" in states(snapshot), "a stream")
            for each in running:
                client.call(type="cancel", target=each)
                client.finish(each)
        own = next(slot for slot in hidden["workers"][0]["slots"] if slot["state"] == "decode")
        self.assertEqual((None, "other"), (own["request"], own["tenant"]))
        self.assertEqual(["other"], [tenant["tenant"] for tenant in hidden["tenants"]])
        seen = next(slot for slot in shown["workers"][0]["slots"] if slot["state"] == "decode")
        self.assertTrue(seen["tenant"].startswith("uid:"))
        self.assertTrue(seen["request"])
        self.assertNotIn("uid:", json.dumps(hidden))
        self.assertEqual(429, listener.request("GET", "/v1/events", None, Authorization=f"Bearer {key}")[0], "it counts as one request")
        self.assertEqual(401, listener.request("GET", "/v1/events")[0])
        ordinary.connection.close()
        uma.until(lambda: log.exists() and log.read_text().count("/v1/events") >= 3, "a line for each in the access log")


if __name__ == "__main__":
    unittest.main()
