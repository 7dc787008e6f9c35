"""Pictures from captions: on the socket, over OpenAI's and Stable Diffusion web UI's paths, and by uma-cli. The model has random weights."""

import base64
import concurrent.futures
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import openai_shapes
import pictures
import uma

PICTURE = uma.BUILD / "models" / "tiny-picture.gguf"
CLI = uma.BUILD / "bin" / "uma-cli"
LONG = {"n": 10, "steps": 150}  # takes much longer than the tests need to see that it runs
SIDE, STEPS = 32, 8  # of the model

IMAGES_USAGE = {"input_tokens": int, "output_tokens": int, "total_tokens": int,
                "input_tokens_details": {"text_tokens": int, "image_tokens": int}}
KIND = {"output_format": {"png"}, "background": {"opaque"}, "quality": {"auto"}, "size": str}
IMAGES = {"created": int, "data": [{"b64_json": str, "uma": {"seed": int}}], **KIND, "usage": IMAGES_USAGE}
PARTIAL = {"type": {"image_generation.partial_image"}, "b64_json": str, "partial_image_index": int, "created_at": int,
           "uma": {"seed": int}, **KIND}
COMPLETED = {"type": {"image_generation.completed"}, "b64_json": str, "created_at": int, "uma": {"seed": int}, **KIND, "usage": IMAGES_USAGE}


def events_of(stream):
    """The events of a stream, each as (name, object)."""
    return [(name, json.loads(data)) for name, data in re.findall(r"event: (\S+)\ndata: (.*)\n\n", stream)]


