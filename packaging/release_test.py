#!/usr/bin/env python3
"""Tests of script/release in small repositories of their own, with a stand-in for script/package."""

import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent

CHANGELOG = "# Changelog\n## Unreleased\n- **New**: something.\n"
PACKAGE = """#!/usr/bin/env bash
while [ $# -gt 0 ]; do if [ "$1" = --out ]; then out=$2; fi; shift; done
git describe --exact-match >"$out/uma-serve_test.deb"
"""


class Release(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="uma-release-")))
        (self.folder / "script").mkdir()
        shutil.copy(ROOT / "script" / "release", self.folder / "script")
        self.write("script/package", PACKAGE).chmod(0o755)
        self.write("CMakeLists.txt", "cmake_minimum_required(VERSION 3.25)\nproject(uma-serve VERSION 0.1.0 LANGUAGES CXX)\n")
        self.write("CHANGELOG.md", CHANGELOG)
        self.write(".gitignore", "/dist/\n")
        # For whoever runs the test without being root.
        self.write("bin/sudo", '#!/bin/sh\nexec "$@"\n').chmod(0o755)
        self.git("init", "-q")
        self.commit()

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def run_command(self, *command):
        environment = {"PATH": f"{self.folder / 'bin'}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(self.folder),
                       "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a",
                       "GIT_COMMITTER_EMAIL": "a@b"}
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120, check=False)

    def git(self, *arguments):
        result = self.run_command("git", *arguments)
        self.assertEqual(0, result.returncode, result.stderr)
        return result.stdout.strip()

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-qm", "a change")

    def release(self, *arguments):
        return self.run_command("script/release", *arguments)

    def assert_refused(self, what, *arguments, status=1):
        """Refused, and nothing has changed."""
        head, tags, state = self.git("rev-parse", "HEAD"), self.git("tag"), self.git("status", "--porcelain")
        result = self.release(*arguments)
        self.assertEqual(status, result.returncode, result.stdout + result.stderr)
        self.assertIn(what, result.stderr)
        self.assertEqual((head, tags, state), (self.git("rev-parse", "HEAD"), self.git("tag"), self.git("status", "--porcelain")))

    def test_this_repository_has_the_lines_that_it_changes(self):
        self.assertRegex((ROOT / "CMakeLists.txt").read_text(), r"(?m)^project\(uma-serve VERSION \d+\.\d+\.\d+ LANGUAGES CXX\)$")
        self.assertEqual(1, (ROOT / "CHANGELOG.md").read_text().splitlines().count("## Unreleased"))

    def test_a_release(self):
        result = self.release("0.2.0")
        self.assertEqual(0, result.returncode, result.stdout + result.stderr)
        self.assertEqual("", self.git("status", "--porcelain"))
        self.assertEqual("v0.2.0", self.git("describe", "--exact-match"))
        self.assertIn("project(uma-serve VERSION 0.2.0 LANGUAGES CXX)", (self.folder / "CMakeLists.txt").read_text())
        changelog = (self.folder / "CHANGELOG.md").read_text()
        self.assertRegex(changelog, r"^# Changelog\n## Unreleased\n\n## 0\.2\.0 \(\d{4}-\d\d-\d\d\)\n- \*\*New\*\*: something\.\n$")
        # The stand-in wrote the tag of the commit that it packaged.
        self.assertEqual("v0.2.0\n", (self.folder / "dist/0.2.0/uma-serve_test.deb").read_text())
        self.assertRegex((self.folder / "dist/0.2.0/SHA256SUMS").read_text(), r"^[0-9a-f]{64}  uma-serve_test\.deb\n$")
        checked = self.run_command("sh", "-c", "cd dist/0.2.0 && sha256sum --check --quiet SHA256SUMS")
        self.assertEqual(0, checked.returncode, checked.stderr)

    def test_the_version_that_is_not_released_yet(self):
        self.assertEqual(0, self.release("0.1.0").returncode)

    def test_one_after_the_other(self):
        self.assertEqual(0, self.release("0.9.0").returncode)
        self.assert_refused("nothing under", "0.10.0")
        self.write("CHANGELOG.md", (self.folder / "CHANGELOG.md").read_text().replace("## Unreleased\n", "## Unreleased\n- More.\n", 1))
        self.commit()
        self.assert_refused("0.8.9 is lower than 0.9.0", "0.8.9")
        self.assert_refused("the tag v0.9.0 exists", "0.9.0")
        self.assertEqual(0, self.release("0.10.0").returncode, "higher by number, not by letter")
        self.assertEqual(["0.10.0", "0.9.0"], re.findall(r"^## (\d\S*)", (self.folder / "CHANGELOG.md").read_text(), re.MULTILINE))

    def test_versions_that_are_none(self):
        for version in ("1", "1.2", "1.2.3.4", "v1.2.3", "1.02.3", "1.2.x", "1.2.3-rc1", "1.2.3;true", " 1.2.3", "1.2.123456"):
            with self.subTest(version):
                self.assert_refused("is no version", version)
        self.assert_refused("give the version", status=2)
        self.assert_refused("two versions", "1.0.0", "2.0.0", status=2)
        self.assert_refused("unknown argument", "--now", status=2)

    def test_a_dirty_tree(self):
        self.write("new.txt", "not added")
        self.assert_refused("not committed", "0.2.0")
        (self.folder / "new.txt").unlink()
        self.write("CHANGELOG.md", CHANGELOG + "- Not committed.\n")
        self.assert_refused("not committed", "0.2.0")

    def test_a_dry_run_changes_nothing(self):
        head = self.git("rev-parse", "HEAD")
        result = self.release("0.2.0", "--dry-run")
        self.assertEqual(0, result.returncode, result.stderr)
        self.assertIn("+project(uma-serve VERSION 0.2.0 LANGUAGES CXX)", result.stdout)
        self.assertEqual((head, "", ""), (self.git("rev-parse", "HEAD"), self.git("tag"), self.git("status", "--porcelain")))
        self.assertFalse((self.folder / "dist").exists())

    def test_packages_that_fail_undo_the_release(self):
        self.write("script/package", "#!/bin/sh\nexit 3\n")
        self.commit()
        self.assert_refused("the packages failed their check", "0.2.0")


if __name__ == "__main__":
    unittest.main()
