"""Choice of devices. The tests on a GPU run where one is found: a real one, or the driver llvmpipe, which computes on the CPU and
shows everything about being on a device but its speed (script/bootstrap --devices installs it)."""

import os
import pathlib
import tempfile
import unittest

import shift_register
import test_known_text
import uma
import vision

# The other tests see no GPU. The library ignores devices that compute on the CPU unless they are named so.
VISIBLE = {name: os.environ.get(name) for name in uma.HIDDEN_GPUS} | {
    "GGML_VK_VISIBLE_DEVICES": os.environ.get("GGML_VK_VISIBLE_DEVICES", "0")}
REGISTER = shift_register.Register()
PROMPT = "once upon a time"
TOKENS = 60
EMBED = uma.BUILD / "models" / "tiny-embed.gguf"
NO_GPU = "no GPU and no driver llvmpipe (script/bootstrap --devices installs libggml0-backend-vulkan and mesa-vulkan-drivers)"


def listed():
    """The rows of `umad devices`, as lists of words."""
    printed = uma.run_umad("devices", environment=uma.clean_environment(**VISIBLE))
    assert printed.returncode == 0, printed.stderr
    rows = [line.split() for line in printed.stdout.splitlines()]
    if any("llvmpipe" in row for row in rows):
        VISIBLE["GGML_VK_DISABLE_COOPMAT"] = "1"  # its cooperative matrices compute wrong sums for long prompts
    return rows


def first_gpu(rows):
    """The name of the first GPU, or else of the first integrated one. Its kind is the second word, or the second and third."""
    names = [row[0] for row in rows if row[1] == "GPU"] + [row[0] for row in rows if row[1:3] == ["integrated", "GPU"]]
    return names[0] if names else None


GPU = first_gpu(listed())


def wait_measured(daemon):
    """Waits until no computation is made without a request."""
    def is_measured():
        is_kept = any((daemon.data_dir / "profiles").glob("*-widths.yaml"))
        return is_kept or "the times of decode calls are not kept" in daemon.log()  # other programs are busy
    uma.until(is_measured, "the end of what is measured while idle")


def model_line(daemon):
    """The line of the log that says where the model is computed."""
    return next(line for line in daemon.log().splitlines() if "trained for" in line)


def states_of(daemon):
    """The stored states of its sessions."""
    return list((daemon.data_dir / "kv").glob("*.kv"))


def assert_goes_on_after_a_restart(test, daemon):
    """A long conversation is stored, and its keys and values are used again."""
    with daemon.client() as client:
        session = client.create_session(mode="text")
        prompt = "the dog and the cat say hello to the small boy " * 30 + PROMPT
        first = client.generate(prompt, session_id=session, max_tokens=8)
        test.assertEqual(REGISTER.says(prompt, 8), first.text)
    test.assertEqual(0, daemon.terminate(), daemon.log())
    test.assertEqual(1, len(states_of(daemon)))
    daemon.start().wait_ready()
    with daemon.client() as client:
        second = client.generate(" the end", session_id=session, max_tokens=8)
        test.assertGreater(second.usage["reused_tokens"], 100)
        test.assertEqual(REGISTER.says(prompt + first.text + " the end", 8), second.text)


