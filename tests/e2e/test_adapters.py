"""LoRA adapters: requests with different adapters share a daemon, and each gets the text that it gets alone."""

import http.client
import json
import pathlib
import re
import signal
import struct
import subprocess
import tempfile

import uma
from gguf_file import GgufFile

PROMPT = "was told about a little girl who lived in a house near the woods, and her grandmother. " * 3
OPTIONS = {"max_tokens": 24, "ignore_eos": True}
SETS = {"base": [], "a": [{"name": "a"}], "b": [{"name": "b", "scale": 1}], "half": [{"id": 0, "scale": 0.5}],
        "both": [{"name": "a"}, {"name": "b"}]}


def make_adapter(path, seed, *flags):
    subprocess.run([uma.MAKE_MODEL, "--adapter", "8", "--seed", str(seed), *flags, "--out", path], check=True, timeout=uma.WAIT_S)


class AdaptersTest(uma.DaemonTest):
    """A daemon with one model that has two adapters, `a` and `b`, and whatever else a class adds to its card."""

    flags = ("--kv-cells", "8192", "--slots", "6")

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="uma-adapters-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.model = cls.folder / "base.gguf"
        cls.model.write_bytes(uma.TINY.read_bytes())
        make_adapter(cls.folder / "a.gguf", 2)
        make_adapter(cls.folder / "b.gguf", 3)
        adapters = {"a": "{path: a.gguf, scale: 1}", "b": "b.gguf", **cls.more_adapters()}
        lines = "".join(f"    {name}: {value}\n" for name, value in adapters.items())
        (cls.folder / "models.yaml").write_text(f"base:\n  path: base.gguf\n  aliases: [alias, 'as:a']\n  preload: true\n  adapters:\n{lines}")
        cls.config = f"models: {cls.folder}/models.yaml\nscheduler: {{reproducible: on}}\n"
        super().setUpClass()

    @classmethod
    def more_adapters(cls):
        return {}

    def say(self, lora=None, text=PROMPT, **fields):
        reply = self.client.generate(text, **({} if lora is None else {"lora": lora}), **{**OPTIONS, **fields})
        self.assertEqual("length", reply.reason, reply.last)
        return reply


class Texts(AdaptersTest):
    flags = (*AdaptersTest.flags, "--http", "127.0.0.1:0")

    def test_requests_at_once_get_the_texts_that_they_get_alone(self):
        alone = {name: self.say(lora).text for name, lora in SETS.items()}
        self.assertEqual(len(SETS), len(set(alone.values())), alone)
        before = self.client.metrics()
        ids = {name: self.client.start(type="generate", prompt=PROMPT, lora=lora, **OPTIONS) for name, lora in SETS.items()}
        together = {name: self.client.finish(request).text for name, request in ids.items()}
        self.assertEqual(alone, together)
        after = self.client.metrics()
        self.assertEqual(len(SETS) - 1, after["adapter_requests_total"] - before["adapter_requests_total"])
        self.assertGreater(after["adapter_changes_total"], before["adapter_changes_total"])

    def test_a_scale_of_zero_is_the_model_itself(self):
        self.assertEqual(self.say().text, self.say([{"name": "a", "scale": 0}]).text)

    def test_a_prefix_is_reused_only_with_the_same_adapters(self):
        session = self.client.create_session(mode="text")
        first = self.say([{"name": "a"}], "A text of its own. " + PROMPT, session_id=session)
        self.assertEqual(0, first.usage["reused_tokens"])
        same = self.say([{"name": "a"}], " And then", session_id=session)
        self.assertGreater(same.usage["reused_tokens"], 0)
        for lora in ([], [{"name": "b"}], [{"name": "a", "scale": 0.5}], [{"name": "a"}]):
            changed = self.say(lora, " But then", session_id=session)
            self.assertEqual((0, "diverged"), (changed.usage["reused_tokens"], changed.usage["reuse_reason"]), lora)

    def test_a_fork_with_another_adapter_is_computed_again(self):
        session = self.client.create_session(mode="text")
        self.say([{"name": "a"}], session_id=session)
        other = self.client.call(type="fork_session", session_id=session)["session_id"]
        self.assertEqual(0, self.say([{"name": "b"}], " But", session_id=other).usage["reused_tokens"])

    def test_a_session_keeps_no_adapter(self):
        self.assert_error(self.client.call(type="create_session", model="base:a"), "E_PROTO_003", "does not keep")
        self.assert_error(self.client.call(type="create_session", model="alias:a"), "E_PROTO_003", "does not keep")
        made = self.client.call(type="create_session", mode="text", model="as:a")
        self.assertEqual("base", made["model"], "an alias may end like an adapter")
        session = self.client.create_session(mode="text", model="alias")
        expected = self.say([{"name": "a"}], "One day").text
        self.assertEqual(expected, self.say(None, "One day", session_id=session, model="base:a").text)

    def test_wrong_choices(self):
        for lora, parts in (([{"name": "none"}], ('no adapter "none"', "it has a, b")), ([{"id": 2}], ("id 2",)),
                            ([{"name": "a"}, {"id": 0}], ("chosen twice",)), ([{}], ("lora[0].name",)),
                            ([{"name": "a", "scale": 1e9}], ("lora[0].scale",)), ("a", ("lora",))):
            with self.subTest(lora=lora):
                self.assert_error(self.client.generate(PROMPT, lora=lora, **OPTIONS), "E_PROTO_003", *parts)

    def test_http(self):
        port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", self.daemon.log()).group(1))

        def request(method, path, body=None):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=uma.WAIT_S)
            self.addCleanup(connection.close)
            connection.request(method, path, json.dumps(body) if body else None)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

        def text(**fields):
            body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 24, "uma": {"ignore_eos": True}, **fields}
            status, answer = request("POST", "/v1/completions", body)
            self.assertEqual(200, status, answer)
            return answer["choices"][0]["text"]

        expected = self.say([{"name": "a"}]).text
        self.assertNotEqual(expected, text())
        self.assertEqual(expected, text(lora=[{"id": 0, "scale": 1.0}]))
        self.assertEqual(expected, text(uma={"ignore_eos": True, "lora": [{"name": "a"}]}))
        self.assertEqual(expected, text(model="base:a"))
        self.assertEqual(expected, text(model="alias:a"))
        status, answer = request("POST", "/v1/completions", {"prompt": "hi", "lora": [{"name": "none"}]})
        self.assertEqual((400, "lora"), (status, answer["error"]["param"]), answer)
        models = {model["id"]: model.get("parent") for model in request("GET", "/v1/models")[1]["data"]}
        for name in uma.SHIPPED_NAMES:
            models.pop(name, None)
        self.assertEqual({"base": None, "base:a": "base", "base:b": "base"}, models)
        self.assertEqual("base:a", request("GET", "/v1/models/base:a")[1]["id"])
        self.assertEqual([{"name": "a", "scale": 1}, {"name": "b", "scale": 1}], self.client.models()[0]["adapters"])


