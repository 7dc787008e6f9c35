"""The base of the end-to-end tests: starts, watches and ends a daemon, and has a client of its protocol.

Needs only Python's standard library. Every wait has a bound, every process is ended by its id, every file is in a temporary
folder.

Environment:
  UMA_E2E_BUILD    build folder with bin/umad and models/tiny.gguf (default: build/release)
  UMA_E2E_SLOW     factor on every bound beside that of the machine, for sanitizer builds (default: 1)
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

import machine

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("UMA_E2E_BUILD", ROOT / "build" / "release")).resolve()
BUILD_SLOWNESS = float(os.environ.get("UMA_E2E_SLOW", "1"))
SLOW = BUILD_SLOWNESS * machine.slowness()  # each process of tests measures when it begins

UMAD = BUILD / "bin" / "umad"
MAKE_MODEL = BUILD / "bin" / "make_model"
TINY = BUILD / "models" / "tiny.gguf"
SHIPPED_NAMES = ("uma-tiny", "uma-picture")
TINY_CHAT = BUILD / "models" / "tiny-chat.gguf"
# The model for tests that compare texts of different batches: the rows that share a library call change the last bits of the
# logits, and random weights have near-ties of two tokens everywhere. shift_register.py computes the text of this model.
TINY_REGISTER = BUILD / "models" / "tiny-register.gguf"
# Calls a tool and quotes the result: the script is tools/make_model/read_file.json.
TINY_SCRIPTED = BUILD / "models" / "tiny-scripted.gguf"

IS_SANITIZED = "asan" in BUILD.name or "tsan" in BUILD.name
# One in so many reuses of cached tokens is computed again and compared; a difference is an error in the log. A measurement sets 0.
VERIFY_EVERY = 3
WAIT_S = 120 * SLOW  # for waits that take seconds: only a hang reaches it, also where what is waited for runs at a low priority


def until(condition, what, timeout_s=WAIT_S):
    """Waits until condition() is true and returns its value; fails with `what` if it does not become true in time, which is longer if the
    machine has become slower meanwhile."""
    began = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited_s = time.monotonic() - began
        if waited_s > timeout_s and waited_s > timeout_s / SLOW * BUILD_SLOWNESS * machine.slowness():
            raise AssertionError(f"did not happen within {waited_s:.0f} s: {what}")
        time.sleep(0.01)


def parallel(*calls, wait_s=4 * WAIT_S):
    """Runs the calls at the same time and returns their results in order; raises the first exception. `wait_s`: more time than
    they need on any machine."""
    results = [None] * len(calls)
    problems = []

    def run(index):
        try:
            results[index] = calls[index]()
        except BaseException as problem:  # noqa: B902 - handed to the caller
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(wait_s)
        if thread.is_alive():
            raise AssertionError("a parallel call hangs")
    if problems:
        raise problems[0]
    return results


def frame(body):
    """One frame: a length and the bytes, or the JSON of an object."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    return struct.pack("<I", len(body)) + body


class ConnectionClosed(Exception):
    """The daemon closed the connection."""


class Reply:
    """All events of one request."""

    def __init__(self, request_id):
        self.id = request_id
        self.events = []
        self.times = []  # arrival of each event, monotonic seconds

    def add(self, event):
        self.events.append(event)
        self.times.append(time.monotonic())

    @property
    def last(self):
        return self.events[-1]

    @property
    def tokens(self):
        return [event for event in self.events if event["event"] == "token"]

    @property
    def text(self):
        """The model's text: that of the tokens, then that of eos."""
        return "".join(event["text"] for event in self.tokens) + self.last.get("text", "")

    @property
    def reason(self):
        return self.last.get("reason")

    @property
    def code(self):
        return self.last.get("code")

    @property
    def message(self):
        return self.last.get("message")

    @property
    def usage(self):
        return self.last["usage"]

    def gaps_s(self):
        """Times between the tokens."""
        times = [when for when, event in zip(self.times, self.events) if event["event"] == "token"]
        return [later - earlier for earlier, later in zip(times, times[1:])]


