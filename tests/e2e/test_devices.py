"""Choice of devices. The tests on a GPU run where one is found: a real one, or the driver llvmpipe, which computes on the CPU and
shows everything about being on a device but its speed (script/bootstrap --devices installs it)."""

import os
import unittest

import shift_register
import uma

# The library ignores devices that compute on the CPU unless they are named so.
VISIBLE = {"GGML_VK_VISIBLE_DEVICES": os.environ.get("GGML_VK_VISIBLE_DEVICES", "0")}
REGISTER = shift_register.Register()
PROMPT = "once upon a time"
TOKENS = 60


def listed():
    """The rows of `umad devices`, as lists of words."""
    printed = uma.run_umad("devices", environment=uma.clean_environment(**VISIBLE))
    assert printed.returncode == 0, printed.stderr
    return [line.split() for line in printed.stdout.splitlines()]


GPU = next((row[0] for row in listed() if "GPU" in row), None)


class Choice(unittest.TestCase):
    def test_the_list_has_the_processor(self):
        rows = listed()
        self.assertEqual(["name", "kind", "memory", "free", "backend", "device"], rows[0])
        self.assertIn("CPU", [row[0] for row in rows])

    def test_without_a_gpu_the_list_says_so(self):
        printed = uma.run_umad("devices", environment=uma.clean_environment(GGML_VK_VISIBLE_DEVICES=""))
        if " GPU " not in printed.stdout:
            self.assertIn("no GPU", printed.stdout)

    def test_a_device_that_does_not_exist_is_named(self):
        with uma.Daemon(uma.TINY_REGISTER, "--devices", "none") as daemon:
            folder = daemon.data_dir
            self.assertTrue(folder.exists())
        ended = uma.run_umad("--model", uma.TINY_REGISTER, "--devices", "Nothing7", "--socket", "/nowhere/s")
        self.assertNotEqual(0, ended.returncode)
        daemon = uma.Daemon(uma.TINY_REGISTER, "--devices", "Nothing7")
        self.addCleanup(daemon.kill)
        daemon.start()
        uma.until(lambda: 'no GPU is called "Nothing7"' in daemon.log(), "a message that names the device")

    def test_wrong_values_are_explained(self):
        for flags, expected in ((("--devices", "none Vulkan0"), "names of devices"), (("--gpu-layers", "most"), "auto or an integer")):
            ended = uma.run_umad(*flags)
            self.assertEqual(1, ended.returncode)
            self.assertIn(expected, ended.stderr)


@unittest.skipUnless(GPU, "there is no GPU and no llvmpipe (script/bootstrap --devices)")
class OnADevice(unittest.TestCase):
    def daemon(self, *flags):
        made = uma.Daemon(uma.TINY_REGISTER, "--slots", "4", "--kv-cells", "2048", *flags, environment=VISIBLE)
        self.addCleanup(made.kill)
        return made.start().wait_ready()

    def assert_knows_its_text(self, daemon):
        with daemon.client() as client:
            self.assertEqual(REGISTER.says(PROMPT, TOKENS), client.generate(PROMPT, max_tokens=TOKENS).text)

    def test_the_known_text_with_all_layers_half_of_them_and_none(self):
        for flags in ((), ("--devices", GPU), ("--gpu-layers", "2"), ("--gpu-layers", "0"), ("--devices", "none")):
            with self.subTest(flags=flags):
                daemon = self.daemon(*flags)
                self.assert_knows_its_text(daemon)
                self.assertEqual(0, daemon.terminate(), daemon.log())

    def test_a_conversation_goes_on_after_a_restart(self):
        daemon = self.daemon()
        with daemon.client() as client:
            session = client.create_session(mode="text")
            prompt = "the dog and the cat say hello to the small boy " * 20 + PROMPT
            first = client.generate(prompt, session_id=session, max_tokens=8)
            self.assertEqual(REGISTER.says(prompt, 8), first.text)
        self.assertEqual(0, daemon.terminate(), daemon.log())
        daemon.start().wait_ready()
        with daemon.client() as client:
            second = client.generate(" the end", session_id=session, max_tokens=8)
            self.assertGreater(second.usage["reused_tokens"], 100)
            self.assertEqual(REGISTER.says(prompt + first.text + " the end", 8), second.text)

    def test_states_of_a_device_are_not_used_by_the_processor(self):
        daemon = self.daemon("--devices", GPU)
        prompt = "the dog and the cat say hello to the small boy " * 20 + PROMPT
        with daemon.client() as client:
            session = client.create_session(mode="text")
            client.generate(prompt, session_id=session, max_tokens=8)
        self.assertEqual(0, daemon.terminate(), daemon.log())
        daemon.arguments[daemon.arguments.index(GPU)] = "none"
        daemon.start().wait_ready()
        with daemon.client() as client:
            second = client.generate(" the end", session_id=session, max_tokens=8)
            self.assertEqual(0, second.usage["reused_tokens"])
            self.assertEqual("length", second.reason, second.last)


if __name__ == "__main__":
    unittest.main()
