"""Many models behind one daemon: they are loaded when they are used and freed when memory is short, and their sessions stay."""

import http.client
import json
import os
import pathlib
import re
import signal
import tempfile
import threading
import time
import unittest

import gguf_file
import uma

NAMES = ["a", "b", "c"]


class ModelsTest(unittest.TestCase):
    """A folder with copies of one model under several names, and a daemon that serves them."""

    names = NAMES
    settings = ""
    cards = ""  # content of models.yaml

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="uma-models-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name in self.names:
            self.add(name)
        (self.folder / "models.yaml").write_text(self.cards)
        self.daemon = uma.Daemon(self.folder / f"{self.names[0]}.gguf", "--kv-cells", "2048", config=f"models: {self.folder}/models.yaml\n"
                                 f"models_dirs: [{self.folder}]\n{self.settings}")
        self.daemon.__enter__()
        self.addCleanup(self.daemon.__exit__, None, None, None)
        self.client = self.connect()

    def add(self, name, source=uma.TINY):
        # A copy under another name is another model: it computes the same as the first and takes as much memory.
        (self.folder / f"{name}.gguf").write_bytes(source.read_bytes())

    def connect(self):
        client = uma.Client(self.daemon.socket_path)
        self.addCleanup(client.close)
        return client

    def state_of(self, name):
        return {model["name"]: model["state"] for model in self.client.models()}[name]

    def loads(self):
        return self.client.metrics()["model_loads_total"]


class OnDemand(ModelsTest):
    def test_a_model_is_loaded_by_its_first_request_and_stays(self):
        self.assertEqual("unloaded", self.state_of("b"))
        reply = self.client.generate("hello", model="b", max_tokens=4, progress=True)
        self.assertEqual("eos", reply.last["event"])
        self.assertIn("loading", [event.get("stage") for event in reply.events])
        self.assertEqual("ready", self.state_of("b"))
        before = self.loads()
        again = self.client.generate("hello", model="b", max_tokens=4)
        self.assertEqual(reply.text, again.text)
        self.assertEqual(before, self.loads())
        self.assertEqual("unloaded", self.state_of("c"))

    def test_who_names_none_means_the_default_one(self):
        self.client.generate("hello", max_tokens=2)
        self.assertEqual("unloaded", self.state_of("b"))
        self.assertEqual("a", self.client.models()[0]["name"])

    def test_many_first_requests_are_one_load(self):
        clients = [self.connect() for _ in range(8)]
        before = self.loads()
        replies = uma.parallel(*(lambda client=client: client.generate("hi", model="c", max_tokens=3) for client in clients))
        self.assertEqual({"eos"}, {reply.last["event"] for reply in replies})
        self.assertEqual(before + 1, self.loads())

    def test_an_unknown_name_is_answered_with_the_nearest(self):
        reply = self.client.generate("hi", model="bb", max_tokens=3)
        self.assertEqual("E_MODEL_001", reply.code)
        self.assertIn("b", reply.message)

    def test_a_session_is_of_one_model(self):
        session = self.client.create_session(model="b")
        self.assertEqual("b", self.client.session(session)["model"])
        self.assertEqual("eos", self.client.generate("hello", session_id=session, max_tokens=3).last["event"])
        self.assertEqual("E_PROTO_003", self.client.generate("x", session_id=session, model="c", max_tokens=3).code)

    def test_a_file_that_is_no_model_is_listed_and_refused(self):
        (self.folder / "bad.gguf").write_bytes(b"GGUF" + bytes(200))
        (self.folder / "cut.gguf").write_bytes(uma.TINY.read_bytes()[:10_000])
        self.reload()
        for name in ("bad", "cut"):
            self.assertEqual("failed", self.state_of(name))
            reply = self.client.generate("hi", model=name, max_tokens=3)
            self.assertEqual("E_MODEL_002", reply.code)
        self.assertEqual("eos", self.client.generate("hi", max_tokens=3).last["event"], "the others are served")

    def reload(self):
        lines = self.daemon.log().count("models are registered")
        os.kill(self.daemon.process.pid, signal.SIGHUP)
        uma.until(lambda: self.daemon.log().count("models are registered") > lines, "the registry was read again")

    def test_hup_finds_new_cards(self):
        (self.folder / "models.yaml").write_text("d: {path: a.gguf}\n")
        self.assertEqual("E_MODEL_001", self.client.generate("hi", model="d", max_tokens=3).code)
        self.reload()
        self.assertEqual("eos", self.client.generate("hi", model="d", max_tokens=3).last["event"])


