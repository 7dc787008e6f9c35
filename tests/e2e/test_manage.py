"""Administration over HTTP: models' cards, API keys and the configuration, also by two at once, on full disks and after kill -9."""

import http.client
import json
import os
import pathlib
import re
import tempfile
import unittest

import test_faults
import uma
from test_http_operations import new_key

CARDS = """# of ours
first: {path: first.gguf, aliases: [one]}  # the default

# a comment of second
second:
  path: second.gguf
  top_k: 7
"""


class Managed:
    """A daemon with an administrator's key, an ordinary one, and cards for two of its three models, in a folder."""

    def __init__(self, test, *flags, section=None, environment=None):
        folder = tempfile.TemporaryDirectory(prefix="uma-manage-")
        test.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.cards = self.folder / "models.yaml"
        self.keys = self.folder / "keys"
        for name in ("first", "second", "third"):
            (self.folder / f"{name}.gguf").write_bytes(uma.TINY.read_bytes())
        self.cards.write_text(CARDS)
        (self.boss, boss_line), (self.ci, ci_line) = new_key("boss"), new_key("ci")
        self.keys.touch(mode=0o600)
        self.keys.write_text(f"# of ours\n{boss_line} admin=true\n{ci_line}  # robots\n")
        config = json.dumps({"models": str(self.cards), "models_dirs": [str(self.folder)],
                             "http": {"keys_file": str(self.keys), "access_log": str(self.folder / "access.log"), **(section or {})}})
        self.daemon = uma.Daemon("first", "--http", "127.0.0.1:0", "--kv-cells", "2048", "--slots", "2", *flags, config=config,
                                 environment=environment)
        test.addCleanup(self.daemon.kill)

    def start(self):
        before = len(self.daemon.log())
        self.daemon.start().wait_ready()
        self.port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", self.daemon.log()[before:]).group(1))
        return self

    def open(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=uma.WAIT_S)

    def ask(self, method, path, body=None, key=None, connection=None, **headers):
        """Returns status and object."""
        used = connection or self.open()
        try:
            used.request(method, path, None if body is None else json.dumps(body), {"Authorization": f"Bearer {key or self.boss}", **headers})
            answer = used.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            if connection is None:
                used.close()

    def names(self):
        return [key["name"] for key in self.ask("GET", "/v1/keys")[1]["data"]]

    def model(self, name):
        return {model["id"]: model for model in self.ask("GET", "/v1/models")[1]["data"]}[name]


class ManagedTest(unittest.TestCase):
    def setUp(self):
        self.managed = Managed(self).start()
        self.daemon = self.managed.daemon
        self.ask = self.managed.ask

    def tearDown(self):
        if self.daemon.is_running():
            self.assertEqual(0, self.daemon.terminate(), self.daemon.log()[-4000:])

    def assert_refused(self, answer, status, *parts):
        self.assertEqual(status, answer[0], answer)
        for part in parts:
            self.assertIn(part, answer[1]["error"]["message"])


