"""GPUs that fail while umad runs: one that is lost, computations that fail, memory that is short. The library of
tests/faulty_device.cpp makes a working GPU fail, such as the driver llvmpipe (test_devices.py)."""

import pathlib
import re
import tempfile
import time
import unittest
import urllib.request

import faulty_device
import shift_register
import test_devices
import uma
import vision

REGISTER = shift_register.Register()
GPU = test_devices.GPU
PROMPT = "once upon a time"
LONG_PROMPT = "the dog and the cat say hello to the small boy " * 30 + PROMPT
LOST = "a device of the model has failed"
SKIPPED = test_devices.NO_GPU if GPU is None else "a sanitizer must be the first library" if uma.IS_SANITIZED else None


class Faulty(unittest.TestCase):
    """Daemons whose GPU fails when the test says so."""

    def setUp(self):
        if SKIPPED:
            self.skipTest(SKIPPED)

    def start(self, *flags, orders=(), model=uma.TINY_REGISTER, cards=None, config=""):
        """A daemon on the default devices. `cards`: the content of models.yaml."""
        self.faults = faulty_device.Faults(*orders)
        self.addCleanup(self.faults.close)
        if cards is not None:
            folder = tempfile.TemporaryDirectory(prefix="uma-faults-")
            self.addCleanup(folder.cleanup)
            path = pathlib.Path(folder.name, "models.yaml")
            path.write_text(cards)
            config += f"models: {path}\n"
        flags = ("--slots", "4", "--kv-cells", "4096", *flags)
        self.daemon = uma.Daemon(model, *flags, config=config, environment=self.faults.environment)
        self.addCleanup(self.daemon.kill)
        self.daemon.start().wait_ready()
        self.client = self.daemon.client()

    def wait_measured(self):
        """A fault that is ordered then is a request's."""
        test_devices.wait_measured(self.daemon)
        self.addCleanup(self.client.close)

    def begin(self, prompt, tokens=4, client=None, **fields):
        """Starts a long stream and waits for its first tokens."""
        client = client or self.client
        running = client.start(type="generate", prompt=prompt, ignore_eos=True, **({"max_tokens": 2000} | fields))
        client.wait_token(running, tokens)
        return running

    def assert_lost(self, reply, prompt=None):
        """The reply ended with the error of a lost GPU; what was sent before is right."""
        last = reply.last
        self.assertEqual(("E_RUNTIME_001", "error"), (last["code"], last.get("reason", "error")), last)
        self.assertIn(LOST, last["message"])
        if prompt:
            self.assertEqual(REGISTER.says(prompt, len(reply.tokens)), reply.text)

    def assert_says(self, prompt, client=None, **fields):
        reply = (client or self.client).generate(prompt, **({"max_tokens": 40} | fields))
        self.assertEqual(REGISTER.says(prompt, 40), reply.text, reply.last)

    def talk(self, session):
        """Makes a conversation of more than 300 tokens, and returns its text."""
        said = ""
        for _ in range(8):
            said += " the dog and the cat say hello to the small boy" * 4
            reply = self.client.generate(said[-47 * 4:], session_id=session, max_tokens=8)
            self.assertEqual(REGISTER.says(said, 8), reply.text, reply.last)
            said += reply.text
        return said

    def assert_ends_cleanly(self):
        self.assertEqual(0, self.daemon.terminate(), self.daemon.log())
        self.daemon.check_reuse()

    def model_lines(self):
        return [line for line in self.daemon.log().splitlines() if "trained for" in line]