class Choice(unittest.TestCase):
    def test_the_list_has_the_processor(self):
        rows = listed()
        self.assertEqual(["name", "kind", "memory", "free", "backend", "device"], rows[0])
        self.assertIn("CPU", [row[0] for row in rows])

    def test_without_a_gpu_the_list_says_so(self):
        printed = uma.run_umad("devices", environment=uma.clean_environment(**uma.HIDDEN_GPUS))
        self.assertIsNone(first_gpu([line.split() for line in printed.stdout.splitlines()]))
        self.assertIn("no GPU: the CPU computes all models", printed.stdout)

    def test_a_device_that_does_not_exist_is_named(self):
        daemon = uma.Daemon(uma.TINY_REGISTER, "--devices", "Nothing7").start()
        self.addCleanup(daemon.kill)
        self.assertEqual(1, daemon.wait())
        self.assertIn('no GPU is called "Nothing7"', daemon.log())

    @unittest.skipUnless(GPU, NO_GPU)
    def test_names_count_letter_by_letter(self):
        daemon = uma.Daemon(uma.TINY_REGISTER, "--devices", GPU.swapcase(), environment=VISIBLE).start()
        self.addCleanup(daemon.kill)
        self.assertEqual(1, daemon.wait())
        self.assertIn(f'no GPU is called "{GPU.swapcase()}"; known: {GPU}', daemon.log())

    def test_without_devices_the_log_names_none(self):
        with uma.Daemon(uma.TINY_REGISTER, "--devices", "none", environment=VISIBLE) as daemon:
            self.assertNotRegex(model_line(daemon), r"\bon \w+\d")

    def test_wrong_values_are_explained(self):
        for flags, expected in ((("--devices", "none Vulkan0"), "names of devices"), (("--devices", ""), "names of devices"),
                                (("--gpu-layers", "most"), "auto or an integer"), (("--gpu-layers", "-1"), "auto or an integer")):
            ended = uma.run_umad(*flags)
            self.assertEqual(1, ended.returncode)
            self.assertIn(expected, ended.stderr)


@unittest.skipUnless(GPU, NO_GPU)
class OnADevice(unittest.TestCase):
    def daemon(self, *flags):
        made = uma.Daemon(uma.TINY_REGISTER, "--slots", "4", "--kv-cells", "2048", *flags, environment=VISIBLE)
        self.addCleanup(made.kill)
        return made.start().wait_ready()

    def assert_knows_its_text(self, daemon):
        with daemon.client() as client:
            self.assertEqual(REGISTER.says(PROMPT, TOKENS), client.generate(PROMPT, max_tokens=TOKENS).text)

    def test_the_known_text_with_all_layers_some_and_none(self):
        for flags, where in ((("--devices", GPU), f", on {GPU}"), (("--devices", GPU, "--gpu-layers", "2"), f", 2 of 4 layers on {GPU}"),
                             (("--gpu-layers", "0"), None)):
            with self.subTest(flags=flags):
                daemon = self.daemon(*flags)
                self.assert_knows_its_text(daemon)
                if where:
                    self.assertIn(where, model_line(daemon))
                else:
                    self.assertNotRegex(model_line(daemon), r"\bon \w+\d")
                self.assertEqual(0, daemon.terminate(), daemon.log())

    def test_a_conversation_goes_on_after_a_restart(self):
        daemon = self.daemon("--devices", GPU)
        self.assertIn(f", on {GPU}", model_line(daemon))
        assert_goes_on_after_a_restart(self, daemon)

    def test_states_of_a_device_are_not_used_by_the_processor(self):
        daemon = self.daemon("--devices", GPU)
        prompt = "the dog and the cat say hello to the small boy " * 30 + PROMPT
        with daemon.client() as client:
            session = client.create_session(mode="text")
            client.generate(prompt, session_id=session, max_tokens=8)
        self.assertEqual(0, daemon.terminate(), daemon.log())
        self.assertEqual(1, len(states_of(daemon)))
        daemon.arguments[daemon.arguments.index(GPU)] = "none"
        daemon.start().wait_ready()
        with daemon.client() as client:
            second = client.generate(" the end", session_id=session, max_tokens=8)
            self.assertEqual(0, second.usage["reused_tokens"])
            self.assertEqual("length", second.reason, second.last)


