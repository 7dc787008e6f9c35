"""Answers that follow a schema, from models that reason, in every API, and beside tools. Each model plays replies in its family's
notation (make_model --replies): thoughts, then an answer or a call."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

import test_families
import test_http
import test_templates
import test_turns
import uma

sys.path.insert(0, str(test_templates.TEMPLATES))
import forms  # noqa: E402 - it is beside the templates

VALUE = {"a": 391}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 999}}, "required": ["a"],
          "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
ARGUMENTS = {"city": "kx", "days": 2, "exact": True}
ASK, ACT = "askx", "actx"  # The cues of an answer and of a call.
LIMIT = 200  # Tokens of a reply; a call whose marks are plain texts has over 100.
# What turns.json does not have: models that think only if they are asked to.
THINKS = {
    "deepseek_r1": {"thoughts": "Hm.\n</think>\n\n", "answer": test_turns.ANSWER},
    "deepseek_v3_1": {"thoughts": "Hm.</think>", "arguments": {"thinking": True}},
    "granite3_3": {"thoughts": "<think>Hm.</think>", "answer": f"<response>{test_turns.ANSWER}</response>", "arguments": {"thinking": True}},
    "lfm2_5": {"thoughts": "<think>Hm.</think>"},
}
TOOLS = [test_turns.LOOK]


def entries():
    """The families that think, as in turns.json."""
    known = test_turns.read_turns()
    found = {family: entry for family, entry in known.items() if "thoughts" in entry}
    return {**found, **{family: {**known.get(family, {}), **more} for family, more in THINKS.items()}}


def prompt_of(family, entry, cue, tools):
    given = {"messages": [{"role": "user", "content": cue}], "add_generation_prompt": True, **entry.get("arguments", {})}
    given = forms.in_form({**given, **({"tools": TOOLS} if tools else {})}, forms.form_of(family) or "openai")
    given = {**test_families.switches(family, given), "bos_token": "<s>", "eos_token": "</s>", "unix_s": int(time.time())}
    return test_templates.render_all([(test_turns.template_of(family, entry), given)])[0]["text"]


def write_model(family, entry, folder, has_control_marks=True):
    answer = entry["answer"].replace(test_turns.ANSWER, json.dumps(VALUE))
    call = entry.get("call", answer).replace("k#", "kx").replace("#", "0")
    replies = {ASK: entry["thoughts"] + answer, ACT: entry["thoughts"] + call}
    prompts = {cue: prompt_of(family, entry, cue, cue == ACT and "call" in entry) for cue in replies}
    tokens = test_turns.Tokens([*prompts.values(), *replies.values()], ["x"], has_control_marks)
    tokens.texts = [ASK, ACT, *(text for text in tokens.texts if not any(cue in text for cue in test_turns.CUES))]
    tokens.texts.sort(key=lambda text: (-len(text), text))
    played = [{"after": len(tokens.of(prompts[cue][prompts[cue].rindex(cue) + len(cue):])), "tokens": tokens.of(text)}
              for cue, text in replies.items()]
    script = {"tokens": [{"text": text, "is_control": text in tokens.controls} for text in tokens.texts],
              "cues": [{"text": cue, "echo": "0", "reply": i} for i, cue in enumerate(replies)],
              "replies": played, "end": entry.get("end", "</s>")}
    path = folder / f"{family}.json"
    path.write_text(json.dumps(script))
    template = folder / f"{family}.jinja"
    template.write_text(test_turns.template_of(family, entry))
    subprocess.run([uma.MAKE_MODEL, "--replies", path, "--chat-template-file", template, "--out", folder / f"{family}.gguf"], check=True,
                   timeout=uma.WAIT_S)


class Answers(test_http.HttpTest):
    flags = ("--http", "127.0.0.1:0", "--n-ctx", "2048", "--kv-cells", "4096", "--slots", "2")
    takes_long = True
    has_control_marks = True

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.entries = entries()
        for family, entry in cls.entries.items():
            write_model(family, entry, pathlib.Path(folder.name), cls.has_control_marks)
        cls.config = f"models_dirs: [{folder.name}]\n"
        super().setUpClass()

    def stream_of(self, path, body):
        """The objects of a stream, of events or lines."""
        connection = self.connect()
        connection.request("POST", path, json.dumps({**body, "stream": True}).encode())
        answer = connection.getresponse()
        text = answer.read().decode()
        self.assertEqual(200, answer.status, text)
        lines = re.findall(r"^(?:data: )?(\{.*)$", text, re.MULTILINE)
        return [json.loads(line) for line in lines]

    def whole_of(self, path, body):
        status, answer = self.request("POST", path, {**body, "stream": False})
        self.assertEqual(200, status, answer)
        return answer

    # Each returns the reasoning, the text, and the names of the called tools.

    def chat_completions(self, model, entry, cue, streams, tools=(), **fields):
        body = {"model": model, "messages": [{"role": "user", "content": cue}], "max_tokens": LIMIT, "temperature": 0,
                "response_format": FORMAT, "chat_template_kwargs": entry.get("arguments", {}), **({"tools": tools} if tools else {}), **fields}
        if streams:
            messages = [event["choices"][0]["delta"] for event in self.stream_of("/v1/chat/completions", body) if event["choices"]]
        else:
            messages = [self.whole_of("/v1/chat/completions", body)["choices"][0]["message"]]
        names = [call["function"]["name"] for message in messages for call in message.get("tool_calls") or [] if call["function"].get("name")]
        return (*("".join(message.get(part) or "" for message in messages) for part in ("reasoning_content", "content")), names)

    def responses(self, model, entry, cue, streams, tools=()):
        body = {"model": model, "input": cue, "max_output_tokens": LIMIT, "temperature": 0, "store": False,
                "text": {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": SCHEMA}},
                "chat_template_kwargs": entry.get("arguments", {})}
        if tools:
            body["tools"] = [{"type": "function", **tool["function"]} for tool in tools]
        if streams:
            events = self.stream_of("/v1/responses", body)
            output = events[-1]["response"]["output"]
            text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        else:
            output = self.whole_of("/v1/responses", body)["output"]
            text = "".join(part["text"] for item in output if item["type"] == "message" for part in item["content"])
        reasoning = "".join(part["text"] for item in output if item["type"] == "reasoning" for part in item["content"])
        return reasoning, text, [item["name"] for item in output if item["type"] == "function_call"]

    def messages(self, model, entry, cue, streams, tools=()):
        body = {"model": model, "messages": [{"role": "user", "content": cue}], "max_tokens": LIMIT, "temperature": 0,
                "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}, "thinking": {"type": "enabled", "budget_tokens": 50},
                "chat_template_kwargs": entry.get("arguments", {})}
        if tools:
            body["tools"] = [{"name": tool["function"]["name"], "description": tool["function"]["description"],
                              "input_schema": tool["function"]["parameters"]} for tool in tools]
        if not streams:
            blocks = self.whole_of("/v1/messages", body)["content"]
            parts = ["".join(block.get(part, "") for block in blocks) for part in ("thinking", "text")]
            return (*parts, [block["name"] for block in blocks if block["type"] == "tool_use"])
        events = self.stream_of("/v1/messages", body)
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
        parts = ["".join(delta.get(part, "") for delta in deltas) for part in ("thinking", "text")]
        return (*parts, [block["name"] for block in blocks if block["type"] == "tool_use"])

    def ollama(self, path, body, streams):
        answers = self.stream_of(path, body) if streams else [self.whole_of(path, body)]
        messages = [answer.get("message") or {"content": answer["response"], "thinking": answer.get("thinking")} for answer in answers]
        names = [call["function"]["name"] for message in messages for call in message.get("tool_calls") or []]
        return (*("".join(message.get(part) or "" for message in messages) for part in ("thinking", "content")), names)

    def ollama_chat(self, model, entry, cue, streams, tools=()):
        body = {"model": model, "messages": [{"role": "user", "content": cue}], "format": SCHEMA,
                "options": {"num_predict": LIMIT, "temperature": 0}, **({"think": True} if "arguments" in entry else {}),
                **({"tools": tools} if tools else {})}
        return self.ollama("/api/chat", body, streams)

    def ollama_generate(self, model, entry, cue, streams):
        body = {"model": model, "prompt": cue, "format": SCHEMA, "options": {"num_predict": LIMIT, "temperature": 0},
                **({"think": True} if "arguments" in entry else {})}
        return self.ollama("/api/generate", body, streams)

    def socket(self, model, entry, cue, streams, tools=()):
        reply = self.client.generate(model=model, messages=[{"role": "user", "content": cue}], max_tokens=LIMIT, temperature=0, stream=streams,
                                     response_format=FORMAT, split_reasoning=True, chat_template_kwargs=entry.get("arguments", {}),
                                     **({"tools": tools} if tools else {}))
        self.assertEqual("eos", reply.last["event"], reply.last)
        pieces = [event for event in reply.events if event["event"] in ("reasoning", "tool_call")]
        reasoning = "".join(event["text"] for event in pieces if event["event"] == "reasoning") or reply.last.get("reasoning", "")
        names = [event["name"] for event in pieces if "name" in event]
        return reasoning, reply.text, names or [call["function"]["name"] for call in reply.last.get("tool_calls", [])]

    def check(self, family, cue, way, wanted, **fields):
        for streams in (False, True):
            with self.subTest(family=family, way=way.__name__, streams=streams, cue=cue):
                reasoning, text, names = way(family, self.entries[family], cue, streams, **fields)
                self.assertEqual((test_turns.THOUGHTS, wanted), (reasoning.strip(), names or json.loads(text)))
                self.assertEqual("" if names else json.dumps(wanted), text)

    def test_come_behind_the_reasoning_in_every_api(self):
        self.assertEqual(34, len(self.entries))
        ways = (self.chat_completions, self.responses, self.messages, self.ollama_chat, self.ollama_generate, self.socket)
        for family in self.entries:
            for way in ways:
                self.check(family, ASK, way, VALUE)
            self.request("POST", "/models/unload", {"model": family})

    def test_have_no_reasoning_behind_a_begun_answer(self):
        for family, entry in self.entries.items():
            messages = [{"role": "user", "content": ASK}, {"role": "assistant", "content": "Sure: "}]
            reasoning, text, _ = self.chat_completions(family, entry, ASK, True, messages=messages)
            with self.subTest(family=family, text=text):
                self.assertEqual(("", ["a"]), (reasoning, list(json.loads(text))))
            self.request("POST", "/models/unload", {"model": family})

    def test_or_calls_as_the_model_chooses(self):
        ways = (self.chat_completions, self.responses, self.messages, self.ollama_chat, self.socket)
        for family, entry in self.entries.items():
            for way in ways[:1 if self.has_control_marks else len(ways)]:
                if "call" in entry:
                    self.check(family, ACT, way, ["look"], tools=TOOLS)
            self.request("POST", "/models/unload", {"model": family})


class MarksAreTexts(Answers):
    """All marks are visible, as in files whose marks were not declared control tokens."""

    has_control_marks = False


if __name__ == "__main__":
    unittest.main()
