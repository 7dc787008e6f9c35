"""The main tasks of umad, on a model whose text is known: four conversations at once, reuse across turns, two workers on one
copy."""

import unittest

import shift_register
import uma

PROMPT = "once upon a time"
REGISTER = shift_register.Register()
SAID = REGISTER.says(PROMPT, 150)


class KnownTextTest(uma.DaemonTest):
    model = uma.TINY_REGISTER

    def at_once(self, *prompts, **fields):
        """The replies to prompts that are sent, each by a separate client, while the daemon is paused."""
        clients = [self.another_client() for _ in prompts]
        with self.daemon.paused():
            ids = [client.start({"max_tokens": 150, **fields}, type="generate", prompt=prompt) for client, prompt in zip(clients, prompts)]
        return [client.finish(request) for client, request in zip(clients, ids)]


class FourAtOnce:
    """Tests for classes that each choose a layout of workers."""

    def test_the_known_text(self):
        self.assertEqual(SAID, self.client.generate(PROMPT, max_tokens=150).text)
        prompt = "the dog and the cat say hello to the small boy " * 20 + PROMPT
        self.assertEqual(REGISTER.says(prompt, 150), self.client.generate(prompt, max_tokens=150).text)

    def test_prompts_that_begin_alike_get_texts_of_their_own(self):
        begin = "there was a little girl and her dog and cat live near the water by a small house " * 6
        prompts = [f"{begin}{word} then she went home" for word in ("once", "now", "here", "one day")]
        for prompt in prompts:
            self.assertEqual(REGISTER.says(prompt, 150), self.client.generate(prompt, max_tokens=150).text)
        self.assertGreater(self.client.generate(prompts[0], max_tokens=1).usage["reused_tokens"], 100)
        for prompt, reply in zip(prompts, self.at_once(*prompts)):
            self.assertEqual(REGISTER.says(prompt, 150), reply.text)

    def test_four_clients_at_once_get_their_text(self):
        self.assertEqual([SAID] * 4, [reply.text for reply in self.at_once(*[PROMPT] * 4)])

    def test_four_requests_on_one_connection_interleave_token_by_token(self):
        with self.daemon.paused():
            ids = [self.client.start(type="generate", prompt=PROMPT, max_tokens=150) for _ in range(4)]
        order = []
        while sum(1 for event in order if event["event"] == "eos") < 4:
            order.append(self.client.receive())
        texts = {request_id: "" for request_id in ids}
        for event in order:
            texts[event["id"]] += event.get("text", "")
        self.assertEqual({SAID}, set(texts.values()))
        switches = sum(1 for earlier, later in zip(order, order[1:]) if earlier["id"] != later["id"])
        self.assertGreater(switches, 150)

    def test_a_second_turn_equals_one_pass_over_the_chain(self):
        session = self.client.create_session(mode="text")
        first = self.client.generate(PROMPT, session_id=session, max_tokens=24)
        second = self.client.generate(" one day", session_id=session, max_tokens=24)
        self.assertGreaterEqual(second.usage["reused_tokens"], first.usage["prompt_tokens"] + first.usage["completion_tokens"] - 1)
        whole = PROMPT + first.text + " one day"
        one_pass = self.client.generate(whole, max_tokens=24)
        # The two runs are the same computation only if the text is tokenized alike.
        self.assertEqual(second.usage["prompt_tokens"], one_pass.usage["prompt_tokens"])
        self.assertEqual(REGISTER.says(whole, 24), second.text)
        self.assertEqual(one_pass.text, second.text)
        self.assertEqual(whole + second.text, self.client.session(session)["text"].lstrip())


class OneWorker(FourAtOnce, KnownTextTest):
    flags = ("--kv-cells", "4096")


class TwoWorkers(FourAtOnce, KnownTextTest):
    flags = ("--kv-cells", "4096", "--workers", "2")

    def test_both_workers_work(self):
        self.at_once(*[PROMPT] * 4)
        tokens = [worker["tokens_total"] for worker in self.client.metrics()["workers"]]
        self.assertEqual(2, len(tokens))
        self.assertGreater(min(tokens), 0)
        self.assertEqual(2, self.client.models()[0]["workers"])

    def test_sessions_stay_with_their_worker(self):
        for _ in range(4):
            session = self.client.create_session(mode="text")
            workers = set()
            for turn in (PROMPT, " then", " one day"):
                self.client.generate(turn, session_id=session, max_tokens=4)
                workers.add(self.client.session(session)["worker"])
            self.assertEqual(1, len(workers))


class ShortBesideLong(KnownTextTest):
    flags = ("--kv-cells", "16384", "--slots", "8")

    def test_a_short_question_is_answered_in_the_calls_of_a_long_job(self):
        before = self.client.metrics()
        job, question = self.another_client(), self.another_client()
        with self.daemon.paused():
            running = job.start(type="generate", prompt="the", max_tokens=400)
            asked = question.start(type="generate", prompt=PROMPT, max_tokens=100)
        self.assertEqual(REGISTER.says(PROMPT, 100), question.finish(asked).text)
        self.assertEqual(REGISTER.says("the", 400), job.finish(running).text)
        after = self.client.metrics()
        self.assertEqual(500, after["tokens_total"] - before["tokens_total"])
        self.assertLess(after["ticks_total"] - before["ticks_total"], 450, "most tokens of the short one shared a tick with the long one's")


class KvExhaustion(KnownTextTest):
    """More streams than a shared cache has cells for: some wait swapped out, and all finish."""

    flags = ("--kv-cells", "512", "--slots", "8")
    config = "kv: {layout: unified}\n"

    def test_all_streams_finish_with_the_right_text(self):
        prompts = ["once upon a time", "the cat", "the man has a house", "lily and the dog", "you and me", "the light"]
        self.assertEqual("unified", self.client.models()[0]["kv_layout"])
        for prompt, reply in zip(prompts, self.at_once(*prompts, deadline_ms=0)):
            with self.subTest(prompt=prompt):
                self.assertEqual("length", reply.reason, reply.last)
                self.assertEqual(150, reply.usage["completion_tokens"])
                self.assertEqual(REGISTER.says(prompt, 150), reply.text)
        self.assertGreater(self.client.metrics()["preemptions_total"], 0)


if __name__ == "__main__":
    unittest.main()
