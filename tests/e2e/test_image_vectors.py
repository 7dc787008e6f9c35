"""Vectors of images: in the space of the model's texts, or of its projector alone."""

import base64
import json
import math
import pathlib
import re
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import vision
from test_grid_images import PROJECTOR, TALL, WIDE, picture
from test_vision import hostile_images
from uma import BUILD, WAIT_S, Daemon, DaemonTest
from vision import CLI, data_of, data_uri

MODEL = BUILD / "models" / "tiny-grid-embed.gguf"
CHAT = BUILD / "models" / "tiny-grid.gguf"
REFERENCE = BUILD / "bin" / "embed_by_library"
FLAGS = ("--mmproj", PROJECTOR, "--threads", "1", "--http", "127.0.0.1:0")
EXACT = "kv: {flash_attention: off}\n"


def image(path):
    return {"type": "image_url", "image_url": {"url": data_uri(path)}}


def text(words):
    return {"type": "text", "text": words}


def url_of(daemon):
    return re.search(r"http +(http://127\.0\.0\.1:\d+)/v1", daemon.log()).group(1)


def post(daemon, path, body):
    request = urllib.request.Request(url_of(daemon) + path, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def by_library(model, *parts, projector=PROJECTOR):
    """The vector of these parts by embed_by_library.cpp: the path of an image, "eos", words of a template, or another text."""
    def argument(part):
        if isinstance(part, pathlib.Path):
            return f"image:{part}"
        return part if part == "eos" or part.startswith("template:") else f"text:{part}"
    ran = subprocess.run([str(REFERENCE), str(model), str(projector), *map(argument, parts)], capture_output=True, text=True,
                         timeout=WAIT_S, check=False)
    if ran.returncode != 0:
        raise AssertionError(ran.stderr[-2000:])
    return json.loads(ran.stdout)


def question(*parts):
    """The arguments of by_library for a message of the user in ChatML, which is the model's template."""
    return ("template:<|im_start|>user\n", *parts, "template:<|im_end|>\n<|im_start|>assistant\n", "eos")


class VectorTest(DaemonTest):
    model = MODEL
    flags = FLAGS
    config = EXACT

    def embed(self, inputs, **fields):
        answer = self.client.call(type="embed", texts=inputs, **fields)
        self.assertEqual("embedding", answer["event"], answer)
        return answer["embeddings"]

    def assert_same(self, one, other, what="", delta=1e-3):
        self.assertEqual(len(one), len(other), what)
        self.assertLessEqual(max(abs(a - b) for a, b in zip(one, other)), delta, what)


class SharedSpace(VectorTest):
    def test_texts_and_images_have_one_width_and_length_one(self):
        vectors = self.embed(["a dog", image(WIDE), [image(WIDE), text("a dog")]])
        vectors += self.client.call(type="embed_image", data=data_of(TALL))["embeddings"]
        self.assertEqual({64}, {len(vector) for vector in vectors})
        for vector in vectors:
            self.assertAlmostEqual(1, math.sqrt(sum(value * value for value in vector)), places=4)
        self.assertEqual(64, self.client.models()[0]["dimensions"])

    def test_vectors_are_those_of_the_library(self):
        large = picture("large", 840, 560)  # 600 rows, more than are computed at once
        cases = {"text": ("a dog", ("a dog",)), "wide": (image(WIDE), (WIDE,)), "tall": (image(TALL), (TALL,)),
                 "large": (image(large), (large,)), "before": ([image(WIDE), text("a dog")], (WIDE, "a dog")),
                 "behind": ([text("a dog"), image(WIDE)], ("a dog", WIDE)),
                 "two": ([image(TALL), text(" and "), image(WIDE), text(" are alike")], (TALL, " and ", WIDE, " are alike"))}
        for name, (asked, parts) in cases.items():
            with self.subTest(name):
                self.assert_same(self.embed([asked])[0], by_library(MODEL, *question(*parts)), name)

    def test_both_commands_and_both_listeners_say_the_same(self):
        wanted = self.embed([image(WIDE), image(TALL)])
        answer = self.client.call(type="embed_image", images=[{"data": data_of(WIDE)}, {"url": data_uri(TALL)}])
        status, over_http = post(self.daemon, "/v1/images/embeddings", {"images": [{"data": data_of(WIDE)}, {"data": data_of(TALL)}]})
        self.assertEqual(200, status, over_http)
        status, parts = post(self.daemon, "/v1/embeddings", {"input": [image(WIDE), image(TALL)], "dimensions": 64})
        self.assertEqual(200, status, parts)
        for i, vector in enumerate(wanted):
            self.assert_same(vector, answer["embeddings"][i])
            self.assert_same(vector, over_http["data"][i]["embedding"])
            self.assert_same(vector, parts["data"][i]["embedding"])
        status, single = post(self.daemon, "/v1/embeddings", {"input": image(WIDE)})
        self.assert_same(wanted[0], single["data"][0]["embedding"])
        self.assertGreater(single["usage"]["prompt_tokens"], 50)

    def test_the_same_image_is_encoded_once(self):
        path = picture("once", 140, 140)
        before = self.client.metrics()["images_encoded_total"]
        vectors = self.embed([image(path), [image(path), text("and"), image(path)], image(path)])
        self.assertEqual(vectors[0], vectors[2])
        self.assertEqual(1, self.client.metrics()["images_encoded_total"] - before)

    def test_texts_do_not_wait_for_images(self):
        wanted = self.embed(["a dog"])[0]
        images = [{"data": data_of(picture(f"many{i}", 560, 560))} for i in range(12)]
        with self.daemon.client() as other:
            busy = self.client.start(type="embed_image", images=images)
            began = time.monotonic()
            for _ in range(5):
                self.assert_same(wanted, other.call(type="embed", texts=["a dog"])["embeddings"][0])
            took = time.monotonic() - began
            answer = self.client.finish(busy)
            self.assertEqual(12, len(answer.last["embeddings"]), answer.last)
            self.assertLess(took, time.monotonic() - began)

    def test_a_cancelled_request_ends(self):
        images = [{"data": data_of(picture(f"cancel{i}", 560, 560))} for i in range(20)]
        busy = self.client.start(type="embed_image", images=images)
        self.assertTrue(self.client.call(type="cancel", target=busy)["cancelled"])
        self.assertEqual("E_LIMIT_003", self.client.finish(busy).code)
        other = self.client.start(type="embed", texts=[image(picture(f"cancel{i}", 560, 560)) for i in range(20)])
        self.embed(["a dog"])
        self.assertTrue(self.client.call(type="cancel", target=other)["cancelled"])
        self.assertEqual("E_LIMIT_003", self.client.finish(other).code)
        self.assertEqual(1, len(self.embed([image(WIDE)])))

    def test_a_deadline_passes(self):
        images = [{"data": data_of(picture(f"late{i}", 560, 560))} for i in range(20)]
        answer = self.client.call(type="embed_image", images=images, deadline_ms=1)
        self.assertEqual("E_LIMIT_003", answer.get("code"), answer)

    def test_background_requests_are_computed(self):
        vectors = self.embed([image(WIDE)], **{"class": "background"})
        answer = self.client.call(type="embed_image", data=data_of(WIDE), **{"class": "background"})
        self.assert_same(vectors[0], answer["embeddings"][0])

    def test_hostile_images_are_refused(self):
        for name, data in hostile_images().items():
            with self.subTest(name):
                encoded = base64.b64encode(data).decode()
                part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}}
                for request in (dict(type="embed", texts=["a", [text("b"), part]]), dict(type="embed_image", data=encoded)):
                    answer = self.client.call(**request)
                    self.assertEqual(("error", "E_PROTO_003"), (answer["event"], answer.get("code")), answer)
        self.assertEqual(1, len(self.embed([image(WIDE)])))

    def test_what_does_not_fit_is_refused_with_numbers(self):
        long = [image(WIDE), text("word " * 2500)]
        for fields in ({}, {"long_input": "truncate"}, {"long_input": "chunk"}):
            answer = self.client.call(type="embed", texts=[long], **fields)
            self.assertEqual("E_LIMIT_001", answer.get("code"), answer)
            self.assertIn("the limit of the model is 2048", answer["message"])
        self.assertEqual(64, len(self.embed([text("word " * 2500)], long_input="chunk")[0]))
        many = [image(picture("grand", 840, 840))] * 3  # 900 rows each
        answer = self.client.call(type="embed", texts=[many])
        self.assertEqual("E_LIMIT_001", answer.get("code"), answer)

    def test_bad_requests_are_refused_by_name(self):
        for inputs, part in ((dict(type="video"), "input.type"), ([[text("")]], "input[0]"), ([["a", image(WIDE)]], "input[0]"),
                             ([image(WIDE)] * 65, "65 images"), ({"type": "image_url", "image_url": {"url": "ftp://x/y"}}, "input")):
            status, answer = post(self.daemon, "/v1/embeddings", {"input": inputs})
            self.assertEqual((400, "E_PROTO_003"), (status, answer["error"]["code"]), answer)
            self.assertIn(part, answer["error"]["message"])

    def test_models_say_so(self):
        model = self.client.models()[0]
        self.assertEqual(("text_embedding", "shared", True),
                         (model["capability"], model["image_vectors"], model["reads_images"]))
        with urllib.request.urlopen(url_of(self.daemon) + "/v1/models", timeout=WAIT_S) as answer:
            self.assertEqual("shared", json.loads(answer.read())["data"][0]["image_vectors"])

    def test_the_command_line_embeds_images(self):
        ran = subprocess.run([str(CLI), "embed", "--image", str(WIDE), "--json", "--socket", str(self.daemon.socket_path)],
                             capture_output=True, text=True, timeout=WAIT_S, stdin=subprocess.DEVNULL, check=True)
        self.assert_same(self.embed([image(WIDE)])[0], json.loads(ran.stdout.splitlines()[0])["embedding"])


