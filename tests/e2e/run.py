#!/usr/bin/env python3
"""Run the end-to-end tests, including those of tests/hostile, several classes at a time. Print a line for each test that ends.

  tests/e2e/run.py [--jobs N] [--shuffle SEED] [NAME ...]

NAME is a module (test_http), a class (test_http.Http) or a test (test_http.Http.test_x); without a name all tests run. Each
class runs in a separate process, since its tests share a daemon. --shuffle orders classes, and the tests of each, by a seed,
which the last line of the output shows. uma.py lists the environment variables. The exit status is 1 if a test failed or
none ran.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import queue
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import unittest

HERE = pathlib.Path(__file__).resolve().parent
FOLDERS = (HERE, HERE.parent / "hostile")
CLASS_SECONDS_MAX = 1800 * float(os.environ.get("UMA_E2E_SLOW", "1"))  # longer than any class takes; ends a hang


def flat(suite):
    for entry in suite:
        if isinstance(entry, unittest.TestSuite):
            yield from flat(entry)
        else:
            yield entry


def find_tests(names):
    """The ids of the tests by class, in the order of discovery, except that classes with `takes_long` begin first."""
    sys.path[:0] = map(str, FOLDERS)
    loader = unittest.TestLoader()
    if names:
        suite = loader.loadTestsFromNames(names)
    else:
        suite = unittest.TestSuite(loader.discover(str(folder), "test_*.py", str(folder)) for folder in FOLDERS)
    if loader.errors:
        sys.exit("\n".join(loader.errors))
    classes = collections.defaultdict(list)
    for test in sorted(flat(suite), key=lambda test: not getattr(test, "takes_long", False)):
        classes[test.id().rsplit(".", 1)[0]].append(test.id())
    return classes


# --- In the process of a class

class Reporter(unittest.TestResult):
    """Writes the outcome of each test to a pipe, as a line of JSON."""

    def __init__(self, pipe):
        super().__init__()
        self.pipe = pipe
        self.began = time.monotonic()

    def report(self, test, outcome, why="", text=""):
        line = {"test": test.id(), "outcome": outcome, "why": why, "text": text, "seconds": time.monotonic() - self.began}
        self.pipe.write(json.dumps(line) + "\n")
        self.pipe.flush()

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def fail(self, test, problem):
        why = traceback.format_exception_only(*problem[:2])[-1].strip().partition("\n")[0]
        self.report(test, "FAILED", why[:500], "".join(traceback.format_exception(*problem)))

    def addSuccess(self, test):
        self.report(test, "ok")

    def addSkip(self, test, reason):
        self.report(test, "skipped", reason)

    def addFailure(self, test, problem):
        self.fail(test, problem)

    def addError(self, test, problem):  # also for setUpClass
        self.fail(test, problem)

    def addSubTest(self, test, subtest, problem):
        if problem is not None:
            self.fail(subtest, problem)

    def addExpectedFailure(self, test, problem):
        self.report(test, "ok")

    def addUnexpectedSuccess(self, test):
        self.report(test, "FAILED", "it passed, but is marked as one that fails")


def run_class(tests, pipe):
    sys.path[:0] = map(str, FOLDERS)
    suite = unittest.TestLoader().loadTestsFromNames(tests)
    suite.run(Reporter(pipe))


# --- In the process of the runner

def end_group(process):
    """Ends the process of a class and all processes that it started: none may outlive the run."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Runner:
    def __init__(self, classes, jobs):
        self.waiting = queue.SimpleQueue()
        for name, tests in classes:
            self.waiting.put((name, tests))
        self.jobs = jobs
        self.lock = threading.Lock()
        self.counts = collections.Counter()  # by outcome
        self.skipped = collections.Counter()  # by reason
        self.failed = []
        self.classes_count = len(classes)
        self.classes_ended = 0
        self.running = set()
        self.is_stopped = False

    def run(self):
        workers = [threading.Thread(target=self.work) for _ in range(self.jobs)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def stop(self):
        """Ends the running classes and starts no further ones."""
        self.is_stopped = True
        for process in list(self.running):
            end_group(process)

    def work(self):
        while not self.is_stopped:
            try:
                name, tests = self.waiting.get_nowait()
            except queue.Empty:
                return
            try:
                self.run_one(name, tests)
            except Exception:  # an error of the runner: it is reported for this class, and the next class still runs
                self.tell({"test": name, "outcome": "FAILED", "why": "the runner failed", "seconds": 0, "text": traceback.format_exc()})
            with self.lock:
                self.classes_ended += 1

    def run_one(self, name, tests):
        reading, writing = os.pipe()
        process = subprocess.Popen([sys.executable, "-B", __file__, "--class-of", str(writing), *tests], pass_fds=[writing],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                   start_new_session=True)
        os.close(writing)
        self.running.add(process)
        if self.is_stopped:
            end_group(process)
        said = []  # the output of the tests, shown if one fails
        listener = threading.Thread(target=lambda: said.append(process.stdout.read()), daemon=True)
        listener.start()
        guard = threading.Timer(CLASS_SECONDS_MAX, end_group, [process])
        guard.start()
        seen, has_failed = set(), False
        try:
            with os.fdopen(reading) as lines:
                for line in lines:
                    outcome = json.loads(line)
                    seen.add(outcome["test"])
                    if outcome["outcome"] == "skipped" and outcome["test"].startswith("setUpClass "):
                        seen.update(tests)  # all tests of the class
                    has_failed |= outcome["outcome"] == "FAILED"
                    self.tell(outcome)
            status = process.wait()
        finally:
            guard.cancel()
            end_group(process)
            self.running.discard(process)
        listener.join(10)
        missing = [test for test in tests if test not in seen]
        if (status != 0 or missing) and not has_failed and not self.is_stopped:
            self.tell({"test": name, "outcome": "FAILED", "seconds": 0, "why": f"its process ended with status {status}, without {missing}", "text": ""})
            has_failed = True
        if has_failed:
            with self.lock:
                print("".join(said), flush=True)

    def tell(self, outcome):
        with self.lock:
            self.counts[outcome["outcome"]] += 1
            why = f"  ({outcome['why']})" if outcome["why"] else ""
            print(f"{outcome['outcome']:<7} {outcome['seconds']:6.1f} s  {outcome['test']}{why}", flush=True)
            if outcome["outcome"] == "FAILED":
                self.failed.append(outcome["test"])
                print(outcome["text"], flush=True)
            if outcome["outcome"] == "skipped":
                self.skipped[outcome["why"]] += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=min(4, len(os.sched_getaffinity(0))),
                        help="run so many classes at a time (default: %(default)s)")
    parser.add_argument("--shuffle", type=int, metavar="SEED",
                        help="run in a random order; the same seed gives the same order (default: order of discovery)")
    parser.add_argument("--class-of", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.class_of is not None:
        with os.fdopen(options.class_of, "w") as pipe:
            run_class(options.names, pipe)
        return 0

    classes = list(find_tests(options.names).items())
    if options.shuffle is not None:
        chance = random.Random(options.shuffle)
        chance.shuffle(classes)
        for _, tests in classes:
            chance.shuffle(tests)
    runner = Runner(classes, options.jobs)
    signal.signal(signal.SIGTERM, lambda *_: runner.stop())
    began = time.monotonic()
    try:
        runner.run()
    except KeyboardInterrupt:
        runner.stop()
        raise
    for test in runner.failed:
        print(f"FAILED  {test}")
    for reason, count in runner.skipped.items():
        print(f"skipped {count}: {reason}")
    shuffled = "" if options.shuffle is None else f", order {options.shuffle}"
    print(f"end to end: {runner.counts['ok']} passed, {runner.counts['FAILED']} failed, {runner.counts['skipped']} skipped "
          f"in {time.monotonic() - began:.0f} s, {options.jobs} classes at a time{shuffled}")
    is_whole = runner.classes_ended == runner.classes_count and not runner.is_stopped
    return 0 if runner.counts["ok"] and not runner.failed and is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
