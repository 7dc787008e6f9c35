"""The HTTP listener for several users: keys and their limits, request ids, the access log."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import select
import socket
import ssl
import subprocess
import tempfile
import time
import unittest

import uma


class Listener:
    """A umad whose HTTP listener has the given configuration."""

    def __init__(self, test, section):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="uma-e2e-listener-"))
        test.addCleanup(uma.shutil.rmtree, self.folder, ignore_errors=True)
        config = json.dumps({"http": {"access_log": str(self.folder / "access.log"), **section}})
        self.daemon = uma.Daemon(uma.TINY, "--http", "127.0.0.1:0", "--kv-cells", "2048", "--slots", "4", config=config)
        self.daemon.start().wait_ready()
        test.addCleanup(self.daemon.kill)
        self.port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", self.daemon.log()).group(1))

    def request(self, method, path, body=None, **headers):
        """Returns (status, headers, body)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=uma.WAIT_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body),
                               {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    def complete(self, key=None, tokens=4, **headers):
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        body = {"prompt": "one two", "max_tokens": tokens, "uma": {"ignore_eos": True}}
        return self.request("POST", "/v1/completions", body, **headers)

    def access_log(self):
        return (self.folder / "access.log").read_text()


def new_key(name):
    """A key and its line, as `umad key new` prints them."""
    printed = subprocess.run([uma.UMAD, "key", "new", name], capture_output=True, text=True, check=True, timeout=uma.WAIT_S).stdout
    return re.fullmatch(r"key   (\S+)\nline  (.+)\n", printed).groups()


def with_key(test_class, name, options=""):
    """A key, and the flags for a daemon of the class that knows it alone. `options`: those of its line."""
    folder = pathlib.Path(test_class.enterClassContext(tempfile.TemporaryDirectory(prefix="uma-e2e-keys-")))
    key, line = new_key(name)
    (folder / "keys").write_text(f"{line} {options}\n")
    (folder / "keys").chmod(0o600)
    return key, ("--http-keys", str(folder / "keys"))


class Keys(unittest.TestCase):
    def open_listener(self, lines, **section):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="uma-e2e-keys-"))
        self.addCleanup(uma.shutil.rmtree, folder, ignore_errors=True)
        (folder / "keys").write_text("\n".join(lines) + "\n")
        return Listener(self, {"keys_file": str(folder / "keys"), **section})

    def test_a_key_opens_and_a_wrong_one_costs_nothing(self):
        key, line = new_key("ci")
        listener = self.open_listener([line])
        status, _, body = listener.complete(key)
        self.assertEqual(200, status, body)
        with listener.daemon.client() as client:
            before = client.metrics()["requests_total"]
        for wrong in (None, "uma-wrong", key[:-1], key + "0"):
            status, headers, body = listener.complete(wrong)
            self.assertEqual((401, "E_AUTH_001"), (status, json.loads(body)["error"]["code"]))
            self.assertEqual("Bearer", headers["WWW-Authenticate"])
        with listener.daemon.client() as client:
            self.assertEqual(before, client.metrics()["requests_total"])
        self.assertEqual(200, listener.request("GET", "/health")[0])
        self.assertEqual(401, listener.request("GET", "/metrics")[0])

    def test_limits_of_a_key_are_its_own(self):
        slow, slow_line = new_key("slow")
        free, free_line = new_key("free")
        listener = self.open_listener([slow_line + " tokens_per_minute=20", free_line])
        status, headers, _ = listener.complete(slow, tokens=40)
        self.assertEqual((200, "20"), (status, headers["x-ratelimit-limit-tokens"]))
        status, headers, body = listener.complete(slow)
        self.assertEqual((429, "rate_limit_error"), (status, json.loads(body)["error"]["type"]))
        self.assertGreater(int(headers["Retry-After"]), 0)
        self.assertEqual(200, listener.complete(free)[0])

    def test_a_file_without_a_key_does_not_open_the_door(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="uma-e2e-keys-"))
        self.addCleanup(uma.shutil.rmtree, folder, ignore_errors=True)
        for text in ("# nobody\n", "ci uma-the-key-itself\n"):
            (folder / "keys").write_text(text)
            daemon = uma.Daemon(uma.TINY, "--http", "127.0.0.1:0", "--http-keys", str(folder / "keys"))
            self.addCleanup(daemon.kill)
            self.assertEqual(1, daemon.start().wait())
            self.assertIn("keys", daemon.log())

    def test_other_machines_need_keys(self):
        refused = uma.run_umad("--http", "0.0.0.0:0")
        self.assertEqual(1, refused.returncode)
        self.assertIn("--http-keys", refused.stderr)
        self.assertEqual(1, uma.run_umad("key", "new", "two words").returncode)
        self.assertEqual(1, uma.run_umad("key", "new", "boss", "--adm").returncode)
        self.assertRegex(uma.run_umad("key", "new", "boss", "--admin").stdout, r"(?m)^line +boss +sha256:[0-9a-f]{64} .*admin=true$")


