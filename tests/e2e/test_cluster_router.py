"""Three umads behind HAProxy, with the configuration of deploy/haproxy: which node a request goes to, and what becomes of requests
when nodes end, stop and vanish."""

import contextlib
import json
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

import postgres
import uma

sys.path.insert(0, str(uma.ROOT / "tests" / "cluster"))
import installation  # noqa: E402
import network  # noqa: E402

CHAT = "/v1/chat/completions"
SHORT = {"max_tokens": 4, "temperature": 0}
# Four streams and four requests that wait, so that a test can fill a node.
SETTINGS = {"slots": 4, "limits": {"queue_max": 4}}


def user(text):
    return {"role": "user", "content": text}


def chunks(response):
    """The events of a stream of chat completions; the last one is "[DONE]" if the stream is whole."""
    for line in response:
        if line.startswith(b"data: "):
            text = line[6:].decode().strip()
            yield text if text == "[DONE]" else json.loads(text)


class RouterTest(unittest.TestCase):
    """Tests that share an installation, and leave it as it was."""

    with_namespaces = False

    @classmethod
    def setUpClass(cls):
        problem = installation.why_not() or (network.why_not() if cls.with_namespaces else "")
        if problem:
            raise unittest.SkipTest(problem)
        if cls.with_namespaces:
            network.leave_host()
        stack = contextlib.ExitStack()
        cls.addClassCleanup(stack.close)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="uma-router-"))
        cls.cluster = stack.enter_context(installation.Installation(folder, cls.with_namespaces, settings=SETTINGS))

    def call(self, *arguments, **named):
        return self.cluster.call(*arguments, **named)

    def chat(self, messages, headers=None, **fields):
        answer = self.call("POST", CHAT, {"messages": messages, **SHORT, **fields}, headers)
        self.assertEqual(200, answer.status, answer)
        return answer

    def respond(self, text, **fields):
        answer = self.call("POST", "/v1/responses", {"input": text, "max_output_tokens": 4, **fields})
        self.assertEqual(200, answer.status, answer)
        return answer

    def stream(self, node, tokens, text="go"):
        """Begins a stream at this node, through HAProxy; returns the response, which has begun."""
        connection = self.cluster.connect()
        self.addCleanup(connection.close)
        body = {"messages": [user(text)], "max_tokens": tokens, "stream": True, "uma": {"ignore_eos": True}}
        connection.request("POST", CHAT, json.dumps(body), self.cluster.headers({"x-uma-node": node}))
        response = connection.getresponse()
        self.assertEqual((200, node), (response.status, response.headers["x-uma-node"]))
        return response

    def metric(self, node, name):
        text = self.call("GET", "/metrics", at=node).body
        return float(next(line for line in text.splitlines() if line.startswith(f"uma_{name} ")).split()[1])

    def bring_back(self, node):
        self.cluster.start_node(node)
        self.cluster.wait_ready(node)
        self.cluster.wait_routed(*self.cluster.nodes)

    def end_lease(self, node):
        """What time does within 15 s after a node has died."""
        self.assertIsNotNone(
            self.cluster.run_sql(f"UPDATE daemons SET lease_until = clock_timestamp() - interval '1 s' WHERE node = '{node}'"))


