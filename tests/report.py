#!/usr/bin/env python3
"""Sums up a run of script/test: the parts with what they took, what was skipped and why, what failed, and one line with all counts.

  tests/report.py FOLDER

FOLDER has the file `parts`, with a line "RESULT SECONDS NAME" for each part, and for some parts the file of their tests: NAME.xml of
ctest, or NAME.json of tests/e2e/run.py. A part without such a file counts as one test; if it failed, the end of its output, NAME.log, is
shown. The exit status is 1 if anything failed.
"""

import collections
import json
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree


class Tests:
    """The tests of a part."""

    def __init__(self, passed=0, failures=(), skipped=(), times=()):
        self.passed = passed
        self.failures = list(failures)
        self.skipped = collections.Counter(skipped)  # by reason
        self.times = list(times)


def of_ctest(path):
    tests = Tests()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.get("status") == "run":
            tests.passed += 1
        elif case.get("status") == "fail":
            tests.failures.append(case.get("name"))
        else:
            # GoogleTest prints the place, and the reason in the next line.
            reason = re.search(r": Skipped\n(.+)", case.findtext("system-out") or "")
            tests.skipped[reason[1].strip() if reason else "ctest did not run it"] += 1
    return tests


def of_end_to_end(path):
    found = json.loads(path.read_text())
    return Tests(found["passed"], found["failures"], found["skipped"], found["times"])


def end_of_output(path, lines=15):
    return path.read_text(errors="replace").splitlines()[-lines:] if path.exists() else []


def tests_of(folder, name, result):
    if (folder / f"{name}.xml").exists():
        tests = of_ctest(folder / f"{name}.xml")
    elif (folder / f"{name}.json").exists():
        tests = of_end_to_end(folder / f"{name}.json")
    else:
        tests = Tests(passed=int(result == "ok"))
    if result == "FAILED" and not tests.failures:
        tests.failures.append("\n          ".join([name, *end_of_output(folder / f"{name}.log")]))
    return tests


def report(folder):
    """The lines of the report, and whether nothing failed."""
    lines, failures, skipped, passed, total_s = [], [], collections.Counter(), 0, 0
    for line in (folder / "parts").read_text().splitlines():
        result, seconds, name = line.split(" ", 2)
        tests = tests_of(folder, name, result)
        total_s += int(seconds)
        passed += tests.passed
        failures += tests.failures
        skipped += tests.skipped
        counts = f"{tests.passed} passed, {len(tests.failures)} failed, {tests.skipped.total()} skipped"
        lines.append(f"{result:<7} {seconds:>5} s  {name}: {counts}")
        lines += [" " * 17 + time for time in tests.times]
    lines.append(f"        {total_s:5} s  in all")
    lines += [f"skipped {count:5}    {reason}" for reason, count in sorted(skipped.items())]
    lines += [f"FAILED  {failure}" for failure in failures]
    lines.append(f"{passed} passed, {len(failures)} failed, {skipped.total()} skipped")
    return lines, not failures


def main():
    lines, is_well = report(pathlib.Path(sys.argv[1]))
    print("\n".join(lines))
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
