"""Compares the documentation with the programs: paths, request types, metrics, settings and flags.

tests/docs_test.py makes the checks that need no program.
"""

import http.client
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import uma

def text_of(name):
    return (uma.ROOT / name).read_text()


def first_column(page):
    """The names in the first column of a page's tables."""
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def help_of(program, *command):
    """A program's --help, with that of its commands."""
    text = subprocess.run([str(uma.BUILD / "bin" / program), *command, "--help"], capture_output=True, text=True, check=True,
                          timeout=uma.WAIT_S, stdin=subprocess.DEVNULL).stdout
    commands = re.findall(r"^  ([a-z]+) ", text.partition("Subcommands:")[2].partition("\n\n\n")[0], re.MULTILINE)
    return text + "".join(help_of(program, *command, name) for name in commands)


class Docs(uma.DaemonTest):
    flags = ("--http", "127.0.0.1:0")

    def get(self, path):
        port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", self.daemon.log()).group(1))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=uma.WAIT_S)
        self.addCleanup(connection.close)
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    def test_every_metric_has_its_row_and_every_row_its_metric(self):
        metrics = self.client.metrics()
        page = text_of("docs/METRICS.md")
        before, _, after = page.partition("\n## Histograms")
        before, _, workers = before.partition("\n## Workers")
        before, _, devices = before.partition("\n## Devices")
        self.assertGreater(len(first_column(before)), 60)
        self.assertEqual(first_column(before), set(metrics) - {"workers", "devices"})
        for device in metrics["devices"]:
            self.assertEqual(first_column(devices) | {"name"}, set(device))
        self.assertEqual(first_column(workers), set(metrics["workers"][0]))

        families = {name.partition("{")[0] for name in first_column(after.partition("\n## ")[0]) if name.startswith("uma_")}
        histograms = set(re.findall(r"^# TYPE (\w+) histogram$", self.get("/metrics"), re.MULTILINE))
        self.assertGreater(len(histograms), 4)
        self.assertEqual(families, histograms)

    def test_every_path_is_described(self):
        paths = re.findall(r'HttpRoute\{\w+, "(/[a-z0-9_/]+)', text_of("src/server/http/routes.cpp"))
        self.assertGreater(len(paths), 10)
        described = text_of("docs/protocol/http.md")
        self.assertEqual([], [path for path in paths if path not in described])

    def test_every_request_type_has_an_example_and_every_example_its_type(self):
        self.client.send({"id": "1", "type": "nothing"})
        message = self.client.receive()["message"]
        types = set(message.partition("known: ")[2].split(", "))
        self.assertGreater(len(types), 20, message)
        page = text_of("docs/protocol/socket.md").partition("\n## Events\n")[0]
        shown = set(re.findall(r'"id":"\d+","type":"(\w+)"', page))
        described = set(re.findall(r"`(\w+)`", page)) | {name for names in re.findall(r"^### (.*)", page, re.MULTILINE)
                                                         for name in re.split(r", ", names)}
        self.assertEqual(set(), types - described)
        self.assertEqual(types, shown)

    def test_examples_of_requests_are_taken(self):
        page = text_of("docs/protocol/socket.md").partition("\n## Events\n")[0]
        examples = [json.loads(line) for line in re.findall(r'^\{"id":"\d+","type".*\}$', page, re.MULTILINE) if "…" not in line]
        sessions = page.partition("\n### Sessions\n")[2].partition("\n### ")[0]
        self.assertGreater(len(examples), 20)
        for example in examples:
            if example["type"] in ("import_session", "watch"):
                continue  # the answer to its parts, which are shortened on the page; an answer without an end
            reply = self.client.finish(self.client.start(example))
            self.assertFalse((reply.code or "").startswith("E_PROTO"), (example, reply.last))
            if f'"id":"{example["id"]}","type":"{example["type"]}"' in sessions:
                self.assertIsNone(reply.code, (example, reply.last))


class Examples(unittest.TestCase):
    """umad accepts the YAML of the documentation."""

    def blocks(self, *names):
        return [block for name in names for block in re.findall(r"^```yaml\n(.*?)^```$", text_of(name), re.MULTILINE | re.DOTALL)]

    def test_configurations(self):
        blocks = self.blocks("README.md", "docs/CONFIGURATION.md", "docs/protocol/openai.md")
        self.assertEqual(3, len(blocks))
        for block in blocks:
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "umad.yaml"
                path.write_text(block)
                result = uma.run_umad("--config", path, "--print-config")
            self.assertEqual(0, result.returncode, f"{block}\n{result.stderr}")

    def test_models_yaml(self):
        (block,) = self.blocks("docs/MODELS.md")
        with tempfile.TemporaryDirectory() as folder:
            path, config = pathlib.Path(folder) / "models.yaml", pathlib.Path(folder) / "umad.yaml"
            path.write_text(block)
            with uma.Daemon(config=f"models: {path}\n") as daemon, daemon.client() as client:
                names = {model["name"] for model in client.models()}
                self.assertLessEqual({"assistant", "embedder"}, names)

            path.write_text("one:\n  nothing: 1\n")
            config.write_text(f"models: {path}\n")
            result = uma.run_umad("--config", config, "--socket", f"{folder}/s", "--data-dir", f"{folder}/data")
        known = set(re.search(r"known: (.*)", result.stdout + result.stderr)[1].split(", "))
        self.assertGreater(len(known), 10)
        self.assertEqual(known, first_column(text_of("docs/MODELS.md")))