class Cards(ManagedTest):
    def put(self, model, text):
        return self.ask("PUT", f"/v1/models/{model}/card", {"text": text})

    def sampling(self, model):
        return self.ask("GET", f"/props?model={model}")[1]["sampling"]

    def test_a_change_counts_at_once_and_sessions_go_on(self):
        self.assertEqual((200, {"text": "path: second.gguf\ntop_k: 7\n"}), self.ask("GET", "/v1/models/second/card"))
        with self.daemon.client() as client:
            session = client.create_session(mode="text", model="second")
            running = client.start(type="generate", prompt="one two", session_id=session, max_tokens=300, ignore_eos=True)
            client.wait_token(running)
            text = "path: second.gguf\ntop_k: 9  # more\nsystem: |\n  # Rules\n  Be brief.\n"
            self.assertEqual((200, {"text": text}), self.put("second", text))
            self.assertEqual({"value": 9, "source": "card"}, self.sampling("second")["top_k"])
            self.assertEqual("length", client.finish(running).reason)
            self.assertEqual("length", client.generate(" three", session_id=session, max_tokens=3, ignore_eos=True).reason)
        before, _, _ = CARDS.partition("  path: second.gguf")
        self.assertEqual(before + "".join("  " + line for line in text.splitlines(True)), self.managed.cards.read_text())

    def test_a_card_on_one_line_and_one_of_a_folder(self):
        _, card = self.ask("GET", "/v1/models/first/card")
        self.assertEqual("{path: first.gguf, aliases: [one]}  # the default\n", card["text"])
        self.assertEqual(200, self.put("first", "path: first.gguf\naliases: [uno]\n")[0])
        _, card = self.ask("GET", "/v1/models/third/card")
        self.assertEqual(f"path: {self.managed.folder}/third.gguf\n", card["text"])
        self.assertEqual(200, self.put("third", card["text"] + "temperature: 0\n")[0])
        text = self.managed.cards.read_text()
        self.assertTrue(text.startswith("# of ours\nfirst:\n  path: first.gguf\n  aliases: [uno]\n\n# a comment of second\nsecond:\n"), text)
        self.assertTrue(text.endswith(f"third:\n  path: {self.managed.folder}/third.gguf\n  temperature: 0\n"), text)
        self.assertEqual({"value": 0, "source": "card"}, self.sampling("third")["temperature"])
        self.assertEqual(0, self.daemon.terminate())
        self.managed.start()
        self.assertEqual(3, len([model for model in self.ask("GET", "/v1/models")[1]["data"] if not model["id"].startswith("uma-")]))
        self.assertEqual({"value": 0, "source": "card"}, self.sampling("third")["temperature"])

    def test_a_mistake_changes_nothing(self):
        self.assert_refused(self.put("second", "path: second.gguf\ntempreature: 1\n"), 400, "line 2: unknown key \"tempreature\"")
        self.assert_refused(self.put("second", "path: [\n"), 400, "line ")
        self.assert_refused(self.put("second", "path: second.gguf\naliases: [one]\n"), 400, "models.yaml:", "the name one is already used")
        self.assert_refused(self.put("second", "path: x\n---\nsecret: {path: y}\n"), 400, "line 2")
        self.assert_refused(self.put("second", "x" * 70_000), 400, "text")
        self.assert_refused(self.put("nobody", "path: x\n"), 404)
        self.assert_refused(self.put("one", "path: x\n"), 404, "another name of first")
        self.assert_refused(self.ask("PUT", "/v1/models/second/card", {}), 400, "text")
        self.assertEqual(CARDS, self.managed.cards.read_text())
        self.managed.cards.chmod(0o444)
        self.assert_refused(self.put("second", "path: second.gguf\n"), 500, "read-only")
        self.managed.cards.chmod(0o600)
        self.managed.cards.write_text("first: [\n")
        self.assert_refused(self.put("second", "path: second.gguf\n"), 500, "models.yaml: line ")
        self.assertEqual("first: [\n", self.managed.cards.read_text())
        self.assertEqual(7, self.sampling("second")["top_k"]["value"], "the cards that were read count on")

    def test_what_people_write_meanwhile_stays(self):
        self.managed.cards.write_text(CARDS + "# by hand\nfourth: {path: third.gguf}\n")
        self.assertEqual(200, self.put("second", "path: second.gguf\n")[0])
        self.assertTrue(self.managed.cards.read_text().endswith("second:\n  path: second.gguf\n# by hand\nfourth: {path: third.gguf}\n"))
        self.assertEqual("unloaded", self.managed.model("fourth")["state"], "it counts with the change")

    def test_a_card_that_was_changed_meanwhile_is_not_replaced(self):
        seen = self.ask("GET", "/v1/models/second/card")[1]["text"]
        put = lambda text, was: self.ask("PUT", "/v1/models/second/card", {"text": text, "was": was})
        self.assertEqual(200, put(f"{seen}top_p: 0.5\n", seen)[0])
        text = self.managed.cards.read_text()
        self.assert_refused(put(f"{seen}pin: true\n", seen), 409, "the card of second", "read it")
        self.assertEqual(text, self.managed.cards.read_text())
        self.assertEqual(200, put(f"{seen}pin: true\n", f"{seen}top_p: 0.5\n")[0])
        self.managed.cards.write_text(CARDS)
        self.assert_refused(put(f"{seen}top_p: 1\n", f"{seen}pin: true\n"), 409)
        self.assertEqual(CARDS, self.managed.cards.read_text())

    def test_two_at_once(self):
        for round_number in range(5):
            answers = uma.parallel(*(lambda name=name: self.put(name, f"path: {name}.gguf\ntop_k: {round_number + 1}\n")
                                     for name in ("first", "second", "third")))
            self.assertEqual([200] * 3, [status for status, _ in answers], answers)
            self.assertEqual(3, self.managed.cards.read_text().count(f"top_k: {round_number + 1}\n"))

    def test_a_kill_leaves_the_old_or_the_new_text(self):
        numbers = iter(range(1, 10_000))
        stored = [None]

        def change():
            try:
                while True:
                    number = next(numbers)
                    if self.put("second", f"path: second.gguf\ntop_k: {number}\n")[0] == 200:
                        stored[0] = number
            except (OSError, http.client.HTTPException):
                return  # It is gone.

        def kill():
            uma.until(lambda: (stored[0] or 0) > 20, "some changes")
            self.daemon.process.kill()
            self.daemon.wait()

        uma.parallel(change, kill)
        text = self.managed.cards.read_text()
        number = int(re.fullmatch(re.escape(CARDS).replace("top_k:\\ 7", r"top_k: (\d+)"), text)[1])
        self.assertIn(number, (stored[0], stored[0] + 1))
        self.managed.start()
        self.assertEqual(number, self.sampling("second")["top_k"]["value"])
        self.assertEqual(200, self.put("second", "path: second.gguf\n")[0])

    def test_the_list_tells_memory_and_problems(self):
        (self.managed.folder / "cut.gguf").write_bytes(uma.TINY.read_bytes()[:5000])
        first, cut = self.managed.model("first"), self.managed.model("cut")
        self.assertGreater(first["memory_bytes"], first["meta"]["size"])
        self.assertEqual(0, first["idle_unload_s"])
        self.assertNotIn("problem", first)
        self.assertEqual("failed", cut["state"])
        self.assertIn("cut.gguf", cut["problem"])
        self.assertNotIn("memory_bytes", self.managed.model("second"))
        self.assertEqual(200, self.put("second", "path: second.gguf\nidle_unload_s: 60\nprojector: nothing.gguf\n")[0])
        self.assertEqual(60, self.managed.model("second")["idle_unload_s"])
        self.assertIn("nothing.gguf: no such file", self.managed.model("second")["problem"])


