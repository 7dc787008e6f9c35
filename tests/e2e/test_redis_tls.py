"""Shared states in a Redis server with TLS, where umad was built with a libhiredis that has TLS."""

import contextlib
import pathlib
import shutil
import socket
import subprocess
import tempfile
import unittest

import postgres
import redis
import test_check
import test_cluster_states
import uma


def has_tls():
    """Whether this umad can connect with TLS: else it refuses the address."""
    with tempfile.TemporaryDirectory(prefix="uma-tls-") as folder:
        checked = uma.run_umad("check", "--model", uma.TINY, "--data-dir", f"{folder}/data", "--socket", f"{folder}/s", "--http", "off",
                               "--shared-states", "rediss://localhost:1")
    return "has no TLS" not in checked.stdout


class TlsRedis(test_cluster_states.RedisStates):
    """A server with TLS at `tls_port`, and without it at `port` for the test itself."""

    def __init__(self, names):
        self.certificates = pathlib.Path(tempfile.mkdtemp(prefix="uma-tls-"))
        self.certificate = self.certificates / "server.pem"
        key = self.certificates / "server.key"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                        "-subj", "/CN=test", "-addext", f"subjectAltName={names}", "-keyout", key, "-out", self.certificate],
                       check=True, capture_output=True, timeout=uma.WAIT_S)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.tls_port = free.getsockname()[1]
        super().__init__("--tls-port", str(self.tls_port), "--tls-cert-file", str(self.certificate), "--tls-key-file", str(key),
                         "--tls-auth-clients", "no")

    @property
    def address(self):
        return f"rediss://localhost:{self.tls_port}"

    def trusted(self):
        """The environment of a umad whose machine trusts the certificate."""
        return {"SSL_CERT_FILE": str(self.certificate)}

    def __exit__(self, *problem):
        super().__exit__(*problem)
        shutil.rmtree(self.certificates, ignore_errors=True)


@postgres.needed
@redis.needed
class Tls(test_check.WithDatabase):
    @classmethod
    def setUpClass(cls):
        if not has_tls():
            raise unittest.SkipTest("this umad was built with a libhiredis without TLS")
        super().setUpClass()

    def setUp(self):
        super().setUp()
        self.stack = self.enterContext(contextlib.ExitStack())

    def serve(self, names):
        store = self.stack.enter_context(TlsRedis(names))
        self.flags = (*self.flags, "--shared-states", store.address)
        return store

    def environment(self, store):
        return uma.clean_environment(**store.trusted())

    def test_a_certificate_that_is_trusted(self):
        store = self.serve("DNS:localhost")
        text = self.well(environment=self.environment(store))
        self.assertIn("the connection has TLS, and its certificate is trusted", text)
        self.assertEqual([], store.ask("KEYS", "*"))

    def test_a_certificate_that_nobody_trusts(self):
        self.serve("DNS:localhost")
        self.assertIn("self-signed certificate", self.problems())

    def test_a_certificate_of_another_name(self):
        store = self.serve("DNS:elsewhere.example")
        self.assertIn("hostname mismatch", self.problems(environment=self.environment(store)))

    def test_an_address_is_compared_with_addresses(self):
        store = self.serve("DNS:localhost")
        by_number = ("--shared-states", f"rediss://127.0.0.1:{store.tls_port}")
        self.assertIn("IP address mismatch", self.problems(*by_number, environment=self.environment(store)))
        store = self.serve("IP:127.0.0.1")
        self.well("--shared-states", f"rediss://127.0.0.1:{store.tls_port}", environment=self.environment(store))

    def test_a_server_without_tls(self):
        store = self.serve("DNS:localhost")
        self.assertIn("TLS", self.problems("--shared-states", f"rediss://localhost:{store.port}", environment=self.environment(store)))

    def test_a_conversation_goes_on_from_its_state(self):
        store = self.serve("DNS:localhost")
        clients = []
        for name in "ab":
            daemon = uma.Daemon(uma.TINY_REGISTER, *test_cluster_states.FLAGS, "--catalog", self.address, "--node", name,
                                "--shared-states", store.address, config=test_cluster_states.CONFIG, environment=store.trusted())
            self.stack.callback(daemon.kill)
            daemon.start().wait_ready()
            clients.append(self.stack.enter_context(daemon.client()))
        session = clients[0].create_session(mode="text")
        clients[0].generate(test_cluster_states.PROMPT, session_id=session, **test_cluster_states.OPTIONS)
        reply = clients[1].generate(" And then", session_id=session, **test_cluster_states.OPTIONS)
        self.assertEqual("shared", reply.usage["tier"], reply.usage)
        self.assertGreater(reply.usage["reused_tokens"], 0)


if __name__ == "__main__":
    unittest.main()
