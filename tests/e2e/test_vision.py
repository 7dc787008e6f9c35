"""Images: as vectors and in chats, on a trained projector and the model that it fits."""

import base64
import http.client
import json
import math
import os
import pathlib
import re
import shutil
import struct
import subprocess
import tempfile
import unittest
import zlib

from uma import MODELS, WAIT_S, Daemon, DaemonTest, run_umad, until

MODEL = MODELS / "babyllama105-ext-f32.gguf"
PROJECTOR = MODELS / "mmproj-tinygemma3.gguf"
GRAD = MODELS / "grad32.png"
RED = MODELS / "red32.png"
MTMD_CLI = shutil.which("llama-mtmd-cli")
FLAGS = ("--mmproj", PROJECTOR, "--n-ctx", "8192", "--slots", "4", "--threads", "1")

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
# CHAT


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
