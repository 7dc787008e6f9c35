"""Responses (turns of sessions), conversations (sessions), and the sessions themselves, over HTTP: continued, forked, deleted,
restarted, exported, and requested by invalid ids."""

import http.client
import json
import pathlib
import re
import tempfile
import unittest

import openai_shapes
import uma

UNKNOWN = "f" * 32
EVENTS = ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
LAST_EVENTS = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]


class ResponsesTest(unittest.TestCase):
    flags = ("--http", "127.0.0.1:0", "--kv-cells", "8192", "--slots", "4")

    def setUp(self):
        self.daemon = uma.Daemon(uma.TINY_CHAT, *self.flags)
        self.addCleanup(self.daemon.kill)
        self.start()

    def start(self):
        self.daemon.start().wait_ready()
        self.port = int(re.findall(r"http +http://127\.0\.0\.1:(\d+)/v1", self.daemon.log())[-1])

    def restart(self):
        self.assertEqual(0, self.daemon.terminate(), self.daemon.log())
        self.start()

    def connect(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=uma.WAIT_S)
        self.addCleanup(connection.close)
        return connection

    def request(self, method, path, body=None):
        """Returns (status, parsed body), with the bytes of a body that is not JSON."""
        connection = self.connect()
        connection.request(method, path, body if body is None or isinstance(body, bytes) else json.dumps(body).encode())
        answer = connection.getresponse()
        data = answer.read()
        return answer.status, json.loads(data) if answer.getheader("Content-Type") == "application/json" else data

    def ok(self, method, path, body=None):
        status, answer = self.request(method, path, body)
        self.assertEqual(200, status, answer)
        return answer

    def respond(self, given, **fields):
        answer = self.ok("POST", "/v1/responses", {"input": given, "max_output_tokens": 8, "temperature": 0, **fields})
        self.assertIsNone(openai_shapes.mismatch(answer, openai_shapes.RESPONSE), answer)
        return answer

    def begin_stream(self, **fields):
        connection = self.connect()
        body = {"input": "Hello", "stream": True, "temperature": 0, **fields}
        connection.request("POST", "/v1/responses", json.dumps(body).encode())
        return connection, connection.getresponse()

    def read_until_text(self, answer):
        """Reads the first event of a stream, and on to its first text. Returns the response of the first event."""
        self.assertEqual(b"event: response.created\n", answer.readline())
        response = json.loads(answer.readline().removeprefix(b"data: "))["response"]
        while (line := answer.readline()) != b"event: response.output_text.delta\n":
            self.assertTrue(line, "the stream ended without a text")
        return response

    def assert_unknown(self, answer):
        status, body = answer
        self.assertEqual(404, status, body)
        self.assertEqual("E_SESSION_001", body["error"]["code"])
        self.assertEqual({"message", "type", "param", "code"}, set(body["error"]))
        return body["error"]

    def text(self, response):
        return response["output"][0]["content"][0]["text"]

    def sessions(self):
        return self.ok("GET", "/v1/sessions")["data"]

    def items(self, path, **query):
        pairs = "&".join(f"{name}={value}" for name, value in query.items())
        return self.ok("GET", f"{path}?{pairs}")

    def texts(self, path):
        return [item["content"][0]["text"] for item in self.items(path, order="asc")["data"]]


