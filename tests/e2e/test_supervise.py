"""umad --supervise: after a crash a process that keeps the sockets starts the daemon again."""

import http.client
import json
import os
import pathlib
import re
import signal
import socket
import unittest

import uma


def is_running(process):
    """Whether a process still holds what it opened: the first thread of a killed one waits to be reaped before the others end."""
    try:
        threads = list(pathlib.Path(f"/proc/{process}/task").iterdir())
        state = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z" or len(threads) > 1


class LocalConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=uma.WAIT_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(uma.WAIT_S)
        self.sock.connect(str(self.path))


class SupervisedDaemon(uma.Daemon):
    """`process` is the supervisor; its children are the daemons, one at a time."""

    def __init__(self, model=uma.TINY, *flags, **options):
        super().__init__(model, "--supervise", *flags, **options)

    def children(self):
        return [int(number) for number in re.findall(r"process (\d+) is the daemon", self.log())]

    def child(self):
        return self.children()[-1]

    def crash(self, number=signal.SIGKILL):
        """Ends the running daemon; the next one may not be running yet."""
        crashes = self.log().count("supervisor: the daemon ended with")
        os.kill(self.child(), number)
        uma.until(lambda: self.log().count("supervisor: the daemon ended with") > crashes, "the supervisor saw the crash")


class SuperviseTest(unittest.TestCase):
    def daemon(self, *flags, model=uma.TINY, **options):
        made = SupervisedDaemon(model, *flags, **options)
        self.addCleanup(made.kill)
        return made

    def started(self, *flags, **options):
        return self.daemon(*flags, **options).start().wait_ready()

    def connect(self, daemon):
        client = daemon.client()
        self.addCleanup(client.close)
        return client

    def json_of(self, connection, path):
        self.addCleanup(connection.close)
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())


class Crash(SuperviseTest):
    def test_one_stream_breaks_and_the_next_connection_works(self):
        daemon = self.started("--http", "127.0.0.1:0")
        port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1, kept by the supervisor", daemon.log()).group(1))
        client = self.connect(daemon)
        session = client.create_session(name="kept")
        self.assertEqual("eos", client.generate("Once upon a time", session_id="kept", max_tokens=4).last["event"])
        stream = client.start(type="generate", prompt="on and on", max_tokens=2000, ignore_eos=True)
        client.wait_token(stream)
        before = self.json_of(http.client.HTTPConnection("127.0.0.1", port, timeout=uma.WAIT_S), "/health")
        self.assertEqual((0, None, None), (before["crashes_total"], before["last_crash"], before["last_crash_unix_s"]))

        daemon.crash()
        self.assertTrue(client.is_closed_by_peer())
        again = self.connect(daemon)
        kept = again.session("kept")
        self.assertEqual((session, 1), (kept["session_id"], kept["turns"]))
        self.assertEqual("eos", again.generate("and", session_id="kept", max_tokens=4).last["event"])
        health = self.json_of(http.client.HTTPConnection("127.0.0.1", port, timeout=uma.WAIT_S), "/health")
        self.assertEqual((1, "signal 9"), (health["crashes_total"], health["last_crash"]))
        self.assertGreater(health["last_crash_unix_s"], 1_600_000_000)
        numbers = again.metrics()
        self.assertEqual((1, "signal 9"), (numbers["crashes_total"], numbers["last_crash"]))
        self.assertEqual(0, daemon.terminate())

    def test_crashes_are_counted_and_nobody_is_refused(self):
        daemon = self.started()
        for crash in range(1, 4):
            daemon.crash(signal.SIGABRT)
            numbers = self.connect(daemon).metrics()
            self.assertEqual((crash, "signal 6"), (numbers["crashes_total"], numbers["last_crash"]))
        waits = [float(s) for s in re.findall(r"the next one starts in ([\d.]+) s", daemon.log())]
        self.assertEqual([0.1, 0.2, 0.4], waits)
        self.assertEqual(0, daemon.terminate())

    def test_http_on_a_unix_socket(self):
        daemon = self.daemon()
        path = daemon.folder / "http"
        daemon.arguments += ["--http-socket", str(path)]
        daemon.start().wait_ready()
        daemon.crash()
        self.assertEqual(1, self.json_of(LocalConnection(path), "/health")["crashes_total"])
        self.assertEqual(0, daemon.terminate())
        self.assertFalse(path.exists())


