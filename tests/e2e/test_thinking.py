"""Thoughts under control: budgets, switches, and their place in sessions. One model has random weights and a template that opens
thoughts before every reply, so it thinks until it is stopped. The other follows a script, with thoughts before a call."""

import http.client
import json
import pathlib
import signal
import subprocess
import tempfile

import test_http
import test_scripted
import uma

# Thoughts of earlier replies are left out, unless `preserve_thinking` is set.
OPENS = """\
{%- for m in messages -%}<|im_start|>{{ m.role }}
{% if m.reasoning_content and (loop.last or preserve_thinking) %}<think>{{ m.reasoning_content }}</think>{% endif -%}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
<think>{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}{% endif %}"""
THINKING = "The file must be read before anybody can say what is in it."
SCRIPT = {"tool": {"name": "read_file", "arguments": test_scripted.ARGUMENTS}, "answer_prefix": "The file says:", "thinking": THINKING,
          "plain_answer": test_scripted.PLAIN}
SCHEMA = {"type": "object", "properties": {"day": {"enum": ["Monday", "Sunday"]}}, "required": ["day"], "additionalProperties": False}
HELLO = {"role": "user", "content": "Hello"}
DROPS = {"preserve_thinking": False}


class ThinkingTest(test_http.HttpTest):
    """The mark at the end of thoughts is a control token, as in trained models, or a text of several tokens."""

    marks = ("--control-token", "<think>", "--control-token", "</think>")
    mark_tokens = 1
    card = ""

    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        (folder / "opens.jinja").write_text(OPENS)
        (folder / "script.json").write_text(json.dumps(SCRIPT))
        thinks = ("--preset", "tiny-chat", "--chat-template-file", folder / "opens.jinja", *cls.marks)
        for name, flags in (("thinks", thinks), ("limited", thinks), ("scripted", ("--script", folder / "script.json"))):
            subprocess.run([uma.MAKE_MODEL, *flags, "--out", folder / f"{name}.gguf"], check=True, timeout=uma.WAIT_S)
        cls.model = folder / "thinks.gguf"
        (folder / "models.yaml").write_text(f"scripted: {{path: scripted.gguf}}\nlimited: {{path: limited.gguf{cls.card}}}\n")
        cls.config = f"models_dirs: [{folder}]\nmodels: {{file: {folder}/models.yaml}}\n"
        super().setUpClass()

    def reply(self, **fields):
        """Returns the message and the usage of a reply, and of its stream, which must be the same."""
        fields = {"max_tokens": 40, **fields}
        status, answer = self.chat(**fields)
        self.assertEqual(200, status, answer)
        message = answer["choices"][0]["message"]
        _, stream = self.start_stream(stream_options={"include_usage": True}, **fields)
        events = self.events(stream)
        deltas = [event["choices"][0]["delta"] for event in events[:-1]]
        for name in ("content", "reasoning_content"):
            self.assertEqual(message.get(name) or "", "".join(delta.get(name) or "" for delta in deltas))
        for name in ("completion_tokens", "completion_tokens_details"):
            self.assertEqual(answer["usage"][name], events[-1]["usage"][name])
        return message, answer["usage"]

    def thoughts(self, **fields):
        """The number of tokens of thoughts, with the closing mark."""
        message, usage = self.reply(**fields)
        tokens = usage["completion_tokens_details"]["reasoning_tokens"]
        self.assertEqual(tokens > self.mark_tokens, bool(message.get("reasoning_content")), message)
        return tokens


