"""Draft tokens (scheduler.speculation): the same text as without, with fewer calls if it repeats or a draft model is right."""

import pathlib
import subprocess
import tempfile
import unittest

import shift_register
import uma

AUTO, OFF = "scheduler: {speculation: auto}\n", "scheduler: {speculation: off}\n"
REPEAT = {"700": 100}  # a logit bias that makes the model repeat one word


class Speculation(unittest.TestCase):
    def talk(self, config, model, requests):
        """The token ids of each reply, with one request after the other, and the metrics at the end."""
        with uma.Daemon(model, config=config) as daemon, daemon.client() as client:
            replies = [client.generate(**request) for request in requests]
            return [[event["token_id"] for event in reply.tokens] for reply in replies], client.metrics()

    def test_the_tokens_are_the_same(self):
        requests = [
            {"prompt": "again and again and again", "max_tokens": 80, "ignore_eos": True, "logit_bias": REPEAT},
            {"prompt": "two words", "max_tokens": 80, "ignore_eos": True, "logit_bias": {"700": 60, "701": 60}, "temperature": 1, "seed": 3},
        ]
        two = {"prompt": "two words", "max_tokens": 60, "ignore_eos": True, "logit_bias": {"700": 60, "701": 60}, "temperature": 1, "seed": 4}
        requests += [{**two, "mirostat": 2, "mirostat_tau": 0.8, "mirostat_eta": 0.5}, {**two, "xtc_probability": 0.5, "xtc_threshold": 0.2},
                     {**two, "dry_multiplier": 2, "dry_allowed_length": 6, "repeat_last_n": 9, "frequency_penalty": 1}]
        plain, before = self.talk(OFF, uma.TINY, requests)
        guessed, after = self.talk(AUTO, uma.TINY, requests)
        self.assertEqual(plain, guessed)
        self.assertEqual(0, before["drafted_tokens_total"])
        self.assertGreater(after["drafted_tokens_total"], 0)
        self.assertGreater(after["drafted_accepted_total"], 0)
        self.assertLess(after["ticks_total"], before["ticks_total"])

    def test_right_and_wrong_guesses_bring_the_known_text(self):
        register = shift_register.Register()
        # Repeats one word for ever, because all earlier words have left the register.
        same = register.text_of([register.words[0]]) * (shift_register.REACH + 5)
        # Tells a story and then again with one word changed, which the register reaches after some repeated words.
        story = register.says("once upon a time", shift_register.REACH + 20).split()
        changed = [*story[:-60], "dog", *story[-59:]]
        again = " ".join(story) + register.says(" ".join(story), 20) + " " + " ".join(changed)
        requests = [{"prompt": prompt.strip(), "max_tokens": 100} for prompt in (again, same)]
        for config in (OFF, AUTO):
            said, metrics = self.talk(config, uma.TINY_REGISTER, requests)
            for request, tokens in zip(requests, said):
                self.assertEqual(register.continued(register.tokens_of(request["prompt"]), 100), tokens)
        self.assertGreater(metrics["drafted_accepted_total"], 0)

    def test_a_session_goes_on_after_guesses(self):
        def turns(config):
            with uma.Daemon(None, config=config) as daemon, daemon.client() as client:
                session = client.create_session()
                return [client.generate(turn, session_id=session).text
                        for turn in ("My name is Ada.", "Count to 12", "Count to 12", "What is my name?")]
        self.assertEqual(turns(OFF), turns(AUTO))


# A pair for speculative decoding: 11 of the 12 layers add nothing, and the draft model is the other layer.
SHAPE = ["--type", "q8_0", "--width", "256", "--heads", "4", "--kv-heads", "4", "--ff", "768"]


class DraftModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model = cls.make("model", "--layers", "12", "--quiet-layers", "11")
        cls.right = cls.make("right", "--layers", "1")
        cls.wrong = cls.make("wrong", "--layers", "1", "--seed", "7")
        cls.plain, _ = cls.talk(None)

    @classmethod
    def make(cls, name, *flags):
        path = pathlib.Path(cls.folder.name) / f"{name}.gguf"
        made = subprocess.run([str(uma.MAKE_MODEL), *SHAPE, *flags, "--out", str(path)], capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
        return path

    @classmethod
    def talk(cls, draft):
        """The token ids of a long reply, then of three at once, and the metrics. One thread: parallel requests change no bits."""
        flags = [] if draft is None else ["--draft-model", draft]
        with uma.Daemon(cls.model, "--threads", "1", *flags, config=AUTO if draft else OFF) as daemon, daemon.client() as client:
            replies = [client.generate("once upon a time", max_tokens=300, ignore_eos=True)]
            ids = [client.start(type="generate", prompt=prompt, max_tokens=60, ignore_eos=True) for prompt in ("one", "two dogs", "three " * 90)]
            replies += [client.finish(request) for request in ids]
            return [[event["token_id"] for event in reply.tokens] for reply in replies], client.metrics()

    def test_a_right_one_is_believed_and_changes_nothing(self):
        said, metrics = self.talk(self.right)
        self.assertEqual(self.plain, said)
        # How many draft tokens pay depends on the time of a call; the first tries show it.
        self.assertGreater(metrics["drafted_tokens_total"], 0)
        self.assertGreater(metrics["drafted_accepted_total"], 0.8 * metrics["drafted_tokens_total"])

    def test_a_wrong_one_is_switched_off_and_changes_nothing(self):
        said, metrics = self.talk(self.wrong)
        self.assertEqual(self.plain, said)
        self.assertGreater(metrics["drafted_tokens_total"], 0)
        self.assertLess(metrics["drafted_accepted_total"], 0.2 * metrics["drafted_tokens_total"])
        self.assertLess(metrics["drafted_tokens_total"], 250, "of 480 tokens")

    def test_the_model_itself_is_right_but_costs_too_much(self):
        said, metrics = self.talk(self.model)
        self.assertEqual(self.plain, said)
        self.assertGreater(metrics["drafted_tokens_total"], 0)
        self.assertGreater(metrics["drafted_accepted_total"], 0.7 * metrics["drafted_tokens_total"])

    def test_sampled_replies_end_as_they_should(self):
        with uma.Daemon(self.model, "--draft-model", self.right, config=AUTO) as daemon, daemon.client() as client:
            for seed in range(5):
                reply = client.generate("once", max_tokens=80, ignore_eos=True, temperature=1.2, top_p=0.9, seed=seed)
                self.assertEqual(("length", 80), (reply.reason, len(reply.tokens)))
            self.assertGreater(client.metrics()["drafted_accepted_total"], 0)

    def test_another_vocabulary_is_refused_at_the_start(self):
        other = self.make("other", "--layers", "1", "--vocab", "1600")
        config = pathlib.Path(self.folder.name) / "auto.yaml"
        config.write_text(AUTO)
        result = uma.run_umad("--model", self.model, "--draft-model", other, "--config", config, "--socket", f"{self.folder.name}/s",
                              "--data-dir", f"{self.folder.name}/data")
        self.assertEqual(1, result.returncode)
        self.assertIn("the draft model's vocabulary has 1600 tokens, the model's 1536", result.stderr)

    def test_without_speculation_it_is_not_loaded(self):
        with uma.Daemon(self.model, "--draft-model", self.right, config=OFF) as daemon, daemon.client() as client:
            self.assertIn("draft_model is not loaded, because scheduler.speculation is off", daemon.log())
            client.generate("one", max_tokens=20, ignore_eos=True)
            self.assertEqual(0, client.metrics()["drafted_tokens_total"])

    def test_one_that_does_not_exist_is_an_error(self):
        config = pathlib.Path(self.folder.name) / "auto.yaml"
        config.write_text(AUTO)
        result = uma.run_umad("--model", self.model, "--draft-model", "no-such", "--config", config, "--socket", f"{self.folder.name}/s",
                              "--data-dir", f"{self.folder.name}/data")
        self.assertEqual(1, result.returncode)
        self.assertIn("draft model: no model \"no-such\"", result.stderr)


if __name__ == "__main__":
    unittest.main()
