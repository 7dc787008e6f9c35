"""Conversations in the templates of model families (tests/templates): umad writes what Jinja2 makes of the conversation in the form
of the family's messages."""

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

# Families whose calls umad writes as their templates do. The tools and calls of others are spelled out in words.
KNOWN_CALLS = ("deepseek_v3_1", "ernie4_5_thinking", "exaone4", "functionary_3_1", "granite4", "hermes_tools", "mistral_v11", "mistral_v13",
               "mistral_v3", "qwen2_5", "qwen3", "qwen3_thinking", "smollm3")
# Templates that want thoughts elsewhere than in reasoning_content.
OTHER_THOUGHTS = ("gpt_oss", "magistral")


class Families(test_http.HttpTest):
    @classmethod
    def setUpClass(cls):
        cls.families = sorted(path.stem for path in (test_templates.TEMPLATES / "families").glob("*.jinja") if forms.form_of(path.stem))
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        for family in cls.families:
            subprocess.run([uma.MAKE_MODEL, "--chat-template-file", test_templates.TEMPLATES / "families" / f"{family}.jinja",
                            "--out", pathlib.Path(folder.name) / f"{family}.gguf"], check=True, timeout=uma.WAIT_S)
        cls.config = f"models_dirs: [{folder.name}]\n"
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
                given = dict(forms.in_form(calls[name], forms.form_of(family)), bos_token="<s>", eos_token="</s>")
                wanted = test_templates.render_all([(template, dict(given, unix_s=unix_s)) for unix_s in (before, int(time.time()))])
                texts = [text["text"].removeprefix("<s>") if "text" in text else text["error"] for text in wanted]
                self.assertIn(ours.removeprefix("<s>"), texts)

    def test_thoughts_and_switches(self):
        for family in self.families:
            thoughts = () if family in OTHER_THOUGHTS else ("thoughts_of_a_reply", "thinking_kept")
            self.check(family, ("thinking_on", "thinking_off", *thoughts))

    def test_calls(self):
        for family in KNOWN_CALLS:
            self.check(family, ("tools_offered", "call", "content_and_call", "parallel", "next_turn"))


if __name__ == "__main__":
    unittest.main()
