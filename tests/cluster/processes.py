"""Processes that can outlive the one that started them: known by their number and the time of their start, so that no other process
is ever ended in their place."""

import os
import signal
import subprocess
import time

import uma


def start_ticks(pid):
    """When the process began, in the kernel's ticks; None: there is none, or it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


class Process:
    """A running program. `child` is known only to the process that started it."""

    def __init__(self, pid, started, child=None):
        self.pid = pid
        self.started = started
        self.child = child

    @classmethod
    def start(cls, command, log, outlives=False, **options):
        """`outlives`: it goes on when the terminal or the runner of tests ends all that belongs to this process."""
        with open(log, "ab") as file:
            child = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                     start_new_session=outlives, **options)
        return cls(child.pid, start_ticks(child.pid), child)

    def is_running(self):
        if self.child is not None:
            return self.child.poll() is None
        return self.started is not None and start_ticks(self.pid) == self.started

    def send(self, number):
        if self.is_running():
            os.kill(self.pid, number)

    def wait(self, timeout_s):
        """Waits for its end; raises TimeoutError. Returns the status, or None if another process started it."""
        end = time.monotonic() + timeout_s
        while self.is_running():
            if time.monotonic() > end:
                raise TimeoutError(f"process {self.pid} does not end")
            time.sleep(0.02)
        return self.child.returncode if self.child is not None else None

    def end(self, number=signal.SIGTERM, timeout_s=uma.WAIT_S):
        """Ends it: by this signal, and by SIGKILL if that takes too long. Returns the status."""
        self.send(signal.SIGCONT)
        self.send(number)
        try:
            return self.wait(timeout_s)
        except TimeoutError:
            self.send(signal.SIGKILL)
            return self.wait(timeout_s)
