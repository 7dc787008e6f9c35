"""Conversations in the templates of model families (tests/templates): umad writes what Jinja2 makes of the conversation in the form
of the family's messages, whatever API the conversation came through."""

import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

import test_http
import test_templates
import uma

sys.path.insert(0, str(test_templates.TEMPLATES))
import expect  # noqa: E402 - it is beside the templates
import forms  # noqa: E402

# Thoughts of earlier replies stay where a template asks.
HISTORY = {"preserve_thinking": True, "clear_thinking": False, "truncate_history_thinking": False, "drop_thinking": False}


def switches(family, given):
    """The input of a template with what umad adds: both names of the switch, the least effort where there is no switch, and the
    words for efforts that the family knows."""
    thinks = given.get("enable_thinking", given.get("thinking"))
    added = {} if thinks is None else {"enable_thinking": thinks, "thinking": thinks}
    if family == "gpt_oss" and thinks is False:
        added["reasoning_effort"] = "low"
    if family == "gpt_oss" and given.get("reasoning_effort") == "max":
        given = {**given, "reasoning_effort": "high"}
    return {**HISTORY, **added, **given}


class FamilyTest(test_http.HttpTest):
    @classmethod
    def with_templates(cls, families):
        """The configuration of a daemon that has a model for each of these templates."""
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        for family in families:
            subprocess.run([uma.MAKE_MODEL, "--chat-template-file", test_templates.TEMPLATES / "families" / f"{family}.jinja",
                            "--out", pathlib.Path(folder.name) / f"{family}.gguf"], check=True, timeout=uma.WAIT_S)
        return f"models_dirs: [{folder.name}]\n"


class Families(FamilyTest):
    @classmethod
    def setUpClass(cls):
        cls.families = sorted(path.stem for path in (test_templates.TEMPLATES / "families").glob("*.jinja") if forms.form_of(path.stem))
        cls.config = cls.with_templates(cls.families)
        super().setUpClass()

    def written(self, family, given):
        """The prompt that umad makes of a conversation in the neutral form."""
        conversation = forms.in_form(given, "arguments_as_text")
        body = {name: conversation.pop(name) for name in ("messages", "tools") if name in conversation}
        status, answer = self.request("POST", "/apply-template", {"model": family, **body, "chat_template_kwargs": conversation})
        return answer["prompt"] if status == 200 else answer["error"]["message"]

    def check(self, family, names):
        template = (test_templates.TEMPLATES / "families" / f"{family}.jinja").read_text(encoding="utf-8")
        calls = forms.with_tools(expect.read(test_templates.TEMPLATES / "calls.json"))
        for name in names:
            with self.subTest(family=family, conversation=name):
                # Some templates print the date.
                before = int(time.time())
                ours = self.written(family, calls[name])
                given = {**switches(family, forms.in_form(calls[name], forms.form_of(family))), "bos_token": "<s>", "eos_token": "</s>"}
                wanted = test_templates.render_all([(template, dict(given, unix_s=unix_s)) for unix_s in (before, int(time.time()))])
                texts = [text["text"].removeprefix("<s>") if "text" in text else text["error"] for text in wanted]
                self.assertIn(ours.removeprefix("<s>"), texts)

    def test_thoughts_and_switches(self):
        for family in self.families:
            self.check(family, ("thinking_on", "thinking_off", "thoughts_of_a_reply", "thinking_kept"))

    def test_calls(self):
        for family in self.families:
            self.check(family, ("tools_offered", "call", "content_and_call", "parallel", "next_turn"))


WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
CALLS = {"call_00000001": ("weather", {"city": "Köln", "days": 2}), "call_00000002": ("now", {})}
RESULTS = {"call_00000001": "rain", "call_00000002": "12:30"}
TOOLS = {"weather": ("Tells the weather.", WEATHER), "now": ("Tells the time.", {"type": "object", "properties": {}})}


