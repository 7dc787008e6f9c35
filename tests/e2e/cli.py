"""Runs uma-cli as a program and on a terminal, for the tests."""

import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import tempfile
import termios
import time
import unittest

import uma

CLI = uma.BUILD / "bin" / "uma-cli"
LONG = ("--max-tokens", "2000")  # the daemon's limit: far more tokens than any test waits for


def environment(**extra):
    """An environment without the settings and the history of the person who runs the tests."""
    return uma.clean_environment(TERM="xterm", LC_ALL="C.UTF-8", **extra)


def run_cli(*arguments, given=None, **extra):
    """Runs uma-cli to its end. `given`: bytes for its standard input; absent: /dev/null."""
    source = {"stdin": subprocess.DEVNULL} if given is None else {"input": given}
    return subprocess.run([str(CLI), *map(str, arguments)], capture_output=True, timeout=uma.WAIT_S, env=environment(**extra),
                          check=False, **source)


class Terminal:
    """uma-cli on a pseudo-terminal, as a person sees it. As a context manager it ends the process at the end of the block."""

    def __init__(self, *arguments, **extra):
        try:
            self.master, slave = pty.openpty()
        except OSError as problem:
            raise unittest.SkipTest(f"this system gives no pseudo-terminals ({problem})") from problem
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.before = termios.tcgetattr(self.master)
        self.process = subprocess.Popen([str(CLI), *map(str, arguments)], stdin=slave, stdout=slave, stderr=slave,
                                        start_new_session=True, env=environment(**extra),
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        self.seen = b""  # all of the output
        self.mark = 0  # the end of the last match

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)

    def type(self, keys):
        os.write(self.master, keys.encode())

    def read_more(self, timeout_s=0.05):
        """Reads the available output; False if the process has closed the terminal."""
        readable, _, _ = select.select([self.master], [], [], timeout_s)
        if not readable:
            return True
        try:
            data = os.read(self.master, 1 << 16)
        except OSError:  # EIO: the process has ended
            return False
        self.seen += data
        return bool(data)

    def expect(self, pattern):
        """Waits for `pattern` in the output since the last match; returns the text up to the end of the match."""
        found = None

        def look():
            nonlocal found
            is_open = self.read_more()
            found = re.search(pattern.encode(), self.seen[self.mark:])
            if found is None and not is_open:
                raise AssertionError(f"the process ended before {pattern!r}:\n{self.seen.decode(errors='replace')}")
            return found is not None

        try:
            uma.until(look, f"{pattern!r} on the terminal")
        except AssertionError as problem:
            raise AssertionError(f"{problem}\nseen: {self.seen[self.mark:]!r}") from None
        text = self.seen[self.mark:self.mark + found.end()].decode(errors="replace")
        self.mark += found.end()
        return text

    def prompt(self):
        """Waits for the next chat prompt, when the line editor takes keys; returns the text before the prompt."""
        shown = self.expect(r"(?:^|[\r\n])(?:\x1b\[[0-9;?]*[A-Za-z])*> ")
        uma.until(lambda: not termios.tcgetattr(self.master)[3] & termios.ICANON, "the line editor reads keys")
        return shown

    def wait(self):
        """Waits until the process has ended by itself, reading its output meanwhile; returns the exit status."""
        deadline = time.monotonic() + uma.WAIT_S
        while self.read_more():
            if self.process.poll() is not None:
                break
            if time.monotonic() > deadline:
                raise AssertionError(f"the program does not end; it has shown {self.text()!r}")
        with contextlib.suppress(OSError):
            self.read_more(0)
        return self.process.wait(uma.WAIT_S)

    def text(self):
        return self.seen.decode(errors="replace")


class CliTest(uma.DaemonTest):
    """Tests in which uma-cli finds the daemon by its environment."""

    def setUp(self):
        super().setUp()
        self.state = tempfile.mkdtemp(prefix="uma-e2e-state-")
        self.addCleanup(shutil.rmtree, self.state, ignore_errors=True)
        self.extra = {"UMA_SOCKET": self.daemon.socket_path, "XDG_STATE_HOME": self.state}

    def run_cli(self, *arguments, given=None):
        return run_cli(*arguments, given=given, **self.extra)

    def output_of(self, *arguments, given=None):
        """The standard output of a run that must succeed and print nothing else."""
        result = self.run_cli(*arguments, given=given)
        self.assertEqual((0, b""), (result.returncode, result.stderr))
        return result.stdout

    def start(self, *arguments, **streams):
        process = subprocess.Popen([str(CLI), *map(str, arguments)], stdin=subprocess.DEVNULL, env=environment(**self.extra), **streams)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def terminal(self, *arguments):
        return Terminal(*arguments, **self.extra)

    def sessions(self):
        return {entry["session_id"]: entry for entry in self.client.call(type="list_sessions")["sessions"]}

    def cancelled(self):
        return self.client.metrics()["requests_cancelled_total"]
