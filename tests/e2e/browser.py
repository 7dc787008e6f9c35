"""The base of the tests of the page in a browser: Chromium of the system, driven by playwright-core (page/driver.mjs)."""

import collections
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

import uma

FOLDER = pathlib.Path(__file__).parent / "page"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NO_BROWSER = "no Chromium (script/bootstrap --browser installs it)"
FAILURES = uma.BUILD / "page_failures"  # pictures of tabs in which a scenario failed


class Browser:
    """One Chromium and the program that drives it."""

    def __init__(self):
        environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(["node", FOLDER / "driver.mjs", CHROMIUM, str(int(uma.WAIT_S * 1000))], env=environment,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)

    def close(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(uma.WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()

    def _say(self, value):
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def run(self, scenario, url, options, expects, answers):
        """Returns the last line of a scenario. `answers`: functions by the name of what it asks for."""
        FAILURES.mkdir(exist_ok=True)
        self._say({"scenario": scenario, "url": url, "options": options, "expects": expects, "failures": str(FAILURES)})
        guard = threading.Timer(10 * uma.WAIT_S, self.process.kill)
        guard.start()
        try:
            for line in self.process.stdout:
                said = json.loads(line)
                if "ask" not in said:
                    return said
                value = said.get("value")
                self._say({"value": answers[said["ask"]](*([] if value is None else [value]))})
        finally:
            guard.cancel()
        self.log.seek(0)
        raise AssertionError(f"the driver ended in {scenario}:\n{self.log.read().decode(errors='replace')[-4000:]}")


@unittest.skipUnless(CHROMIUM, NO_BROWSER)
class PageTest(uma.DaemonTest):
    """A daemon with the page, and a browser. A fault of the browser's console, a request to elsewhere or a dialog fails each test."""

    model = uma.TINY_CHAT
    flags = ("--http", "127.0.0.1:0", "--kv-cells", "32768", "--slots", "4", "--threads", "1")

    @classmethod
    def setUpClass(cls):
        uma.need_packages(FOLDER)
        uma.need_packages(uma.ROOT / "page")  # else this umad has no page
        super().setUpClass()
        cls.url = cls.url_of(cls.daemon)
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    @staticmethod
    def url_of(daemon):
        return re.search(r"http +(http://[\w.]+:\d+)/v1", daemon.log()).group(1) + "/"

    def scenario(self, name, /, *, expects=(), answers=None, url=None, **options):
        """Runs a scenario of page/ and returns what it saw."""
        seen = self.browser.run(name, url or self.url, options, list(expects), answers or {})
        if "error" in seen:
            self.fail(f"{seen['error']}\nfaults: {seen['faults']}")
        self.assertEqual([], seen["faults"])
        result = seen["result"]
        return collections.namedtuple("Seen", result)(**result) if isinstance(result, dict) else result

    def ask(self, method, path, body=None, url=None, **headers):
        """The parsed answer of a request that succeeds."""
        request = urllib.request.Request((url or self.url) + path, method=method, headers=headers,
                                         data=None if body is None else json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=uma.WAIT_S) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from error

    def items(self, session):
        """The items of a session, the oldest first."""
        return self.ask("GET", f"v1/conversations/conv_{session}/items?order=asc&limit=100")["data"]

    def session(self, session):
        return self.ask("GET", f"v1/sessions/{session}")