class Client:
    """One connection. Requests are started and finished separately, so that many can be in flight; events of other requests
    that arrive meanwhile are kept for them. Used by one thread at a time."""

    # Every other event ends its request.
    CONTINUES = {"token", "reasoning", "tool_call", "progress", "context_shift", "data", "image_begin", "image_chunk", "history", "snapshot"}

    def __init__(self, path, timeout_s=WAIT_S):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.connect(str(path))  # without a timeout: with one, a full backlog is an error instead of a wait
        except OSError:
            self.socket.close()
            raise
        self.socket.settimeout(timeout_s)
        self.received = b""
        self.replies = {}  # by request id; the id None collects answers to requests without an id
        self.count = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    # Bytes and frames

    def send_bytes(self, data):
        self.socket.sendall(data)

    def send(self, request):
        self.send_bytes(frame(request))

    def receive(self):
        """The object of the next frame, for whichever request. Raises ConnectionClosed at the end of the stream."""
        while True:
            if len(self.received) >= 4:
                (length,) = struct.unpack_from("<I", self.received)
                if len(self.received) >= 4 + length:
                    body = self.received[4:4 + length]
                    self.received = self.received[4 + length:]
                    return json.loads(body.decode("utf-8"))
            try:
                data = self.socket.recv(1 << 16)
            except (ConnectionResetError, BrokenPipeError) as problem:
                raise ConnectionClosed from problem
            if not data:
                raise ConnectionClosed
            self.received += data

    def is_closed_by_peer(self):
        """Waits for the end of the stream; frames before it are dropped."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                self.receive()
        return True

    # Requests

    def start(self, request=None, **fields):
        """Sends a request under its own id, or a new one, and returns the id."""
        request = dict(request or {}, **fields)
        if "id" not in request:
            self.count += 1
            request["id"] = f"r{self.count}"
        self.replies[request["id"]] = Reply(request["id"])
        self.send(request)
        return request["id"]

    def pump(self):
        """Reads one event, adds it to its request's reply, and returns it."""
        event = self.receive()
        self.replies.setdefault(event["id"], Reply(event["id"])).add(event)
        return event

    def wait_token(self, request_id, count=1):
        """Waits until the request has sent `count` tokens."""
        reply = self.replies[request_id]
        while len(reply.tokens) < count:
            if reply.events and reply.last["event"] not in self.CONTINUES:
                raise AssertionError(f"ended before token {count}: {reply.last}")
            self.pump()

    def finish(self, request_id):
        """Waits for the last event of a request and returns its Reply."""
        reply = self.replies[request_id]
        while not reply.events or reply.last["event"] in self.CONTINUES:
            self.pump()
        return self.replies.pop(request_id)

    def call(self, request=None, **fields):
        """Sends a request with one answer and returns the event's object."""
        return self.finish(self.start(request, **fields)).last

    def generate(self, prompt=None, **fields):
        """Runs a generation from start to end."""
        if prompt is not None:
            fields["prompt"] = prompt
        return self.finish(self.start(type="generate", **fields))

    def create_session(self, **fields):
        answer = self.call(type="create_session", **fields)
        assert answer["event"] == "session", answer
        return answer["session_id"]

    def append(self, session_id, text=None, **fields):
        if text is not None:
            fields["text"] = text
        return self.call(type="append_input", session_id=session_id, **fields)

    def generate_stream(self, session_id, **fields):
        return self.finish(self.start(type="generate_stream", session_id=session_id, **fields))

    def session(self, session_id):
        return self.call(type="get_session", session_id=session_id)

    def metrics(self):
        return self.call(type="metrics")["metrics"]

    def models(self):
        return self.call(type="models")["models"]


