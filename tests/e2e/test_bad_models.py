"""Model files that end a process: they are tried in a separate process, and refused by name from then on."""

import pathlib
import signal
import tempfile
import unittest

import uma
from gguf_file import GgufFile
from test_supervise import SupervisedDaemon


def forged(change):
    file = GgufFile(uma.TINY.read_bytes())
    change(file)
    return bytes(file)


def without_vocabulary(file):
    file.set_text("tokenizer.ggml.model", "none")


def without_experts(file):
    file.rename_architecture("smallthinker")


def of_another_vocabulary(file):
    """Makes the library end the process when it reads the vocabulary, although nothing in the header is wrong."""
    file.set_text("tokenizer.ggml.model", "bert")


def slow(file):
    """Selects a tokenizer whose time grows with the square of a number's length."""
    file.set_text("tokenizer.ggml.model", "gpt2")
    file.set_text("tokenizer.ggml.pre", "superbpe")
    file.set_texts("tokenizer.ggml.merges", ["a b"])


class BadModelsTest(unittest.TestCase):
    make_daemon = staticmethod(uma.Daemon)

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="uma-models-")))
        self.daemon = self.make_daemon(uma.TINY, config=f"models_dirs: [{self.folder}]\nkv: {{cells: 2048}}\n")
        self.daemon.__enter__()
        self.addCleanup(self.daemon.kill)
        self.client = self.connect()

    def connect(self):
        client = self.daemon.client()
        self.addCleanup(client.close)
        return client

    def add(self, name, data):
        (self.folder / f"{name}.gguf").write_bytes(data)
        lines = self.daemon.log().count("models are registered")
        self.daemon.signal(signal.SIGHUP)
        uma.until(lambda: self.daemon.log().count("models are registered") > lines, "the registry was read again")

    def ask(self, name, client=None):
        return (client or self.client).generate("hi", model=name, max_tokens=2)

    def load(self, name, client=None):
        return (client or self.client).call(type="load_model", model=name)

    def assert_refused(self, name, reason, client=None):
        reply = self.ask(name, client)
        self.assertEqual("E_MODEL_002", reply.code)
        self.assertIn(reason, reply.message)
        return reply.message

    def trials(self):
        return (self.daemon.data_dir / "model_trials").read_text().splitlines()


class Refused(BadModelsTest):
    def test_by_its_header(self):
        self.add("mute", forged(without_vocabulary))
        self.add("mixture", forged(without_experts))
        for _ in range(2):
            self.assert_refused("mute", "tokenizer.ggml.model is none")
            self.assert_refused("mixture", "smallthinker.expert_count is 0")
        self.assertEqual("eos", self.ask("tiny").last["event"])

    def test_by_a_process_that_ends(self):
        self.add("other", forged(of_another_vocabulary))
        message = self.assert_refused("other", "a process that tried to load it was ended by signal 6")
        self.assertNotIn(str(self.folder), message)
        self.assertIn("fatal error", self.daemon.log(), "the last words of the process")
        tries = self.daemon.log().count("is refused until it changes")
        self.assertEqual(message, self.assert_refused("other", "signal 6"))
        self.assertEqual(tries, self.daemon.log().count("is refused until it changes"), "the verdict is kept")
        self.assertEqual("eos", self.ask("tiny").last["event"])

    def test_by_what_its_architecture_lacks(self):
        file = GgufFile((uma.BUILD / "models" / "tiny-swa.gguf").read_bytes())
        file.rename_architecture("gemma-embedding")
        self.add("forgetful", bytes(file))
        self.assert_refused("forgetful", "no KV cache or state")

    def test_by_the_time_that_its_tokenizer_takes(self):
        self.add("slow", forged(slow))
        self.assert_refused("slow", "bytes of digits")

    def test_until_the_file_changes(self):
        self.add("other", forged(of_another_vocabulary))
        self.assert_refused("other", "signal 6")
        self.add("other", uma.TINY.read_bytes())
        uma.until(lambda: self.load("other")["event"] == "ack", "a load that failed is tried again")
        self.assertEqual("eos", self.ask("other").last["event"])

    def test_after_a_restart_without_another_trial(self):
        self.add("other", forged(of_another_vocabulary))
        message = self.assert_refused("other", "signal 6")
        verdicts = self.trials()
        self.assertEqual(0, self.daemon.terminate())
        self.daemon.start().wait_ready()
        self.assertEqual(message, self.assert_refused("other", "signal 6", self.connect()))
        self.assertEqual(1, self.daemon.log().count("is refused until it changes"))
        self.assertEqual(sorted(verdicts), sorted(self.trials()))

    def test_at_the_start(self):
        path = self.folder / "other.gguf"
        path.write_bytes(forged(of_another_vocabulary))
        daemon = SupervisedDaemon(path)
        self.addCleanup(daemon.kill)
        self.assertEqual(1, daemon.start().wait())
        self.assertEqual(1, len(daemon.children()), daemon.log())


