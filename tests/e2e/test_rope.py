"""Rotary positions with other settings than those of the model's file (the section `rope`, and `rope` in a card)."""

import json
import pathlib
import tempfile
import unittest

import uma
from test_http import HttpTest

SHIPPED = uma.ROOT / "models" / "uma-tiny.gguf"
YARN = "rope: {scaling: yarn, scale: 4, yarn_orig_ctx: 512}\n"
PROMPTS = ("Once upon a time", "The capital of France is", "1, 2, 3, 4,", "My name is Ada. " * 12 + "What is my name? My name is")
GREEDY = {"max_tokens": 24, "temperature": 0}
FIXED = {"max_tokens": 6, "temperature": 0, "ignore_eos": True, "logit_bias": {"700": 100}}  # the same tokens with any setting


def texts_of(client, **fields):
    return [client.generate(prompt, **GREEDY, **fields).text for prompt in PROMPTS]


class SameAsLlamaServer:
    """The packaged llama-server with the same flags says the same."""

    model = SHIPPED
    theirs = ()

    @classmethod
    def setUpClass(cls):
        cls.flags = (*HttpTest.flags, *cls.theirs)
        super().setUpClass()
        cls.peer = cls.enterClassContext(uma.LlamaServer(SHIPPED, "-c", "8192", "-np", "4", "-t", "2", *cls.theirs))

    def test_greedy_text(self):
        for prompt in PROMPTS:
            with self.subTest(prompt=prompt):
                body = {"prompt": prompt, **GREEDY}
                status, ours = self.request("POST", "/v1/completions", body)
                theirs = json.loads(self.peer.post("/v1/completions", body))
                self.assertEqual(200, status)
                self.assertEqual(theirs["choices"][0]["text"], ours["choices"][0]["text"])


class Yarn(SameAsLlamaServer, HttpTest):
    theirs = ("--rope-scaling", "yarn", "--rope-scale", "4", "--yarn-orig-ctx", "512")


class YarnWithItsBounds(SameAsLlamaServer, HttpTest):
    theirs = ("--rope-scaling", "yarn", "--rope-freq-scale", "0.5", "--yarn-beta-slow", "2", "--yarn-beta-fast", "8")


class YarnWithItsFactors(SameAsLlamaServer, HttpTest):
    theirs = ("--rope-scaling", "yarn", "--rope-scale", "2", "--yarn-ext-factor", "0", "--yarn-attn-factor", "1.25")


class Linear(SameAsLlamaServer, HttpTest):
    theirs = ("--rope-scaling", "linear", "--rope-scale", "1.5")


class Base(SameAsLlamaServer, HttpTest):
    theirs = ("--rope-freq-base", "40000")


class ALongerContext(unittest.TestCase):
    """The shipped model was trained for 2,048 tokens."""

    def model_of(self, *flags, config=None):
        with uma.Daemon(SHIPPED, "--kv-cells", "16384", *flags, config=config) as daemon, daemon.client() as client:
            return client.models()[0], daemon.log()

    def test_scaling_raises_the_limit_and_n_ctx_above_it_is_said(self):
        model, log = self.model_of()
        self.assertEqual(2048, model["sequence_tokens_max"])
        self.assertNotIn("n_ctx is", log)
        model, log = self.model_of("--n-ctx", "8192")
        self.assertEqual(2048, model["sequence_tokens_max"])
        self.assertRegex(log, "warning.*n_ctx is 8192, but it supports 2048 tokens")
        model, log = self.model_of("--n-ctx", "8192", "--rope-scaling", "yarn", "--rope-scale", "4")
        self.assertEqual(8192, model["sequence_tokens_max"])
        self.assertNotIn("n_ctx is", log)
        model, log = self.model_of("--n-ctx", "8192", config=YARN)
        self.assertEqual(2048, model["sequence_tokens_max"], "4 times the original 512")
        model, log = self.model_of("--n-ctx", "4096", "--rope-freq-base", "40000")
        self.assertEqual(4096, model["sequence_tokens_max"])
        self.assertRegex(log, "warning.*n_ctx is 4096.*rope.freq_base")

    def test_a_prompt_beyond_what_it_was_trained_for_is_computed(self):
        with uma.Daemon(SHIPPED, "--n-ctx", "4096", "--rope-scaling", "yarn", "--rope-scale", "2") as daemon, daemon.client() as client:
            long = "one two three four five six seven eight " * 200
            reply = client.generate(long, **FIXED)
            self.assertEqual("length", reply.reason, reply.last)
            self.assertGreater(reply.usage["prompt_tokens"], 2048)
            error = client.generate(long * 4, **FIXED).last
            self.assertEqual("E_LIMIT_001", error["code"], error)
            self.assertIn("the model with its rope settings supports 4096 tokens", error["message"])


