"""Tools and thoughts over both doors. What a model with random weights says is no call: how replies are read is tested in
src/capability/reply_parser_test.cpp and src/engine/tool_calls_test.cpp."""

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
                ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
                ("tool_choice.function.name", {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}),
                ("tool_choice", {"tool_choice": "required"}),
                ("chat_template_kwargs.tools", {"chat_template_kwargs": {"tools": []}})):
            with self.subTest(param=param):
                status, answer = self.chat_with(HISTORY, **fields)
                self.assertEqual((400, param), (status, answer["error"]["param"]), answer)

    def test_a_session_keeps_calls_and_results(self):
        client = self.client
        session = client.create_session(mode="chat")
        reply = client.generate(messages=HISTORY, session_id=session, tools=[WEATHER], max_tokens=4)
        self.assertEqual("eos", reply.last["event"], reply.last)
        kept = client.session(session)["messages"]
        self.assertEqual([{**HISTORY[1], "content": ""}, HISTORY[2]], kept[1:3])
        again = client.generate(messages=[{"role": "user", "content": "And now?"}], session_id=session, tools=[WEATHER], max_tokens=4)
        self.assertGreater(again.usage["reused_tokens"], reply.usage["prompt_tokens"] - 2)
        # Without tools the conversation begins differently.
        other = client.generate(messages=[{"role": "user", "content": "And now?"}], session_id=session, max_tokens=4)
        self.assertEqual("eos", other.last["event"], other.last)
        self.assertLess(other.usage["reused_tokens"], 20)
        self.assertEqual(3, client.session(session)["turns"])
        self.assertEqual("E_PROTO_003", client.call(type="generate_stream", session_id=session, tools=[WEATHER])["code"])
        self.assertEqual("E_MODEL_003", client.call(type="export_session", session_id=session)["code"])

    def test_tools_belong_to_messages(self):
        self.assertEqual("E_PROTO_003", self.client.call(type="generate", prompt="one", tools=[WEATHER])["code"])


class Restart(unittest.TestCase):
    def test_calls_and_results_outlive_the_daemon(self):
        daemon = uma.Daemon(uma.TINY_CHAT, "--n-ctx", "8192", "--slots", "4")
        self.addCleanup(daemon.kill)
        daemon.start().wait_ready()
        with daemon.client() as client:
            session = client.create_session(mode="chat")
            client.generate(messages=HISTORY, session_id=session, tools=[WEATHER], max_tokens=4)
            before = client.session(session)["messages"]
        daemon.kill()
        daemon.start().wait_ready()
        with daemon.client() as client:
            self.assertEqual(before, client.session(session)["messages"])
            reply = client.generate(messages=HISTORY[:1], session_id=session, tools=[WEATHER], max_tokens=4)
            self.assertEqual("eos", reply.last["event"], reply.last)
            self.assertEqual(2, client.session(session)["turns"])


if __name__ == "__main__":
    unittest.main()
