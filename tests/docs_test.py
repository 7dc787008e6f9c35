#!/usr/bin/env python3
"""Checks the documentation as far as possible without a build: what it names exists, and what must be listed in it is listed.

(1) Every page, decision, file and link that is named in code, comments or documentation exists, with the headings of links. (2)
Every page of docs/ is in docs/README.md, every decision with its title in docs/decisions/README.md, every script
in README.md or CONTRIBUTING.md; every module and program has a README. (3) Error codes, events and fields of the socket,
routes, metrics and names of threads are the same in the code and in the pages that list them. tests/e2e/test_docs.py checks the
rest with the programs.

Run: python3 tests/docs_test.py
"""

import os
import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import fields_tables  # noqa: E402
import metrics_tables  # noqa: E402

LEFT_OUT = {".git", ".cache", "build", "node_modules", "__pycache__", "models"}  # models/ has weights, and one note
TEXTS = {".md", ".h", ".cpp", ".py", ".txt", ".cmake", ".mjs", ".js", ".json", ".yaml", ".yml", ".svg", ".tmpl", ""}
PAGE = re.compile(r"(?<![\w./:-])([\w./-]*\w\.md)\b")
URL = re.compile(r"\b\w+://[^\s)>\"'`]+")
LINK = re.compile(r"\]\(([^()\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
SECTION_OF_A_PAPER = re.compile(r"\b([A-Z][A-Z_]{3,})(?:\.md)?,? (?:§|sections? )\s*\d")
DECISION = re.compile(r"\bdecisions?[ /](\d{1,4})\b")
DECISION_FILE = re.compile(r"(?<![\w-])(00\d\d)(?![\w])")
FILE = re.compile(r"(?<![\w./$<>{}-])((?:src|apps|tests|tools|bench|docs|script|cmake|packaging|deploy)/[\w./-]*\w)(?![\w*{<])")
FILE_OF_A_MODULE = re.compile(r"`((?:base|core|json|sched|kv|fetch|wire|grammar|jinja|llm|image|chat(?=/\w+\.)|engine|pool|server|testing)/[\w/]+(?:\.h|\.cpp)?)`")
NOT_OURS = {"grammars/README.md"}  # src/grammar/gbnf.h names llama.cpp's


def text_files(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - LEFT_OUT)
        for name in sorted(names):
            path = pathlib.Path(folder) / name
            if path.suffix in TEXTS and path != pathlib.Path(__file__).resolve():
                yield path, path.read_text(encoding="utf-8", errors="replace")


def anchor_of(heading):
    """Returns the name of a heading in links: lower case, without punctuation, hyphens for spaces."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading.strip("# ")).lower()
    return re.sub(r" ", "-", re.sub(r"[^\w\- ]", "", plain))


def anchors_of(path):
    return {anchor_of(heading) for heading in re.findall(r"^#+ +.*$", FENCE.sub("", path.read_text()), re.MULTILINE)}


def missing_page(root, path, name):
    places = (path.parent, root, root / "docs", root / "docs/protocol", root / "docs/decisions")
    return name not in NOT_OURS and not any((place / name).is_file() for place in places)


def broken_links(root, path, text):
    for target in LINK.findall(CODE.sub("", text)):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        page = (path.parent / name) if name else path
        if not page.exists():
            yield f"link to {target}: there is no such file"
        elif anchor and anchor not in anchors_of(page):
            yield f"link to {target}: the page has no such heading"


def missing_files(root, text):
    """Yields the paths of source files and folders that a text names and that do not exist; an ending may be left out."""
    named = set(FILE.findall(text)) | {f"src/{name}" for name in FILE_OF_A_MODULE.findall(text)}
    for name in sorted(named):
        is_decision = re.fullmatch(r"docs/decisions/\d{4}", name)  # checked by its number
        if not is_decision and not any((root / (name + ending)).exists() for ending in ("", ".h", ".cpp", ".py")):
            yield f"names {name}, which is not here"


def references(root):
    """Returns everything that texts below `root` name and that does not exist, as lines of text."""
    found = []
    decisions = {path.name[:4] for path in (root / "docs/decisions").glob("0*.md")}
    for path, text in text_files(root):
        place = path.relative_to(root)
        plain = URL.sub("", text)
        if path.suffix in (".md", ".h"):
            found += [f"{place}: {problem}" for problem in missing_files(root, re.sub(r"[\w./-]+\.md\b", "", plain))]
        names = {name for name in PAGE.findall(plain) if missing_page(root, path, name)}
        found += [f"{place}: names {name}, which is not here" for name in sorted(names)]
        papers = {name for name in SECTION_OF_A_PAPER.findall(plain) if missing_page(root, path, name + ".md")}
        found += [f"{place}: names a section of {name}, which is not here" for name in sorted(papers)]
        numbers = {number.zfill(4) for number in DECISION.findall(plain)}
        if path.suffix == ".md":
            numbers |= set(DECISION_FILE.findall(FENCE.sub("", plain)))
            found += [f"{place}: {problem}" for problem in broken_links(root, path, text)]
        found += [f"{place}: names decision {number}, which is not here" for number in sorted(numbers - decisions)]
    return found


def read(name):
    return (ROOT / name).read_text()


def protocol(*names):
    """Returns the text of these pages of docs/protocol, or of all of them."""
    pages = sorted((ROOT / "docs/protocol").glob("*.md"))
    return "\n".join(page.read_text() for page in pages if not names or page.name in names)


def sources(*folders):
    """Returns the text of all sources of these folders, except tests."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.cpp"))]
    return "\n".join(path.read_text() for path in paths if not path.stem.endswith("_test"))


