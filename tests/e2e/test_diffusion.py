"""Stable Diffusion's files: found, described, drawn with, refused. The files have its structure and random weights."""

import base64
import json
import pathlib
import shutil
import tempfile

import diffusion_file
import pictures
import test_pictures
import uma

SIDE = 64


class Diffusion(test_pictures.PictureTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        diffusion_file.write(cls.folder / "small.safetensors")
        diffusion_file.write(cls.folder / "taesd.safetensors", "tae")
        (cls.folder / "damaged.safetensors").write_bytes(b"\xff" * 100)
        cards = cls.folder / "models.yaml"
        cards.write_text("fast:\n  path: small.safetensors\n  vae: taesd.safetensors\n  steps: 2\n  guidance: 1\n  sampler: lcm\n",
                         encoding="utf-8")
        # A card's file is not registered a second time: the model of the folder is a copy.
        shutil.copy(cls.folder / "small.safetensors", cls.folder / "plain.safetensors")
        cls.config = f"models_dirs: [{cls.folder}]\nmodels: {cards}\n"
        super().setUpClass()

    def draw(self, prompt="a red cat", client=None, **fields):
        fields = {"model": "plain", "width": SIDE, "height": SIDE, "steps": 2, **fields}
        return super().draw(prompt, client, **fields)

    def test_the_folder_has_those_that_draw(self):
        models = {model["name"]: model for model in self.client.models()}
        self.assertLessEqual({"fast", "plain"}, set(models))
        self.assertNotIn("taesd", models, "files of other programs are not registered")
        self.assertEqual("failed", models["damaged"]["state"], "it may still be copied")
        for name in ("fast", "plain"):
            self.assertEqual(("text_to_image", 512), (models[name]["capability"], models[name]["picture_size"]))

    def test_a_picture_of_any_size_and_its_receipt(self):
        whole, _, reply = self.draw(seed=7, width=128, height=64)
        width, height, levels = pictures.read_png(whole[0])
        self.assertEqual((128, 64), (width, height))
        self.assertGreater(len(set(levels)), 16)
        usage = reply.usage
        self.assertEqual(("plain", 128, 64, 2, 7, "euler_a", 16 * 8),
                         tuple(usage[name] for name in ("model", "width", "height", "steps", "guidance", "sampler", "image_tokens")))
        self.assertEqual(3, usage["prompt_tokens"])
        steps = [event["done"] for event in reply.events if event["event"] == "progress"]
        self.assertEqual([1, 2], steps, "decoding is no step")

    def test_the_seed_decides(self):
        first = self.draw(seed=7)[0][0]
        self.assertEqual(first, self.draw(seed=7)[0][0])
        self.assertEqual(first, self.draw(seed=6, n=2)[0][1])
        for other in ({"seed": 8}, {"sampler": "euler"}, {"sampler": "dpm++_2m"}, {"schedule": "karras"}, {"negative_prompt": "dog"},
                      {"prompt": "a (red:1.4) cat"}):
            self.assertNotEqual(first, self.draw(**{"seed": 7, **other})[0][0], other)

    def test_unfinished_pictures_come_from_the_latent_one(self):
        whole, partial, _ = self.draw(steps=4, partial_images=2)
        self.assertEqual([(0, 1), (0, 2)], sorted(partial))
        for png in (*whole.values(), *partial.values()):
            self.levels(png, SIDE)

    def test_a_card_says_how_it_draws(self):
        whole, _, reply = self.draw(model="fast", steps=None, seed=1)
        self.levels(whole[0], SIDE)
        self.assertEqual((2, 1, "lcm"), tuple(reply.usage[name] for name in ("steps", "guidance", "sampler")))
        self.assertNotEqual(whole[0], self.draw(sampler="lcm", guidance=1, seed=1)[0][0], "its decoder is another one")

    def test_what_is_not_possible_is_refused_with_the_field(self):
        for fields, part in (({"width": 100, "height": 64}, "multiples of 64"), ({"width": 960, "height": 1024}, "393216 pixels"), ({"width": 832, "height": 832}, "393216 pixels"),
                             ({"sampler": "ddim"}, "euler, euler_a, dpm++_2m, lcm"), ({"schedule": "fast"}, "discrete, karras, trailing"),
                             ({"strength": 0.5}, "needs a picture"), ({"prompt": "cat " * 300}, "300 tokens in 4 pieces"), ({"prompt": "<lora:x:1>"}, "<lora:")):
            reply = self.draw(**fields)[2]
            self.assertEqual("E_PROTO_003", reply.code, fields)
            self.assertIn(part, reply.message, fields)

    def test_openai_and_web_ui(self):
        status, answer = self.post("/v1/images/generations", {"model": "plain", "prompt": "a cat", "size": "128x128", "steps": 1, "seed": 3})
        self.assertEqual(200, status, answer)
        self.levels(base64.b64decode(answer["data"][0]["b64_json"]), 128)
        status, answer = self.post("/sdapi/v1/txt2img", {"prompt": "a cat", "width": 64, "height": 64, "steps": 2, "sampler_name": "DPM++ 2M Karras",
                                                         "override_settings": {"sd_model_checkpoint": "plain"}})
        self.assertEqual(200, status, answer)
        self.levels(base64.b64decode(answer["images"][0]), SIDE)
        info = json.loads(answer["info"])
        self.assertEqual(("DPM++ 2M", "Karras"), (info["sampler_name"], info["scheduler"]))
        self.assertIn("Sampler: DPM++ 2M, Schedule type: Karras", info["infotexts"][0])

    def test_begins_with_a_picture(self):
        image = base64.b64encode(pictures.GRADIENT).decode()
        whole, _, reply = self.draw(steps=4, seed=7, image={"data": image}, strength=0.5)
        self.levels(whole[0], SIDE)
        self.assertEqual([(1, 2), (2, 2)], [(event["done"], event["total"]) for event in reply.events if event["event"] == "progress"])
        self.assertEqual(32, reply.usage["image_tokens"])
        self.assertNotEqual(whole[0], self.draw(steps=4, seed=7, image={"data": image}, strength=1)[0][0])
        self.assertNotEqual(whole[0], self.draw(steps=4, seed=7)[0][0])
        status, answer = self.post("/sdapi/v1/img2img", {"prompt": "a red cat", "width": 64, "height": 64, "steps": 4, "seed": 7,
                                                         "init_images": [image], "denoising_strength": 0.5,
                                                         "override_settings": {"sd_model_checkpoint": "plain"}})
        self.assertEqual(200, status, answer)
        self.assertEqual(self.levels(whole[0], SIDE), self.levels(base64.b64decode(answer["images"][0]), SIDE))
        damaged = self.draw(image={"data": base64.b64encode(pictures.GRADIENT[:60]).decode()})[2]
        self.assertEqual("E_PROTO_003", damaged.code)

    def test_a_size_beyond_its_own_is_enlarged(self):
        whole = self.draw(width=1024, height=1024, steps=1, guidance=1)[0]
        levels = self.levels(whole[0], 1024)
        rows = [levels[at:at + 3 * 1024] for at in range(0, len(levels), 3 * 1024)]
        self.assertEqual(rows[0::2], rows[1::2], "each pixel of 512 × 512 became a square")

    def test_cancel_ends_a_step(self):
        request = self.client.start(type="generate_image", prompt="a cat", model="plain", width=512, height=512, steps=150)
        uma.until(lambda: self.client.metrics()["picture_steps_total"] > 0, "a step")
        self.client.call(type="cancel", target=request)
        self.assertEqual("cancelled", self.client.finish(request).reason)
        self.wait_no_pictures()

    def test_its_memory_is_what_was_reserved(self):
        self.draw()
        models = {model["name"]: model for model in self.client.models()}
        self.assertGreater(models["plain"]["bytes"], 10_000_000)
