"""What the documentation lists is what the programs have: paths, metrics, flags and settings."""

import http.client
import re
import unittest

import uma


def text_of(name):
    return (uma.ROOT / name).read_text()


class Docs(uma.DaemonTest):
    flags = ("--http", "127.0.0.1:0")

    def test_every_metric_has_its_row(self):
        rows = text_of("docs/METRICS.md")
        known = set(re.findall(r"`([a-z0-9_]+)(?:\[\])?`", rows))
        missing = [name for name in self.client.metrics() if name not in known]
        self.assertEqual([], missing)

    def test_every_path_is_described(self):
        port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", self.daemon.log()).group(1))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=uma.WAIT_S)
        self.addCleanup(connection.close)
        connection.request("GET", "/nothing")
        message = connection.getresponse().read().decode()
        paths = re.findall(r"/[a-z0-9_/]+", message.split("serves", 1)[1])
        self.assertGreater(len(paths), 10, message)
        described = text_of("docs/PROTOCOL.md")
        self.assertEqual([], [path for path in paths if path not in described])

    def test_every_flag_of_the_help_is_described(self):
        helped = uma.run_umad("--help").stdout
        documents = "".join(path.read_text() for path in [uma.ROOT / "README.md", *(uma.ROOT / "docs").glob("*.md")])
        flags = set(re.findall(r"^ +(?:-\w,)?(--[a-z-]+)", helped, re.MULTILINE)) - {"--help", "--version"}
        self.assertGreater(len(flags), 10, helped)
        self.assertEqual([], sorted(flag for flag in flags if flag not in documents))


if __name__ == "__main__":
    unittest.main()
