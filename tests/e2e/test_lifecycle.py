"""Models are pulled, named, loaded, unloaded and deleted while the daemon runs, over HTTP and by uma-cli."""

import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

import test_http_operations
import test_pull
import uma
import vision
from cli import CLI, Terminal, environment, run_cli
from gguf_file import GgufFile

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0}


class LifecycleTest(unittest.TestCase):
    """A daemon with an empty folder of pulled models, and a hub with one model."""

    settings = ""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="uma-e2e-life-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.hub = test_pull.Server(self)
        self.good = test_pull.Served(uma.TINY_CHAT.read_bytes())
        listing = [{"type": "file", "path": "m-Q8_0.gguf", "size": len(self.good.data),
                    "lfs": {"oid": test_pull.sha256(self.good.data), "size": len(self.good.data)}}]
        self.hub.paths["/api/models/some/model/tree/main"] = test_pull.Served(json.dumps(listing).encode())
        self.hub.paths["/some/model/resolve/main/m-Q8_0.gguf"] = self.good
        self.models = self.folder / "data" / "uma" / "models"
        self.environment = {"HOME": self.folder, "XDG_DATA_HOME": self.folder / "data", "HF_ENDPOINT": self.hub.url, "HF_TOKEN": "",
                            "NO_PROXY": "*", "no_proxy": "*"}
        self.daemon = uma.Daemon(uma.TINY, "--http", "127.0.0.1:0", "--kv-cells", "2048", "--slots", "4",
                                 config=f"models: {{unknown: refuse}}\n{self.settings}", environment=self.environment)
        self.daemon.__enter__()
        self.addCleanup(self.daemon.__exit__, None, None, None)
        self.port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", self.daemon.log()).group(1))

    def connect(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=uma.WAIT_S)
        self.addCleanup(connection.close)
        return connection

    def request(self, method, path, body=None):
        """Returns the status and the text."""
        connection = self.connect()
        connection.request(method, path, None if body is None else json.dumps(body).encode())
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def asked(self, method, path, **body):
        status, text = self.request(method, path, body)
        self.assertEqual(200, status, text)
        return text

    def pull(self, **body):
        """The lines of a pull."""
        text = self.asked("POST", "/api/pull", **body)
        self.assertTrue(text.endswith("\n"))
        return [json.loads(line) for line in text.splitlines()]

    def rows(self, path="/models"):
        return {row["id"]: row for row in json.loads(self.request("GET", path)[1])["data"]}

    def chat_status(self, model):
        return self.request("POST", "/v1/chat/completions", {**HELLO, "model": model})[0]

    def add(self, name, data=None):
        self.models.mkdir(parents=True, exist_ok=True)
        (self.models / f"{name}.gguf").write_bytes(uma.TINY_CHAT.read_bytes() if data is None else data)

    def cli(self, *arguments, given=None):
        return run_cli("--socket", self.daemon.socket_path, *arguments, given=given, **self.environment)


