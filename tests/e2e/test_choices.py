"""Several choices of one request, several prompts, and logprobs, over HTTP; logprobs on the socket too."""

import json
import unittest

import uma
from test_http import HttpTest

TELL = {"max_tokens": 12, "uma": {"ignore_eos": True}}


class Memory(HttpTest):
    config = "limits: {queue_bytes_max: 400000}\n"

    def test_logprobs_that_need_too_much_memory_end_the_reply(self):
        body = {"prompt": "one two", "max_tokens": 400, "n": 4, "uma": {"ignore_eos": True}, "logprobs": 5}
        status, answer = self.request("POST", "/v1/completions", body)
        self.assertEqual((503, "E_LIMIT_003"), (status, answer["error"]["code"]))
        self.assertIn("log probabilities", answer["error"]["message"])
        self.wait_idle()
        status, answer = self.request("POST", "/v1/completions", {**body, "max_tokens": 20})
        self.assertEqual(200, status, answer)
        self.assertEqual([20] * 4, [len(choice["logprobs"]["tokens"]) for choice in answer["choices"]])
        uma.until(lambda: self.client.metrics()["request_bytes"] == 0, "no memory held by the answer before")
        connection = self.connect()
        connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}).encode())
        events = self.events(connection.getresponse())
        self.assertEqual(["length"] * 4, [reason for event in events if (reason := event["choices"][0]["finish_reason"])])