@unittest.skipUnless(GPU, NO_GPU)
class SessionsOnADevice(uma.DaemonTest):
    model = uma.TINY_REGISTER
    flags = ("--slots", "4", "--kv-cells", "1024", "--devices", GPU or "none")
    config = "kv: {layout: split}\n"
    environment = VISIBLE

    def test_a_fork_goes_its_own_way(self):
        self.assertIn(f", on {GPU}", model_line(self.daemon))
        session = self.client.create_session(mode="text")
        first = self.client.generate(PROMPT, session_id=session, max_tokens=8)
        fork = self.client.call(type="fork_session", session_id=session)["session_id"]
        for each, words in ((fork, " the cat"), (session, " the dog")):
            reply = self.client.generate(words, session_id=each, max_tokens=8)
            self.assertEqual(REGISTER.says(PROMPT + first.text + words, 8), reply.text)

    def test_streams_beside_each_other_and_one_that_is_cancelled(self):
        running = self.client.start(type="generate", prompt=PROMPT, max_tokens=200, ignore_eos=True)
        self.client.wait_token(running, 3)
        other = self.another_client()
        beside = other.start(type="generate", prompt="the small boy", max_tokens=20)
        other.wait_token(beside)
        self.assertTrue(self.client.call(type="cancel", target=running)["cancelled"])
        self.assertEqual("cancelled", self.client.finish(running).reason)
        self.assertEqual(REGISTER.says("the small boy", 20), other.finish(beside).text)
        self.wait_idle()
        self.assertEqual(REGISTER.says(PROMPT, 20), self.client.generate(PROMPT, max_tokens=20).text)

    def test_a_full_context_drops_its_oldest_turns_and_moves_the_others(self):
        session = self.client.create_session(mode="text", on_full="shift")
        for _ in range(8):
            reply = self.client.generate(" the dog and the cat say hello", session_id=session, max_tokens=40, ignore_eos=True)
            self.assertEqual("length", reply.reason, reply.last)
        detail = self.client.session(session)
        self.assertGreater(detail["dropped_turns"], 1)
        self.assertEqual(("hot", "shifted"), (reply.usage["tier"], reply.usage["reuse_reason"]))
        self.assertEqual(REGISTER.says(detail["text"].removesuffix(reply.text), 40), reply.text)


@unittest.skipUnless(GPU, NO_GPU)
class FourAtOnceOnADevice(test_known_text.FourAtOnce, test_known_text.KnownTextTest):
    flags = ("--kv-cells", "4096", "--devices", GPU or "none")
    environment = VISIBLE


@unittest.skipUnless(GPU, NO_GPU)
class PreemptionOnADevice(test_known_text.KvExhaustion):
    flags = (*test_known_text.KvExhaustion.flags, "--devices", GPU or "none")
    environment = VISIBLE


@unittest.skipUnless(GPU, NO_GPU)
class TiersOnADevice(uma.DaemonTest):
    model = uma.TINY_REGISTER
    flags = ("--slots", "1", "--kv-cells", "1024", "--devices", GPU or "none")
    environment = VISIBLE

    def test_states_leave_the_device_and_come_back(self):
        sessions = {self.client.create_session(mode="text"): begin for begin in (PROMPT, "the small boy")}
        texts = {}
        for session, begin in sessions.items():
            texts[session] = begin + " the dog and the cat say hello" * 10
            texts[session] += self.client.generate(texts[session], session_id=session, max_tokens=8).text
        for _ in range(2):
            for session in sessions:
                reply = self.client.generate(" the end", session_id=session, max_tokens=8)
                self.assertEqual(REGISTER.says(texts[session] + " the end", 8), reply.text)
                self.assertEqual("warm", reply.usage["tier"])
                self.assertGreater(reply.usage["reused_tokens"], 60)
                texts[session] += " the end" + reply.text


@unittest.skipUnless(GPU, NO_GPU)
class ImagesOnADevice(uma.DaemonTest):
    model = vision.MODEL
    flags = (*vision.FLAGS, "--devices", GPU or "none")
    environment = VISIBLE

    def test_an_image_is_seen_as_the_processor_sees_it(self):
        vectors = []
        for client in (self.client, self.on_the_processor()):
            vectors.append(client.call(type="embed_image", data=vision.data_of(vision.GRAD))["embeddings"][0])
        self.assertGreater(sum(a * b for a, b in zip(*vectors)), 0.99)

    def on_the_processor(self):
        daemon = uma.Daemon(self.model, *vision.FLAGS, "--devices", "none")
        self.addCleanup(daemon.kill)
        client = daemon.start().wait_ready().client()
        self.addCleanup(client.close)
        return client

    def test_questions_about_images_beside_a_stream(self):
        other = self.another_client()
        running = other.start(type="generate", prompt=PROMPT, max_tokens=100, ignore_eos=True)
        other.wait_token(running)
        for picture in (vision.GRAD, vision.RED, vision.GRAD):
            reply = self.client.finish(self.client.start(type="generate", messages=[vision.question(picture)], max_tokens=8, ignore_eos=True))
            self.assertEqual("length", reply.reason, reply.last)
        self.assertEqual("length", other.finish(running).reason)