class Budgets(ThinkingTest):
    def test_thoughts_end_with_their_budget(self):
        unlimited, usage = self.reply()
        self.assertEqual(("", 40), (unlimited["content"] or "", usage["completion_tokens_details"]["reasoning_tokens"]))
        limited, usage = self.reply(thinking_budget=5)
        self.assertEqual(5 + self.mark_tokens, usage["completion_tokens_details"]["reasoning_tokens"])
        self.assertEqual(40, usage["completion_tokens"])
        self.assertTrue(unlimited["reasoning_content"].startswith(limited["reasoning_content"]))
        self.assertTrue(limited["content"])

    def test_every_api_knows_it(self):
        for name in ("thinking_budget", "thinking_budget_tokens", "thinking_token_budget", "reasoning_budget", "reasoning_budget_tokens"):
            with self.subTest(name):
                self.assertEqual(3 + self.mark_tokens, self.thoughts(**{name: 3}))
        for fields in ({"reasoning": {"max_tokens": 3}}, {"thinking": {"type": "enabled", "budget_tokens": 3}},
                       {"chat_template_kwargs": {"thinking_budget": 3}}):
            with self.subTest(**fields):
                self.assertEqual(3 + self.mark_tokens, self.thoughts(**fields))
        body = {"max_tokens": 40, "temperature": 0, "messages": [HELLO], "thinking": {"type": "enabled", "budget_tokens": 3}}
        status, message = self.request("POST", "/v1/messages", body)
        self.assertEqual(200, status, message)
        self.assertEqual(["thinking", "text"], [block["type"] for block in message["content"]])
        self.assertEqual(3 + self.mark_tokens, message["usage"]["output_tokens_details"]["thinking_tokens"])
        status, response = self.request("POST", "/v1/responses", {"input": "Hello", "max_output_tokens": 40, "temperature": 0,
                                                                  "reasoning": {"max_tokens": 3}})
        self.assertEqual(200, status, response)
        self.assertEqual(["reasoning", "message"], [item["type"] for item in response["output"]])
        self.assertEqual(3 + self.mark_tokens, response["usage"]["output_tokens_details"]["reasoning_tokens"])

    def test_without_thoughts(self):
        for fields in ({"thinking_budget": 0}, {"reasoning_effort": "none"}, {"enable_thinking": False}, {"thinking": {"type": "disabled"}},
                       {"reasoning": {"enabled": False}}, {"chat_template_kwargs": {"thinking": False}}):
            with self.subTest(**fields):
                message, usage = self.reply(**fields)
                self.assertFalse(message.get("reasoning_content"))
                self.assertTrue(message["content"])
        # A request that opens the thoughts nevertheless has them closed at once.
        self.assertEqual(self.mark_tokens, self.thoughts(thinking_budget=0, chat_template_kwargs={"enable_thinking": True}))
        _, answer = self.request("POST", "/v1/chat/completions", {"messages": [HELLO], "thinking_budget": -2})
        self.assertEqual("thinking_budget", answer["error"]["param"])

    def test_an_answer_with_a_schema_comes_behind_the_thoughts(self):
        form = {"type": "json_schema", "json_schema": {"name": "day", "schema": SCHEMA}}
        message, usage = self.reply(thinking_budget=5, response_format=form, max_tokens=400)
        self.assertIn(json.loads(message["content"])["day"], ("Monday", "Sunday"))
        self.assertEqual(5 + self.mark_tokens, usage["completion_tokens_details"]["reasoning_tokens"])

    def test_a_call_comes_behind_the_thoughts(self):
        tools = [test_scripted.READ_FILE]
        whole, usage = self.reply(model="scripted", tools=tools, max_tokens=200)
        self.assertEqual((THINKING, "read_file"), (whole["reasoning_content"], whole["tool_calls"][0]["function"]["name"]))
        cut, less = self.reply(model="scripted", tools=tools, max_tokens=200, thinking_budget=3)
        self.assertTrue(THINKING.startswith(cut["reasoning_content"]) and cut["reasoning_content"] != THINKING)
        self.assertEqual(test_scripted.ARGUMENTS, json.loads(cut["tool_calls"][0]["function"]["arguments"]))
        self.assertLess(less["completion_tokens"], usage["completion_tokens"])
        none, _ = self.reply(model="scripted", tools=tools, max_tokens=200, reasoning_effort="none", tool_choice="required")
        self.assertEqual(test_scripted.ARGUMENTS, json.loads(none["tool_calls"][0]["function"]["arguments"]))
        self.assertFalse(none.get("reasoning_content"))

    def test_the_socket_counts_thoughts_that_it_does_not_divide(self):
        options = {"messages": [HELLO], "max_tokens": 40, "thinking_budget": 5, "stream": False}
        whole = self.client.generate(**options)
        self.assertIn("</think>", whole.text)
        self.assertEqual(5 + self.mark_tokens, whole.usage["reasoning_tokens"])
        divided = self.client.generate(**options, split_reasoning=True)
        self.assertEqual(whole.usage["reasoning_tokens"], divided.usage["reasoning_tokens"])
        self.assertEqual(whole.text.partition("</think>")[2].strip(), divided.text.strip())

    def test_a_client_that_leaves(self):
        connection, answer = self.start_stream(max_tokens=4000, thinking_budget=3000)
        self.assertTrue(answer.readline())
        connection.close()
        self.wait_idle()
        self.assertEqual(5 + self.mark_tokens, self.thoughts(thinking_budget=5))

    def turn(self, session, **fields):
        reply = self.client.generate(messages=[HELLO], session_id=session, max_tokens=20, thinking_budget=5, split_reasoning=True, stream=False,
                                     **fields)
        self.assertEqual("eos", reply.last["event"], reply.last)
        return reply.usage

    def test_a_session_drops_thoughts_as_its_template_does(self):
        session = self.client.create_session(mode="chat")
        first = self.turn(session, chat_template_kwargs=DROPS)
        second = self.turn(session, chat_template_kwargs=DROPS)
        self.assertEqual(("hot", "rewritten"), (second["tier"], second["reuse_reason"]))
        self.assertLess(second["reused_tokens"], first["prompt_tokens"] + first["completion_tokens"])
        messages = self.client.session(session)["messages"]
        self.assertTrue(messages[1]["reasoning_content"])
        at_once = self.client.generate(messages=messages[:-1], max_tokens=1, chat_template_kwargs=DROPS)
        self.assertEqual(at_once.usage["prompt_tokens"], second["prompt_tokens"])

    def test_a_session_keeps_thoughts_as_its_template_does(self):
        session = self.client.create_session(mode="chat")
        first = self.turn(session)
        second = self.turn(session)
        self.assertNotEqual("rewritten", second["reuse_reason"])
        self.assertGreaterEqual(second["reused_tokens"], first["prompt_tokens"] + first["completion_tokens"] - 1)