class Lost(Faulty):
    takes_long = True

    def test_its_streams_end_and_a_model_of_the_processor_goes_on(self):
        self.start(orders=["slow 5"], model="on_device", cards=f"on_device: {{path: {uma.TINY_REGISTER}}}\n"
                   f"on_cpu: {{path: {uma.TINY_REGISTER}, devices: none}}\n")
        prompts = [PROMPT, "the small boy", "the dog"]
        clients = [self.client, *(self.daemon.client() for _ in range(3))]
        for client in clients[1:]:
            self.addCleanup(client.close)
        running = [self.begin(prompt, client=client) for prompt, client in zip(prompts, clients)]
        beside = self.begin("a cat", client=clients[3], model="on_cpu", max_tokens=3000)
        self.faults.order("lose")
        for prompt, client, request in zip(prompts, clients, running):
            self.assert_lost(client.finish(request), prompt)
        self.assertEqual(REGISTER.says("a cat", 3000), clients[3].finish(beside).text)
        self.assert_says(PROMPT)
        self.assertIn(f"{GPU} is lost and left out", self.daemon.log())
        self.assertIn("on_device", self.model_lines()[-1])
        self.assertNotIn(f", on {GPU}", self.model_lines()[-1])
        self.assertEqual(2, self.client.metrics()["models_loaded"])
        self.assert_ends_cleanly()

    def test_a_session_continues_on_the_processor_and_after_a_restart_on_the_gpu(self):
        self.start(orders=["slow 5"])
        session = self.client.create_session(mode="text")
        said = self.talk(session) + " the end"
        running = self.begin(" the end", session_id=session)
        self.faults.order("lose")
        ended = self.client.finish(running)
        self.assert_lost(ended, said)
        said += ended.text
        self.assertEqual(said, self.client.session(session)["text"])
        for _ in range(2):
            reply = self.client.generate(" and", session_id=session, max_tokens=8)
            said += " and"
            self.assertEqual(REGISTER.says(said, 8), reply.text, reply.last)
            said += reply.text
        self.assertGreater(reply.usage["reused_tokens"], 300, "the second one continues the first")
        self.assert_ends_cleanly()

        self.faults.order()
        self.daemon.start().wait_ready()
        self.assertIn(f", on {GPU}", self.model_lines()[-1])
        with self.daemon.client() as client:
            self.assert_says(PROMPT, client)
            reply = client.generate(" and", session_id=session, max_tokens=8)
            self.assertEqual("length", reply.reason, reply.last)
            self.assertEqual(0, reply.usage["reused_tokens"], "the stored state is one of the processor")
            self.assertEqual(said + " and" + reply.text, client.session(session)["text"])
        self.assert_ends_cleanly()

    def test_a_state_that_was_stored_before_is_kept(self):
        self.start()
        session = self.client.create_session(mode="text")
        said = self.talk(session)
        self.assert_ends_cleanly()  # Stores the state.
        self.faults.order("slow 5")
        self.daemon.start().wait_ready()
        with self.daemon.client() as client:
            running = self.begin(PROMPT, client=client)
            self.faults.order("lose")
            self.assert_lost(client.finish(running), PROMPT)
            self.assert_says(PROMPT, client)
            self.assertEqual("cold", client.session(session)["tier"])
        self.assert_ends_cleanly()
        self.faults.order()
        self.daemon.start().wait_ready()
        with self.daemon.client() as client:
            reply = client.generate(" the end", session_id=session, max_tokens=8)
            self.assertEqual(REGISTER.says(said + " the end", 8), reply.text)
            self.assertGreater(reply.usage["reused_tokens"], 300)
        self.assert_ends_cleanly()

    def test_a_gpu_that_was_named_is_not_replaced(self):
        self.start("--devices", GPU, orders=["slow 5"])
        running = self.begin(PROMPT)
        self.faults.order("lose")
        self.assert_lost(self.client.finish(running), PROMPT)
        answer = self.client.generate(PROMPT, max_tokens=8).last
        self.assertEqual(("error", "E_MODEL_002"), (answer["event"], answer["code"]), answer)
        self.assertIn(f"the device {GPU} was lost at", answer["message"])
        self.assertIn("restart umad", answer["message"])
        self.assert_ends_cleanly()
        self.faults.order()
        self.daemon.start().wait_ready()
        with self.daemon.client() as client:
            self.assert_says(PROMPT, client)
        self.assert_ends_cleanly()

    def test_in_the_middle_of_a_long_prompt(self):
        self.start("--threads", "2", orders=["slow 5"])
        running = self.begin(PROMPT)
        with self.daemon.client() as other:
            long = " ".join([LONG_PROMPT] * 4)
            prompt = other.start(type="generate", prompt=long, max_tokens=20)
            time.sleep(0.1)
            self.faults.order("lose")
            self.assert_lost(other.finish(prompt))
            self.assert_lost(self.client.finish(running), PROMPT)
            self.assertEqual(REGISTER.says(long, 20), other.generate(long, max_tokens=20).text)
        self.assert_ends_cleanly()

    def test_between_two_requests(self):
        self.start(orders=["slow 1"])
        self.assert_says(PROMPT)
        self.faults.order("lose")
        reply = self.client.generate(LONG_PROMPT, max_tokens=40)
        if reply.text:  # umad has noticed before, while nothing was to do.
            self.assertEqual(REGISTER.says(LONG_PROMPT, 40), reply.text)
        else:
            self.assert_lost(reply)
        self.assert_says(LONG_PROMPT)
        self.assert_ends_cleanly()

    def test_while_an_idle_model_is_unloaded(self):
        self.start("--http", "127.0.0.1:0", orders=["slow 1"])
        self.wait_measured()
        self.assert_says(PROMPT)
        self.faults.order("lose")
        url = re.search(r"http://127\.0\.0\.1:\d+", self.daemon.log()).group(0)
        request = urllib.request.Request(f"{url}/models/unload", data=b'{"model": "tiny-register"}',
                                         headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=uma.WAIT_S) as answer:
            self.assertEqual(200, answer.status)
        self.assert_says(PROMPT)
        self.assert_ends_cleanly()

    def test_while_umad_ends(self):
        self.start(orders=["slow 1"])
        session = self.client.create_session(mode="text")
        self.client.generate(LONG_PROMPT, session_id=session, max_tokens=8)
        self.faults.order("lose")
        self.assert_ends_cleanly()

    def test_before_a_load(self):
        self.start("--devices", "none", model="on_cpu", cards=f"on_cpu: {{path: {uma.TINY_REGISTER}}}\n"
                   f"on_device: {{path: {uma.TINY_REGISTER}, devices: auto}}\n")
        self.faults.order("lose")
        self.assert_says(PROMPT, model="on_device")
        self.assertIn(f"the device {GPU} was lost at", self.daemon.log())
        self.assert_says(PROMPT)
        self.assert_ends_cleanly()

    def test_an_embedding_model(self):
        self.start(model=test_devices.EMBED, orders=["slow 1"])
        texts = ["the dog sat by the door", "a cat"]
        before = self.client.call(type="embed", texts=texts)["embeddings"]
        self.faults.order("lose")
        answer = self.client.call(type="embed", texts=texts)
        self.assertEqual(("error", "E_RUNTIME_001"), (answer["event"], answer["code"]), answer)
        self.assertIn(LOST, answer["message"])
        after = self.client.call(type="embed", texts=texts)["embeddings"]
        for one, other in zip(before, after):
            self.assertGreater(sum(a * b for a, b in zip(one, other)), 0.999)
        self.assert_ends_cleanly()

    def test_an_encoder_of_images(self):
        self.start("--mmproj", vision.PROJECTOR, orders=["slow 1"])
        before = self.client.call(type="embed_image", data=vision.data_of(vision.GRAD))["embeddings"]
        self.faults.order("lose")
        answer = self.client.call(type="embed_image", data=vision.data_of(vision.RED))
        # The lane may have noticed first, for example by a measurement while it was idle; then the encoder is on the processor already.
        self.assertIn((answer["event"], answer.get("code")), {("error", "E_RUNTIME_001"), ("embedding", None)}, answer)
        after = self.client.call(type="embed_image", data=vision.data_of(vision.GRAD))["embeddings"]
        self.assertGreater(sum(a * b for a, b in zip(before[0], after[0])), 0.99)
        self.assert_says(PROMPT)
        self.assert_ends_cleanly()


