"""Anthropic's Messages API as its clients use it, by Python's http.client."""

import json
import unittest

import test_http
import uma

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 10}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
          "required": ["city", "days"], "additionalProperties": False}
WEATHER = {"name": "weather", "description": "Tells the weather.", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}
CLOCK = {"name": "clock", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}}
WEB_SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
LONG_REPLY = {"format": {"type": "json_schema", "schema": {"type": "string", "minLength": 300}}}
BILLING = "x-anthropic-billing-header: cc_version=2.1.197.495; cc_entrypoint=sdk-cli; cch=%s;"


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


class Anthropic(test_http.HttpTest):
    model = uma.TINY_CHAT

    def checked(self, value):
        return value if value.get("type") in ("message", "error") else super().checked(value)

    def ask(self, messages="Hello", path="/v1/messages?beta=true", **fields):
        """Returns the status and the answer."""
        messages = [user(messages)] if isinstance(messages, str) else messages
        body = {"model": "claude-sonnet-4-5", "max_tokens": 16, "temperature": 0, "messages": messages, **fields}
        return self.request("POST", path, body, {"anthropic-version": "2023-06-01", "anthropic-beta": "a,b", "x-api-key": "any"})

    def message(self, messages="Hello", **fields):
        status, answer = self.ask(messages, **fields)
        self.assertEqual((200, "message", "assistant"), (status, answer.get("type"), answer.get("role")), answer)
        return answer

    def text(self, message):
        return "".join(block["text"] for block in message["content"])

    def refused(self, status, kind, messages="Hello", **fields):
        """Returns the message of the error."""
        got, answer = self.ask(messages, **fields)
        self.assertEqual((status, "error", kind), (got, answer["type"], answer["error"]["type"]), answer)
        return answer["error"]["message"]

    def count(self, messages="Hello", **fields):
        status, answer = self.ask(messages, path="/v1/messages/count_tokens?beta=true", **fields)
        self.assertEqual((200, {"input_tokens"}), (status, set(answer)), answer)
        return answer["input_tokens"]

    def prompt_tokens(self, usage):
        self.assertEqual(0, usage["cache_creation_input_tokens"])
        return usage["input_tokens"] + usage["cache_read_input_tokens"]

    def stream(self, messages="Hello", **fields):
        """Returns the events of an answer, and the message that a client makes of them."""
        messages = [user(messages)] if isinstance(messages, str) else messages
        connection = self.connect()
        body = {"max_tokens": 16, "temperature": 0, "stream": True, "messages": messages, **fields}
        connection.request("POST", "/v1/messages?beta=true", json.dumps(body).encode())
        answer = connection.getresponse()
        self.assertEqual((200, "text/event-stream"), (answer.status, answer.getheader("Content-Type")))
        self.assertTrue(answer.getheader("request-id"))
        blocks = answer.read().decode().split("\n\n")
        self.assertEqual("", blocks.pop())
        events = []
        for block in blocks:
            name, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            self.assertEqual(name, "event: " + events[-1]["type"])
        return events, self.message_of(events)

    def message_of(self, events):
        message = events[0]["message"]
        self.assertEqual(("message_start", [], None), (events[0]["type"], message["content"], message["stop_reason"]))
        is_open, arguments = False, ""
        for event in events[1:]:
            if event["type"] == "content_block_start":
                self.assertEqual((False, len(message["content"])), (is_open, event["index"]))
                message["content"].append(event["content_block"])
                is_open, arguments = True, ""
            elif event["type"] == "content_block_delta":
                self.assertEqual((True, len(message["content"]) - 1), (is_open, event["index"]))
                delta, block = event["delta"], message["content"][-1]
                if delta["type"] == "input_json_delta":
                    arguments += delta["partial_json"]
                else:
                    name = delta["type"].removesuffix("_delta")
                    block[name] += delta[name]
            elif event["type"] == "content_block_stop":
                is_open = False
                if arguments:
                    message["content"][-1]["input"] = json.loads(arguments)
            elif event["type"] == "message_delta":
                message.update(event["delta"], usage=event["usage"])
        self.assertEqual((False, "message_stop"), (is_open, events[-1]["type"]))
        return message