class Cards(unittest.TestCase):
    """The pooling, the frame and the instruction are of the card."""

    def vectors(self, card, inputs, **fields):
        with self.daemon_with(CHAT if "pooling" in card else MODEL, card) as daemon, daemon.client() as client:
            answer = client.call(type="embed", texts=inputs, **fields)
            self.assertEqual("embedding", answer["event"], answer)
            return answer["embeddings"], client.models()[0]

    def daemon_with(self, model, card, projector=PROJECTOR):
        folder = tempfile.TemporaryDirectory(prefix="uma-cards-")
        self.addCleanup(folder.cleanup)
        cards = pathlib.Path(folder.name) / "models.yaml"
        cards.write_text(f"m: {{path: {model}, {f'projector: {projector}, ' if projector else ''}{card}}}\n")
        return Daemon("m", "--threads", "1", config=f"{EXACT}models: {cards}\n")

    def assert_same(self, one, other):
        self.assertLessEqual(max(abs(a - b) for a, b in zip(one, other)), 1e-3)

    def test_a_plain_frame_has_no_template(self):
        vectors, _ = self.vectors("frame: plain", ["a dog", image(WIDE)])
        self.assert_same(vectors[0], by_library(MODEL, " a dog", "eos"))
        self.assert_same(vectors[1], by_library(MODEL, WIDE, "eos"))
        vectors, _ = self.vectors("frame: plain, tasks: {query: Find it.}", ["a dog", [image(WIDE), text("a dog")]], task="query")
        self.assert_same(vectors[0], by_library(MODEL, " Find it.a dog", "eos"))
        self.assert_same(vectors[1], by_library(MODEL, " Find it.", WIDE, "a dog", "eos"))

    def test_the_instruction_is_the_system_message(self):
        def asked(instruction, part):
            return by_library(MODEL, "template:<|im_start|>system\n", instruction, "template:<|im_end|>\n<|im_start|>user\n", part,
                              "template:<|im_end|>\n<|im_start|>assistant\n", "eos")
        card = "system: Represent it., tasks: {query: Find it.}"
        vectors, _ = self.vectors(card, ["a dog", image(WIDE)])
        self.assert_same(vectors[0], asked("Represent it.", "a dog"))
        self.assert_same(vectors[1], asked("Represent it.", WIDE))
        vectors, _ = self.vectors(card, [image(WIDE)], task="query")
        self.assert_same(vectors[0], asked("Find it.", WIDE))

    def test_a_pooling_makes_an_embedding_model(self):
        vectors, model = self.vectors("pooling: last", ["a dog", image(WIDE)])
        self.assertEqual(("text_embedding", "shared"), (model["capability"], model["image_vectors"]))
        self.assert_same(vectors[0], by_library(CHAT, " a dog"))
        self.assert_same(vectors[1], by_library(CHAT, WIDE))

    def test_rows_may_see_each_other(self):
        with self.daemon_with(vision.MODEL, "pooling: last", vision.PROJECTOR) as daemon, daemon.client() as client:
            vectors = client.call(type="embed", texts=[image(vision.GRAD), [image(vision.RED), text("a dog")]])["embeddings"]
        for vector, parts in zip(vectors, ((vision.GRAD,), (vision.RED, "a dog"))):
            self.assert_same(vector, by_library(vision.MODEL, *parts, projector=vision.PROJECTOR))

    def test_a_frame_may_be_given_without_a_projector(self):
        for frame, parts in (("chat", question("a dog")), ("plain", (" a dog", "eos"))):
            with self.daemon_with(MODEL, f"frame: {frame}", None) as daemon, daemon.client() as client:
                self.assertEqual("none", client.models()[0]["image_vectors"])
                self.assert_same(client.call(type="embed", texts=["a dog"])["embeddings"][0], by_library(MODEL, *parts))

    def test_another_pooling_leaves_the_projectors_vectors(self):
        with self.daemon_with(CHAT, "pooling: mean") as daemon, daemon.client() as client:
            self.assertEqual("projector", client.models()[0]["image_vectors"])
            self.assertEqual(64, len(client.call(type="embed", texts=["a dog"])["embeddings"][0]))
            self.assertEqual("projector", client.models()[0]["image_vectors"])
            self.assertEqual(64, len(client.call(type="embed_image", data=data_of(WIDE))["embeddings"][0]))
            refused = client.call(type="embed", texts=[image(WIDE)])
            self.assertEqual("E_MODEL_003", refused.get("code"), refused)
            self.assertIn("image_vectors", refused["message"])


