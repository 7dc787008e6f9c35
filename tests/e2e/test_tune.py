"""umad tune measures, prints and writes a profile, which umad reads at its start. Also: workers on copies of the weights."""

import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import unittest

import uma

SHIPPED = uma.BUILD / "share" / "uma-serve" / "models" / "uma-tiny.gguf"
KEYS = ("decode_threads", "prefill_threads", "ubatch", "flash_attention", "layout", "type", "lanes", "decode_threads_beside_prefill",
        "prefill_threads_beside_decode")


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="uma-e2e-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def tune(self, *flags, model=uma.TINY):
        """Runs umad tune even beside busy programs, such as other tests."""
        return self.tune_if_quiet("--even-if-busy", *flags, model=model)

    def tune_if_quiet(self, *flags, model=uma.TINY):
        return uma.run_umad("tune", "--model", model, "--data-dir", self.folder, *flags, timeout_s=4 * uma.WAIT_S)

    def daemon(self, model, *flags, config=None):
        """A daemon on the data folder to which umad tune wrote."""
        daemon = uma.Daemon(model, *flags, config=config, own_paths=False)
        daemon.arguments += ["--socket", str(daemon.socket_path), "--data-dir", str(self.folder)]
        return daemon

    def profiles(self):
        return sorted(path for path in (self.folder / "profiles").glob("*") if not path.name.endswith("-widths.yaml"))

    def profile(self):
        (path,) = self.profiles()
        return path


