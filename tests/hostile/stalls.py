"""Records when the machine itself stood still: times in which a thread of the highest priority, one on each core, was not woken.

  stalls.py '{}'

Writes "ready", then waits until its input ends, and writes {"stalls": [[begin, end], …]} in seconds of the monotonic clock. The list is
empty where the kernel refuses that priority.
"""

import json
import os
import sys
import threading
import time

PERIOD_S = 0.001
STALL_S = 0.003  # a later wake-up is a stall


def watch(core, end, stalls):
    """Appends the stalls of a core."""
    try:
        os.sched_setaffinity(0, {core})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    except OSError:
        return
    due = time.monotonic() + PERIOD_S
    while not end.is_set():
        time.sleep(max(0, due - time.monotonic()))
        now = time.monotonic()
        if now - due > STALL_S:
            stalls.append((due, now))
        due = now + PERIOD_S


def without(begin, end, stalls):
    """Returns the seconds between two times that are in no stall. `stalls` may overlap."""
    left, at = end - begin, begin
    for start, stop in sorted(stalls):
        start, stop = max(start, at), min(stop, end)
        if stop > start:
            left -= stop - start
            at = stop
    return left


def main():
    end = threading.Event()
    stalls = []
    threads = [threading.Thread(target=watch, args=(core, end, stalls), daemon=True) for core in os.sched_getaffinity(0)]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    sys.stdin.read()
    end.set()
    for thread in threads:
        thread.join()
    print(json.dumps({"stalls": stalls}), flush=True)


if __name__ == "__main__":
    main()
