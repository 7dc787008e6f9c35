"""Conversations that another server or client wrote: replies that a client has begun, references to stored items, and templates that
insist on turns."""

import json
import pathlib
import subprocess
import tempfile

import played
import test_http
import test_templates
import uma

FAMILIES = test_templates.TEMPLATES / "families"
ANSWER = "The answer is 42 today."
BEGUN, REST = "The answer", " is 42 today."
QUESTION = {"role": "user", "content": "What is ask7"}
CALL = {"id": "call_abc", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}


def assistant(content, **fields):
    return {"role": "assistant", "content": content, **fields}


class BegunReplies(test_http.HttpTest):
    """The model plays ANSWER behind its cue, so a reply that has begun goes on with its rest."""

    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.model = folder / "answers.gguf"
        played.write_model(cls.model, {"ask7": ANSWER}, template=FAMILIES / "chatml.jinja")
        super().setUpClass()

    def reply(self, messages, **fields):
        status, answer = self.request("POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 30, "temperature": 0, **fields})
        self.assertEqual(200, status, answer)
        return answer["choices"][0]["message"]["content"], answer["usage"]

    def test_the_model_plays_its_answer(self):
        self.assertEqual(ANSWER, self.reply([QUESTION])[0])

    def test_chat_completions_go_on(self):
        messages = [QUESTION, assistant(BEGUN)]
        self.assertEqual(REST, self.reply(messages)[0])
        self.assertEqual(REST, self.reply(messages, continue_final_message=True, add_generation_prompt=False)[0])
        _, stream = self.start_stream(messages=messages, max_tokens=30)
        deltas = [event["choices"][0]["delta"] for event in self.events(stream)]
        self.assertEqual(REST, "".join(delta.get("content") or "" for delta in deltas))

    def test_an_echo_has_the_whole_reply(self):
        messages = [QUESTION, assistant(BEGUN)]
        self.assertEqual(ANSWER, self.reply(messages, echo=True)[0])
        _, stream = self.start_stream(messages=messages, max_tokens=30, echo=True)
        self.assertEqual(ANSWER, "".join(event["choices"][0]["delta"].get("content") or "" for event in self.events(stream)))

    def test_a_client_may_want_a_new_reply(self):
        content, _ = self.reply([QUESTION, assistant(BEGUN)], continue_final_message=False)
        self.assertNotEqual(REST, content)
        status, answer = self.request("POST", "/v1/chat/completions", {"messages": [QUESTION], "continue_final_message": True})
        self.assertEqual((400, "continue_final_message"), (status, answer["error"]["param"]))

    def test_an_empty_message_begins_nothing(self):
        for content in ("", None):
            self.assertEqual(ANSWER, self.reply([QUESTION, assistant(content)])[0])

    def test_the_next_turn_reuses_both_parts(self):
        rest, usage = self.reply([QUESTION, assistant(BEGUN)])
        computed = usage["prompt_tokens"] + usage["completion_tokens"]
        _, again = self.reply([QUESTION, assistant(BEGUN + rest), {"role": "user", "content": "Sure? " * 20}])
        self.assertGreaterEqual(again["prompt_tokens_details"]["cached_tokens"], computed - 4, again)  # The last token and the end are not in the cells.

    def test_messages_go_on(self):
        body = {"messages": [QUESTION, assistant([{"type": "text", "text": BEGUN}])], "max_tokens": 30, "temperature": 0}
        status, answer = self.request("POST", "/v1/messages", body)
        self.assertEqual(200, status, answer)
        self.assertEqual([{"type": "text", "text": REST}], answer["content"])
        status, whole = self.request("POST", "/v1/messages/count_tokens", body)
        self.assertEqual((200, answer["usage"]["input_tokens"] + answer["usage"].get("cache_read_input_tokens", 0)),
                         (status, whole["input_tokens"]))

    def test_ollamas_chat_goes_on(self):
        body = {"messages": [QUESTION, assistant(BEGUN)], "stream": False, "options": {"num_predict": 30, "temperature": 0}}
        status, answer = self.request("POST", "/api/chat", body)
        self.assertEqual((200, REST), (status, answer["message"]["content"]))

    def test_the_socket_goes_on(self):
        reply = self.client.generate(messages=[QUESTION, assistant(BEGUN)], max_tokens=30)
        self.assertEqual(REST, reply.text)

    def test_apply_template_ends_behind_the_text(self):
        status, answer = self.request("POST", "/apply-template", {"messages": [QUESTION, assistant(BEGUN + " ")]})
        self.assertEqual(200, status, answer)
        self.assertTrue(answer["prompt"].endswith("<|im_start|>assistant\n" + BEGUN + " "), answer)

    def test_a_grammar_holds_for_the_whole_reply_or_for_the_rest(self):
        messages = [QUESTION, assistant(BEGUN)]
        self.assertEqual(" is 7.", self.reply(messages, grammar='root ::= "The answer is 7."')[0])
        self.assertEqual("{7}", self.reply(messages, grammar='root ::= "{7}"')[0])
        schema = {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"], "additionalProperties": False}
        content, _ = self.reply([QUESTION, assistant("{")], max_tokens=60,
                                response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})
        self.assertEqual({"a": 7}, json.loads("{" + content))

    def test_a_message_with_calls_is_not_continued(self):
        messages = [QUESTION, assistant("I look.", tool_calls=[CALL])]
        self.reply(messages)
        status, answer = self.request("POST", "/v1/chat/completions", {"messages": messages, "continue_final_message": True})
        self.assertEqual((400, "continue_final_message"), (status, answer["error"]["param"]))


class References(test_http.HttpTest):
    model = uma.TINY_SCRIPTED

    def respond(self, items, **fields):
        status, answer = self.request("POST", "/v1/responses", {"input": items, "max_output_tokens": 30, **fields})
        return status, answer

    def test_items_of_responses_and_conversations_are_found(self):
        hello = {"role": "user", "content": [{"type": "input_text", "text": "Hello."}]}
        _, first = self.respond([hello])
        item = first["output"][-1]
        _, spelled = self.respond([hello, {"role": "assistant", "content": item["content"]}, {"role": "user", "content": "And now?"}])
        for reference in ({"type": "item_reference", "id": item["id"]}, {"id": item["id"]}):
            status, second = self.respond([hello, reference, {"role": "user", "content": "And now?"}])
            self.assertEqual(200, status, second)
            self.assertEqual(spelled["usage"]["input_tokens"], second["usage"]["input_tokens"])
        _, conversation = self.request("POST", "/v1/conversations", {"items": [hello, {"type": "item_reference", "id": item["id"]}]})
        connection = self.connect()
        connection.request("GET", f"/v1/conversations/{conversation['id']}/items?order=asc")
        items = json.loads(connection.getresponse().read())
        self.assertEqual(["user", "assistant"], [each["role"] for each in items["data"]])
        self.assertEqual(item["content"][0]["text"], items["data"][1]["content"][0]["text"])

    def test_calls_are_found(self):
        tool = {"type": "function", "name": "read_file", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}
        ask = {"role": "user", "content": "Read it."}
        _, first = self.respond([ask], tools=[tool], tool_choice="required", max_output_tokens=100)
        (call,) = [item for item in first["output"] if item["type"] == "function_call"]
        status, second = self.respond([ask, {"type": "item_reference", "id": call["id"]},
                                       {"type": "function_call_output", "call_id": call["call_id"], "output": None}], tools=[tool])
        self.assertEqual(200, status, second)

    def test_an_unknown_item_is_not_found(self):
        for name in ("msg_1", "msg_" + "0" * 32 + "_0_0", "x", "../x"):
            status, answer = self.respond([{"role": "user", "content": "a"}, {"type": "item_reference", "id": name}])
            self.assertEqual((404, "input[1].id"), (status, answer["error"]["param"]), name)


class Turns(test_http.HttpTest):
    """Templates that refuse some orders of messages."""

    families = ("mistral_v13", "mistral_nemo", "mistral_v3", "gemma2", "gemma3")

    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        for name in cls.families:
            subprocess.run([uma.MAKE_MODEL, "--preset", "tiny-chat", "--chat-template-file", FAMILIES / f"{name}.jinja", "--out",
                            folder / f"{name}.gguf"], check=True, timeout=uma.WAIT_S)
        cls.model = folder / f"{cls.families[0]}.gguf"
        cls.config = f"models_dirs: [{folder}]\n"
        super().setUpClass()

    def test_every_order_is_answered(self):
        user, result = {"role": "user", "content": "uma user"}, {"role": "tool", "tool_call_id": "call_abc", "content": "uma result"}
        calling, reply = assistant(None, tool_calls=[CALL]), assistant("uma reply")
        orders = ([user, user], [reply, user], [user, reply, reply, user], [user, calling, result, user],
                  [user, calling, result, user, user], [user, reply, {"role": "system", "content": "uma rule"}, user],
                  [{"role": "system", "content": "uma rule"}, user, user, reply, user], [user, calling, result, reply, user],
                  [user, calling, user])
        for model in self.families:
            for messages in orders:
                with self.subTest(model=model, messages=[message["role"] for message in messages]):
                    tools = [TOOL] if calling in messages else []
                    body = {"model": model, "messages": messages, "tools": tools, "max_tokens": 2}
                    status, answer = self.request("POST", "/v1/chat/completions", body)
                    self.assertEqual(200, status, answer)
                    _, written = self.request("POST", "/apply-template", body)
                    for message in messages:
                        self.assertIn(message["content"] or "\"x\": 1", written["prompt"])