# Environment in which no GPU is found by Vulkan, CUDA or HIP.
HIDDEN_GPUS = {"VK_LOADER_DRIVERS_DISABLE": "*", "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}


def clean_environment(**extra):
    """The environment of a daemon: this process's without umad's settings, then `extra`, where None removes a variable."""
    # Without HIDDEN_GPUS every daemon would compute on a GPU if there is one, and look for Vulkan devices: 65 MiB and 0.1 s.
    kept = HIDDEN_GPUS | {name: value for name, value in os.environ.items() if not name.startswith("UMA_")}
    kept.setdefault("ASAN_OPTIONS", "exitcode=99")  # else a finding looks like a refused start, which also exits with 1
    kept.setdefault("LSAN_OPTIONS", f"suppressions={pathlib.Path(__file__).with_name('leaks.txt')}:print_suppressions=0")
    kept["UMA_HTTP"] = "off"  # all daemons have the same default port; a test that wants the listener uses --http 127.0.0.1:0
    kept["UMA_VERIFY"] = str(VERIFY_EVERY)
    kept["UMA_MODEL_STORES"] = "off"  # the models of whoever runs the tests are theirs
    kept.update({name: str(value) for name, value in extra.items() if value is not None})
    return {name: value for name, value in kept.items() if extra.get(name, value) is not None}


def need_packages(folder):
    """Skips the tests of a class if the npm packages of the folder are missing: no registry could be reached when they were installed."""
    if shutil.which("node") is None or not (folder / "node_modules" / ".package-lock.json").exists():
        raise unittest.SkipTest(f"no Node or no packages of {folder.relative_to(ROOT)} (script/bootstrap installs them)")


def without_rights(*rights):
    """The beginning of a command: root goes on without these capabilities, such as dac_override, so that permissions of files bind it."""
    return ["setpriv", "--bounding-set", ",".join(f"-{right}" for right in rights)] if os.getuid() == 0 else []


def run_umad(*flags, timeout_s=WAIT_S, environment=None, before=()):
    """Runs umad to its end, for starts that must fail or only print. `before`: the beginning of the command. Returns
    subprocess.CompletedProcess."""
    return subprocess.run([*before, str(UMAD), *map(str, flags)], capture_output=True, text=True, timeout=timeout_s,
                          env=environment or clean_environment(), stdin=subprocess.DEVNULL, check=False)


READY = "ready after"  # The log's line when a daemon is ready.


class Daemon:
    """One umad with its own socket, data folder and log. As a context manager it is ready in the block and ended after it."""

    def __init__(self, model=TINY, *flags, config=None, environment=None, own_paths=True):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="uma-e2e-"))
        self.socket_path = self.folder / "s"
        self.data_dir = self.folder / "data"
        self.log_path = self.folder / "log"
        self.process = None
        self.starts_before = 0  # How many starts of the daemon its log has from before this one.
        self.arguments = [str(UMAD)]
        if model is not None:
            self.arguments += ["--model", str(model)]
        if own_paths:
            self.arguments += ["--socket", str(self.socket_path), "--data-dir", str(self.data_dir)]
        if config is not None:
            config_path = self.folder / "umad.yaml"
            config_path.write_text(config)
            self.arguments += ["--config", str(config_path)]
        self.arguments += map(str, flags)
        self.environment = clean_environment(**(environment or {}))

    def start(self):
        """Starts the process without waiting for anything."""
        self.starts_before = self.log().count(READY)
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(self.arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment)
        return self

    def wait_ready(self):
        """Waits until the socket answers and the model is loaded and warmed up."""
        def answers():
            if self.process.poll() is not None:
                raise AssertionError(f"umad ended with {self.process.returncode} at its start:\n{self.log()}")
            with contextlib.suppress(OSError, ConnectionClosed), self.client() as client:
                return client.models()[0]["state"] == "ready" and self.log().count(READY) > self.starts_before
            return False
        until(answers, f"umad ready; its log:\n{self.log()}")
        return self

    def __enter__(self):
        try:
            return self.start().wait_ready()
        except BaseException:
            self.kill()
            raise

    def __exit__(self, kind, *_):
        try:
            if kind is not None:
                sys.stderr.write(f"\nlog of umad (process {self.process.pid}):\n{self.log()[-4000:]}\n")
                return
            if self.is_running():
                status = self.terminate()
                assert status == 0, f"umad ended with {status}:\n{self.log()[-8000:]}"
            self.check_reuse()
        finally:
            self.kill()

    def client(self, timeout_s=WAIT_S):
        return Client(self.socket_path, timeout_s)

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def signal(self, number):
        self.process.send_signal(number)

    @contextlib.contextmanager
    def paused(self):
        """Stops the daemon for the block: it then finds all requests of the block at once."""
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def wait(self, timeout_s=WAIT_S):
        """Waits for the end of the process; returns its status."""
        return self.process.wait(timeout_s)

    def terminate(self):
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self):
        """Ends the process if it still runs, and removes the folder."""
        if self.is_running():
            self.process.kill()
        if self.process is not None:
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def check_reuse(self):
        """Fails if verified cells were those of other tokens."""
        wrong = [line for line in self.log().splitlines() if "are not those of their tokens" in line]
        assert not wrong, wrong[0]

    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    # Figures of the system about the process

    def _memory(self, name, field):
        text = pathlib.Path(f"/proc/{self.process.pid}/{name}").read_text()
        return int(re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE).group(1)) * 1024

    def rss_bytes(self):
        return self._memory("status", "VmRSS")

    def pss_bytes(self):
        return self._memory("smaps_rollup", "Pss")

    def anonymous_bytes(self):
        """Anonymous memory: mapped files without changes are left out."""
        return self._memory("smaps_rollup", "Pss_Anon")

    def own_anonymous_bytes(self):
        """The same, including pages that other processes share; quick."""
        return self._memory("status", "RssAnon")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