class Messages(Anthropic):
    def test_a_message_is_the_reply_to_the_chat(self):
        answer = self.message()
        _, chat = self.chat(max_tokens=16)
        self.assertEqual(chat["choices"][0]["message"]["content"], self.text(answer))
        self.assertIn(answer["stop_reason"], ("end_turn", "max_tokens"))
        self.assertIsNone(answer["stop_sequence"])
        self.assertEqual(chat["usage"]["prompt_tokens"], self.prompt_tokens(answer["usage"]))
        self.assertEqual(chat["usage"]["completion_tokens"], answer["usage"]["output_tokens"])

    def test_a_stream_says_what_the_whole_says(self):
        system = " ".join(["Be brief."] * 40)
        whole = self.message(system=system)
        events, streamed = self.stream(system=system)
        for name in ("content", "stop_reason", "stop_sequence"):
            self.assertEqual(whole[name], streamed[name], name)
        self.assertEqual(whole["usage"]["output_tokens"], streamed["usage"]["output_tokens"])
        self.assertEqual(self.prompt_tokens(whole["usage"]), self.prompt_tokens(streamed["usage"]))
        self.assertEqual(self.prompt_tokens(whole["usage"]), self.prompt_tokens(events[0]["message"]["usage"]))
        self.assertGreater(streamed["usage"]["cache_read_input_tokens"], 0, "the prompt was computed before")

    def test_cache_control_may_move(self):
        text = " ".join(["moved"] * 60)
        first = [user([{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}])]
        answer = self.message(first)
        self.assertEqual(self.count(first), self.count(text))
        second = [user(text), assistant(answer["content"]), user([{"type": "text", "text": "On", "cache_control": {"type": "ephemeral"}}])]
        reused = self.message(second)["usage"]["cache_read_input_tokens"]
        self.assertGreaterEqual(reused, self.prompt_tokens(answer["usage"]) - 1)

    def test_the_billing_line_changes_nothing(self):
        texts = ["one", "two"]
        prompt = self.count(system="Be brief.")
        for text in texts:
            system = [{"type": "text", "text": BILLING % text}, {"type": "text", "text": "Be brief."}]
            self.assertEqual(prompt, self.count(system=system))
        line = BILLING % "three" + "\n"
        _, chat = self.request("POST", "/v1/chat/completions", {"max_tokens": 1, "messages": [
            {"role": "system", "content": line + "Be brief."}, user("Hello")]})
        _, response = self.request("POST", "/v1/responses", {"max_output_tokens": 1, "instructions": line + "Be brief.", "input": "Hello"})
        self.assertEqual([prompt, prompt], [chat["usage"]["prompt_tokens"], response["usage"]["input_tokens"]])

    def test_messages_of_the_system(self):
        note = {"role": "system", "content": "A note."}
        self.assertEqual(self.count(system="Be brief.\nA note."), self.count([user("Hello"), note], system="Be brief."))
        later = [user("Hello"), assistant("Hi."), note, user("Go on")]
        reminded = "<system-reminder>\nA note.\n</system-reminder>\nGo on"
        self.assertEqual(self.count([user("Hello"), assistant("Hi."), user(reminded)]), self.count(later))
        self.message(later)

    def test_a_stop_sequence_is_named(self):
        text = self.text(self.message(max_tokens=32))
        stop = text[len(text) // 2:][:2]
        self.assertTrue(stop, text)
        for answer in (self.message(max_tokens=32, stop_sequences=["never said", stop]), self.stream(max_tokens=32, stop_sequences=[stop])[1]):
            self.assertEqual(("stop_sequence", stop), (answer["stop_reason"], answer["stop_sequence"]))
            self.assertEqual(text[:text.index(stop)], self.text(answer))

    def test_models_are_asked_by_any_name(self):
        connection = self.connect()
        body = {"model": "claude-haiku-4-5", "max_tokens": 1, "messages": [user("Hello")]}
        connection.request("POST", "/v1/messages", json.dumps(body).encode())
        answer = connection.getresponse()
        self.assertEqual((200, "tiny-chat"), (answer.status, json.loads(answer.read())["model"]))
        self.assertIn("claude-haiku-4-5", answer.getheader("x-uma-warning"))

    def test_whoever_asks_for_the_server_finds_it(self):
        connection = self.connect()
        for method in ("HEAD", "GET"):
            connection.request(method, "/")
            answer = connection.getresponse()
            answer.read()
            self.assertEqual(200, answer.status, method)

    def test_what_is_wrong_is_named(self):
        for path, fields in (("messages[0].content[0].type", {"messages": [user([{"type": "hologram"}])]}),
                             ("tools[0].input_schema", {"tools": [{"name": "a"}]}),
                             ("tool_choice.name", {"tools": [CLOCK], "tool_choice": {"type": "tool", "name": "other"}}),
                             ("temperature", {"temperature": "hot"})):
            with self.subTest(path=path):
                self.assertIn(path, self.refused(400, "invalid_request_error", **fields))
        status, answer = self.ask(output_config={"format": {"type": "json_schema", "schema": {"type": 3}}})
        self.assertEqual((400, "output_config.format.schema"), (status, answer["error"]["uma"]["param"]), answer)


class Window(Anthropic):
    def window(self):
        model = self.request("GET", "/v1/models")[1]["data"][0]
        (window,) = {model[name] for name in ("max_input_tokens", "max_tokens", "context_length", "max_model_len")} | {model["meta"]["n_ctx"]}
        return window

    def words(self, tokens):
        """A prompt of `tokens` tokens or a few less."""
        low, high = 0, tokens
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.count("x " * middle) <= tokens else (low, middle)
        return "x " * low

    def test_models_say_what_a_request_can_use(self):
        model = self.request("GET", "/v1/models")[1]["data"][0]
        self.assertEqual(self.client.models()[0]["sequence_tokens_max"], self.window())
        self.assertEqual(("model", model["id"], "ready"), (model["type"], model["display_name"], model["state"]))
        self.assertIn("completion", model["capabilities"])
        self.assertRegex(model["created_at"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")

    def test_a_prompt_that_is_too_long(self):
        text = "x " * self.window()
        said = self.refused(400, "invalid_request_error", text)
        self.assertTrue(said.startswith(f"prompt is too long: {self.count(text)} tokens > {self.window() - 1} maximum"), said)

    def test_a_counted_prompt_is_the_prompt(self):
        for fields in ({}, {"system": "Be brief."}, {"tools": [WEATHER, CLOCK]}, {"tools": [WEATHER], "tool_choice": {"type": "none"}},
                       {"thinking": {"type": "adaptive"}}):
            with self.subTest(**fields):
                self.assertEqual(self.count(**fields), self.prompt_tokens(self.message(**fields)["usage"]))

    def test_a_cut_reply_says_why(self):
        self.assertEqual("max_tokens", self.message(max_tokens=3, output_config=LONG_REPLY)["stop_reason"])
        nearly_all = self.words(self.window() - 8)
        for max_tokens in (200, 1_000_000):
            answer = self.message(nearly_all, max_tokens=max_tokens, output_config=LONG_REPLY)
            self.assertEqual("model_context_window_exceeded", answer["stop_reason"])
            self.assertEqual(self.window(), self.prompt_tokens(answer["usage"]) + answer["usage"]["output_tokens"])


class Tools(Anthropic):
    """A forced call follows its schema, whatever the weights."""

    def check(self, message):
        self.assertEqual("tool_use", message["stop_reason"])
        (call,) = message["content"]
        self.assertEqual(("tool_use", "weather", {"city", "days"}), (call["type"], call["name"], set(call["input"])))
        self.assertIn(call["input"]["days"], range(1, 10))
        return call

    def test_a_named_tool_is_called_and_its_result_is_read(self):
        forced = {"tools": [WEATHER, CLOCK], "tool_choice": {"type": "tool", "name": "weather"}, "max_tokens": 400}
        whole = self.message(**forced)
        call = self.check(whole)
        streamed = self.stream(**forced)[1]
        self.assertEqual(call["input"], self.check(streamed)["input"])
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "Rain."}]}
        turns = [user("Hello"), assistant(whole["content"]), user([result, {"type": "text", "text": "And tomorrow?"}])]
        answer = self.message(turns, tools=[WEATHER, CLOCK])
        self.assertGreater(answer["usage"]["cache_read_input_tokens"], 50)
        self.assertGreater(self.prompt_tokens(answer["usage"]), self.prompt_tokens(whole["usage"]))

    def test_some_tool_is_called(self):
        message = self.message(tools=[WEATHER, CLOCK], tool_choice={"type": "any", "disable_parallel_tool_use": True}, max_tokens=400)
        self.assertEqual("tool_use", message["stop_reason"])
        (call,) = message["content"]
        self.assertIn(call["name"], ("weather", "clock"))

    def test_tools_of_other_servers(self):
        self.assertEqual(self.count(tools=[WEATHER]), self.count(tools=[WEB_SEARCH, WEATHER]))
        self.assertIn("web_search", self.refused(400, "invalid_request_error", tools=[WEB_SEARCH]))

    def test_a_reply_of_a_schema(self):
        answer = self.message(output_config={"format": {"type": "json_schema", "schema": SCHEMA}}, max_tokens=400)
        self.assertEqual("end_turn", answer["stop_reason"])
        self.assertEqual({"city", "days"}, set(json.loads(answer["content"][0]["text"])))


if __name__ == "__main__":
    unittest.main()