class Histories(FamilyTest):
    """A conversation with thoughts and two calls, sent whole: the prompt is the same through every API, so all of it is found."""

    families = ("deepseek_v3_1", "gemma4", "glm_4_6", "gpt_oss", "kimi_k2_thinking", "llama3_1", "magistral", "minimax_m2", "mistral_v11",
                "qwen3", "qwen3_5", "seed_oss")

    @classmethod
    def setUpClass(cls):
        cls.config = cls.with_templates(cls.families)
        super().setUpClass()

    def messages(self):
        calls = [{"id": i, "type": "function", "function": {"name": name, "arguments": json.dumps(given, separators=(",", ":"))}}
                 for i, (name, given) in CALLS.items()]
        return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather and time in Köln?"},
                {"role": "assistant", "reasoning_content": "Two calls.", "content": None, "tool_calls": calls},
                *({"role": "tool", "tool_call_id": i, "content": text} for i, text in RESULTS.items())]

    def tools(self):
        return [{"type": "function", "function": {"name": name, "description": what, "parameters": schema}}
                for name, (what, schema) in TOOLS.items()]

    def through_chat(self, family):
        status, answer = self.request("POST", "/v1/chat/completions", {
            "model": family, "messages": self.messages(), "tools": self.tools(), "max_tokens": 1})
        self.assertEqual(200, status, answer)
        return answer["usage"]["prompt_tokens"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def through_messages(self, family):
        blocks = [{"type": "thinking", "thinking": "Two calls.", "signature": ""},
                  *({"type": "tool_use", "id": i, "name": name, "input": given} for i, (name, given) in CALLS.items())]
        results = [{"type": "tool_result", "tool_use_id": i, "content": text} for i, text in reversed(RESULTS.items())]
        status, answer = self.request("POST", "/v1/messages", {
            "model": family, "max_tokens": 1, "system": "Be brief.",
            "messages": [{"role": "user", "content": "Weather and time in Köln?"}, {"role": "assistant", "content": blocks},
                         {"role": "user", "content": results}],
            "tools": [{"name": name, "description": what, "input_schema": schema} for name, (what, schema) in TOOLS.items()]},
            {"anthropic-version": "2023-06-01"})
        self.assertEqual(200, status, answer)
        usage = answer["usage"]
        return usage["input_tokens"] + usage["cache_read_input_tokens"], usage["cache_read_input_tokens"]

    def through_responses(self, family):
        status, answer = self.request("POST", "/v1/responses", {
            "model": family, "max_output_tokens": 16, "store": False, "instructions": "Be brief.",
            "input": [{"role": "user", "content": "Weather and time in Köln?"},
                      {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Two calls."}]},
                      *({"type": "function_call", "call_id": i, "name": name, "arguments": json.dumps(given)} for i, (name, given) in CALLS.items()),
                      *({"type": "function_call_output", "call_id": i, "output": text} for i, text in RESULTS.items())],
            "tools": [{"type": "function", "name": name, "description": what, "parameters": schema} for name, (what, schema) in TOOLS.items()]})
        self.assertEqual(200, status, answer)
        return answer["usage"]["input_tokens"], answer["usage"]["input_tokens_details"]["cached_tokens"]

    def through_a_session(self, family):
        session = self.client.create_session(mode="chat", model=family)
        reply = self.client.generate(session_id=session, messages=self.messages(), tools=self.tools(), max_tokens=1)
        self.assertEqual("eos", reply.last["event"], reply.last)
        return reply.usage["prompt_tokens"], reply.usage["reused_tokens"]

    def test_are_the_same_through_every_api(self):
        for family in self.families:
            first, _ = self.through_chat(family)
            for way in (self.through_chat, self.through_messages, self.through_responses, self.through_a_session):
                with self.subTest(family=family, way=way.__name__):
                    tokens, reused = way(family)
                    self.assertEqual(first, tokens)
                    self.assertGreaterEqual(reused, first - 1)


if __name__ == "__main__":
    unittest.main()
