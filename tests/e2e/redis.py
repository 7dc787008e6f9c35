"""A Redis server for tests, where its program is installed: on a port of the loopback, with a folder of its own."""

import contextlib
import pathlib
import shutil
import socket
import subprocess
import tempfile
import unittest

import uma

PROGRAM = shutil.which("redis-server")


def needed(test_class):
    return unittest.skipIf(PROGRAM is None, "Redis is not installed")(test_class)


class Redis:
    """A server that runs in the block."""

    def __init__(self, *flags):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="uma-redis-"))
        self.flags = flags
        self.process = None
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    @property
    def address(self):
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self):
        self.process = subprocess.Popen(
            [PROGRAM, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(self.folder), *self.flags],
            stdin=subprocess.DEVNULL, stdout=open(self.folder / "log", "ab"), stderr=subprocess.STDOUT)

        def answers():
            if self.process.poll() is not None:
                raise AssertionError(f"Redis did not start:\n{(self.folder / 'log').read_text()}")
            with contextlib.suppress(OSError):
                return self.ask("PING") == b"PONG"
        uma.until(answers, f"Redis in {self.folder} answers")

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait(uma.WAIT_S)
            self.process = None

    def ask(self, *command):
        """The answer to a command: bytes, a number, a list, or None."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=uma.WAIT_S) as connection, connection.makefile("rwb") as stream:
            parts = [part if isinstance(part, bytes) else str(part).encode() for part in command]
            stream.write(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
            stream.flush()
            return self.read(stream)

    def read(self, stream):
        line = stream.readline().rstrip(b"\r\n")
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            raise AssertionError(rest.decode())
        if kind == b"$":
            data = stream.read(int(rest) + 2)[:-2] if int(rest) >= 0 else None
            return data
        if kind == b"*":
            return [self.read(stream) for _ in range(int(rest))]
        return int(rest) if kind == b":" else rest

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
