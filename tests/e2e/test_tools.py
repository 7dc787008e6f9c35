"""Tools and reasoning over both listeners. A model with random weights generates no calls: src/chat/reply/reply_parser_test.cpp and
src/engine/router/tool_calls_test.cpp test how replies are parsed."""

import json
import pathlib
import struct
import tempfile
import unittest

import test_http
import uma

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 10}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}
CALL = {"id": "abcdef123", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln", "days": 1}'}}
HISTORY = [
    {"role": "user", "content": "Weather in Köln?"},
    {"role": "assistant", "content": None, "reasoning_content": "I ask.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "abcdef123", "content": '{"rain": 0.5}'},
]


class Tools(test_http.HttpTest):
    model = uma.TINY_CHAT

    def chat_with(self, messages, **fields):
        body = {"messages": messages, "max_tokens": 4, "temperature": 0, **fields}
        return self.request("POST", "/v1/chat/completions", body)

    def prompt_tokens(self, messages, **fields):
        status, answer = self.chat_with(messages, **fields)
        self.assertEqual(200, status, answer)
        self.assertEqual(0, answer["usage"]["completion_tokens_details"]["reasoning_tokens"])
        return answer["usage"]["prompt_tokens"]

    def test_the_model_hears_of_tools_calls_and_results(self):
        question = self.prompt_tokens(HISTORY[:1])
        with_tools = self.prompt_tokens(HISTORY[:1], tools=[WEATHER])
        self.assertGreater(with_tools, question)
        self.assertGreater(self.prompt_tokens(HISTORY[:1], tools=[WEATHER, CLOCK]), with_tools)
        self.assertGreater(self.prompt_tokens(HISTORY, tools=[WEATHER]), with_tools)
        self.assertEqual(question, self.prompt_tokens(HISTORY[:1], tools=[WEATHER], tool_choice="none"))
        self.assertGreater(self.prompt_tokens(HISTORY), question)

    def test_a_conversation_with_tools_is_found_again(self):
        _, answer = self.chat_with(HISTORY[:1], tools=[WEATHER])
        _, answer = self.chat_with(HISTORY, tools=[WEATHER])
        self.assertGreater(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 50)

    def test_a_reply_without_calls_is_content(self):
        _, plain = self.chat_with(HISTORY[:1])
        self.assertNotIn("tool_calls", plain["choices"][0]["message"])
        status, answer = self.chat_with(HISTORY, tools=[WEATHER], max_tokens=12)
        self.assertEqual(200, status, answer)
        self.assertIn(answer["choices"][0]["finish_reason"], ("stop", "length"))
        self.assertIsInstance(answer["choices"][0]["message"]["content"], str)

    def test_what_is_wrong_is_named(self):
        for param, fields in (
                ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": "a<b"}}]}),
                ("tool_choice.function.name", {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}),
                ("chat_template_kwargs.tools", {"chat_template_kwargs": {"tools": []}})):
            with self.subTest(param=param):
                status, answer = self.chat_with(HISTORY, **fields)
                self.assertEqual((400, param), (status, answer["error"]["param"]), answer)

    def test_a_session_keeps_calls_and_results(self):
        client = self.client
        session = client.create_session(mode="chat")
        # No other test asks this question, so its beginning is not cached.
        history = [{"role": "user", "content": "Does it rain where sessions are kept?"}, *HISTORY[1:]]
        reply = client.generate(messages=history, session_id=session, tools=[WEATHER], max_tokens=4)
        self.assertEqual("eos", reply.last["event"], reply.last)
        kept = client.session(session)["messages"]
        self.assertEqual([{**HISTORY[1], "content": ""}, HISTORY[2]], kept[1:3])
        again = client.generate(messages=[{"role": "user", "content": "And now?"}], session_id=session, tools=[WEATHER], max_tokens=4)
        self.assertGreater(again.usage["reused_tokens"], reply.usage["prompt_tokens"] - 2)
        # Without tools, the conversation begins differently.
        other = client.generate(messages=[{"role": "user", "content": "And now?"}], session_id=session, max_tokens=4)
        self.assertEqual("eos", other.last["event"], other.last)
        self.assertLess(other.usage["reused_tokens"], 20)
        self.assertEqual(3, client.session(session)["turns"])
        self.assertEqual("E_PROTO_003", client.call(type="generate_stream", session_id=session, tools=[WEATHER])["code"])

    def test_tools_belong_to_messages(self):
        self.assertEqual("E_PROTO_003", self.client.call(type="generate", prompt="one", tools=[WEATHER])["code"])


class Forced(test_http.HttpTest):
    """A forced call follows its schema, whatever the weights."""
    model = uma.TINY_CHAT

    def ask(self, **fields):
        return {"messages": HISTORY[:1], "max_tokens": 400, "tools": [WEATHER, CLOCK], **fields}

    def check_arguments(self, text):
        arguments = json.loads(text)
        self.assertEqual({"city", "days"}, set(arguments))
        self.assertLessEqual(len(arguments["city"]), 10)
        self.assertIn(arguments["days"], range(1, 10))

    def test_a_named_tool_is_called(self):
        for seed in range(4):
            status, answer = self.request("POST", "/v1/chat/completions", self.ask(
                seed=seed, tool_choice={"type": "function", "function": {"name": "weather"}}))
            self.assertEqual(200, status, answer)
            choice = answer["choices"][0]
            self.assertEqual("tool_calls", choice["finish_reason"], choice)
            self.assertIsNone(choice["message"]["content"])
            (call,) = choice["message"]["tool_calls"]
            self.assertEqual(("function", "weather"), (call["type"], call["function"]["name"]))
            self.check_arguments(call["function"]["arguments"])

    def test_some_tool_is_called_as_a_stream(self):
        for seed in range(4):
            _, answer = self.start_stream(**self.ask(seed=seed, temperature=1, tool_choice="required", parallel_tool_calls=False))
            events = self.events(answer)
            calls = {}
            for event in events:
                for delta in event["choices"][0]["delta"].get("tool_calls", []):
                    call = calls.setdefault(delta["index"], {"name": "", "arguments": ""})
                    for field, text in delta["function"].items():
                        call[field] += text
            self.assertEqual([0], list(calls))
            self.assertEqual("tool_calls", events[-1]["choices"][0]["finish_reason"])
            if calls[0]["name"] == "weather":
                self.check_arguments(calls[0]["arguments"])
            else:
                self.assertEqual(("clock", {}), (calls[0]["name"], json.loads(calls[0]["arguments"])))

    def test_on_the_socket(self):
        reply = self.client.generate(messages=HISTORY[:1], tools=[WEATHER], tool_choice="required", parallel_tool_calls=False,
                                     max_tokens=400, stream=False)
        self.assertEqual("tool_calls", reply.last["reason"], reply.last)
        self.check_arguments(reply.last["tool_calls"][0]["function"]["arguments"])

    def test_an_invalid_schema_is_refused(self):
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": 1}}}
        status, answer = self.request("POST", "/v1/chat/completions", self.ask(tools=[tool], tool_choice="required"))
        self.assertEqual((400, "E_PROTO_003"), (status, answer["error"]["code"]), answer)
        self.assertEqual("tools[0].function.parameters", answer["error"]["param"])
        self.assertEqual(200, self.request("POST", "/v1/chat/completions", self.ask(tools=[tool], max_tokens=2))[0])


def with_token(model, text, folder):
    """Returns a copy of the model in which `text` is one token, in place of a word with as many bytes, and its id."""
    data = bytearray(model.read_bytes())
    key = b"tokenizer.ggml.tokens"
    at = data.index(key) + len(key)
    kind, of, count = struct.unpack_from("<IIQ", data, at)
    assert (kind, of) == (9, 8), "an array of strings"
    at += 16
    for token in range(count):
        (length,) = struct.unpack_from("<Q", data, at)
        at += 8
        if length == len(text) and data[at:at + 3] == "\u2581".encode():
            data[at:at + length] = text.encode()
            path = pathlib.Path(folder) / model.name
            path.write_bytes(data)
            return path, token
        at += length
    raise AssertionError(f"no word of {len(text)} bytes")


class OfTheirOwnAccord(test_http.HttpTest):
    """Optional calls: a bias makes the model always begin one; the rest follows from its random weights."""

    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.model, cls.mark = with_token(uma.TINY_CHAT, "<tool_call>", folder)
        super().setUpClass()

    def ask(self, **fields):
        return {"messages": HISTORY[:1], "max_tokens": 400, "temperature": 1, "tools": [WEATHER, CLOCK], "logit_bias": {str(self.mark): 100},
                **fields}

    def check(self, call):
        arguments = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "clock":
            return self.assertEqual({}, arguments)
        self.assertEqual("weather", call["function"]["name"])
        self.assertEqual({"city", "days"}, set(arguments))
        self.assertLessEqual(len(arguments["city"]), 10)
        self.assertIn(arguments["days"], range(1, 10))

    def test_their_arguments_follow_the_schemas(self):
        for seed in range(4):
            status, answer = self.request("POST", "/v1/chat/completions", self.ask(seed=seed, parallel_tool_calls=False))
            self.assertEqual(200, status, answer)
            (choice,) = answer["choices"]
            self.assertEqual("tool_calls", choice["finish_reason"], choice)
            (call,) = choice["message"]["tool_calls"]
            self.check(call)

    def test_one_after_the_other(self):
        _, answer = self.request("POST", "/v1/chat/completions", self.ask(seed=1, max_tokens=1500))
        choice = answer["choices"][0]
        calls = choice["message"]["tool_calls"]
        self.assertGreater(len(calls), 1)
        for call in calls[:-1] if choice["finish_reason"] == "length" else calls:
            self.check(call)

    def test_of_several_choices(self):
        _, answer = self.request("POST", "/v1/chat/completions", self.ask(seed=2, n=3, parallel_tool_calls=False))
        for choice in answer["choices"]:
            self.check(choice["message"]["tool_calls"][0])

    def test_on_the_socket(self):
        reply = self.client.generate(messages=HISTORY[:1], tools=[WEATHER], parallel_tool_calls=False, max_tokens=400, stream=False,
                                     logit_bias={str(self.mark): 100}, temperature=1, seed=3)
        self.assertEqual("tool_calls", reply.last["reason"], reply.last)
        self.check(reply.last["tool_calls"][0])

    def test_an_invalid_schema_is_refused_of_a_strict_tool(self):
        tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object", "required": 1}}}
        status, answer = self.request("POST", "/v1/chat/completions", self.ask(tools=[tool]))
        self.assertEqual((400, "tools[0].function.parameters"), (status, answer["error"]["param"]), answer)


class Restart(unittest.TestCase):
    def test_calls_and_results_outlive_the_daemon(self):
        daemon = uma.Daemon(uma.TINY_CHAT, "--kv-cells", "8192", "--slots", "4")
        self.addCleanup(daemon.kill)
        daemon.start().wait_ready()
        with daemon.client() as client:
            session = client.create_session(mode="chat")
            client.generate(messages=HISTORY, session_id=session, tools=[WEATHER], max_tokens=4)
            before = client.session(session)["messages"]
        daemon.signal(uma.signal.SIGKILL)
        daemon.wait()
        daemon.start().wait_ready()
        with daemon.client() as client:
            self.assertEqual(before, client.session(session)["messages"])
            reply = client.generate(messages=HISTORY[:1], session_id=session, tools=[WEATHER], max_tokens=4)
            self.assertEqual("eos", reply.last["event"], reply.last)
            self.assertEqual(2, client.session(session)["turns"])


if __name__ == "__main__":
    unittest.main()