class Passed(unittest.TestCase):
    """A file that passes its trial is not tried again until it changes."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="uma-models-")))
        self.path = self.folder / "one.gguf"
        self.path.write_bytes(uma.TINY.read_bytes())
        self.daemon = uma.Daemon(self.path, config="kv: {cells: 2048}\n", environment={"UMA_DEBUG": "1"})
        self.addCleanup(self.daemon.kill)

    def trials(self):
        return self.daemon.log().count("is tried in a separate process")

    def start(self):
        self.daemon.start().wait_ready()
        with self.daemon.client() as client:
            self.assertEqual("eos", client.generate("hi", max_tokens=2).last["event"])

    def test_after_a_restart(self):
        for _ in range(3):
            self.start()
            self.assertEqual(0, self.daemon.terminate())
        self.assertEqual(1, self.trials())

    def test_until_the_file_changes(self):
        self.start()
        self.assertEqual(0, self.daemon.terminate())
        file = GgufFile(uma.TINY.read_bytes())
        file.set_text("general.name", "another")
        self.path.write_bytes(bytes(file))
        self.start()
        self.assertEqual(2, self.trials())
        self.assertEqual(0, self.daemon.terminate())


def without_heads(file):
    """Makes the library end the process when it plans a computation."""
    file.set_number("clip.vision.attention.head_count", 0)


def of_larger_pictures(file):
    """Makes the library end the process when it encodes a picture, because the file has positions for smaller ones."""
    file.set_number("clip.vision.image_size", 400)


class RefusedProjectors(BadModelsTest):
    MODELS = uma.BUILD / "models"

    def pair(self, name, change):
        file = GgufFile((self.MODELS / "mmproj-tiny-register.gguf").read_bytes())
        change(file)
        (self.folder / f"mmproj-{name}.gguf").write_bytes(bytes(file))
        self.add(name, uma.TINY_REGISTER.read_bytes())

    def test_by_a_process_that_ends(self):
        self.pair("seer", without_heads)
        message = self.assert_refused("seer", "this projector's file is refused: a process that tried to load it was ended by signal")
        self.assertNotIn(str(self.folder), message)
        tries = self.daemon.log().count("is refused until it changes")
        self.assertEqual(message, self.assert_refused("seer", "signal"))
        self.assertEqual(tries, self.daemon.log().count("is refused until it changes"), "the verdict is kept")
        self.assertEqual("eos", self.ask("tiny").last["event"])

    def test_by_a_process_that_ends_while_it_encodes(self):
        self.pair("seer", of_larger_pictures)
        self.assert_refused("seer", "this projector's file is refused: a process that tried to load it was ended by signal")
        self.assertEqual("eos", self.ask("tiny").last["event"])

    def test_until_the_file_changes(self):
        self.pair("seer", without_heads)
        self.assert_refused("seer", "signal")
        self.pair("seer", lambda file: None)
        uma.until(lambda: self.load("seer")["event"] == "ack", "a load that failed is tried again")
        self.assertEqual("eos", self.ask("seer").last["event"])
        self.assertEqual(1, sum("mmproj-seer" in line for line in self.daemon.log().splitlines() if "is refused until" in line))


class Crashing(BadModelsTest):
    """A model that passes its trial and ends the daemon, as a device driver might. A crash during the load leaves a mark; here
    the test writes the mark and causes the crash."""

    make_daemon = staticmethod(SupervisedDaemon)

    def crash_while_loading(self, identity, number=signal.SIGABRT):
        (self.daemon.data_dir / "model_loads").write_text(identity + "\n")
        self.daemon.crash(number)
        # The first load of the next daemon is marked too, until it ends.
        self.daemon.wait_ready()
        return self.connect()

    def identity_of(self, name):
        """The daemon's identity of a file: that of the newest verdict, since this file was tried last."""
        before = set(self.trials())
        self.assertEqual("ack", self.load(name)["event"])
        (line,) = set(self.trials()) - before
        return "load:" + line.split()[0]

    def setUp(self):
        super().setUp()
        file = GgufFile(uma.TINY.read_bytes())
        file.set_text("general.name", "another")
        self.add("other", bytes(file))
        self.identity = self.identity_of("other")

    def test_two_crashes_in_a_row_refuse_it(self):
        client = self.crash_while_loading(self.identity)
        client = self.crash_while_loading(self.identity)
        self.assert_refused("other", "the daemon crashed 2 times while loading it", client)
        self.assertEqual("eos", self.ask("tiny", client).last["event"])
        self.assertEqual(0, self.daemon.terminate())

    def test_a_load_between_them_clears_it(self):
        client = self.crash_while_loading(self.identity)
        self.assertEqual("eos", self.ask("other", client).last["event"])
        client = self.crash_while_loading(self.identity)
        self.assertEqual("eos", self.ask("other", client).last["event"])
        self.assertEqual(0, self.daemon.terminate())

    def test_a_kill_condemns_nothing(self):
        for _ in range(3):
            client = self.crash_while_loading(self.identity, signal.SIGKILL)
        self.assertEqual("eos", self.ask("other", client).last["event"])
        self.assertEqual(0, self.daemon.terminate())


if __name__ == "__main__":
    unittest.main()