class Widths(Folder):
    """What a daemon measures about decode calls while it is idle is kept for the next one."""

    MEASURED = "the times of decode calls with 1 thread(s) are kept in "
    NOT_KEPT = "the times of decode calls are not kept"
    KNOWN = "the times of decode calls are known from an earlier start"
    SLOTS = 4
    FLAGS = ("--threads", 1, "--slots", SLOTS)

    def file(self):
        (path,) = (self.folder / "profiles").glob("*-widths.yaml")
        return path

    def measure(self, config=None, end=MEASURED):
        """Runs a daemon until its log says that its measurement is kept, or another end of it, and returns the log. Beside busy programs
        a measurement is thrown away: then the next daemon measures again."""
        logs = []

        def has_ended():
            with self.daemon(uma.TINY, *self.FLAGS, config=config) as daemon:
                uma.until(lambda: end in daemon.log() or self.NOT_KEPT in daemon.log(), "the times of decode calls are measured")
                logs.append(daemon.log())
            return end in logs[-1]

        uma.until(has_ended, end)
        return logs[-1]

    def serve(self, config=None):
        """Runs a daemon for one request, and returns its log."""
        with self.daemon(uma.TINY, *self.FLAGS, config=config) as daemon, daemon.client() as client:
            self.assertEqual("length", client.generate("Hello", max_tokens=3, ignore_eos=True).reason)
            return daemon.log()

    def test_the_second_start_measures_nothing(self):
        self.assertNotIn(self.KNOWN, self.measure())
        path = self.file()
        self.assertEqual(0o600, stat.S_IMODE(path.stat().st_mode))
        before = path.stat()
        with self.daemon(uma.TINY, *self.FLAGS) as daemon, daemon.client() as client:
            self.assertIn(self.KNOWN, daemon.log())
            # The warm-up has three calls and one for each slot; a measurement would have 48 more.
            warm = 3 + self.SLOTS
            uma.until(lambda: client.metrics()["batch_calls_total"] >= warm, "the warm-up's end")
            for _ in range(3):
                self.assertEqual("length", client.generate("Hello", max_tokens=1, ignore_eos=True).reason)
            self.assertLess(client.metrics()["batch_calls_total"], warm + 48)
            self.assertNotIn(self.MEASURED, daemon.log())
        self.assertEqual((before.st_ino, before.st_mtime_ns), (path.stat().st_ino, path.stat().st_mtime_ns))

    def test_other_settings_are_measured_and_kept_beside(self):
        self.measure()
        without_flash = "kv: {flash_attention: off}\n"
        self.assertNotIn(self.KNOWN, self.measure(without_flash))
        self.assertIn(self.KNOWN, self.serve(without_flash))
        self.assertIn(self.KNOWN, self.serve())

    def test_what_does_not_fit_is_measured_again(self):
        self.measure()
        path = self.file()
        text = path.read_text()
        for damage, what in ((lambda whole: whole[:len(whole) // 2], "it is damaged"),
                             (lambda whole: re.sub(r'library: "[^"]*"', 'library: "libllama 0.1.0"', whole), "measured with libllama 0.1.0"),
                             (lambda whole: re.sub(r'backends: "[^"]*"', 'backends: "CPU : OTHER = 1"', whole), "other instructions or devices")):
            with self.subTest(what):
                path.write_text(damage(text))
                self.assertRegex(self.measure(), rf"warning .*{re.escape(str(path))} is ignored, and decode calls are measured again: .*{what}")
                self.assertIn(self.KNOWN, self.serve())

    def test_where_nothing_can_be_kept_umad_serves(self):
        (self.folder / "profiles").write_text("a file in place of the folder")
        self.measure(end="the times of decode calls are measured again at the next start")
        self.serve()


class Tune(Folder):
    def test_measures_prints_and_keeps_a_profile_that_the_next_start_reads(self):
        result = self.tune("--seconds", 3)
        self.assertEqual(0, result.returncode, result.stderr)
        for title in ("decode threads", "prompt threads", "ubatch", "flash attention", "KV layout", "KV type",
                      "prompts beside streams", "chosen:"):
            self.assertIn(title, result.stdout)
        self.assertRegex(result.stdout, r"1 stream +4 streams +8 streams")
        self.assertRegex(result.stdout, r"\* 512 \(default\) +\d+ tokens/s|\* (64|128|256) +\d+ tokens/s")
        # The heads of this model are 16 wide: its keys do not fit into blocks of 32.
        self.assertRegex(result.stdout, r"  q8_0 .*(does not divide|needs flash attention, which is slower here)")

        path = self.profile()
        self.assertIn(str(path), result.stdout)
        self.assertEqual(0o600, stat.S_IMODE(path.stat().st_mode))
        text = path.read_text()
        for key in KEYS:
            self.assertRegex(text, rf"(?m)^  {key}: \S+$")
        self.check_start(path, text)

    def check_start(self, path, text):
        """The daemon uses a whole profile and ignores a damaged one."""
        def log_of(*flags, config=None):
            with self.daemon(uma.TINY, *flags, config=config) as daemon, daemon.client() as client:
                self.assertEqual("length", client.generate("Hello", max_tokens=3, ignore_eos=True).reason)
                return daemon.log()

        self.assertRegex(log_of(), rf"info .*profile {re.escape(str(path))}\n")
        self.assertIn(f"profile {path}; overridden by settings: threads, kv.layout\n", log_of("--threads", 1, config="kv: {layout: split}\n"))

        cores = int(re.search(r"(?m)^  cores: (\d+)$", text)[1])
        if cores > 1:  # with one core there is nothing to choose
            path.write_text(re.sub(r"(?m)^  prefill_threads: .*", f"  prefill_threads: {cores}",
                                   re.sub(r"(?m)^  decode_threads: .*", "  decode_threads: 1", text)))
            self.assertIn(f"; 1 compute thread(s), {cores} for prompts\n", log_of())

        for damage, what in ((lambda whole: whole[:len(whole) // 2], "it is damaged"),
                             (lambda whole: whole.replace("version: 1", "version: 9"), "newer umad"),
                             (lambda whole: re.sub(r'identity: "..', 'identity: "zz', whole), "another model"),
                             (lambda whole: re.sub(r'library: "[^"]*"', 'library: "libllama 0.1.0"', whole), "run umad tune again")):
            with self.subTest(what):
                path.write_text(damage(text))
                self.assertRegex(log_of(), rf"warning .*profile {re.escape(str(path))} is ignored: .*{what}")

    def test_quantized_keys_and_values_only_where_allowed(self):
        first = self.tune("--seconds", 1, model=SHIPPED)
        self.assertEqual(0, first.returncode, first.stderr)
        self.assertIn("--allow-quantized-kv allows it", first.stdout)
        self.assertRegex(self.profile().read_text(), r"(?m)^  type: f16$")
        # Half the memory, plus the scales of the blocks.
        memory = [float(value) for value in re.findall(r"(?m)^. (?:f16|q8_0).* ([\d.]+) MiB$", first.stdout)]
        self.assertEqual(2, len(memory), first.stdout)
        self.assertAlmostEqual(17 / 32, memory[1] / memory[0], places=2)

    def test_a_profile_with_quantized_keys_and_values_serves(self):
        self.assertEqual(0, self.tune("--seconds", 1, model=SHIPPED).returncode)
        path = self.profile()
        path.write_text(re.sub(r"  type: \S+", "  type: q8_0", re.sub(r"  flash_attention: \S+", "  flash_attention: auto", path.read_text())))
        with self.daemon(SHIPPED) as daemon, daemon.client() as client:
            self.assertIn(f"profile {path}\n", daemon.log())
            self.assertEqual("4 + 9 = 13.", client.generate(messages=[{"role": "user", "content": "What is 4 + 9?"}]).text)

    def test_mistakes_are_told_and_keep_nothing(self):
        missing = self.tune(model=self.folder / "no.gguf")
        self.assertEqual(1, missing.returncode)
        self.assertIn("no.gguf", missing.stderr)
        # 2^24 tokens for each of 255 sequences need more memory than machines have.
        huge = self.folder / "huge.gguf"
        made = subprocess.run([str(uma.MAKE_MODEL), "--layers", "64", "--width", "256", "--heads", "4", "--kv-heads", "4", "--ff", "64",
                               "--vocab", "1000", "--out", str(huge)], capture_output=True, text=True, check=False)
        self.assertEqual(0, made.returncode, made.stderr)
        no_memory = self.tune("--kv-cells", 1 << 24, "--slots", 1, model=huge)
        self.assertEqual(1, no_memory.returncode, no_memory.stdout)
        self.assertIn("memory", no_memory.stderr)
        self.assertEqual([], self.profiles())

    def test_a_busy_machine_is_not_measured(self):
        burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
        try:
            result = self.tune_if_quiet("--seconds", 1)
        finally:
            for burner in burners:
                burner.kill()
                burner.wait()
        self.assertEqual(1, result.returncode)
        self.assertRegex(result.stderr, r"other programs use \d+\.\d core\(s\)")
        self.assertEqual([], self.profiles())

    def test_an_interrupt_keeps_nothing(self):
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number):
                process = subprocess.Popen([str(uma.UMAD), "tune", "--model", str(uma.TINY), "--data-dir", str(self.folder), "--seconds", "600", "--even-if-busy"],
                                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                           env=uma.clean_environment())
                self.addCleanup(process.kill)
                for line in process.stderr:
                    if "measuring: threads" in line:
                        break
                process.send_signal(number)
                output, log = process.communicate(timeout=uma.WAIT_S)
                self.assertEqual(status, process.returncode, log)
                self.assertEqual("", output)
                self.assertIn("no profile was written", log)
                self.assertEqual([], self.profiles())


class Replicated(Folder):
    def test_every_worker_has_weights_of_its_own_and_says_the_same(self):
        model = self.folder / "weights.gguf"
        made = subprocess.run([str(uma.MAKE_MODEL), "--type", "f16", "--layers", "8", "--width", "512", "--heads", "8", "--kv-heads", "2",
                               "--ff", "2048", "--n-ctx", "512", "--vocab", "1536", "--out", str(model)],
                              capture_output=True, text=True, check=False)
        self.assertEqual(0, made.returncode, made.stderr)
        bytes_of_file = model.stat().st_size
        self.assertGreater(bytes_of_file, 40 << 20, "large against what else differs between two daemons")

        def observe(weights):
            config = f"scheduler: {{weights: {weights}}}\nworkers: 2\nthreads: 2\nslots: 1\nkv: {{cells: 512}}\n"
            with uma.Daemon(model, config=config) as daemon, daemon.client() as client:
                # The sessions run at the same time, so that both workers compute.
                sessions = [client.create_session() for _ in range(4)]
                ids = [client.start(type="generate", session_id=session, prompt="The same prompt", max_tokens=24, ignore_eos=True)
                       for session in sessions]
                texts = {client.finish(request).text for request in ids}
                self.assertTrue(all(worker["tokens_total"] > 0 for worker in client.metrics()["workers"]), client.metrics())
                self.assertEqual(2, client.models()[0]["workers"])
                return texts, client.models()[0]["bytes"], daemon.anonymous_bytes()

        shared_texts, shared_bytes, shared_memory = observe("shared")
        texts, copied_bytes, memory = observe("replicated")
        self.assertEqual(1, len(texts))
        self.assertEqual(shared_texts, texts)
        self.assertEqual(2 * shared_bytes, copied_bytes)
        if not uma.IS_SANITIZED:
            # The library may rearrange weights as it loads them: then even shared weights are anonymous memory of the process.
            self.assertGreater(memory - shared_memory, bytes_of_file / 2)


if __name__ == "__main__":
    unittest.main()