@postgres.needed
class Affinity(RouterTest):
    def test_a_session_stays_at_its_node(self):
        for _ in range(3):
            made = self.call("POST", "/v1/conversations", {})
            conversation = made.body["id"]
            self.assertEqual(f"conv_{made.session}", conversation)
            later = [self.respond("hi", conversation=conversation), self.respond("hi", conversation={"id": conversation}),
                     self.call("GET", f"/v1/conversations/{conversation}/items"), self.call("GET", f"/v1/sessions/{made.session}")]
            self.assertEqual([made.node] * 4, [answer.node for answer in later])

    def test_a_response_is_continued_at_its_node(self):
        for number in range(3):
            first = self.respond(f"number {number}")
            later = [self.respond("more", previous_response_id=first.body["id"]), self.call("GET", f"/v1/responses/{first.body['id']}"),
                     self.call("GET", f"/v1/responses/{first.body['id']}/input_items")]
            self.assertEqual([first.node] * 3, [answer.node for answer in later])
            self.assertGreater(later[0].body["usage"]["input_tokens_details"]["cached_tokens"], 0)

    def test_a_streamed_response_is_continued_at_its_node(self):
        with contextlib.closing(self.cluster.connect()) as connection:
            connection.request("POST", "/v1/responses", json.dumps({"input": "hi", "stream": True, "max_output_tokens": 4}),
                               self.cluster.headers())
            response = connection.getresponse()
            node, session, text = response.headers["x-uma-node"], response.headers["x-uma-session"], response.read().decode()
        self.assertIn("event: response.incomplete", text, "it has four tokens")
        identity = re.search(r'"id":"(resp_\w+)"', text)[1]
        self.assertIn(session, identity)
        self.assertEqual(node, self.respond("more", previous_response_id=identity).node)

    def test_a_prompt_cache_key_stays_at_its_node(self):
        for number in range(3):
            nodes = {self.chat([user(f"{text} {number}")], prompt_cache_key=f"key {number}").node for text in "abcd"}
            self.assertEqual(1, len(nodes))

    def test_a_conversation_that_the_client_keeps_stays_at_its_node(self):
        parts = [{"type": "text", "text": "in parts"}]
        beginnings = {"text": [user("plain")], "parts": [user(parts)],
                      "instructions": [{"role": "system", "content": "Be brief."}, user("hello")],
                      "others with these instructions": [{"role": "system", "content": "Be brief."}, user("good day")]}
        for name, messages in beginnings.items():
            with self.subTest(name):
                first = self.chat(messages)
                later = self.chat([*messages, {"role": "assistant", "content": "yes"}, user("and then?")])
                self.assertEqual(first.node, later.node)
        first = self.call("POST", "/v1/messages", {"model": "any", "max_tokens": 4, "system": "s", "messages": [user("anthropic")]})
        later = self.call("POST", "/v1/messages", {"model": "any", "max_tokens": 4, "system": "s", "messages": [
            user("anthropic"), {"role": "assistant", "content": "yes"}, user("and then?")]})
        self.assertEqual((200, 200, first.node), (first.status, later.status, later.node))

    def test_new_conversations_are_spread(self):
        nodes = [self.chat([user(f"conversation {number}")]).node for number in range(12)]
        self.assertLess(1, min(nodes.count(node) for node in self.cluster.nodes), nodes)

    def test_a_client_names_the_node(self):
        for node in self.cluster.nodes:
            self.assertEqual(node, self.chat([user("the same words")], {"x-uma-node": node}).node)
        last = self.cluster.nodes[-1]
        self.assertEqual(last, self.chat([user("the same words")]).node, "the last place is remembered")
        self.assertIn(self.chat([user("other words")], {"x-uma-node": "box-77"}).node, self.cluster.nodes)

    def test_a_body_that_is_larger_than_the_buffer_is_served(self):
        padding = "x" * 1_000_000  # A field that umad ignores.
        first = self.chat([user("a large body")], padding=padding)
        later = self.chat([user("a large body"), {"role": "assistant", "content": "yes"}, user("more")], padding=padding)
        self.assertEqual(first.node, later.node, "what is read comes first")
        conversation = self.call("POST", "/v1/conversations", {}).body["id"]
        for _ in range(4):  # The field comes too late to be read.
            answer = self.call("POST", "/v1/responses", {"padding": padding, "input": "hi", "max_output_tokens": 4, "conversation": conversation})
            self.assertEqual(200, answer.status, answer)
        detail = self.call("GET", f"/v1/sessions/{conversation.removeprefix('conv_')}")
        self.assertEqual(4, detail.body["turns"])

    def test_keys_of_users_are_passed_on(self):
        refused = self.call("GET", "/v1/models", headers={"Authorization": "Bearer uma-wrong"})
        self.assertEqual(401, refused.status)
        self.assertEqual(200, self.call("GET", "/v1/models").status)

    def test_a_client_that_leaves_cancels_its_request(self):
        node = self.cluster.nodes[0]
        for stream in (True, False):
            before = self.metric(node, "requests_cancelled_total")
            body = {"messages": [user("leave")], "max_tokens": 1900, "stream": stream, "uma": {"ignore_eos": True}}
            with contextlib.closing(self.cluster.connect()) as connection:
                connection.request("POST", CHAT, json.dumps(body), self.cluster.headers({"x-uma-node": node}))
                uma.until(lambda: self.metric(node, "sequences_active") > 0, "it is generated")
            uma.until(lambda: self.metric(node, "requests_cancelled_total") > before, "it is cancelled")

    def test_no_place_at_the_node_is_a_place_at_another(self):
        node = self.chat([user("crowded")]).node
        self.assertEqual(node, self.chat([user("crowded")]).node)
        with contextlib.ExitStack() as stack:
            running = []
            for number in range(12):  # Directly, and more than the node takes.
                connection = stack.enter_context(contextlib.closing(self.cluster.connect(node)))
                connection.request("POST", CHAT, json.dumps({"messages": [user(f"fill {number}")], "max_tokens": 1900,
                                                             "uma": {"ignore_eos": True}}), self.cluster.headers())
                running.append(connection)
            uma.until(lambda: self.metric(node, "queue_depth") >= 4, "the node is full")
            refused = self.call("POST", CHAT, {"messages": [user("crowded")], **SHORT}, at=node)
            self.assertEqual(503, refused.status, refused)
            self.assertNotEqual(node, self.chat([user("crowded")]).node)
        uma.until(lambda: self.metric(node, "requests_open") == 0, "the node is idle")