class PictureTest(uma.DaemonTest):
    flags = ("--http", "127.0.0.1:0")
    config = f"models_dirs: [{PICTURE.parent}]\n"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.url = re.search(r"http +(http://127\.0\.0\.1:\d+)/v1", cls.daemon.log()).group(1)

    def draw(self, prompt="a red circle", client=None, **fields):
        """Draws to the end and returns (pictures by number, unfinished ones by (number, partial), Reply)."""
        client = client or self.client
        fields.setdefault("model", "tiny-picture")
        reply = client.finish(client.start(type="generate_image", prompt=prompt, **fields))
        whole, partial = {}, {}
        for event in reply.events:
            if event["event"] != "image_chunk":
                continue
            target, key = (partial, (event["image"], event["partial"])) if "partial" in event else (whole, event["image"])
            target[key] = target.get(key, b"") + base64.b64decode(event["data"])
        return whole, partial, reply

    def levels(self, png, side=SIDE):
        width, height, levels = pictures.read_png(png)
        self.assertEqual((side, side), (width, height))
        return levels

    def post(self, path, body, headers=None):
        """Returns status and answer: an object, or the text of a stream."""
        request = urllib.request.Request(self.url + path, data=json.dumps(body).encode(),
                                         headers={"Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=uma.WAIT_S) as answer:
                text = answer.read().decode()
                return answer.status, json.loads(text) if answer.headers["Content-Type"].startswith("application/json") else text
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=uma.WAIT_S) as answer:
            return json.loads(answer.read())

    def wait_no_pictures(self):
        uma.until(lambda: self.client.metrics()["picture_queue_depth"] == 0, "no request for pictures")


class Socket(PictureTest):
    def test_a_picture_with_its_steps_and_its_receipt(self):
        whole, partial, reply = self.draw("a red circle and a blue square", seed=7)
        self.assertEqual(([0], {}), (list(whole), partial))
        self.levels(whole[0])
        kinds = [event["event"] for event in reply.events]
        self.assertEqual(["image_begin"] + ["progress"] * STEPS + ["image_chunk", "eos"], kinds)
        begin = reply.events[0]
        self.assertEqual((SIDE, SIDE, 1, STEPS, 7), tuple(begin[name] for name in ("width", "height", "images", "steps", "seed")))
        steps = [event for event in reply.events if event["event"] == "progress"]
        self.assertEqual(list(range(1, STEPS + 1)), [event["done"] for event in steps])
        self.assertEqual({("draw", STEPS, 0)}, {(event["stage"], event["total"], event["image"]) for event in steps})
        self.assertEqual(0, steps[-1]["eta_ms"])
        self.assertEqual("stop", reply.reason)
        usage = reply.usage
        self.assertEqual(("tiny-picture", 1, STEPS, 2.5, 7, 7), tuple(usage[name] for name in ("model", "images", "steps", "guidance", "seed", "prompt_tokens")))
        self.assertGreater(usage["draw_ms"], 0)

    def test_the_seed_and_the_caption_decide_the_picture(self):
        first = self.draw(seed=7)[0][0]
        self.assertEqual(first, self.draw(seed=7)[0][0])
        levels = self.levels(first)
        for other in ({"seed": 8}, {"seed": 7, "guidance": 1}, {"seed": 7, "steps": 3}, {"seed": 7, "negative_prompt": "a square"}):
            self.assertNotEqual(levels, self.levels(self.draw(**other)[0][0]), other)
        self.assertNotEqual(levels, self.levels(self.draw("two blue squares", seed=7)[0][0]))
        seeds = {self.draw()[2].usage["seed"] for _ in range(3)}
        self.assertEqual(3, len(seeds), "without a seed each request has its own")

    def test_several_pictures_are_those_of_the_next_seeds(self):
        whole, _, reply = self.draw(seed=20, n=3)
        self.assertEqual([0, 1, 2], sorted(whole))
        self.assertEqual((3, 48), (reply.usage["images"], reply.usage["image_tokens"]))
        for at in range(3):
            # Beside others a row may be rounded in another way.
            alone = self.levels(self.draw(seed=20 + at)[0][0])
            self.assertLessEqual(max(abs(a - b) for a, b in zip(self.levels(whole[at]), alone)), 1)

    def test_begins_with_a_picture(self):
        image = {"data": base64.b64encode(pictures.GRADIENT).decode()}
        near = self.levels(self.draw(seed=7, image=image, strength=0.01)[0][0])
        drawn = self.levels(self.draw(seed=7, image=image, strength=1)[0][0])
        self.assertEqual(drawn, self.levels(self.draw(seed=7)[0][0]), "at full strength nothing of it is left")
        self.assertNotEqual(near, drawn)

    def test_unfinished_pictures(self):
        whole, partial, reply = self.draw(partial_images=3, seed=7)
        self.assertEqual([(0, 1), (0, 2), (0, 3)], sorted(partial))
        self.assertEqual(4, len({self.levels(png) for png in [*partial.values(), *whole.values()]}))
        order = [event["event"] for event in reply.events if event["event"] != "image_begin"]
        self.assertEqual(["progress", "progress", "image_chunk"] * 3 + ["progress", "progress", "image_chunk", "eos"], order)

    def test_enlarged_pictures(self):
        native = self.levels(self.draw(seed=7)[0][0])
        side = 8 * SIDE
        large = self.levels(self.draw(seed=7, width=side, height=side)[0][0], side)
        rows = [native[3 * SIDE * y:3 * SIDE * (y + 1)] for y in range(SIDE)]
        wide = [b"".join(row[3 * x:3 * x + 3] * 8 for x in range(SIDE)) for row in rows]
        self.assertEqual(b"".join(row * 8 for row in wide), large)
        self.assertEqual(large, self.levels(self.draw(seed=7, width=side)[0][0], side))

    def test_the_file_tells_the_caption_unless_it_must_not(self):
        png = self.draw("a red circle", seed=7, negative_prompt="a square", width=64)[0][0]
        self.assertIn(b"parameters\0a red circle\nNegative prompt: a square\nSteps: 8, Sampler: Euler, CFG scale: 2.5, Seed: 7, "
                      b"Size: 64x64, Model: tiny-picture", png)
        self.assertNotIn(b"circle", self.draw("a red circle", seed=7, metadata=False)[0][0])

    def test_what_cannot_be_drawn_is_refused_by_name(self):
        refusals = [
            ({"prompt": "a red circl"}, "E_PROTO_003", '"circl"; the nearest that it knows are circle, circles'),
            ({"prompt": "a circle", "negative_prompt": "dogs"}, "E_PROTO_003", 'in the negative prompt: the model does not know the word "dogs"'),
            ({"prompt": " ".join(["red"] * 20)}, "E_PROTO_003", "20 words"),
            ({"prompt": "a circle", "width": 100}, "E_PROTO_003", "32 × 32"),
            ({"prompt": "a circle", "width": 64, "height": 128}, "E_PROTO_003", "64 × 128"),
            ({"prompt": "a circle", "model": "tiny"}, "E_MODEL_003", "name a model that draws pictures"),
            ({"prompt": "a circle", "model": "nothing"}, "E_MODEL_001", "nothing"),
        ]
        for fields, code, part in refusals:
            with self.subTest(fields):
                self.assert_error(self.client.call(type="generate_image", **{"model": "tiny-picture", **fields}), code, part)
        self.assert_error(self.client.generate("one", model="tiny-picture"), "E_MODEL_003", "is for text_to_image: name a chat model")
        self.assert_error(self.client.call(type="embed", texts=["one"], model="tiny-picture"), "E_MODEL_003", "text_to_image")
        self.assert_error(self.client.call(type="embed_image", data=base64.b64encode(pictures.RED).decode(), model="tiny-picture"), "E_MODEL_003")

    def test_an_empty_caption_is_drawn(self):
        self.levels(self.draw("")[0][0])

    def test_a_cancelled_request_ends_soon_with_a_receipt(self):
        other = self.another_client()
        running = self.client.start(type="generate_image", prompt="a red circle", model="tiny-picture", **LONG)
        while not any(event["event"] == "progress" for event in self.client.replies[running].events):
            self.client.pump()
        before = other.metrics()["requests_cancelled_total"]
        self.assertTrue(self.client.call(type="cancel", target=running)["cancelled"])
        reply = self.client.finish(running)
        self.assertEqual(("eos", "cancelled"), (reply.last["event"], reply.reason))
        self.assertEqual(before + 1, other.metrics()["requests_cancelled_total"])
        self.wait_no_pictures()

    def test_a_client_that_leaves_cancels_its_request(self):
        leaving = self.another_client()
        running = leaving.start(type="generate_image", prompt="a red circle", model="tiny-picture", **LONG)
        while not any(event["event"] == "progress" for event in leaving.replies[running].events):
            leaving.pump()
        leaving.close()
        self.wait_no_pictures()

    def test_a_deadline(self):
        reply = self.client.finish(self.client.start(type="generate_image", prompt="a circle", model="tiny-picture", deadline_ms=50, **LONG))
        self.assertIn(reply.code, ("E_LIMIT_003",), reply.last)
        self.assertIn("deadline", reply.message)
        self.wait_no_pictures()

    def test_one_picture_does_not_wait_for_ten_of_another_client(self):
        other = self.another_client()
        running = other.start(type="generate_image", prompt="a red circle", model="tiny-picture", **LONG)
        while not any(event["event"] == "progress" for event in other.replies[running].events):
            other.pump()
        self.draw()
        self.assertEqual(1, self.client.metrics()["picture_queue_depth"], "the other request still runs")
        other.call(type="cancel", target=running)
        other.finish(running)

    def test_chats_and_pictures_beside_each_other(self):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            def chat(at):
                client = self.another_client()
                return client.generate("one two", model="tiny", max_tokens=40, ignore_eos=True, seed=at).reason
            def picture(at):
                return self.draw(client=self.another_client(), seed=at)[2].reason
            chats = [pool.submit(chat, at) for at in range(4)]
            drawn = [pool.submit(picture, at) for at in range(4)]
            self.assertEqual([{"length"}, {"stop"}], [{future.result() for future in each} for each in (chats, drawn)])

    def test_models_and_metrics_tell_of_it(self):
        before = self.client.metrics()
        self.draw(n=2)
        metrics = self.client.metrics()
        self.assertEqual(2, metrics["pictures_total"] - before["pictures_total"])
        self.assertEqual(2 * STEPS, metrics["picture_steps_total"] - before["picture_steps_total"])
        model = next(model for model in self.client.models() if model["name"] == "tiny-picture")
        self.assertEqual(("text_to_image", SIDE, "ready", 1), tuple(model[name] for name in ("capability", "picture_size", "state", "workers")))
        self.assertGreater(model["bytes"], 200_000)

    def test_it_is_unloaded_and_loaded_again(self):
        first = self.draw(seed=7)[0][0]
        self.assertEqual("ack", self.client.call(type="unload_model", model="tiny-picture")["event"])
        self.assertEqual("unloaded", next(model["state"] for model in self.client.models() if model["name"] == "tiny-picture"))
        self.assertEqual(first, self.draw(seed=7)[0][0])


class Doors(PictureTest):
    def test_openais_pictures(self):
        before = int(time.time())
        status, answer = self.post("/v1/images/generations", {"model": "tiny-picture", "prompt": "a red circle", "n": 2, "size": "64x64", "seed": 7})
        self.assertEqual(200, status, answer)
        self.assertIsNone(openai_shapes.mismatch(answer, IMAGES))
        self.assertEqual([7, 8], [entry["uma"]["seed"] for entry in answer["data"]])
        for entry in answer["data"]:
            self.levels(base64.b64decode(entry["b64_json"]), 64)
        self.assertEqual((3, 32, 35), tuple(answer["usage"][name] for name in ("input_tokens", "output_tokens", "total_tokens")))
        self.assertTrue(before <= answer["created"] <= time.time(), answer["created"])

    def test_a_stream_of_pictures(self):
        status, stream = self.post("/v1/images/generations",
                                   {"model": "tiny-picture", "prompt": "a red circle", "n": 2, "stream": True, "partial_images": 1, "seed": 7})
        self.assertEqual(200, status)
        events = events_of(stream)
        # The pictures share calls, but one may be done before the other has begun.
        self.assertCountEqual(["image_generation.partial_image", "image_generation.completed"] * 2, [name for name, _ in events])
        for name, event in events:
            self.assertIsNone(openai_shapes.mismatch(event, PARTIAL if name.endswith("partial_image") else COMPLETED))
            self.assertEqual(name, event["type"])
        whole = self.post("/v1/images/generations", {"model": "tiny-picture", "prompt": "a red circle", "n": 2, "seed": 7})[1]["data"]
        completed = [event["b64_json"] for name, event in events if name.endswith("completed")]
        self.assertCountEqual([entry["b64_json"] for entry in whole], completed)

    def test_errors_have_openais_form_also_before_a_stream(self):
        for stream in (False, True):
            body = {"model": "tiny-picture", "stream": stream}
            for fields, code, param in (({"prompt": "a red circl"}, "E_PROTO_003", "prompt"), ({}, "E_PROTO_003", "prompt"),
                                        ({"prompt": "a", "size": "100x100"}, "E_PROTO_003", "size"),
                                        ({"prompt": "a", "response_format": "url"}, "E_PROTO_003", "response_format"),
                                        ({"prompt": "a", "model": "tiny"}, "E_MODEL_003", None)):
                status, answer = self.post("/v1/images/generations", {**body, **fields})
                self.assertEqual(400, status, answer)
                self.assertIsNone(openai_shapes.mismatch(answer, openai_shapes.ERROR))
                self.assertEqual((code, param), (answer["error"]["code"], answer["error"]["param"]), fields)

    def test_a_page_of_stable_diffusion_web_ui(self):
        self.assertEqual(["Euler", "Euler a", "DPM++ 2M", "LCM"], [sampler["name"] for sampler in self.get("/sdapi/v1/samplers")])
        self.assertEqual(["automatic", "discrete", "karras", "trailing"], [each["name"] for each in self.get("/sdapi/v1/schedulers")])
        self.assertIn("tiny-picture", [model["title"] for model in self.get("/sdapi/v1/sd-models")])
        self.assertEqual((200, None), self.post("/sdapi/v1/options", {"sd_model_checkpoint": "tiny-picture"}))
        self.assertEqual("tiny-picture", self.get("/sdapi/v1/options")["sd_model_checkpoint"])
        self.assertEqual(404, self.post("/sdapi/v1/options", {"sd_model_checkpoint": "nothing"})[0])
        status, answer = self.post("/sdapi/v1/txt2img", {"prompt": "a red circle", "batch_size": 2, "width": 512, "height": 512, "steps": 4,
                                                         "cfg_scale": 7, "seed": 7, "sampler_name": "Euler a"})
        self.assertEqual(200, status, answer)
        for image in answer["images"]:
            self.levels(base64.b64decode(image), 512)
        info = json.loads(answer["info"])
        self.assertEqual(([7, 8], 512, 4, 7), (info["all_seeds"], info["width"], info["steps"], info["cfg_scale"]))
        self.assertEqual(2, len(info["infotexts"]))
        self.assertEqual("Euler", info["sampler_name"], "this model has no choice")
        self.assertEqual(0, self.get("/sdapi/v1/progress")["progress"])

    def test_a_page_sees_the_progress_and_interrupts(self):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            body = {"prompt": "a red circle", "batch_size": 10, "steps": 150, "override_settings": {"sd_model_checkpoint": "tiny-picture"}}
            drawing = pool.submit(self.post, "/sdapi/v1/txt2img", body)
            uma.until(lambda: self.get("/sdapi/v1/progress")["progress"] > 0, "progress")
            progress = self.get("/sdapi/v1/progress")
            self.assertEqual(150, progress["state"]["sampling_steps"])
            self.assertGreater(progress["eta_relative"], 0)
            self.assertEqual((200, None), self.post("/sdapi/v1/interrupt", {}))
            status, answer = drawing.result(uma.WAIT_S)
            self.assertEqual(200, status, answer)
            self.assertLess(len(answer["images"]), 10)
        self.wait_no_pictures()

    def test_a_client_that_leaves_cancels_its_request(self):
        for stream in (False, True):
            with self.assertRaises(OSError):
                request = urllib.request.Request(self.url + "/v1/images/generations", headers={"Content-Type": "application/json"},
                                                 data=json.dumps({"model": "tiny-picture", "prompt": "a", "stream": stream, **LONG}).encode())
                with urllib.request.urlopen(request, timeout=0.5) as answer:
                    answer.read()
            self.wait_no_pictures()

    def test_the_models_list_says_what_it_does(self):
        model = next(model for model in self.get("/v1/models")["data"] if model["id"] == "tiny-picture")
        self.assertIn("image", json.dumps(model))
        self.assertNotIn("tiny-picture:latest", [model["name"] for model in self.get("/api/tags")["models"]])


class Cli(PictureTest):
    def imagine(self, *flags, folder, status=0, text=True):
        ran = subprocess.run([str(CLI), "imagine", *flags, "--model", "tiny-picture", "--socket", str(self.daemon.socket_path)], cwd=folder,
                             capture_output=True, timeout=uma.WAIT_S, text=text, check=False)
        self.assertEqual(status, ran.returncode, ran.stderr)
        return ran

    def test_it_writes_the_file_and_prints_its_name(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual("cat.png\n", self.imagine("a red circle", "-o", "cat.png", "--seed", "7", folder=folder).stdout)
            png = pathlib.Path(folder, "cat.png").read_bytes()
            self.assertEqual(self.levels(self.draw("a red circle", seed=7)[0][0]), self.levels(png))
            self.imagine("two blue squares", "--output", "cat.png", "--size", "64", folder=folder)
            self.levels(pathlib.Path(folder, "cat.png").read_bytes(), 64)
            self.assertEqual("b-1.png\nb-2.png\n", self.imagine("a red circle", "-o", "b.png", "--count", "2", folder=folder).stdout)
            self.assertEqual(["b-1.png", "b-2.png", "cat.png"], sorted(os.listdir(folder)))

    def test_a_pipe_gets_the_picture(self):
        with tempfile.TemporaryDirectory() as folder:
            self.levels(self.imagine("a red circle", folder=folder, text=False).stdout)
            self.levels(self.imagine("a red circle", "-o", "-", folder=folder, text=False).stdout)
            self.assertIn("one picture", self.imagine("a red circle", "--count", "2", folder=folder, status=1).stderr)
            self.assertEqual([], os.listdir(folder))

    def test_errors(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertIn('"circl"', self.imagine("a circl", "-o", "a.png", folder=folder, status=2).stderr)
            self.assertIn("No such file", self.imagine("a circle", "-o", "x/a.png", folder=folder, status=1).stderr)
            self.assertEqual([], os.listdir(folder))

    def test_terminals_that_show_pictures(self):
        with tempfile.TemporaryDirectory() as folder:
            for protocol, begin, end in (("kitty", "\x1b_Ga=T,f=100,", "\x1b\\"), ("iterm", "\x1b]1337;File=inline=1;", "\a"),
                                         ("sixel", '\x1bPq"1;1;256;256', "\x1b\\")):
                shown = self.imagine("a red circle", "-o", "a.png", "--show", protocol, folder=folder).stdout
                self.assertTrue(shown.startswith(begin), shown[:50])
                self.assertTrue(shown.endswith(end + "\na.png\n"), shown[-50:])


class Damage(unittest.TestCase):
    """Files that are no models, and a daemon that is killed."""

    def serve(self, folder, change):
        data = bytearray(PICTURE.read_bytes())
        change(data)
        pathlib.Path(folder, "forged.gguf").write_bytes(data)
        with uma.Daemon(config=f"models_dirs: [{folder}]\n") as daemon, daemon.client() as client:
            model = next(model for model in client.models() if model["name"] == "forged")
            answer = client.finish(client.start(type="generate_image", prompt="a red circle", model="forged")).last
            self.assertTrue(daemon.is_running())
            return model, answer

    def test_a_tensor_of_another_name_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            def rename(data):
                at = data.index(b"blk.1.attn_qkv.weight")
                data[at:at + 5] = b"blk.7"
            model, answer = self.serve(folder, rename)
        self.assertEqual("failed", model["state"])
        self.assertIn("blk.7.attn_qkv.weight", model["problem"])
        self.assertEqual("E_MODEL_002", answer["code"])
        self.assertIn("blk.7.attn_qkv.weight", answer["message"])

    def test_a_file_that_is_cut_off(self):
        with tempfile.TemporaryDirectory() as folder:
            _, answer = self.serve(folder, lambda data: data.__delitem__(slice(len(data) // 2, None)))
        self.assertEqual("E_MODEL_002", answer["code"])
        self.assertIn("truncated", answer["message"])

    def test_weights_that_are_no_numbers_end_the_request(self):
        with tempfile.TemporaryDirectory() as folder:
            def damage(data):
                data[-400:] = b"\xff" * 400  # NaN as f32
            _, answer = self.serve(folder, damage)
        self.assertEqual("E_RUNTIME_001", answer["code"])
        self.assertIn("not finite", answer["message"])

    def test_a_killed_daemon_draws_again(self):
        config = f"models_dirs: [{PICTURE.parent}]\n"
        with uma.Daemon(config=config) as daemon, daemon.client() as client:
            running = client.start(type="generate_image", prompt="a red circle", model="tiny-picture", **LONG)
            while not any(event["event"] == "progress" for event in client.replies[running].events):
                client.pump()
            daemon.signal(signal.SIGKILL)
            daemon.wait()
            daemon.start().wait_ready()
            with daemon.client() as again:
                reply = again.finish(again.start(type="generate_image", prompt="a red circle", model="tiny-picture"))
                self.assertEqual("stop", reply.reason)


if __name__ == "__main__":
    unittest.main()
