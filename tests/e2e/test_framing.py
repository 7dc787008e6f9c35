"""Frames, ids and fields of the Unix socket: what is accepted, what is refused, and whether the connection survives it."""

import json
import os
import socket
import stat
import struct
import unittest

import uma

MIB = 1 << 20
LIMIT = 16 * MIB  # limits.max_frame_bytes


class Frames(uma.DaemonTest):
    def assert_works(self, client=None):
        self.assertEqual("pong", (client or self.client).call(type="ping")["event"])

    def assert_rejected(self, body, code, *parts):
        """A whole frame is refused without an id, and the connection is kept."""
        self.client.send_bytes(uma.frame(body))
        answer = self.client.receive()
        self.assertIsNone(answer["id"])
        self.assert_error(answer, code, *parts)
        self.assert_works()

    def test_ping(self):
        self.assertEqual({"id": "p", "event": "pong"}, self.client.call(id="p", type="ping"))

    def test_a_frame_in_single_bytes(self):
        for byte in uma.frame({"id": "slow", "type": "ping"}):
            self.client.send_bytes(bytes([byte]))
        self.assertEqual({"id": "slow", "event": "pong"}, self.client.receive())

    def test_many_frames_in_one_write(self):
        self.client.send_bytes(b"".join(uma.frame({"id": str(n), "type": "ping"}) for n in range(200)))
        self.assertEqual([str(n) for n in range(200)], [self.client.receive()["id"] for _ in range(200)])

    def test_a_frame_of_exactly_the_limit(self):
        request = {"id": "big", "type": "ping", "padding": ""}
        request["padding"] = "x" * (LIMIT - len(json.dumps(request)))
        body = json.dumps(request).encode()
        self.assertEqual(LIMIT, len(body))
        self.client.send_bytes(uma.frame(body))
        self.assertEqual("pong", self.client.receive()["event"])

    def test_an_oversize_frame_is_answered_and_ends_the_connection_though_its_body_never_comes(self):
        for length in (LIMIT + 1, 0x7FFFFFFF, 0xFFFFFFFF):
            client = self.another_client()
            client.send_bytes(struct.pack("<I", length))
            answer = client.receive()
            self.assertIsNone(answer["id"])
            self.assert_error(answer, "E_PROTO_002")
            self.assertTrue(client.is_closed_by_peer())
        self.assert_works()

    def test_an_oversize_frame_is_answered_though_its_body_keeps_coming(self):
        client = self.another_client()
        client.send_bytes(struct.pack("<I", 4 * LIMIT))
        try:
            client.send_bytes(b"x" * MIB)
        except (BrokenPipeError, ConnectionResetError):
            pass  # closed already: the answer is in the receive buffer
        self.assert_error(client.receive(), "E_PROTO_002")
        self.assertTrue(client.is_closed_by_peer())
        self.assert_works()

    def test_what_is_not_json(self):
        for body in (b"", b"{", b"nonsense", b'{"id": "a", }', b"\x00\x01\x02", b'{"id": "a", "type": "ping"} trailing',
                     b"\xff\xfe\xfd", b'{"id": "\\ud800", "type": "ping"}'):
            with self.subTest(body=body):
                self.client.send_bytes(uma.frame(body))
                answer = self.client.receive()
                self.assertIsNone(answer["id"])
                self.assertIn(answer["code"], ("E_PROTO_001", "E_PROTO_003"))
                self.assert_works()
        for body in (b"", b"{", b"nonsense", b'{"id": "a", "type": "ping"} trailing'):
            self.assert_rejected(body, "E_PROTO_001")

    def test_what_is_no_object(self):
        for body in (b"[]", b'"text"', b"12", b"null", b"true"):
            self.assert_rejected(body, "E_PROTO_001")

    def test_deep_nesting(self):
        self.assert_rejected(b"[" * 100_000, "E_PROTO_001")
        self.assert_rejected(b'{"id":"a","x":' * 50_000, "E_PROTO_001")

    def test_the_id_is_required_and_a_string_of_1_to_128_bytes(self):
        for request in ({"type": "ping"}, {"id": None, "type": "ping"}, {"id": 7, "type": "ping"}, {"id": "", "type": "ping"},
                        {"id": "x" * 129, "type": "ping"}, {"id": ["a"], "type": "ping"}, {"id": "a\x00b", "type": "ping"}):
            with self.subTest(request=request):
                self.assert_rejected(request, "E_PROTO_003", "id")
        for request_id in ("x" * 128, "ü" * 64, "id with \"quotes\" and \\ and \n", "😀"):
            self.assertEqual(request_id, self.client.call(id=request_id, type="ping")["id"])

    def test_invalid_utf8_in_a_field_is_refused_by_its_name(self):
        self.client.send_bytes(uma.frame(b'{"id": "u", "prompt": "a\xff\xfe"}'))
        answer = self.client.receive()
        self.assertEqual("u", answer["id"])
        self.assert_error(answer, "E_PROTO_003", "prompt", "UTF-8")
        self.assert_works()

    def test_a_nul_character_is_refused_by_the_fields_name(self):
        self.assert_error(self.client.generate("a\x00b"), "E_PROTO_003", "prompt")
        self.assert_error(self.client.call(type="create_session", name="a\x00"), "E_PROTO_003", "name")

    def test_unknown_types(self):
        self.assert_error(self.client.call(type="dance"), "E_PROTO_004", "dance")
        self.assert_error(self.client.call(type=""), "E_PROTO_004")
        self.assert_error(self.client.call(type=7), "E_PROTO_003", "type")
        self.assert_error(self.client.call(), "E_PROTO_003", "type")
        self.assert_error(self.client.call(type="embed", texts=["a"]), "E_MODEL_003")

    def test_unknown_fields_are_ignored(self):
        self.assertEqual("pong", self.client.call(type="ping", colour="red", more={"a": [1, 2]})["event"])
        self.assertEqual("eos", self.client.generate("word", max_tokens=1, colour="red").last["event"])

    def test_a_request_with_a_prompt_or_messages_alone_is_generate(self):
        for request in ({"prompt": "word"}, {"messages": [{"role": "user", "content": "word"}]}):
            reply = self.client.finish(self.client.start(request, max_tokens=2, ignore_eos=True))
            self.assertEqual("eos", reply.last["event"], reply.last)
            self.assertEqual(2, reply.usage["completion_tokens"])

    def test_fields_of_the_wrong_type_or_range_are_refused_by_name(self):
        cases = {
            "prompt": (7, ["a"], {"a": 1}, ""),
            "messages": ("hello", [], ["hello"], [{"role": "user"}], [{"content": "x"}], [{"role": "king", "content": "x"}],
                         [{"role": "user", "content": 3}]),
            "max_tokens": ("many", 1.5, [], True),
            "temperature": ("hot", -0.1, True),
            "top_p": (-0.1, 1.1, "x"),
            "top_k": (-1, 1.5, "x"),
            "min_p": (-0.1, 1, "x"),
            "typical_p": (0, 1.1, "x"),
            "repeat_last_n": (-2, 0.5, "x"),
            "dry_multiplier": (-0.1, 101, "x"),
            "dry_base": (0.9, 101, "x"),
            "dry_allowed_length": (0, 1.5, "x"),
            "dry_penalty_last_n": (-2, "x"),
            "dry_sequence_breakers": ("x", [""], [1], ["x" * 65], ["x"] * 33),
            "xtc_probability": (-0.1, 1.1, "x"),
            "xtc_threshold": (-0.1, 1.1, "x"),
            "mirostat": (-1, 3, 1.5, True),
            "mirostat_tau": (-0.1, 101, "x"),
            "mirostat_eta": (-0.1, 1.1, "x"),
            "seed": ("x", 1.5),
            "stop": (7, [7], {"a": 1}),
            "repeat_penalty": (0, -1, "x"),
            "presence_penalty": (-2.1, 2.1, "x"),
            "frequency_penalty": (-2.1, 2.1, "x"),
            "logit_bias": ([1], {"-1": 1}, {"1": "x"}, {"1": 101}),
            "ignore_eos": (1, "true"),
            "stream": (0, "false"),
            "class": ("royal", 7),
            "deadline_ms": (-1, "soon", 1.5),
            "timeout_ms": (-1, "soon"),
            "progress": ("yes", 1),
            "session_id": (7, "", "x" * 129),
            "model": (7, ["x"]),
        }
        for name, values in cases.items():
            for value in values:
                with self.subTest(field=name, value=value):
                    request = {"type": "generate", name: value}
                    if name not in ("prompt", "messages"):
                        request["prompt"] = "word"
                    self.assert_error(self.client.call(request), "E_PROTO_003", name)
        self.assert_works()

    def test_fields_of_other_types_are_refused_by_name(self):
        for request, name in (({"type": "append_input"}, "session_id"),
                              ({"type": "append_input", "session_id": "a"}, "text"),
                              ({"type": "append_input", "session_id": "a", "text": 7}, "text"),
                              ({"type": "generate_stream"}, "session_id"),
                              ({"type": "end_session"}, "session_id"),
                              ({"type": "fork_session", "session_id": 9}, "session_id"),
                              ({"type": "rewind_session", "session_id": "a"}, "turn"),
                              ({"type": "rewind_session", "session_id": "a", "turn": -1}, "turn"),
                              ({"type": "rewind_session", "session_id": "a", "turn": "0"}, "turn"),
                              ({"type": "cancel"}, "target"),
                              ({"type": "cancel", "target": 5}, "target"),
                              ({"type": "create_session", "mode": "song"}, "mode"),
                              ({"type": "create_session", "ttl_s": -1}, "ttl_s"),
                              ({"type": "create_session", "name": 5}, "name"),
                              ({"type": "create_session", "ephemeral": "no"}, "ephemeral")):
            with self.subTest(request=request):
                self.assert_error(self.client.call(request), "E_PROTO_003", name)

    def test_prompt_and_messages_exclude_each_other(self):
        answer = self.client.call(type="generate", prompt="a", messages=[{"role": "user", "content": "b"}])
        self.assert_error(answer, "E_PROTO_003", "prompt", "messages")

    def test_an_id_in_flight_is_refused_and_the_running_request_goes_on(self):
        self.client.start(id="same", type="generate", prompt="word", max_tokens=200, ignore_eos=True)
        self.client.wait_token("same")
        self.client.send({"id": "same", "type": "ping"})
        events = []
        while not events or events[-1]["event"] != "eos":
            events.append(self.client.receive())
        refusals = [event for event in events if event["event"] == "error"]
        self.assertEqual(1, len(refusals), events)
        self.assert_error(refusals[0], "E_PROTO_005")
        self.assertEqual("length", events[-1]["reason"])
        self.assertEqual(200, events[-1]["usage"]["completion_tokens"])
        self.assertEqual("pong", self.client.call(id="same", type="ping")["event"])  # the id is free again

    def test_the_same_id_on_two_connections_is_two_requests(self):
        other = self.another_client()
        for client in (self.client, other):
            client.start(id="same", type="generate", prompt="word", max_tokens=20, ignore_eos=True)
        self.assertEqual("length", self.client.finish("same").reason)
        self.assertEqual("length", other.finish("same").reason)

    def test_a_client_that_ends_its_sending_still_gets_its_answers(self):
        client = self.another_client()
        client.start(id="last", type="ping")
        client.socket.shutdown(socket.SHUT_WR)
        self.assertEqual("pong", client.finish("last").last["event"])
        self.assertTrue(client.is_closed_by_peer())


class SocketFile(uma.DaemonTest):
    def test_only_its_owner_may_use_it(self):
        facts = os.stat(self.daemon.socket_path)
        self.assertTrue(stat.S_ISSOCK(facts.st_mode))
        self.assertEqual(0o600, stat.S_IMODE(facts.st_mode))

    def test_the_data_folder_is_its_owners_alone(self):
        self.assertEqual(0o700, stat.S_IMODE(os.stat(self.daemon.data_dir).st_mode))


if __name__ == "__main__":
    unittest.main()
