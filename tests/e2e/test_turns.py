"""Conversations of twenty turns with calls, in the template of each family: once through a session, which gets new messages only,
and once as whole histories, which an OpenAI client sends. Each model plays replies in its family's notation (make_model --replies).
tests/templates/turns.json has the replies, and what the template cuts from the past: the prefix is found up to there, whichever way
the conversation came, and both ways lead to the same tokens."""

import json
import os
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
import uma

sys.path.insert(0, str(test_templates.TEMPLATES))
import expect  # noqa: E402 - it is beside the templates
import forms  # noqa: E402

TURNS = 12
FORCED_EVERY = 5  # In the last of so many turns, the client asks for a call.
REUSED_MIN = 0.95  # Of the tokens of all prompts behind the first, where a template keeps the past.
ARGUMENTS = {"city": "k#", "days": 2, "exact": True}  # "#" is the label of the turn.
ANSWER = "The key k# fits."
THOUGHTS = "Hm."
LOOK = {"type": "function",
        "function": {"name": "look", "description": "Looks up a city.",
                     "parameters": {"type": "object",
                                    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"}},
                                    "required": ["city"]}}}
QUESTION, RESULT = "Look up ask", "Found got"  # The label follows.
CUES = (QUESTION.split()[-1], RESULT.split()[-1])
SYSTEMS = ("Be brief.", "Be quick.")  # Of the session and of the histories, so that neither finds the other's tokens.
MARK = re.compile(r"\]<\]minimax\[>\[|\]~b\]|\]~!b\[|\[e~\[|\[/?[A-Z_]{3,}\]|</?[|｜]?[\w:｜▁]+[|｜]?>|<\|\"\|>")


def read_turns():
    return expect.read(test_templates.TEMPLATES / "turns.json")


def label(entry, turn):
    """What the replies of a turn have of it: its number if the family counts its calls, else a letter."""
    return str(turn) if entry.get("counts") else chr(ord("a") + turn)


def question(name):
    return {"role": "user", "content": f"{QUESTION}{name}"}


def result(name, call_id):
    return {"role": "tool", "tool_call_id": call_id, "content": f"{RESULT}{name}"}


class Tokens:
    """The vocabulary of a model that plays replies: characters, bytes, and the words and marks of its texts."""

    def __init__(self, texts, labels, has_control_marks):
        # The names of arguments are no part of a mark.
        found = {mark for text in texts for mark in MARK.findall(text) if not any(name in mark for name in ARGUMENTS)}
        # The library takes the mark of the end of a Harmony message for the end of a reply where there is no other.
        found |= {"<|return|>"} if "<|call|>" in found else set()
        self.controls = {mark for mark in found if has_control_marks and re.search("[|｜[]|^<(start|end)_|escape", mark)}
        words = {word for text in texts for word in re.findall("[A-Za-z]{4,}", text)}
        cues = {f"{cue}{name}" for cue in CUES for name in labels}
        self.texts = sorted(found | words | cues | {name for name in labels if len(name) > 1} | {"<s>"}, key=lambda text: (-len(text), text))

    def of(self, text):
        """The tokens of a text as the library finds them: the longest ones first, then characters and bytes."""
        parts = [(text, False)]
        for token in self.texts:
            divided = []
            for part, is_token in parts:
                if is_token or token not in part:
                    divided.append((part, is_token))
                    continue
                pieces = part.split(token)
                for i, piece in enumerate(pieces):
                    divided += [(token, True)] if i > 0 else []
                    divided += [(piece, False)] if piece else []
            parts = divided
        tokens = []
        for part, is_token in parts:
            tokens += [part] if is_token else [token for character in part for token in self.of_character(character)]
        return tokens

    @staticmethod
    def of_character(character):
        if character == " ":
            return ["\u2581"]
        if character in "\t\n" or "!" <= character <= "~":
            return [character]
        return [f"<0x{byte:02X}>" for byte in character.encode()]

    def of_reply(self, text):
        """None stands for the label of the turn."""
        tokens = []
        for i, part in enumerate(text.split("#")):
            tokens += [None] if i > 0 else []
            tokens += self.of(part)
        return tokens