@unittest.skipUnless(GPU, NO_GPU)
class ManyModels(unittest.TestCase):
    def daemon(self, model, *flags, **options):
        made = uma.Daemon(model, *flags, environment=VISIBLE, **options)
        self.addCleanup(made.kill)
        return made.start().wait_ready()

    def test_vectors_are_those_of_the_processor(self):
        texts = ["the dog sat by the door", "a cat", "naïve café ☕ 東京"] + [f"{i} small dogs said hello to the cat " * 8 for i in range(8)]
        vectors = []
        for devices in (GPU, "none"):
            daemon = self.daemon(EMBED, "--devices", devices, config="kv: {flash_attention: off}\n")
            self.assertEqual(devices == GPU, f", on {GPU}" in model_line(daemon))
            with daemon.client() as client:
                vectors.append(client.call(type="embed", texts=texts)["embeddings"])
            self.assertEqual(0, daemon.terminate(), daemon.log())
        for one, other in zip(*vectors):
            self.assertGreater(sum(a * b for a, b in zip(one, other)), 0.999)

    def test_one_model_on_a_device_beside_one_on_the_processor(self):
        with tempfile.TemporaryDirectory(prefix="uma-devices-") as folder:
            cards = pathlib.Path(folder, "models.yaml")
            cards.write_text(f"on_device: {{path: {uma.TINY_REGISTER}, devices: [{GPU}]}}\n"
                             f"on_cpu: {{path: {uma.TINY_REGISTER}, devices: none}}\n"
                             f"some: {{path: {uma.TINY_REGISTER}, devices: [{GPU}], gpu_layers: 1}}\n")
            daemon = self.daemon("on_device", "--slots", "2", "--kv-cells", "512", config=f"models: {cards}\n")
            with daemon.client() as one, daemon.client() as other:
                replies = uma.parallel(lambda: one.generate(PROMPT, model="on_device", max_tokens=TOKENS),
                                       lambda: other.generate(PROMPT, model="on_cpu", max_tokens=TOKENS))
                self.assertEqual([REGISTER.says(PROMPT, TOKENS)] * 2, [reply.text for reply in replies])
                self.assertEqual(REGISTER.says(PROMPT, 8), one.generate(PROMPT, model="some", max_tokens=8).text)
            lines = {name: line for line in daemon.log().splitlines() for name in ("on_device", "on_cpu", "some")
                     if f"model   {name}:" in line and "trained for" in line}
            self.assertIn(f", on {GPU}", lines["on_device"])
            self.assertNotIn(f"on {GPU}", lines["on_cpu"])
            self.assertIn(", 1 of 4 layers on", lines["some"])
            self.assertEqual(0, daemon.terminate(), daemon.log())


@unittest.skipUnless(GPU, NO_GPU)
class Tuned(unittest.TestCase):
    def test_the_processor_computes_if_it_is_faster(self):
        with tempfile.TemporaryDirectory(prefix="uma-devices-") as folder:
            printed = uma.run_umad("tune", "--model", uma.TINY_REGISTER, "--data-dir", folder, "--seconds", 3, "--even-if-busy",
                                   environment=uma.clean_environment(**VISIBLE), timeout_s=4 * uma.WAIT_S)
            self.assertEqual(0, printed.returncode, printed.stderr)
            self.assertRegex(printed.stdout, rf"devices  .*\n[* ] on {GPU} \(default\) .*\n[* ] on the CPU ")
            is_slower = "chosen: on the CPU alone; " in printed.stdout
            for flags, where in ((), not is_slower), (("--devices", GPU), True):
                daemon = uma.Daemon(uma.TINY_REGISTER, *flags, environment=VISIBLE, own_paths=False)
                daemon.arguments += ["--socket", str(daemon.socket_path), "--data-dir", folder]
                self.addCleanup(daemon.kill)
                daemon.start().wait_ready()
                self.assertEqual(where, f", on {GPU}" in model_line(daemon))
                self.assertEqual(0, daemon.terminate())


if __name__ == "__main__":
    unittest.main()