class Names(ModelsTest):
    """Names that other programs and registries have for the models of this daemon, which was started without --model."""

    names = ("Llama-3.2-1B-Instruct-Q4_K_M", "Llama-3.2-3B-Instruct-Q4_K_M", "b", "c")

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="uma-models-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name in self.names:
            self.add(name, uma.TINY_CHAT)
        self.daemon = uma.Daemon(None, "--http", "127.0.0.1:0", "--kv-cells", "2048", config=f"models_dirs: [{self.folder}]\n")
        self.daemon.__enter__()
        self.addCleanup(self.daemon.__exit__, None, None, None)
        self.port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", self.daemon.log()).group(1))

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=uma.WAIT_S)
        self.addCleanup(connection.close)
        connection.request(method, path, body and json.dumps(body).encode())
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def asked(self, model):
        status, answer = self.request("POST", "/v1/chat/completions", {
            "model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]})
        return answer["model"] if status == 200 else answer["error"]["message"]

    def test_another_vendors_name_finds_a_model_among_several(self):
        first = self.asked("gpt-5")
        self.assertEqual(self.names[0], first, "the first one, as none is loaded but the one that ships with umad")
        self.assertEqual(first, self.asked("claude-sonnet-4-5"))
        self.assertIn("models.unknown: default", self.asked("no-such-model"))
        status, answer = self.request("POST", "/v1/embeddings", {"model": "text-embedding-3-small", "input": "x"})
        self.assertEqual(404, status)
        self.assertIn("no model that makes vectors of texts is registered", answer["error"]["message"])

    def test_names_of_registries_find_the_file(self):
        for name in ("llama3.2:3b-instruct-q4_K_M", "llama3.2:3b", "library/llama3.2:3b",
                     "hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M"):
            self.assertEqual(self.names[1], self.asked(name), name)
        self.assertIn("no model", self.asked("llama3.2"), "it may be either")

    def test_a_conversation_takes_the_model_of_its_first_response(self):
        conversation = self.request("POST", "/v1/conversations", {"items": [{"role": "user", "content": "I am Ann."}]})[1]["id"]
        body = {"conversation": conversation, "input": "Hello", "max_output_tokens": 4}
        status, first = self.request("POST", "/v1/responses", {**body, "model": "b"})
        self.assertEqual((200, "b"), (status, first.get("model")), first)
        self.assertEqual("b", self.request("POST", "/v1/responses", body)[1]["model"], "no model is named")
        self.assertEqual("b", self.request("POST", "/v1/responses", {**body, "model": "gpt-5"})[1]["model"])
        status, other = self.request("POST", "/v1/responses", {**body, "model": "c"})
        self.assertEqual((400, "model"), (status, other["error"]["param"]), other)

    def test_a_response_is_continued_by_another_model(self):
        first = self.request("POST", "/v1/responses", {"model": "b", "input": "Hello", "max_output_tokens": 4})[1]
        more = {"input": "More", "max_output_tokens": 4, "previous_response_id": first["id"]}
        status, second = self.request("POST", "/v1/responses", {**more, "model": "c"})
        self.assertEqual((200, "c"), (status, second.get("model")), second)
        self.assertGreater(second["usage"]["input_tokens"], first["usage"]["input_tokens"])
        self.assertEqual("b", self.request("POST", "/v1/responses", more)[1]["model"], "the first one stays as it was")

    def test_entries_say_what_a_model_reads_and_takes(self):
        entry = self.request("GET", "/v1/models")[1]["data"][0]
        self.assertEqual({"input": ["text"], "output": ["text"]}, entry["modalities"])
        self.assertEqual(["text"], entry["architecture"]["input_modalities"])
        self.assertIn("tools", entry["supported_parameters"])
        self.assertIn(entry["status"]["value"], ("loaded", "loading", "unloaded"))


class NamedTemplates(unittest.TestCase):
    """A file with a template for tools beside its default one."""

    def test_the_template_for_tools_is_used_with_tools(self):
        with tempfile.TemporaryDirectory(prefix="uma-models-") as folder:
            file = gguf_file.GgufFile(uma.TINY_CHAT.read_bytes())
            file.set_text("tokenizer.chat_template.tool_use", "TOOLS {{ tools | length }}{% for m in messages %} {{ m.content }}{% endfor %}")
            file.set_text("tokenizer.chat_template.rag", "DOCUMENTS {% for d in documents %}{{ d.text }}{% endfor %}")
            path = pathlib.Path(folder) / "templates.gguf"
            path.write_bytes(bytes(file))
            with uma.Daemon(path, "--http", "127.0.0.1:0", "--kv-cells", "2048") as daemon:
                port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", daemon.log()).group(1))

                def written(path="/apply-template", **fields):
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=uma.WAIT_S)
                    self.addCleanup(connection.close)
                    connection.request("POST", path, json.dumps({"messages": [{"role": "user", "content": "Hello"}], **fields}).encode())
                    answer = json.loads(connection.getresponse().read())
                    return answer.get("prompt") or answer.get("usage", answer)
                tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
                self.assertTrue(written().startswith("<|im_start|>"))
                self.assertEqual("TOOLS 1 Hello", written(tools=tools))
                self.assertEqual("DOCUMENTS fact", written(chat_template="rag", documents=[{"text": "fact"}]))
                self.assertTrue(written(tools=tools, chat_template="default").startswith("<|im_start|>"))
                self.assertEqual("chat_template", written(chat_template="other")["error"]["param"])
                plain = written("/v1/chat/completions", max_tokens=1)["prompt_tokens"]
                self.assertNotEqual(plain, written("/v1/chat/completions", max_tokens=1, tools=tools)["prompt_tokens"])


class Defaults(ModelsTest):
    """Values of a card, for requests that do not state them."""

    names = ["a", "chat"]
    cards = ("a: {path: a.gguf, temperature: 100, deadline_ms: 60000}\n"
             "chat: {path: chat.gguf, system: 'Be brief.', speculation: off, thinking: false}\n")

    def add(self, name, source=uma.TINY):
        super().add(name, uma.TINY_CHAT if name == "chat" else source)

    def test_a_requests_own_temperature_wins(self):
        texts = {self.client.generate("hello", model="a", max_tokens=12).text for _ in range(3)}
        self.assertEqual(3, len(texts), "at this temperature every text is another one")
        own = {self.client.generate("hello", model="a", max_tokens=12, temperature=0).text for _ in range(3)}
        self.assertEqual(1, len(own))

    def test_the_system_message_is_for_conversations_without_one(self):
        def prompt_tokens(*messages):
            reply = self.client.generate(model="chat", messages=list(messages), max_tokens=1)
            self.assertEqual("eos", reply.last["event"], reply.last)
            return reply.usage["prompt_tokens"]

        user = {"role": "user", "content": "Hello"}
        brief = {"role": "system", "content": "Be brief."}
        self.assertEqual(prompt_tokens(brief, user), prompt_tokens(user))
        self.assertLess(prompt_tokens({"role": "system", "content": "B"}, user), prompt_tokens(user))
        raw = self.client.generate("Hello", model="chat", max_tokens=1).usage["prompt_tokens"]
        self.assertLess(raw, prompt_tokens(user))

    def test_a_session_begins_with_it(self):
        def prompt_tokens(**fields):
            session = self.client.create_session(model="chat", **fields)
            reply = self.client.generate("Hello", session_id=session, max_tokens=1)
            self.assertEqual("eos", reply.last["event"], reply.last)
            return reply.usage["prompt_tokens"]

        self.assertEqual(prompt_tokens(system="Be brief."), prompt_tokens())
        self.assertLess(prompt_tokens(system="B"), prompt_tokens())
        self.assertLess(prompt_tokens(mode="text"), prompt_tokens(system="B"))


class Unloading(ModelsTest):
    def test_a_session_goes_on_after_its_model_was_unloaded(self):
        session = self.client.create_session(model="b", mode="text")
        text = "word " * 120
        first = self.client.generate(text, session_id=session, max_tokens=5)
        self.assertEqual("eos", first.last["event"])
        self.assertEqual("ack", uma.until(lambda: self.unloaded("b"), "b is unloaded")["event"])
        self.assertEqual("unloaded", self.state_of("b"))
        again = self.client.generate("more", session_id=session, max_tokens=5)
        self.assertEqual("eos", again.last["event"])
        self.assertEqual("warm", again.usage["tier"])
        self.assertGreater(again.usage["reused_tokens"], 100)

    def unloaded(self, name):
        reply = self.client.call(type="unload_model", model=name)
        return reply if reply["event"] == "ack" else None

    def test_what_is_in_use_is_not_unloaded(self):
        request = self.client.start(type="generate", prompt="long", model="b", max_tokens=1500, ignore_eos=True)
        self.client.wait_token(request)
        refused = self.client.call(type="unload_model", model="b")
        self.assertEqual("E_SESSION_002", refused["code"])
        self.client.call(type="cancel", target=request)
        self.client.finish(request)

    def test_load_and_unload_by_name(self):
        self.assertEqual("ack", self.client.call(type="load_model", model="c")["event"])
        self.assertEqual("ready", self.state_of("c"))
        self.assertEqual("E_MODEL_001", self.client.call(type="load_model", model="nobody")["code"])
        self.assertEqual("E_SESSION_002", self.client.call(type="unload_model", model="b")["code"])

    def test_weights_that_were_kept_are_not_read_again(self):
        self.client.generate("hi", model="b", max_tokens=3)
        uma.until(lambda: self.unloaded("b"), "b is unloaded")
        before = self.daemon.log().count("b.gguf")
        self.client.generate("hi", model="b", max_tokens=3)
        self.assertEqual(before + 1, self.daemon.log().count("b.gguf"), "an unloaded model is read from its file")


class LittleMemory(ModelsTest):
    """No memory for states, except for those that are being moved."""

    # A state is read even where this machine would compute its tokens sooner.
    settings = "slots: 4\nkv: {warm_bytes_max: 0}\nscheduler: {reproducible: on}\n"

    def test_states_that_memory_has_no_room_for_go_to_disk_when_their_model_goes(self):
        sessions = [self.client.create_session(model="b", mode="text") for _ in range(4)]
        for number, session in enumerate(sessions):
            text = f"story {number} " + "word " * 280
            self.assertEqual("eos", self.client.generate(text, session_id=session, max_tokens=3).last["event"])
        uma.until(lambda: self.client.call(type="unload_model", model="b")["event"] == "ack", "b is unloaded")
        numbers = self.client.metrics()
        self.assertEqual(0, numbers["warm_bytes"])
        self.assertEqual(4, numbers["cold_sessions"])
        for session in sessions:
            reply = self.client.generate("more", session_id=session, max_tokens=3)
            self.assertEqual("cold", reply.usage["tier"])
            self.assertGreater(reply.usage["reused_tokens"], 256)


class Short(ModelsTest):
    """Memory for two of three models. Without prefill lanes and with one thread a model takes the same memory on every
    machine."""

    settings = ("slots: 4\nthreads: 1\nscheduler: {lanes: off}\nkv: {warm_bytes_max: 1M}\n"
                "pool: {memory_bytes_max: 16M, min_loaded_s: 0.3, maintenance_s: 0.2}\n")

    def test_models_take_turns_and_nobody_fails(self):
        for name in NAMES:
            self.client.generate("hi", model=name, max_tokens=2)
        self.assertEqual(2, self.client.metrics()["models_loaded"])
        sessions = {name: self.client.create_session(model=name, mode="text", on_full="shift") for name in NAMES}
        loads_before = self.loads()
        turns = 30
        rounds = 3

        def use(name):
            with uma.Client(self.daemon.socket_path) as client:
                return {client.generate("and ", session_id=sessions[name], max_tokens=3).last["event"] for _ in range(turns)}

        # The third model waits until one of the others is idle.
        for _ in range(rounds):
            self.assertEqual([{"eos"}] * 3, uma.parallel(*(lambda name=name: use(name) for name in NAMES)))
        self.assertGreaterEqual(self.loads(), loads_before + rounds)
        numbers = self.client.metrics()
        self.assertLessEqual(numbers["memory_reserved_bytes"], numbers["memory_usable_bytes"])
        self.assertGreater(numbers["memory_decisions_total"], 0)
        for name in NAMES:
            self.assertEqual(rounds * turns, self.client.session(sessions[name])["turns"])

    def test_background_work_without_end_gives_way_to_a_person(self):
        ended = threading.Event()
        replies = []

        def work(name):
            with uma.Client(self.daemon.socket_path) as client:
                while not ended.is_set():
                    reply = client.generate("on and ", model=name, max_tokens=20, **{"class": "background"})
                    replies.append((name, reply.last["event"]))

        # Each model has two requests at a time, so that neither is ever idle by itself.
        workers = [threading.Thread(target=work, args=(name,)) for name in ("a", "a", "b", "b")]
        for worker in workers:
            worker.start()
        try:
            uma.until(lambda: {"a", "b"} == {name for name, _ in replies}, "both are at work")
            self.assertEqual("eos", self.client.generate("hello", model="c", max_tokens=5).last["event"])
            before = len(replies)
            uma.until(lambda: {"a", "b"} == {name for name, _ in replies[before:]}, "the work goes on")
        finally:
            ended.set()
            for worker in workers:
                worker.join()
        self.assertEqual({"eos"}, {event for _, event in replies})

    def test_what_can_never_fit_is_refused_with_the_numbers(self):
        small = uma.Daemon(self.folder / "a.gguf", config="kv: {cells: 2048}\npool: {memory_bytes_max: 1M}\n")
        self.addCleanup(small.kill)
        small.start()
        self.assertEqual(1, small.process.wait(uma.WAIT_S), "the model that it is to serve can never be loaded")
        self.assertIn("but the limit is 1.0 MiB", small.log())


class FurtherWorkers(ModelsTest):
    settings = "slots: 1\npool: {min_loaded_s: 0.2, maintenance_s: 0.2}\n"
    cards = "b: {path: b.gguf, workers_max: 2}\nc: {path: c.gguf, workers_max: auto, weights: replicated}\n"

    def workers_of(self, name, client=None):
        return {model["name"]: model.get("workers") for model in (client or self.client).models()}[name]

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "one core computes for one worker")
    def test_a_queue_brings_a_worker_and_quiet_takes_it_back(self):
        for name in ("b", "c"):
            with self.subTest(name):
                alone = self.client.generate("once", model=name, max_tokens=400).text
                self.assertEqual(1, self.workers_of(name))
                replies = []

                def ask(client, name=name, replies=replies):
                    end = time.monotonic() + uma.WAIT_S
                    while self.workers_of(name, client) == 1 and time.monotonic() < end:
                        replies.append(client.generate("once", model=name, max_tokens=400).text)

                clients = [self.connect() for _ in range(4)]
                uma.parallel(*(lambda client=client: ask(client) for client in clients))
                self.assertEqual(2, self.workers_of(name), "requests waited for a place")
                self.assertEqual({alone}, set(replies))
                reserved = self.client.metrics()["memory_reserved_bytes"]
                uma.until(lambda name=name: self.workers_of(name) == 1, "the further worker goes")
                uma.until(lambda reserved=reserved: self.client.metrics()["memory_reserved_bytes"] < reserved, "with its memory")
                self.assertEqual(alone, self.client.generate("once", model=name, max_tokens=400).text)


    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "one core computes for one worker")
    def test_texts_that_wait_bring_a_worker(self):
        self.add("e", uma.BUILD / "models" / "tiny-embed.gguf")
        (self.folder / "models.yaml").write_text(self.cards + "e: {path: e.gguf, workers_max: 2}\n")
        os.kill(self.daemon.process.pid, signal.SIGHUP)
        uma.until(lambda: "e" in [model["name"] for model in self.client.models()], "the model is registered")
        texts = [f"{number} " + "a cat sat on the mat " * 5 for number in range(64)]
        alone = self.client.call(type="embed", model="e", texts=texts)["embeddings"]
        self.assertEqual(1, self.workers_of("e"))

        def ask(client):
            end = time.monotonic() + uma.WAIT_S
            while self.workers_of("e", client) == 1 and time.monotonic() < end:
                for vector, right in zip(client.call(type="embed", model="e", texts=texts)["embeddings"], alone, strict=True):
                    self.assertLess(max(abs(a - b) for a, b in zip(vector, right, strict=True)), 1e-4)

        clients = [self.connect() for _ in range(6)]
        uma.parallel(*(lambda client=client: ask(client) for client in clients))
        self.assertEqual(2, self.workers_of("e"))
        uma.until(lambda: self.workers_of("e") == 1, "the further worker goes")


class Hundreds(ModelsTest):
    names = ["used-0", "used-1", "used-2"]

    def setUp(self):
        super().setUp()
        for i in range(497):
            os.link(self.folder / "used-1.gguf", self.folder / f"unused-{i:03}.gguf")
        os.kill(self.daemon.process.pid, signal.SIGHUP)
        uma.until(lambda: re.search(r"50\d models are registered", self.daemon.log()), "500 models are registered")

    def test_only_what_is_used_takes_memory(self):
        for name in self.names:
            self.assertEqual("eos", self.client.generate("hi", model=name, max_tokens=3).last["event"])
        numbers = self.client.metrics()
        self.assertGreaterEqual(numbers["models_registered"], 500)
        self.assertEqual(3, numbers["models_loaded"])
        states = [model["state"] for model in self.client.models()]
        self.assertEqual(3, states.count("ready"))
        self.assertEqual(len(states) - 3, states.count("unloaded"))


if __name__ == "__main__":
    unittest.main()