class LlamaServer:
    """The packaged llama-server on a model, on a free port of the loopback; a context manager."""

    def __init__(self, model, *flags):
        self._command = ["llama-server", "-m", str(model), "--jinja", "--host", "127.0.0.1", "--no-webui", *flags]

    def __enter__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen([*self._command, "--port", str(self.port)], stdin=subprocess.DEVNULL, stdout=self._log,
                                         stderr=self._log)
        try:
            until(self._is_up, "llama-server answers")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _is_up(self):
        if self._process.poll() is not None:
            self._log.seek(0)
            raise AssertionError(f"llama-server ended:\n{self._log.read()[-4000:].decode(errors='replace')}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=WAIT_S) as answer:
                return answer.status == 200
        except OSError:
            return False

    def post(self, path, body):
        """Returns the bytes of the answer, also of an error."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=json.dumps(body).encode(),
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            return error.read()


class DaemonTest(unittest.TestCase):
    """Tests that share one daemon: started before the first, ended after the last, and checked after each."""

    model = TINY
    flags = ()
    config = None
    environment = None

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(cls.model, *cls.flags, config=cls.config, environment=cls.environment)
        cls.addClassCleanup(cls.daemon.kill)
        cls.daemon.start().wait_ready()

    @classmethod
    def tearDownClass(cls):
        status = cls.daemon.terminate()
        assert status == 0, f"umad ended with {status}:\n{cls.daemon.log()[-8000:]}"
        cls.daemon.check_reuse()

    def setUp(self):
        self.client = self.daemon.client()
        self.addCleanup(self.client.close)

    def tearDown(self):
        self.assertTrue(self.daemon.is_running(), f"umad is gone:\n{self.daemon.log()[-8000:]}")

    def another_client(self):
        client = self.daemon.client()
        self.addCleanup(client.close)
        return client

    def wait_active(self):
        """Waits until a request has reached a worker."""
        until(lambda: self.client.metrics()["sequences_active"] > 0, "an active sequence")

    def wait_idle(self):
        """Waits until no request runs or waits: cancelled and dropped requests have left the engine."""
        def is_idle():
            metrics = self.client.metrics()
            return metrics["sequences_active"] == 0 and metrics["queue_depth"] == 0
        until(is_idle, "no active sequences and an empty queue")

    def assert_error(self, answer, code, *parts):
        """Fails if `answer` is not an error event with this code and these parts in its message."""
        if isinstance(answer, Reply):
            answer = answer.last
        self.assertEqual("error", answer["event"], answer)
        self.assertEqual(code, answer["code"], answer)
        for part in parts:
            self.assertIn(str(part), answer["message"])