class Choices(HttpTest):
    def complete(self, **fields):
        status, answer = self.request("POST", "/v1/completions", {"prompt": "one two", **TELL, **fields})
        self.assertEqual(200, status, answer)
        return answer

    def test_choices_of_one_prompt_have_seeds_that_go_up(self):
        answer = self.complete(n=3, seed=11)
        self.assertEqual([0, 1, 2], [choice["index"] for choice in answer["choices"]])
        for choice in answer["choices"]:
            alone = self.complete(seed=11 + choice["index"])
            self.assertEqual(alone["choices"][0]["text"], choice["text"])
        self.assertEqual([11, 12, 13], [choice["uma"]["usage"]["seed"] for choice in answer["choices"]])
        self.assertGreater(len({choice["text"] for choice in answer["choices"]}), 1)

    def test_greedy_choices_are_equal(self):
        answer = self.chat(n=4, **{**TELL, "temperature": 0})[1]
        self.assertEqual(1, len({choice["message"]["content"] for choice in answer["choices"]}))

    def test_the_prompt_is_computed_and_counted_once(self):
        prompt = " ".join(f"shared {i}" for i in range(200))
        alone = self.complete(prompt="count " + prompt)["usage"]
        answer = self.complete(prompt=prompt, n=4)
        usage = answer["usage"]
        self.assertLess(abs(alone["prompt_tokens"] - usage["prompt_tokens"]), 10)
        self.assertEqual(4 * TELL["max_tokens"], usage["completion_tokens"])
        self.assertEqual(usage["prompt_tokens"] + usage["completion_tokens"], usage["total_tokens"])
        computed = sum(choice["uma"]["usage"]["recomputed_tokens"] for choice in answer["choices"])
        self.assertLess(computed, 1.5 * usage["prompt_tokens"], "the others go on from what one has computed")

    def test_a_stream_has_every_choice(self):
        whole = self.complete(n=3, seed=5)
        connection = self.connect()
        connection.request("POST", "/v1/completions", json.dumps(
            {"prompt": "one two", **TELL, "n": 3, "seed": 5, "stream": True, "stream_options": {"include_usage": True}}))
        *events, usage = self.events(connection.getresponse())
        texts, reasons = ["", "", ""], [None] * 3
        for event in events:
            (choice,) = event["choices"]
            self.assertIsNone(reasons[choice["index"]], "nothing comes after its end")
            texts[choice["index"]] += choice["text"]
            reasons[choice["index"]] = choice["finish_reason"]
        self.assertEqual([choice["text"] for choice in whole["choices"]], texts)
        self.assertEqual(["length"] * 3, reasons)
        self.assertEqual(whole["usage"]["completion_tokens"], usage["usage"]["completion_tokens"])

    def test_many_prompts(self):
        prompts = ["one", "two words", "three words here"]
        answer = self.complete(prompt=prompts, n=2, temperature=0)
        self.assertEqual(list(range(6)), [choice["index"] for choice in answer["choices"]])
        alone = [self.complete(prompt=prompt, temperature=0) for prompt in prompts]
        self.assertEqual([one["choices"][0]["text"] for one in alone for _ in range(2)], [choice["text"] for choice in answer["choices"]])
        self.assertEqual(sum(one["usage"]["prompt_tokens"] for one in alone), answer["usage"]["prompt_tokens"])

    def test_a_prompt_of_tokens_is_used_as_it_is(self):
        answer = self.complete(prompt=[1, 300, 301], temperature=0)
        self.assertEqual(3, answer["usage"]["prompt_tokens"])
        both = self.complete(prompt=[[1, 300, 301], [1, 302]], temperature=0)
        self.assertEqual(answer["choices"][0]["text"], both["choices"][0]["text"])
        status, refused = self.request("POST", "/v1/completions", {"prompt": [1, 2**31 - 1]})
        self.assertEqual((400, "prompt"), (status, refused["error"]["param"]), refused)

    def test_an_echo_begins_the_text(self):
        plain = self.complete(temperature=0)["choices"][0]["text"]
        self.assertEqual("one two" + plain, self.complete(temperature=0, echo=True)["choices"][0]["text"])
        connection = self.connect()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "one two", **TELL, "temperature": 0, "echo": True, "stream": True}))
        events = self.events(connection.getresponse())
        self.assertEqual("one two" + plain, "".join(event["choices"][0]["text"] for event in events))

    def test_a_prompt_of_tokens_is_echoed_as_text(self):
        _, tokens = self.request("POST", "/tokenize", {"content": "one two"})
        answer = self.complete(prompt=[tokens["tokens"], tokens["tokens"]], temperature=0, echo=True)
        self.assertTrue(all(choice["text"].strip().startswith("one two") for choice in answer["choices"]), answer)

    def test_what_is_not_served_is_named(self):
        for param, fields in (("n", {"n": 17}), ("n", {"n": 0}), ("n", {"prompt": ["a"] * 5, "n": 16}), ("best_of", {"best_of": 2}),
                              ("echo", {"echo": True, "logprobs": 1, "stream": True}), ("logprobs", {"logprobs": 6}), ("prompt", {"prompt": []})):
            with self.subTest(**fields):
                status, answer = self.request("POST", "/v1/completions", {"prompt": "a", **fields})
                self.assertEqual((400, param), (status, answer["error"]["param"]), answer)

    def test_a_client_that_leaves_frees_every_sequence(self):
        cancelled = self.client.metrics()["requests_cancelled_total"]
        connection, answer = self.start_stream(n=3, max_tokens=2000, uma={"ignore_eos": True})
        uma.until(lambda: self.client.metrics()["sequences_active"] == 3, "all choices run")
        answer.close()
        connection.close()
        self.wait_idle()
        self.assertEqual(cancelled + 3, self.client.metrics()["requests_cancelled_total"])

    def test_one_choice_too_late_fails_the_whole(self):
        # There are four slots: two of the six choices wait until their deadline.
        status, answer = self.chat(n=6, max_tokens=2000, uma={"ignore_eos": True, "deadline_ms": 50})
        self.assertEqual((503, "E_LIMIT_003"), (status, answer["error"]["code"]), answer)
        self.wait_idle()