class Responses(ResponsesTest):
    def test_three_turns_compute_only_what_is_new(self):
        first = self.respond("Tell me a story about a dragon that lives in a tower", metadata={"topic": "dragons"})
        second = self.respond("More", previous_response_id=first["id"])
        third = self.respond("And then?", previous_response_id=second["id"])
        prompt = 0
        for response in (first, second, third):
            usage, receipt = response["usage"], response["uma"]["usage"]
            self.assertEqual(receipt["reused_tokens"], usage["input_tokens_details"]["cached_tokens"])
            self.assertEqual(receipt["prompt_tokens"], usage["input_tokens"])
            if response is not first:
                self.assertEqual("hot", receipt["tier"])
                self.assertGreaterEqual(receipt["reused_tokens"], prompt)
                self.assertLess(receipt["recomputed_tokens"], 40, "the new message, and what the template puts around it")
            prompt = usage["input_tokens"]
        self.assertEqual(1, len({response["uma"]["session_id"] for response in (first, second, third)}))
        self.assertEqual([0, 1, 2], [response["uma"]["turn"] for response in (first, second, third)])

        kept = self.ok("GET", f"/v1/responses/{first['id']}")
        for name in first:
            if name in ("created_at", "completed_at") and first[name] is not None:  # told when the reply began, kept by the session's clock
                self.assertLessEqual(abs(first[name] - kept[name]), 1)
            else:
                self.assertEqual(first[name], kept[name], name)
        self.assertEqual(second["id"], third["previous_response_id"])
        texts = self.texts(f"/v1/responses/{third['id']}/input_items")
        self.assertEqual(5, len(texts))
        self.assertEqual(["More", self.text(second), "And then?"], texts[2:])
        page = self.items(f"/v1/responses/{third['id']}/input_items", limit=2)
        self.assertTrue(page["has_more"])
        rest = self.items(f"/v1/responses/{third['id']}/input_items", after=page["last_id"])
        self.assertEqual(3, len(rest["data"]))

        self.restart()
        self.assertEqual(kept, self.ok("GET", f"/v1/responses/{first['id']}"))
        fourth = self.respond("The end", previous_response_id=third["id"])
        self.assertEqual((3, third["uma"]["session_id"]), (fourth["uma"]["turn"], fourth["uma"]["session_id"]))
        self.assertEqual(texts + [self.text(third), "The end"], self.texts(f"/v1/responses/{fourth['id']}/input_items"))

    def test_a_stream_says_what_is_kept(self):
        for fields in ({"max_output_tokens": 8}, {"max_output_tokens": 8, "store": False}):
            with self.subTest(**fields):
                _, answer = self.begin_stream(**fields)
                self.assertEqual((200, "text/event-stream"), (answer.status, answer.getheader("Content-Type")))
                events = []
                for block in answer.read().decode().split("\n\n")[:-1]:
                    name, data = block.split("\n")
                    events.append(json.loads(data.removeprefix("data: ")))
                    self.assertEqual(name, "event: " + events[-1]["type"])
                self.assertEqual(list(range(len(events))), [event["sequence_number"] for event in events])
                deltas = [event for event in events if event["type"] == "response.output_text.delta"]
                last = events[-1]["response"]
                ending = "response.completed" if last["status"] == "completed" else "response.incomplete"
                self.assertEqual(EVENTS + ["response.output_text.delta"] * len(deltas) + LAST_EVENTS + [ending],
                                 [event["type"] for event in events])
                self.assertEqual("in_progress", events[0]["response"]["status"])
                self.assertEqual("".join(event["delta"] for event in deltas), self.text(last))
                self.assertEqual({last["output"][0]["id"]}, {event["item_id"] for event in deltas} | {events[2]["item"]["id"]})
                self.assertEqual({last["id"]}, {event["response"]["id"] for event in events if "response" in event})
                if "store" in fields:
                    self.assert_unknown(self.request("GET", f"/v1/responses/{last['id']}"))
                    self.assertEqual(1, len(self.sessions()))
                else:
                    self.assertEqual(last["output"], self.ok("GET", f"/v1/responses/{last['id']}")["output"])

    def test_an_earlier_response_is_continued_beside_the_others(self):
        first = self.respond("Hello")
        second = self.respond("More", previous_response_id=first["id"])
        other = self.respond("Less", previous_response_id=first["id"])
        self.assertNotEqual(second["uma"]["session_id"], other["uma"]["session_id"])
        self.assertGreater(other["usage"]["input_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(["Hello", self.text(first), "Less"], self.texts(f"/v1/responses/{other['id']}/input_items"))
        self.assertEqual(["Hello", self.text(first), "More"], self.texts(f"/v1/responses/{second['id']}/input_items"))
        self.assertEqual(2, len(self.sessions()))
        # A response that is not stored leaves nothing and changes nothing.
        aside = self.respond("Psst", previous_response_id=second["id"], store=False)
        self.assertGreater(aside["usage"]["input_tokens_details"]["cached_tokens"], 0)
        self.assert_unknown(self.request("GET", f"/v1/responses/{aside['id']}"))
        self.assertEqual(2, len(self.sessions()))

    def test_a_conversation_is_made_shorter(self):
        first = self.respond("Tell me of the sea")
        second = self.respond("And of the wind", previous_response_id=first["id"])
        items = [{"role": "user", "content": "Tell me of the sea"}, *first["output"], {"role": "user", "content": "And of the wind"},
                 *second["output"]]
        made = [self.ok("POST", "/v1/responses/compact", body) for body in ({"input": items, "max_output_tokens": 30}, {"previous_response_id": second["id"], "max_output_tokens": 30})]
        for answer in made:
            self.assertEqual({"id", "object", "created_at", "output", "usage"}, set(answer))
            self.assertEqual("response.compaction", answer["object"])
            *users, summary = answer["output"]
            self.assertEqual(["user", "user"], [item["role"] for item in users])
            self.assertEqual({"id", "type", "encrypted_content"}, set(summary))
            self.assertEqual("compaction", summary["type"])
            self.assertGreater(answer["usage"]["output_tokens"], 0)
            counted = self.ok("POST", "/v1/responses/input_tokens", {"input": answer["output"]})["input_tokens"]
            self.assertGreater(counted, self.ok("POST", "/v1/responses/input_tokens", {"input": users})["input_tokens"])
            self.respond([*answer["output"], {"role": "user", "content": "Go on"}])
        self.assertEqual(made[0]["usage"]["input_tokens"], made[1]["usage"]["input_tokens"])
        for body, param in (({}, "input"), ({"input": 7}, "input"), ({"input": [7]}, "input[0]")):
            status, answer = self.request("POST", "/v1/responses/compact", body)
            self.assertEqual((400, param), (status, answer["error"]["param"]), answer)
        self.assert_unknown(self.request("POST", "/v1/responses/compact", {"previous_response_id": "resp_" + "0" * 48}))

    def test_many_at_once_continue_the_same_response(self):
        first = self.respond("Hello")
        answers = uma.parallel(*[lambda n=n: self.respond(f"More {n}", previous_response_id=first["id"]) for n in range(6)])
        self.assertEqual(6, len({answer["uma"]["session_id"] for answer in answers}))
        self.assertEqual(1, sum(answer["uma"]["session_id"] == first["uma"]["session_id"] for answer in answers))
        for n, answer in enumerate(answers):
            texts = self.texts(f"/v1/responses/{answer['id']}/input_items")
            self.assertEqual(["Hello", self.text(first), f"More {n}"], texts)

    def test_instructions_count_for_one_reply(self):
        first = self.respond("Hello", instructions="Be brief")
        same = self.respond("More", instructions="Be brief", previous_response_id=first["id"])
        self.assertGreaterEqual(same["usage"]["input_tokens_details"]["cached_tokens"], first["usage"]["input_tokens"])
        plain = self.respond("More", previous_response_id=same["id"])
        self.assertEqual((None, "Be brief"), (plain["instructions"], same["instructions"]))
        detail = self.ok("GET", f"/v1/sessions/{plain['uma']['session_id']}")
        self.assertEqual(["user", "assistant"] * 3, [message["role"] for message in detail["messages"]])
        self.assertEqual("Be brief", self.ok("GET", f"/v1/responses/{first['id']}")["instructions"])

    def test_a_deleted_response_is_gone(self):
        first = self.respond("Hello")
        second = self.respond("More", previous_response_id=first["id"])
        deleted = self.ok("DELETE", f"/v1/responses/{first['id']}")
        self.assertEqual({"id": first["id"], "object": "response", "deleted": True}, deleted)
        self.assert_unknown(self.request("GET", f"/v1/responses/{first['id']}"))
        self.assert_unknown(self.request("DELETE", f"/v1/responses/{first['id']}"))
        status, body = self.request("POST", "/v1/responses", {"input": "x", "previous_response_id": first["id"]})
        self.assertEqual("previous_response_id", self.assert_unknown((status, body))["param"])
        self.respond("And then?", previous_response_id=second["id"])
        for session in self.sessions():
            self.ok("DELETE", f"/v1/sessions/{session['session_id']}")
        self.assert_unknown(self.request("GET", f"/v1/responses/{second['id']}"))
        last = self.respond("Hello")
        self.ok("DELETE", f"/v1/responses/{last['id']}")
        self.assertEqual([], self.sessions())

    def test_a_client_that_leaves_keeps_what_it_saw(self):
        connection, answer = self.begin_stream(max_output_tokens=2000, uma={"ignore_eos": True})
        response = self.read_until_text(answer)
        connection.close()
        answer.close()

        def kept():
            status, body = self.request("GET", f"/v1/responses/{response['id']}")
            return body if status == 200 and body["status"] != "in_progress" else None
        self.assertEqual("cancelled", uma.until(kept, "the cancelled response is kept")["status"])

    def test_a_response_is_cancelled_from_another_connection(self):
        _, answer = self.begin_stream(max_output_tokens=2000, uma={"ignore_eos": True})
        response = self.read_until_text(answer)
        self.assertEqual("cancelled", self.ok("POST", f"/v1/responses/{response['id']}/cancel")["status"])
        self.assertIn(b"event: response.incomplete\n", answer.read())
        done = self.respond("Hello")
        self.assertEqual(done["status"], self.ok("POST", f"/v1/responses/{done['id']}/cancel")["status"])

    def test_a_killed_daemon_has_all_of_a_response_or_nothing(self):
        done = self.respond("Hello")
        connection, answer = self.begin_stream(max_output_tokens=2000, uma={"ignore_eos": True},
                                               previous_response_id=done["id"])
        answer.readline()
        begun = json.loads(answer.readline().removeprefix(b"data: "))["response"]
        new_connection, new_answer = self.begin_stream(max_output_tokens=2000, uma={"ignore_eos": True})
        new_answer.readline()
        self.daemon.process.kill()
        self.daemon.wait()
        connection.close()
        new_connection.close()
        self.start()
        self.assert_unknown(self.request("GET", f"/v1/responses/{begun['id']}"))
        sessions = self.sessions()
        self.assertEqual([(done["uma"]["session_id"], 1, 0)],
                         [(session["session_id"], session["turns"], session["pending_tokens"]) for session in sessions])
        again = self.respond("More", previous_response_id=done["id"])
        self.assertEqual(done["uma"]["session_id"], again["uma"]["session_id"])

    def test_a_full_context(self):
        body = {"input": "word " * 3000, "max_output_tokens": 8}
        status, answer = self.request("POST", "/v1/responses", body)
        self.assertEqual((400, "context_length_exceeded"), (status, answer["error"]["code"]))
        self.assertIn("a larger --n-ctx", answer["error"]["message"])
        self.assertEqual([], self.sessions())
        last = self.respond("word " * 300, truncation="auto")
        for _ in range(12):
            last = self.respond("word " * 300, truncation="auto", previous_response_id=last["id"])
        session = self.ok("GET", f"/v1/sessions/{last['uma']['session_id']}")
        self.assertGreater(session["dropped_turns"], 0)
        self.assertEqual(13, session["turns"])

    def test_logprobs_of_texts(self):
        fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
        whole = self.respond("Hello", **fields)
        tokens = whole["output"][0]["content"][0]["logprobs"]
        self.assertEqual(whole["output"][0]["content"][0]["text"], "".join(token["token"] for token in tokens))
        self.assertEqual([2] * len(tokens), [len(token["top_logprobs"]) for token in tokens])
        _, answer = self.begin_stream(max_output_tokens=8, **fields)
        events = [json.loads(line.removeprefix("data: ")) for line in answer.read().decode().split("\n") if line.startswith("data: ")]
        streamed = [token for event in events if event["type"] == "response.output_text.delta" for token in event["logprobs"]]
        self.assertEqual([token["token"] for token in tokens], [token["token"] for token in streamed])

    def test_long_requests_are_repeated_at_the_end_only(self):
        tools = [{"type": "function", "name": f"f{i}", "description": "x" * 10_000, "parameters": {"type": "object"}} for i in range(30)]
        _, answer = self.begin_stream(max_output_tokens=8, tools=tools, tool_choice="none")
        data = [line.removeprefix("data: ") for line in answer.read().decode().split("\n") if line.startswith("data: ")]
        self.assertEqual([], [line[:80] for line in data[:-1] if len(line) > 2000])
        self.assertEqual(30, len(json.loads(data[-1])["response"]["tools"]))

    def test_what_is_not_served_is_refused_by_name(self):
        for field, value in {"tools": [{"type": "telepathy"}], "n": 2, "top_logprobs": 2, "text": {"format": {"type": "xml"}}}.items():
            status, answer = self.request("POST", "/v1/responses", {"input": "x", field: value})
            self.assertEqual((400, "E_PROTO_003"), (status, answer["error"]["code"]), field)
            self.assertTrue(answer["error"]["param"].startswith(field))

    def test_ids_that_are_none(self):
        known = self.respond("Hello")["id"]
        ids = ["resp_", "resp_x", known + "0", known[:-1], known.upper(), "resp_" + UNKNOWN + "0" * 16, known[:-16] + "0" * 16,
               "resp_" + "%00" * 48, "..%2f..%2fetc", "%ff" * 5, "a" * 4000, known.replace("resp", "conv"), "'; DROP TABLE sessions"]
        for name in ids:
            path = name.replace(" ", "%20").replace("'", "%27")
            self.assertIn(self.request("GET", f"/v1/responses/{path}")[0], (404,), name)
            self.assertIn(self.request("DELETE", f"/v1/responses/{path}")[0], (404,), name)
            self.assertIn(self.request("GET", f"/v1/responses/{path}/input_items")[0], (404,), name)
            self.assertIn(self.request("GET", f"/v1/conversations/{path}")[0], (404,), name)
            self.assertIn(self.request("GET", f"/v1/sessions/{path}")[0], (400, 404), name)
            status, answer = self.request("POST", "/v1/responses", {"input": "x", "previous_response_id": name})
            self.assertIn((status, answer["error"]["param"]), ((404, "previous_response_id"), (400, "previous_response_id")), name)
        self.ok("GET", f"/v1/responses/{known}")
        self.assertEqual(405, self.request("PUT", f"/v1/responses/{known}")[0])
        self.assertEqual(404, self.request("GET", f"/v1/responses/{known}/output_items")[0])


WEATHER = {
    "type": "function", "name": "weather", "description": "Tells the weather.", "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
CLOCK = {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
NAMED = {"type": "function", "name": "weather"}


class Tools(ResponsesTest):
    """A forced call is a valid call, whatever the weights."""

    def call(self, **fields):
        return self.respond("Weather?", tools=[WEATHER, CLOCK], tool_choice=NAMED, parallel_tool_calls=False, max_output_tokens=200,
                            **fields)

    def check_call(self, item):
        self.assertEqual(("function_call", "completed", "weather"), (item["type"], item["status"], item["name"]))
        arguments = json.loads(item["arguments"])
        self.assertIn(arguments["city"], ("Paris", "Rome"))
        self.assertIn(arguments["days"], range(1, 10))

    def output_of(self, call):
        return [{"type": "function_call_output", "call_id": call["call_id"], "output": '{"sky":"clear"}'}]

    def test_two_turns_with_a_call_compute_only_what_is_new(self):
        first = self.call()
        self.assertEqual(("completed", "tool_calls"), (first["status"], first["uma"]["reason"]))
        (call,) = first["output"]
        self.check_call(call)
        self.assertEqual(({**WEATHER}, NAMED, False), (first["tools"][0], first["tool_choice"], first["parallel_tool_calls"]))
        kept = self.ok("GET", f"/v1/responses/{first['id']}")
        for name in first:
            if name in ("created_at", "completed_at"):  # told when the reply began, kept by the session's clock
                self.assertLessEqual(abs(first[name] - kept[name]), 1)
            else:
                self.assertEqual(first[name], kept[name], name)

        self.restart()
        after = {"tools": [WEATHER, CLOCK], "previous_response_id": first["id"]}
        second = self.respond(self.output_of(call), **after)
        receipt = second["uma"]["usage"]
        self.assertGreaterEqual(receipt["reused_tokens"], first["usage"]["input_tokens"] + first["usage"]["output_tokens"] - 2)
        self.assertLess(receipt["recomputed_tokens"], first["usage"]["input_tokens"] // 3, "the result, and what the template puts around it")
        items = self.items(f"/v1/responses/{second['id']}/input_items", order="asc")["data"]
        self.assertEqual(["message", "function_call", "function_call_output"], [item["type"] for item in items])
        self.assertEqual({**call, "uma": {"turn": 0}}, items[1])
        self.assertEqual((call["call_id"], '{"sky":"clear"}'), (items[2]["call_id"], items[2]["output"]))

        # With other tools, or none, the conversation begins differently.
        other = self.respond("Thanks", previous_response_id=second["id"])
        self.assertLess(other["uma"]["usage"]["reused_tokens"], 20)
        self.assertEqual(first["uma"]["session_id"], other["uma"]["session_id"])
        self.assertEqual(call, self.ok("GET", f"/v1/responses/{first['id']}")["output"][0])

    def test_a_stream_tells_the_call_as_it_comes(self):
        for fields in ({}, {"store": False}):
            _, answer = self.begin_stream(tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_output_tokens=200, **fields)
            events = [json.loads(block.split("\ndata: ")[1]) for block in answer.read().decode().split("\n\n")[:-1]]
            deltas = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
            self.assertEqual(["response.created", "response.in_progress", "response.output_item.added"] +
                             ["response.function_call_arguments.delta"] * len(deltas) +
                             ["response.function_call_arguments.done", "response.output_item.done", "response.completed"],
                             [event["type"] for event in events])
            (call,) = events[-1]["response"]["output"]
            self.check_call(call)
            self.assertEqual("".join(deltas), call["arguments"])
            self.assertEqual(call, events[-2]["item"])
            self.assertEqual({call["id"]}, {event["item_id"] for event in events if "item_id" in event})

    def test_who_keeps_the_past_sends_it_back(self):
        first = self.call(store=False)
        past = [{"role": "user", "content": "Weather?"}] + first["output"] + self.output_of(first["output"][0])
        second = self.respond(past, store=False, tools=[WEATHER, CLOCK])
        self.assertGreaterEqual(second["usage"]["input_tokens_details"]["cached_tokens"], first["usage"]["input_tokens"] - 1)
        self.assertEqual([], self.sessions())

    def test_a_conversation_shows_calls_and_results(self):
        made = self.ok("POST", "/v1/conversations", {})
        first = self.call(conversation=made["id"])
        added = self.ok("POST", f"/v1/conversations/{made['id']}/items", {"items": self.output_of(first["output"][0])})
        self.assertEqual("function_call_output", added["data"][0]["type"])
        self.respond("And?", conversation=made["id"], tools=[WEATHER, CLOCK])
        items = self.items(f"/v1/conversations/{made['id']}/items", order="asc")["data"]
        self.assertEqual(["message", "function_call", "function_call_output", "message", "message"], [item["type"] for item in items])
        self.assertEqual(({**first["output"][0], "uma": {"turn": 0}}, added["data"][0]), (items[1], items[2]))
        self.assertEqual(5, len({item["id"] for item in items}))
        rest = self.items(f"/v1/conversations/{made['id']}/items", order="asc", after=items[1]["id"])
        self.assertEqual(items[2:], rest["data"])

    def test_the_last_items_of_a_conversation_can_be_taken_out(self):
        made = self.ok("POST", "/v1/conversations", {})
        path = f"/v1/conversations/{made['id']}/items"
        first = self.respond("Hello", conversation=made["id"])
        call = self.call(conversation=made["id"])
        items = self.items(path, order="asc")["data"]
        self.assertEqual(items[3], self.ok("GET", f"{path}/{items[3]['id']}"))
        for name in (items[0]["id"], items[2]["id"]):
            status, answer = self.request("DELETE", f"{path}/{name}")
            self.assertEqual((400, "E_PROTO_003"), (status, answer["error"]["code"]))
        self.assert_unknown(self.request("DELETE", f"{path}/msg_{UNKNOWN}_0_0"))
        self.assert_unknown(self.request("GET", f"{path}/msg_{UNKNOWN}_0_0"))
        self.assertEqual(items, self.items(path, order="asc")["data"])
        for left in (3, 2):
            self.assertEqual(made["id"], self.ok("DELETE", f"{path}/{items[left]['id']}")["id"])
            self.assertEqual(items[:left], self.items(path, order="asc")["data"])
        self.assert_unknown(self.request("GET", f"/v1/responses/{call['id']}"))
        self.restart()
        self.assertEqual(items[:2], self.items(path, order="asc")["data"])
        self.assertEqual(first["output"], self.ok("GET", f"/v1/responses/{first['id']}")["output"])
        self.respond("More", conversation=made["id"])

    def test_a_format_is_followed(self):
        schema = {"type": "object", "properties": {"a": {"enum": ["x y"]}}, "required": ["a"], "additionalProperties": False}
        answer = self.respond("Say", text={"format": {"type": "json_schema", "name": "n", "strict": True, "schema": schema}}, max_output_tokens=200)
        self.assertEqual({"a": "x y"}, json.loads(self.text(answer)))
        self.assertEqual("n", answer["text"]["format"]["name"])
        bad = {"format": {"type": "json_schema", "name": "n", "schema": {"type": 3}}}
        status, refused = self.request("POST", "/v1/responses", {"input": "x", "text": bad, "previous_response_id": answer["id"]})
        self.assertEqual((400, "E_PROTO_003"), (status, refused["error"]["code"]))
        self.assertIn("#/type", refused["error"]["message"])
        self.respond("More", previous_response_id=answer["id"])


class Reasoning(ResponsesTest):
    """A template that opens reasoning before every reply; with random weights the model never ends it."""

    CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
              "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}").encode()
    THINKS = ("{%for m in messages%}<|im_start|>{{m.role}}\n{{m.content}}<|im_end|>\n{%endfor%}"
              "{%if add_generation_prompt%}<|im_start|>assistant\n<think>{{'</think>' if enable_thinking==false}}{%endif%}").encode()

    def setUp(self):
        model = uma.TINY_CHAT.read_bytes()
        self.assertEqual(1, model.count(self.CHATML))
        comment = b"{#" + b" " * (len(self.CHATML) - len(self.THINKS) - 4) + b"#}"
        self.assertEqual(len(self.CHATML), len(comment + self.THINKS), "the file's layout stays")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "thinks.gguf"
        path.write_bytes(model.replace(self.CHATML, comment + self.THINKS))
        self.daemon = uma.Daemon(path, *self.flags)
        self.addCleanup(self.daemon.kill)
        self.start()

    def test_thoughts_are_items_and_can_be_switched_off(self):
        fields = {"include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}}
        first = self.respond("Why?", **fields)
        (thought,) = first["output"]
        self.assertEqual(("reasoning", "incomplete", []), (thought["type"], thought["status"], thought["summary"]))
        self.assertTrue(thought["content"][0]["text"])
        self.assertGreater(first["usage"]["output_tokens_details"]["reasoning_tokens"], 0)
        self.assertTrue(thought["encrypted_content"])
        kept = self.ok("GET", f"/v1/responses/{first['id']}")
        without = {name: value for name, value in thought.items() if name != "encrypted_content"}
        self.assertEqual(([without], first["usage"]), (kept["output"], kept["usage"]))
        second = self.respond("So?", previous_response_id=first["id"], reasoning={"effort": "none"})
        self.assertEqual((["message"], 0), ([item["type"] for item in second["output"]],
                                            second["usage"]["output_tokens_details"]["reasoning_tokens"]))
        self.assertEqual({"effort": "none", "summary": None}, second["reasoning"])
        self.respond([{"role": "user", "content": "Why?"}, thought, {"role": "user", "content": "So?"}], store=False)

    def test_thoughts_stream(self):
        _, answer = self.begin_stream(max_output_tokens=12)
        events = [json.loads(block.split("\ndata: ")[1]) for block in answer.read().decode().split("\n\n")[:-1]]
        deltas = [event["delta"] for event in events if event["type"] == "response.reasoning_text.delta"]
        self.assertEqual(EVENTS + ["response.reasoning_text.delta"] * len(deltas) +
                         ["response.reasoning_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"],
                         [event["type"] for event in events])
        self.assertEqual("".join(deltas), events[-1]["response"]["output"][0]["content"][0]["text"])


class Conversations(ResponsesTest):
    def test_a_conversation_has_what_was_said(self):
        items = [{"type": "message", "role": "user", "content": "My name is Ada"},
                 {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello Ada"}]}]
        made = self.ok("POST", "/v1/conversations", {"items": items, "metadata": {"k": "v"}})
        path = f"/v1/conversations/{made['id']}"
        self.assertEqual(("conversation", {"k": "v"}), (made["object"], made["metadata"]))
        first = self.respond("Who am I?", conversation=made["id"])
        self.assertEqual({"id": made["id"]}, first["conversation"])
        added = self.ok("POST", f"{path}/items", {"items": [{"role": "user", "content": "Wait"}]})
        self.restart()
        second = self.respond("Go on", conversation={"id": made["id"]})
        self.assertEqual(["My name is Ada", "Hello Ada", "Who am I?", self.text(first), "Wait", "Go on", self.text(second)],
                         self.texts(f"{path}/items"))
        listed = self.items(f"{path}/items", order="asc")["data"]
        self.assertEqual([added["data"][0]["id"], second["output"][0]["id"]], [listed[4]["id"], listed[6]["id"]])
        self.assertEqual(7, len({item["id"] for item in listed}))
        third = self.respond("And on", conversation=made["id"])
        self.assertGreaterEqual(third["usage"]["input_tokens_details"]["cached_tokens"], second["usage"]["input_tokens"])

        self.assertEqual({"a": "b"}, self.ok("POST", path, {"metadata": {"a": "b"}})["metadata"])
        self.assertEqual(self.ok("GET", path)["metadata"], {"a": "b"})
        self.ok("DELETE", f"/v1/responses/{first['id']}")
        self.assertEqual(9, len(self.texts(f"{path}/items")), "what was said stays")
        self.assertEqual({"id": made["id"], "object": "conversation.deleted", "deleted": True}, self.ok("DELETE", path))
        self.assert_unknown(self.request("GET", path))
        self.assert_unknown(self.request("GET", f"/v1/responses/{second['id']}"))
        status, body = self.request("POST", "/v1/responses", {"input": "x", "conversation": made["id"]})
        self.assertEqual("conversation", self.assert_unknown((status, body))["param"])

    def test_responses_of_a_conversation_follow_one_another(self):
        made = self.ok("POST", "/v1/conversations")["id"]
        answers = uma.parallel(*[lambda n=n: self.respond(f"Turn {n}", conversation=made) for n in range(6)])
        self.assertEqual(list(range(6)), sorted(answer["uma"]["turn"] for answer in answers))
        texts = self.texts(f"/v1/conversations/{made}/items")
        expected = []
        for answer in sorted(answers, key=lambda answer: answer["uma"]["turn"]):
            expected += [f"Turn {answers.index(answer)}", self.text(answer)]
        self.assertEqual(expected, texts)


class Sessions(ResponsesTest):
    def test_the_operations_of_the_socket(self):
        made = self.ok("POST", "/v1/sessions", {"name": "tale", "system": "Be brief"})
        self.assertEqual("chat", made["mode"])
        conversation = "conv_" + made["session_id"]
        for n in range(3):
            self.respond(f"Turn {n}", conversation=conversation)
        detail = self.ok("GET", "/v1/sessions/tale")
        self.assertEqual((made["session_id"], 3), (detail["session_id"], detail["turns"]))
        self.assertEqual("Be brief", detail["messages"][0]["content"])
        fork = self.ok("POST", "/v1/sessions/tale/fork", {"name": "another ending"})
        self.assertEqual(1, self.ok("POST", f"/v1/sessions/{fork['session_id']}/rewind", {"turn": 0})["turns"])
        self.assertEqual(1, self.ok("GET", "/v1/sessions/another%20ending")["turns"])
        self.assertEqual("tale", self.ok("POST", "/v1/sessions/tale/touch")["name"])
        self.assertEqual({"tale", "another ending"}, {session["name"] for session in self.sessions()})
        with self.daemon.client() as client:
            self.assertEqual(3, client.session("tale")["turns"], "the same sessions as on the socket")
        self.ok("DELETE", "/v1/sessions/tale")
        self.assert_unknown(self.request("GET", "/v1/sessions/tale"))

    def test_a_session_travels_as_a_file(self):
        made = self.ok("POST", "/v1/sessions", {"name": "tale", "mode": "chat"})
        response = self.respond("Hello", conversation="conv_" + made["session_id"])
        file = self.ok("GET", "/v1/sessions/tale/export")
        self.assertTrue(file.startswith(b"umasessn"))
        copy = self.ok("POST", "/v1/sessions/import?name=a%20copy", file)
        self.assertEqual(("a copy", True), (copy["name"], copy["tokens_kept"]))
        self.assertEqual(self.ok("GET", "/v1/sessions/tale")["messages"], self.ok("GET", "/v1/sessions/a%20copy")["messages"])
        self.assert_unknown(self.request("GET", "/v1/responses/resp_" + copy["session_id"] + response["id"][-16:]))
        for bad in (b"", file[:-1], b"x" * len(file), file[:-20] + bytes(20)):
            status, answer = self.request("POST", "/v1/sessions/import", bad)
            self.assertEqual((400, "E_PROTO_003"), (status, answer["error"]["code"]))
        for path in ("/v1/sessions/import", "/v1/sessions"):
            self.assertEqual(413, self.request("POST", path, b"x" * (17 << 20))[0])
        self.assertEqual(2, len(self.sessions()))

    def test_an_imported_file_has_its_name_and_metadata(self):
        made = self.ok("POST", "/v1/sessions", {"name": "tale", "metadata": {"title": "A \u201ctale\u201d\n", "tags": "x"}})
        self.respond("Hello", conversation="conv_" + made["session_id"])
        file = self.ok("GET", "/v1/sessions/tale/export")
        status, answer = self.request("POST", "/v1/sessions/import", file)
        self.assertEqual((409, "E_PROTO_003"), (status, answer["error"]["code"]), "the name in the file is taken")
        self.ok("DELETE", "/v1/sessions/tale")
        copy = self.ok("POST", "/v1/sessions/import", file)
        self.assertEqual(("tale", made["metadata"], ""), (copy["name"], copy["metadata"], copy["parent_id"]))
        self.assertEqual("other", self.ok("POST", "/v1/sessions/import?name=other", file)["name"])

    def test_names_and_metadata_are_changed_and_survive_a_kill(self):
        session = self.ok("POST", "/v1/sessions", {"metadata": {"title": "One", "tags": "a,b"}})["session_id"]
        self.ok("POST", "/v1/sessions", {"name": "taken"})
        changed = self.ok("PATCH", f"/v1/sessions/{session}", {"name": "tale", "metadata": {"title": "Two", "tags": None, "note": ""}})
        self.assertEqual(("tale", {"title": "Two", "note": ""}), (changed["name"], changed["metadata"]))
        status, answer = self.request("PATCH", "/v1/sessions/tale", {"name": "taken", "metadata": {"title": "Three"}})
        self.assertEqual((409, "E_PROTO_003"), (status, answer["error"]["code"]))
        self.assertEqual(409, self.request("POST", "/v1/sessions", {"name": "taken"})[0])
        self.assertEqual(409, self.request("POST", "/v1/sessions/tale/fork", {"name": "taken"})[0])
        status, answer = self.request("PATCH", "/v1/sessions/tale", {"metadata": {f"k{n}": "" for n in range(16)}})
        self.assertEqual((400, "E_PROTO_003"), (status, answer["error"]["code"]))
        self.assert_unknown(self.request("PATCH", "/v1/sessions/nobody", {"name": "x"}))
        self.daemon.process.kill()
        self.daemon.process.wait()
        self.start()
        self.assertEqual(changed["metadata"], self.ok("GET", "/v1/sessions/tale")["metadata"])
        self.assertEqual("", self.ok("PATCH", "/v1/sessions/tale", {"name": ""})["name"])
        self.assert_unknown(self.request("GET", "/v1/sessions/tale"))
        replaced = self.ok("POST", f"/v1/conversations/conv_{session}", {"metadata": {"title": "Four"}})
        self.assertEqual({"title": "Four"}, replaced["metadata"])
        self.assertEqual(replaced["metadata"], self.ok("GET", f"/v1/sessions/{session}")["metadata"], "the same metadata")

    def test_a_session_is_renamed_while_it_replies(self):
        session = self.ok("POST", "/v1/sessions", {})["session_id"]
        self.respond("Hello", conversation="conv_" + session)
        connection, answer = self.begin_stream(conversation="conv_" + session, max_output_tokens=400, uma={"ignore_eos": True})
        self.read_until_text(answer)
        changed = self.ok("PATCH", f"/v1/sessions/{session}", {"name": "busy", "metadata": {"title": "Talk"}})
        self.assertEqual(("busy", True), (changed["name"], changed["busy"]))
        connection.close()
        uma.until(lambda: not self.ok("GET", "/v1/sessions/busy")["busy"], "the reply ends")
        kept = self.ok("GET", "/v1/sessions/busy")
        self.assertEqual((2, {"title": "Talk"}), (kept["turns"], kept["metadata"]))

    def test_a_fork_ends_behind_a_turn_and_remembers_its_parent(self):
        session = self.ok("POST", "/v1/sessions", {"system": "Be brief", "metadata": {"title": "Old", "tags": "t"}})["session_id"]
        for n in range(3):
            self.respond(f"Turn {n}", conversation="conv_" + session)
        fork = self.ok("POST", f"/v1/sessions/{session}/fork", {"turn": 1, "name": "fork", "metadata": {"title": "New"}})
        self.assertEqual((session, 2, 2, {"title": "New", "tags": "t"}),
                         (fork["parent_id"], fork["fork_turn"], fork["turns"], fork["metadata"]))
        self.assertEqual(self.ok("GET", f"/v1/sessions/{session}")["messages"][:5], self.ok("GET", "/v1/sessions/fork")["messages"])
        begun = self.ok("POST", f"/v1/sessions/{session}/fork", {"turn": -1})["session_id"]
        self.assertEqual(0, self.ok("GET", f"/v1/sessions/{begun}")["fork_turn"])
        said = self.respond("Turn 0", conversation="conv_" + begun)
        self.assertEqual(self.texts(f"/v1/conversations/conv_{session}/items")[:3], self.texts(f"/v1/conversations/conv_{begun}/items"))
        self.assertGreater(said["usage"]["input_tokens_details"]["cached_tokens"], 0)
        items = self.items(f"/v1/conversations/conv_{session}/items", order="asc")["data"]
        self.assertEqual([0, 0, 0, 1, 1, 2, 2], [item["uma"]["turn"] for item in items])
        status, answer = self.request("POST", f"/v1/sessions/{session}/fork", {"turn": 3})
        self.assertEqual(400, status)
        self.assertIn("has turns 0 to 2", answer["error"]["message"])
        self.ok("DELETE", f"/v1/sessions/{session}")
        self.restart()
        self.assertEqual((session, 2), tuple(self.ok("GET", "/v1/sessions/fork")[name] for name in ("parent_id", "fork_turn")))

    def test_lists_are_ordered_and_searched(self):
        made = [self.ok("POST", "/v1/sessions", {"name": f"s{n}", "metadata": {"title": f"Number {n} \u00c4"}})["session_id"]
                for n in range(3)]
        uma.until(lambda: self.ok("POST", "/v1/sessions/s0/touch")["last_used_s"]
                  > max(session["last_used_s"] for session in self.sessions() if session["name"] != "s0"), "a later second")
        first = self.ok("GET", "/v1/sessions?order=desc&limit=1")
        self.assertEqual((["s0"], True), ([session["name"] for session in first["data"]], first["has_more"]))
        rest = self.ok("GET", f"/v1/sessions?order=desc&after={first['next']}")
        self.assertEqual(({"s1", "s2"}, False), ({session["name"] for session in rest["data"]}, rest["has_more"]))
        self.assertNotIn("next", rest)
        found = self.ok("GET", "/v1/sessions?q=number%20%C3%A4%201")["data"]
        self.assertEqual([(made[1], {"title": "Number 1 \u00c4"})], [(session["session_id"], session["metadata"]) for session in found])
        self.assertEqual([], self.ok("GET", "/v1/sessions?q=nothing")["data"])
        for query in ("order=new", "q=" + "x" * 257):
            self.assertEqual(400, self.request("GET", "/v1/sessions?" + query)[0], query)

    def test_bad_requests_name_their_field(self):
        made = self.ok("POST", "/v1/sessions", {"name": "tale"})
        for path, body, field in (("/v1/sessions", {"mode": "king"}, "mode"), ("/v1/sessions/tale/fork", {"turn": -2}, "turn"),
                                  ("/v1/sessions/tale/rewind", {}, "turn"), ("/v1/sessions/tale/rewind", {"turn": -1}, "turn"),
                                  ("/v1/sessions/tale/fork", {"name": ""}, "name"), ("/v1/sessions", [], None),
                                  ("/v1/sessions/tale", {}, "name"), ("/v1/sessions/tale", {"name": "n" * 129}, "name"),
                                  ("/v1/sessions/tale", {"metadata": {"a": 1}}, "metadata")):
            status, answer = self.request("PATCH" if path == "/v1/sessions/tale" else "POST", path, body)
            self.assertEqual((400, field), (status, answer["error"]["param"]), path)
        self.assertEqual([made["session_id"]], [session["session_id"] for session in self.sessions()])
        self.assert_unknown(self.request("POST", "/v1/sessions/nobody/touch"))


if __name__ == "__main__":
    unittest.main()


class Background(ResponsesTest):
    flags = ("--http", "127.0.0.1:0", "--kv-cells", "4096", "--slots", "1")

    def begin(self, **fields):
        answer = self.ok("POST", "/v1/responses", {"input": "Hello", "background": True, "uma": {"ignore_eos": True}, **fields})
        self.assertEqual("in_progress", answer["status"])
        return f"/v1/responses/{answer['id']}"

    def occupy(self):
        """Begins a stream that has the only slot until its connection is closed."""
        connection, answer = self.begin_stream(store=False, uma={"ignore_eos": True})
        self.read_until_text(answer)
        return connection

    def test_it_can_be_cancelled_before_its_first_text(self):
        running = self.occupy()
        path = self.begin(max_output_tokens=8)
        self.assertEqual("in_progress", self.ok("GET", path)["status"])
        for method, at in (("POST", path + "/cancel"), ("GET", path), ("POST", path + "/cancel")):
            answer = self.ok(method, at)
            self.assertEqual(("cancelled", 0), (answer["status"], answer["usage"]["output_tokens"]), at)
        self.assertTrue(self.ok("DELETE", path)["deleted"])
        for method, at in (("GET", path), ("DELETE", path), ("POST", path + "/cancel")):
            self.assert_unknown(self.request(method, at))
        running.close()

    def test_it_can_be_deleted_before_its_first_text(self):
        running = self.occupy()
        path = self.begin(max_output_tokens=8)
        self.assertTrue(self.ok("DELETE", path)["deleted"])
        self.assert_unknown(self.request("GET", path))
        running.close()

    def test_it_can_be_deleted_while_it_is_made(self):
        path = self.begin()
        with self.daemon.client() as client:
            uma.until(lambda: client.metrics()["tokens_total"] > 0, "a token")
        self.assertTrue(self.ok("DELETE", path)["deleted"])
        self.assert_unknown(self.request("GET", path))

    def test_the_daemon_ends_behind_it(self):
        path = self.begin(max_output_tokens=400)
        self.restart()
        answer = self.ok("GET", path)
        self.assertEqual(("incomplete", 400), (answer["status"], answer["usage"]["output_tokens"]))