def words_in_code(text):
    """Returns every word in the code spans and blocks of a page."""
    return set(re.findall(r"\w+", " ".join(CODE.findall(text))))


class FirstPage(unittest.TestCase):
    def test_its_figures_are_those_of_the_pages_that_it_cites(self):
        numbers = re.compile(r"\d[\d,.]*\d|\d")
        cited = 0
        for row in re.findall(r"^\| .*\|$", read("README.md"), re.MULTILINE):
            what, ours, theirs = row.split("|")[1:4]
            command, link = re.search(r"`(script/bench compare \w+)`", ours), re.search(r"\((docs/\w+\.md)#([\w-]+)\)", ours)
            if not command and not link:
                continue
            page = read(link[1] if link else "docs/BENCHMARKS.md")
            sections = re.split(r"^(?=#+ )", page, flags=re.MULTILINE)
            source = [part for part in sections if (command and re.search(command[1] + r"\b", part))
                      or (link and link[2] == anchor_of(part.partition("\n")[0]))]
            known = set(numbers.findall("\n".join(source)))
            shown = set(numbers.findall(re.sub(r"`[^`]*`|\[[^]]*\]\([^)]*\)", "", ours + theirs)))
            self.assertGreater(len(shown), 1, what)
            self.assertEqual(set(), shown - known, what)
            cited += 1
        self.assertGreater(cited, 3)


class References(unittest.TestCase):
    def test_what_is_named_exists(self):
        self.assertEqual([], references(ROOT))

    def test_the_tree_was_read(self):
        """Otherwise a test that finds nothing to check would always pass."""
        named = [name for _, text in text_files(ROOT) for name in PAGE.findall(text)]
        links = [link for path, text in text_files(ROOT) if path.suffix == ".md" for link in LINK.findall(text)]
        self.assertGreater(len(named), 100)
        self.assertGreater(len(links), 80)


class Indexes(unittest.TestCase):
    def test_every_page_is_in_the_index(self):
        pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
        self.assertEqual(set(), pages - set(LINK.findall(read("docs/README.md"))))
        self.assertIn("protocol/README.md", LINK.findall(read("docs/README.md")))

    def test_every_page_of_the_protocol_is_in_its_index(self):
        pages = {path.name for path in (ROOT / "docs/protocol").glob("*.md")} - {"README.md"}
        self.assertGreater(len(pages), 3)
        self.assertEqual(set(), pages - set(LINK.findall(read("docs/protocol/README.md"))))

    def test_every_decision_is_in_the_index_with_its_title(self):
        listed = re.findall(r"^- \[(\d{4}) · (.+?)\]\((.+?)\)", read("docs/decisions/README.md"), re.MULTILINE)
        rows = {name: (number, title) for number, title, name in listed}
        records = {}
        for path in sorted((ROOT / "docs/decisions").glob("0*.md")):
            title = re.match(r"# (\d+) · (.+)\n", path.read_text())
            self.assertTrue(title, f"{path.name} does not begin with `# NUMBER · TITLE`")
            records[path.name] = (title[1].zfill(4), title[2])
        self.assertEqual(records, rows)
        self.assertEqual([], [name for name in records if name[:4] != records[name][0]])

    def test_every_script_is_described(self):
        described = read("README.md") + read("CONTRIBUTING.md")
        scripts = [path.name for path in sorted((ROOT / "script").iterdir())]
        self.assertIn("test", scripts)
        self.assertEqual([], [name for name in scripts if not re.search(rf"script/{name}\b", described)])

    def test_every_module_and_program_has_a_readme(self):
        folders = [path for top in ("src", "apps", "tools") for path in sorted((ROOT / top).iterdir()) if path.is_dir()]
        self.assertGreater(len(folders), 12)
        empty = [str(path.relative_to(ROOT)) for path in folders
                 if path.name not in LEFT_OUT and not (path / "README.md").is_file()]
        self.assertEqual([], empty)