class Keys(ManagedTest):
    def test_a_key_counts_from_its_answer_to_its_end(self):
        status, made = self.ask("POST", "/v1/keys", {"name": "new", "tenant": "robots", "deadline_ms": 0})
        self.assertEqual(200, status, made)
        self.assertRegex(made["line"], r"^new sha256:[0-9a-f]{64} tenant=robots deadline_ms=0$")
        self.assertTrue(self.managed.keys.read_text().endswith("  # robots\n" + made["line"] + "\n"))
        self.assertEqual(0o600, self.managed.keys.stat().st_mode & 0o777)
        listed = self.ask("GET", "/v1/keys")[1]["data"]
        self.assertEqual({"name": "new", "tenant": "robots", "requests_per_minute": 0, "tokens_per_minute": 0, "deadline_ms": 0, "admin": False},
                         listed[2])
        self.assertNotRegex(json.dumps(listed), r"sha256|[0-9a-f]{64}")
        connection = self.managed.open()
        self.addCleanup(connection.close)
        self.assertEqual(200, self.ask("GET", "/v1/models", key=made["key"], connection=connection)[0])
        self.assertEqual(403, self.ask("GET", "/v1/keys", key=made["key"], connection=connection)[0])
        self.assertEqual(0, self.daemon.terminate())
        self.managed.start()
        self.assertEqual(200, self.ask("GET", "/v1/models", key=made["key"])[0], "also after a restart")
        self.assertEqual((200, {"deleted": True}), self.ask("DELETE", "/v1/keys/new"))
        self.assertEqual(401, self.ask("GET", "/v1/models", key=made["key"])[0])
        self.assertNotIn("new", self.managed.keys.read_text())
        self.assertNotIn(made["key"], self.daemon.log() + (self.managed.folder / "access.log").read_text())

    def test_a_reply_outlives_its_key_and_the_connection_does_not(self):
        connection = self.managed.open()
        self.addCleanup(connection.close)
        body = {"prompt": "one two", "max_tokens": 300, "stream": True, "uma": {"ignore_eos": True}}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Authorization": f"Bearer {self.managed.ci}"})
        stream = connection.getresponse()
        begun = stream.readline()
        self.assertEqual(200, self.ask("DELETE", "/v1/keys/ci")[0])
        self.assertTrue((begun + stream.read()).endswith(b"data: [DONE]\n\n"))
        self.assertEqual(401, self.ask("GET", "/v1/models", key=self.managed.ci, connection=connection)[0])

    def test_a_live_view_ends_with_its_key(self):
        connection = self.managed.open()
        self.addCleanup(connection.close)
        connection.request("GET", "/v1/events?interval_ms=100", headers={"Authorization": f"Bearer {self.managed.ci}"})
        stream = connection.getresponse()
        self.assertEqual(b"event: history\n", stream.readline())
        self.assertEqual(200, self.ask("DELETE", "/v1/keys/ci")[0])
        self.assertTrue(stream.read().endswith(b"\n\n"), "it ends, and with a whole event")

    def test_a_key_that_is_deleted_before_the_body_makes_none(self):
        key = self.ask("POST", "/v1/keys", {"name": "second", "admin": True})[1]["key"]
        connection = self.managed.open()
        self.addCleanup(connection.close)
        body = json.dumps({"name": "third", "admin": True}).encode()
        connection.putrequest("POST", "/v1/keys")
        connection.putheader("Authorization", f"Bearer {key}")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body[:5])
        self.assertEqual(200, self.ask("DELETE", "/v1/keys/second")[0])
        connection.send(body[5:])
        self.assertEqual(401, connection.getresponse().status)
        self.assertNotIn("third", self.managed.names())

    def test_limits_in_use_stay(self):
        slow = self.ask("POST", "/v1/keys", {"name": "slow", "requests_per_minute": 2})[1]["key"]
        statuses = [self.ask("GET", "/v1/models", key=slow)[0] for _ in range(3)]
        self.assertEqual([200, 200, 429], statuses)
        self.assertEqual(200, self.ask("POST", "/v1/keys", {"name": "other"})[0])
        self.assertEqual(200, self.ask("DELETE", "/v1/keys/other")[0])
        self.assertEqual(429, self.ask("GET", "/v1/models", key=slow)[0])

    def test_what_people_write_meanwhile_stays_and_counts(self):
        key, line = new_key("hand")
        self.managed.keys.write_text(self.managed.keys.read_text() + f"# mine\n{line}")
        self.assertEqual(401, self.ask("GET", "/v1/models", key=key)[0])
        self.assertEqual(200, self.ask("POST", "/v1/keys", {"name": "new"})[0])
        self.assertIn(f"# mine\n{line}\nnew sha256:", self.managed.keys.read_text())
        self.assertEqual(["boss", "ci", "hand", "new"], self.managed.names())
        self.assertEqual(200, self.ask("GET", "/v1/models", key=key)[0])
        before = self.managed.keys.read_text() + "no key\n"
        self.managed.keys.write_text(before)
        self.assert_refused(self.ask("POST", "/v1/keys", {"name": "x"}), 500, "line 7", "by hand")
        self.assert_refused(self.ask("DELETE", "/v1/keys/ci"), 500, "line 7")
        self.assertEqual(before, self.managed.keys.read_text())

    def test_nothing_can_be_put_into_the_file(self):
        before = self.managed.keys.read_text()
        for text in ("a b", "a\n", "a\r", "#a", "a#", "a=b", "é", "", "x" * 129, "a\u2028", "a\nci sha256:00 admin=true"):
            self.assert_refused(self.ask("POST", "/v1/keys", {"name": text}), 400)
            self.assert_refused(self.ask("POST", "/v1/keys", {"name": "ok", "tenant": text}), 400)
        for field, value in (("admin", "true"), ("requests_per_minute", -1), ("deadline_ms", "5 admin=true"), ("tokens_per_minute", 10**10)):
            self.assert_refused(self.ask("POST", "/v1/keys", {"name": "ok", field: value}), 400, field)
        self.assert_refused(self.ask("DELETE", "/v1/keys/%0Aci"), 404)
        self.assertEqual(before, self.managed.keys.read_text())

    def test_some_keys_stay(self):
        self.assert_refused(self.ask("DELETE", "/v1/keys/boss"), 409, "the key of this request")
        self.assert_refused(self.ask("POST", "/v1/keys", {"name": "ci"}), 409, "there is a key ci")
        self.assert_refused(self.ask("DELETE", "/v1/keys/nobody"), 404)
        second = self.ask("POST", "/v1/keys", {"name": "second", "admin": True})[1]["key"]
        self.assertEqual(200, self.ask("DELETE", "/v1/keys/boss", key=second)[0])
        self.assertEqual(401, self.ask("GET", "/v1/keys")[0])
        self.assertEqual(403, self.ask("DELETE", "/v1/keys/second", key=self.managed.ci)[0])

    def test_two_at_once(self):
        answers = uma.parallel(*(lambda n=number: self.ask("POST", "/v1/keys", {"name": f"k{n // 2}"}) for number in range(8)))
        self.assertEqual([200] * 4 + [409] * 4, sorted(status for status, _ in answers), answers)
        self.assertEqual(["boss", "ci", "k0", "k1", "k2", "k3"], sorted(self.managed.names()))
        for status, answer in answers:
            if status == 200:
                self.assertEqual(200, self.ask("GET", "/v1/models", key=answer["key"])[0])


