"""The page in a browser: rules of accessibility (axe-core) for all views, the size of the first load, and that nothing jumps."""

import json
import unittest

import browser
from test_page import TalkTest

FIRST_LOAD_BYTES_MAX = 100 << 10
FIRST_LOAD_REQUESTS_MAX = 8
SHIFT_MAX = 0.1  # Of Chromium's layout shift score.


class Looks(TalkTest):
    takes_long = True
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        text = "## Ships\n\nThe **sea**.\n\n- [x] one\n- [ ] two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nx = 'a'  # b\n```\n\n$a^2$\n\n> quoted\n"
        call = {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": json.dumps({"city": "Cork"})}
        made = cls.ask(cls, "POST", "v1/conversations", {"metadata": {"title": "Ships", "tags": "sea,work"}, "items": [
            {"type": "message", "role": "system", "content": "Be brief."}, {"type": "message", "role": "user", "content": "Tell me of ships."},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "I think."}]}, call,
            {"type": "function_call_output", "call_id": "c1", "output": "12"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}]})
        cls.options = {"session": made["id"].removeprefix("conv_"), "draws": "uma-picture"}

    def test_rules_of_accessibility(self):
        seen = self.scenario("looks.accessible", **self.options)
        self.assertEqual({}, seen.found)
        self.assertEqual(2 * 10 + 2 * 11, seen.visited)

    def test_nothing_jumps(self):
        seen = self.scenario("looks.shifts", model="player", question="Of the sea: askmarkdown", **self.options)
        self.assertEqual({}, {view: shift for view, shift in seen.found.items() if shift > SHIFT_MAX})


class FirstLoad(browser.PageTest):
    def test_it_is_small(self):
        seen = self.scenario("looks.first_load")
        self.assertLessEqual(seen.bytes, FIRST_LOAD_BYTES_MAX)
        self.assertLessEqual(len(seen.first), FIRST_LOAD_REQUESTS_MAX, seen.first)
        self.assertLessEqual({"/", "/page.js", "/page.css", "/v1/models", "/v1/sessions"}, set(seen.first))
        for path, encoded, decoded in seen.files:
            # The smallest chunks gain less.
            self.assertLess(encoded, decoded if decoded < 2000 else decoded / 2, f"{path} is compressed")


if __name__ == "__main__":
    unittest.main()
