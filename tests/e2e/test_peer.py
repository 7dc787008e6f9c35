"""The same requests to umad and to the packaged llama-server, on the same trained model with greedy sampling: the same text,
the same finish reasons, the same stream.

The differences, and their reasons:
- llama-server's streams begin with "content": null, umad's with "": OpenAI has both.
- The last chunk of llama-server's text completions has the usage even if the request did not ask for it; umad follows
  stream_options.
- llama-server's answers have "timings" and "system_fingerprint", umad's a receipt under "uma".
- umad's messages also have OpenAI's "refusal".
- Each chunk of llama-server's streams has its own time as "created"; all chunks of umad's have that of the stream.
- llama-server answers an empty "messages" and wrong types differently, so errors are not compared.
"""

import json
import os
import pathlib
import random
import tempfile
import unittest

import test_vocabularies
import uma
from test_http import HttpTest

SHIPPED = uma.ROOT / "models" / "uma-tiny.gguf"

CHATS = {
    "a question": [{"role": "user", "content": "What is the capital of France?"}],
    "a longer answer": [{"role": "user", "content": "Tell me of the sea."}],
    "turns": [{"role": "user", "content": "My name is Ada."}, {"role": "assistant", "content": "Nice to meet you, Ada."},
              {"role": "user", "content": "What is my name?"}],
    "a system prompt": [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Count to 5"}],
    "text in parts": [{"role": "user", "content": [{"type": "text", "text": "What is 4 + 9?"}]}],
    "more than ASCII": [{"role": "user", "content": "¿Qué es el mar? 🌊"}],
}
PROMPTS = ("Once upon a time", "The capital of France is", "1, 2, 3, 4,", "Zażółć gęślą jaźń")


def usage_of(answer):
    """The counts that both have."""
    usage = answer["usage"]
    return usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]


def objects(stream):
    """The objects of a stream of server-sent events, which must end with [DONE]."""
    lines = [line.removeprefix("data: ") for line in stream.decode().split("\n\n")]
    assert lines[-2:] == ["[DONE]", ""], lines[-3:]
    return [json.loads(line) for line in lines[:-2]]


class SameAnswers(HttpTest):
    model = SHIPPED

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.peer = cls.enterClassContext(uma.LlamaServer(SHIPPED, "-c", "8192", "-np", "4", "-t", "2"))

    def ours(self, path, body):
        connection = self.connect()
        connection.request("POST", path, json.dumps(body))
        return connection.getresponse().read()

    def both(self, path, body):
        return self.ours(path, body), self.peer.post(path, body)

    def assert_same_answer(self, path, body):
        ours, theirs = (json.loads(answer) for answer in self.both(path, body))
        self.assertEqual(theirs["object"], ours["object"])
        (our_choice,), (their_choice,) = ours["choices"], theirs["choices"]
        if "message" in our_choice:
            self.assertIsNone(our_choice["message"].pop("refusal"))
        self.assertEqual(their_choice, {name: our_choice.get(name) for name in their_choice})
        if "stop" not in body:  # a stop string may end within a token; the two then count differently
            self.assertEqual(usage_of(theirs), usage_of(ours))
        return our_choice

    def test_chats(self):
        for name, messages in CHATS.items():
            for limit in (1, 16, 64):
                with self.subTest(chat=name, max_tokens=limit):
                    self.assert_same_answer("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": limit})

    def test_completions(self):
        for prompt in PROMPTS:
            with self.subTest(prompt=prompt):
                self.assert_same_answer("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 24})

    def assert_same_places(self, theirs, ours):
        self.assertEqual([place["bytes"] for place in theirs], [place["bytes"] or [] for place in ours])
        for their_place, our_place in zip(theirs, ours):
            self.assertAlmostEqual(their_place["logprob"], our_place["logprob"], delta=1e-3)
            # Two tokens that are almost equally likely may be in either order.
            for their_top, our_top in zip(their_place["top_logprobs"], our_place["top_logprobs"], strict=True):
                self.assertAlmostEqual(their_top["logprob"], our_top["logprob"], delta=1e-3)

    def test_how_likely_the_tokens_were(self):
        for name, messages in CHATS.items():
            with self.subTest(chat=name):
                body = {"messages": messages, "temperature": 0, "max_tokens": 12, "logprobs": True, "top_logprobs": 5}
                theirs, ours = (json.loads(answer)["choices"][0]["logprobs"]["content"] for answer in reversed(self.both("/v1/chat/completions", body)))
                self.assert_same_places(theirs[:len(ours)], ours)

    def test_how_likely_hot_tokens_are_is_not_changed_by_the_temperature(self):
        # The drawn tokens differ, but the probabilities at the first place do not.
        body = {"messages": CHATS["a question"], "temperature": 1.5, "top_p": 0.5, "seed": 1, "max_tokens": 1, "logprobs": True, "top_logprobs": 20}
        theirs, ours = (json.loads(answer)["choices"][0]["logprobs"]["content"][0] for answer in reversed(self.both("/v1/chat/completions", body)))
        for their_top, our_top in zip(theirs["top_logprobs"], ours["top_logprobs"], strict=True):
            self.assertAlmostEqual(their_top["logprob"], our_top["logprob"], delta=1e-3)

    def test_stop_strings(self):
        whole = self.assert_same_answer("/v1/chat/completions", {"messages": CHATS["a longer answer"], "temperature": 0, "max_tokens": 64})
        text = whole["message"]["content"]
        for stop in (text[10:14], text[5:6], [text[20:30], "never said"], "never said"):
            with self.subTest(stop=stop):
                choice = self.assert_same_answer("/v1/chat/completions", {"messages": CHATS["a longer answer"], "temperature": 0,
                                                                          "max_tokens": 64, "stop": stop})
                self.assertEqual("stop" if stop != "never said" else whole["finish_reason"], choice["finish_reason"])

    def test_the_penalties_and_the_bias(self):
        for fields in ({"frequency_penalty": 1.5}, {"presence_penalty": 1.0}, {"logit_bias": {"300": 5}}):
            with self.subTest(**fields):
                self.assert_same_answer("/v1/chat/completions", {"messages": CHATS["a longer answer"], "temperature": 0, "max_tokens": 40,
                                                                 **fields})

    def test_streams_of_chats(self):
        for name, messages in CHATS.items():
            for wants_usage in (False, True):
                with self.subTest(chat=name, usage=wants_usage):
                    body = {"messages": messages, "temperature": 0, "max_tokens": 16, "stream": True,
                            "stream_options": {"include_usage": wants_usage}}
                    ours, theirs = (objects(stream) for stream in self.both("/v1/chat/completions", body))
                    self.assertEqual(self.shape_of_chat(theirs), self.shape_of_chat(ours))
                    # llama-server's chunks have their own times.
                    self.assertEqual(1, len({chunk["created"] for chunk in ours}))

    def shape_of_chat(self, chunks):
        """The parts of a stream that do not depend on where its text was cut."""
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]]
        self.assertEqual(1, len({(chunk["id"], chunk["model"], chunk["object"]) for chunk in chunks}))
        self.assertEqual([None] * (len(reasons) - 1), reasons[:-1])
        return {
            "object": chunks[0]["object"],
            "first role": deltas[0].get("role"),
            "other roles": {delta.get("role") for delta in deltas[1:]},
            "text": "".join(delta.get("content") or "" for delta in deltas),
            "last delta": deltas[-1],
            "reason": reasons[-1],
            "usage": [usage_of(chunk) for chunk in chunks if not chunk["choices"]],
        }

    def test_streams_of_completions(self):
        for prompt in PROMPTS:
            with self.subTest(prompt=prompt):
                body = {"prompt": prompt, "temperature": 0, "max_tokens": 16, "stream": True}
                ours, theirs = ([chunk["choices"][0] for chunk in objects(stream)] for stream in self.both("/v1/completions", body))
                self.assertEqual("".join(choice["text"] for choice in theirs), "".join(choice["text"] for choice in ours))
                self.assertEqual(theirs[-1], {name: ours[-1].get(name) for name in theirs[-1]})
                self.assertEqual({None}, {choice["finish_reason"] for choice in ours[:-1]})


