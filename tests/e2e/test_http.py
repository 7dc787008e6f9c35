"""The HTTP listener with requests as OpenAI's clients send them, by Python's http.client, and with malformed ones, by plain
sockets."""

import contextlib
import http.client
import json
import pathlib
import re
import shutil
import socket
import tempfile
import unittest

import openai_shapes
import uma

LIMIT = 16 << 20  # limits.max_frame_bytes


class HttpTest(uma.DaemonTest):
    flags = ("--http", "127.0.0.1:0", "--kv-cells", "8192", "--slots", "4")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", cls.daemon.log()).group(1))

    def connect(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=uma.WAIT_S)
        self.addCleanup(connection.close)
        return connection

    def request(self, method, path, body=None, headers=None, connection=None):
        """Returns (status, parsed body)."""
        connection = connection or self.connect()
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, self.checked(json.loads(answer.read()))

    def checked(self, value):
        """Returns the object. If it claims to be one of OpenAI's, it must have the shape."""
        if shape := openai_shapes.of(value):
            self.assertIsNone(openai_shapes.mismatch(value, shape), value)
        return value

    def chat(self, text="Hello", connection=None, **fields):
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 8, "temperature": 0, **fields}
        return self.request("POST", "/v1/chat/completions", body, connection=connection)

    def start_stream(self, path="/v1/chat/completions", **fields):
        """Returns a connection and the answer, whose events follow."""
        connection = self.connect()
        body = {"messages": [{"role": "user", "content": "Hello"}], "stream": True, "temperature": 0, **fields}
        connection.request("POST", path, json.dumps(body).encode())
        return connection, connection.getresponse()

    def events(self, answer):
        """The objects of a stream of server-sent events, which must end with [DONE]."""
        self.assertEqual((200, "text/event-stream"), (answer.status, answer.getheader("Content-Type")))
        lines = answer.read().decode().split("\n\n")
        self.assertEqual(["data: [DONE]", ""], lines[-2:])
        return [self.checked(json.loads(line.removeprefix("data: "))) for line in lines[:-2]]

    def raw(self, data):
        """Sends bytes, ends the sending side and returns the whole answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=uma.WAIT_S) as plain:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                plain.sendall(data)
                plain.shutdown(socket.SHUT_WR)
            received = b""
            with contextlib.suppress(ConnectionResetError):
                while data := plain.recv(1 << 16):
                    received += data
            return received

    def raw_status(self, data):
        received = self.raw(data)
        self.assertTrue(received.startswith(b"HTTP/1.1 "), received[:100])
        return int(received[9:12])


class Completions(HttpTest):
    def test_chat(self):
        status, answer = self.chat()
        self.assertEqual(200, status, answer)
        self.assertEqual("chat.completion", answer["object"])
        choice = answer["choices"][0]
        self.assertEqual("assistant", choice["message"]["role"])
        self.assertIn(choice["finish_reason"], ("stop", "length"))
        usage = answer["usage"]
        self.assertEqual(usage["prompt_tokens"] + usage["completion_tokens"], usage["total_tokens"])
        self.assertEqual(answer["uma"]["usage"]["reused_tokens"], usage["prompt_tokens_details"]["cached_tokens"])

    def test_the_same_text_as_on_the_socket(self):
        reply = self.client.generate(messages=[{"role": "user", "content": "Hello"}], max_tokens=8, stream=False)
        _, answer = self.chat()
        self.assertEqual(reply.text, answer["choices"][0]["message"]["content"])

    def test_a_stream_says_what_the_whole_says(self):
        _, whole = self.chat(ignore="unknown fields")
        _, answer = self.start_stream(max_tokens=8, stream_options={"include_usage": True})
        events = self.events(answer)
        self.assertEqual({"role": "assistant", "content": ""}, events[0]["choices"][0]["delta"])
        text = "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1])
        self.assertEqual(whole["choices"][0]["message"]["content"], text)
        self.assertEqual(whole["choices"][0]["finish_reason"], events[-2]["choices"][0]["finish_reason"])
        self.assertEqual([], events[-1]["choices"])
        self.assertEqual(whole["usage"]["total_tokens"], events[-1]["usage"]["total_tokens"])
        self.assertEqual(1, len({(event["id"], event["created"]) for event in events}))

    def test_a_repeated_prompt_is_not_computed_again(self):
        text = " ".join(["again"] * 100)
        self.chat(text)
        _, answer = self.chat(text)
        self.assertGreater(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 50)

    def test_text_completions_and_our_own_options(self):
        body = {"prompt": "one two", "max_tokens": 6, "seed": 3, "uma": {"ignore_eos": True, "top_k": 5}}
        first, second = (self.request("POST", "/v1/completions", body) for _ in range(2))
        self.assertEqual(200, first[0], first)
        self.assertEqual("text_completion", first[1]["object"])
        self.assertEqual(6, first[1]["usage"]["completion_tokens"])
        self.assertEqual("length", first[1]["choices"][0]["finish_reason"])
        self.assertEqual(3, first[1]["uma"]["usage"]["seed"])
        self.assertEqual(first[1]["choices"][0]["text"], second[1]["choices"][0]["text"])

    def test_a_reply_follows_its_schema(self):
        schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                                                   "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}},
                  "required": ["name", "age", "tags"], "additionalProperties": False}
        wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
        for seed in range(5):
            answer = self.chat(response_format=wanted, seed=seed, temperature=2, max_tokens=200)[1]
            self.assertEqual(answer["choices"][0]["finish_reason"], "stop")
            said = json.loads(answer["choices"][0]["message"]["content"])
            self.assertEqual(list(said), ["name", "age", "tags"])
            self.assertLessEqual(len(said["name"]), 8)
            self.assertTrue(0 <= said["age"] <= 120 and set(said["tags"]) <= {"a", "b"} and len(said["tags"]) <= 2)
        answer = self.chat(uma={"grammar": 'root ::= "yes" | "no"'})[1]
        self.assertIn(answer["choices"][0]["message"]["content"], ("yes", "no"))

    def test_a_stop_string(self):
        body = {"prompt": "one two", "max_tokens": 12, "temperature": 0, "uma": {"ignore_eos": True}}
        _, whole = self.request("POST", "/v1/completions", body)
        text = whole["choices"][0]["text"]
        stop = text[len(text) // 2:][:2]
        _, cut = self.request("POST", "/v1/completions", {**body, "stop": stop})
        self.assertEqual((text[:text.index(stop)], "stop"), (cut["choices"][0]["text"], cut["choices"][0]["finish_reason"]))

    def test_many_at_once(self):
        answers = uma.parallel(*[lambda: self.chat(max_tokens=20, uma={"ignore_eos": True}) for _ in range(8)])
        self.assertEqual({(200, 20)}, {(status, answer["usage"]["completion_tokens"]) for status, answer in answers})

    def test_an_aborted_stream_frees_its_sequence(self):
        connection, answer = self.start_stream(max_tokens=2000, uma={"ignore_eos": True})
        self.assertTrue(answer.readline().startswith(b"data: "))
        self.wait_active()
        cancelled = self.client.metrics()["requests_cancelled_total"]
        answer.close()
        connection.close()
        self.wait_idle()
        self.assertEqual(cancelled + 1, self.client.metrics()["requests_cancelled_total"])

    def test_an_aborted_request_that_does_not_stream_frees_its_sequence(self):
        cancelled = self.client.metrics()["requests_cancelled_total"]
        for _ in range(20):  # on a busy machine a reply may end before its client has left
            connection = self.connect()
            connection.request("POST", "/v1/completions",
                               json.dumps({"prompt": "a", "max_tokens": 2000, "uma": {"ignore_eos": True}}).encode())
            self.wait_active()
            connection.close()
            self.wait_idle()
            if self.client.metrics()["requests_cancelled_total"] > cancelled:
                return
        self.fail("no request was cancelled when its client left")


class Errors(HttpTest):
    def assert_refused(self, expected, code, answer, param=None):
        status, body = answer
        self.assertEqual((expected, code), (status, body["error"]["code"]), body)
        self.assertEqual(param, body["error"]["param"])
        self.assertTrue(body["error"]["message"])
        self.assertTrue(body["error"]["type"])

    def test_fields(self):
        self.assert_refused(400, "E_PROTO_003", self.chat(temperature="hot"), "temperature")
        self.assert_refused(400, "E_PROTO_003", self.chat(tools=[{"type": "function"}]), "tools[0].function")
        self.assert_refused(400, "E_PROTO_003", self.chat(n=17), "n")
        self.assert_refused(400, "E_PROTO_003", self.request("POST", "/v1/chat/completions", {}), "messages")
        # Errors that only the model, or the compiler of schemas, can find.
        self.assert_refused(400, "E_PROTO_003", self.chat(logit_bias={"99999999": 1}), "logit_bias")
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "uniqueItems": 1}}}
        self.assert_refused(400, "E_PROTO_003", self.chat(response_format=schema), "response_format.json_schema.schema")
        self.assert_refused(400, "E_PROTO_003", self.chat(grammar="root ::= ("), "grammar")

    def test_an_unknown_model(self):
        self.assert_refused(404, "E_MODEL_001", self.request("GET", "/v1/models/gpt-9"))
        for name in ("gpt-9", "no-such-model"):  # only one model is known
            status, answer = self.chat(model=name)
            self.assertEqual((200, self.client.models()[0]["name"]), (status, answer["model"]))

    def test_a_prompt_that_does_not_fit(self):
        for stream in (False, True):
            status, answer = self.chat(" ".join(["word"] * 20_000), stream=stream)
            error = answer["error"]
            self.assertEqual((400, "context_length_exceeded", "E_LIMIT_001"), (status, error["code"], error["uma"]["code"]))
            # What Claude Code, Codex, opencode, qwen-code, Cline and Roo look for.
            self.assertRegex(error["message"], r"^prompt is too long: \d+ tokens > \d+ maximum\. ")
            self.assertIn("maximum context length", error["message"])
            self.assertIn("exceeds the available context size", error["message"])
            self.assertNotIn("rate limit", error["message"])

    def test_a_deadline(self):
        blockers = [self.start_stream(max_tokens=2000, uma={"ignore_eos": True}) for _ in range(4)]
        uma.until(lambda: self.client.metrics()["sequences_active"] == 4, "all slots taken")
        self.assert_refused(503, "E_LIMIT_003", self.chat(uma={"deadline_ms": 20}))
        for connection, answer in blockers:
            answer.close()
            connection.close()
        self.wait_idle()

    def test_bodies(self):
        for body in (b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 1000):
            with self.subTest(body=body[:10]):
                self.assert_refused(400, "E_PROTO_001", self.request("POST", "/v1/chat/completions", body))

    def test_an_address_with_another_base_is_served(self):
        for path in ("/chat/completions", "//v1/chat/completions", "/v1/chat/completions/", "/v1/v1/chat/completions",
                     "/api/v1/chat/completions"):
            status, answer = self.request("POST", path, {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1})
            self.assertEqual((200, "chat.completion"), (status, answer["object"]), path)
        refused = self.raw(b"POST /messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
        self.assertIn(b'{"type":"error"', refused, "the form of its API")
        name = self.client.models()[0]["name"]
        self.assertEqual(name, self.request("GET", f"/models/{name}/")[1]["id"])

    def test_a_wrong_address_names_the_right_one(self):
        message = self.request("POST", "/v1/chat/completion", {})[1]["error"]["message"]
        self.assertEqual("no such path /v1/chat/completion: did you mean /v1/chat/completions?", message)
        message = self.request("GET", "/chat/completions")[1]["error"]["message"]
        self.assertEqual("/v1/chat/completions accepts only POST, not GET", message)
        self.assertLess(len(self.request("GET", "/v1/" + "x" * 500)[1]["error"]["message"]), 250)

    def test_paths_and_methods(self):
        self.assert_refused(404, "E_PROTO_004", self.request("GET", "/v1/nothing"))
        self.assert_refused(405, "E_PROTO_004", self.request("GET", "/v1/chat/completions"))
        self.assert_refused(405, "E_PROTO_004", self.request("DELETE", "/v1/models"))

    def test_a_refused_request_leaves_the_connection(self):
        connection = self.connect()
        self.assert_refused(400, "E_PROTO_003", self.chat(temperature="hot", connection=connection), "temperature")
        plain = connection.sock
        self.assertEqual(200, self.chat(connection=connection)[0])
        self.assertIs(plain, connection.sock)


class Readiness(unittest.TestCase):
    """/ready says whether the default model answers, whatever other models there are."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="uma-models-")))
        shutil.copy(uma.TINY, self.folder / "other.gguf")

    def start(self, model):
        daemon = uma.Daemon(model, "--http", "127.0.0.1:0", config=f"models_dirs: [{self.folder}]\nkv: {{cells: 2048}}\n")
        self.addCleanup(daemon.kill)
        daemon.start()
        address = re.compile(r"http +http://127\.0\.0\.1:(\d+)/v1")
        uma.until(lambda: address.search(daemon.log()), "it listens")
        self.port = int(address.search(daemon.log()).group(1))
        return daemon

    def readiness(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=uma.WAIT_S)
        try:
            connection.request("GET", "/ready")
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def test_it_is_ready_when_the_default_model_is(self):
        daemon = self.start(uma.TINY_REGISTER)
        answers = []
        uma.until(lambda: answers.append(self.readiness()) or answers[-1][0] == 200, "it is ready")
        with daemon.client() as client:
            self.assertEqual("ready", client.models()[0]["state"])
            self.assertEqual({"unloaded"}, {model["state"] for model in client.models()[1:]})
            for answer in answers[:-1]:
                self.assertEqual((503, {"status": "not ready", "reason": "model"}), answer)
            # It is loaded on demand from now on, so requests are answered.
            self.assertEqual("ack", client.call(type="unload_model", model=client.models()[0]["name"])["event"])
            self.assertEqual(200, self.readiness()[0])
        self.assertEqual(0, daemon.terminate())


