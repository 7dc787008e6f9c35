"""Images for a model whose positions have several dimensions (M-RoPE): an image takes fewer positions than tokens."""

import base64
import pathlib
import signal
import subprocess
import tempfile
import unittest

import pictures
from test_vision import hostile_images
from uma import BUILD, WAIT_S, Daemon, DaemonTest, until
from vision import CLI, SAME_BITS, data_of, data_uri, question

MODEL = BUILD / "models" / "tiny-grid.gguf"
PROJECTOR = BUILD / "models" / "mmproj-tiny-grid.gguf"
FLAGS = ("--mmproj", PROJECTOR, "--kv-cells", "8192", "--slots", "4", "--threads", "1")
UNIFIED = "kv: {layout: unified}\n"
FOLDER = tempfile.TemporaryDirectory(prefix="uma-grids-")


def picture(name, width, height):
    """A file with a gradient of this size; different names give different colours."""
    path = pathlib.Path(FOLDER.name) / f"{name}.png"
    seed = sum(name.encode())
    path.write_bytes(pictures.png(width, height, b"".join(
        b"\0" + b"".join(bytes(((x * 3 + seed) % 256, (y * 5) % 256, (x * y + seed * 7) % 256)) for x in range(width))
        for y in range(height))))
    return path


# 10 x 5 and 4 x 8 rows: 50 tokens at 10 positions, 32 tokens at 8 positions.
WIDE = picture("wide", 280, 140)
TALL = picture("tall", 112, 224)


class GridImages(DaemonTest):
    model = MODEL
    flags = FLAGS
    config = SAME_BITS

    def ask(self, *paths, text="What is this?", **fields):
        content = [part for path in paths for part in question(path)["content"][:1]] + [{"type": "text", "text": text}]
        return self.client.generate(messages=[{"role": "user", "content": content}], **{"max_tokens": 40, **fields})

    def told(self, paths, prompt):
        images = [argument for path in paths for argument in ("--image", str(path))]
        ran = subprocess.run(["llama-mtmd-cli", "-m", MODEL, "--mmproj", PROJECTOR, *images, "-p", prompt, "--temp", "0", "-n", "120",
                              "-t", "1", "--chat-template", "chatml", "--image-max-tokens", "2048",
                              "--override-kv", "tokenizer.ggml.add_space_prefix=bool:false"],
                             capture_output=True, text=True, timeout=WAIT_S, stdin=subprocess.DEVNULL, check=True)
        # The tool ends without waiting for its output: sometimes most of the text is missing.
        return ran.stdout.strip() if len(ran.stdout) > 100 else None

    def test_greedy_text_is_that_of_the_packaged_tool(self):
        for paths in ((WIDE,), (TALL,), (WIDE, TALL)):
            with self.subTest([path.name for path in paths]):
                text = until(lambda paths=paths: self.told(paths, "<__media__>" * len(paths) + "What is this?"),
                             "llama-mtmd-cli prints a hundred bytes")
                self.assertTrue(self.ask(*paths, max_tokens=120).text.strip().startswith(text), text)

    def test_text_depends_on_the_image_and_its_shape(self):
        texts = {self.ask(path).text for path in (WIDE, TALL, picture("wide2", 280, 140), picture("turned", 140, 280))}
        self.assertEqual(4, len(texts))

    def test_an_image_counts_as_its_rows(self):
        none = self.client.generate(messages=[{"role": "user", "content": "What is this?"}], max_tokens=1).usage["prompt_tokens"]
        wide = self.ask(WIDE, max_tokens=1).usage["prompt_tokens"]
        both = self.ask(WIDE, TALL, max_tokens=1).usage["prompt_tokens"]
        self.assertEqual((50 + 2, 50 + 2 + 32 + 2), (wide - none, both - none))

    def test_hostile_images_are_refused(self):
        for name, data in hostile_images().items():
            with self.subTest(name):
                encoded = base64.b64encode(data).decode()
                reply = self.client.generate(messages=[{"role": "user", "content": [
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}}]}])
                self.assert_error(reply, "E_PROTO_003", "image")

    def test_images_of_extreme_shapes_are_read_or_refused(self):
        for name, width, height in (("line", 4000, 1), ("column", 1, 4000), ("ribbon", 16_000, 30), ("dot", 1, 1)):
            with self.subTest(name):
                reply = self.ask(picture(name, width, height), max_tokens=4)
                self.assertIn(reply.last["event"], ("eos", "error"), reply.last)
        self.assertEqual("eos", self.ask(WIDE, max_tokens=4).last["event"])

    def test_many_at_once_beside_a_stream(self):
        def start(path):
            return self.client.start(type="generate", messages=[question(path)], max_tokens=24)
        wanted = {path: self.client.finish(start(path)).text for path in (WIDE, TALL)}
        story = dict(type="generate", messages=[{"role": "user", "content": "Tell me a story."}], max_tokens=100)
        alone = self.client.finish(self.client.start(story)).text
        told = self.client.start(story)
        asked = [(path, start(path)) for path in (WIDE, TALL) * 6]
        for path, request in asked:
            self.assertEqual(wanted[path], self.client.finish(request).text)
        self.assertEqual(alone, self.client.finish(told).text)

    def test_vectors(self):
        answer = self.client.call(type="embed_image", images=[{"data": data_of(WIDE)}, {"url": data_uri(TALL)}])
        self.assertEqual("embedding", answer["event"], answer)
        self.assertEqual([64, 64], [len(vector) for vector in answer["embeddings"]])


