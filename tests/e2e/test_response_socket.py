"""WebSocket mode of /v1/responses: events one after another on a connection, incremental input, and clients of all kinds."""

import http.client
import json
import pathlib
import re
import socket
import struct
import tempfile
import unittest

import openai_shapes
import test_http_operations
import uma
import websocket

SHORT = {"max_output_tokens": 8, "temperature": 0}
STORED = {**SHORT, "store": True}
HELD = {**SHORT, "store": False}
LONG = {"max_output_tokens": 2000, "temperature": 0, "uma": {"ignore_eos": True}}


class SocketTest(uma.DaemonTest):
    model = uma.TINY_CHAT
    flags = ("--http", "127.0.0.1:0", "--kv-cells", "16384", "--slots", "4")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", cls.daemon.log()).group(1))

    def open(self, *headers, path="/v1/responses"):
        return self.enterContext(websocket.WebSocket(self.port, path, *headers))

    def cached(self, response):
        return response["usage"]["input_tokens_details"]["cached_tokens"]

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=uma.WAIT_S)
        self.addCleanup(connection.close)
        connection.request("POST", path, json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def check_open(self, client):
        self.assertEqual("response", client.respond("Still there?", **HELD)["object"])

    def assert_error(self, events, status, code, param=None):
        (error,) = events
        self.assertEqual(("error", status, code, param), (error["type"], error["status"], error["error"]["code"], error["error"]["param"]))
        return error["error"]["message"]


class Responses(SocketTest):
    def test_the_events_are_those_of_the_stream(self):
        events = self.open().events(input="Hello", **STORED)
        self.assertEqual(["response.created", "response.in_progress", "response.output_item.added"], [event["type"] for event in events[:3]])
        self.assertEqual(list(range(len(events))), [event["sequence_number"] for event in events])
        response = events[-1]["response"]
        self.assertIsNone(openai_shapes.mismatch(response, openai_shapes.RESPONSE), response)
        text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        self.assertEqual(text, response["output"][0]["content"][0]["text"])
        self.assertEqual(response["id"], events[0]["response"]["id"])

    def test_stored_responses_go_on_here_and_over_http(self):
        client = self.open()
        first = client.respond("Tell me a story about a dragon", **STORED)
        second = client.respond("More", previous_response_id=first["id"], **STORED)
        self.assertEqual(first["id"], second["previous_response_id"])
        self.assertGreaterEqual(self.cached(second), first["usage"]["input_tokens"])
        status, third = self.post("/v1/responses", {"input": "And then?", "previous_response_id": second["id"], **STORED})
        self.assertEqual(200, status, third)
        self.assertEqual((second["uma"]["session_id"], 2), (third["uma"]["session_id"], third["uma"]["turn"]))
        again = self.open().respond("The end", previous_response_id=third["id"], **STORED)
        self.assertGreaterEqual(self.cached(again), third["usage"]["input_tokens"])

    def test_what_is_not_stored_goes_on_at_its_connection_alone(self):
        client = self.open()
        system = {"instructions": "You are a patient teacher who explains every step. " * 5}
        first = client.respond("Tell me a story about a dragon", **HELD, **system)
        second = client.respond([{"role": "user", "content": "More"}], previous_response_id=first["id"], **HELD, **system)
        self.assertEqual((first["id"], False), (second["previous_response_id"], second["store"]))
        self.assertGreater(second["usage"]["input_tokens"], first["usage"]["input_tokens"])
        self.assertGreaterEqual(self.cached(second), first["usage"]["input_tokens"] - 1)
        beside = client.respond("Or this?", previous_response_id=first["id"], **HELD, **system)
        self.assertGreaterEqual(self.cached(beside), first["usage"]["input_tokens"] - 1)
        kept = client.respond("Keep it", previous_response_id=second["id"], **STORED, **system)
        self.assertGreater(kept["usage"]["input_tokens"], second["usage"]["input_tokens"])
        other = self.open()
        self.assert_error(other.events(input="More", previous_response_id=second["id"], **HELD), 400, "previous_response_not_found",
                          "previous_response_id")
        self.assertEqual("response", other.respond("More", previous_response_id=kept["id"], **HELD)["object"])

    def test_a_prompt_can_be_computed_ahead(self):
        client = self.open()
        system = {"instructions": "You are a patient teacher who explains every step. " * 5}
        events = client.events(input="Hello", generate=False, **HELD, **system)
        warmed = events[-1]["response"]
        self.assertEqual((["response.created", "response.completed"], [], "completed", 0),
                         ([event["type"] for event in events if event["type"] != "response.in_progress"], warmed["output"], warmed["status"],
                          warmed["usage"]["output_tokens"]))
        first = client.respond([], previous_response_id=warmed["id"], **HELD, **system)
        self.assertEqual(warmed["usage"]["input_tokens"], first["usage"]["input_tokens"])
        self.assertGreaterEqual(self.cached(first), warmed["usage"]["input_tokens"] - 1)
        more = client.respond("More", previous_response_id=first["id"], **STORED, **system)
        self.assertGreater(more["usage"]["input_tokens"], first["usage"]["input_tokens"])

    def test_prompts_are_compared(self):
        client = self.open()
        rules = "Explain every step, and be patient with whoever asks. " * 5
        first = client.respond("Tell me a story", instructions="You teach. " + rules, **HELD)
        self.assertNotIn("prompt_cache_diagnostics", first)
        options = {"prompt_cache_options": {"comparison_response_id": first["id"]}}
        second = client.respond("Tell me a story", instructions="You draw. " + rules, **HELD, **options)
        said = second["prompt_cache_diagnostics"]
        self.assertEqual(("cache_miss", "input_changed"), (said["type"], said["reason"]))
        self.assertEqual("system", second["uma"]["usage"]["cache_miss"]["kind"])

    def test_calls_and_their_results(self):
        tool = {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
        client = self.open()
        call = client.respond("What time is it?", store=False, tools=[tool], tool_choice={"type": "function", "name": "clock"},
                              max_output_tokens=200)
        (made,) = [item for item in call["output"] if item["type"] == "function_call"]
        result = {"type": "function_call_output", "call_id": made["call_id"], "output": "noon"}
        answer = client.respond([result], previous_response_id=call["id"], tools=[tool], **HELD)
        self.assertGreater(self.cached(answer), call["usage"]["input_tokens"] // 2)

    def test_events_that_wait_are_answered_one_after_another(self):
        client = self.open()
        for number in range(3):
            client.send({"type": "response.create", "stream_id": f"s{number}", "input": f"Number {number}", **HELD})
        seen = []
        while len(seen) < 3:
            event = client.receive()
            self.assertEqual(f"s{len(seen)}", event["stream_id"])
            if event["type"] in ("response.completed", "response.incomplete"):
                seen.append(event)

    def test_fields_may_be_inside_of_the_event(self):
        client = self.open()
        client.send({"type": "response.create", "response": {"input": "Hello", **HELD}})
        self.assertEqual("response.created", client.receive()["type"])

    def test_errors_are_events_and_the_connection_stays(self):
        client = self.open()
        unknown = "resp_" + "0" * 48
        for create, status, code, param in (
                ({"input": "x", "previous_response_id": unknown}, 400, "previous_response_not_found", "previous_response_id"),
                ({"input": "x", "previous_response_id": "resp_1"}, 400, "previous_response_not_found", "previous_response_id"),
                ({"input": "x", "conversation": "conv_" + "0" * 32}, 404, "E_SESSION_001", "conversation"),
                ({"input": "x", "background": True}, 400, "E_PROTO_003", "background"),
                ({"input": 7}, 400, "E_PROTO_003", "input[0]"),
                ({}, 400, "E_PROTO_003", "input"),
                ({"input": "x", "temperature": "hot"}, 400, "E_PROTO_003", "temperature"),
                ({"input": "word " * 40000}, 400, "context_length_exceeded", None),
                ({"type": "response.dance"}, 400, "E_PROTO_004", "type")):
            with self.subTest(create=str(create)[:80]):
                client.send({"type": "response.create", **create})
                self.assert_error([client.receive()], status, code, param)
        client.send(b"{")
        self.assert_error([client.receive()], 400, "E_PROTO_001")
        client.send(b"[]")
        self.assert_error([client.receive()], 400, "E_PROTO_001")
        self.check_open(client)

    def test_a_client_that_leaves_cancels_its_response(self):
        for is_reset in (False, True):
            with self.subTest(is_reset=is_reset):
                before = self.client.metrics()["requests_cancelled_total"]
                client = websocket.WebSocket(self.port)
                client.send({"type": "response.create", "input": "Hello", "store": False, **LONG})
                while client.receive()["type"] != "response.output_text.delta":
                    pass
                if is_reset:
                    client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
                uma.until(lambda before=before: self.client.metrics()["requests_cancelled_total"] == before + 1, "it was cancelled")

    def test_pings_are_answered_during_a_response(self):
        client = self.open()
        client.send({"type": "response.create", "input": "Hello", "store": False, **LONG})
        client.send(b"there?", kind=websocket.PING)
        while True:
            kind, _, data = client.receive_frame()
            if kind == websocket.PONG:
                break
        self.assertEqual(b"there?", data)

    def test_a_slow_reader_stops_nobody(self):
        slow = self.open()
        slow.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.send({"type": "response.create", "input": "Hello", "store": False, **LONG})
        slow.receive()
        quick = self.open()
        for _ in range(3):
            self.check_open(quick)


class Connections(SocketTest):
    def refused(self, status, *headers, path="/v1/responses"):
        with self.assertRaises(http.client.HTTPException) as refusal:
            websocket.WebSocket(self.port, path, *headers)
        self.assertEqual(status, refusal.exception.args[0], refusal.exception.args)
        return refusal.exception.args[1]

    def test_pages_of_other_origins_are_refused(self):
        for origin in ("http://evil.example", "null", "https://localhost:1"):
            self.refused(403, f"Origin: {origin}")
        self.refused(403, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: websocket", "Sec-Fetch-Dest: websocket")
        self.check_open(self.open("Origin: http://localhost"))

    def test_other_paths_are_none(self):
        self.assertEqual(404, self.post("/v1/chat", {})[0])
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=uma.WAIT_S)
        self.addCleanup(connection.close)
        connection.request("GET", "/v1/responses")
        answer = connection.getresponse()
        self.assertEqual((426, "websocket"), (answer.status, answer.getheader("Upgrade")))

    def test_hostile_frames_end_their_connection_alone(self):
        frame, hello = websocket.frame, json.dumps({"type": "response.create", "input": "Hello", **HELD}).encode()
        for name, data, codes in (
                ("unmasked", frame(hello, is_masked=False), {1002}),
                ("binary", frame(hello, kind=websocket.BINARY), {1003}),
                ("reserved bits", frame(hello, reserved=4), {1002}),
                ("unknown opcode", frame(hello, kind=5), {1002}),
                ("continues nothing", frame(hello, kind=0), {1002}),
                ("no UTF-8", frame(b'{"type":"\xff"}'), {1007}),
                ("long ping", frame(b"x" * 200, kind=websocket.PING), {1002}),
                ("too long", frame(b"", length=1 << 40), {1009}),
                ("negative length", frame(b"", length=(1 << 64) - 1), {1002, 1009}),
                ("closes", frame(struct.pack(">H", 1000), kind=websocket.CLOSE), {1000}),
                ("bad close", frame(b"x", kind=websocket.CLOSE), {1002})):
            with self.subTest(name), websocket.WebSocket(self.port) as client:
                client.stream.sendall(data)
                with self.assertRaises(websocket.Closed) as end:
                    client.receive()
                self.assertIn(end.exception.code, {*codes, None})
        with websocket.WebSocket(self.port) as client:
            for part, is_last, kind in ((hello[:5], False, websocket.TEXT), (b"", False, 0), (hello[5:], True, 0)):
                client.send(part, is_last=is_last, kind=kind)
                client.send(b"between", kind=websocket.PING)
            self.assertEqual("response.created", client.receive()["type"])
        uma.until(lambda: self.client.metrics()["request_bytes"] == 0, "all counted bytes are given back")
        self.check_open(self.open())

    def test_too_many_events_at_once_end_the_connection(self):
        client = self.open()
        client.send({"type": "response.create", "input": "Hello", "store": False, **LONG})
        with self.assertRaises((websocket.Closed, ConnectionError)):
            for _ in range(100):
                client.send({"type": "response.create", "input": "Hello", **HELD})
            while True:
                client.receive()

    def test_bytes_before_the_answer_to_the_upgrade_are_refused(self):
        with socket.create_connection(("127.0.0.1", self.port), timeout=uma.WAIT_S) as early:
            early.sendall(websocket.upgrade_bytes("/v1/responses") + websocket.frame(b"{}"))
            self.assertTrue(early.recv(100).startswith(b"HTTP/1.1 400 "))


class KeysAndEnd(unittest.TestCase):
    def setUp(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="uma-e2e-socket-")))
        (self.ann, first), (self.bob, second), (self.boss, third) = (test_http_operations.new_key(name) for name in ("ann", "bob", "boss"))
        (folder / "keys").write_text(f"{first} requests_per_minute=4\n{second}\n{third} admin=true\n")
        (folder / "keys").chmod(0o600)
        self.daemon = uma.Daemon(uma.TINY_CHAT, "--http", "127.0.0.1:0", "--http-keys", str(folder / "keys"))
        self.addCleanup(self.daemon.kill)
        self.daemon.start().wait_ready()
        self.port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", self.daemon.log()).group(1))

    def open(self, key):
        return self.enterContext(websocket.WebSocket(self.port, "/v1/responses", f"Authorization: Bearer {key}"))

    def test_keys_count_for_each_event(self):
        with self.assertRaises(http.client.HTTPException) as refusal:
            websocket.WebSocket(self.port)
        self.assertEqual(401, refusal.exception.args[0])
        ann, bob = self.open(self.ann), self.open(self.bob)
        mine = ann.respond("Hello", **STORED)
        (error,) = bob.events(input="More", previous_response_id=mine["id"], **STORED)
        self.assertEqual("previous_response_not_found", error["error"]["code"])
        statuses = [ann.events(input="Hello", **HELD)[-1].get("status") for _ in range(5)]
        self.assertIn(429, statuses)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=uma.WAIT_S)
        self.addCleanup(connection.close)
        connection.request("DELETE", "/v1/keys/bob", headers={"Authorization": f"Bearer {self.boss}"})
        self.assertEqual(200, connection.getresponse().status)
        self.assertEqual(401, bob.events(input="Hello", **HELD)[-1]["status"])
        with self.assertRaises(websocket.Closed):
            bob.receive()

    def test_the_daemon_ends_with_the_response(self):
        idle, busy = self.open(self.bob), self.open(self.bob)
        busy.send({"type": "response.create", "input": "Hello", "store": False, "max_output_tokens": 200, "uma": {"ignore_eos": True}})
        busy.receive()
        self.daemon.signal(15)
        events = [busy.receive()]
        while events[-1]["type"] not in ("response.completed", "response.incomplete"):
            events.append(busy.receive())
        with self.assertRaises((websocket.Closed, ConnectionError)):
            idle.receive()
        self.assertEqual(0, self.daemon.wait())


if __name__ == "__main__":
    unittest.main()
