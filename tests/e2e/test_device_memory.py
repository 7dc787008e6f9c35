"""Memory of devices: what a model takes there, layers that do not fit, models that give way to others, and several devices. The
device is the driver llvmpipe or a real GPU with memory of its own, as in test_devices.py; its memory is limited by
`pool.device_bytes_max`."""

import pathlib
import re
import subprocess
import tempfile
import time
import unittest

import faulty_device
import shift_register
import test_devices
import uma
import vision
from test_devices import NO_GPU, PROMPT, TOKENS, VISIBLE, model_line

REGISTER = shift_register.Register()
GPU = next((row[0] for row in test_devices.listed() if row[1] == "GPU"), None)  # an integrated one has no memory of its own
LAYERS = 4  # of the test model, with its output
# The driver llvmpipe can be seen twice, as two devices.
TWO = VISIBLE | {"GGML_VK_VISIBLE_DEVICES": "0,0"}
MIB = 1 << 20


def number_of(text):
    return float(text[0]) * {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[text[1]]


class OnDevices(unittest.TestCase):
    def daemon(self, *flags, model=uma.TINY_REGISTER, cards=None, environment=VISIBLE, device_bytes=0):
        config = f"pool: {{device_bytes_max: {device_bytes}, min_loaded_s: 0}}\n"
        if cards:
            folder = tempfile.TemporaryDirectory(prefix="uma-devices-")
            self.addCleanup(folder.cleanup)
            file = pathlib.Path(folder.name, "models.yaml")
            file.write_text(cards)
            config += f"models: {file}\n"
        made = uma.Daemon(model, "--slots", "4", "--kv-cells", "2048", *flags, config=config, environment=environment)
        self.addCleanup(made.kill)
        return made.start().wait_ready()

    def assert_knows_its_text(self, daemon, model=None, count=TOKENS):
        with daemon.client() as client:
            named = {"model": model} if model else {}
            self.assertEqual(REGISTER.says(PROMPT, count), client.generate(PROMPT, max_tokens=count, **named).text)

    def memory(self, daemon, device=None):
        """The device's memory, from the metrics."""
        with daemon.client() as client:
            return next(each for each in client.metrics()["devices"] if each["name"] == (device or GPU))

    def placed(self, daemon):
        """How many layers the log puts on devices."""
        line = model_line(daemon)
        some = re.search(r", (\d+) of \d+ layers on ", line)
        return int(some[1]) if some else LAYERS if f", on {GPU}" in line else 0


@unittest.skipUnless(GPU, NO_GPU)
class OneDevice(OnDevices):
    def whole(self):
        """What the whole model takes on the device."""
        if not hasattr(OneDevice, "bytes"):
            daemon = self.daemon("--devices", GPU)
            OneDevice.bytes = self.memory(daemon)["memory_reserved_bytes"]
            self.assertEqual(0, daemon.terminate())
        return OneDevice.bytes

    def test_what_does_not_fit_stays_on_the_processor(self):
        whole = self.whole()
        seen = set()
        for limit in (whole * 11 // 10, whole * 9 // 10, whole * 3 // 4, whole // 2, whole // 100):
            with self.subTest(limit=limit):
                daemon = self.daemon(device_bytes=limit)
                memory = self.memory(daemon)
                self.assertEqual(limit, memory["memory_usable_bytes"])
                self.assertLessEqual(memory["memory_reserved_bytes"], limit)
                self.assertEqual(memory["memory_reserved_bytes"], memory["weights_bytes"] + memory["context_bytes"])
                self.assert_knows_its_text(daemon)
                seen.add(self.placed(daemon))
                self.assertEqual(0, daemon.terminate(), daemon.log())
        self.assertTrue({0, LAYERS} < seen, seen)

    def test_the_number_of_layers_is_the_most(self):
        daemon = self.daemon("--gpu-layers", "3")
        self.assertEqual(3, self.placed(daemon))
        self.assert_knows_its_text(daemon)

    def test_the_time_in_which_it_computes_is_counted(self):
        daemon = self.daemon()
        before = self.memory(daemon)["busy_s_total"]
        began = time.monotonic()
        self.assert_knows_its_text(daemon)
        with daemon.client() as client:
            metrics = client.metrics()
        after = next(each for each in metrics["devices"] if each["name"] == GPU)
        self.assertGreater(after["busy_s_total"], before)
        self.assertLess(after["busy_s_total"] - before, time.monotonic() - began)
        self.assertTrue(0 < after["busy_ratio"] <= 1, after)
        self.assertEqual(max(each["busy_ratio"] for each in metrics["devices"]), metrics["device_busy_ratio"])

    def test_the_time_stands_still_without_work(self):
        daemon = self.daemon()
        self.assert_knows_its_text(daemon)
        test_devices.wait_measured(daemon)
        before = self.memory(daemon)["busy_s_total"]
        time.sleep(0.3)
        self.assertEqual(before, self.memory(daemon)["busy_s_total"])
        self.assert_knows_its_text(daemon)
        self.assertGreater(self.memory(daemon)["busy_s_total"], before)

    def test_an_idle_model_leaves_the_device_for_another(self):
        cards = "".join(f"{name}: {{path: {uma.TINY_REGISTER}}}\n" for name in ("one", "two"))
        daemon = self.daemon(model="one", cards=cards, device_bytes=self.whole() * 3 // 2)
        self.assert_knows_its_text(daemon, "one")
        self.assert_knows_its_text(daemon, "two")
        lines = [line for line in daemon.log().splitlines() if "trained for" in line]
        self.assertEqual(2, len(lines), lines)
        for line in lines:
            self.assertIn(f", on {GPU}", line)
        self.assertRegex(daemon.log(), rf"{GPU}: two needs .*(unload|drop contexts of) one")
        with daemon.client() as client:
            loaded = {model["name"]: model["state"] for model in client.models()}
        self.assertEqual("ready", loaded["two"])
        self.assertNotEqual("ready", loaded["one"])

    def test_a_model_in_use_stays_and_the_other_one_is_computed_by_the_processor(self):
        cards = "".join(f"{name}: {{path: {uma.TINY_REGISTER}}}\n" for name in ("one", "two"))
        daemon = self.daemon(model="one", cards=cards, device_bytes=self.whole() * 11 // 10)
        with daemon.client() as client, daemon.client() as other:
            running = client.start(type="generate", model="one", prompt=PROMPT, max_tokens=1000, ignore_eos=True)
            client.wait_token(running, 3)
            self.assertEqual(REGISTER.says(PROMPT, 8), other.generate(PROMPT, model="two", max_tokens=8).text)
            lines = {name: line for line in daemon.log().splitlines() for name in ("one", "two")
                     if f"model   {name}:" in line and "trained for" in line}
            self.assertIn(f", on {GPU}", lines["one"])
            self.assertNotIn(f"on {GPU}", lines["two"])
            client.call(type="cancel", target=running)
            self.assertEqual("cancelled", client.finish(running).reason)

    def test_a_device_without_room_is_not_used_and_nothing_is_refused(self):
        daemon = self.daemon("--devices", GPU, device_bytes=MIB)
        self.assertEqual(0, self.memory(daemon)["memory_reserved_bytes"])
        self.assertIn(f"0 of {LAYERS} layers of model", daemon.log())
        self.assert_knows_its_text(daemon)


@unittest.skipUnless(GPU, NO_GPU)
class Mixture(OnDevices):
    """Experts that the device has no room for."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="uma-mixture-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model = pathlib.Path(cls.folder.name, "mixture.gguf")
        # Every token uses all experts, so that no other rounding chooses others.
        subprocess.run([uma.MAKE_MODEL, "--preset", "tiny-moe", "--experts-used", "8", "--ff", "512", "--layers", "4", "--out", cls.model],
                       check=True, timeout=uma.WAIT_S)

    def first_logprob(self, daemon):
        """The first token of a reply, with its logarithmic probability."""
        with daemon.client() as client:
            reply = client.generate(PROMPT, max_tokens=4, ignore_eos=True, logprobs=20)
        return next(entry for event in reply.events for entry in event.get("logprobs", []))

    def test_they_stay_on_the_processor_and_all_layers_are_on_the_device(self):
        whole = self.daemon("--devices", GPU, model=self.model)
        bytes_of_whole = self.memory(whole)
        expected = self.first_logprob(whole)
        self.assertEqual(0, whole.terminate())
        daemon = self.daemon(model=self.model, device_bytes=bytes_of_whole["memory_reserved_bytes"] - bytes_of_whole["weights_bytes"] // 2)
        self.assertRegex(model_line(daemon), rf", on {GPU}, [1-4] without their experts")
        memory = self.memory(daemon)
        self.assertLess(memory["weights_bytes"], bytes_of_whole["weights_bytes"] * 2 // 3)
        self.assertLessEqual(memory["memory_reserved_bytes"], memory["memory_usable_bytes"])
        # Other hardware rounds otherwise.
        found = {each["token_id"]: each["logprob"] for each in self.first_logprob(daemon)["top_logprobs"]}
        for each in expected["top_logprobs"][:5]:
            self.assertAlmostEqual(each["logprob"], found[each["token_id"]], delta=0.1)


@unittest.skipUnless(GPU, NO_GPU)
@unittest.skipIf(uma.IS_SANITIZED, "a sanitizer must be the first library")
class Ledger(OnDevices):
    """What is reserved on a device is what its backend was asked for, within 2 %."""

    def setUp(self):
        self.faults = faulty_device.Faults()
        self.addCleanup(self.faults.close)

    def ledger(self, daemon):
        """The reserved bytes of each device that has some, after a comparison with the allocated ones."""
        with daemon.client() as client:
            reserved = {each["name"]: each["memory_reserved_bytes"] for each in client.metrics()["devices"]}
        allocated = self.faults.allocated()
        for name, count in reserved.items():
            self.assertLessEqual(abs(count - allocated.get(name, 0)), count / 50, (reserved, allocated))
        return {name: count for name, count in reserved.items() if count > 0}

    def test_of_all_layers_of_some_and_of_two_models(self):
        cards = (f"whole: {{path: {uma.TINY_REGISTER}}}\nhalf: {{path: {uma.TINY_REGISTER}, gpu_layers: 2}}\n"
                 f"vectors: {{path: {test_devices.EMBED}}}\n")
        daemon = self.daemon(model="whole", cards=cards, environment=self.faults.environment)
        counts = [self.ledger(daemon)[GPU]]
        self.assert_knows_its_text(daemon, "half")
        counts.append(self.ledger(daemon)[GPU])
        with daemon.client() as client:
            client.call(type="embed", model="vectors", texts=["a cat"])
            counts.append(self.ledger(daemon)[GPU])
            for name in ("vectors", "half", "whole"):
                client.call(type="unload_model", model=name)
        self.assertEqual(sorted(set(counts)), counts, "each model adds to it")
        self.assertEqual({}, self.ledger(daemon))
        self.assertEqual(0, self.faults.allocated()[GPU], "all was freed")

    def test_of_a_projector_and_of_a_draft_model(self):
        cards = "".join(f"{name}: {{path: {uma.TINY_REGISTER}{more}}}\n" for name, more in (
            ("plain", ""), ("drafted", f", draft_model: {uma.TINY_REGISTER}"), ("seeing", f", projector: {vision.PROJECTOR}")))
        daemon = self.daemon(model="plain", cards=cards, environment=self.faults.environment)
        counts = [self.ledger(daemon)[GPU]]
        for name in ("drafted", "seeing"):
            self.assert_knows_its_text(daemon, name)
            counts.append(self.ledger(daemon)[GPU])
        plain, drafted, seeing = (after - before for before, after in zip([0, *counts], counts))
        self.assertGreater(drafted, plain)
        self.assertGreater(seeing, plain)

    @unittest.skipUnless(GPU and "llvmpipe" in sum(test_devices.listed(), []), "no driver llvmpipe, which can be seen twice")
    def test_of_two_devices(self):
        daemon = self.daemon("--split", "1,3", environment=self.faults.environment | TWO)
        self.assertEqual({"Vulkan0", "Vulkan1"}, set(self.ledger(daemon)))


@unittest.skipUnless(GPU and "llvmpipe" in sum(test_devices.listed(), []), "no driver llvmpipe, which can be seen twice")
class TwoDevices(OnDevices):
    def test_a_model_is_on_one_if_it_fits(self):
        daemon = self.daemon("--main-device", "Vulkan1", environment=TWO)
        self.assertIn(", on Vulkan1", model_line(daemon))
        self.assertEqual(0, self.memory(daemon, "Vulkan0")["memory_reserved_bytes"])
        self.assert_knows_its_text(daemon)

    def test_layers_are_split_as_asked(self):
        daemon = self.daemon("--split", "1,3", environment=TWO)
        self.assertIn(", on Vulkan0 (1), Vulkan1 (3)", model_line(daemon))
        for device in ("Vulkan0", "Vulkan1"):
            self.assertGreater(self.memory(daemon, device)["weights_bytes"], 0)
        self.assert_knows_its_text(daemon)

    def test_what_one_cannot_take_the_other_takes(self):
        alone = self.daemon("--devices", "Vulkan0", environment=TWO)
        whole = self.memory(alone, "Vulkan0")["memory_reserved_bytes"]
        self.assertEqual(0, alone.terminate())
        daemon = self.daemon(environment=TWO, device_bytes=whole - 1)
        self.assertRegex(model_line(daemon), r", on Vulkan0 \(\d\), Vulkan1 \(\d\)")
        for device in ("Vulkan0", "Vulkan1"):
            memory = self.memory(daemon, device)
            self.assertTrue(0 < memory["memory_reserved_bytes"] < whole, memory)
        self.assert_knows_its_text(daemon)

    def test_a_conversation_goes_on_after_a_restart(self):
        test_devices.assert_goes_on_after_a_restart(self, self.daemon("--split", "2,2", environment=TWO))

    def test_a_card_without_devices_ignores_the_split(self):
        daemon = self.daemon("--split", "1,3", model="one", cards=f"one: {{path: {uma.TINY_REGISTER}, gpu_layers: 0}}\n", environment=TWO)
        self.assertNotIn("on Vulkan", model_line(daemon))
        self.assert_knows_its_text(daemon)

    def test_an_idle_model_stays_where_another_device_has_room(self):
        cards = "".join(f"{name}: {{path: {uma.TINY_REGISTER}}}\n" for name in ("one", "two"))
        alone = self.daemon("--devices", "Vulkan0", environment=TWO)
        whole = self.memory(alone, "Vulkan0")["memory_reserved_bytes"]
        self.assertEqual(0, alone.terminate())
        daemon = self.daemon(model="one", cards=cards, environment=TWO, device_bytes=whole * 3 // 2)
        self.assert_knows_its_text(daemon, "one")
        self.assert_knows_its_text(daemon, "two")
        lines = [line for line in daemon.log().splitlines() if "trained for" in line]
        self.assertEqual({"Vulkan0", "Vulkan1"}, {line.rsplit(" ", 1)[1] for line in lines}, lines)
        with daemon.client() as client:
            self.assertEqual({"ready"}, {model["state"] for model in client.models() if model["name"] in ("one", "two")})

    def test_a_main_device_that_is_not_used_is_refused(self):
        daemon = uma.Daemon(uma.TINY_REGISTER, "--main-device", "Vulkan7", environment=TWO).start()
        self.addCleanup(daemon.kill)
        self.assertEqual(1, daemon.wait())
        self.assertIn('main_device: "Vulkan7" is none of the devices', daemon.log())

    def test_a_split_for_another_number_of_devices_is_refused(self):
        daemon = uma.Daemon(uma.TINY_REGISTER, "--split", "1,2,3", environment=TWO).start()
        self.addCleanup(daemon.kill)
        self.assertEqual(1, daemon.wait())
        self.assertIn("split: it has 3 numbers, but there are 2 devices", daemon.log())


if __name__ == "__main__":
    unittest.main()