class Writer(threading.Thread):
    """A client that holds a conversation of each kind, until it is told to stop. Every request is sent again after an answer that
    allows it, and after a connection that broke."""

    RETRIES_MAX = 1  # For each request.
    RETRY_AFTER_S = 0.5  # As the clients' libraries wait. The system closes a killed program's connections one by one.

    def __init__(self, cluster, number):
        super().__init__(daemon=True)
        self.cluster = cluster
        self.number = number
        self.stopped = threading.Event()
        self.turns = 0
        self.retries = []
        self.problem = None
        self.conversation = self.once("POST", "/v1/conversations", {}).body["id"]

    def run(self):
        try:
            while not self.stopped.is_set():
                self.step()
        except Exception as problem:  # noqa: B902 - shown by the test
            self.problem = problem

    def step(self):
        messages = [user(f"client {self.number}")]
        self.request("POST", CHAT, {"messages": messages, **SHORT})
        self.request("POST", CHAT, {"messages": messages, "stream": True, **SHORT}, ends_with="data: [DONE]")
        self.request("POST", "/v1/responses", {"input": "hi", "conversation": self.conversation, "max_output_tokens": 4, "truncation": "auto"})
        self.turns += 1

    def request(self, *arguments, ends_with=""):
        for attempt in range(self.RETRIES_MAX + 1):
            why = ""
            try:
                answer = self.once(*arguments)
                if answer.status == 200 and (not ends_with or ends_with in answer.body):
                    return answer
                why = repr(answer)[-300:]
            except (OSError, installation.http.client.HTTPException) as problem:
                why = repr(problem)
            self.retries.append((arguments[1], why))
            if attempt == self.RETRIES_MAX:
                raise AssertionError(f"client {self.number}: {self.retries[-2:]}")
            time.sleep(self.RETRY_AFTER_S)

    def once(self, *arguments):
        return self.cluster.call(*arguments)