class End(SuperviseTest):
    def test_term_ends_both(self):
        daemon = self.started()
        child = daemon.child()
        self.assertEqual(0, daemon.terminate())
        self.assertFalse(is_running(child))
        self.assertFalse(daemon.socket_path.exists())
        self.assertEqual(1, len(daemon.children()))

    def test_one_signal_that_reaches_both_lets_streams_end(self):
        """Ctrl-C in a terminal, and a service manager that ends a group, signal every process."""
        daemon = self.started()
        client = self.connect(daemon)
        stream = client.start(type="generate", prompt="on", max_tokens=1000, ignore_eos=True)
        client.wait_token(stream)
        child = daemon.child()
        os.kill(child, signal.SIGTERM)
        daemon.signal(signal.SIGTERM)
        self.assertEqual("length", client.finish(stream).reason)
        self.assertEqual(0, daemon.wait())
        self.assertNotIn("second signal: cancelling", daemon.log())

    def test_a_second_signal_ends_at_once(self):
        daemon = self.started()
        client = self.connect(daemon)
        stream = client.start(type="generate", prompt="on", max_tokens=2000, ignore_eos=True)
        client.wait_token(stream)
        daemon.signal(signal.SIGTERM)
        uma.until(lambda: "finishing requests in flight" in daemon.log(), "the first signal came")
        daemon.signal(signal.SIGINT)
        self.assertEqual(0, daemon.wait())
        self.assertIn("second signal: cancelling", daemon.log())

    def test_a_daemon_that_ends_in_order_is_not_started_again(self):
        daemon = self.started()
        os.kill(daemon.child(), signal.SIGTERM)
        self.assertEqual(0, daemon.wait())
        self.assertEqual(1, len(daemon.children()))

    def test_the_daemon_ends_with_its_supervisor(self):
        daemon = self.started()
        child = daemon.child()
        daemon.signal(signal.SIGKILL)
        daemon.wait()
        uma.until(lambda: not is_running(child), "the daemon is gone")
        # The socket file is left over, and the next daemon replaces it.
        daemon.start()
        uma.until(lambda: len(daemon.children()) == 2, "the next one started")
        daemon.wait_ready()
        self.assertEqual(0, daemon.terminate())

    def test_signals_are_passed_on(self):
        daemon = self.started()
        daemon.signal(signal.SIGUSR1)
        uma.until((daemon.data_dir / "metrics.json").exists, "the metrics are written")
        daemon.signal(signal.SIGHUP)
        uma.until(lambda: "models are registered" in daemon.log(), "the models are read again")
        self.assertEqual(0, daemon.terminate())


class Mistakes(SuperviseTest):
    def test_a_mistake_in_flags_starts_nothing(self):
        for flags in (["--nonsense"], ["--slots", "0"]):
            result = uma.run_umad("--supervise", *flags)
            self.assertEqual(1, result.returncode)
            self.assertNotIn("supervisor:", result.stderr)

    def test_questions_are_answered(self):
        for flag in ("--help", "--version", "--print-config"):
            result = uma.run_umad("--supervise", flag)
            self.assertEqual((0, ""), (result.returncode, result.stderr))

    def test_a_model_that_cannot_be_loaded_is_tried_once(self):
        for model in ("/nonexistent.gguf", os.devnull):
            daemon = self.daemon(model=model)
            self.assertEqual(1, daemon.start().wait())
            self.assertEqual(1, len(daemon.children()), daemon.log())
            self.assertFalse(daemon.socket_path.exists())

    def test_a_socket_that_is_taken(self):
        daemon = self.started()
        second = self.daemon("--socket", daemon.socket_path, "--data-dir", daemon.folder / "other", own_paths=False)
        self.assertEqual(1, second.start().wait())
        self.assertIn("another daemon answers", second.log())
        self.assertEqual([], second.children())
        self.assertEqual(0, daemon.terminate())

    def test_the_variable_of_the_supervisor_is_not_for_others(self):
        result = uma.run_umad("--version", environment=uma.clean_environment(UMA_SUPERVISED="1 0 0 0 0 0"))
        self.assertEqual(1, result.returncode)
        self.assertIn("the supervisor that started this process has ended", result.stderr)


class Size(SuperviseTest):
    def test_the_supervisor_has_one_thread_and_no_model(self):
        daemon = self.started()
        self.assertEqual(1, len(os.listdir(f"/proc/{daemon.process.pid}/task")))
        if not uma.IS_SANITIZED:
            self.assertLess(daemon.own_anonymous_bytes(), 16 << 20)
        maps = pathlib.Path(f"/proc/{daemon.process.pid}/maps").read_text()
        self.assertNotIn(".gguf", maps)
        self.assertEqual(0, daemon.terminate())


if __name__ == "__main__":
    unittest.main()