class Pull(LifecycleTest):
    def test_a_model_is_pulled_and_serves_under_both_names(self):
        lines = self.pull(model="some/model:q8_0")
        self.assertEqual({"status": "pulling manifest"}, lines[0])
        self.assertEqual({"status": "success"}, lines[-1])
        for line in lines[1:-1]:
            if "digest" in line:
                self.assertEqual("pulling m-Q8_0.gguf", line["status"])
                self.assertLessEqual(line["completed"], line["total"])
        self.assertTrue((self.models / "m-Q8_0.gguf").exists())
        self.assertEqual(["m-Q8_0.gguf"], os.listdir(self.models))
        for name in ("m-Q8_0", "some/model:q8_0"):
            self.assertEqual(200, self.chat_status(name), name)
        requests = len(self.hub.requests)
        self.assertEqual({"status": "success"}, json.loads(self.asked("POST", "/api/pull", name="some/model:q8_0", stream=False)))
        self.assertEqual(requests, len(self.hub.requests), "it is here")

    def test_what_is_no_source_is_refused_before_the_stream(self):
        for source in ("llama3", "--out=x/y", "a b/c", "some/model:"):
            status, text = self.request("POST", "/api/pull", {"model": source, "stream": False})
            self.assertEqual(400, status, text)
            self.assertEqual(["error"], list(json.loads(text)))
        self.assertEqual(400, self.request("POST", "/api/pull", {"model": "llama3"})[0])
        self.assertEqual(400, self.request("POST", "/api/pull", {})[0])
        self.assertEqual([], self.hub.requests)

    def test_a_hub_without_the_model_is_an_error(self):
        self.assertIn("error", self.pull(model="some/other")[-1])
        status, text = self.request("POST", "/api/pull", {"model": "some/other", "stream": False})
        self.assertEqual(500, status, text)
        self.assertIn("error", json.loads(text))
        self.assertEqual({"tiny", *uma.SHIPPED_NAMES}, set(self.rows()))

    def test_a_file_that_is_no_model_does_not_stay(self):
        self.hub.paths["/bad.gguf"] = test_pull.Served(b"<html>" + bytes(1000))
        self.assertIn("error", self.pull(model=self.hub.url + "/bad.gguf")[-1])
        self.assertEqual({"tiny", *uma.SHIPPED_NAMES}, set(self.rows()))

    def test_the_query_of_a_url_is_told_to_nobody(self):
        self.hub.paths["/u.gguf"] = self.good
        for _ in range(2):  # the second time it is here
            self.assertEqual({"status": "success"}, self.pull(model=self.hub.url + "/u.gguf?token=hidden")[-1])
        self.assertEqual(200, self.chat_status(self.hub.url + "/u.gguf"))
        missing = self.pull(model=self.hub.url + "/none.gguf?token=hidden")[-1]["error"]
        self.assertIn("/none.gguf does not exist", missing)
        taken = self.pull(model=self.hub.url + "/folder/u.gguf?token=hidden")[-1]["error"]
        for text in (missing, taken, self.daemon.log()):
            self.assertNotIn("hidden", text)
        self.assertNotIn(str(self.models), taken)

    def test_who_leaves_ends_the_download_and_it_is_resumed(self):
        self.hub.next += [self.hub.paths["/api/models/some/model/tree/main"], self.good.but(hang_at=30_000)]
        connection = self.connect()
        connection.request("POST", "/api/pull", json.dumps({"model": "some/model"}).encode())
        answer = connection.getresponse()
        self.assertEqual({"status": "pulling manifest"}, json.loads(answer.readline()))
        part = self.models / "m-Q8_0.gguf.part"
        uma.until(lambda: part.exists() and part.stat().st_size == 30_000, "a part of the file")
        self.assertEqual(200, self.chat_status("tiny"), "others are served meanwhile")
        answer.close()
        connection.close()
        uma.until(lambda: "the download was cancelled" in self.daemon.log(), "the download has ended")
        self.assertEqual({"status": "success"}, self.pull(model="some/model")[-1])
        self.assertEqual("bytes=30000-", self.hub.ranges()[-1])

    def test_the_daemon_ends_in_the_middle_of_a_download(self):
        self.hub.next += [self.hub.paths["/api/models/some/model/tree/main"], self.good.but(hang_at=30_000)]
        connection = self.connect()
        connection.request("POST", "/api/pull", json.dumps({"model": "some/model"}).encode())
        answer = connection.getresponse()
        part = self.models / "m-Q8_0.gguf.part"
        uma.until(lambda: part.exists() and part.stat().st_size == 30_000, "a part of the file")
        self.assertEqual(0, self.daemon.terminate())
        self.assertIn("error", json.loads(answer.read().decode().splitlines()[-1]))


