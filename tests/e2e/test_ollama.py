"""Ollama's API on both ports, with requests as its clients send them."""

import base64
import json
import re
import unittest

import pictures
import test_embeddings
import test_http
import test_tools
import uma
import vision

HELLO = [{"role": "user", "content": "Hello"}]
SHORT = {"num_predict": 8, "temperature": 0}


class OllamaTest(test_http.HttpTest):
    flags = (*test_http.HttpTest.flags, "--ollama", "127.0.0.1:0")

    def checked(self, value):
        return value  # none of OpenAI's shapes

    def lines(self, path, **body):
        """The objects of a stream."""
        connection = self.connect()
        connection.request("POST", path, json.dumps(body).encode())
        answer = connection.getresponse()
        text = answer.read().decode()
        self.assertEqual((200, "application/x-ndjson"), (answer.status, answer.getheader("Content-Type")), text)
        self.assertTrue(text.endswith("\n"))
        lines = [json.loads(line) for line in text[:-1].split("\n")]
        self.assertEqual([False] * (len(lines) - 1) + [True], [line["done"] for line in lines])
        return lines

    def whole(self, path, **body):
        status, answer = self.request("POST", path, {"stream": False, **body})
        self.assertEqual(200, status, answer)
        return answer

    def refused(self, status, path, **body):
        """The text of the error."""
        got, answer = self.request("POST", path, body)
        self.assertEqual((status, ["error"]), (got, list(answer)), answer)
        return answer["error"]


STRICT = "models: {unknown: refuse}\n"  # else the only model answers to every name


