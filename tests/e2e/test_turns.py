"""Agents' conversations of 20 turns, in the templates of the families that agents use (tests/templates/turns.json): whole
histories and sessions compute little twice, and both have the same tokens. The weights are random; the calls are forced, and
follow the grammar of the family."""

import json
import pathlib
import subprocess
import tempfile
import unittest

import test_http
import test_templates
import uma

TURNS = 20
TURNS_OF_A_TASK = 5  # Each begins with a user's text; the other turns begin with a tool's result.
REUSED_AT_LEAST = 0.95
TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Reads a part of a file. " * 20,
        "parameters": {
            "type": "object",
            "properties": {"path": {"enum": ["notes.txt", "todo.txt"]}, "whole": {"type": "boolean"}},
            "required": ["path", "whole"],
            "additionalProperties": False,
        },
    },
}
SYSTEM = {"role": "system", "content": "You help with files. Read before you answer. " * 20}
CALL = {"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 300}
ANSWER = {"max_tokens": 8}


class Conversation:
    """Plays the turns. `ask(messages, options)` sends the new messages and returns the reply's message, the tokens of its
    prompt, how many of them were reused, and the new tokens."""

    def __init__(self, ask):
        self.ask = ask
        self.messages = []
        self.known = 0  # Tokens that were computed before, of all requests together.
        self.reused = 0
        self.chain = 0  # Tokens of the last prompt and reply.

    def turn(self, new, options):
        self.messages += new
        message, prompt, reused, added = self.ask(self, new, options)
        self.messages.append(message)
        self.known += self.chain
        self.reused += reused
        self.chain = prompt + added
        return message

    def play(self):
        for task in range(TURNS // TURNS_OF_A_TASK):
            new = ([] if self.messages else [SYSTEM]) + [{"role": "user", "content": f"What is new in the files of week {task}?"}]
            for step in range(TURNS_OF_A_TASK):
                (call,) = self.turn(new, CALL)["tool_calls"]
                json.loads(call["function"]["arguments"])
                new = [{"role": "tool", "tool_call_id": call["id"], "content": f"Line {step} of week {task}."}]
            self.turn(new, ANSWER)
        return self


class Turns(test_http.HttpTest):
    flags = ("--http", "127.0.0.1:0", "--n-ctx", "16384", "--slots", "4")

    @classmethod
    def setUpClass(cls):
        cls.families = json.loads((test_templates.TEMPLATES / "turns.json").read_text(encoding="utf-8"))
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        for family, marks in cls.families.items():
            flags = [flag for mark in marks for flag in ("--control-token", mark)]
            subprocess.run([uma.MAKE_MODEL, "--n-ctx", "16384", "--chat-template-file",
                            test_templates.TEMPLATES / "families" / f"{family}.jinja", *flags,
                            "--out", pathlib.Path(folder.name) / f"{family}.gguf"], check=True, timeout=uma.WAIT_S)
        cls.config = f"models_dirs: [{folder.name}]\n"
        super().setUpClass()

    def options(self, family):
        return {"model": family, "tools": [TOOL], "temperature": 0}

    def over_http(self, family):
        def ask(conversation, new, options):
            status, answer = self.request("POST", "/v1/chat/completions",
                                          {"messages": conversation.messages, **self.options(family), **options})
            self.assertEqual(200, status, answer)
            usage = answer["usage"]
            return (answer["choices"][0]["message"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"],
                    usage["completion_tokens"])
        return ask

    def in_session(self, family):
        session = self.client.create_session(mode="chat", model=family)

        def ask(conversation, new, options):
            fields = {key: value for key, value in self.options(family).items() if key != "model"}
            reply = self.client.generate(messages=new, session_id=session, stream=False, split_reasoning=True, **fields, **options)
            self.assertEqual("eos", reply.last["event"], reply.last)
            message = {"role": "assistant", "content": reply.text}
            if reply.last.get("reasoning"):
                message["reasoning_content"] = reply.last["reasoning"]
            if "tool_calls" in reply.last:
                message["tool_calls"] = reply.last["tool_calls"]
            usage = reply.usage
            return message, usage["prompt_tokens"], usage["reused_tokens"], usage["completion_tokens"]
        return ask

    def test_little_is_computed_twice(self):
        for family in self.families:
            for way, ask in (("history", self.over_http(family)), ("session", self.in_session(family))):
                with self.subTest(family=family, way=way):
                    played = Conversation(ask).play()
                    self.assertGreaterEqual(played.reused / played.known, REUSED_AT_LEAST)

    def test_a_history_has_the_tokens_of_the_session(self):
        for family in self.families:
            with self.subTest(family=family):
                session = Conversation(self.in_session(family)).play()
                last = [{"role": "user", "content": "Thanks."}]
                history = Conversation(self.over_http(family))
                history.messages = list(session.messages)
                _, prompt, _, _ = session.ask(session, last, ANSWER)
                history.messages += last
                _, prompt_of_history, reused, _ = history.ask(history, last, ANSWER)
                self.assertEqual(prompt, prompt_of_history)
                self.assertGreaterEqual(reused, REUSED_AT_LEAST * prompt)


if __name__ == "__main__":
    unittest.main()