class Kept(unittest.TestCase):
    """KV that was computed with one setting is kept, but not used with another."""

    def test_a_session_is_computed_again_with_another_setting(self):
        flags = ("--kv-cells", "4096", "--slots", "2")
        plain = "kv: {layout: split}\n"
        first = "My name is Ada. " * 150  # long enough to be worth a file

        def begin(client):
            session = client.create_session(mode="text")
            self.assertEqual("length", client.generate(first, session_id=session, **FIXED).reason)
            return session

        def go_on(client, session):
            return client.generate(" What is my name? My name is", session_id=session, **GREEDY)

        with uma.Daemon(SHIPPED, *flags, config=plain + YARN) as daemon, daemon.client() as client:
            session = begin(client)
            text = client.session(session)["text"]
            expected = go_on(client, session).text
        daemon = uma.Daemon(SHIPPED, *flags, config=plain)
        self.addCleanup(daemon.kill)
        config = daemon.folder / "umad.yaml"
        daemon.start().wait_ready()
        with daemon.client() as client:
            session = begin(client)
            self.assertEqual(text, client.session(session)["text"])
            other = begin(client)
            without = go_on(client, other).text
        self.assertNotEqual(expected, without)

        self.assertEqual(0, daemon.terminate(), daemon.log())
        config.write_text(plain + YARN)
        daemon.start().wait_ready()
        with daemon.client() as client:
            self.assertEqual("none", client.session(session)["tier"])
        self.assertRegex(daemon.log(), "stored states of this model are for other settings")
        self.assertEqual(0, daemon.terminate(), daemon.log())
        config.write_text(plain)
        daemon.start().wait_ready()
        with daemon.client() as client:
            self.assertEqual("cold", client.session(session)["tier"], "kept meanwhile")
        self.assertEqual(0, daemon.terminate(), daemon.log())
        config.write_text(plain + YARN)
        daemon.start().wait_ready()
        with daemon.client() as client:
            reply = go_on(client, session)
            self.assertEqual(("none", 0), (reply.usage["tier"], reply.usage["reused_tokens"]), reply.usage)
            self.assertEqual(expected, reply.text)
        self.assertEqual(0, daemon.terminate(), daemon.log())


class Cards(unittest.TestCase):
    def test_the_daemons_settings_are_for_its_model_and_a_card_has_its_own(self):
        with tempfile.TemporaryDirectory(prefix="uma-rope-") as name:
            folder = pathlib.Path(name)
            for model in "abc":
                (folder / f"{model}.gguf").write_bytes(SHIPPED.read_bytes())
            (folder / "models.yaml").write_text("b: {path: b.gguf, rope: {scaling: yarn, scale: 4, yarn_orig_ctx: 512}}\n")
            paths = f"models: {folder}/models.yaml\nmodels_dirs: [{folder}]\n"
            with uma.Daemon(folder / "a.gguf", "--kv-cells", "4096", config=paths) as daemon, daemon.client() as client:
                plain, yarn = texts_of(client), texts_of(client, model="b")
            self.assertNotEqual(plain, yarn)
            with uma.Daemon(folder / "a.gguf", "--kv-cells", "4096", config=paths + YARN) as daemon, daemon.client() as client:
                self.assertEqual(yarn, texts_of(client))
                self.assertEqual(yarn, texts_of(client, model="b"))
                self.assertEqual(plain, texts_of(client, model="c"))


class Mistakes(unittest.TestCase):
    def test_bad_values_are_named(self):
        for flags, parts in ((("--rope-scaling", "yarn"), ("rope: expected scale with scaling yarn",)),
                             (("--rope-scale", "0"), ("--rope-scale: expected a number from 1 to 1000, got \"0\"",)),
                             (("--rope-scale", "nan"), ("--rope-scale", "\"nan\"")),
                             (("--rope-freq-base", "-10000"), ("--rope-freq-base", "a number from 2"))):
            with self.subTest(flags=flags):
                done = uma.run_umad(*flags)
                self.assertEqual(1, done.returncode)
                for part in parts:
                    self.assertIn(part, done.stdout + done.stderr)

    def test_a_model_without_rotary_positions_refuses_them(self):
        done = uma.run_umad("--model", str(uma.BUILD / "models" / "tiny-recurrent.gguf"), "--rope-scale", "2", "--http", "off",
                            "--socket", tempfile.mktemp(prefix="uma-rope-"), "--data-dir", tempfile.mkdtemp(prefix="uma-rope-"))
        self.assertEqual(1, done.returncode)
        self.assertIn("the model has no rotary positions", done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
