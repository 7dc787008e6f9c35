"""A PostgreSQL server for tests, where its programs are installed: on a Unix socket in a folder of its own."""

import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import tempfile
import unittest

import uma


def programs():
    """The folder of the newest installed server; None: there is none, or root has no user for it (it refuses to run as root)."""
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found or (os.getuid() == 0 and not any(user.pw_name == "postgres" for user in pwd.getpwall())):
        return None
    return found[-1].parent


def needed(test_class):
    return unittest.skipIf(programs() is None, "PostgreSQL is not installed")(test_class)


class Postgres:
    """A server that runs in the block, with the database `uma`. `fsync`: a commit waits for the disk. `mount` gets the empty folder of the
    tables' files, to mount a file system there; its log of transactions is elsewhere."""

    def __init__(self, mount=None, fsync=False):
        self.fsync = "on" if fsync else "off"
        self.mount = mount
        self.bin = programs()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="uma-pg-"))
        self.process = None
        self.user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
        if self.user:
            shutil.chown(self.folder, "postgres", "postgres")

    def address(self, database="uma"):
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def start(self):
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [self.bin / "postgres", "-D", self.folder / "data", "-k", self.folder, "-c", "listen_addresses=", "-c", f"fsync={self.fsync}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, **self.user)

        def answers():
            if self.process.poll() is not None:
                raise AssertionError(f"PostgreSQL did not start:\n{(self.folder / 'log').read_text()}")
            return self.run_sql("SELECT 1", "postgres") is not None
        uma.until(answers, f"PostgreSQL in {self.folder} answers")

    def stop(self, number=signal.SIGINT):
        """Ends it as a fast shutdown does: connections are closed. With SIGQUIT it ends as in a crash."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(uma.WAIT_S)
            self.process = None

    def run_sql(self, sql, database="uma"):
        """The rows as text, a line each; None: it failed."""
        done = subprocess.run([self.bin / "psql", "-h", self.folder, "-U", "postgres", "-d", database, "-v", "ON_ERROR_STOP=1", "-qAtc", sql],
                              capture_output=True, text=True, timeout=uma.WAIT_S, check=False, cwd=self.folder)
        return done.stdout.strip() if done.returncode == 0 else None

    def __enter__(self):
        elsewhere = []
        try:
            if self.mount is not None:
                (self.folder / "data").mkdir()
                self.mount(self.folder / "data")
                if self.user:
                    shutil.chown(self.folder / "data", "postgres", "postgres")
                elsewhere = ["--waldir", self.folder / "wal"]
            subprocess.run([self.bin / "initdb", "-D", self.folder / "data", "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C", *elsewhere],
                           stdout=subprocess.DEVNULL, check=True, timeout=2 * uma.WAIT_S, cwd=self.folder, **self.user)
            self.start()
            assert self.run_sql("CREATE DATABASE uma", "postgres") is not None
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