@postgres.needed
class Failures(RouterTest):
    takes_long = True

    @contextlib.contextmanager
    def load(self, clients=4):
        """Clients that write during the block. After it every turn that was acknowledged is there, and at most one more of each
        retry whose outcome was unknown."""
        writers = [Writer(self.cluster, number) for number in range(clients)]
        for writer in writers:
            writer.start()
        uma.until(lambda: all(writer.turns or writer.problem for writer in writers), "everybody has written")
        try:
            yield writers
        finally:
            for writer in writers:
                writer.stopped.set()
            for writer in writers:
                writer.join(uma.WAIT_S)
        self.assertEqual([], [writer.problem for writer in writers if writer.problem])
        for writer in writers:
            detail = self.call("GET", f"/v1/sessions/{writer.conversation.removeprefix('conv_')}").body
            unknown = sum(path == "/v1/responses" for path, _ in writer.retries)
            self.assertIn(detail["turns"] - writer.turns, range(unknown + 1), (writer.turns, writer.retries))

    def go_on(self, writers, turns=3):
        """Waits until everybody has written some more turns."""
        goals = [(writer, writer.turns + turns) for writer in writers]
        uma.until(lambda: all(writer.turns >= goal or writer.problem for writer, goal in goals), "everybody goes on")

    def test_a_stream_outlives_the_request_to_end_and_new_ones_go_elsewhere(self):
        node = self.cluster.nodes[0]
        events = chunks(self.stream(node, 1900))
        next(events)
        self.assertEqual(node, self.chat([user("here")], {"x-uma-node": node}).node)
        self.cluster.terminate(node)
        uma.until(lambda: self.call("GET", "/ready", at=node).status == 503, "it says that it is not ready")
        # It is not ready, and serves: HAProxy may not have asked yet.
        self.assertEqual(200, self.call("POST", CHAT, {"messages": [user("still")], **SHORT}, at=node).status)
        self.cluster.wait_routed(*self.cluster.nodes[1:])
        self.assertNotEqual(node, self.chat([user("here")]).node)
        self.assertNotEqual(node, self.chat([user("here")], {"x-uma-node": node}).node)
        received = list(events)
        self.assertEqual("[DONE]", received[-1])
        self.assertEqual("length", received[-2]["choices"][0]["finish_reason"])
        self.assertEqual(0, self.cluster.wait_ended(node))
        self.bring_back(node)

    def test_three_nodes_are_upgraded_under_load(self):
        with self.load() as writers:
            for node in self.cluster.nodes:
                self.cluster.terminate(node)
                self.assertEqual(0, self.cluster.wait_ended(node))
                self.go_on(writers)
                self.bring_back(node)
                self.go_on(writers)
        retries = [retry for writer in writers for retry in writer.retries]
        self.assertLessEqual(len(retries), len(writers), retries)

    def test_a_killed_node_costs_a_retry(self):
        node = self.cluster.nodes[1]
        with self.load() as writers:
            self.cluster.kill(node)
            self.end_lease(node)
            self.go_on(writers)
            self.bring_back(node)
        for writer in writers:
            self.assertLessEqual(len(writer.retries), 3, "one for each request of a round")

    def test_a_node_that_dies_before_its_answer_is_replaced_where_nothing_can_happen_twice(self):
        node = self.cluster.nodes[2]
        conversation = self.call("POST", "/v1/conversations", {}, {"x-uma-node": node})
        self.assertEqual(node, conversation.node)
        answers = {}

        def ask(path, body):
            answers[path] = self.call("POST", path, {"uma": {"ignore_eos": True}, **body}, {"x-uma-node": node})

        threads = [threading.Thread(target=ask, args=request) for request in (
            (CHAT, {"messages": [user("long")], "max_tokens": 1900}),
            ("/v1/responses", {"input": "long", "max_output_tokens": 1900, "conversation": conversation.body["id"]}))]
        for thread in threads:
            thread.start()
        uma.until(lambda: self.metric(node, "sequences_active") == 2, "both are generated")
        self.cluster.kill(node)
        for thread in threads:
            thread.join(uma.WAIT_S)
        self.assertEqual(200, answers[CHAT].status, answers[CHAT])
        self.assertNotEqual(node, answers[CHAT].node)
        lost = answers["/v1/responses"]
        self.assertEqual((502, "E_IO_002", "false"), (lost.status, lost.body["error"]["code"], lost.headers.get("x-should-retry")))
        self.bring_back(node)

    def test_an_error_of_the_router_has_umads_form(self):
        servers = [f"{backend}/{node}" for backend in ("nodes", "nodes_without_database") for node in self.cluster.nodes]
        for server in servers:
            self.cluster.ask_router(f"disable server {server}")
        try:
            refused = self.call("POST", CHAT, {"messages": [user("nobody")], **SHORT})
            self.assertEqual((503, "1"), (refused.status, refused.headers["retry-after"]), refused)
            self.assertEqual("E_LIMIT_003", refused.body["error"]["code"])
        finally:
            for server in servers:
                self.cluster.ask_router(f"enable server {server}")
        self.cluster.wait_routed(*self.cluster.nodes)

    def test_a_node_that_hangs_gets_no_requests(self):
        node = self.chat([user("hang")]).node
        others = [name for name in self.cluster.nodes if name != node]
        self.cluster.pause(node)
        try:
            self.cluster.wait_routed(*others)
            self.assertIn(self.chat([user("hang")]).node, others)
        finally:
            self.cluster.resume(node)
        self.cluster.wait_routed(*self.cluster.nodes)