class SplitPull(LifecycleTest):
    def test_a_split_model_with_its_projector_sees_a_picture(self):
        """Five pieces and the projector, from a hub that breaks off. Both are deleted with the model."""
        files = dict(zip((f"reader-Q8_0-{number:05}-of-00005.gguf" for number in range(1, 6)),
                         GgufFile(vision.MODEL.read_bytes()).split(5)), **{"mmproj-F16.gguf": vision.PROJECTOR.read_bytes()})
        listing = [{"type": "file", "path": name, "size": len(data), "lfs": {"oid": test_pull.sha256(data)}} for name, data in files.items()]
        listing = test_pull.Served(json.dumps(listing).encode())
        self.hub.paths["/api/models/some/reader/tree/main"] = listing
        for name, data in files.items():
            self.hub.paths[f"/some/reader/resolve/main/{name}"] = test_pull.Served(data)
        self.hub.next += [listing, test_pull.Served(files["reader-Q8_0-00002-of-00005.gguf"], cut_at=1000)]
        self.assertEqual({"status": "success"}, self.pull(model="some/reader:q8_0")[-1])
        body = {"model": "some/reader:q8_0", "messages": [vision.question(vision.GRAD)], "max_tokens": 8, "temperature": 0}
        seen = json.loads(self.asked("POST", "/v1/chat/completions", **body))["choices"][0]["message"]["content"]
        with uma.Daemon(vision.MODEL, *vision.FLAGS) as whole, whole.client() as client:
            self.assertEqual(client.generate(messages=body["messages"], max_tokens=8).text, seen)
        self.asked("DELETE", "/api/delete", model="reader-Q8_0")
        self.assertEqual([], os.listdir(self.models))


class Names(LifecycleTest):
    def test_a_copy_is_a_name_and_outlives_the_daemon(self):
        self.add("a")
        self.asked("POST", "/api/copy", source="a", destination="claude-x:latest")
        self.assertEqual(200, self.chat_status("claude-x"))
        self.daemon.terminate()
        self.daemon.start().wait_ready()
        self.port = int(re.findall(r"http +http://127\.0\.0\.1:(\d+)/v1", self.daemon.log())[-1])
        self.assertEqual(200, self.chat_status("claude-x"))
        self.assertEqual(200, self.request("DELETE", "/api/delete", {"model": "claude-x"})[0])
        self.assertEqual(404, self.chat_status("claude-x"))
        self.assertEqual(200, self.chat_status("a"), "the model stays")

    def test_a_copy_needs_a_model_and_a_free_name(self):
        self.add("a")
        for source, destination, status in (("none", "b", 404), ("a", "tiny", 400), ("a", "two words", 400), ("a", "", 400), ("a", "a", 200)):
            self.assertEqual(status, self.request("POST", "/api/copy", {"source": source, "destination": destination})[0], destination)


class Delete(LifecycleTest):
    def test_a_deleted_model_is_unloaded_first_and_its_sessions_stay(self):
        self.add("a")
        with self.daemon.client() as client:
            session = client.create_session(model="a")
            self.assertEqual("eos", client.generate("hello", session_id=session, max_tokens=3).last["event"])
            self.assertEqual("loaded", self.rows()["a"]["status"]["value"])
            self.asked("POST", "/api/copy", source="a", destination="b")
            self.assertEqual(200, self.request("DELETE", "/api/delete", {"name": "a"})[0])
            self.assertEqual([], os.listdir(self.models))
            self.assertNotIn("a", self.rows())
            self.assertEqual(404, self.chat_status("b"))
            self.assertEqual("a", client.session(session)["model"])
            self.assertEqual("E_MODEL_001", client.generate("more", session_id=session, max_tokens=3).code)
            self.add("a")
            self.assertEqual("eos", client.generate("more", session_id=session, max_tokens=3).last["event"], "it goes on")

    def test_a_model_in_use_stays(self):
        self.add("a")
        with self.daemon.client() as client:
            request = client.start(type="generate", prompt="hello", model="a", max_tokens=100_000, ignore_eos=True)
            client.wait_token(request)
            status, text = self.request("DELETE", "/api/delete", {"model": "a"})
            client.start(type="cancel", target=request)
            self.assertIn(client.finish(request).reason, ("cancelled", "length"), "the reply was not disturbed")
            self.assertIn(status, (200, 409), text)  # 200: the reply had ended before
            self.assertEqual(status == 409, (self.models / "a.gguf").exists())

    def test_files_elsewhere_are_not_deleted(self):
        for name in ("tiny", "uma-tiny"):
            status, text = self.request("DELETE", "/api/delete", {"model": name})
            self.assertEqual(400, status, text)
        self.assertTrue(uma.TINY.exists())
        self.assertEqual(404, self.request("DELETE", "/api/delete", {"model": "../tiny"})[0])
        self.assertEqual(200, self.chat_status("tiny"))


