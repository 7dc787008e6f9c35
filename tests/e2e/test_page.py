"""The page at / in a browser: what a user sees and does. test_page_views.py has the other views, test_page_hostile.py texts and
pages that mean harm. The scenarios are in page/; each returns what the browser showed."""

import base64
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import browser
import pictures
import played
import uma
import vision

MARKDOWN = """\
## Harbours
The **sea** has `tides`, and [maps](https://maps.example/a?b=1&c=2) have *names*.

1. Cork
2. Oslo
   - north

| Place | Ships |
|---|---:|
| Cork | 12 |

```python
def tide(hour):
    return "high" if hour < 6 else "low"
```

The height is $h = \\frac{a}{2}$, the wind $\\pmb{w}$.
"""
ARABIC = """\
مرحبا بالعالم

- بند واحد
- بند ثان

| مكان |
|---|
| ميناء |

```python
x = 1  # واحد
```
"""
THOUGHTS = "The user asks for a **place**."
CALL = '{"name": "look_up", "arguments": {"city": "Cork", "days": 2}}'
LOOK_UP = {"type": "function", "name": "look_up", "description": "Looks up a city.",
           "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                          "required": ["city", "days"], "additionalProperties": False}}
REPLIES = {"askmarkdown": MARKDOWN,
           "askcall": f"<think>\n{THOUGHTS}\n</think>\n\n<tool_call>\n{CALL}\n</tool_call>",
           "gotresult": "It has **twelve** ships.",
           "ask0": "This is reply #."}
DAYS = {"type": "object", "properties": {"day": {"enum": ["Monday", "Sunday"]}}, "required": ["day"], "additionalProperties": False}


def write_models(folder):
    """Two models that play replies, one with a small context, one that writes long and slowly, and one that reads pictures. Returns
    the daemon's configuration."""
    played.write_model(folder / "player.gguf", REPLIES, ["gotresult"], [f"ask{digit}" for digit in range(1, 10)])
    played.write_model(folder / "arabic.gguf", {"askarabic": ARABIC})
    subprocess.run([uma.MAKE_MODEL, "--preset", "tiny-chat", "--layers", "8", "--width", "256", "--heads", "8", "--kv-heads", "2", "--ff", "512",
                    "--n-ctx", "32768", "--out", folder / "slow.gguf"], check=True, timeout=uma.WAIT_S)
    shutil.copy(folder / "player.gguf", folder / "small.gguf")
    # Greedy, because by chance a random model ends its reply at any place.
    (folder / "models.yaml").write_text(f"slow: {{path: slow.gguf, temperature: 0}}\n"
                                        f"small: {{path: small.gguf, n_ctx: 256}}\n"
                                        f"eyes: {{path: {vision.MODEL}, projector: {vision.PROJECTOR}}}\n")
    return f"models_dirs: [{folder}]\nmodels: {{file: {folder}/models.yaml}}\n"


class TalkTest(browser.PageTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="uma-e2e-page-")))
        cls.config = write_models(cls.folder)
        super().setUpClass()

    def texts(self, session):
        """The roles and texts of a session's messages."""
        return [(item["role"], "".join(part.get("text", "") for part in item["content"])) for item in self.items(session)
                if item["type"] == "message"]


