"""Several umads on one PostgreSQL database: sessions go on elsewhere, after requests, ends and crashes of nodes and of the database."""

import collections
import contextlib
import http.client
import json
import pathlib
import re
import tempfile
import threading
import unittest

import postgres
import uma
from test_http_operations import new_key

OPTIONS = {"max_tokens": 12, "ignore_eos": True, "temperature": 0}
FLAGS = ("--kv-cells", "4096", "--slots", "8")


class Cluster:
    """Nodes that share a database."""

    def __init__(self, database, stack):
        self.database = database
        self.stack = stack

    def node(self, name, *flags):
        return self.stack.enter_context(uma.Daemon(uma.TINY, *FLAGS, "--catalog", self.database.address(), "--node", name, *flags))


@postgres.needed
class SharedSessions(unittest.TestCase):
    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.database = self.stack.enter_context(postgres.Postgres())
        self.cluster = Cluster(self.database, self.stack)

    def client(self, node):
        return self.stack.enter_context(node.client())

    def turn(self, client, session, text):
        """Appends and generates; returns the reply, after retries while another node has the session."""
        appended = client.append(session, text)
        self.assertEqual("ack", appended["event"], appended)
        return client.generate_stream(session, **OPTIONS)

    def listed(self, client):
        return {entry["session_id"]: entry for entry in client.call(type="list_sessions")["sessions"]}

    def test_a_conversation_goes_on_wherever_it_is_asked_for(self):
        a, b = (self.client(self.cluster.node(name)) for name in "ab")
        session = a.create_session(mode="text", name="diary")
        self.turn(a, session, "one two three")
        uma.until(lambda: session in self.listed(b), "b lists it")
        second = self.turn(b, "diary", " four five")
        self.assertGreater(second.usage["prompt_tokens"], 12)
        third = self.turn(a, session, " six")
        self.assertEqual(third.usage["tier"], "hot", "a still has the state of the first turn")
        self.assertGreater(third.usage["reused_tokens"], 0)
        detail = a.session(session)
        self.assertEqual(3, detail["turns"])
        self.assertEqual("one two three", detail["text"].lstrip()[:13])
        self.assertIn(second.text + " six", detail["text"])

    def test_a_session_that_was_just_made_is_known_everywhere(self):
        a, b = (self.client(self.cluster.node(name)) for name in "ab")
        for i in range(10):
            session = a.create_session(mode="text", name=f"note {i}")
            self.turn(b, session, "hello")
            self.assertEqual(1, a.session(f"note {i}")["turns"])

    def test_names_and_ends_are_everybodys(self):
        a, b = (self.client(self.cluster.node(name)) for name in "ab")
        session = a.create_session(mode="text", name="diary")
        uma.until(lambda: session in self.listed(b), "b lists it")
        refused = b.call(type="create_session", mode="text", name="diary")
        self.assertEqual("E_PROTO_003", refused["code"], refused)
        self.assertEqual("ack", b.call(type="end_session", session_id=session)["event"])
        uma.until(lambda: session not in self.listed(a), "a has seen its end")
        self.assertEqual("E_SESSION_001", a.append(session, "more")["code"])

    def test_a_session_in_use_elsewhere_is_waited_for_and_then_refused(self):
        first, second = self.cluster.node("a"), self.cluster.node("b")
        a, b = self.client(first), self.client(second)
        session = a.create_session(mode="text")
        a.append(session, "one")
        with first.paused():  # Its lease goes on for a while, and it gives nothing up.
            refused = b.append(session, " two")
            self.assertEqual("E_SESSION_002", refused.get("code"), refused)
            self.assertIn("node a", refused["message"])
        self.assertEqual("ack", b.append(session, " three")["event"])
        b.generate_stream(session, max_tokens=1)
        self.assertEqual("one three", a.session(session)["text"].lstrip()[:9])

    def test_a_node_that_ends_hands_its_sessions_over(self):
        first = self.cluster.node("a")
        b = self.client(self.cluster.node("b"))
        a = self.client(first)
        session = a.create_session(mode="text")
        self.turn(a, session, "one two three")
        self.assertEqual(0, first.terminate())
        self.assertEqual(2, self.turn_number(b, session, " four"))

    def turn_number(self, client, session, text):
        self.turn(client, session, text)
        return client.session(session)["turns"]

    def test_a_node_that_was_killed_loses_nothing_that_was_acknowledged(self):
        b = self.client(self.cluster.node("b"))
        for round_number in range(3):
            victim = uma.Daemon(uma.TINY, *FLAGS, "--catalog", self.database.address(), "--node", f"victim{round_number}").start().wait_ready()
            with victim.client() as a:
                session = a.create_session(mode="text")
                finished = self.turn(a, session, "one two three")
                self.assertEqual("ack", a.append(session, " and four")["event"])
                a.wait_token(a.start(type="generate_stream", session_id=session, max_tokens=500, ignore_eos=True))
            victim.kill()
            # The lease of the dead node ends by the database's clock.
            self.assertIsNotNone(self.database.run_sql("UPDATE daemons SET lease_until = clock_timestamp() - interval '1 s' WHERE node LIKE 'victim%'"))
            reply = b.generate_stream(session, **OPTIONS)
            self.assertEqual("eos", reply.last["event"], reply.last)
            detail = b.session(session)
            self.assertEqual(2, detail["turns"])
            self.assertIn(f"{finished.text} and four", detail["text"])

    def test_a_node_that_was_killed_and_starts_again_gives_its_sessions_free(self):
        a, b = self.cluster.node("a"), self.client(self.cluster.node("b"))
        with a.client() as client:
            session = client.create_session(mode="text")
            self.turn(client, session, "one two three")
            client.wait_token(client.start(type="generate_stream", session_id=session, max_tokens=500, ignore_eos=True))
            # Only the next start of a can end its lease.
            self.assertIsNotNone(self.database.run_sql("UPDATE daemons SET lease_until = clock_timestamp() + interval '1 day' WHERE node = 'a'"))
            a.process.kill()
        a.wait()
        a.start().wait_ready()
        self.assertIn("of this data folder is dead: its lease ends", a.log())
        self.assertEqual("1", self.database.run_sql("SELECT count(*) FROM daemons WHERE node = 'a'"))
        reply = b.generate_stream(session, **OPTIONS)
        self.assertEqual("eos", reply.last["event"], reply.last)

    def test_a_database_that_starts_again_costs_errors_and_nothing_else(self):
        node = self.cluster.node("a")
        a = self.client(node)
        session = a.create_session(mode="text")
        self.turn(a, session, "one")
        self.database.stop()
        refused = a.append(session, " two")
        self.assertIn(refused["code"], ("E_IO_001", "E_IO_002"), refused)
        for _ in range(100):
            self.assertEqual("error", a.append(session, " two")["event"])
        self.assertLess(node.log().count(" error "), 10, "the log does not repeat what every request finds")
        self.database.start()
        uma.until(lambda: a.append(session, " three")["event"] == "ack", "the session goes on")
        reply = a.generate_stream(session, **OPTIONS)
        self.assertEqual(12, reply.usage["completion_tokens"])
        self.assertIn("one", a.session(session)["text"])

    def test_no_turn_is_lost_or_doubled_while_three_nodes_compete(self):
        clients = [self.client(self.cluster.node(name)) for name in "abc"]
        session = clients[0].create_session(mode="text", name="shared")
        acknowledged, lock = [], threading.Lock()

        def write(number):
            for i in range(6):
                word = f" n{number}w{i};"
                while True:
                    answer = clients[number].append("shared", word)
                    if answer["event"] == "ack":
                        with lock:
                            acknowledged.append(word)
                        break
                    assert answer["code"] in ("E_SESSION_002", "E_LIMIT_003"), answer

        threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        clients[1].generate_stream("shared", max_tokens=1)
        text = clients[2].session(session)["text"]
        self.assertEqual(18, len(acknowledged))
        for word in acknowledged:
            self.assertEqual(1, text.count(word), word)

    def test_a_stream_of_requests_does_not_keep_a_session_from_other_nodes(self):
        first, second = self.cluster.node("a"), self.cluster.node("b")
        b = self.client(second)
        clients = [self.client(first) for _ in range(4)]
        session = clients[0].create_session(mode="text", name="shared")
        has_ended, answers = threading.Event(), []

        def change(client, number):
            waiting, count = collections.deque(), 0
            while waiting or not has_ended.is_set():
                while len(waiting) < 16 and not has_ended.is_set():
                    count += 1
                    waiting.append(client.start(type="update_session", session_id=session, metadata={f"w{number}": str(count)}))
                answers.append(client.finish(waiting.popleft()).last)

        threads = [threading.Thread(target=change, args=(client, number)) for number, client in enumerate(clients)]
        for thread in threads:
            thread.start()
        try:
            for i in range(3):
                uma.until(lambda: len(answers) > 20 * (i + 1), "a is busy with the session")
                self.assertEqual("ack", b.append(session, f" word{i}")["event"])
        finally:
            has_ended.set()
            for thread in threads:
                thread.join()
        self.assertEqual([], [answer for answer in answers if answer["event"] == "error"])

    def test_answers_name_their_node(self):
        node = self.cluster.node("node-a", "--http", "127.0.0.1:0")
        port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", node.log()).group(1))
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=uma.WAIT_S)) as connection:
            connection.request("GET", "/health")
            self.assertEqual("node-a", connection.getresponse().headers["x-uma-node"])