class ProjectorOnly(VectorTest):
    model = CHAT

    def test_a_chat_model_says_what_its_vectors_are(self):
        self.assertEqual("projector", self.client.models()[0]["image_vectors"])
        self.assertEqual(64, len(self.client.call(type="embed_image", data=data_of(WIDE))["embeddings"][0]))
        refused = self.client.call(type="embed", texts=[image(WIDE)])
        self.assertEqual("E_MODEL_003", refused.get("code"), refused)
        ran = subprocess.run([str(CLI), "embed", "--image", str(WIDE), "--json", "--socket", str(self.daemon.socket_path)],
                             capture_output=True, text=True, timeout=WAIT_S, stdin=subprocess.DEVNULL, check=True)
        self.assertEqual(64, len(json.loads(ran.stdout.splitlines()[0])["embedding"]))

    def test_a_cancelled_request_ends(self):
        busy = self.client.start(type="embed_image", images=[{"data": data_of(picture(f"p{i}", 560, 560))} for i in range(20)])
        self.assertTrue(self.client.call(type="cancel", target=busy)["cancelled"])
        self.assertEqual("E_LIMIT_003", self.client.finish(busy).code)


class TextOnly(VectorTest):
    model = BUILD / "models" / "tiny-embed-last.gguf"
    flags = ("--threads", "1", "--http", "127.0.0.1:0")

    def test_a_model_without_a_projector_is_as_before(self):
        self.assertEqual("none", self.client.models()[0]["image_vectors"])
        self.assertEqual(64, len(self.embed(["a dog"])[0]))
        for request in (dict(type="embed", texts=[image(WIDE)]), dict(type="embed_image", data=data_of(WIDE))):
            refused = self.client.call(**request)
            self.assertEqual("E_MODEL_003", refused.get("code"), refused)
            self.assertIn("reads no images", refused["message"])


if __name__ == "__main__":
    unittest.main()