WORDS = ("the file src/main.cpp has a bug in line 42: naïve café 世界 🙂 don't  \"quoted\" `code` <b>tag</b> 3.14159 -17 \n\n\n\tx = {'a': [1, 2]}\r\n "
         "end").split(" ")


def chat_with_tools(random):
    """The messages and tools of an agent's conversation."""

    def words(count):
        return " ".join(random.choice(WORDS) for _ in range(count))

    tools = [{"type": "function", "function": {
        "name": f"tool_{i}", "description": words(6),
        "parameters": {"type": "object", "properties": {"path": {"type": "string", "description": words(3)}, "count": {"type": "integer"}},
                       "required": ["path"]}}} for i in range(random.randint(1, 3))]
    messages = [{"role": "system", "content": words(8)}] if random.random() < 0.7 else []
    for turn in range(random.randint(1, 3)):
        messages.append({"role": "user", "content": words(random.randint(1, 25))})
        if random.random() < 0.6:
            calls = [{"id": f"call{turn}{i}abcd", "type": "function",
                      "function": {"name": "tool_0", "arguments": json.dumps({"path": words(2), "count": random.randint(0, 99)})}}
                     for i in range(random.choice((1, 1, 2)))]
            messages.append({"role": "assistant", "content": random.choice(("", words(4))), "tool_calls": calls})
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": words(12)} for call in calls]
        messages.append({"role": "assistant", "content": words(10)})
    return {"messages": [*messages, {"role": "user", "content": words(5)}], "tools": tools}


class SamePrompts(HttpTest):
    """Of chats with tools, with the template of Qwen2.5 and the vocabulary of uma-tiny, or a model with its own (UMA_REAL_MODEL)."""

    flags = ("--http", "127.0.0.1:0", "--n-ctx", "4096", "--slots", "2")

    @classmethod
    def setUpClass(cls):
        cls.model = pathlib.Path(os.environ.get("UMA_REAL_MODEL") or f"{cls.enterClassContext(tempfile.TemporaryDirectory())}/uma-tiny-qwen2_5.gguf")
        if "UMA_REAL_MODEL" not in os.environ:
            test_vocabularies.write_model(SHIPPED, "qwen2_5", cls.model.parent)
        super().setUpClass()
        cls.peer = cls.enterClassContext(uma.LlamaServer(cls.model, "-c", "4096", "-np", "1", "-t", "2"))

    def test_sixty_chats_with_tools(self):
        draw = random.Random(7)
        for i in range(60):
            chat = chat_with_tools(draw)
            text = json.loads(self.peer.post("/apply-template", chat))["prompt"]
            theirs = json.loads(self.peer.post("/tokenize", {"content": text, "add_special": True, "parse_special": True}))["tokens"]
            with self.subTest(chat=i):
                self.assertEqual(text, self.ok("/apply-template", chat)["prompt"])
                self.assertEqual(theirs, self.ok("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"])
                answer = self.ok("/v1/chat/completions", {**chat, "max_tokens": 1})
                self.assertEqual(len(theirs), answer["usage"]["prompt_tokens"])

    def ok(self, path, body):
        status, answer = self.request("POST", path, body)
        self.assertEqual(200, status, answer)
        return answer


if __name__ == "__main__":
    unittest.main()