class GridReuse(DaemonTest):
    """Requests that begin with the same image. Without the same bits, texts are compared by their first tokens."""
    model = MODEL
    flags = FLAGS

    def test_an_image_is_found_again_and_not_encoded(self):
        first, second = (self.client.generate(messages=[question(WIDE, text)], max_tokens=2) for text in ("What is this?", "And who?"))
        before = self.client.metrics()["images_encoded_total"]
        for text, reply in (("What is this?", first), ("And who?", second)):
            again = self.client.generate(messages=[question(WIDE, text)], max_tokens=2)
            self.assertEqual(reply.text, again.text)
            self.assertGreater(again.usage["reused_tokens"], 50)
        self.assertGreater(second.usage["reused_tokens"], 50, "the prefix ends behind the image")
        self.assertEqual(before, self.client.metrics()["images_encoded_total"])

    def test_an_image_in_common_ends_before_another_one(self):
        messages = [question(TALL, "Which?")["content"], question(WIDE, "Which?")["content"]]
        both = [{"role": "user", "content": messages[0][:1] + messages[1]}]
        alone = [{"role": "user", "content": messages[0]}]
        self.client.generate(messages=alone, max_tokens=2)
        reply = self.client.generate(messages=both, max_tokens=2)
        self.assertGreater(reply.usage["reused_tokens"], 32)
        self.assertLess(reply.usage["reused_tokens"], 32 + 50)
        with Daemon(MODEL, *FLAGS) as fresh, fresh.client() as client:
            self.assertEqual(client.generate(messages=both, max_tokens=2).text, reply.text)


