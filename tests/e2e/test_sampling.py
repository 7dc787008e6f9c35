"""Samplers beside those of OpenAI's API, and the sampling that a model brings along: by its card, its file or its family."""

import json
import pathlib
import subprocess
import tempfile

import gguf_file
import test_http
import uma

LOOP = {"max_tokens": 24, "ignore_eos": True, "logit_bias": {"700": 100}}
HOT = {"temperature": 1.5, "max_tokens": 20, "ignore_eos": True}


class Samplers(test_http.HttpTest):
    def tokens(self, prompt="the cat", **fields):
        reply = self.client.generate(prompt, **fields)
        self.assertEqual("eos", reply.last["event"], reply.last)
        return [event["token_id"] for event in reply.tokens]

    def test_dry_ends_a_loop_unless_a_text_breaks_it(self):
        self.assertEqual({700}, set(self.tokens(**LOOP)))
        dry = {"dry_multiplier": 100, "dry_base": 10}
        self.assertGreater(len(set(self.tokens(**LOOP, **dry))), 1)
        word = self.client.generate("the cat", **{**LOOP, "max_tokens": 2}).text.split()[0]
        self.assertEqual({700}, set(self.tokens(**LOOP, **dry, dry_sequence_breakers=[word])))
        self.assertEqual({700}, set(self.tokens(**LOOP, **dry, dry_penalty_last_n=0)))
        self.assertEqual({700}, set(self.tokens(**LOOP, **dry, dry_allowed_length=100)))

    def test_penalties_count_the_wanted_number_of_tokens(self):
        penalty = {"frequency_penalty": 2, "presence_penalty": 2, "repeat_penalty": 100}
        self.assertEqual({700}, set(self.tokens(**LOOP, **penalty, repeat_last_n=0)))
        self.assertGreater(len(set(self.tokens(**LOOP, **penalty, repeat_last_n=1))), 1)

    def test_cuts_that_leave_one_token_need_no_chance(self):
        greedy = self.tokens(**{**HOT, "temperature": 0})
        self.assertEqual(greedy, self.tokens(**HOT, mirostat=2, mirostat_tau=0, seed=1))
        for alone in ({"typical_p": 1e-9}, {"xtc_probability": 1, "xtc_threshold": 0}):
            with self.subTest(**alone):
                first = self.tokens(**HOT, **alone, seed=1)
                self.assertEqual(first, self.tokens(**HOT, **alone, seed=2))
                self.assertNotEqual(first, greedy)
                self.assertEqual(greedy, self.tokens(**{**HOT, "temperature": 0}, **alone))

    def test_a_seed_gives_the_same_text_again(self):
        for sampler in ({"mirostat": 1}, {"mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.5}, {"typical_p": 0.7},
                        {"xtc_probability": 0.5, "xtc_threshold": 0.01}, {"dry_multiplier": 1, "repeat_last_n": -1, "frequency_penalty": 1}):
            with self.subTest(**sampler):
                first = self.tokens(**HOT, **sampler, seed=5)
                self.assertEqual(first, self.tokens(**HOT, **sampler, seed=5))
                self.assertNotEqual(first, self.tokens(**HOT, **sampler, seed=6))

    def test_a_fork_and_each_choice_begin_anew(self):
        mirostat = {**HOT, "mirostat": 2, "mirostat_tau": 2, "mirostat_eta": 1, "dry_multiplier": 1}
        session = self.client.create_session()
        self.client.generate("the cat", session_id=session, **mirostat, seed=8)
        fork = self.client.call(type="fork_session", session_id=session)["session_id"]
        texts = [self.client.generate("and", session_id=one, **mirostat, seed=9).text for one in (session, fork)]
        self.assertEqual(*texts)
        body = {"prompt": "the cat", "max_tokens": 20, "temperature": 1.5, "seed": 3, "mirostat": 2, "mirostat_tau": 2, "mirostat_eta": 1}
        status, both = self.request("POST", "/v1/completions", {**body, "n": 2})
        self.assertEqual(200, status, both)
        for choice in both["choices"]:
            status, alone = self.request("POST", "/v1/completions", {**body, "seed": 3 + choice["index"]})
            self.assertEqual(choice["text"], alone["choices"][0]["text"])

    def test_every_api_takes_them(self):
        self.assertEqual(200, self.chat(mirostat=2, mirostat_tau=3, top_k=-1)[0])
        status, answer = self.chat(mirostat=3)
        self.assertEqual((400, "mirostat"), (status, answer["error"]["param"]))
        status, answer = self.chat(uma={"xtc_threshold": 2})
        self.assertEqual((400, "uma.xtc_threshold"), (status, answer["error"]["param"]))
        status, answer = self.request("POST", "/v1/responses", {"input": "x", "uma": {"dry_base": 0}})
        self.assertEqual((400, "uma.dry_base"), (status, answer["error"]["param"]))
        connection = self.connect()
        connection.request("POST", "/api/generate", json.dumps({"prompt": "x", "stream": False, "options": {"typical_p": 0}}).encode())
        answer = connection.getresponse()
        self.assertEqual(400, answer.status)
        self.assertIn("options.typical_p", json.loads(answer.read())["error"])

    def test_the_top_level_of_a_completion_is_enough(self):
        body = {"prompt": "the cat", "max_tokens": 8, "temperature": 1.5}
        answers = [self.request("POST", "/v1/completions", {**body, **more})[1]["choices"][0]["text"]
                   for more in ({"top_k": 1}, {"uma": {"top_k": 1}}, {"top_k": 50, "uma": {"top_k": 1}}, {"temperature": 0})]
        self.assertEqual(1, len(set(answers)), answers)


class Defaults(test_http.HttpTest):
    """A model whose card, file and family have different opinions, and models that lack some of them."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="uma-sampling-")
        cls.addClassCleanup(cls.folder.cleanup)
        folder = pathlib.Path(cls.folder.name)
        file = gguf_file.GgufFile(uma.TINY_CHAT.read_bytes())
        file.set_text("general.name", "Phi 4 Mini Instruct")
        (folder / "family.gguf").write_bytes(bytes(file))
        file.set_float("general.sampling.temp", 0.7)
        file.set_number("general.sampling.top_k", 30)
        file.set_number("general.sampling.penalty_last_n", 2**32 - 1)  # out of range for an unsigned number
        file.set_text("general.sampling.min_p", "much")
        file.set_float("general.sampling.xtc_probability", float("nan"))
        (folder / "states.gguf").write_bytes(bytes(file))
        (folder / "carded.gguf").write_bytes(bytes(file))
        (folder / "models.yaml").write_text(f"carded: {{path: {folder}/carded.gguf, temperature: 0, mirostat: 2, dry_sequence_breakers: [';']}}\n")
        cls.config = f"models: {folder}/models.yaml\nmodels_dirs: [{folder}]\n"
        super().setUpClass()

    def props(self, model):
        status, answer = self.request("GET", f"/props?model={model}")
        self.assertEqual(200, status, answer)
        return answer["sampling"], answer["default_generation_settings"]["params"]

    def test_the_nearest_source_counts(self):
        family = {"top_p": {"value": 0.95, "source": "family"}, "family": "Phi-4"}
        sampling, params = self.props("family")
        self.assertEqual({"temperature": {"value": 0.8, "source": "family"}, **family}, sampling)
        self.assertEqual((0.8, 0.95, 0, 64), tuple(params[name] for name in ("temperature", "top_p", "top_k", "repeat_last_n")))
        sampling, params = self.props("states")
        stated = {"top_k": {"value": 30, "source": "file"}, **family}
        self.assertEqual({"temperature": {"value": 0.7, "source": "file"}, **stated}, sampling)
        sampling, params = self.props("carded")
        self.assertEqual({"temperature": {"value": 0, "source": "card"}, "mirostat": {"value": 2, "source": "card"},
                          "dry_sequence_breakers": {"value": [";"], "source": "card"}, **stated}, sampling)
        self.assertEqual((0, 2, 5), tuple(params[name] for name in ("temperature", "mirostat", "mirostat_tau")))
        by_name = {model["name"]: model["sampling"] for model in self.client.models()}
        self.assertEqual(sampling, by_name["carded"])

    def test_requests_follow_them_and_go_first(self):
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12}

        def said(model, **fields):
            status, answer = self.request("POST", "/v1/chat/completions", {**body, "model": model, **fields})
            self.assertEqual(200, status, answer)
            return answer["choices"][0]["message"]["content"]
        self.assertEqual(said("carded"), said("carded", temperature=0))
        self.assertEqual(said("states", seed=3), said("family", seed=3, temperature=0.7, top_k=30))
        self.assertEqual(said("states", seed=3, temperature=1.5, top_k=0, top_p=1), said("family", seed=3, temperature=1.5, top_k=0, top_p=1))
        self.assertNotEqual(said("carded"), said("carded", temperature=2, mirostat_tau=9, mirostat=2))

    def test_the_command_line_shows_them_and_they_stay_when_the_model_is_loaded(self):
        self.client.generate("hello", model="states", max_tokens=1)
        shown = subprocess.run([uma.BUILD / "bin" / "uma-cli", "--socket", self.daemon.socket_path, "models"], capture_output=True,
                               text=True, timeout=uma.WAIT_S, check=True).stdout
        line = next(line for line in shown.splitlines() if line.startswith("states "))
        self.assertIn("ready", line)
        self.assertIn("temperature 0.7 (file), top_p 0.95 (family), top_k 30 (file)", line)