@postgres.needed
class Partitions(RouterTest):
    """The same in network namespaces, where packets are really lost."""

    with_namespaces = True

    def test_a_node_that_is_cut_off_from_everybody_loses_nothing(self):
        made = self.respond("remember this")
        node = made.node
        others = [name for name in self.cluster.nodes if name != node]
        self.cluster.network.unplug(node)
        try:
            self.cluster.wait_routed(*others)
            self.end_lease(node)
            later = self.respond("and go on", previous_response_id=made.body["id"])
            self.assertIn(later.node, others)
            self.assertEqual(made.session, later.session)
        finally:
            self.cluster.network.plug(node)
        self.cluster.wait_routed(*self.cluster.nodes)
        again = self.respond("and on", previous_response_id=later.body["id"])
        self.assertEqual((later.node, made.session), (again.node, made.session))

    def test_a_node_that_alone_has_lost_the_database_gets_no_requests(self):
        made = self.respond("remember this")
        node = made.node
        others = [name for name in self.cluster.nodes if name != node]
        self.cluster.network.cut(node, "db")
        try:
            self.cluster.wait_routed(*others)
            refused = self.call("GET", "/ready?database=required", at=node)
            self.assertEqual((503, "database"), (refused.status, refused.body["reason"]))
            self.assertEqual(200, self.call("GET", "/ready", at=node).status)
            self.assertEqual(0, self.metric(node, "catalog_reachable"))
            self.assertIn(self.chat([user("without a session")], {"x-uma-node": node}).node, others)
            self.end_lease(node)
            later = self.respond("and go on", previous_response_id=made.body["id"])
            self.assertIn(later.node, others)
            self.assertEqual(made.session, later.session)
        finally:
            self.cluster.network.mend(node, "db")
        self.cluster.wait_routed(*self.cluster.nodes)
        self.assertEqual(1, self.metric(node, "catalog_reachable"))

    def test_nodes_that_all_have_lost_the_database_serve_what_needs_no_session(self):
        made = self.respond("remember this")
        for node in self.cluster.nodes:
            self.cluster.network.cut(node, "db")
        try:
            self.cluster.wait_routed()
            self.assertLess(1, len({self.chat([user(f"conversation {number}")]).node for number in range(6)}))
            refused = self.call("POST", "/v1/responses", {"input": "go on", "previous_response_id": made.body["id"]})
            self.assertEqual("E_IO_001", refused.body["error"]["code"], refused)
        finally:
            for node in self.cluster.nodes:
                self.cluster.network.mend(node, "db")
        self.cluster.wait_routed(*self.cluster.nodes)
        self.assertEqual(made.session, self.respond("and go on", previous_response_id=made.body["id"]).session)

    def test_links_are_cut_mended_and_slow(self):
        network_of = self.cluster.network
        node, other = self.cluster.nodes[:2]
        inside = network_of.inside(node)

        def reaches(seconds=30):
            done = subprocess.run([*inside, sys.executable, "-c", f"""
import socket
with socket.create_connection({self.cluster.address(other)!r}, {seconds}) as connection:
    connection.sendall(b"GET /ready HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
    connection.recv(100)
"""], capture_output=True, text=True, timeout=uma.WAIT_S, check=False)
            return done.returncode == 0

        self.assertTrue(reaches())
        network_of.cut(node, other)
        self.assertFalse(reaches(seconds=1))
        network_of.mend(node, other)
        self.assertTrue(reaches())
        network_of.slow_down(node, rate="1mbit")
        self.addCleanup(network_of.speed_up, node)
        self.assertIn("tbf", network.run("tc", "-n", network_of.namespace(node), "qdisc", "show", "dev", "eth0"))
        self.assertTrue(reaches())

    def test_a_link_is_delayed(self):
        if not network.can_delay():
            self.skipTest("this kernel cannot delay packets (sch_netem)")
        node = self.cluster.nodes[0]
        self.cluster.network.slow_down(node, delay_ms=50)
        self.addCleanup(self.cluster.network.speed_up, node)
        self.assertIn("netem", network.run("tc", "-n", self.cluster.network.namespace(node), "qdisc", "show", "dev", "eth0"))
        self.assertEqual(node, self.chat([user("from afar")], {"x-uma-node": node}).node)


@postgres.needed
@unittest.skipIf(installation.find_haproxy() is None, "HAProxy is not installed")
class CommandLine(unittest.TestCase):
    def test_the_installation_stays_until_it_is_ended(self):
        with tempfile.TemporaryDirectory(prefix="uma-router-") as folder:
            def run(command):
                return subprocess.run([sys.executable, "-B", installation.__file__, "--folder", folder, command], capture_output=True, text=True,
                                      timeout=uma.WAIT_S, check=False)

            began = run("up")
            self.addCleanup(lambda: run("down"))
            self.assertEqual(0, began.returncode, began.stderr)
            twice = run("up")
            self.assertEqual(1, twice.returncode)
            self.assertIn("script/cluster down", twice.stderr)
            # The printed command: curl URL -H HEADER -d BODY -i
            words = shlex.split(began.stdout[began.stdout.index("curl "):].partition("\n\n")[0])
            name, _, value = words[words.index("-H") + 1].partition(": ")
            request = urllib.request.Request(words[1], words[words.index("-d") + 1].encode(), {name: value})
            with urllib.request.urlopen(request, timeout=uma.WAIT_S) as answer:
                self.assertIn(answer.headers["x-uma-node"], installation.NODES)
            cluster = installation.Installation.load(folder)
            self.assertTrue(all(process.is_running() for process in cluster.processes.values()))
            ended = run("down")
            self.assertEqual(0, ended.returncode, ended.stderr)
            self.assertFalse(any(process.is_running() for process in cluster.processes.values()))
            self.assertIn("none is running", run("down").stdout)


if __name__ == "__main__":
    unittest.main()