class Logprobs(HttpTest):
    def test_of_a_chat(self):
        answer = self.chat(logprobs=True, top_logprobs=3, **TELL)[1]
        choice = answer["choices"][0]
        places = choice["logprobs"]["content"]
        self.assertEqual(TELL["max_tokens"], len(places))
        self.assertEqual(choice["message"]["content"], bytes(b for place in places for b in place["bytes"] or []).decode(errors="replace"))
        for place in places:
            self.assertEqual(3, len(place["top_logprobs"]))
            self.assertEqual(sorted((top["logprob"] for top in place["top_logprobs"]), reverse=True),
                             [top["logprob"] for top in place["top_logprobs"]])
            self.assertLessEqual(place["logprob"], 0)
            self.assertEqual(place["top_logprobs"][0]["logprob"], place["logprob"], "greedy takes the likeliest")
        self.assertIsNone(self.chat()[1]["choices"][0]["logprobs"])
        for place in self.chat(logprobs=True)[1]["choices"][0]["logprobs"]["content"]:
            self.assertEqual([], place["top_logprobs"])

    def test_a_stream_has_the_same(self):
        whole = self.chat(logprobs=True, top_logprobs=2, **TELL)[1]["choices"][0]["logprobs"]["content"]
        _, answer = self.start_stream(logprobs=True, top_logprobs=2, **TELL)
        streamed = []
        for event in self.events(answer):
            choice = event["choices"][0]
            self.assertEqual(bool(choice["delta"].get("content")), choice["logprobs"] is not None, choice)
            streamed += (choice["logprobs"] or {}).get("content", [])
        self.assertEqual([place["token"] for place in whole], [place["token"] for place in streamed])
        for ours, other in zip(whole, streamed):
            self.assertAlmostEqual(ours["logprob"], other["logprob"], delta=1e-3)

    def test_of_a_text(self):
        status, answer = self.request("POST", "/v1/completions", {"prompt": "one two", "temperature": 0, "logprobs": 2, **TELL})
        self.assertEqual(200, status, answer)
        choice = answer["choices"][0]
        told = choice["logprobs"]
        self.assertEqual({TELL["max_tokens"]}, {len(told[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")})
        self.assertEqual(told["text_offset"], sorted(told["text_offset"]))
        for token, logprob, top, offset in zip(*(told[name] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"))):
            self.assertEqual(logprob, max(top.values()))
            if not token.startswith("bytes:"):
                self.assertEqual(token, choice["text"][offset:offset + len(token)])

    def test_they_are_the_models_own_whatever_the_sampler_does(self):
        body = {"prompt": "one two", "temperature": 0, "logprobs": 5, "max_tokens": 1}
        plain = self.request("POST", "/v1/completions", body)[1]["choices"][0]["logprobs"]
        best = plain["tokens"][0]
        # The same row with a high temperature, with top-k, and without its most likely token.
        for fields in ({"temperature": 2, "seed": 4}, {"uma": {"top_k": 1}}, {"uma": {"grammar": 'root ::= "zz"'}}):
            other = self.request("POST", "/v1/completions", {**body, **fields})[1]["choices"][0]["logprobs"]
            self.assertAlmostEqual(plain["top_logprobs"][0][best], other["top_logprobs"][0][best], delta=1e-3)

    def test_a_stop_string_hides_its_tokens(self):
        whole = self.chat(logprobs=True, **TELL)[1]["choices"][0]
        text = whole["message"]["content"]
        stop = text[len(text) // 2:][:2]
        cut = self.chat(logprobs=True, stop=stop, **TELL)[1]["choices"][0]
        shown = "".join(place["token"] for place in cut["logprobs"]["content"])
        self.assertTrue(shown.startswith(cut["message"]["content"]), (shown, cut))
        self.assertLess(len(cut["logprobs"]["content"]), len(whole["logprobs"]["content"]))

    def test_on_the_socket(self):
        reply = self.client.generate("one two", max_tokens=6, ignore_eos=True, logprobs=2)
        places = [place for event in reply.events for place in event.get("logprobs", [])]
        self.assertEqual([event["token_id"] for event in reply.events if event["event"] == "token"], [place["token_id"] for place in places])
        self.assertTrue(all(len(place["top_logprobs"]) == 2 for place in places))
        whole = self.client.call(prompt="one two", max_tokens=6, ignore_eos=True, logprobs=2, stream=False)
        self.assertEqual([place["token_id"] for place in places], [place["token_id"] for place in whole["logprobs"]])
        self.assert_error(self.client.call(prompt="a", logprobs=21), "E_PROTO_003", "logprobs")


if __name__ == "__main__":
    unittest.main()
