"""The main job, on a model whose text is known: four conversations at once, reuse across turns, two workers on one copy."""

import unittest

import shift_register
import uma

PROMPT = "once upon a time"
REGISTER = shift_register.Register()
SAID = REGISTER.says(PROMPT, 150)


class FourAtOnce:
    """The tests of one layout of workers; mixed into classes that choose it."""

    model = uma.TINY_REGISTER

    def test_the_known_text(self):
        self.assertEqual(SAID, self.client.generate(PROMPT, max_tokens=150).text)
        prompt = "the dog and the cat say hello to the small boy " * 20 + PROMPT
        self.assertEqual(REGISTER.says(prompt, 150), self.client.generate(prompt, max_tokens=150).text)

    def test_four_clients_get_their_text_interleaved(self):
        def stream():
            with self.daemon.client() as client:
                return client.generate(PROMPT, max_tokens=150)
        replies = uma.parallel(*[stream] * 4)
        self.assertEqual([SAID] * 4, [reply.text for reply in replies])
        first_tokens = [reply.times[0] for reply in replies]
        ends = [reply.times[-1] for reply in replies]
        self.assertLess(max(first_tokens), min(ends), "every stream has begun before any has ended")

    def test_four_requests_on_one_connection_interleave_token_by_token(self):
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
        # Only when the text is read as the same tokens are the two runs the same computation.
        self.assertEqual(second.usage["prompt_tokens"], one_pass.usage["prompt_tokens"])
        self.assertEqual(REGISTER.says(whole, 24), second.text)
        self.assertEqual(one_pass.text, second.text)
        self.assertEqual(whole + second.text, self.client.session(session)["text"].lstrip())


class OneWorker(FourAtOnce, uma.DaemonTest):
    flags = ("--n-ctx", "4096")


class TwoWorkers(FourAtOnce, uma.DaemonTest):
    flags = ("--n-ctx", "4096", "--workers", "2")

    def test_both_workers_work(self):
        def stream():
            with self.daemon.client() as client:
                return client.generate(PROMPT, max_tokens=150).text
        uma.parallel(*[stream] * 4)
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


class ShortBesideLong(uma.DaemonTest):
    model = uma.TINY_REGISTER
    flags = ("--n-ctx", "16384", "--slots", "8")

    def test_a_short_question_streams_while_a_long_job_runs(self):
        job = self.another_client()
        running = job.start(type="generate", prompt="the", max_tokens=1500, ignore_eos=True)
        job.wait_token(running)
        before = self.client.metrics()
        short = self.client.generate(PROMPT, max_tokens=100)
        self.assertEqual(REGISTER.says(PROMPT, 100), short.text)
        after = self.client.metrics()
        # Both together: tokens per decode tick while the short one ran.
        ticks = after["ticks_total"] - before["ticks_total"]
        tokens = after["tokens_total"] - before["tokens_total"]
        print(f"\n  average batch {tokens / ticks:.2f}; short question: {len(short.tokens)} tokens in "
              f"{short.times[-1] - short.times[0]:.3f} s", end=" ")
        self.assertGreaterEqual(tokens / ticks, 1.5)
        self.assertTrue(job.call(type="cancel", target=running)["cancelled"], "the job has outlived the short question")
        self.assertEqual("cancelled", job.finish(running).reason)


class KvExhaustion(uma.DaemonTest):
    """More streams than the cells of a shared cache can hold together: some wait swapped out, all finish."""

    model = uma.TINY_REGISTER
    flags = ("--n-ctx", "512", "--slots", "8")
    config = "kv: {layout: unified}\n"

    def test_all_streams_finish_with_the_right_text(self):
        prompts = ["once upon a time", "the cat", "the man has a house", "lily and the dog", "you and me", "the light"]
        options = {"max_tokens": 150, "ignore_eos": True, "deadline_ms": 0}
        self.assertEqual("unified", self.client.models()[0]["kv_layout"])

        def stream(prompt):
            with self.daemon.client() as client:
                return client.generate(prompt, **options)
        replies = uma.parallel(*(lambda prompt=prompt: stream(prompt) for prompt in prompts))
        for prompt, reply in zip(prompts, replies):
            with self.subTest(prompt=prompt):
                self.assertEqual("length", reply.reason, reply.last)
                self.assertEqual(150, reply.usage["completion_tokens"])
                self.assertEqual(REGISTER.says(prompt, 150), reply.text)
        self.assertGreater(self.client.metrics()["preemptions_total"], 0)


if __name__ == "__main__":
    unittest.main()