class GridSessions(unittest.TestCase):
    """Sessions of such a model: turns behind images, rewinds, forks, restarts."""

    CONFIGS = {"split": SAME_BITS, "unified": UNIFIED}

    def assert_same(self, config, wanted, text):
        # In a shared pool the order of cells changes the rounding, so that a later token may differ.
        length = 8 if config == UNIFIED else None
        self.assertEqual(wanted[:length], text[:length])

    def talk(self, client, session, text, *images):
        content = [part for path in images for part in question(path)["content"][:1]] + [{"type": "text", "text": text}]
        reply = client.generate(session_id=session, messages=[{"role": "user", "content": content}], max_tokens=16)
        self.assertEqual("eos", reply.last["event"], reply.last)
        return reply

    def conversation(self, client):
        """Three turns, with an image in the first and two in the second one."""
        session = client.create_session(mode="chat")
        return session, [self.talk(client, session, "What is this?", WIDE).text,
                         self.talk(client, session, "And these?", TALL, WIDE).text,
                         self.talk(client, session, "Go on.").text]

    def test_a_session_goes_on_as_if_it_was_sent_whole(self):
        for name, config in self.CONFIGS.items():
            with self.subTest(name), Daemon(MODEL, *FLAGS, config=config) as daemon, daemon.client() as client:
                _, texts = self.conversation(client)
            with self.subTest(name + ", anew"), Daemon(MODEL, *FLAGS, config=config) as daemon, daemon.client() as client:
                history = []
                for turn, (text, images) in enumerate((("What is this?", (WIDE,)), ("And these?", (TALL, WIDE)), ("Go on.", ()))):
                    parts = [part for path in images for part in question(path)["content"][:1]] + [{"type": "text", "text": text}]
                    history.append({"role": "user", "content": parts})
                    reply = client.generate(messages=history, max_tokens=16)
                    self.assert_same(config, texts[turn], reply.text)
                    history.append({"role": "assistant", "content": reply.text})

    def test_it_goes_on_after_a_restart_without_encoding_again(self):
        for name, config in self.CONFIGS.items():
            with self.subTest(name), Daemon(MODEL, *FLAGS, config=config) as daemon:
                with daemon.client() as client:
                    session, _ = self.conversation(client)
                    twin = client.call(type="fork_session", session_id=session)["session_id"]
                    wanted = self.talk(client, twin, "And now?").text
                daemon.signal(signal.SIGTERM)
                daemon.wait()
                daemon.start().wait_ready()
                with daemon.client() as client:
                    reply = self.talk(client, session, "And now?")
                    self.assert_same(config, wanted, reply.text)
                    self.assertEqual("cold", reply.usage["tier"])
                    self.assertGreater(reply.usage["reused_tokens"], 50 + 32 + 50)
                    self.assertEqual(0, client.metrics()["images_encoded_total"])

    def test_after_a_kill_it_is_computed_again(self):
        with Daemon(MODEL, *FLAGS, config=SAME_BITS) as daemon:
            with daemon.client() as client:
                session, _ = self.conversation(client)
                twin = client.call(type="fork_session", session_id=session)["session_id"]
                wanted = self.talk(client, twin, "And now?").text
            daemon.signal(signal.SIGKILL)
            daemon.wait()
            daemon.start().wait_ready()
            with daemon.client() as client:
                self.assertEqual(wanted, self.talk(client, session, "And now?").text)
                self.assertEqual(2, client.metrics()["images_encoded_total"])

    def test_rewinds_before_and_behind_images(self):
        for name, config in self.CONFIGS.items():
            with self.subTest(name), Daemon(MODEL, *FLAGS, config=config) as daemon, daemon.client() as client:
                session, texts = self.conversation(client)
                for turn, again in ((1, lambda twin: self.talk(client, twin, "Go on.")),
                                    (0, lambda twin: self.talk(client, twin, "And these?", TALL, WIDE))):
                    twin = client.call(type="fork_session", session_id=session)["session_id"]
                    answer = client.call(type="rewind_session", session_id=twin, turn=turn)
                    self.assertNotEqual("error", answer["event"], answer)
                    self.assert_same(config, texts[turn + 1], again(twin).text)

    def test_images_of_a_long_prompt_are_computed_in_the_prefill_lane(self):
        content = [question(path)["content"][0] for path in (WIDE, TALL)] + [{"type": "text", "text": "the dog and the cat " * 150}]
        texts = []
        for lanes in ("off", "turns"):
            config = f"scheduler: {{reproducible: on, lanes: {lanes}, tick_ms: 1}}\n"
            with Daemon(MODEL, *FLAGS, config=config) as daemon, daemon.client() as client:
                story = client.start(type="generate", messages=[{"role": "user", "content": "Tell me a story."}], max_tokens=1500,
                                     ignore_eos=True)
                client.wait_token(story)
                reply = client.generate(messages=[{"role": "user", "content": content}], max_tokens=16)
                self.assertEqual("eos", reply.last["event"], reply.last)
                texts.append(reply.text)
                client.call(type="cancel", target=story)
                client.finish(story)
                if lanes == "turns":
                    self.assertGreater(client.metrics()["handovers_total"], 0)
        self.assertEqual(*texts)

    def test_a_full_context_goes_on_without_the_oldest_images(self):
        flags = ("--mmproj", PROJECTOR, "--kv-cells", "1024", "--slots", "2", "--threads", "1")
        with Daemon(MODEL, *flags, config=SAME_BITS) as daemon, daemon.client() as client:
            session = client.create_session(mode="chat", on_full="shift")
            dropped = 0
            for turn in range(10):
                reply = self.talk(client, session, "What is this?", (WIDE, TALL)[turn % 2])
                dropped += reply.usage["dropped_turns"]
            self.assertGreater(dropped, 0)

    def test_a_session_travels_with_its_kv(self):
        with Daemon(MODEL, *FLAGS, config=SAME_BITS) as first, Daemon(MODEL, *FLAGS, config=SAME_BITS) as second, \
                tempfile.TemporaryDirectory() as folder:
            def cli(daemon, *arguments):
                return subprocess.run([str(CLI), "sessions", *map(str, arguments), "--socket", str(daemon.socket_path)],
                                      capture_output=True, text=True, timeout=WAIT_S, stdin=subprocess.DEVNULL, check=False)
            with first.client() as client, second.client() as other:
                session = client.create_session(mode="chat", name="seen")
                self.talk(client, session, "What is this?", WIDE)
                saved = cli(first, "export", "seen", f"{folder}/seen", "--kv")
                self.assertEqual(0, saved.returncode, saved.stderr)
                loaded = cli(second, "import", f"{folder}/seen", "--name", "copy")
                self.assertEqual(0, loaded.returncode, loaded.stderr)
                reply = self.talk(other, "copy", "And now?")
                self.assertEqual("warm", reply.usage["tier"], reply.last)
                self.assertEqual(0, other.metrics()["images_encoded_total"])
                self.assertEqual(self.talk(client, session, "And now?").text, reply.text)


