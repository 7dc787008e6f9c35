"""The attacked daemon. It has a chat model with known output and a projector, an embedding model and a reranker, limits that
attackers can reach, one key for attackers and one for victims."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import attackers
import surface
import uma
from test_http_operations import new_key
from test_supervise import SupervisedDaemon

MIB = 1 << 20
MODELS = {"embeds": "tiny-embed.gguf", "ranks": "tiny-rerank.gguf", "pictures": "tiny-grid-embed.gguf", "draws": "tiny-picture.gguf",
          "mmproj-pictures": "mmproj-tiny-grid.gguf"}
# After an attack, memory may have grown by stored states, encoded images and 16 MiB of compiled grammars.
WARM_BYTES, IMAGE_CACHE_BYTES, GRAMMAR_BYTES = 8 * MIB, 4 * MIB, 16 * MIB
# It may also have grown by memory that the allocator keeps: arenas of a dozen threads after requests of several megabytes.
SLACK_BYTES = 96 * MIB
GROWTH_BYTES_MAX = WARM_BYTES + IMAGE_CACHE_BYTES + GRAMMAR_BYTES + SLACK_BYTES

CONFIG = {
    "limits": {"queue_bytes_max": "64M", "transfer_bytes_max": "32M", "max_sessions": 400, "tenant_sessions_max": 150, "max_tokens": 256},
    "kv": {"warm_bytes_max": WARM_BYTES, "cold_bytes_max": "16M", "flash_attention": "off"},
    "vision": {"cache_bytes_max": IMAGE_CACHE_BYTES, "kept_bytes_max": "16M"},
}


class Arena:
    """A daemon as a context manager. With `is_supervised`, a supervisor restarts it after a kill. With the default `kv`
    the states of a few sessions fill memory and disk."""

    def __init__(self, is_supervised=False, kv=CONFIG["kv"]):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="uma-hostile-"))
        keys = {name: new_key(name) for name in ("attacker", "victim")}
        self.keys = {name: key for name, (key, _) in keys.items()}
        (self.folder / "keys").write_text("".join(line + "\n" for _, line in keys.values()))
        (self.folder / "models").mkdir()
        for name, file in MODELS.items():
            shutil.copy(uma.BUILD / "models" / file, self.folder / "models" / f"{name}.gguf")
        config = {**CONFIG, "kv": kv, "models_dirs": [str(self.folder / "models")],
                  "http": {"address": "127.0.0.1:0", "keys_file": str(self.folder / "keys"), "connections_max": 256,
                           "access_log": str(self.folder / "access.log")}}
        flags = ("--mmproj", uma.BUILD / "models" / "mmproj-tiny-register.gguf", "--kv-cells", 16384, "--threads", 1)
        # No pull leaves the machine, and none reaches the models of the person who runs the tests.
        environment = {"UMA_VERIFY": 0, "XDG_DATA_HOME": self.folder / "data", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_TOKEN": ""}
        kind = SupervisedDaemon if is_supervised else uma.Daemon
        self.daemon = kind(uma.TINY_REGISTER, *flags, "--http", "127.0.0.1:0", config=json.dumps(config), environment=environment)
        self.is_supervised = is_supervised
        self.descriptors_idle = 1 << 20  # descriptors of the daemon without clients

    def __enter__(self):
        try:
            self.daemon.start().wait_ready()
            self.port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", self.daemon.log()).group(1))
            self.warm_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.daemon.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def target(self, others_session=None):
        return attackers.Target(self.daemon.socket_path, self.port, self.keys["attacker"], others_session)

    def request(self, method, path, body=None, who="victim"):
        """Returns status and answer, on a new connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=uma.WAIT_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), {"Authorization": "Bearer " + self.keys[who]})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def warm_up(self):
        """Loads every model and computes once, so that one-time allocations are done."""
        with self.daemon.client() as client:
            client.generate("the cat", max_tokens=100, ignore_eos=True)
            for kind in ("embed", "rerank", "embed_image"):
                answer = client.call(type=kind, **surface.FRAMES[kind][0])
                assert answer["event"] != "error", answer
            answer = client.call(type="embed", model="pictures", texts=surface.PARTS)
            assert answer["event"] != "error", answer
        self.request("GET", "/v1/models")  # opens the descriptor with which the daemon asks the kernel for a connection's user
        for _ in range(30):  # the daemon closes the connections of this function with a delay
            self.descriptors_idle = min(self.descriptors_idle, len(self.descriptors()))
            time.sleep(0.01)

    @contextlib.contextmanager
    def victims(self, *kinds):
        """Runs the victims as a context manager. Yields a dictionary, which has the report of each kind after the block."""
        with self.clients("victims.py", {"port": self.port, "key": self.keys["victim"], "kinds": kinds}) as heard:
            yield heard

    @contextlib.contextmanager
    def costs(self, count):
        """Runs so many attackers with expensive requests as a context manager. Yields what was sent, as victims()."""
        given = {"port": self.port, "socket": str(self.daemon.socket_path), "key": self.keys["attacker"], "attackers": count}
        with self.clients("costs.py", given) as sent:
            yield sent

    @contextlib.contextmanager
    def clients(self, program, given):
        """Runs a program of this folder. Yields a dictionary, which has what it writes after the block."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen([sys.executable, "-B", pathlib.Path(__file__).with_name(program), json.dumps(given)],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        heard = {}
        try:
            assert process.stdout.readline() == "ready\n", f"{program} did not become ready"
            yield heard
            heard |= json.loads(process.communicate(timeout=4 * uma.WAIT_S)[0])
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()

    def metrics(self):
        with self.daemon.client() as client:
            return client.metrics()

    # The serving process, as the system sees it

    @property
    def pid(self):
        return self.daemon.child() if self.is_supervised else self.daemon.process.pid

    def memory(self, field):
        """Bytes of a field in the process's status: VmRSS, VmHWM."""
        text = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE).group(1)) * 1024

    def descriptors(self):
        """Returns what each of the daemon's descriptors is open for."""
        found = []
        for path in pathlib.Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                found.append(os.readlink(path))
        return sorted(found)

    # After the attack

    def end_all_sessions(self):
        """Deletes the sessions of attackers and victims."""
        for who in self.keys:
            _, answer = self.request("GET", "/v1/sessions", who=who)
            for session in answer["data"]:
                status, problem = self.request("DELETE", "/v1/sessions/" + session["session_id"], who=who)
                assert status == 200, problem
        with self.daemon.client() as client:
            for session in client.call(type="list_sessions")["sessions"]:
                answer = client.call(type="end_session", session_id=session["session_id"])
                assert answer["event"] == "ack", answer

    def left_over(self):
        """Returns the accounts that are not empty, although there are no requests."""
        metrics = self.metrics()
        names = ("request_bytes", "requests_open", "sequences_active", "queue_depth", "embed_queue_depth", "kept_image_bytes", "sessions",
                 "exceptions_total")
        left = {name: metrics[name] for name in names if metrics[name] != 0}
        if len(descriptors := self.descriptors()) > self.descriptors_idle:
            left["descriptors"] = f"{len(descriptors)} instead of {self.descriptors_idle}: {descriptors}"
        return left

    def wait_empty(self):
        """Ends all sessions, and waits until every account is empty and no additional descriptor is open. Raises AssertionError
        after a time limit."""
        self.end_all_sessions()
        left = {}

        def is_empty():
            nonlocal left
            left = self.left_over()
            return not left
        try:
            uma.until(is_empty, "empty accounts")
        except AssertionError:
            raise AssertionError(f"these accounts are not empty: {left}") from None