class Facts(HttpTest):
    def test_models(self):
        status, models = self.request("GET", "/v1/models")
        names = [model["name"] for model in self.client.models()]
        name = names[0]
        self.assertEqual((200, names), (status, [model["id"] for model in models["data"]]))
        self.assertEqual(name, self.request("GET", f"/v1/models/{name}")[1]["id"])
        self.assertEqual(200, self.chat(model=name)[0])

    def test_health_and_ready(self):
        self.chat()
        status, health = self.request("GET", "/health")
        self.assertEqual((200, "ok", "ready"), (status, health["status"], health["model"]))
        self.assertGreaterEqual(health["last_decode_s"], 0)
        self.assertEqual(200, self.request("GET", "/ready")[0])

    def test_metrics(self):
        self.chat()
        connection = self.connect()
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        self.assertGreater(float(samples["uma_tokens_total"]), 0)
        self.assertEqual(0, float(samples['uma_worker_queue_depth{worker="0",model="tiny"}']))
        # These are read by endpoint pickers.
        self.assertEqual(0, float(samples["uma_queue_depth"]))
        self.assertIn("uma_sequences_active", samples)
        self.assertTrue(0 <= float(samples["uma_kv_cache_utilization"]) <= 1)
        for name in ("uma_ttft_seconds", "uma_inter_token_seconds", "uma_queue_wait_seconds"):
            self.assertIn(f"# TYPE {name} histogram", text)
            self.assertGreater(float(samples[f"{name}_count"]), 0)
            self.assertEqual(samples[f'{name}_bucket{{le="+Inf"}}'], samples[f"{name}_count"])
        self.assertGreater(float(samples['uma_step_seconds_count{kind="decode"}']), 0)

    def test_metrics_have_help_and_a_type_and_are_those_of_the_socket(self):
        self.chat()
        connection = self.connect()
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        self.assertEqual("text/plain; version=0.0.4", answer.getheader("Content-Type"))
        lines = answer.read().decode().splitlines()
        families = {}
        for line in lines:
            if line.startswith("# HELP "):
                name, _, about = line.removeprefix("# HELP ").partition(" ")
                self.assertNotIn(name, families)
                self.assertTrue(about, name)
                families[name] = None
            elif line.startswith("# TYPE "):
                name, kind = line.removeprefix("# TYPE ").split(" ")
                self.assertEqual(name, list(families)[-1], "the type follows its help")
                families[name] = kind
            else:
                name = list(families)[-1]
                ending = r"_(bucket|sum|count)" if families[name] == "histogram" else ""
                self.assertRegex(line, rf'^{name}{ending}({{(\w+="[^"]*",?)+}})? [-+.e\d]+$')
        for name, value in self.client.metrics().items():
            self.assertEqual(value is not None and not isinstance(value, list), f"uma_{name}" in families, name)
        self.assertEqual({f"uma_worker_{name}" for name in self.client.metrics()["workers"][0]},
                         {name for name in families if name.startswith("uma_worker_")})

    def test_the_kv_cache_is_used_while_a_stream_runs(self):
        connection, answer = self.start_stream(max_tokens=2000, uma={"ignore_eos": True})
        utilization = uma.until(lambda: self.client.metrics()["kv_cache_utilization"], "cells in use")
        self.assertLessEqual(utilization, 1)
        answer.close()
        connection.close()
        self.wait_idle()