def answer_to_user(uid, port, path, *lines, method="GET", body=""):
    """The answer to a process of this user: status and body. Status 0: there was no answer."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            with socket.socket() as plain:
                plain.settimeout(uma.WAIT_S)
                plain.connect(("127.0.0.1", port))
                head = (f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Length: {len(body)}", *lines)
                plain.sendall(("\r\n".join(head) + "\r\n\r\n" + body).encode())
                while data := plain.recv(1 << 16):
                    os.write(sending, data)
        os._exit(0)
    os.close(sending)
    with open(receiving, "rb") as pipe:
        head, _, body = pipe.read().decode().partition("\r\n\r\n")
    os.waitpid(child, 0)
    return int(head[9:12] or 0), body


@unittest.skipIf(os.geteuid() != 0, "only root can ask as another user")
class LocalUsers(unittest.TestCase):
    """The users that are served on the loopback without keys."""

    NOBODY = 65534
    SOMEBODY = 12345

    def test_other_users_are_refused_and_told_why(self):
        listener = Listener(self, {})
        for uid in (self.NOBODY, self.SOMEBODY):
            for path in ("/v1/sessions", "/v1/models", "/metrics", "/v1/sessions/one/export"):
                status, body = answer_to_user(uid, listener.port, path)
                self.assertEqual(403, status, body)
                error = json.loads(body)["error"]
                self.assertEqual("E_AUTH_001", error["code"])
                self.assertIn(f"uid {uid}", error["message"])
                self.assertIn("http.local_users", error["message"])
            self.assertEqual(200, answer_to_user(uid, listener.port, "/health")[0])
            self.assertEqual(200, answer_to_user(uid, listener.port, "/ready")[0])
        self.assertEqual(200, answer_to_user(0, listener.port, "/v1/sessions")[0])
        self.assertEqual(200, listener.complete()[0])
        self.assertRegex(listener.access_log(), r"GET /v1/sessions 403 \d+B [\d.]+ms tenant=- key=- ")

    def test_all_are_served_where_that_is_asked_for(self):
        listener = Listener(self, {"local_users": True})
        self.assertIn("for every user of this machine", listener.daemon.log())
        for uid in (self.NOBODY, self.SOMEBODY):
            self.assertEqual(200, answer_to_user(uid, listener.port, "/v1/sessions")[0])

    def test_metrics_are_open_where_that_is_asked_for(self):
        listener = Listener(self, {"metrics_without_key": True})
        self.assertEqual(200, answer_to_user(self.SOMEBODY, listener.port, "/metrics")[0])
        self.assertEqual(403, answer_to_user(self.SOMEBODY, listener.port, "/v1/models")[0])

    def test_a_key_serves_any_user(self):
        key, line = new_key("ci")
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="uma-e2e-keys-")))
        (folder / "keys").write_text(line + "\n")
        listener = Listener(self, {"keys_file": str(folder / "keys")})
        self.assertEqual(200, answer_to_user(self.NOBODY, listener.port, "/v1/sessions", f"Authorization: Bearer {key}")[0])
        self.assertEqual(401, answer_to_user(self.NOBODY, listener.port, "/v1/sessions")[0])
        self.assertEqual(401, answer_to_user(0, listener.port, "/v1/sessions")[0], "root needs a key too")


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="uma-e2e-tls-"))
        cls.addClassCleanup(uma.shutil.rmtree, cls.folder, ignore_errors=True)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                        "-keyout", cls.folder / "key.pem", "-out", cls.folder / "cert.pem", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True, timeout=uma.WAIT_S)

    def config(self, **section):
        return json.dumps({"http": {"tls_certificate": str(self.folder / "cert.pem"), "tls_key": str(self.folder / "key.pem"), **section}})

    def test_streams_and_more_on_one_connection(self):
        with uma.Daemon(uma.TINY, "--http", "127.0.0.1:0", config=self.config()) as daemon:
            port = int(re.search(r"http +https://127\.0\.0\.1:(\d+)/v1", daemon.log()).group(1))
            context = ssl.create_default_context(cafile=self.folder / "cert.pem")
            connection = http.client.HTTPSConnection("localhost", port, timeout=uma.WAIT_S, context=context)
            self.addCleanup(connection.close)
            for stream in (True, False, True):
                body = {"prompt": "one two " * 2000, "max_tokens": 20, "stream": stream, "uma": {"ignore_eos": True}}
                connection.request("POST", "/v1/completions", json.dumps(body), {"Origin": f"https://localhost:{port}"})
                answer = connection.getresponse()
                text = answer.read().decode()
                self.assertEqual(200, answer.status, text[:300])
                self.assertTrue(text.endswith("data: [DONE]\n\n") if stream else json.loads(text)["usage"]["completion_tokens"] == 20)
                kept = connection.sock
            self.assertIsNotNone(kept, "the connection was kept")
            connection.request("GET", "/health", headers={"Connection": "close"})
            self.assertEqual(200, connection.getresponse().status)

    def test_a_client_that_leaves_frees_its_place(self):
        with uma.Daemon(uma.TINY, "--http", "127.0.0.1:0", config=self.config()) as daemon, daemon.client() as client:
            port = int(re.search(r"https://127\.0\.0\.1:(\d+)/v1", daemon.log()).group(1))
            context = ssl.create_default_context(cafile=self.folder / "cert.pem")
            connection = http.client.HTTPSConnection("localhost", port, timeout=uma.WAIT_S, context=context)
            body = {"prompt": "one", "max_tokens": 2000, "uma": {"ignore_eos": True}}
            connection.request("POST", "/v1/completions", json.dumps(body))
            uma.until(lambda: client.metrics()["sequences_active"] == 1, "it runs")
            connection.sock.close()
            connection.close()
            uma.until(lambda: client.metrics()["sequences_active"] == 0, "its place is free")
            self.assertEqual(1, client.metrics()["requests_cancelled_total"])

    def test_what_is_no_tls_or_no_certificate(self):
        with uma.Daemon(uma.TINY, "--http", "127.0.0.1:0", config=self.config()) as daemon:
            port = int(re.search(r"https://127\.0\.0\.1:(\d+)/v1", daemon.log()).group(1))
            with socket.create_connection(("127.0.0.1", port), timeout=uma.WAIT_S) as plain:
                plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                received = b""
                while data := plain.recv(4096):
                    received += data
                self.assertNotIn(b"HTTP/1.1 200", received)
            context = ssl.create_default_context(cafile=self.folder / "cert.pem")
            connection = http.client.HTTPSConnection("localhost", port, timeout=uma.WAIT_S, context=context)
            connection.request("GET", "/health")
            self.assertEqual(200, connection.getresponse().status)
            connection.close()
        daemon = uma.Daemon(uma.TINY, "--http", "127.0.0.1:0", config=self.config(tls_certificate="/nowhere/cert.pem"))
        self.addCleanup(daemon.kill)
        self.assertEqual(1, daemon.start().wait())
        self.assertIn("/nowhere/cert.pem", daemon.log())


class Socket(unittest.TestCase):
    def test_http_on_a_socket_of_its_own(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="uma-e2e-http-"))
        self.addCleanup(uma.shutil.rmtree, folder, ignore_errors=True)
        path = folder / "http"
        with uma.Daemon(uma.TINY, "--http", "off", "--http-socket", str(path)) as daemon:
            connection = http.client.HTTPConnection("local", timeout=uma.WAIT_S)
            self.addCleanup(connection.close)
            connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.sock.connect(str(path))
            connection.request("POST", "/v1/completions", json.dumps({"prompt": "one", "max_tokens": 2, "uma": {"ignore_eos": True}}))
            answer = connection.getresponse()
            self.assertEqual((200, 2), (answer.status, json.loads(answer.read())["usage"]["completion_tokens"]))
            self.assertIn(f"http    {path}", daemon.log())
        self.assertFalse(path.exists())


class Log(unittest.TestCase):
    def test_a_line_a_request(self):
        listener = Listener(self, {})
        self.assertEqual("mine-1", listener.complete(x_request_id="mine-1")[1]["x-request-id"])
        self.assertEqual(404, listener.request("GET", "/%0a2026%20fake?key=hidden", x_request_id="mine 2")[0])
        uma.until(lambda: listener.access_log().count("\n") == 2, "a line for each request")
        lines = listener.access_log().splitlines()
        self.assertRegex(lines[0], r"^\S+Z POST /v1/completions 200 \d+B [\d.]+ms tenant=uid:\d+ key=- id=mine-1 tokens=\d+\+4$")
        self.assertRegex(lines[1], r"GET /\?2026\?fake 404 .* id=[0-9a-f]{16}$")
        self.assertNotIn("one two", listener.access_log())


class HostileJson(unittest.TestCase):
    def test_a_stream_goes_on_beside_it(self):
        listener = Listener(self, {})
        ask = {"prompt": "one two", "max_tokens": 200, "temperature": 0, "stream": True, "uma": {"ignore_eos": True}}
        connection = http.client.HTTPConnection("127.0.0.1", listener.port, timeout=uma.WAIT_S)
        self.addCleanup(connection.close)
        connection.request("POST", "/v1/completions", json.dumps(ask))
        stream = connection.getresponse()
        deep = b"[" * 100_000 + b"]" * 100_000
        for body, expected in (
                (b'{"prompt":"a","x":' + deep + b"}", (400,)),
                (b'{"prompt":"a","x":' + b'{"y":' * 1000 + b"1" + b"}" * 1001, (400,)),
                (b'{"prompt":"a","temperature":1e400}', (400,)),
                (b'{"prompt":"a","seed":99999999999999999999999}', (400,)),
                (b'{"prompt":"a","temperature":-0.0000001}', (400,)),
                (b'{"prompt":"a","seed":1.5}', (400,)),
                (b'{"prompt":"a","top_p":' + b"1" * 100_000 + b"}", (400,)),
                (b'{"prompt":"\xff\xfe"}', (400,)),
                (b'{"prompt":"\\ud800","max_tokens":1}', (200,)),
                (b'{"prompt":"a\\u0000b","max_tokens":1}', (200,)),
                (b'{"prompt":["a"],"prompt":7}', (400,)),
                (b'{"prompt":"a","max_tokens":1,"max_tokens":1}', (200, 400)),
                (b'{"prompt":"a","max_tokens":1,' + b",".join(b'"k%d":0' % i for i in range(50_000)) + b"}", (200,)),
                (b'{"prompt":"a"} {"prompt":"b"}', (400,)),
                (b'{"prompt":"' + b"a" * (16 << 20) + b'"}', (413,)),
                (b'{"prompt":"a","stop":' + json.dumps(["x"] * 100_000).encode() + b"}", (400,)),
                (b'{"prompt":"a","logit_bias":{"-1":1}}', (400,)),
                (b'{"prompt":"a","stream_options":{"include_usage":"yes"}}', (400,))):
            with self.subTest(body=body[:60]):
                other = http.client.HTTPConnection("127.0.0.1", listener.port, timeout=uma.WAIT_S)
                other.request("POST", "/v1/completions", body)
                answer = other.getresponse()
                self.assertIn(answer.status, expected, answer.read()[:300])
                other.close()
        lines = stream.read().decode().split("\n\n")
        self.assertEqual(["data: [DONE]", ""], lines[-2:])
        self.assertEqual("length", json.loads(lines[-3].removeprefix("data: "))["choices"][0]["finish_reason"])


class SlowHeaders(unittest.TestCase):
    def test_clients_that_drip_are_closed_while_others_are_served(self):
        """A byte of a header arrives every few hundred ms. It resets no clock, so the limit of the whole header ends the
        request."""
        listener = Listener(self, {})
        drips = []
        for _ in range(8):
            drips.append(socket.create_connection(("127.0.0.1", listener.port), timeout=uma.WAIT_S))
            self.addCleanup(drips[-1].close)
        header = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"a" * 1000
        ended = {}
        for i in range(200):
            for drip in drips:
                if drip in ended:
                    continue
                if select.select([drip], [], [], 0)[0]:
                    ended[drip] = (i, drip.recv(1 << 16))
                else:
                    drip.sendall(header[i:i + 1])
            if len(ended) == len(drips):
                break
            # A whole stream runs in between.
            connection = http.client.HTTPConnection("127.0.0.1", listener.port, timeout=uma.WAIT_S)
            connection.request("POST", "/v1/completions", json.dumps(
                {"prompt": "one two", "max_tokens": 20, "temperature": 0, "stream": True, "uma": {"ignore_eos": True}}))
            self.assertTrue(connection.getresponse().read().endswith(b"data: [DONE]\n\n"))
            connection.close()
            time.sleep(0.3)
        self.assertEqual(len(drips), len(ended), "all are closed")
        for steps, answer in ended.values():
            self.assertTrue(answer.startswith(b"HTTP/1.1 408 "), answer[:100])
            self.assertGreater(steps, 0, "its first byte was taken")


if __name__ == "__main__":
    unittest.main()
