"""Images that requests name by URLs."""

import http.server
import pathlib
import socket
import ssl
import subprocess
import tempfile
import threading
import unittest

from uma import WAIT_S, Daemon, DaemonTest
from vision import FLAGS, GRAD, MODEL, RED, data_of, data_uri, noise


class PictureServer:
    """Answers with pictures and with hostile answers, and records the requested paths. With a certificate it uses TLS."""

    def __init__(self, answers, certificate=None):
        outer = self
        self.paths = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.paths.append(self.path)
                answers.get(self.path, lambda handler: handler.send_error(404))(self)

            def log_message(self, *_):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # the daemon may disconnect
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.host = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def whole(data, kind="image/png"):
    def answer(handler):
        handler.send_response(200)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)
    return answer


def redirect(location):
    def answer(handler):
        handler.send_response(302)
        handler.send_header("Location", location)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
    return answer


class Urls(DaemonTest):
    """Images by URL if the configuration names the host: one server on the loopback that it names, and one that it does not
    name."""

    model = MODEL
    flags = (*FLAGS, "--http", "127.0.0.1:0")

    @classmethod
    def setUpClass(cls):
        cls.hidden = PictureServer({"/grad.png": whole(GRAD.read_bytes())})
        cls.addClassCleanup(cls.hidden.close)
        cls.held = threading.Event()
        cls.gone = threading.Event()
        cls.server = PictureServer({
            "/grad.png": whole(GRAD.read_bytes()), "/red.png": whole(RED.read_bytes(), "text/html"),
            "/text.png": whole(b"hello"), "/large.png": whole(noise()),
            "/there": redirect("/grad.png"), "/hidden": redirect(f"http://{cls.hidden.host}/grad.png"),
            "/loop": redirect("/loop"), "/silent": cls.keep_silent})
        cls.addClassCleanup(cls.server.close)
        cls.config = f"vision: {{urls: on, url_hosts: ['{cls.server.host}'], url_bytes_max: 1M, url_timeout: 20s}}\n"
        super().setUpClass()

    @classmethod
    def keep_silent(cls, handler):
        cls.held.set()
        handler.connection.settimeout(WAIT_S)
        if not handler.rfile.read(1):
            cls.gone.set()

    def url(self, path):
        return f"http://{self.server.host}{path}"

    def ask(self, url, **fields):
        return self.client.generate(max_tokens=24, messages=[{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this?"}]}], **fields)

    def test_an_image_by_its_url_is_that_image(self):
        wanted = self.ask(data_uri(GRAD)).text
        for path in ("/grad.png", "/there"):
            reply = self.ask(self.url(path))
            self.assertEqual("eos", reply.last["event"], reply.last)
            self.assertEqual(wanted, reply.text)
        grad, red = self.client.call(type="embed_image", images=[{"url": self.url("/grad.png")}, {"url": self.url("/red.png")}])["embeddings"]
        self.assertEqual(self.client.call(type="embed_image", data=data_of(GRAD))["embeddings"], [grad])
        self.assertEqual(self.client.call(type="embed_image", data=data_of(RED))["embeddings"], [red])
        session = self.client.create_session(mode="chat")
        appended = self.client.append(session, messages=[{"role": "user", "content": [
            {"type": "image", "url": self.url("/grad.png")}, {"type": "text", "text": "What is this?"}]}])
        self.assertEqual("ack", appended["event"], appended)
        self.assertEqual(wanted, self.client.generate_stream(session, max_tokens=24).text)

    def test_what_may_not_be_fetched_is_not(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            for url, said in ((self.url("/absent"), "404"), (self.url("/text.png"), "not a PNG"), (self.url("/large.png"), "1048576"),
                              (self.url("/loop"), "redirects"), (self.url("/hidden"), ""),
                              (f"http://{self.hidden.host}/grad.png", ""), (f"http://localhost:{port}/", ""),
                              (f"http://127.0.0.1:{port}/", ""), ("http://localhost/a.png", "public"), ("http://127.1/a.png", ""),
                              ("https://[::1]/a.png", "public"), ("http://169.254.169.254/latest/meta-data/", "public"),
                              ("http://10.1.2.3/", "public"), (f"http://me:secret@{self.server.host}/grad.png", "password"),
                              ("ftp://127.0.0.1/a.png", "http"), ("http://", "host")):
                with self.subTest(url):
                    answer = self.ask(url)
                    self.assert_error(answer, "E_PROTO_003", "messages[0].content[0]", said)
                    self.assertNotIn("secret", answer.message)
                    self.assert_error(self.client.call(type="embed_image", url=url), "E_PROTO_003")
            other.settimeout(0)
            with self.assertRaises(BlockingIOError):
                other.accept()
        self.assertEqual([], self.hidden.paths)

    def test_a_request_that_ends_takes_its_fetch_with_it(self):
        for end in ("cancel", "leave", "timeout"):
            with self.subTest(end):
                self.held.clear()
                self.gone.clear()
                client = self.another_client()
                fields = {"timeout_ms": 100} if end == "timeout" else {}
                request = client.start(type="generate", messages=[{"role": "user", "content": [
                    {"type": "image_url", "image_url": {"url": self.url("/silent")}}]}], **fields)
                self.assertTrue(self.held.wait(WAIT_S))
                if end == "cancel":
                    self.assertTrue(client.call(type="cancel", target=request)["cancelled"])
                if end == "leave":
                    client.close()
                else:
                    self.assertIn(client.finish(request).last["event"], ("eos", "error"))
                self.assertTrue(self.gone.wait(WAIT_S), "the connection to the server is closed")
        self.wait_idle()

    def test_a_slow_server_holds_up_nobody(self):
        self.held.clear()
        slow = self.client.start(type="embed_image", url=self.url("/silent"), deadline_ms=500)
        self.assertTrue(self.held.wait(WAIT_S))
        other = self.another_client()
        self.assertEqual("embedding", other.call(type="embed_image", data=data_of(GRAD))["event"])
        self.assertEqual("embedding", other.call(type="embed_image", url=self.url("/grad.png"))["event"])
        self.assert_error(self.client.finish(slow), "E_LIMIT_003")


class SecureUrls(unittest.TestCase):
    def test_a_certificate_must_be_known_and_of_the_host(self):
        with tempfile.TemporaryDirectory() as folder:
            def certify(name, subject):
                key, certificate, both = (f"{folder}/{name}.{end}" for end in ("key", "crt", "pem"))
                subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
                                key, "-out", certificate, "-days", "2", "-subj", "/CN=test", "-addext", f"subjectAltName={subject}"],
                               check=True, capture_output=True, timeout=WAIT_S)
                pathlib.Path(both).write_text(pathlib.Path(key).read_text() + pathlib.Path(certificate).read_text())
                return certificate, both
            good, other = certify("good", "IP:127.0.0.1"), certify("other", "DNS:elsewhere.example")
            right, wrong = (PictureServer({"/grad.png": whole(GRAD.read_bytes())}, both) for _, both in (good, other))
            self.addCleanup(right.close)
            self.addCleanup(wrong.close)
            trusted = pathlib.Path(folder) / "trusted.pem"
            trusted.write_text(pathlib.Path(good[0]).read_text() + pathlib.Path(other[0]).read_text())
            config = f"vision: {{url_hosts: ['{right.host}', '{wrong.host}']}}\n"
            for environment, ends in (({"SSL_CERT_FILE": str(trusted)}, ("embedding", "error")), ({}, ("error", "error"))):
                with Daemon(MODEL, *FLAGS, config=config, environment=environment) as daemon, daemon.client() as client:
                    for server, event in zip((right, wrong), ends):
                        answer = client.call(type="embed_image", url=f"https://{server.host}/grad.png")
                        self.assertEqual(event, answer["event"], answer)
                        if event == "error":
                            self.assertIn("the certificate of", answer["message"])


if __name__ == "__main__":
    unittest.main()
