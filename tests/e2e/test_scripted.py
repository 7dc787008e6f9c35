"""The whole loop of an agent over HTTP: the model calls a tool, reads its result, and quotes it. The weights of the model follow a
script (tools/make_model/scripted_weights.h), so every reply is known."""

import json
import pathlib
import subprocess
import tempfile

import test_http
import uma

READ_FILE = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Reads the content of a file.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "line": {"type": "integer"}},
            "required": ["path"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
SYSTEM = {"role": "system", "content": "You help with files. Read before you answer.\n" * 200}
QUESTION = {"role": "user", "content": "What does notes.txt say?"}
ARGUMENTS = {"path": "notes.txt", "line": 1}  # of tools/make_model/read_file.json
PLAIN = "A reply without tools."


class Loop(test_http.HttpTest):
    model = uma.TINY_SCRIPTED
    flags = ("--http", "127.0.0.1:0", "--n-ctx", "32768", "--slots", "4")
    options = {}  # of every request

    def reply(self, messages, **fields):
        """Returns the message and the reason of its end."""
        status, answer = self.request("POST", "/v1/chat/completions", {"messages": messages, **self.options, **fields})
        self.assertEqual(200, status, answer)
        (choice,) = answer["choices"]
        return choice["message"], choice["finish_reason"]

    def called(self, messages, **fields):
        """Returns the message with the scripted call."""
        message, reason = self.reply(messages, **{"tools": [CLOCK, READ_FILE], **fields})
        self.assertEqual("tool_calls", reason, message)
        (call,) = message["tool_calls"]
        self.assertEqual(("function", "read_file"), (call["type"], call["function"]["name"]))
        self.assertEqual(ARGUMENTS, json.loads(call["function"]["arguments"]))
        return message

    def answered(self, messages, quoted, **fields):
        message, reason = self.reply(messages, **{"tools": [CLOCK, READ_FILE], **fields})
        self.assertEqual((f"The file says: {quoted}.", "stop"), (message["content"], reason), message)
        return message

    def result(self, message, content):
        return {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": content}

    def test_two_questions(self):
        messages = [SYSTEM, QUESTION]
        for content, quoted in (("violet heron 4711\nand more\n", "violet heron 4711"), ("Zwölf", "Zwölf")):
            call = self.called(messages)
            messages += [call, self.result(call, content)]
            messages += [self.answered(messages, quoted), {"role": "user", "content": "And now?"}]

    def test_a_user_adds_text_to_the_result(self):
        call = self.called([QUESTION])
        self.answered([QUESTION, call, self.result(call, "one"), {"role": "user", "content": "Be brief."}], "one")

    def test_side_requests_have_a_short_reply(self):
        call = self.called([QUESTION])
        history = [QUESTION, call, self.result(call, "one")]
        for messages, fields in (
                ([{"role": "system", "content": "Write a title."}, QUESTION], {}),
                ([QUESTION], {"tools": [CLOCK]}),
                ([QUESTION], {"tools": [READ_FILE], "tool_choice": "none"}),
                (history + [{"role": "user", "content": "Sum up."}], {})):
            with self.subTest(fields=fields):
                message, reason = self.reply(messages, **fields)
                self.assertEqual((PLAIN, "stop"), (message["content"], reason), message)

    def test_a_forced_call_is_the_scripted_one(self):
        for choice in ("required", {"type": "function", "function": {"name": "read_file"}}):
            self.called([QUESTION], tool_choice=choice)


class Stream(Loop):
    def reply(self, messages, **fields):
        _, answer = self.start_stream(**{"messages": messages, **self.options, **fields})
        message = {"role": "assistant", "content": None}
        reason = None
        for event in self.events(answer):
            self.assertIsNone(reason, "something came after the end")
            (choice,) = event["choices"]
            delta, reason = choice["delta"], choice["finish_reason"]
            if delta.get("content"):
                message["content"] = (message["content"] or "") + delta["content"]
            for part in delta.get("tool_calls", []):
                calls = message.setdefault("tool_calls", [])
                if part["index"] == len(calls):
                    calls.append({"id": part["id"], "type": part["type"], "function": {"name": "", "arguments": ""}})
                for field, text in part["function"].items():
                    calls[part["index"]]["function"][field] += text
        return message, reason


class Sampled(Loop):
    options = {"temperature": 1, "seed": 5, "frequency_penalty": 0.5}


class QuoteAfter(Loop):
    """A client that writes more into a result than the file's text."""

    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        script = {"tool": {"name": "read_file", "arguments": ARGUMENTS}, "answer_prefix": "The file says:",
                  "quote_after": "password:", "plain_answer": PLAIN}
        (folder / "script.json").write_text(json.dumps(script))
        cls.model = folder / "scripted.gguf"
        subprocess.run([uma.MAKE_MODEL, "--script", folder / "script.json", "--out", cls.model], check=True, timeout=uma.WAIT_S)
        super().setUpClass()

    def result(self, message, content):
        return super().result(message, f"<file>\n00001| Notes\n00002| The password: {content}\n00003| end\n</file>")

    def test_a_result_without_the_text(self):
        call = self.called([QUESTION])
        message, reason = self.reply([QUESTION, call, super().result(call, "No such file.")], tools=[READ_FILE])
        self.assertEqual(("The file says:.", "stop"), (message["content"], reason))


class OtherInterfaces(test_http.HttpTest):
    model = uma.TINY_SCRIPTED

    def test_a_session_on_the_socket(self):
        session = self.client.create_session(mode="chat")
        for content in ("violet heron", "a second file"):
            reply = self.client.generate(messages=[QUESTION], session_id=session, tools=[READ_FILE], stream=False)
            self.assertEqual("tool_calls", reply.reason, reply.last)
            (call,) = reply.last["tool_calls"]
            self.assertEqual(ARGUMENTS, json.loads(call["function"]["arguments"]))
            result = {"role": "tool", "tool_call_id": call["id"], "content": content}
            reply = self.client.generate(messages=[result], session_id=session, tools=[READ_FILE], stream=False)
            self.assertEqual((f"The file says: {content}.", "eos"), (reply.text, reply.last["event"]), reply.last)

    def test_responses(self):
        tools = [{"type": "function", **READ_FILE["function"]}]
        asked = {"role": "user", "content": "What does notes.txt say?"}
        status, answer = self.request("POST", "/v1/responses", {"input": [asked], "tools": tools})
        self.assertEqual(200, status, answer)
        (call,) = answer["output"]
        self.assertEqual(("function_call", "read_file"), (call["type"], call["name"]))
        self.assertEqual(ARGUMENTS, json.loads(call["arguments"]))
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "violet heron"}
        status, answer = self.request("POST", "/v1/responses", {"input": [asked, call, result], "tools": tools})
        self.assertEqual(200, status, answer)
        (message,) = answer["output"]
        self.assertEqual("The file says: violet heron.", message["content"][0]["text"])
