"""Socket activation: a umad whose sockets were opened by another process, as by systemd (sd_listen_fds(3)), and its notices to
the service manager (sd_notify(3)).

Here the test is the service manager: it opens the sockets, starts umad with them as descriptors 3 and up, and keeps them.
"""

import http.client
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import tempfile
import unittest

import uma

FIRST = 3  # SD_LISTEN_FDS_START

# Replaces itself by umad. The descriptors in the first argument become 3 and up, in their order, and are announced to umad.
LAUNCHER = """
import os, sys
descriptors = [int(text) for text in sys.argv[1].split(",") if text]
copies = [os.dup2(fd, 100 + index) for index, fd in enumerate(descriptors)]
for index, fd in enumerate(copies):
    os.dup2(fd, 3 + index)
    os.close(fd)
os.environ.setdefault("LISTEN_PID", str(os.getpid()))
os.environ.setdefault("LISTEN_FDS", str(len(descriptors)))
os.execv(sys.argv[2], sys.argv[2:])
"""


class ActivatedDaemon(uma.Daemon):
    """A umad that is started with open sockets. Its data folder outlives its processes, so it can be started again."""

    def __init__(self, model, *flags, sockets, environment=None):
        super().__init__(model, *flags, environment=environment, own_paths=False)
        self.arguments += ["--data-dir", str(self.data_dir)]
        self.sockets = sockets

    def start(self):
        descriptors = [each.fileno() for each in self.sockets]
        command = ["python3", "-c", LAUNCHER, ",".join(map(str, descriptors)), *self.arguments]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment,
                                            pass_fds=descriptors)
        return self


class ActivationTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="uma-e2e-run-")))
        self.path = self.folder / "umad.sock"

    def opened(self, made):
        self.addCleanup(made.close)
        return made

    def unix_socket(self, path=None, is_listening=True):
        made = self.opened(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        made.bind(str(path or self.path))
        if is_listening:
            made.listen(16)
        return made

    def tcp_socket(self, host="127.0.0.1"):
        made = self.opened(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        made.bind((host, 0))
        made.listen(16)
        return made

    def daemon(self, *flags, sockets, **environment):
        made = ActivatedDaemon(uma.TINY, *flags, sockets=sockets, environment=environment)
        made.socket_path = self.path
        self.addCleanup(made.kill)
        return made

    def ending(self, *flags, sockets, **environment):
        """Returns status and log of a umad that must refuse to start."""
        refused = self.daemon(*flags, sockets=sockets, **environment).start()
        return refused.wait(), refused.log()


class Serving(ActivationTest):
    def test_clients_that_come_first_are_served(self):
        listener = self.unix_socket()
        with uma.Client(self.path) as early:
            question = early.start(type="generate", prompt="Hello", max_tokens=4)
            with self.daemon(sockets=[listener]) as daemon:
                self.assertEqual("length", early.finish(question).reason)
                self.assertIn(f"socket  {self.path}, from the service manager", daemon.log())

    def test_http_on_its_socket(self):
        tcp = self.tcp_socket()
        port = tcp.getsockname()[1]
        # The passed socket is served although the tests' configuration turns HTTP off.
        with self.daemon(sockets=[tcp, self.unix_socket()]) as daemon:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=uma.WAIT_S)
            self.addCleanup(connection.close)
            connection.request("GET", "/v1/models")
            self.assertEqual(200, connection.getresponse().status)
            self.assertIn(f"http://127.0.0.1:{port}/v1, from the service manager", daemon.log())

    def test_clients_wait_while_it_restarts(self):
        listener = self.unix_socket()
        daemon = self.daemon(sockets=[listener]).start().wait_ready()
        connected = daemon.client()
        self.addCleanup(connected.close)
        session = connected.create_session(name="kept")
        self.assertEqual(0, daemon.terminate())
        self.assertTrue(self.path.exists(), "the file belongs to the service manager")
        self.assertTrue(connected.is_closed_by_peer())
        with daemon.client() as between:
            asked = between.start(type="get_session", session_id="kept")
            daemon.start()
            self.assertEqual(session, between.finish(asked).last["session_id"])
        self.assertEqual(0, daemon.terminate())

    def test_sockets_of_another_process_are_left_alone(self):
        own = self.folder / "own.sock"
        listener = self.unix_socket()
        daemon = self.daemon("--socket", own, sockets=[listener], LISTEN_PID=os.getpid(), LISTEN_FDS=1)
        daemon.socket_path = own
        with daemon:
            self.assertNotIn("from the service manager", daemon.log())
        self.assertFalse(own.exists(), "its own file is removed as always")


class Refusing(ActivationTest):
    def assert_refused(self, what, *flags, sockets, **environment):
        status, log = self.ending(*flags, sockets=sockets, **environment)
        self.assertEqual(1, status, log)
        self.assertIn(what, log)

    def test_a_socket_that_does_not_listen(self):
        self.assert_refused(f"umad: the service manager passed descriptor {FIRST}, which is not listening",
                            sockets=[self.unix_socket(is_listening=False)])

    def test_two_sockets_of_a_kind(self):
        other = self.folder / "other.sock"
        self.assert_refused(f"the Unix socket {other}, but also {self.path}", sockets=[self.unix_socket(), self.unix_socket(other)])
        self.assert_refused("HTTP is served on one", sockets=[self.tcp_socket(), self.tcp_socket()])

    def test_what_is_no_socket(self):
        with open(os.devnull) as null:
            self.assert_refused(f"descriptor {FIRST}, which is not a socket", sockets=[null])

    def test_a_number_that_is_none(self):
        self.assert_refused("announced by LISTEN_FDS=some cannot be used", sockets=[self.unix_socket()], LISTEN_FDS="some")

    def test_an_address_of_all_machines_without_keys(self):
        self.assert_refused("clients need keys", sockets=[self.tcp_socket("0.0.0.0")])

    def test_the_file_of_a_refused_socket_stays(self):
        listener = self.unix_socket()
        status, _ = self.ending("--model", "/nonexistent.gguf", sockets=[listener])
        self.assertEqual(1, status)
        self.assertTrue(self.path.exists())


class Notifying(ActivationTest):
    def setUp(self):
        super().setUp()
        self.notices = self.opened(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        self.notices.bind(str(self.folder / "notify"))

    def next_notice(self):
        self.assertTrue(select.select([self.notices], [], [], uma.WAIT_S)[0], "no notice came")
        return self.notices.recv(4096).decode()

    def test_ready_when_the_model_is_loaded_and_stopping_before_the_end(self):
        daemon = self.daemon(sockets=[self.unix_socket()], NOTIFY_SOCKET=self.folder / "notify").start()
        self.assertEqual("READY=1", self.next_notice())
        with daemon.client() as client:
            self.assertEqual("ready", client.models()[0]["state"])
        daemon.signal(signal.SIGTERM)
        self.assertEqual("STOPPING=1", self.next_notice())
        self.assertEqual(0, daemon.wait())

    def test_a_supervisor_speaks_for_its_daemons(self):
        """systemd accepts notices only from the process that it started."""
        daemon = self.daemon("--supervise", sockets=[self.unix_socket()], NOTIFY_SOCKET=self.folder / "notify").start()
        self.assertEqual("READY=1", self.next_notice())
        daemons = [int(number) for number in re.findall(r"process (\d+) is the daemon", daemon.log())]
        os.kill(daemons[-1], signal.SIGKILL)
        self.assertEqual("READY=1", self.next_notice(), "of the next daemon")
        with daemon.client() as client:
            self.assertEqual(1, client.metrics()["crashes_total"])
        daemon.signal(signal.SIGTERM)
        self.assertEqual("STOPPING=1", self.next_notice())
        self.assertEqual(0, daemon.wait())
        self.assertTrue(self.path.exists(), "the file belongs to the service manager")


if __name__ == "__main__":
    unittest.main()