class Loading(LifecycleTest):
    def test_a_model_is_loaded_and_unloaded(self):
        self.add("a")
        self.assertEqual({"value": "unloaded"}, self.rows()["a"]["status"])
        for _ in range(2):
            self.assertEqual({"success": True}, json.loads(self.asked("POST", "/models/load", model="a")))
        self.assertEqual({"value": "loaded"}, self.rows("/v1/models")["a"]["status"])
        for _ in range(2):  # also if there is nothing to unload
            self.assertEqual({"success": True}, json.loads(self.asked("POST", "/models/unload", model="a")))
        self.assertEqual({"value": "unloaded"}, self.rows()["a"]["status"])

    def test_what_cannot_be_loaded_is_an_error(self):
        self.add("bad", b"GGUF" + bytes(200))
        self.assertEqual({"value": "unloaded", "failed": True}, self.rows()["bad"]["status"])
        self.assertEqual(503, self.request("POST", "/models/load", {"model": "bad"})[0])
        for path in ("/models/load", "/models/unload"):
            self.assertEqual(404, self.request("POST", path, {"model": "none"})[0])
            self.assertEqual(400, self.request("POST", path, {"model": 7})[0])
            self.assertEqual(400, self.request("POST", path, {})[0])


class Folder(LifecycleTest):
    def test_a_file_that_appears_or_leaves_is_seen(self):
        self.assertEqual(404, self.chat_status("a"))
        self.add("a")
        self.assertEqual(200, self.chat_status("a"), "the name was unknown before")
        self.add("b")
        self.assertIn("b", self.rows("/v1/models"))
        (self.models / "b.gguf").unlink()
        self.assertNotIn("b", self.rows("/v1/models"))
        (self.models / "a.gguf").unlink()
        self.assertNotIn("a", self.rows("/v1/models"))
        self.assertEqual(404, self.chat_status("a"))
        self.assertEqual(200, self.chat_status("tiny"))

    def test_a_file_that_is_written_slowly_becomes_a_model(self):
        data = uma.TINY_CHAT.read_bytes()
        for size in (0, 10, len(data) // 2):
            self.add("a", data[:size])
            self.assertTrue(self.rows()["a"]["status"]["failed"], size)
        self.add("a", data)
        uma.until(lambda: self.rows()["a"]["status"] == {"value": "unloaded"}, "the whole file is seen")
        self.assertEqual(200, self.chat_status("a"))


class Cli(LifecycleTest):
    def test_run_pulls_loads_and_answers(self):
        first = self.cli("run", "some/model:q8_0", "Hello", "there", "--max-tokens", "4")
        self.assertEqual(0, first.returncode, first.stderr)
        self.assertIn(b"m-Q8_0.gguf: 100 %", first.stderr)
        requests = len(self.hub.requests)
        again = self.cli("run", "some/model:q8_0", "--max-tokens", "4", given=b"Hello there")
        self.assertEqual((0, first.stdout), (again.returncode, again.stdout), again.stderr)
        self.assertEqual(requests, len(self.hub.requests), "it was pulled once")

    def test_run_begins_a_chat_at_a_terminal(self):
        with Terminal("--socket", self.daemon.socket_path, "run", "tiny", "--max-tokens", "4", **self.environment) as terminal:
            terminal.prompt()
            terminal.type("/quit\r")
            self.assertEqual(0, terminal.wait())

    def test_what_cannot_be_run_is_told(self):
        for model, code in (("none", b"E_MODEL_001"), ("some/other", b"E_IO_001"), ("some/model:", b"E_PROTO_003")):
            result = self.cli("run", model, "Hello")
            self.assertEqual(2, result.returncode, model)
            self.assertIn(code, result.stderr)

    def test_load_ps_and_stop(self):
        self.add("a")
        self.assertNotIn(b"\na ", self.cli("ps").stdout)
        self.assertEqual(0, self.cli("load", "a").returncode)
        lines = self.cli("ps").stdout.decode().splitlines()
        self.assertEqual(["NAME", "STATE", "SIZE", "WINDOW", "SLOTS", "UNTIL"], lines[0].split())
        row = next(line for line in lines if line.startswith("a "))
        self.assertIn(" ready ", row)
        self.assertTrue(row.endswith("stopped"), row)
        models = json.loads(self.cli("ps", "--json").stdout)["models"]
        self.assertEqual({"a", "tiny"}, {model["name"] for model in models})
        self.assertEqual(0, self.cli("stop", "a").returncode)
        self.assertNotIn(b"\na ", self.cli("ps").stdout)
        stopped = self.cli("stop", "a")
        self.assertEqual(2, stopped.returncode)
        self.assertIn(b"E_SESSION_002", stopped.stderr)

    def test_ctrl_c_ends_a_pull_and_keeps_its_part(self):
        self.hub.next += [self.hub.paths["/api/models/some/model/tree/main"], self.good.but(hang_at=30_000)]
        process = subprocess.Popen([str(CLI), "--socket", str(self.daemon.socket_path), "run", "some/model", "Hello"],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=environment(**self.environment))
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        part = self.models / "m-Q8_0.gguf.part"
        uma.until(lambda: part.exists() and part.stat().st_size == 30_000, "a part of the file")
        process.send_signal(signal.SIGINT)
        self.assertEqual(130, process.wait(uma.WAIT_S))
        uma.until(lambda: "the download was cancelled" in self.daemon.log(), "the download has ended")
        self.assertTrue(part.exists())


class WhoMay(unittest.TestCase):
    CALLS = (("GET", "/v1/trace", None), ("POST", "/models/load", {"model": "tiny"}), ("POST", "/models/unload", {"model": "tiny"}),
             ("POST", "/api/pull", {"model": "some/model"}), ("DELETE", "/api/delete", {"model": "tiny"}),
             ("POST", "/api/copy", {"source": "tiny", "destination": "x"}),
             ("POST", "/api/generate", {"model": "tiny", "keep_alive": 0}))

    def test_an_ordinary_key_may_not(self):
        key, line = test_http_operations.new_key("ci")
        admin, admin_line = test_http_operations.new_key("boss")
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="uma-e2e-keys-")))
        (folder / "keys").write_text(f"{line}\n{admin_line} admin=true\n")
        listener = test_http_operations.Listener(self, {"keys_file": str(folder / "keys")})
        for method, path, body in self.CALLS:
            status, _, text = listener.request(method, path, body, Authorization=f"Bearer {key}")
            self.assertEqual(403, status, (path, text))
            self.assertIn("admin=true", text)
        for path in ("/models/unload", "/models/load"):
            self.assertEqual(200, listener.request("POST", path, {"model": "tiny"}, Authorization=f"Bearer {admin}")[0])
        self.assertEqual(200, listener.request("GET", "/models", Authorization=f"Bearer {key}")[0])
        self.assertEqual(401, listener.request("POST", "/models/load", {"model": "tiny"})[0], "nobody may without a key")

    @unittest.skipUnless(os.geteuid() == 0, "only root can be another user")
    def test_another_user_may_not_even_where_all_are_served(self):
        listener = test_http_operations.Listener(self, {"local_users": True})
        self.assertEqual(200, test_http_operations.answer_to_user(12345, listener.port, "/models")[0])
        for method, path, body in self.CALLS:
            status, text = test_http_operations.answer_to_user(12345, listener.port, path, method=method, body=json.dumps(body) if body else "")
            self.assertEqual(403, status, text)
        self.assertEqual(200, listener.request("POST", "/models/unload", {"model": "tiny"})[0])


if __name__ == "__main__":
    unittest.main()