class Talk(TalkTest):
    takes_long = True

    def test_the_first_load(self):
        seen = self.scenario("talk.first_load")
        self.assertEqual("uma-serve", seen.title)
        self.assertEqual({"tiny-chat", "player", "arabic", "small", "slow", "eyes", *uma.SHIPPED_NAMES},
                         {text.split(",")[0].split(" ")[0] for text in seen.models})
        self.assertTrue([text for text in seen.models if text.startswith("uma-picture (draws)")], seen.models)
        self.assertEqual((["Talk", "See", "Manage"], [], True), (seen.views, seen.alerts, seen.hasFocus))

    def test_a_reply_is_formatted_and_its_receipt_tells_what_was_remembered(self):
        seen = self.scenario("talk.markdown", model="player", system="Be brief.", first="Tell me of the sea: askmarkdown", second="Again: ask2")
        shown = seen.shown
        self.assertEqual(("Harbours", ["sea"]), (shown["heading"], shown["bold"]))
        self.assertEqual(["Cork", "Oslo\nnorth", "north"], shown["items"])
        self.assertEqual(["Cork", "12"], shown["cells"])
        self.assertEqual(['def tide(hour):\n    return "high" if hour < 6 else "low"'], [code.strip() for code in shown["code"]])
        self.assertEqual([["maps", "https://maps.example/a?b=1&c=2", "noopener noreferrer", "_blank"]], shown["links"])
        self.assertEqual(2, shown["formulas"])
        self.assertIn("None of", seen.receipt)
        remembered, whole = re.match(r"([\d,]+) of ([\d,]+) tokens were remembered, in the context", seen.nextReceipt).groups()
        self.assertTrue(20 < int(remembered) < int(whole), seen.nextReceipt)
        self.assertTrue(seen.shownSystem)
        self.assertIn("This is reply 2.", seen.replied[1])
        self.assertEqual("Tell me of the sea: askmarkdown – uma-serve", seen.title)
        self.assertEqual("Tell me of the sea: askmarkdown", seen.titles[0])
        session = self.session(seen.id)
        self.assertEqual(("player", 2), (session["model"], session["turns"]))
        self.assertIn(f"{session['tokens']} of", seen.details.replace(",", ""))
        self.assertEqual([("system", "Be brief."), ("user", "Tell me of the sea: askmarkdown"), ("assistant", MARKDOWN.strip()),
                          ("user", "Again: ask2"), ("assistant", "This is reply 2.")],
                         [(role, text.strip()) for role, text in self.texts(seen.id)])

    def test_a_reply_grows_and_can_be_stopped(self):
        before = self.client.metrics()["requests_cancelled_total"]
        seen = self.scenario("talk.stopped", model="slow")
        self.assertTrue(seen.isBusy)
        self.assertLess(seen.lengths[0], seen.lengths[1])
        self.assertIn("The reply was stopped.", seen.receipt)
        self.assertEqual(before + 2, self.client.metrics()["requests_cancelled_total"])
        self.assertEqual(2, self.session(seen.id)["turns"], "what was written stays")
        replies = [text for role, text in self.texts(seen.id) if role == "assistant"]
        for text, shown in zip(replies, seen.replied):
            self.assertIn(text[:15].strip(), shown)

    def test_a_reply_that_has_not_begun_is_stopped_at_once(self):
        before = self.client.metrics()["requests_cancelled_total"]
        seen = self.scenario("talk.stopped_before_it_begins", model="slow", text="Tell me a long story.")
        self.assertEqual((0, ""), (seen.replies, seen.problem))
        self.assertEqual(before + 1, self.client.metrics()["requests_cancelled_total"])
        self.assertFalse(self.session(seen.id)["busy"])

    def test_a_changed_message_is_another_version(self):
        seen = self.scenario("talk.edited", model="player", first="One: ask1", second="Two: ask2", other="Three: ask3")
        self.assertEqual("Two: ask2", seen.offered)
        self.assertRegex("".join(seen.marks), r"^\W*2 of 2\W*$")
        self.assertIn("This is reply 3.", seen.branch["replied"][1])
        self.assertIn("This is reply 2.", seen.before["replied"][1])
        self.assertIn("This is reply 1.", seen.branch["replied"][0])
        self.assertEqual(["One: ask1"], [title for title in seen.tree if "One: ask1" in title], "a conversation has one row")
        self.assertEqual(["One: ask1", "Two: ask2"], [text for role, text in self.texts(seen.old) if role == "user"])
        self.assertEqual(["One: ask1", "Three: ask3"], [text for role, text in self.texts(seen.id) if role == "user"])

    def test_the_oldest_turn_that_a_full_context_has_left_can_be_changed(self):
        seen = self.scenario("talk.edited_after_shift", model="small", system="Be brief.", question="Number #: ask#", other="Other: ask7")
        old, new = self.session(seen.old), self.session(seen.id)
        self.assertGreater(old["dropped_turns"], 0)
        self.assertEqual(["Number 1: ask1", "Number 2: ask2"], [*seen.dropped, *seen.kept][:2])
        self.assertEqual(old["turns"] - old["dropped_turns"], len(seen.kept))
        self.assertEqual((seen.old, 0, 1), (new["parent_id"], new["dropped_turns"], new["turns"]))
        self.assertEqual([("system", "Be brief."), ("user", "Other: ask7"), ("assistant", "This is reply 7.")],
                         [(role, text.strip()) for role, text in self.texts(seen.id)])

    def test_a_reply_is_written_again_with_other_settings(self):
        seen = self.scenario("talk.regenerated", model="slow")
        self.assertIn("20 tokens written", seen.receipt)
        self.assertIn("5 tokens written", seen.again)
        self.assertRegex("".join(seen.marks), r"^\W*2 of 2\W*$")
        self.assertEqual([1, 1], [self.session(each)["turns"] for each in (seen.old, seen.id)])

    def test_settings_reach_the_request_and_mistakes_lose_nothing(self):
        seen = self.scenario("talk.settings", model="slow", schema=DAYS)
        first, second = seen.sent
        self.assertEqual((0.05, 3, 12, {"top_k": 7, "repeat_penalty": 0.05}), (first["temperature"], first["seed"], first["max_output_tokens"], first["uma"]))
        self.assertEqual(DAYS, second["text"]["format"]["schema"])
        self.assertIn("The schema is not JSON", seen.wrong)
        self.assertEqual("What day is it?", seen.kept)
        self.assertIn(json.loads(self.texts(seen.id)[-1][1])["day"], ("Monday", "Sunday"))
        self.assertEqual({"Temperature": "0.05", "top_k": "7", "Seed": "3", "JSON Schema of the reply": json.dumps(DAYS)},
                         {**seen.values, "JSON Schema of the reply": json.dumps(json.loads(seen.values["JSON Schema of the reply"]))})

    def test_tokens_are_counted_and_a_draft_is_kept(self):
        text = "How many tokens has this message?"
        seen = self.scenario("talk.token_count", model="tiny-chat", text=text)
        count = len(self.ask("POST", "tokenize", {"model": "tiny-chat", "content": text})["tokens"])
        self.assertIn(f"This message: {count} tokens.", seen.counted)
        self.assertEqual(text, seen.draft)

    def test_pictures_are_pasted_dropped_and_chosen(self):
        seen = self.scenario("talk.pictures", model="eyes", blind="player", pasted=base64.b64encode(pictures.RED).decode(),
                             dropped=base64.b64encode(pictures.GRADIENT).decode(), files=[str(vision.RED)])
        self.assertEqual([[32, 32, "data:image/png;base64,"]] * 2, seen.sent)
        self.assertEqual(seen.sent, seen.stored)
        self.assertIn("player reads no pictures.", seen.refused)
        content = self.items(seen.id)[0]["content"]
        self.assertEqual(["input_image", "input_image", "input_text"], [part["type"] for part in content])

    def test_pictures_are_drawn(self):
        seen = self.scenario("talk.drawn", model="uma-picture", expects=["status of 400"])
        width, height = pictures.read_png(base64.b64decode(seen.file))[:2]
        self.assertEqual([[width, height, "a red circle"]] * 2, seen.sizes)
        self.assertEqual({f"a red circle {width}x{height}, seed {seed} Save" for seed in (5, 6)}, set(seen.captions))
        self.assertIn("1 × 1 is not possible", seen.refused)
        self.assertEqual(2, seen.count)

    def test_calls_and_reasoning_are_shown(self):
        seen = self.scenario("talk.tools", model="player", tools=[LOOK_UP], question="How many ships? askcall", result="12 ships: gotresult")
        self.assertRegex(seen.shown["call"], r"^Tool call\s+look_up\b")
        self.assertEqual({"city": "Cork", "days": 2}, json.loads(seen.shown["args"]))
        self.assertIn("The user asks for a place.", seen.shown["reply"])
        self.assertNotIn("tool_call", seen.shown["reply"])
        self.assertIn("12 ships: gotresult", seen.result)
        self.assertIn("It has twelve ships.", seen.answer)
        self.assertIn("of them reasoning", seen.receipt)
        self.assertEqual(["message", "reasoning", "function_call", "function_call_output", "message"], [item["type"] for item in self.items(seen.id)])


if __name__ == "__main__":
    unittest.main()