class Settings(unittest.TestCase):
    """Compares docs/CONFIGURATION.md with the output of umad --print-config."""

    def setUp(self):
        self.rows = {}
        for key, default, meaning in re.findall(r"^\| `([\w.]+)` \| (.*?) \| (.*) \|$", text_of("docs/CONFIGURATION.md"),
                                                re.MULTILINE):
            self.rows[key] = (default, meaning)
        environment = {"PATH": os.environ["PATH"], "HOME": "/home/you"}
        self.printed = uma.run_umad("--print-config", environment=environment).stdout

    def settings(self):
        """Yields (key, value, whether it is a comment, names in the environment and on the command line) of each printed
        line."""
        section = ""
        for line in self.printed.splitlines()[1:]:
            if re.fullmatch(r"\w+:", line):
                section = line.replace(":", ".")
                continue
            found = re.fullmatch(r"( *)(# )?(\w+): (.*?)(?: +# ([\w -]+))?", line)
            self.assertTrue(found, line)
            indent, comment, key, value, names = found.groups()
            yield (section if indent else "") + key, value, bool(comment), (names or "").split()

    def test_every_setting_is_described_with_its_default(self):
        self.assertGreater(len(self.rows), 60)
        self.assertEqual(set(self.rows), {key for key, *_ in self.settings()})
        for key, value, is_comment, _ in self.settings():
            default = self.rows[key][0]
            if not is_comment:
                self.assertEqual(f"`{value}`", default, key)
            elif value != "not set":  # a path that follows from HOME
                self.assertIn(f"`{value.removeprefix('/home/you/').split('/')[0]}", default.replace("~/", ""), key)
            else:
                self.assertNotIn("`", default, f"{key} is not set by default")

    def test_every_setting_is_described_with_its_other_names(self):
        for key, _, _, names in self.settings():
            named = re.findall(r"`(--[a-z-]+|UMA_[A-Z_]+)`", self.rows[key][1])
            self.assertEqual(sorted(names), sorted(named), key)

    def test_every_key_that_a_file_may_have_is_described(self):
        def known(text):
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "umad.yaml"
                path.write_text(text)
                message = uma.run_umad("--config", path).stderr
            return message.split("known: ", 1)[1].split("\n")[0].split(", ")

        sections = {key.partition(".")[0] for key in self.rows if "." in key} | {"metrics"}
        keys = {key for key in known("nothing: 1\n") if key not in sections}
        keys |= {f"{section}.{key}" for section in sections for key in known(f"{section}: {{nothing: 1}}\n")}
        without_effect = set(re.findall(r"`(\w+\.\w+)`", text_of("docs/CONFIGURATION.md").partition("\n## Accepted without")[2]))
        self.assertEqual(3, len(without_effect))
        self.assertEqual(set(self.rows) | without_effect, keys)


class Flags(unittest.TestCase):
    def setUp(self):
        self.documents = {path.relative_to(uma.ROOT): path.read_text()
                          for path in [*uma.ROOT.glob("*.md"), *(uma.ROOT / "docs").rglob("*.md")]}

    def test_every_flag_of_umad_is_described(self):
        flags = set(re.findall(r"^ +(?:-\w,)?(--[a-z-]+)", help_of("umad"), re.MULTILINE)) - {"--help", "--version"}
        self.assertGreater(len(flags), 10)
        text = "".join(self.documents.values())
        self.assertEqual([], sorted(flag for flag in flags if flag not in text))

    def test_every_flag_that_is_named_exists(self):
        known = set()
        for text in (help_of("umad"), uma.run_umad("tune", "--help").stdout, uma.run_umad("key").stderr, help_of("uma-cli"),
                     *(path.read_text() for folder in ("script", "bench", "tools", "apps/uma-bench", "tests/cluster")
                       for path in (uma.ROOT / folder).rglob("*")
                       if path.is_file() and path.suffix in ("", ".py", ".cpp") and path.name != "README.md")):
            known |= set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text))
        others = re.compile(r"(?:systemctl|journalctl|adduser|codex --oss|lm_eval run|guidellm run|aider)\b[^`;]*")  # commands of other programs, to their end
        named = {(flag, str(place)) for place, text in self.documents.items() for text in [others.sub("", text)]
                 for flag in re.findall(r"(?<![\w`|!<-])(?<!-)--[a-z][a-z0-9-]+|(?<=`)--[a-z][a-z0-9-]+", text)}
        self.assertGreater(len(named), 60)
        self.assertEqual([], sorted(f"{place}: {flag}" for flag, place in named if flag not in known))


if __name__ == "__main__":
    unittest.main()