class FailedComputations(Faulty):
    takes_long = True

    def streams(self, *faults, layout="unified"):
        """Runs four streams; the faults come after their first tokens."""
        self.start(config=f"kv: {{layout: {layout}}}\n", orders=["slow 3"])
        prompts = [PROMPT, "the small boy", "the dog", "a cat"]
        clients = [self.client, *(self.daemon.client() for _ in prompts[1:])]
        running = [self.begin(prompt, client=client, max_tokens=150) for prompt, client in zip(prompts, clients)]
        self.faults.order("slow 3", *faults)
        return list(zip(prompts, [client.finish(request) for client, request in zip(clients, running)]))

    def test_one_is_repeated(self):
        for fault in ("fail_compute 1", "throw_compute 1", "throw_compute 3"):
            for layout in ("unified", "split"):
                with self.subTest(fault=fault, layout=layout):
                    replies = self.streams(fault, layout=layout)
                    for prompt, reply in replies:
                        text = REGISTER.says(prompt, 150)
                        self.assertTrue(reply.text == text or (reply.last["code"] == "E_RUNTIME_001" and text.startswith(reply.text)),
                                        (prompt, reply.last))
                    whole = [reply for _, reply in replies if reply.reason == "length"]
                    # A batch that fails is repeated row by row: each further fault ends one stream.
                    self.assertGreaterEqual(len(whole), 4 if fault.endswith("1") else 2)
                    self.assertIn("each is tried alone", self.daemon.log())
                    self.assert_says(PROMPT)
                    self.assertEqual(1, len(self.model_lines()), "it stays loaded")
                    self.assert_ends_cleanly()

    def test_many_end_the_streams_and_nothing_else(self):
        for prompt, reply in self.streams("throw_compute 1000000"):
            self.assertEqual(("error", "E_RUNTIME_001"), (reply.last["reason"], reply.last["code"]), reply.last)
            self.assertIn("ErrorOutOfDeviceMemory", reply.last["message"])
            self.assertTrue(REGISTER.says(prompt, 150).startswith(reply.text))
        self.faults.order()
        self.assert_says(PROMPT)
        self.assertEqual(1, len(self.model_lines()), "it stays loaded")
        self.assertNotIn("was lost", self.daemon.log())
        self.assert_ends_cleanly()

    def test_in_a_short_prompt(self):
        self.start()
        for prompt in ("the small boy", "a cat and a dog say hello to the small boy"):
            for fault in ("fail_compute 1", "throw_compute 1"):
                with self.subTest(prompt=prompt, fault=fault):
                    self.faults.order(fault)
                    self.assert_says(prompt)
        self.assertIn("each is tried alone", self.daemon.log())
        self.assert_ends_cleanly()

    def test_in_a_long_prompt_beside_a_stream(self):
        self.start("--threads", "2", orders=["slow 5"])
        running = self.begin(PROMPT, max_tokens=600)
        with self.daemon.client() as other:
            for word in ("dog", "cat", "boy"):
                prompt = f"{word} " + " ".join([LONG_PROMPT] * 4)
                request = other.start(type="generate", prompt=prompt, max_tokens=8)
                time.sleep(0.05)
                self.faults.order("slow 5", "throw_compute 1")  # In the prompt or in the stream.
                reply = other.finish(request)
                self.assertEqual(REGISTER.says(prompt, 8), reply.text, reply.last)
        self.faults.order()
        self.assertEqual(REGISTER.says(PROMPT, 600), self.client.finish(running).text)
        self.assertRegex(self.daemon.log(), "each is tried alone|failed in the prefill lane")
        self.assert_ends_cleanly()

    def test_in_a_turn_of_a_session(self):
        self.start()
        self.wait_measured()
        session = self.client.create_session(mode="text")
        said = self.talk(session)
        self.faults.order("throw_compute 2")
        failed = self.client.generate(" the end", session_id=session, max_tokens=8).last
        self.assertEqual(("error", "E_RUNTIME_001"), (failed["event"], failed["code"]), failed)
        self.assertEqual(2, self.client.session(session)["pending_tokens"], "the input is kept and waits for a reply")
        reply = self.client.generate(" the cat", session_id=session, max_tokens=8)
        self.assertEqual("length", reply.reason, reply.last)
        self.assertEqual(said + " the end the cat" + reply.text, self.client.session(session)["text"])
        self.assert_ends_cleanly()