class GridLimits(unittest.TestCase):
    def rows_of(self, config, path):
        with Daemon(MODEL, *FLAGS, config=config) as daemon, daemon.client() as client:
            told = [client.generate(messages=[{"role": "user", "content": content}], max_tokens=1)
                    for content in (question(path, "What?")["content"], "What?")]
            return told[0].usage["prompt_tokens"] - told[1].usage["prompt_tokens"] - 2

    def test_a_large_image_is_scaled_down(self):
        large = picture("large", 840, 560)
        self.assertEqual(30 * 20, self.rows_of("", large))
        bound = self.rows_of("vision: {image_tokens_max: 100}\n", large)
        self.assertGreater(bound, 50)
        self.assertLessEqual(bound, 100)

    def test_an_image_with_too_many_pixels_is_refused(self):
        with Daemon(MODEL, *FLAGS, config="vision: {image_pixels_max: 30000}\n") as daemon, daemon.client() as client:
            refused = client.generate(messages=[question(WIDE)], max_tokens=1)
            self.assertEqual("E_PROTO_003", refused.code, refused.last)
            self.assertIn("vision.image_pixels_max", refused.last["message"])
            self.assertEqual("eos", client.generate(messages=[question(TALL)], max_tokens=1).last["event"])


if __name__ == "__main__":
    unittest.main()
