"""Models that other programs have stored in a home folder: one list, and each answers by the name that its program uses."""

import hashlib
import json
import pathlib
import shutil
import tempfile
import unittest

import cli
import test_ollama
import uma

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODELS = uma.BUILD / "models"


class Home:
    """A home folder as the programs leave it. Its models are those of the build."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="uma-home-"))
        self.environment = {"HOME": self.folder, "UMA_MODEL_STORES": "on", "XDG_CACHE_HOME": None, "XDG_CONFIG_HOME": None, "XDG_DATA_HOME": None,
                            "HF_HOME": None, "HF_HUB_CACHE": None, "OLLAMA_MODELS": self.folder / ".ollama/models", "LLAMA_CACHE": None}

    def write(self, path, content):
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
        return target

    def put_in_hub(self, repository, name, source):
        content = source.read_bytes()
        place = ".cache/huggingface/hub/models--" + repository.replace("/", "--")
        self.write(f"{place}/blobs/{hashlib.sha256(content).hexdigest()}", content)
        self.write(f"{place}/refs/main", COMMIT)
        link = self.folder / place / "snapshots" / COMMIT / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../blobs/{hashlib.sha256(content).hexdigest()}")

    def put_in_lm_studio(self, repository, name, source):
        self.write(f".lmstudio/models/{repository}/{name}", source.read_bytes())

    def put_in_llama_cpp(self, repository, name, source):
        self.write(f".cache/llama.cpp/{repository.replace('/', '_')}_{name}", source.read_bytes())
        self.write(f".cache/llama.cpp/manifest={repository.replace('/', '=')}=latest.json", "{}")

    def put_in_ollama(self, name, source, **layers):
        """`layers`: further layers by their kind."""
        entries = []
        for kind, content in {"model": source.read_bytes(), **layers}.items():
            content = content if isinstance(content, bytes) else content.encode()
            digest = hashlib.sha256(content).hexdigest()
            self.write(f".ollama/models/blobs/sha256-{digest}", content)
            entries.append({"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)})
        model, tag = name.split(":")
        self.write(f".ollama/models/manifests/registry.ollama.ai/library/{model}/{tag}", json.dumps({"schemaVersion": 2, "layers": entries}))

    def files(self):
        """Every file with its time and the digest of its content."""
        return {path: (path.lstat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None)
                for place in (".cache", ".lmstudio", ".ollama") for path in (self.folder / place).rglob("*") if not path.is_dir()}


class Stores(test_ollama.OllamaTest):
    @classmethod
    def setUpClass(cls):
        cls.home = Home()
        cls.addClassCleanup(shutil.rmtree, cls.home.folder, ignore_errors=True)
        cls.environment = cls.home.environment
        cls.home.put_in_hub("owner/Talker-GGUF", "talker-Q8_0.gguf", uma.TINY_CHAT)
        cls.home.put_in_ollama("talker:1b", uma.TINY_CHAT)
        cls.home.put_in_lm_studio("maker/Reader-GGUF", "reader-F32.gguf", uma.TINY_REGISTER)
        cls.home.put_in_lm_studio("maker/Reader-GGUF", "mmproj-reader-F32.gguf", MODELS / "mmproj-tiny-register.gguf")
        cls.home.put_in_llama_cpp("some/Caller-GGUF", "caller-F32.gguf", uma.TINY_SCRIPTED)
        cls.home.put_in_ollama("pirate:latest", MODELS / "tiny-qwen3.gguf", system="You are a pirate.", params='{"temperature": 0.25, "num_ctx": 512}')
        cls.home.put_in_hub("owner/Half", "half-Q4_0.gguf", uma.TINY)
        (cls.home.folder / ".cache/huggingface/hub/models--owner--Half/snapshots" / COMMIT / "half-Q4_0.gguf").unlink()
        (cls.home.folder / ".cache/huggingface/hub/models--owner--Half/snapshots" / COMMIT / "half-Q4_0.gguf").symlink_to("../../blobs/gone")
        cls.before = cls.home.files()
        super().setUpClass()

    def by_name(self):
        return {model["name"]: model for model in self.client.models()}

    def test_there_is_one_list_without_copies(self):
        models = self.by_name()
        stores = {name: model["store"] for name, model in models.items() if "store" in model}
        self.assertEqual({"talker-Q8_0": "Hugging Face", "reader-F32": "LM Studio", "caller-F32": "llama.cpp", "pirate:latest": "Ollama",
                          "half-Q4_0": "Hugging Face"}, stores)
        self.assertIn("talker:1b", models["talker-Q8_0"]["aliases"])
        self.assertTrue(models["reader-F32"]["reads_images"])
        self.assertIn("no such file", models["half-Q4_0"]["problem"])

    def test_each_answers_by_the_name_that_its_program_uses(self):
        for name in ("talker:1b", "pirate", "pirate:latest"):
            answer = self.whole("/api/chat", model=name, messages=test_ollama.HELLO, options=test_ollama.SHORT)
            self.assertTrue(answer["message"]["content"], name)
        for name in ("owner/Talker-GGUF:Q8_0", "hf.co/owner/Talker-GGUF:Q8_0", "talker-q8_0", "maker/reader-gguf", "reader-F32",
                     "some/Caller-GGUF:F32", "caller-F32"):
            status, answer = self.request("POST", "/v1/chat/completions", {"model": name, "messages": test_ollama.HELLO, "max_tokens": 4})
            self.assertEqual(200, status, (name, answer))
            self.assertGreater(answer["usage"]["completion_tokens"], 0, name)

    def test_ollamas_settings_count(self):
        self.assertEqual({"value": 0.25, "source": "card"}, self.by_name()["pirate:latest"]["sampling"]["temperature"])
        plain = self.whole("/api/chat", model="pirate", messages=[{"role": "system", "content": ""}, *test_ollama.HELLO], options=test_ollama.SHORT)
        pirate = self.whole("/api/chat", model="pirate", messages=test_ollama.HELLO, options=test_ollama.SHORT)
        self.assertGreater(pirate["prompt_eval_count"], plain["prompt_eval_count"], "the system message is in the prompt")
        self.assertEqual(512, self.by_name()["pirate:latest"]["sequence_tokens_max"])

    def test_a_model_that_is_fetched_meanwhile_answers(self):
        self.home.put_in_ollama("late:latest", MODELS / "tiny-gpt-oss.gguf")
        self.addCleanup(shutil.rmtree, self.home.folder / ".ollama/models/manifests/registry.ollama.ai/library/late")
        self.assertTrue(self.whole("/api/generate", model="late", prompt="Hello", options=test_ollama.SHORT)["done"])

    def test_nothing_is_written_there(self):
        status, answer = self.request("DELETE", "/api/delete", {"model": "talker:1b"})
        self.assertNotEqual(200, status, answer)
        self.whole("/api/generate", model="talker:1b", prompt="Hello", options=test_ollama.SHORT)
        self.assertEqual(self.before, {path: entry for path, entry in self.home.files().items() if path in self.before})

    def test_the_client_says_where_a_model_comes_from(self):
        text = cli.run_cli("--socket", self.daemon.socket_path, "models").stdout.decode()
        self.assertIn("(from Ollama)", text)
        self.assertIn("owner/Talker-GGUF:Q8_0", text)

    def test_they_can_be_left_out(self):
        with uma.Daemon(uma.TINY, "--model-stores", "off", environment={**self.home.environment, "UMA_MODEL_STORES": None}) as daemon, daemon.client() as client:
            self.assertFalse([model for model in client.models() if "store" in model])

    def test_a_stored_model_can_be_the_default(self):
        with uma.Daemon("talker:1b", environment=self.home.environment) as daemon, daemon.client() as client:
            self.assertEqual("talker-Q8_0", client.models()[0]["name"])


if __name__ == "__main__":
    unittest.main()
