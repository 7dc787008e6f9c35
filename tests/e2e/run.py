#!/usr/bin/env python3
"""Run the end-to-end tests, including those of tests/hostile, several classes at a time. Print a line for each test that ends.

  tests/e2e/run.py [--jobs N] [--shuffle SEED] [--results FILE] [NAME ...]

NAME is a module (test_http), a class (test_http.Http) or a test (test_http.Http.test_x); without a name all tests run. Each
class runs in a separate process, since its tests share a daemon. --shuffle orders classes, and the tests of each, by a seed,
which the last line of the output shows. At the end it lists what each module and the slowest classes took: wall time, and CPU
time of the class's process and of all that it has waited for. uma.py lists the environment variables. The exit status is 1 if
a test failed or none ran.
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

import machine
import uma

HERE = pathlib.Path(__file__).resolve().parent
FOLDERS = (HERE, HERE.parent / "hostile")
SLOWEST = 20  # classes that the times at the end list
CLASS_SECONDS_MAX = 1800  # longer than any class takes on a quiet machine; ends a hang


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
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and programs of a terminal are to end with it
    sys.path[:0] = map(str, FOLDERS)
    suite = unittest.TestLoader().loadTestsFromNames(tests)
    suite.run(Reporter(pipe))


# --- In the process of the runner

def end_group(process):
    """Ends the process of a class and all processes that it started: none may outlive the run."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def reap(process):
    """Waits for the end of a class's process, and ends what it has left. Returns the CPU time of it and of all that it has waited for."""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # its id is not given to another process yet
    end_group(process)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


class Times:
    """What tests took, in seconds."""

    def __init__(self):
        self.tests = 0
        self.wall = 0.0
        self.cpu = 0.0

    def add(self, tests, wall, cpu):
        self.tests += tests
        self.wall += wall
        self.cpu += cpu


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
        self.modules = collections.defaultdict(Times)
        self.classes = collections.defaultdict(Times)
        self.slowness = [machine.slowness()]  # of the machine, now and when each class began
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
        slowness = machine.slowness()
        guard = threading.Timer(CLASS_SECONDS_MAX * uma.BUILD_SLOWNESS * slowness, end_group, [process])
        guard.start()
        began = time.monotonic()
        seen, has_failed = set(), False
        try:
            with os.fdopen(reading) as lines:
                for line in lines:
                    outcome = json.loads(line)
                    has_failed |= outcome["outcome"] == "FAILED"
                    is_whole_class = outcome["outcome"] == "skipped" and outcome["test"].startswith("setUpClass ")
                    for test in tests if is_whole_class else [outcome["test"]]:
                        seen.add(test)
                        self.tell(outcome | {"test": test})
        finally:
            cpu_s = reap(process)
            guard.cancel()
            self.running.discard(process)
        with self.lock:
            self.slowness.append(slowness)
            for times in (self.modules[name.partition(".")[0]], self.classes[name]):
                times.add(len(tests), time.monotonic() - began, cpu_s)
        status = process.returncode
        listener.join(uma.WAIT_S)
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

    def times(self):
        """A table as lines: the modules, then the slowest classes."""
        def rows(named):
            return [f"{times.wall:8.1f} s {times.cpu:8.1f} s {times.tests:4d}  {name}"
                    for name, times in sorted(named.items(), key=lambda entry: -entry[1].wall)]
        total = sum(times.cpu for times in self.modules.values())
        return ["    wall       CPU tests  module", *rows(self.modules),
                "    wall       CPU tests  the slowest classes", *rows(self.classes)[:SLOWEST],
                f"all classes: {total:.0f} s of CPU time; a core was {min(self.slowness):.1f} to {max(self.slowness):.1f} times as slow as "
                "one that the bounds are made for"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=min(6, len(os.sched_getaffinity(0)) + 1),
                        help="run so many classes at a time (default: %(default)s; one more than cores, since most of them wait at times)")
    parser.add_argument("--shuffle", type=int, metavar="SEED",
                        help="run in a random order; the same seed gives the same order (default: order of discovery)")
    parser.add_argument("--results", type=pathlib.Path, metavar="FILE", help="write counts and times to this file, too, as JSON")
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
    times = runner.times()
    print("\n".join(times))
    if options.results is not None:
        options.results.write_text(json.dumps({"passed": runner.counts["ok"], "failed": runner.counts["FAILED"], "skipped": runner.skipped,
                                               "failures": runner.failed, "times": times}))
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