def template_of(family, entry):
    """The family's template; where it opens each message with <s>, with another mark, because in these models <s> begins the prompt."""
    source = (test_templates.TEMPLATES / "families" / f"{family}.jinja").read_text(encoding="utf-8")
    return source.replace("bos_token", f"'{entry['opens']}'") if "opens" in entry else source


def prompts_of_a_turn(family, entry):
    """What the template writes up to the call, and up to the answer."""
    template = template_of(family, entry)
    first = label(entry, 0)
    call = {"id": "a1b2c3d4e", "type": "function", "function": {"name": "look", "arguments": json.loads(json.dumps(ARGUMENTS).replace("#", first))}}
    messages = [{"role": "system", "content": SYSTEMS[0]}, question(first),
                {"role": "assistant", "content": "", "reasoning_content": THOUGHTS, "tool_calls": [call]}, result(first, "a1b2c3d4e")]
    inputs = []
    for count in (2, 4):
        given = {"messages": messages[:count], "tools": [LOOK], "add_generation_prompt": True, **entry.get("arguments", {})}
        given = forms.in_form(given, forms.form_of(family))
        inputs.append((template, {**test_families.switches(family, given), "bos_token": "<s>", "eos_token": "</s>", "unix_s": int(time.time())}))
    return [text["text"] for text in test_templates.render_all(inputs)]


def write_model(family, entry, has_control_marks, folder):
    """Writes the model, and returns its tokens."""
    prompts = prompts_of_a_turn(family, entry)
    texts = [entry.get("thoughts", "") + entry[part] for part in ("call", "answer")]
    labels = [label(entry, turn) for turn in range(TURNS)]
    tokens = Tokens([*prompts, *texts, *SYSTEMS], labels, has_control_marks)
    replies = []
    for prompt, cue, text in zip(prompts, CUES, texts):
        cue += labels[0]
        behind = prompt[prompt.rindex(cue) + len(cue):]
        replies.append({"after": len(tokens.of(behind)), "tokens": tokens.of_reply(text)})
    script = {"tokens": [{"text": text, "is_control": text in tokens.controls} for text in tokens.texts],
              "cues": [{"text": f"{cue}{name}", "echo": name, "reply": i} for i, cue in enumerate(CUES) for name in labels],
              "replies": replies, "end": entry.get("end", "</s>")}
    path = folder / f"{family}.json"
    path.write_text(json.dumps(script))
    template = folder / f"{family}.jinja"
    template.write_text(template_of(family, entry))
    subprocess.run([uma.MAKE_MODEL, "--replies", path, "--chat-template-file", template, "--out", folder / f"{family}.gguf"], check=True,
                   timeout=uma.WAIT_S)
    return tokens


class Reply:
    def __init__(self, content, reasoning, calls, prompt_tokens, reused_tokens, completion_tokens):
        self.content = content
        self.reasoning = reasoning
        self.calls = calls
        self.prompt_tokens = prompt_tokens
        self.reused_tokens = reused_tokens
        self.completion_tokens = completion_tokens