class Configuration(unittest.TestCase):
    def test_every_value_as_it_is_printed_with_its_source(self):
        managed = Managed(self, "--max-tokens", "50", environment={"UMA_THREADS": 2}).start()
        printed = uma.run_umad(*managed.daemon.arguments[1:], "--print-config", environment=managed.daemon.environment).stdout
        section, expected = "", {}
        for line in printed.splitlines()[1:]:
            if re.fullmatch(r"\w+:", line):
                section = line.replace(":", ".")
                continue
            key, value = re.fullmatch(r" *(?:# )?(\w+): (.*?)(?: +#[ \w-]+)?", line).groups()
            expected[section + key] = "" if value == "not set" else value
        status, answer = managed.ask("GET", "/v1/config")
        self.assertEqual(200, status)
        self.assertEqual(expected, {setting["key"]: setting["value"] for setting in answer["data"]})
        settings = {setting["key"]: setting for setting in answer["data"]}
        file = managed.daemon.folder / "umad.yaml"
        self.assertEqual({"key": "slots", "value": "2", "source": "flag", "place": "--slots"}, settings["slots"])
        self.assertEqual({"key": "threads", "value": "2", "source": "environment", "place": "UMA_THREADS"}, settings["threads"])
        self.assertEqual({"key": "http.keys_file", "value": str(managed.keys), "source": "file", "place": f"{file}:1"}, settings["http.keys_file"])
        self.assertEqual("file", settings["models.file"]["source"])
        self.assertEqual({"key": "workers", "value": "1", "source": "default"}, settings["workers"])
        self.assertNotRegex(json.dumps(answer), "sha256")
        self.assertEqual(403, managed.ask("GET", "/v1/config", key=managed.ci)[0])