class Models(OllamaTest):
    model = uma.TINY_CHAT
    config = STRICT

    def test_programs_find_the_server(self):
        ports = {self.port, int(re.search(r"ollama +http://127\.0\.0\.1:(\d+)", self.daemon.log()).group(1))}
        self.assertEqual(2, len(ports))
        for port in ports:
            for method, path in (("GET", "/"), ("HEAD", "/"), ("GET", "/api/version"), ("HEAD", "/api/version"), ("HEAD", "/api/tags"),
                                 ("GET", "/v1/models")):
                connection = test_http.http.client.HTTPConnection("127.0.0.1", port, timeout=uma.WAIT_S)
                self.addCleanup(connection.close)
                connection.request(method, path)
                answer = connection.getresponse()
                text = answer.read().decode()
                self.assertEqual(200, answer.status, path)
                self.assertEqual("Ollama is running" if (method, path) == ("GET", "/") else text, text)

    def test_the_version_is_new_enough_for_its_clients(self):
        _, answer = self.request("GET", "/api/version")
        numbers = re.sub(r"^v|-.*", "", answer["version"]).split(".")  # as Open WebUI reads it
        self.assertGreaterEqual(tuple(map(int, numbers)), (0, 13, 4))  # Codex; GitHub Copilot: 0.6.4
        self.assertRegex(answer["version"], r"^\d+\.\d+\.\d+-uma\.\d+\.\d+\.\d+$")  # also a version by semver.org

    def test_models_are_listed_and_shown(self):
        _, tags = self.request("GET", "/api/tags")
        name = tags["models"][0]["model"]
        self.assertEqual("tiny-chat:latest", name)
        self.assertRegex(tags["models"][0]["digest"], "^[0-9a-f]{64}$")
        self.assertGreater(tags["models"][0]["size"], 1000)
        again = self.request("GET", "/api/tags")[1]
        self.assertEqual(tags, again)
        for field in ("model", "name"):
            shown = self.whole("/api/show", **{field: name})
            architecture = shown["model_info"]["general.architecture"]
            self.assertEqual(tags["models"][0]["details"], shown["details"])
            self.assertEqual(tags["models"][0]["modified_at"], shown["modified_at"])
            self.assertIn("tools", shown["capabilities"])
            self.assertGreater(shown["model_info"]["general.parameter_count"], 1000)
            self.assertGreater(shown["model_info"][f"{architecture}.embedding_length"], 1)
            self.assertEqual(f"num_ctx {shown['model_info'][f'{architecture}.context_length']}", shown["parameters"])
        self.assertEqual(200, self.chat(model=name)[0])  # GitHub Copilot goes on with OpenAI's API
        self.assertIn("model not found", self.refused(404, "/api/show", model="none:1b"))

    def test_loaded_models_are_listed_and_can_be_unloaded(self):
        loaded = self.whole("/api/generate", model="tiny-chat")
        self.assertEqual((True, "load", ""), (loaded["done"], loaded["done_reason"], loaded["response"]))
        _, ps = self.request("GET", "/api/ps")
        (model,) = ps["models"]
        self.assertEqual("tiny-chat:latest", model["name"])
        self.assertRegex(model["expires_at"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        window = self.whole("/api/show", model="tiny-chat")["parameters"]
        self.assertEqual(f"num_ctx {model['context_length']}", window)
        for _ in range(2):  # also if there is nothing to unload
            answer = self.whole("/api/chat", model="tiny-chat:latest", messages=[], keep_alive=0)
            self.assertEqual("unload", answer["done_reason"])
        self.assertEqual([], self.request("GET", "/api/ps")[1]["models"])
        self.assertEqual("load", self.whole("/api/chat", model="tiny-chat", keep_alive="5m")["done_reason"])

    def test_models_are_neither_made_nor_uploaded(self):
        for path in ("/api/create", "/api/push"):
            status, answer = self.request("POST", path, {"model": "x"})
            self.assertEqual(501, status, path)
            self.assertIn("/api/pull", answer["error"])


class Chat(OllamaTest):
    model = uma.TINY_CHAT
    config = STRICT

    def test_a_stream_says_what_the_whole_says(self):
        whole = self.whole("/api/chat", model="tiny-chat", messages=HELLO, options=SHORT)
        lines = self.lines("/api/chat", model="tiny-chat", messages=HELLO, options=SHORT)
        self.assertEqual(whole["message"]["content"], "".join(line["message"]["content"] for line in lines))
        self.assertEqual({"tiny-chat"}, {line["model"] for line in lines})
        self.assertEqual(whole["done_reason"], lines[-1]["done_reason"])
        for field in ("prompt_eval_count", "eval_count"):
            self.assertEqual(whole[field], lines[-1][field])
        for field in ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"):
            self.assertIsInstance(lines[-1][field], int)
        self.assertGreater(lines[-1]["total_duration"], 0)

    def test_the_same_text_as_by_openais_api(self):
        _, other = self.chat()
        mine = self.whole("/api/chat", messages=HELLO, options={**SHORT, "top_k": 0, "top_p": 1})
        self.assertEqual(other["choices"][0]["message"]["content"], mine["message"]["content"])
        self.assertEqual(other["usage"]["prompt_tokens"], mine["prompt_eval_count"])

    def test_a_prompt_is_a_message(self):
        chat = self.whole("/api/chat", messages=[{"role": "system", "content": "Be brief."}, *HELLO], options=SHORT)
        prompt = self.whole("/api/generate", system="Be brief.", prompt="Hello", options=SHORT)
        self.assertEqual(chat["message"]["content"], prompt["response"])
        self.assertEqual(chat["prompt_eval_count"], prompt["prompt_eval_count"])
        self.assertEqual([], prompt["context"])
        lines = self.lines("/api/generate", system="Be brief.", prompt="Hello", options=SHORT)
        self.assertEqual(prompt["response"], "".join(line["response"] for line in lines))
        raw = self.whole("/api/generate", raw=True, prompt="Hello", options=SHORT)
        self.assertLess(raw["prompt_eval_count"], prompt["prompt_eval_count"])

    def test_a_reply_follows_its_schema(self):
        schema = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["age"],
                  "additionalProperties": False}
        for seed in range(3):
            answer = self.whole("/api/chat", messages=HELLO, format=schema, options={"seed": seed, "num_predict": 100})
            self.assertEqual(["age"], list(json.loads(answer["message"]["content"])))

    def test_options_have_their_effect(self):
        cut = self.whole("/api/chat", messages=HELLO, options={"num_predict": 3, "num_gpu": 9, "unknown": {}})
        self.assertEqual(("length", 3), (cut["done_reason"], cut["eval_count"]))
        one, other = (self.whole("/api/chat", messages=HELLO, options={"seed": 5, "num_predict": 12}) for _ in range(2))
        self.assertEqual(one["message"], other["message"])

    def test_a_window_that_is_too_large_is_a_warning(self):
        for tokens, is_warned in ((100, False), (1_000_000, True)):
            connection = self.connect()
            body = {"messages": HELLO, "stream": False, "options": {**SHORT, "num_ctx": tokens}}
            connection.request("POST", "/api/chat", json.dumps(body).encode())
            answer = connection.getresponse()
            answer.read()
            self.assertEqual(200, answer.status)
            self.assertEqual(is_warned, "num_ctx" in (answer.getheader("x-uma-warning") or ""))

    def test_a_prompt_is_not_cut(self):
        text = self.refused(400, "/api/chat", messages=[{"role": "user", "content": "word " * 20_000}], truncate=True)
        self.assertIn("prompt is too long", text)

    def test_what_is_wrong_is_named(self):
        for field, path, body in (
                ("messages[0].role", "/api/chat", {"messages": [{"role": "robot", "content": ""}]}),
                ("options.temperature", "/api/chat", {"messages": HELLO, "options": {"temperature": -1}}),
                ("format", "/api/chat", {"messages": HELLO, "format": "xml"}),
                ("system", "/api/generate", {"prompt": "a", "suffix": "b", "system": "c"}),
                ("context", "/api/generate", {"prompt": "a", "context": [1]}),
                ("keep_alive", "/api/generate", {"prompt": "a", "keep_alive": "soon"})):
            self.assertIn(f'"{field}"', self.refused(400, path, **body))
        self.assertIn("model not found", self.refused(404, "/api/chat", model="none:1b", messages=HELLO))
        self.assertIn("not JSON", self.request("POST", "/api/chat", b"{")[1]["error"])
        self.assertEqual(405, self.request("GET", "/api/chat")[0])


class Calls(OllamaTest):
    model = uma.TINY_CHAT
    history = [
        {"role": "user", "content": "Weather in Köln?"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Köln", "days": 1}}}]},
        {"role": "tool", "tool_name": "weather", "content": "rain"},
    ]

    def check(self, call):
        self.assertEqual("weather", call["function"]["name"])
        self.assertEqual({"city", "days"}, set(call["function"]["arguments"]))
        self.assertIn(call["function"]["arguments"]["days"], range(1, 10))
        self.assertTrue(call["id"])

    def test_a_call_has_an_object_and_comes_in_one_line(self):
        choice = {"type": "function", "function": {"name": "weather"}}
        for seed in range(3):
            body = {"messages": self.history[:1], "tools": [test_tools.WEATHER], "tool_choice": choice,
                    "options": {"seed": seed, "num_predict": 400}}
            answer = self.whole("/api/chat", **body)
            (call,) = answer["message"]["tool_calls"]
            self.check(call)
            self.assertEqual("stop", answer["done_reason"])
            calls = [line["message"]["tool_calls"] for line in self.lines("/api/chat", **body) if "tool_calls" in line["message"]]
            self.assertEqual(1, len(calls))
            self.check(calls[0][0])

    def test_the_model_hears_of_calls_and_results(self):
        options = {"num_predict": 2}
        question = self.whole("/api/chat", messages=self.history[:1], options=options)["prompt_eval_count"]
        with_tools = self.whole("/api/chat", messages=self.history[:1], tools=[test_tools.WEATHER], options=options)["prompt_eval_count"]
        whole = self.whole("/api/chat", messages=self.history, tools=[test_tools.WEATHER], options=options)["prompt_eval_count"]
        self.assertLess(question, with_tools)
        self.assertLess(with_tools, whole)

    def test_thinking_can_be_asked_for(self):
        for think in (True, False, "low", None):
            answer = self.whole("/api/chat", messages=HELLO, think=think, options=SHORT)
            self.assertEqual("assistant", answer["message"]["role"])


class Embeddings(OllamaTest):
    model = test_embeddings.EMBED
    config = test_embeddings.EXACT
    flags = ("--http", "127.0.0.1:0", "--ollama", "127.0.0.1:0")

    def test_texts_become_vectors(self):
        _, other = self.request("POST", "/v1/embeddings", {"input": ["the dog", "a cat"]})
        answer = self.whole("/api/embed", model="tiny-embed", input=["the dog", "a cat"])
        self.assertEqual([item["embedding"] for item in other["data"]], answer["embeddings"])
        self.assertEqual(other["usage"]["prompt_tokens"], answer["prompt_eval_count"])
        self.assertEqual(answer["embeddings"][:1], self.whole("/api/embed", input="the dog")["embeddings"])
        self.assertEqual(answer["embeddings"][0], self.whole("/api/embeddings", prompt="the dog")["embedding"])

    def test_without_a_text_there_is_no_vector(self):
        self.assertEqual([], self.whole("/api/embed", input=[])["embeddings"])
        self.assertEqual([], self.whole("/api/embeddings", prompt="")["embedding"])

    def test_long_texts_are_cut_unless_that_is_forbidden(self):
        text = "word " * 5000
        self.assertEqual(1, len(self.whole("/api/embed", input=text)["embeddings"]))
        self.refused(400, "/api/embed", input=text, truncate=False)

    def test_the_model_says_what_it_is_for(self):
        self.assertEqual(["embedding"], self.whole("/api/show", model="tiny-embed")["capabilities"])
        self.refused(400, "/api/chat", model="tiny-embed", messages=HELLO)


class Images(OllamaTest):
    model = vision.MODEL
    flags = (*vision.FLAGS, "--http", "127.0.0.1:0", "--ollama", "127.0.0.1:0")

    def test_images_are_read(self):
        image = base64.b64encode(pictures.RED).decode()
        self.assertIn("vision", self.whole("/api/show")["capabilities"])
        blind = self.whole("/api/chat", messages=[{"role": "user", "content": "What?"}], options=SHORT)
        answer = self.whole("/api/chat", messages=[{"role": "user", "content": "What?", "images": [image]}], options=SHORT)
        self.assertGreater(answer["prompt_eval_count"], blind["prompt_eval_count"])
        prompt = self.whole("/api/generate", prompt="What?", images=[image], options=SHORT)
        self.assertEqual(answer["prompt_eval_count"], prompt["prompt_eval_count"])
        self.refused(400, "/api/chat", messages=[{"role": "user", "content": "What?", "images": ["!"]}])


if __name__ == "__main__":
    unittest.main()