class FailedShifts(Faulty):
    """The rotation of the keys that move up when the oldest turns of a full context are dropped. The library repeats one that
    has failed, also where it was done, or goes on without it."""

    def test_the_moved_tokens_are_computed_again(self):
        for layout in ("unified", "split"):
            for fault, message in (("throw_shift 1", "ErrorOutOfHostMemory"), ("fail_shift 1", "failed to rotate the keys")):
                with self.subTest(layout=layout, fault=fault):
                    self.start("--n-ctx", "128", config=f"kv: {{layout: {layout}}}\n", orders=[fault])
                    session = self.client.create_session(mode="text", on_full="shift")
                    said = ""
                    for turn in range(20):
                        words = " the dog and the cat say hello to the small boy"[turn == 0:]
                        said += words
                        reply = self.client.generate(words, session_id=session, max_tokens=8)
                        self.assertEqual(REGISTER.says(said, 8), reply.text, reply.last)
                        said += reply.text
                    self.assertGreater(self.client.metrics()["context_shifts_total"], 2)
                    self.assertRegex(self.daemon.log(), f"a decode of 1 sequences failed .*{message}.*: each is tried alone")
                    self.assertEqual(1, len(self.model_lines()), "it stays loaded")
                    self.assert_ends_cleanly()


class ShortMemory(Faulty):
    def test_a_device_that_has_less_than_it_says_takes_less_or_nothing(self):
        cards = (f"on_cpu: {{path: {uma.TINY_REGISTER}, devices: none}}\n"
                 f"on_device: {{path: {uma.TINY_REGISTER}, devices: [{GPU}]}}\n")
        # The first has no memory for the weights, the second none for the keys and values.
        for memory in (500_000, 2_000_000):
            for order in ("memory", "hidden_limit"):
                with self.subTest(order=order, memory=memory):
                    self.start(model="on_cpu", orders=[f"{order} {memory}"], cards=cards)
                    running = self.begin(PROMPT)
                    with self.daemon.client() as other:
                        self.assert_says("a cat", other, model="on_device")
                    self.assertEqual(REGISTER.says(PROMPT, 2000), self.client.finish(running).text)
                    self.assertNotIn("was lost", self.daemon.log())
                    self.assert_ends_cleanly()


if __name__ == "__main__":
    unittest.main()