class WhoMay(unittest.TestCase):
    CALLS = (("GET", "/v1/models/first/card", None), ("PUT", "/v1/models/first/card", {"text": "path: first.gguf\n"}), ("GET", "/v1/keys", None),
             ("POST", "/v1/keys", {"name": "mine", "admin": True}), ("DELETE", "/v1/keys/boss", None), ("GET", "/v1/config", None))

    def test_the_administrator_alone(self):
        managed = Managed(self, "--http-socket", pathlib.Path(tempfile.gettempdir()) / f"uma-manage-{os.getpid()}",
                          section={"cors_origins": ["https://chat.example"]}).start()
        before = managed.keys.read_text()
        for method, path, body in self.CALLS:
            for headers in ({"key": managed.ci}, {"key": managed.ci, "Origin": "https://chat.example"}):
                status, answer = managed.ask(method, path, body, **headers)
                self.assertEqual((403, "E_AUTH_001"), (status, answer["error"]["code"]), path)
                self.assertIn("admin=true", answer["error"]["message"])
            self.assertEqual(401, managed.ask(method, path, body, key="uma-wrong")[0])
            self.assertEqual(403, managed.ask(method, path, body, Origin="https://evil.example")[0])
        self.assertEqual((before, CARDS), (managed.keys.read_text(), managed.cards.read_text()))
        self.assertEqual(200, managed.ask("GET", "/v1/config", Origin="https://chat.example")[0], "with an administrator's key")

    def test_without_keys_the_daemons_user_who_is_no_page(self):
        with uma.Daemon(uma.TINY, "--http", "127.0.0.1:0", config='http: {cors_origins: ["https://chat.example"]}') as daemon:
            port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", daemon.log()).group(1))

            def ask(method, path, body=None, **headers):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=uma.WAIT_S)
                self.addCleanup(connection.close)
                connection.request(method, path, None if body is None else json.dumps(body), headers)
                answer = connection.getresponse()
                return answer.status, json.loads(answer.read())

            self.assertEqual((200, {"object": "list", "data": []}), ask("GET", "/v1/keys"))
            self.assertEqual(200, ask("GET", "/v1/config")[0])
            self.assertEqual((200, {"text": f"path: {uma.TINY}\n"}), ask("GET", "/v1/models/tiny/card"))
            status, answer = ask("POST", "/v1/keys", {"name": "first"})
            self.assertEqual(400, status, answer)
            self.assertIn("http.keys_file", answer["error"]["message"])
            for method, path, body in self.CALLS:
                self.assertEqual(403, ask(method, path, body, Origin="https://chat.example")[0])