class Protocol(unittest.TestCase):
    def test_error_codes(self):
        code = r"\bE_(?:PROTO|LIMIT|MODEL|SESSION|RUNTIME|IO|AUTH)_\d{3}\b"
        in_code = set(re.findall(rf'"({code})"', read("src/core/error.cpp")))
        listed = set(re.findall(rf"^\| `({code})` \|", read("docs/protocol/errors.md"), re.MULTILINE))
        self.assertGreater(len(in_code), 15)
        self.assertEqual(in_code, listed)
        commented = set(re.findall(rf"// ({code})", read("src/core/error.h")))
        self.assertEqual(in_code, commented)
        pages = [path.read_text() for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.h")]]
        self.assertEqual(set(), {name for text in pages for name in re.findall(code, text)} - in_code)

    def test_events(self):
        in_code = set(re.findall(r'(?:append_reply\(\w+, \w+|\.field\("event"), "(\w+)"', sources("src/wire")))
        text = protocol("socket.md").split("\n## Events\n")[1].split("\n## ")[0]
        described = {name for names in re.findall(r"^### (.*)", text, re.MULTILINE) for name in names.split(", ")}
        shown = set(re.findall(r'"event":"(\w+)"', protocol("socket.md")))
        self.assertGreater(len(in_code), 12)
        self.assertEqual(in_code, described, "each event has a section, and each section its events")
        self.assertEqual(in_code, shown, "each event has an example, and each example its event")

    def test_routes(self):
        routes = re.findall(r'HttpRoute\{\w+, "([^"]+)"', read("src/server/http/routes.cpp"))
        self.assertGreater(len(routes), 25)
        parts = {part for route in routes for part in re.split("[/.-]", route) if part and not part.startswith("{")}
        self.assertEqual(set(), parts - words_in_code(protocol("http.md")))

    def test_fields_that_are_read(self):
        names = set(re.findall(r'\b\w+\.(?:text|required_text|boolean|integer|unsigned_integer|number|array|object|find)\(\s*'
                               r'"(\w+)"', sources("src/wire")))
        self.assertGreater(len(names), 80)
        self.assertEqual(set(), names - words_in_code(protocol()))

    def test_fields_that_are_written_on_the_socket(self):
        names = set(re.findall(r'\b\w+\.(?:field|begin|begin_array)\(\s*"(\w+)"', read("src/wire/own/event_codec.cpp")))
        self.assertGreater(len(names), 60)
        self.assertEqual(set(), names - words_in_code(protocol()))


class RequestFields(unittest.TestCase):
    def pages(self):
        return {path: path.read_text() for path in sorted((ROOT / "docs/protocol").glob("*.md"))}

    def test_the_pages_have_the_tables_of_the_source(self):
        source = read("src/wire/request_fields.cpp")
        for path, page in self.pages().items():
            self.assertEqual(fields_tables.with_tables(page, source), page, f"{path.name}: run tools/fields_tables.py")

    def test_every_route_has_its_table(self):
        routes = fields_tables.routes_of(read("src/wire/request_fields.h"))
        self.assertGreater(len(routes), 10)
        self.assertEqual(sorted(routes), sorted(route for page in self.pages().values() for route in fields_tables.routes_in(page)))

    def test_every_row_of_the_source_was_read(self):
        source = read("src/wire/request_fields.cpp")
        rows = fields_tables.rows(source)
        self.assertGreater(len(rows), 100)
        table = source.partition("kFields[] = {")[2].partition("\n};")[0]
        self.assertEqual(len(re.findall(r"^    \{", table, re.MULTILINE)), len(rows))
        self.assertEqual([], [paths for _, paths, kind, note, _ in rows if kind != "served" and not note])


class Metrics(unittest.TestCase):
    def test_the_page_has_the_tables_of_the_source(self):
        page, source = read("docs/METRICS.md"), read("src/core/metrics_table.h")
        self.assertEqual(metrics_tables.with_tables(page, source), page, "run tools/metrics_tables.py")

    def test_every_group_has_its_place(self):
        page, source = read("docs/METRICS.md"), read("src/core/metrics_table.h")
        groups = re.search(r"enum class MetricGroup \{(.*?)\}", source, re.DOTALL)[1].replace(",", " ").split()
        self.assertEqual(sorted([*groups, "histograms"]), sorted(metrics_tables.groups_of(page)))
        self.assertEqual(set(groups), {group for _, _, group, _, _ in metrics_tables.rows(source)})

    def test_every_row_of_the_source_was_read(self):
        source = read("src/core/metrics_table.h")
        members = re.findall(r"(?:read(?:_inner|_crash)?<&|read_miss<|[{ ]not_known\})", source.partition("constexpr auto make_metrics")[2])
        self.assertGreater(len(members), 90)
        self.assertEqual(len(members), len(metrics_tables.rows(source)))
        self.assertEqual(source.count("&MetricsSnapshot::"), sum(len(names.split(", ")) for names, _ in metrics_tables.families(source)))

    def test_names_of_snapshots_are_in_the_table(self):
        """A number that is not shown was forgotten."""
        source = read("src/core/metrics_snapshot.h").partition("struct MetricsSnapshot {")[2]
        members = set(re.findall(r"^  [\w:<> ]+ (\w+)(?: = .*?)?;", source, re.MULTILINE)) - {"crashes", "progress", "workers", "devices"}
        self.assertGreater(len(members), 90)
        shown = set(re.findall(r"&(?:S|MetricsSnapshot)::(\w+)", read("src/core/metrics_table.h")))
        self.assertEqual(set(), members - shown)


class Threads(unittest.TestCase):
    def test_every_thread_is_listed(self):
        rows = set(re.findall(r"^\| `(uma[\w-]*?)(?:-N)?`", read("docs/threads.md"), re.MULTILINE))
        named = set(re.findall(r'(?:set_thread_name|\brun)\((?:std::format\()?"(uma[a-z-]*?)-?[{"]', sources("src", "apps")))
        self.assertGreater(len(named), 8)
        self.assertEqual(named | {"umad"}, rows, "and the main thread")
        drawn = set(re.findall(r"\b(uma-[a-z-]+?)(?:-N)?\b(?!-)", read("ARCHITECTURE.md"))) - {"uma-cli", "uma-bench", "uma-tiny"}
        self.assertGreater(len(drawn), 8)
        self.assertEqual(set(), drawn - rows)


class PlantedMistakes(unittest.TestCase):
    """Tests the checker itself: it must find a reference to nothing, and must not report a good one."""

    def found(self, text, name="src/base/x.h"):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for place, content in {"docs/PAGE.md": "# A page\n## The part, `coded`\n", "docs/decisions/0001-one.md": "# 1 · One\n",
                                   "src/base/x.h": "", name: text}.items():
                (root / place).parent.mkdir(parents=True, exist_ok=True)
                (root / place).write_text(content)
            return references(root)

    def test_pages(self):
        for good in ("// docs/PAGE.md", "// see PAGE.md.", "// https://host.example/docs/NONE.md", "// README.mdx"):
            self.assertEqual([], self.found(good), good)
        for bad in ("// docs/NONE.md", "// (NONE.md: why)", "// NONE section 3", "// NONE §3", "// decisions/0001-two.md"):
            self.assertEqual(1, len(self.found(bad)), bad)

    def test_decisions(self):
        for good in ("// docs/decisions/0001", "// decision 1", "// docs/decisions/0001-one.md"):
            self.assertEqual([], self.found(good), good)
        for bad in ("// docs/decisions/0002", "// decision 2"):
            self.assertEqual(1, len(self.found(bad)), bad)
        self.assertEqual(1, len(self.found("(0002)", "docs/OTHER.md")))

    def test_files(self):
        for good in ("src/base/x.h", "`base/x.h`", "src/base", "src/base/x", "src/base/*.h", "src/{base,core}", "base/none.h"):
            self.assertEqual([], self.found(good, "docs/OTHER.md"), good)
        for bad in ("src/base/none.h", "`base/none.h`", "src/cellar", "(tests/none.py)"):
            self.assertEqual(1, len(self.found(bad, "docs/OTHER.md")), bad)

    def test_links(self):
        for good in ("[a](PAGE.md)", "[a](PAGE.md#the-part-coded)", "[a](decisions)", "[a](#own)\n# Own\n", "`[a](NONE)`"):
            self.assertEqual([], self.found(good, "docs/OTHER.md"), good)
        for bad in ("[a](NONE)", "[a](PAGE.md#part)", "[a](#none)", "[a](decisions/none)"):
            self.assertEqual(1, len(self.found(bad, "docs/OTHER.md")), bad)


if __name__ == "__main__":
    unittest.main()