class Restarts(ThinkingTest):
    def test_forced_marks_belong_to_the_session(self):
        fields = {"messages": [HELLO], "max_tokens": 20, "thinking_budget": 5, "split_reasoning": True, "stream": False}
        session = self.client.create_session(mode="chat")
        first = self.client.generate(session_id=session, **fields)
        self.assertTrue(first.text)
        self.daemon.signal(signal.SIGKILL)
        self.daemon.wait()
        self.daemon.start().wait_ready()
        second = self.another_client().generate(session_id=session, **fields)
        self.assertEqual("eos", second.last["event"], second.last)
        self.assertEqual(5 + self.mark_tokens, second.usage["reasoning_tokens"])
        self.assertGreater(second.usage["prompt_tokens"], first.usage["prompt_tokens"] + first.usage["completion_tokens"])


class TextMarks(Budgets):
    marks = ()
    mark_tokens = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.mark_tokens = len(cls.tokens_of("</think>"))

    @classmethod
    def tokens_of(cls, text):
        connection = http.client.HTTPConnection("127.0.0.1", cls.port, timeout=uma.WAIT_S)
        connection.request("POST", "/tokenize", json.dumps({"content": text}).encode())
        tokens = json.loads(connection.getresponse().read())["tokens"]
        connection.close()
        return tokens


class Cards(ThinkingTest):
    card = ", thinking_budget: 4, family: seed-oss"

    def test_a_card_limits_thoughts(self):
        """The family has other marks than the template, so what it takes for thoughts is not what the others see."""
        message, _ = self.reply(model="limited")
        self.assertFalse(message.get("reasoning_content"), "no mark of the family is there")


class CardBudgets(ThinkingTest):
    card = ", thinking_budget: 4"

    def test_a_card_limits_thoughts(self):
        self.assertEqual(4 + self.mark_tokens, self.thoughts(model="limited"))
        self.assertEqual(4 + self.mark_tokens, self.thoughts(model="limited", reasoning_effort="high"))
        self.assertEqual(2 + self.mark_tokens, self.thoughts(model="limited", thinking_budget=2))
        self.assertEqual(40, self.thoughts(model="limited", thinking_budget=-1))