class FullDisk(test_faults.DiskTest):
    def test_a_full_disk_keeps_the_files_as_they_are(self):
        disk = self.daemon.folder / "disk"
        self.mount(disk, "size=64k")
        boss, line = new_key("boss")
        texts = {"keys": f"{line} admin=true\n", "models.yaml": f"tiny: {{path: {uma.TINY}}}\n"}
        for name, text in texts.items():
            self.seen(disk / name).write_text(text)
        (self.daemon.folder / "umad.yaml").write_text(f"models: {disk}/models.yaml\nhttp: {{keys_file: {disk}/keys}}\n")
        self.daemon.arguments += ["--http", "127.0.0.1:0"]
        self.daemon.start().wait_ready()
        port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", self.daemon.log()).group(1))

        def ask(method, path, body=None):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=uma.WAIT_S)
            self.addCleanup(connection.close)
            connection.request(method, path, None if body is None else json.dumps(body), {"Authorization": f"Bearer {boss}"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

        changes = (("POST", "/v1/keys", {"name": "new"}), ("PUT", "/v1/models/tiny/card", {"text": f"path: {uma.TINY}\ntop_k: 1\n"}))
        self.fill(disk)
        for change in changes:
            status, answer = ask(*change)
            self.assertEqual((500, "E_IO_001"), (status, answer["error"]["code"]), answer)
            self.assertIn("No space left on device", answer["error"]["message"])
        self.assertEqual(texts, {name: self.seen(disk / name).read_text() for name in texts})
        self.assertEqual(["boss"], [key["name"] for key in ask("GET", "/v1/keys")[1]["data"]])
        self.seen(disk / "filler").unlink()
        self.assertEqual(sorted(texts), sorted(os.listdir(self.seen(disk))), "no unfinished file stays")
        for change in changes:
            self.assertEqual(200, ask(*change)[0])


if __name__ == "__main__":
    unittest.main()
