"""Replies that are being written: read by several clients, left by their own, cut by a crash, answered again; and their receipts."""

import json
import pathlib
import socket
import unittest

import uma
from test_responses import ResponsesTest

READ_AHEAD_BYTES = 64 << 10  # More than a client's library reads ahead.
LONG = {"max_output_tokens": 2000, "uma": {"ignore_eos": True}}


def events_of(data):
    return [json.loads(line.removeprefix(b"data: ")) for line in data.split(b"\n") if line.startswith(b"data: ")]


def bytes_in_kernel(server_port, client_port):
    """The bytes that the server has written to the client, and that the client has not read."""
    held = {}  # By connection: the file may have a line twice.
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        ports = tuple(int(address.split(":")[1], 16) for address in (local, remote))
        sent, received = (int(size, 16) for size in queues.split(":"))
        if ports == (server_port, client_port):
            held[ports] = sent
        if ports == (client_port, server_port):
            held[ports] = received
    return sum(held.values())


class RepliesTest(ResponsesTest):
    def attach(self, response, connection=None, **query):
        pairs = "".join(f"&{name}={value}" for name, value in query.items())
        connection = connection or self.connect()
        connection.request("GET", f"/v1/responses/{response}?stream=true{pairs}")
        answer = connection.getresponse()
        self.assertEqual((200, "text/event-stream"), (answer.status, answer.getheader("Content-Type")))
        return answer