class Turns(test_http.HttpTest):
    """The marks in bars and brackets are control tokens, which replies do not show."""

    flags = ("--http", "127.0.0.1:0", "--n-ctx", "6144", "--kv-cells", "12288", "--slots", "2")
    environment = {"UMA_VERIFY": 50}  # Each check computes the whole conversation.
    takes_long = True
    has_control_marks = True
    families = None  # All.

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.entries = {family: entry for family, entry in read_turns().items() if cls.families is None or family in cls.families}
        cls.tokens = {family: write_model(family, entry, cls.has_control_marks, pathlib.Path(folder.name)) for family, entry in cls.entries.items()}
        # A session and its histories have a slot each, so neither pays for the other's cells.
        cls.config = f"models_dirs: [{folder.name}]\nkv: {{layout: split}}\n"
        super().setUpClass()

    # Each way replies to the messages that were added.

    def session(self, family, entry, client):
        session_id = client.create_session(mode="chat", model=family)

        def reply_to(messages, added, max_tokens=200, **fields):
            del messages
            reply = client.generate(session_id=session_id, messages=added, tools=[LOOK], temperature=0, max_tokens=max_tokens, stream=False,
                                    split_reasoning=True, chat_template_kwargs=entry.get("arguments", {}), **fields)
            assert reply.last["event"] == "eos", reply.last
            usage = reply.usage
            return Reply(reply.text, reply.last.get("reasoning"), reply.last.get("tool_calls"), usage["prompt_tokens"], usage["reused_tokens"],
                         usage["completion_tokens"])
        return reply_to

    def history(self, family, entry, connection):
        def reply_to(messages, added, max_tokens=200, **fields):
            del added
            status, answer = self.request("POST", "/v1/chat/completions", {
                "model": family, "messages": messages, "tools": [LOOK], "temperature": 0, "max_tokens": max_tokens,
                "chat_template_kwargs": entry.get("arguments", {}), **fields}, connection=connection)
            assert status == 200, answer
            message = answer["choices"][0]["message"]
            usage = answer["usage"]
            return Reply(message["content"] or "", message.get("reasoning_content"), message.get("tool_calls"), usage["prompt_tokens"],
                         usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"])
        return reply_to

    def hold(self, reply_to, entry, system):
        """Holds the conversation. Returns its messages and, for each reply, the number of messages before it and the reply."""
        messages = [{"role": "system", "content": system}]
        replies = []
        added = list(messages)

        def say(message, **fields):
            messages.append(message)
            added.append(message)
            reply = reply_to(list(messages), list(added), **fields)
            replies.append((len(messages), reply))
            added.clear()
            assert (reply.reasoning or "") == (THOUGHTS if "thoughts" in entry else ""), (reply.reasoning, reply.content, reply.calls)
            said = {"role": "assistant", "content": reply.content}
            said.update({"reasoning_content": reply.reasoning} if reply.reasoning else {})
            said.update({"tool_calls": reply.calls} if reply.calls else {})
            messages.append(said)
            return reply

        for turn in range(TURNS):
            is_forced = turn % FORCED_EVERY == FORCED_EVERY - 1
            name = label(entry, turn)
            called = say(question(name), tool_choice="required" if is_forced else "auto")
            assert called.calls and not called.content, (called.content, called.calls)
            (call,) = called.calls
            assert call["function"]["name"] == "look", call
            wanted = json.loads(json.dumps(ARGUMENTS).replace("#", name))
            assert json.loads(call["function"]["arguments"]) == wanted, call
            answered = say(result(name, call["id"]))
            assert not answered.calls and answered.content.strip() == ANSWER.replace("#", name), (answered.content, answered.calls)
        return messages, replies

    def prompt_of(self, family, entry, messages, connection):
        status, answer = self.request("POST", "/apply-template", {
            "model": family, "messages": messages, "tools": [LOOK], "chat_template_kwargs": entry.get("arguments", {})}, connection=connection)
        assert status == 200, answer
        return answer["prompt"]

    @staticmethod
    def cut_at(entry, prompts, texts, at):
        """The part of a reply where the past was written differently."""
        for i in reversed(range(len(texts))):
            cue = f"{CUES[i % 2]}{label(entry, i // 2)}"
            begin = prompts[i].rindex(cue) + len(cue)
            if at < begin or not prompts[-1].startswith(prompts[i][:begin]):
                continue
            inside = at - len(prompts[i])
            if inside < len(entry.get("thoughts", "")) and "thoughts" in entry:
                return "thoughts"
            if 0 <= inside <= len(texts[i]):
                return ("calls", "answers")[i % 2]
            return "prompts"
        return "prompts"

    def verdict(self, family, entry, messages, replies, connection):
        """What the template cuts; and for each prompt, the tokens that it has in common with the text before."""
        parts, kept = set(), []
        prompts, texts, tokens = [], [], []
        for i, (count, _) in enumerate(replies):
            prompts.append(self.prompt_of(family, entry, messages[:count], connection))
            tokens_before, tokens = tokens, self.tokens[family].of(prompts[-1])
            if i > 0:
                before = prompts[-2] + texts[-1]
                kept.append(len(os.path.commonprefix([tokens_before + self.tokens[family].of(texts[-1]), tokens])))
                if not prompts[-1].startswith(before):
                    parts.add(self.cut_at(entry, prompts, texts, len(os.path.commonprefix([before, prompts[-1]]))))
            texts.append((entry.get("thoughts", "") + entry[("call", "answer")[i % 2]]).replace("#", label(entry, i // 2)))
        return "cut at " + " and ".join(sorted(parts, reverse=True)) if parts else "kept", kept

    def try_family(self, family):
        """Returns the verdict, or what is wrong."""
        entry = self.entries[family]
        connection = self.connect()
        client = self.daemon.client()
        session = self.session(family, entry, client)
        ways = {"session": self.hold(session, entry, SYSTEMS[0]),
                "histories": self.hold(self.history(family, entry, connection), entry, SYSTEMS[1])}
        lengths = [[reply.prompt_tokens for _, reply in replies] for _, replies in ways.values()]
        problems = []
        if lengths[0] != lengths[1]:
            problems.append(f"prompts of a session and of histories: {lengths}")
        verdict, kept = self.verdict(family, entry, *ways["histories"], connection)
        for way, (_, replies) in ways.items():
            for i, ((_, reply), common) in enumerate(zip(replies[1:], kept)):
                # The last token is computed.
                if reply.reused_tokens < common - 1:
                    problems.append(f"{way}, reply {i + 2}: {reply.reused_tokens} of {common} common tokens were reused")
            ratio = sum(reply.reused_tokens for _, reply in replies[1:]) / sum(reply.prompt_tokens for _, reply in replies[1:])
            if verdict == "kept" and ratio < REUSED_MIN:
                problems.append(f"{way}: {ratio:.3f} of the tokens were reused")
        # The session's chain is that of its history: all of it is found.
        messages = ways["session"][0] + [question(label(entry, 0))]
        last = session(None, messages[-1:], max_tokens=1)
        again = self.history(family, entry, connection)(messages, None, max_tokens=1)
        if (again.prompt_tokens, again.reused_tokens) != (last.prompt_tokens, last.prompt_tokens - 1):
            problems.append(f"{again.reused_tokens} of {again.prompt_tokens} tokens are those of the session's {last.prompt_tokens}")
        client.close()
        connection.close()
        self.request("POST", "/models/unload", {"model": family})
        return "; ".join(problems[:3]) or verdict

    def test_tokens_are_reused_through_sessions_and_histories(self):
        waiting = sorted(self.entries)
        found = {}

        def work():
            while waiting:
                family = waiting.pop()
                try:
                    found[family] = self.try_family(family)
                except AssertionError as problem:
                    found[family] = f"{problem}"

        uma.parallel(work, work, wait_s=15 * uma.WAIT_S)  # dozens of models, each with two conversations
        for family, entry in self.entries.items():
            with self.subTest(family=family):
                self.assertEqual(entry["verdict"], found[family])


class MarksAreTexts(Turns):
    """All marks are visible, as in files whose marks were not declared control tokens."""

    has_control_marks = False
    families = ("deepseek_v3_1", "gemma4", "gpt_oss", "kimi_k2", "mistral_v13", "seed_oss")


if __name__ == "__main__":
    unittest.main()
