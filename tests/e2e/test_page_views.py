"""The page in a browser: the live view, and managing models, keys, sessions and settings."""

import json
import pathlib
import re
import tempfile
import types
import unittest

import browser
import test_pull
import uma
from test_http_operations import with_key
from test_page import TalkTest


class Views(TalkTest):
    def test_the_live_view_follows_a_reply(self):
        seen = self.scenario("views.live", model="slow")
        self.assertTrue(seen.isDrawn)
        self.assertNotEqual(seen.first, seen.later)
        self.assertIn("slow", seen.panels["Lanes"])
        self.assertIn("Decode", seen.panels["Lanes"])
        self.assertIn("slow", seen.panels["Models in memory"])
        self.assertRegex(seen.panels["Speed"], r"(?i)tokens per second")
        self.assertRegex(seen.panels["KV tiers"], r"(?i)hot")
        self.assertGreater(seen.trace, 10)

    def test_models_are_loaded_and_unloaded(self):
        def state(name):
            return next(model["state"] for model in self.ask("GET", "v1/models")["data"] if model["id"] == name)

        seen = self.scenario("views.load_and_unload", model="uma-tiny", answers={"state": state})
        self.assertEqual(("unloaded", "ready"), (seen.after, state("uma-tiny")))

    def test_stored_sessions(self):
        names = [f"voyage {i}" for i in range(3)]
        ids = []
        for name in names:
            ids.append(self.ask("POST", "v1/sessions", {"mode": "chat", "model": "player", "name": name})["session_id"])
            self.ask("POST", "v1/responses", {"conversation": f"conv_{ids[-1]}", "input": "One: ask1"})
        seen = self.scenario("views.stored_sessions", names=names)
        self.assertEqual("voyage 2.umasession", seen.name)
        self.assertGreater(seen.size, 100)
        left = {session["session_id"] for session in self.ask("GET", "v1/sessions?limit=1000")["data"]}
        self.assertEqual({ids[2]}, left & set(ids))

    def test_a_card_is_stored(self):
        def stored():
            return self.ask("GET", "v1/models/small/card")["text"]

        text = stored()
        seen = self.scenario("views.card", model="small", wrong="path: small.gguf\nn_ctx: many\n", right="path: small.gguf\nn_ctx: 256\ntop_k: 9\n",
                             answers={"stored": stored}, expects=["status of 400"])
        self.assertEqual((text, text), (seen.shown, seen.after))
        self.assertIn("n_ctx", seen.refused)
        self.assertRegex(seen.sampling, r"top_k\s+9\s+card")
        self.assertIn("\nsmall:\n  path: small.gguf\n  n_ctx: 256\n  top_k: 9\n", (self.folder / "models.yaml").read_text())

    def test_the_configuration(self):
        self.assertTrue(self.scenario("views.configuration").text)


class Administrator(browser.PageTest):
    @classmethod
    def setUpClass(cls):
        cls.key, flags = with_key(cls, "boss", "admin=true")
        cls.flags = (*browser.PageTest.flags, *flags)
        super().setUpClass()

    def test_a_key_is_made_shown_once_and_deleted(self):
        def serves(key):
            return bool(self.ask("GET", "v1/models", Authorization=f"Bearer {key}")["data"])

        seen = self.scenario("views.make_key", key=self.key, name="ci", answers={"serves": serves}, expects=["status of 401"])
        made = re.search(r"uma-[0-9a-f]{64}", seen.text).group()
        for key in (made, self.key):
            self.assertNotIn(key, seen.shown + seen.kept)
        self.assertTrue(seen.served)
        with self.assertRaisesRegex(AssertionError, "401"):
            self.ask("GET", "v1/models", Authorization=f"Bearer {made}")


class Pull(browser.PageTest):
    """A hub of this test's own has one model."""

    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="uma-e2e-page-pull-")))
        cls.hub = test_pull.Server(types.SimpleNamespace(addCleanup=cls.addClassCleanup))
        cls.file = test_pull.Served(uma.TINY_CHAT.read_bytes())
        size = len(cls.file.data)
        cls.listing = test_pull.Served(json.dumps([{"type": "file", "path": "m-Q8_0.gguf", "size": size,
                                                    "lfs": {"oid": test_pull.sha256(cls.file.data), "size": size}}]).encode())
        cls.hub.paths.update({"/api/models/some/model/tree/main": cls.listing, "/some/model/resolve/main/m-Q8_0.gguf": cls.file})
        cls.environment = {"HOME": folder, "XDG_DATA_HOME": folder / "data", "HF_ENDPOINT": cls.hub.url, "HF_TOKEN": "",
                           "NO_PROXY": "*", "no_proxy": "*"}
        super().setUpClass()

    def hang(self):
        self.hub.next += [self.listing, self.file.but(hang_at=300_000)]

    def stopped(self):
        uma.until(lambda: "the download was cancelled" in self.daemon.log(), "the download has ended")

    def test_a_model_comes_and_goes(self):
        seen = self.scenario("views.pull", source="some/model", name="m-Q8_0", missing="some/other",
                             answers={"hang": self.hang, "stopped": self.stopped})
        self.assertIn("some/other", seen.refused)
        self.assertTrue(0 < seen.part < 1, seen.part)
        self.assertRegex(seen.told, r"^m-Q8_0.gguf: [\d.,]+ KiB of [\d.,]+ KiB, \d+ %$")
        self.assertEqual("bytes=300000-", self.hub.ranges()[-1])
        self.assertNotIn("m-Q8_0", [model["id"] for model in self.ask("GET", "v1/models")["data"]])


if __name__ == "__main__":
    unittest.main()
