"""Images: as vectors and in chats, on a trained projector and the model that it fits."""

import base64
import http.client
import json
import math
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import unittest
import zlib

from uma import MODELS, WAIT_S, Daemon, DaemonTest, run_umad

MODEL = MODELS / "babyllama105-ext-f32.gguf"
PROJECTOR = MODELS / "mmproj-tinygemma3.gguf"
GRAD = MODELS / "grad32.png"
RED = MODELS / "red32.png"
MTMD_CLI = shutil.which("llama-mtmd-cli")
FLAGS = ("--mmproj", PROJECTOR, "--n-ctx", "8192", "--slots", "4", "--threads", "1")

# The model's answers are nonsense, in which two tokens are often nearly equal: whoever shares a call would change them.
SAME_BITS = "scheduler: {reproducible: on}\n"

needs_projector = unittest.skipUnless(PROJECTOR.exists(), f"{PROJECTOR} is absent")


def data_of(path):
    return base64.b64encode(path.read_bytes()).decode()


def data_uri(path):
    return f"data:image/png;base64,{data_of(path)}"


def question(path, text="What is this?"):
    """A message of a user with an image in front of the text."""
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_uri(path)}}, {"type": "text", "text": text}]}


def png(width, height, rows):
    """A PNG file that claims this size."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def hostile_images():
    """Name and bytes of files that are no images to be read."""
    whole = GRAD.read_bytes() if GRAD.exists() else b""
    flipped = bytearray(whole)
    flipped[whole.find(b"IDAT") + 20] ^= 0xFF
    return {
        "empty": b"",
        "text": b"hello",
        "truncated": whole[:len(whole) // 2],
        "head only": whole[:33],
        "damaged": bytes(flipped),
        "huge picture": png(60_000, 60_000, b""),
        "bomb": png(8, 8, bytes(50_000_000)),
        "no rows": png(2000, 2000, b""),
        "gif of nothing": b"GIF89a" + bytes(10) + b";",
        "jpeg of nothing": b"\xff\xd8\xff\xe0\x00\x04ab\xff\xd9",
        "webp": b"RIFF\x20\x00\x00\x00WEBPVP8 " + bytes(20),
        "gguf": b"GGUF" + bytes(100),
        "wav": b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(40),
    }


@needs_projector
class Vision(DaemonTest):
    model = MODEL
    flags = (*FLAGS, "--http", "127.0.0.1:0")

    @classmethod
    def setUpClass(cls):
        cls.pictures = pathlib.Path(tempfile.mkdtemp(prefix="uma-pictures-"))
        cls.addClassCleanup(shutil.rmtree, cls.pictures)
        shutil.copy(RED, cls.pictures / "red.png")
        cls.config = f"vision: {{allowed_dirs: [{cls.pictures}]}}\n"
        super().setUpClass()

    def embed(self, **fields):
        answer = self.client.call(type="embed_image", **fields)
        self.assertEqual("embedding", answer["event"], answer)
        return answer["embeddings"]

    def post(self, path, body):
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/v1", self.daemon.log()).group(1))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        connection.request("POST", path, json.dumps(body))
        answer = connection.getresponse()
        result = answer.status, json.loads(answer.read())
        connection.close()
        return result

    # Vectors

    def test_vectors_are_stable_and_differ_by_image(self):
        grad, red, again = self.embed(images=[{"data": data_of(GRAD)}, {"url": data_uri(RED)}, {"data": data_uri(GRAD)}])
        self.assertEqual(128, len(grad))
        self.assertEqual(grad, again)
        self.assertAlmostEqual(1, math.fsum(value * value for value in grad), places=4)
        self.assertLess(math.fsum(a * b for a, b in zip(grad, red)), 0.999)
        self.assertEqual([grad], self.embed(data=data_of(GRAD)))
        self.assertEqual([red], self.embed(path=str(self.pictures / "red.png")))
        self.assertEqual([red], self.embed(url=f"file://{self.pictures}/red.png"))

    def test_an_image_is_encoded_once(self):
        self.embed(data=data_of(GRAD))
        before = self.client.metrics()
        self.embed(images=[{"data": data_of(GRAD)}] * 3)
        after = self.client.metrics()
        self.assertEqual(before["images_encoded_total"], after["images_encoded_total"])
        self.assertEqual(before["image_cache_hits_total"] + 3, after["image_cache_hits_total"])

    def test_vectors_over_http(self):
        status, answer = self.post("/v1/images/embeddings", {"images": [{"data": data_of(GRAD)}, {"data": data_of(RED)}]})
        self.assertEqual(200, status, answer)
        self.assertEqual([0, 1], [item["index"] for item in answer["data"]])
        self.assertEqual(self.embed(data=data_of(RED))[0], answer["data"][1]["embedding"])
        status, answer = self.post("/v1/images/embeddings", {"images": []})
        self.assertEqual(400, status, answer)

    def test_hostile_images_are_refused_and_nothing_else_happens(self):
        for name, data in hostile_images().items():
            with self.subTest(name):
                encoded = base64.b64encode(data).decode()
                answer = self.client.call(type="embed_image", data=encoded or "=")
                self.assert_error(answer, "E_PROTO_003", "image")
                reply = self.client.generate(messages=[{"role": "user", "content": [
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}}]}])
                self.assert_error(reply, "E_PROTO_003", "image")

    def test_hostile_places_are_refused(self):
        (self.pictures / "link.png").symlink_to(GRAD)
        os.mkfifo(self.pictures / "pipe")
        (self.pictures / "folder").mkdir()
        for path in ("/etc/passwd", f"{self.pictures}/../red.png", f"{self.pictures}/link.png", f"{self.pictures}/pipe",
                     f"{self.pictures}/folder", str(self.pictures), "red.png", "/dev/zero", str(GRAD)):
            with self.subTest(path):
                self.assert_error(self.client.call(type="embed_image", path=path), "E_PROTO_003", "allowed_dirs")
        for url in ("http://127.0.0.1:1/a.png", "https://example.org/a.png", "ftp://a/b", "gopher://x"):
            with self.subTest(url):
                self.assert_error(self.client.call(type="embed_image", url=url), "E_PROTO_003", "URL")

    def test_the_model_says_that_it_reads_images(self):
        self.assertTrue(self.client.models()[0]["reads_images"])

    # Chats

    def ask(self, path, **fields):
        return self.client.generate(messages=[question(path)], **{"max_tokens": 24, **fields})

    @unittest.skipUnless(MTMD_CLI, "llama-mtmd-cli is absent")
    def test_greedy_text_is_that_of_the_packaged_tool(self):
        for path in (GRAD, RED):
            with self.subTest(path.name):
                # Our chats begin without the tokenizer's own space.
                told = subprocess.run([MTMD_CLI, "-m", MODEL, "--mmproj", PROJECTOR, "--image", path, "-p", "<__media__>What is this?",
                                       "--temp", "0", "-n", "24", "-t", "1", "--chat-template", "chatml",
                                       "--override-kv", "tokenizer.ggml.add_space_prefix=bool:false"],
                                      capture_output=True, text=True, timeout=WAIT_S, stdin=subprocess.DEVNULL, check=True).stdout
                # It may end before its last token is printed.
                self.assertGreater(len(told.strip()), 15)
                self.assertTrue(self.ask(path).text.strip().startswith(told.strip()), told)

    def test_the_same_in_all_forms(self):
        text = self.ask(GRAD).text
        self.assertNotEqual(text, self.ask(RED).text)
        described = self.client.finish(self.client.start(type="describe_image", data=data_of(GRAD), query="What is this?", max_tokens=24))
        self.assertEqual(text, described.text)
        self.assertGreater(len(described.tokens), 1)
        status, answer = self.post("/v1/chat/completions", {"messages": [question(GRAD)], "max_tokens": 24, "temperature": 0})
        self.assertEqual(200, status, answer)
        self.assertEqual(text, answer["choices"][0]["message"]["content"])
        by_path = self.client.generate(max_tokens=24, messages=[{"role": "user", "content": [
            {"type": "image", "path": str(self.pictures / "red.png")}, {"type": "text", "text": "What is this?"}]}])
        self.assertEqual(self.ask(RED).text, by_path.text)

    def test_an_image_counts_as_its_rows_and_is_found_again(self):
        first = self.ask(GRAD)
        self.assertGreater(first.usage["prompt_tokens"], 256)
        before = self.client.metrics()
        again = self.ask(GRAD)
        self.assertEqual(first.text, again.text)
        self.assertGreater(again.usage["reused_tokens"], 256)
        after = self.client.metrics()
        self.assertEqual(before["images_encoded_total"], after["images_encoded_total"])
        self.assertEqual(before["image_cache_hits_total"], after["image_cache_hits_total"], "nobody asked for its rows")

    def test_messages_that_are_wrong(self):
        for content in ([{"type": "image_url"}], [{"type": "image_url", "image_url": {}}], [{"type": "image"}], [{"type": "audio"}],
                        [{"type": "image_url", "image_url": {"url": 7}}], [7],
                        [{"type": "image", "path": "/a", "data": "b"}]):
            with self.subTest(content):
                self.assert_error(self.client.generate(messages=[{"role": "user", "content": content}]), "E_PROTO_003", "content")
        image = question(GRAD)["content"]
        self.assert_error(self.client.generate(messages=[{"role": "system", "content": image}]), "E_PROTO_003", "content")
        self.assert_error(self.client.generate(messages=[{"role": "user", "content": image * 65}]), "E_PROTO_003", "64")
        session = self.client.create_session(mode="text")
        self.assert_error(self.client.generate(session_id=session, messages=[question(GRAD)]), "E_PROTO_003", "mode text")
        shifting = self.client.create_session(mode="chat", on_full="shift")
        self.assert_error(self.client.generate(session_id=shifting, messages=[question(GRAD)]), "E_PROTO_003", "on_full")

    def test_a_session_with_an_image_is_not_exported(self):
        session = self.client.create_session(mode="chat")
        self.client.generate(session_id=session, messages=[question(GRAD)], max_tokens=4)
        self.assert_error(self.client.call(type="export_session", session_id=session), "E_MODEL_003", "images")


@needs_projector
class VisionLives(unittest.TestCase):
    """Sessions with images over restarts, and beside others."""

    def restart(self, daemon, number):
        if number is not None:
            daemon.signal(number)
        daemon.wait()
        daemon.start().wait_ready()

    def talk(self, client, session, text, image=None):
        content = question(image, text) if image else {"role": "user", "content": text}
        reply = client.generate(session_id=session, messages=[content], max_tokens=16)
        self.assertEqual("eos", reply.last["event"], reply.last)
        return reply

    def images(self, daemon):
        return sorted(path.name for path in (daemon.data_dir / "images").iterdir())

    def test_many_at_once_beside_a_stream(self):
        story = dict(type="generate", messages=[{"role": "user", "content": "Tell me a story."}], max_tokens=100)

        def ask(client, path):
            return client.start(type="generate", messages=[question(path)], max_tokens=24)
        with Daemon(MODEL, *FLAGS, config=SAME_BITS) as daemon, daemon.client() as client:
            alone = client.finish(client.start(story)).text
            wanted = {path: client.finish(ask(client, path)).text for path in (GRAD, RED)}
            told = client.start(story)
            asked = [(path, ask(client, path)) for path in (GRAD, RED) * 6]
            for path, request in asked:
                self.assertEqual(wanted[path], client.finish(request).text)
            self.assertEqual(alone, client.finish(told).text)

    def test_it_goes_on_without_encoding_again(self):
        with Daemon(MODEL, *FLAGS, config=SAME_BITS) as daemon:
            with daemon.client() as client:
                session = client.create_session(mode="chat")
                self.talk(client, session, "What is this?", GRAD)
                twin = client.call(type="fork_session", session_id=session)["session_id"]
                wanted = self.talk(client, twin, "And now?").text
                self.assertEqual(1, client.metrics()["images_encoded_total"])
            self.restart(daemon, signal.SIGTERM)
            with daemon.client() as client:
                reply = self.talk(client, session, "And now?")
                self.assertEqual(wanted, reply.text)
                self.assertEqual("cold", reply.usage["tier"])
                self.assertGreater(reply.usage["reused_tokens"], 256)
                self.assertEqual(0, client.metrics()["images_encoded_total"])
                shown = client.session(session)["messages"][0]
                self.assertEqual(self.images(daemon), [image["sha256"] for image in shown["images"]])

    def test_after_a_kill_it_is_computed_again_from_its_file(self):
        with Daemon(MODEL, *FLAGS, config=SAME_BITS) as daemon:
            with daemon.client() as client:
                session = client.create_session(mode="chat")
                self.talk(client, session, "What is this?", RED)
                twin = client.call(type="fork_session", session_id=session)["session_id"]
                wanted = self.talk(client, twin, "And now?").text
            self.restart(daemon, signal.SIGKILL)
            with daemon.client() as client:
                self.assertEqual(wanted, self.talk(client, session, "And now?").text)
                self.assertEqual(1, client.metrics()["images_encoded_total"])

    def test_images_of_sessions_that_ended_are_removed(self):
        with Daemon(MODEL, *FLAGS, config=SAME_BITS) as daemon:
            with daemon.client() as client:
                kept, ended = client.create_session(mode="chat"), client.create_session(mode="chat")
                self.talk(client, kept, "What is this?", GRAD)
                self.talk(client, ended, "What is this?", RED)
                self.assertEqual(2, len(self.images(daemon)))
                client.call(type="end_session", session_id=ended)
            self.restart(daemon, signal.SIGTERM)
            self.assertEqual(1, len(self.images(daemon)))
            with daemon.client() as client:
                self.talk(client, kept, "And now?")

    def test_without_the_projector_the_session_waits_for_it(self):
        with Daemon(MODEL, *FLAGS, config=SAME_BITS) as daemon:
            with daemon.client() as client:
                session = client.create_session(mode="chat")
                self.talk(client, session, "What is this?", GRAD)
            blind = [flag for flag in daemon.arguments if flag not in ("--mmproj", str(PROJECTOR))]
            seeing, daemon.arguments = daemon.arguments, blind
            self.restart(daemon, signal.SIGTERM)
            with daemon.client() as client:
                reply = client.generate(session_id=session, messages=[{"role": "user", "content": "And now?"}])
                self.assertEqual("E_MODEL_001", reply.code, reply.last)
            daemon.arguments = seeing
            self.restart(daemon, signal.SIGTERM)
            with daemon.client() as client:
                self.talk(client, session, "And now?")


class NoProjector(DaemonTest):
    def test_images_are_refused_by_what_the_model_cannot(self):
        answer = self.client.call(type="embed_image", data="aGVsbG8=")
        self.assert_error(answer, "E_MODEL_003", "--mmproj")
        self.assertFalse(self.client.models()[0]["reads_images"])


@needs_projector
class Starts(unittest.TestCase):
    def test_a_projector_that_is_none_ends_the_start(self):
        with tempfile.TemporaryDirectory() as folder:
            ended = run_umad("--model", MODEL, "--mmproj", MODEL, "--socket", f"{folder}/s", "--data-dir", f"{folder}/d")
        self.assertEqual(1, ended.returncode, ended.stderr)
        self.assertIn("projector", ended.stderr)


if __name__ == "__main__":
    unittest.main()