class Hostile(HttpTest):
    def test_pages_of_the_web(self):
        self.assertEqual(403, self.request("GET", "/v1/models", headers={"Host": "evil.example"})[0])
        self.assertEqual(403, self.request("GET", "/v1/models", headers={"Origin": "http://evil.example"})[0])
        self.assertEqual(200, self.request("GET", "/v1/models", headers={"Authorization": "Bearer anything"})[0])

    def test_bytes_that_are_no_request(self):
        post = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        for expected, data in (
                (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20),
                (400, b"nonsense\r\n\r\n"),
                (400, b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n"),
                (400, b"GET /health HTTP/1.1\nHost: localhost\n\n"),
                (400, post + b"Content-Length: 2\r\nContent-Length: 4\r\n\r\n{}{}"),
                (400, post + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
                (400, post + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
                (400, post + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n"),
                (400, post + b"Content-Length: 100\r\n\r\n{"),
                (413, post + b"Content-Length: %d\r\n\r\n" % (LIMIT + 1)),
                (431, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 1_000_000 + b"\r\n\r\n"),
                (431, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 10_000 + b"\r\n")):
            with self.subTest(data=data[:120]):
                self.assertEqual(expected, self.raw_status(data))
        self.assertEqual(200, self.chat()[0])

    def test_pipelined_requests_are_answered_in_order(self):
        with socket.create_connection(("127.0.0.1", self.port), timeout=uma.WAIT_S) as plain:
            body = json.dumps({"prompt": "one", "max_tokens": 3}).encode()
            generate = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
            plain.sendall(generate + b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            received = b""
            while data := plain.recv(1 << 16):
                received += data
        first, second = received.index(b"text_completion"), received.index(b'{"status":"ok"')
        self.assertLess(first, second)

    def test_connections_that_come_and_go(self):
        before = self.daemon.descriptors()
        for _ in range(200):
            socket.create_connection(("127.0.0.1", self.port), timeout=uma.WAIT_S).close()
        uma.until(lambda: self.daemon.descriptors() <= before + 1, "their descriptors are free")
        self.assertEqual(200, self.chat()[0])


@unittest.skipUnless(socket.has_ipv6 and pathlib.Path("/proc/net/if_inet6").exists(), "this system has no IPv6")
class Localhost(HttpTest):
    def test_it_is_both_addresses_of_the_loopback(self):
        for address, host in (("::1", f"localhost:{self.port}"), ("::1", f"[::1]:{self.port}"), ("127.0.0.1", "localhost")):
            connection = http.client.HTTPConnection(address, self.port, timeout=uma.WAIT_S)
            self.addCleanup(connection.close)
            connection.request("GET", "/v1/models", headers={"Host": host})
            self.assertEqual(200, connection.getresponse().status, (address, host))

    def test_names_of_others_are_refused_at_both(self):
        connection = http.client.HTTPConnection("::1", self.port, timeout=uma.WAIT_S)
        self.addCleanup(connection.close)
        connection.request("GET", "/v1/models", headers={"Host": "evil.example"})
        self.assertEqual(403, connection.getresponse().status)


class Listener(unittest.TestCase):
    def test_a_named_port_that_is_taken_is_an_error_and_a_wrong_address_too(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            daemon = uma.Daemon(uma.TINY, "--http", f"127.0.0.1:{taken.getsockname()[1]}")
            self.addCleanup(daemon.kill)
            self.assertEqual(1, daemon.start().wait())
            self.assertIn(f"port {taken.getsockname()[1]}", daemon.log())
        refused = uma.run_umad("--http", "0.0.0.0:8642")
        self.assertEqual(1, refused.returncode)
        self.assertIn("--http", refused.stderr)

    def test_a_stream_ends_before_the_daemon_does(self):
        with uma.Daemon(uma.TINY, "--http", "127.0.0.1:0") as daemon:
            port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", daemon.log()).group(1))
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=uma.WAIT_S)
            self.addCleanup(connection.close)
            connection.request("POST", "/v1/completions", json.dumps(
                {"prompt": "a", "stream": True, "max_tokens": 300, "uma": {"ignore_eos": True}}).encode())
            answer = connection.getresponse()
            self.assertTrue(answer.readline().startswith(b"data: "))
            daemon.signal(uma.signal.SIGTERM)
            self.assertTrue(answer.read().endswith(b"data: [DONE]\n\n"))
            self.assertEqual(0, daemon.wait())


class Shapes(unittest.TestCase):
    """Checks the checker of the answers above: it must notice wrong shapes."""

    CHUNK = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
             "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}

    def test_what_is_wrong_is_named(self):
        def why(**changes):
            return openai_shapes.mismatch({**self.CHUNK, **changes}, openai_shapes.of(self.CHUNK))

        self.assertIsNone(why())
        self.assertIsNone(why(uma={"usage": {}}))
        self.assertIn("$.created is '1'", why(created="1"))
        self.assertIn("$.created is True", why(created=True))
        self.assertIn("$.stray is not in", why(stray=1))
        choice = self.CHUNK["choices"][0]
        self.assertIn("$.choices[0].finish_reason is 'cancelled'", why(choices=[{**choice, "finish_reason": "cancelled"}]))
        self.assertIn("$.choices[0].delta.content is 3", why(choices=[{**choice, "delta": {"content": 3}}]))
        self.assertIn("$.choices[0].index is missing", why(choices=[{"delta": {}, "finish_reason": None}]))


if __name__ == "__main__":
    unittest.main()