@postgres.needed
class SharedKeys(unittest.TestCase):
    """API keys in the database: made and deleted at one node, they count at all."""

    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.database = self.stack.enter_context(postgres.Postgres())
        folder = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="uma-keys-"))
        self.boss, line = new_key("boss")
        self.file = pathlib.Path(folder) / "keys"
        self.file.write_text(f"# the first\n{line} admin=true\n")

    def node(self, name, *flags):
        daemon = uma.Daemon(uma.TINY, *FLAGS, "--catalog", self.database.address(), "--node", name, "--http", "127.0.0.1:0", "--http-shared-keys", *flags)
        self.stack.callback(daemon.kill)
        daemon.start().wait_ready()
        daemon.port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", daemon.log()).group(1))
        return daemon

    def ask(self, node, method, path, body=None, key=None):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", node.port, timeout=uma.WAIT_S)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body), {"Authorization": f"Bearer {key or self.boss}"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def until_status(self, node, key, status):
        uma.until(lambda: self.ask(node, "GET", "/v1/models", key=key)[0] == status, f"node {node.port} answers {status}")

    def test_a_key_counts_at_all_nodes_until_it_is_deleted_at_any(self):
        a, b = self.node("a", "--http-keys", str(self.file)), self.node("b")
        status, made = self.ask(a, "POST", "/v1/keys", {"name": "ci", "tenant": "robots", "admin": True})
        self.assertEqual(200, status, made)
        self.until_status(b, made["key"], 200)
        self.assertEqual(["boss", "ci"], [key["name"] for key in self.ask(b, "GET", "/v1/keys")[1]["data"]])
        self.assertNotIn(made["key"], self.database.run_sql("SELECT * FROM api_keys"))
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", a.port, timeout=uma.WAIT_S)) as watching:
            watching.request("GET", "/v1/events", headers={"Authorization": f"Bearer {made['key']}"})
            stream = watching.getresponse()
            self.assertEqual(200, stream.status)
            self.assertEqual((200, {"deleted": True}), self.ask(b, "DELETE", "/v1/keys/ci"))
            self.assertEqual(401, self.ask(b, "GET", "/v1/models", key=made["key"])[0], "at once, where it was deleted")
            stream.read()  # To the end of the view.
        self.until_status(a, made["key"], 401)
        self.assertEqual(409, self.ask(a, "DELETE", "/v1/keys/boss")[0])

    def test_the_file_is_for_the_first_start(self):
        self.node("a", "--http-keys", str(self.file)).terminate()
        other, line = new_key("other")
        self.file.write_text(f"{line} admin=true\n")
        b = self.node("b", "--http-keys", str(self.file))
        self.assertEqual(401, self.ask(b, "GET", "/v1/models", key=other)[0])
        self.assertEqual(200, self.ask(b, "GET", "/v1/models")[0])
        self.assertIn("is not used", b.log())
        self.assertIsNotNone(self.database.run_sql("DELETE FROM api_keys"))
        self.until_status(b, self.boss, 401)
        b.terminate()
        refused = uma.Daemon(uma.TINY, "--catalog", self.database.address(), "--http", "127.0.0.1:0", "--http-shared-keys", "--http-keys", str(self.file))
        self.stack.callback(refused.kill)
        refused.start()
        self.assertEqual(1, refused.wait())
        self.assertIn("the database has no keys", refused.log())

    def test_without_the_database_known_keys_stay_valid(self):
        a = self.node("a", "--http-keys", str(self.file))
        self.database.stop()
        status, refused = self.ask(a, "POST", "/v1/keys", {"name": "ci"})
        self.assertEqual((500, "E_IO_001"), (status, refused["error"]["code"]), refused)
        self.assertEqual(200, self.ask(a, "GET", "/v1/models")[0])
        self.database.start()
        uma.until(lambda: self.ask(a, "POST", "/v1/keys", {"name": "ci"})[0] == 200, "keys can be made again")

    def test_keys_in_a_database_need_one(self):
        refused = uma.run_umad("--http-shared-keys")
        self.assertEqual(1, refused.returncode)
        self.assertIn("http.shared_keys", refused.stderr)


class Settings(unittest.TestCase):
    def test_a_password_does_not_belong_into_the_settings(self):
        refused = uma.run_umad("--catalog", "postgresql://uma:secret@localhost/uma")
        self.assertEqual(1, refused.returncode)
        self.assertIn("PGPASSFILE", refused.stderr)
        self.assertNotIn("secret", refused.stderr + refused.stdout)

    def test_a_database_that_does_not_answer_ends_the_start(self):
        with contextlib.ExitStack() as stack:
            daemon = uma.Daemon(uma.TINY, "--catalog", "postgresql://uma@/uma?host=/nowhere")
            stack.callback(daemon.kill)
            daemon.start()
            self.assertEqual(1, daemon.wait())
            self.assertIn("check the address", daemon.log())


if __name__ == "__main__":
    unittest.main()