class Replies(RepliesTest):
    def converse(self):
        return self.ok("POST", "/v1/conversations", {})["id"]

    def append(self, conversation, text):
        self.ok("POST", f"/v1/conversations/{conversation}/items", {"items": [{"role": "user", "content": text}]})

    def session(self, conversation):
        return self.ok("GET", f"/v1/sessions/{conversation.removeprefix('conv_')}")

    def test_everybody_gets_the_same_events(self):
        for fields in ({}, {"background": True}):
            with self.subTest(**fields):
                conversation = self.converse()
                _, first = self.begin_stream(conversation=conversation, **LONG, **fields)
                response = self.read_until_text(first)
                session = self.session(conversation)
                self.assertEqual((True, response["id"]), (session["busy"], session["response_id"]))
                self.assertEqual("in_progress", self.ok("GET", f"/v1/responses/{response['id']}")["status"])
                second = self.attach(response["id"])
                behind = self.attach(response["id"], starting_after=4)
                self.ok("POST", f"/v1/responses/{response['id']}/cancel")
                events = events_of(second.read())
                self.assertEqual(list(range(len(events))), [event["sequence_number"] for event in events])
                self.assertEqual(("response.created", "response.incomplete"), (events[0]["type"], events[-1]["type"]))
                own = events_of(first.read())
                self.assertEqual(events[-len(own):], own)
                self.assertEqual(events[5:], events_of(behind.read()))
                self.assertEqual("cancelled", events[-1]["response"]["uma"]["reason"])
                session = self.session(conversation)
                self.assertEqual((False, None), (session["busy"], session.get("response_id")))

    def test_a_reply_in_the_background_goes_on_without_its_client(self):
        connection, answer = self.begin_stream(background=True, max_output_tokens=40, uma={"ignore_eos": True})
        response = self.read_until_text(answer)
        connection.close()
        answer.close()

        def ended():
            body = self.ok("GET", f"/v1/responses/{response['id']}")
            return body if body["status"] != "in_progress" else None
        done = uma.until(ended, "the reply has ended")
        self.assertEqual((40, "length"), (done["usage"]["output_tokens"], done["uma"]["reason"]))
        events = events_of(self.attach(response["id"]).read())
        self.assertEqual("".join(event["delta"] for event in events if event["type"] == "response.output_text.delta"), self.text(done))
        self.assertEqual(done, {**events[-1]["response"], "created_at": done["created_at"]})
        (last,) = events_of(self.attach(response["id"], starting_after=30).read())
        self.assertEqual((31, done["output"]), (last["sequence_number"], last["response"]["output"]))

    def test_receipts_stay_with_the_turns(self):
        conversation = self.converse()
        said = [self.respond(text, conversation=conversation) for text in ("Hello", "More")]
        path = f"/v1/sessions/{conversation.removeprefix('conv_')}"
        receipts = self.ok("GET", f"{path}/receipts")
        self.assertEqual([{"turn": turn, "reason": response["uma"]["reason"], "usage": response["uma"]["usage"]}
                          for turn, response in enumerate(said)], receipts["data"])
        fork = self.ok("POST", f"{path}/fork", {})["session_id"]
        self.restart()
        for name in (path, f"/v1/sessions/{fork}"):
            self.assertEqual(receipts, self.ok("GET", f"{name}/receipts"))
        for response in said:
            self.assertEqual(response["uma"], self.ok("GET", f"/v1/responses/{response['id']}")["uma"])
        self.assert_unknown(self.request("GET", f"/v1/sessions/{'f' * 32}/receipts"))

    def test_input_is_answered_after_a_crash(self):
        conversation = self.converse()
        self.append(conversation, "Hello")
        connection, answer = self.begin_waiting(conversation, background=True, **LONG)
        response = self.read_until_text(answer)
        self.daemon.process.kill()
        self.daemon.wait()
        connection.close()
        self.start()
        self.assert_unknown(self.request("GET", f"/v1/responses/{response['id']}?stream=true&starting_after=3"))
        session = self.session(conversation)
        self.assertEqual((False, 0), (session["busy"], session["turns"]))
        self.assertGreater(session["pending_tokens"], 0)
        done = self.ok("POST", "/v1/responses", {"conversation": conversation, "max_output_tokens": 8})
        self.assertEqual(["Hello", self.text(done)], self.texts(f"/v1/conversations/{conversation}/items"))
        status, refused = self.request("POST", "/v1/responses", {"conversation": conversation})
        self.assertEqual((400, "E_PROTO_003", "input"), (status, refused["error"]["code"], refused["error"]["param"]))

    def begin_waiting(self, conversation, **fields):
        connection = self.connect()
        connection.request("POST", "/v1/responses", json.dumps({"conversation": conversation, "stream": True, **fields}).encode())
        return connection, connection.getresponse()

    def test_the_last_input_is_answered_again(self):
        conversation = self.converse()
        first = self.respond("Hello", conversation=conversation)
        second = self.respond("More", conversation=conversation)
        again = self.ok("POST", "/v1/responses", {"conversation": conversation, "max_output_tokens": 4, "uma": {"regenerate": True}})
        self.assertEqual(1, again["uma"]["turn"])
        self.assertGreater(again["uma"]["usage"]["reused_tokens"], first["usage"]["input_tokens"])
        self.assertEqual(["Hello", self.text(first), "More", self.text(again)], self.texts(f"/v1/conversations/{conversation}/items"))
        self.assert_unknown(self.request("GET", f"/v1/responses/{second['id']}"))
        self.append(conversation, "And?")
        status, refused = self.request("POST", "/v1/responses", {"conversation": conversation, "uma": {"regenerate": True}})
        self.assertEqual((400, "E_PROTO_003"), (status, refused["error"]["code"]))


class LongReplies(RepliesTest):
    """One conversation has the whole context, so that the events of a reply are more bytes than the kernel holds for a client."""

    flags = ("--http", "127.0.0.1:0", "--kv-cells", "4096", "--slots", "1")

    def test_a_reader_that_does_not_read_holds_up_nobody(self):
        # With log-probabilities an event has 1.5 KB.
        _, first = self.begin_stream(max_output_tokens=4000, include=["message.output_text.logprobs"], top_logprobs=20,
                                     uma={"ignore_eos": True})
        response = self.read_until_text(first)
        connection = self.connect()
        connection.sock = socket.socket()
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sock.connect(("127.0.0.1", self.port))
        idle_port = connection.sock.getsockname()[1]
        idle = self.attach(response["id"], connection)
        rest = events_of(first.read())
        self.assertEqual("length", rest[-1]["response"]["uma"]["reason"])
        held = bytes_in_kernel(self.port, idle_port)
        data = idle.read()
        self.assertLess(held + READ_AHEAD_BYTES, len(data), "umad could not write all of the events when the reply ended")
        events = events_of(data)
        self.assertEqual(rest, events[-len(rest):])


if __name__ == "__main__":
    unittest.main()
