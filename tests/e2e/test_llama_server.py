"""llama-server's paths, and filling gaps by all APIs, on a model with marks for gaps and on one without."""

import json
import pathlib
import subprocess
import tempfile

import test_http
import uma

TEXTS = ("the cat and the dog", "", "  two  blanks\n", "äöü 語 \U0001f600", "a" * 2000)
GAP = {"input_prefix": "the cat", "input_suffix": "a dog", "n_predict": 8, "temperature": 0}


class LlamaServerTest(test_http.HttpTest):
    def ok(self, path, body=None):
        status, answer = self.request("GET" if body is None else "POST", path, body)
        self.assertEqual(200, status, answer)
        return answer

    def refused(self, path, body):
        """The error of a refusal with 400."""
        status, answer = self.request("POST", path, body)
        self.assertEqual(400, status, answer)
        return answer["error"]


class Tokens(LlamaServerTest):
    model = uma.TINY_CHAT
    config = "models: {unknown: refuse}\n"  # else the only model answers to every name

    def test_texts_become_tokens_and_texts_again(self):
        for text in TEXTS:
            tokens = self.ok("/tokenize", {"content": text})["tokens"]
            self.assertEqual(text, self.ok("/detokenize", {"tokens": tokens})["content"])
            pieces = self.ok("/tokenize", {"content": text, "with_pieces": True})["tokens"]
            self.assertEqual(tokens, [piece["id"] for piece in pieces])
            parts = [piece["piece"].encode() if isinstance(piece["piece"], str) else bytes(piece["piece"]) for piece in pieces]
            self.assertEqual(text, b"".join(parts).decode())

    def test_special_tokens_on_request(self):
        plain = self.ok("/tokenize", {"content": "the cat"})["tokens"]
        begun = self.ok("/tokenize", {"content": "the cat", "add_special": True})["tokens"]
        self.assertEqual(1, begun[0], "BOS")
        self.assertLessEqual(len(begun), len(plain) + 1)
        mark = self.ok("/tokenize", {"content": "<|im_end|>"})["tokens"]
        self.assertEqual(1, len(mark))
        self.assertEqual("<|im_end|>", self.ok("/detokenize", {"tokens": mark})["content"])
        self.assertGreater(len(self.ok("/tokenize", {"content": "<|im_end|>", "parse_special": False})["tokens"]), 1)

    def test_a_template_is_applied_as_a_chat_does(self):
        messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "Hello"}]
        prompt = self.ok("/apply-template", {"messages": messages})["prompt"]
        self.assertTrue(prompt.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"), prompt)
        tokens = self.ok("/tokenize", {"content": prompt, "add_special": True})["tokens"]
        raw = self.ok("/v1/completions", {"prompt": prompt, "max_tokens": 1})
        self.assertEqual(len(tokens), raw["usage"]["prompt_tokens"], "a client may send it as its own prompt")

    def test_marks_in_a_raw_prompt_are_control_tokens(self):
        marked = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        count = len(self.ok("/tokenize", {"content": marked})["tokens"])
        letters = len(self.ok("/tokenize", {"content": marked, "parse_special": False})["tokens"])
        self.assertGreater(letters, count + 10)

        def evaluated(prompt, **fields):
            own = self.ok("/completion", {"prompt": prompt, "n_predict": 1, **fields})["tokens_evaluated"]
            openai = self.ok("/v1/completions", {"prompt": prompt, "max_tokens": 1, **fields})["usage"]["prompt_tokens"]
            ollama = self.ok("/api/generate", {"prompt": prompt, "raw": True, "stream": False, "options": {"num_predict": 1}, **fields})
            self.assertEqual({own}, {own, openai, ollama["prompt_eval_count"]})
            return own
        self.assertEqual(count + 1, evaluated(marked))
        self.assertEqual(count + 1, evaluated("<s>" + marked), "BOS appears once")
        self.assertAlmostEqual(letters + 1, evaluated(marked, parse_special=False), delta=1)
        under = self.ok("/v1/completions", {"prompt": marked, "max_tokens": 1, "uma": {"parse_special": False}})
        self.assertGreater(under["usage"]["prompt_tokens"], count + 10)

    def test_a_completion_has_llama_servers_form(self):
        whole = self.ok("/completion", {"prompt": "the cat", "n_predict": 4, "temperature": 0})
        self.assertEqual((4, True, "limit"), (whole["tokens_predicted"], whole["stop"], whole["stop_type"]), whole)
        tokens = self.ok("/tokenize", {"content": "the cat", "add_special": True})["tokens"]
        again = self.ok("/completion", {"prompt": tokens, "n_predict": 4, "temperature": 0})
        self.assertEqual(whole["content"], again["content"])
        self.assertIn("prompt", self.refused("/completion", {"prompt": ["a", "b"]})["message"])

    def test_what_is_wrong_is_named(self):
        for path, body, field in (("/tokenize", {}, "content"), ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
                                  ("/detokenize", {"tokens": [10**6]}, "tokens"), ("/apply-template", {"messages": []}, "messages")):
            self.assertEqual(field, self.refused(path, body)["param"], path)
        status, answer = self.request("GET", "/props?model=another")
        self.assertEqual((404, "E_MODEL_001"), (status, answer["error"]["code"]))

    def test_gaps_need_marks(self):
        for path, body in (("/infill", GAP), ("/v1/completions", {"prompt": "a", "suffix": "b"})):
            error = self.refused(path, body)
            self.assertEqual("E_MODEL_003", error["code"])
            self.assertIn("gaps", error["message"])
        connection = self.connect()
        connection.request("POST", "/api/generate", json.dumps({"prompt": "a", "suffix": "b"}).encode())
        answer = connection.getresponse()
        self.assertEqual(400, answer.status)
        self.assertIn("gaps", json.loads(answer.read())["error"])
        self.assertNotIn("insert", self.ok("/v1/models")["data"][0]["capabilities"])

    def test_properties(self):
        props = self.ok("/props")
        self.assertEqual(self.ok("/v1/models")["data"][0]["context_length"], props["default_generation_settings"]["n_ctx"])
        self.assertEqual(4, props["total_slots"])
        self.assertEqual({"vision": False, "audio": False}, props["modalities"])
        self.assertIn("<|im_start|>", props["chat_template"])
        self.assertEqual(("tiny-chat", False), (props["model_path"], props["is_sleeping"]))


class Sleeping(LlamaServerTest):
    model = uma.TINY_CHAT

    def test_properties_wake_no_model(self):
        self.ok("/api/chat", {"messages": [], "keep_alive": 0})
        for _ in range(2):
            props = self.ok("/props")
            self.assertEqual((True, ""), (props["is_sleeping"], props["chat_template"]))
            self.assertGreater(props["default_generation_settings"]["n_ctx"], 0)
        self.assertEqual("unloaded", self.ok("/v1/models")["data"][0]["state"])
        self.ok("/tokenize", {"content": "a"})
        self.assertFalse(self.ok("/props")["is_sleeping"])


class Gaps(LlamaServerTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.model = pathlib.Path(folder.name) / "coder.gguf"
        subprocess.run([uma.MAKE_MODEL, "--preset", "tiny-code", "--out", cls.model], check=True, timeout=uma.WAIT_S)
        super().setUpClass()

    def lines(self, path, body):
        connection = self.connect()
        connection.request("POST", path, json.dumps(body).encode())
        answer = connection.getresponse()
        text = answer.read().decode()
        self.assertEqual(200, answer.status, text)
        return [json.loads(line.removeprefix("data: ")) for line in text.split("\n") if line.startswith("data: {")]

    def test_the_same_gap_by_every_api(self):
        filled = self.ok("/infill", GAP)
        self.assertEqual((True, "limit", 8), (filled["stop"], filled["stop_type"], filled["tokens_predicted"]))
        self.assertNotEqual("", filled["content"])
        completed = self.ok("/v1/completions", {"prompt": "the cat", "suffix": "a dog", "max_tokens": 8, "temperature": 0})
        self.assertEqual(filled["content"], completed["choices"][0]["text"])
        self.assertEqual(filled["tokens_evaluated"], completed["usage"]["prompt_tokens"])
        options = {"num_predict": 8, "temperature": 0}
        generated = self.ok("/api/generate", {"prompt": "the cat", "suffix": "a dog", "stream": False, "options": options})
        self.assertEqual(filled["content"], generated["response"])
        events = self.lines("/infill", {**GAP, "stream": True})
        self.assertEqual([False] * (len(events) - 1) + [True], [event["stop"] for event in events])
        self.assertEqual(filled["content"], "".join(event["content"] for event in events))

    def test_the_parts_of_the_prompt_have_marks(self):
        count = lambda text: len(self.ok("/tokenize", {"content": text})["tokens"])
        for mark in ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"):
            self.assertEqual(1, count(mark), mark)
        plain = self.ok("/infill", {**GAP, "n_predict": 1})["tokens_evaluated"]
        self.assertEqual(4 + count("the cat") + count("a dog"), plain)
        begun = self.ok("/infill", {**GAP, "n_predict": 1, "prompt": "and"})["tokens_evaluated"]
        self.assertEqual(plain + count("and"), begun)
        files = [{"filename": "a.h", "text": "one two"}, {"text": "three"}]
        with_files = self.ok("/infill", {**GAP, "n_predict": 1, "input_extra": files})["tokens_evaluated"]
        added = 1 + count("myproject\n") + 1 + count("a.h\none two\n") + 1 + count("tmp\nthree\n") + 1 + count("filename\n")
        self.assertEqual(plain + added, with_files)
        spelled = self.ok("/infill", {**GAP, "n_predict": 1, "input_prefix": "<|fim_middle|>"})["tokens_evaluated"]
        self.assertGreater(spelled, 4 + 1 + count("a dog"), "a mark that a text spells is text")

    def test_a_prompt_can_be_computed_in_advance(self):
        first = self.ok("/infill", {**GAP, "input_prefix": "count the words " * 100, "n_predict": 0})
        self.assertEqual("", first["content"])
        second = self.ok("/infill", {**GAP, "input_prefix": "count the words " * 100})
        self.assertEqual(first["tokens_evaluated"] - 1, second["tokens_cached"])

    def test_programs_see_what_the_model_can_do(self):
        self.assertIn("insert", self.ok("/v1/models")["data"][0]["capabilities"])
        self.assertIn("insert", self.ok("/api/show", {"model": "coder"})["capabilities"])

    def test_what_is_wrong_is_named(self):
        for path, body, field in (("/v1/completions", {"prompt": [5], "suffix": "b"}, "suffix"),
                                  ("/v1/completions", {"prompt": ["a", "b"], "suffix": "b"}, "suffix"),
                                  ("/infill", {**GAP, "input_extra": [{}]}, "input_extra[0].text"),
                                  ("/infill", {**GAP, "n_probs": 3}, "n_probs")):
            self.assertEqual(field, self.refused(path, body)["param"], path)
        error = self.refused("/infill", {**GAP, "input_prefix": "word " * 5000})
        self.assertEqual("context_length_exceeded", error["code"])