class Restart(AdaptersTest):
    def test_a_state_on_disk_is_found_by_its_own_adapters(self):
        first, other, third = (self.client.create_session(mode="text") for _ in range(3))
        for session in first, other, third:
            self.say([{"name": "a"}], PROMPT * 3, session_id=session)
        expected = self.say([{"name": "a"}], " And then", session_id=first).text
        self.client.close()
        self.assertEqual(0, self.daemon.terminate())
        self.daemon.start().wait_ready()
        self.client = self.another_client()
        changed = self.say([{"name": "b"}], " And then", session_id=other)
        self.assertEqual(0, changed.usage["reused_tokens"])
        self.assertNotEqual(expected, changed.text)
        same = self.say([{"name": "a"}], " And then", session_id=third)
        self.assertGreater(same.usage["reused_tokens"], 0)
        self.assertEqual("cold", same.usage["tier"])
        self.assertEqual(expected, same.text)


class Changes(AdaptersTest):
    def test_a_changed_card_counts_from_the_next_load(self):
        expected = self.say([{"name": "b"}]).text
        card = self.folder / "models.yaml"
        card.write_text(card.read_text().replace("b: b.gguf", "c: b.gguf"))
        self.daemon.signal(signal.SIGHUP)
        uma.until(lambda: self.client.models()[0]["adapters"][-1]["name"] == "c", "the card was read again")
        self.assertEqual(expected, self.say([{"name": "b"}]).text)
        self.assert_error(self.client.generate(PROMPT, lora=[{"name": "c"}], **OPTIONS), "E_PROTO_003", "it has a, b")
        self.assert_error(self.client.generate(PROMPT, model="base:c", **OPTIONS), "E_PROTO_003", 'no adapter "c"')
        self.assertEqual("ack", self.client.call(type="unload_model", model="base")["event"])
        self.assertEqual(expected, self.say([{"name": "c"}]).text)
        self.assert_error(self.client.generate(PROMPT, lora=[{"name": "b"}], **OPTIONS), "E_PROTO_003", "it has a, c")


class BadFiles(AdaptersTest):
    """Adapters that cannot be used cost their model nothing."""

    @classmethod
    def more_adapters(cls):
        data = (cls.folder / "a.gguf").read_bytes()

        def forge(name, change):
            file = GgufFile(data)
            change(file)
            (cls.folder / f"{name}.gguf").write_bytes(bytes(file))

        def cut(file):
            name, sizes, kind, values = file.tensors[0]
            file.tensors[0] = (name, (sizes[0], sizes[1] // 2), kind, values[:len(values) // 2])

        forge("alpha", lambda file: file.set_number("adapter.lora.alpha", 8))
        forge("typeless", lambda file: file.set_number("general.type", 1))
        forge("other", lambda file: file.set_text("general.architecture", "gemma3"))
        forge("rank", cut)
        forge("infinite", lambda file: file.tensors.__setitem__(0, (*file.tensors[0][:3], struct.pack("<e", float("inf")) + file.tensors[0][3][2:])))
        (cls.folder / "short.gguf").write_bytes(data[:len(data) // 2])
        (cls.folder / "text.gguf").write_text("This is no adapter.")
        make_adapter(cls.folder / "wide.gguf", 4, "--width", "128")
        cls.names = {"alpha": "32-bit float", "typeless": "not an adapter", "other": "architecture gemma3", "rank": "ranks",
                     "infinite": "not finite", "short": "truncated", "text": "not a GGUF file", "wide": "does not fit", "none": "No such file",
                     "model": "not an adapter"}
        (cls.folder / "model.gguf").write_bytes(uma.TINY.read_bytes())
        return {name: f"{name}.gguf" for name in cls.names}

    def test_each_is_refused_with_its_reason_and_the_others_serve(self):
        for name, reason in self.names.items():
            with self.subTest(name=name):
                reply = self.client.generate(PROMPT, lora=[{"name": name}], **OPTIONS)
                self.assert_error(reply, "E_MODEL_002", f'adapter "{name}"', reason)
                self.assertNotIn(str(self.folder), reply.message)
        self.assertNotEqual(self.say().text, self.say([{"name": "a"}]).text)
