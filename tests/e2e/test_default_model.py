"""The model that ships with umad: it is found without a flag, remembers names, and answers as through libllama alone."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import uma
from cli import run_cli

SHIPPED = uma.BUILD / "share" / "uma-serve" / "models" / "uma-tiny.gguf"

# Five turns about other things, between the name and the question about it.
SMALL_TALK = ("What is uma-serve?", "What is 4 + 9?", "Count to 5", "What is the capital of France?", "Thank you")


class WithoutAModelFlag(uma.DaemonTest):
    model = None

    def test_it_serves_the_shipped_model(self):
        model = {model["name"]: model for model in self.client.models()}["uma-tiny"]
        self.assertTrue(model["has_chat_template"])
        self.assertGreaterEqual(model["train_tokens"], 2048)

    def test_a_name_told_five_turns_earlier(self):
        """Many sessions at once, each with another name: KV of another session would give a wrong name."""
        def talk(name):
            with self.daemon.client() as client:
                session = client.create_session()
                for turn in (f"My name is {name}.", *SMALL_TALK):
                    client.generate(turn, session_id=session)
                return client.generate("What is my name?", session_id=session)

        names = ("Ada", "Linus", "Grace", "Ken", "Barbara", "Dennis", "Radia", "Edsger", "Hedy", "Alan", "Frances", "Niklaus")
        for name, reply in zip(names, uma.parallel(*[lambda name=name: talk(name) for name in names])):
            self.assertEqual(f"Your name is {name}.", reply.text)

    def test_a_fork_knows_and_a_rewound_session_does_not(self):
        session = self.client.create_session()
        self.client.generate("Hello", session_id=session)
        self.client.generate("My name is Ada.", session_id=session)
        fork = self.client.call(type="fork_session", session_id=session)["session_id"]
        self.assertEqual("ack", self.client.call(type="rewind_session", session_id=session, turn=0)["event"])
        self.assertEqual("Your name is Ada.", self.client.generate("What is my name?", session_id=fork).text)
        self.assertNotIn("Ada", self.client.generate("What is my name?", session_id=session).text)

    def test_the_chat_of_uma_cli(self):
        lines = "\n".join(("My name is Ada.", *SMALL_TALK, "What is my name?")) + "\n"
        result = run_cli("--socket", self.daemon.socket_path, "chat", given=lines.encode())
        self.assertEqual(0, result.returncode, result.stderr)
        replies = result.stdout.decode().splitlines()
        self.assertEqual("4 + 9 = 13.", replies[2])
        self.assertIn("I don't know", replies[4])
        self.assertEqual("Your name is Ada.", replies[-1])


class QuantizedKeysAndValues(unittest.TestCase):
    def test_a_name_is_known_five_turns_later(self):
        for types in ("q8_0", "q8_0/q4_0", "q5_1"):
            with self.subTest(types), uma.Daemon(None, config=f"kv: {{type: {types}}}\n") as daemon, daemon.client() as client:
                session = client.create_session()
                for turn in ("My name is Ada.", *SMALL_TALK):
                    client.generate(turn, session_id=session)
                reply = client.generate("What is my name?", session_id=session)
                self.assertEqual(("Your name is Ada.", "hot"), (reply.text, reply.usage["tier"]))


class Places(unittest.TestCase):
    def test_an_installation_finds_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            installed = subprocess.run(["cmake", "--install", str(uma.BUILD), "--prefix", folder], capture_output=True, text=True,
                                       timeout=uma.WAIT_S, check=False)
            self.assertEqual(0, installed.returncode, installed.stderr)
            umad = pathlib.Path(folder) / "bin" / "umad"
            daemon = uma.Daemon(None)
            daemon.arguments[0] = str(umad)
            with daemon:
                self.assertIn(f"loading {folder}/share/uma-serve/models/uma-tiny.gguf", daemon.log())
            # If the model is missing, the message names the place.
            shutil.rmtree(pathlib.Path(folder) / "share")
            result = subprocess.run([str(umad), "--socket", f"{folder}/s", "--data-dir", f"{folder}/d"], capture_output=True, text=True,
                                    timeout=uma.WAIT_S, env=uma.clean_environment(), check=False)
            self.assertEqual(1, result.returncode)
            self.assertIn(f"{folder}/share/uma-serve/models/uma-tiny.gguf", result.stderr)

    def test_a_name_means_a_model_in_the_users_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            models = pathlib.Path(folder) / "uma" / "models"
            models.mkdir(parents=True)
            shutil.copy(uma.TINY, models / "mine.gguf")
            with uma.Daemon("mine", environment={"XDG_DATA_HOME": folder}) as daemon, daemon.client() as client:
                self.assertEqual("mine", client.models()[0]["name"])
                self.assertEqual(1536, client.models()[0]["vocabulary"])


class Examination(unittest.TestCase):
    takes_long = True

    def test_umad_answers_as_libllama_does(self):
        """Runs tools/train/evaluate.py on a few of the development items. It fails if umad's answers differ from those of the
        library alone, or from one run to the next."""
        result = subprocess.run([sys.executable, "-B", str(uma.ROOT / "tools" / "train" / "evaluate.py"), "--part", "development",
                                 "--model", str(SHIPPED), "--most", "1"], capture_output=True, text=True, timeout=20 * uma.WAIT_S,
                                check=False)
        self.assertEqual(0, result.returncode, result.stdout + result.stderr)


if __name__ == "__main__":
    unittest.main()
