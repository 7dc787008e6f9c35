"""Guessed tokens (scheduler.speculation): the same text as without, fewer calls where it repeats."""

import unittest

import uma

AUTO = "scheduler: {speculation: auto}\n"
REPEAT = {"700": 100}  # a logit bias that makes the model say one word over and over


class Speculation(unittest.TestCase):
    def talk(self, config, model, requests):
        """The token ids that each request brings, one request after the other, and the metrics at the end."""
        with uma.Daemon(model, config=config) as daemon, daemon.client() as client:
            replies = [client.generate(**request) for request in requests]
            return [[event["token_id"] for event in reply.tokens] for reply in replies], client.metrics()

    def test_the_tokens_are_the_same(self):
        requests = [
            {"prompt": "again and again and again", "max_tokens": 80, "ignore_eos": True, "logit_bias": REPEAT},
            {"prompt": "two words", "max_tokens": 80, "ignore_eos": True, "logit_bias": {"700": 60, "701": 60}, "temperature": 1, "seed": 3},
        ]
        plain, before = self.talk(None, uma.TINY, requests)
        guessed, after = self.talk(AUTO, uma.TINY, requests)
        self.assertEqual(plain, guessed)
        self.assertEqual(0, before["drafted_tokens_total"])
        self.assertGreater(after["drafted_tokens_total"], 0)
        self.assertGreater(after["drafted_accepted_total"], 0)
        self.assertLess(after["batch_calls_total"], before["batch_calls_total"])

    @uma.needs_stories
    def test_a_trained_model_tells_the_same_story(self):
        requests = [{"prompt": "Once upon a time", "max_tokens": 200}, {"prompt": "Tom and Tom and Tom and", "max_tokens": 200}]
        plain, _ = self.talk(None, uma.STORIES, requests)
        guessed, metrics = self.talk(AUTO, uma.STORIES, requests)
        self.assertEqual(plain, guessed)
        self.assertGreater(metrics["drafted_tokens_total"], 0)

    def test_a_session_goes_on_after_guesses(self):
        def turns(config):
            with uma.Daemon(None, config=config) as daemon, daemon.client() as client:
                session = client.create_session()
                return [client.generate(turn, session_id=session).text
                        for turn in ("My name is Ada.", "Count to 12", "Count to 12", "What is my name?")]
        self.assertEqual(turns(None), turns(AUTO))


if __name__ == "__main__":
    unittest.main()
