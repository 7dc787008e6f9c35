"""Tests of report.py."""

import json
import pathlib
import tempfile
import unittest

import report

CTEST = """<testsuite>
<testcase name="A.Passes" status="run"><system-out>fine</system-out></testcase>
<testcase name="A.Fails" status="fail"><failure message=""/><system-out/></testcase>
<testcase name="A.NeedsRoot" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
<system-out>[ RUN      ] A.NeedsRoot
/src/a_test.cpp:7: Skipped
only root can do it

[  SKIPPED ] A.NeedsRoot (0 ms)</system-out></testcase>
<testcase name="A.HasNoProgram" status="notrun"><skipped message=""/><system-out/></testcase>
</testsuite>"""


class Report(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def report(self, parts, **files):
        (self.folder / "parts").write_text("".join(f"{part}\n" for part in parts))
        for name, text in files.items():
            (self.folder / name.replace("_", ".")).write_text(text)
        return report.report(self.folder)

    def test_parts_without_files_count_as_one_test(self):
        lines, is_well = self.report(["ok 12 build", "ok 3 lint"])
        self.assertTrue(is_well)
        self.assertEqual("ok         12 s  build: 1 passed, 0 failed, 0 skipped", lines[0])
        self.assertEqual(["           15 s  in all", "2 passed, 0 failed, 0 skipped"], lines[-2:])
        lines, is_well = self.report(["FAILED 12 lint"], lint_log="shell\nscript/test: quote this\n")
        self.assertEqual(["FAILED  lint\n          shell\n          script/test: quote this", "0 passed, 1 failed, 0 skipped"], lines[-2:])
        lines, is_well = self.report(["FAILED 12 the build"])
        self.assertFalse(is_well)
        self.assertEqual(["FAILED  the build", "0 passed, 1 failed, 0 skipped"], lines[-2:])

    def test_tests_of_ctest_with_the_reasons_of_those_that_were_skipped(self):
        lines, is_well = self.report(["FAILED 5 unit"], unit_xml=CTEST)
        self.assertFalse(is_well)
        self.assertEqual(["skipped     1    ctest did not run it", "skipped     1    only root can do it", "FAILED  A.Fails",
                          "1 passed, 1 failed, 2 skipped"], lines[-4:])

    def test_end_to_end_tests_with_their_times(self):
        tests = {"passed": 7, "failed": 0, "skipped": {"no GPU": 2}, "failures": [], "times": ["a row"]}
        lines, is_well = self.report(["ok 9 e2e"], e2e_json=json.dumps(tests))
        self.assertTrue(is_well)
        self.assertEqual("                 a row", lines[1])
        self.assertEqual("7 passed, 0 failed, 2 skipped", lines[-1])

    def test_a_part_that_fails_without_a_failed_test_is_a_failure(self):
        tests = {"passed": 7, "failed": 0, "skipped": {}, "failures": [], "times": []}
        lines, is_well = self.report(["FAILED 9 e2e"], e2e_json=json.dumps(tests))
        self.assertFalse(is_well)
        self.assertEqual("7 passed, 1 failed, 0 skipped", lines[-1])


if __name__ == "__main__":
    unittest.main()
