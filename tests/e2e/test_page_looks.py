"""The page in a browser: rules of accessibility (axe-core) for all views, the size of the first load, and that nothing jumps."""

import json
import unittest

from test_page import TalkTest

FIRST_LOAD_BYTES_MAX = 100 << 10
FIRST_LOAD_REQUESTS_MAX = 8
SHIFT_MAX = 0.1  # Of Chromium's layout shift score.


class Looks(TalkTest):
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

    def test_the_first_load_is_small(self):
        seen = self.scenario("looks.first_load")
        self.assertLessEqual(sum(request["bytes"] for request in seen.requests), FIRST_LOAD_BYTES_MAX, seen.requests)
        self.assertLessEqual(len(seen.requests), FIRST_LOAD_REQUESTS_MAX, seen.requests)
        self.assertLessEqual({"/", "/page.js", "/page.css"}, {request["path"] for request in seen.requests})
        for name, encoded, decoded in seen.encodings:
            if name.endswith(".js") or name.endswith(".css"):
                self.assertLess(encoded, decoded / 2, f"{name} is compressed")

    def test_nothing_jumps(self):
        seen = self.scenario("looks.shifts", model="player", question="Of the sea: askmarkdown", **self.options)
        self.assertEqual({}, {view: shift for view, shift in seen.found.items() if shift > SHIFT_MAX})


if __name__ == "__main__":
    unittest.main()
