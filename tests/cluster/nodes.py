"""Nodes for faults.py: a umad that is started again and again in the same folder, behind a relay or in a network namespace."""

import contextlib
import signal
import subprocess
import threading
import time

import uma
from relay import Relay

MODEL = uma.TINY_CHAT
CONFIG = "scheduler:\n  reproducible: strict\n"  # A state that is computed again elsewhere has the same bits.
FLAGS = ("--kv-cells", "32768", "--slots", "8")
SETTINGS = {"scheduler": {"reproducible": "strict"}, "kv": {"cells": 32768}, "slots": 8}  # The same, for an installation.


class Turns:
    """What the clients have in progress at a node."""

    def __init__(self):
        self.lock = threading.Lock()
        self.process_lock = threading.Lock()  # Held by who ends and starts the node.
        self.is_away = False  # It was killed, and has not started again.
        self.turns = 0

    def add_turns(self, count):
        with self.lock:
            self.turns += count


def problems_in(name, log):
    return [f"node {name}: {line}" for line in log.splitlines() if "UMA_CHECK" in line or "are not those of" in line]


class Node(Turns):
    """A umad with a relay of its own to the database."""

    def __init__(self, name, database):
        super().__init__()
        self.name = name
        self.relay = Relay(database.folder / ".s.PGSQL.5432")
        address = f"postgresql://postgres@127.0.0.1:{self.relay.port}/uma?sslmode=disable&gssencmode=disable"
        self.daemon = uma.Daemon(MODEL, *FLAGS, "--catalog", address, "--node", name, config=CONFIG)

    def client(self, timeout_s=uma.WAIT_S):
        return self.daemon.client(timeout_s)

    @contextlib.contextmanager
    def stopped(self):
        """The process stands still in the block."""
        process = self.daemon.process
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def start(self, is_over):
        """Starts it until it is ready: without the database a start fails, and a service manager would repeat it."""
        while not is_over():
            self.daemon.start()
            try:
                self.daemon.wait_ready()
                return
            except AssertionError:
                self.kill_process()

    def kill_process(self):
        if self.daemon.is_running():
            self.daemon.process.kill()
        self.daemon.process.wait()

    def check_running(self):
        """Raises if it has ended by itself."""
        status = self.daemon.process.poll()
        if status is not None:
            raise AssertionError(f"node {self.name} ended by itself with {status}")

    def terminate(self):
        self.check_running()
        status = self.daemon.terminate()
        if status != 0:
            raise AssertionError(f"node {self.name} ended with {status} after SIGTERM")

    def close(self):
        """Ends it; returns its log and what was wrong."""
        problems = []
        try:
            self.terminate()
        except (AssertionError, subprocess.TimeoutExpired) as problem:
            problems = [str(problem)]
        log = self.daemon.log()
        self.daemon.kill()
        self.relay.close()
        return log, problems + problems_in(self.name, log)


class InstalledNode(Turns):
    """A node of an installation."""

    def __init__(self, name, installed):
        super().__init__()
        self.name = name
        self.installed = installed

    def client(self, timeout_s=uma.WAIT_S):
        return uma.Client(self.installed.folder / self.name / "s", timeout_s)

    def start(self, is_over):
        """As Node.start(). The installation has started it before."""
        while not is_over() and not self.is_ready():
            if not self.installed.is_running(self.name):
                self.installed.start_node(self.name)
            time.sleep(0.05)

    def is_ready(self):
        # Over its socket, which no partition cuts.
        with contextlib.suppress(OSError, uma.ConnectionClosed), self.client() as client:
            return client.models()[0]["state"] == "ready"
        return False

    def kill_process(self):
        self.installed.kill(self.name)

    def check_running(self):
        if not self.installed.is_running(self.name):
            raise AssertionError(f"node {self.name} ended by itself")

    def close(self):
        """Returns its log and what was wrong. The installation ends it."""
        problems = []
        try:
            self.check_running()
        except AssertionError as problem:
            problems = [str(problem)]
        log = self.installed.log(self.name)
        return log, problems + problems_in(self.name, log)
