#!/usr/bin/env python3
"""Counts figures of the C++ sources, for one commit or for two side by side.

Run: tools/code_figures.py [COMMIT] [COMMIT]     (default: the work tree; needs universal-ctags)

Tests are left out. The figures are lines of files, lines of functions, member functions and data
members of classes (declarations in headers), lambdas that capture `this`, comments with "cancelled meanwhile", and the files
that include lane.h, the header of the hot loop, or are included by it.
"""

import collections
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINES_PER_FILE_MAX = 600
LINES_PER_FUNCTION_MAX = 70
METHODS_PER_CLASS_MAX = 40
MEMBERS_PER_CLASS_MAX = 20


def sources(root):
    """Yields the sources of src/ and apps/ without tests."""
    for folder in ("src", "apps"):
        for path in sorted((root / folder).rglob("*")):
            is_test = path.stem.endswith("_test") or "test_support" in path.stem or "testing" in path.parts
            if path.suffix in {".h", ".cpp"} and not is_test:
                yield path


def tags(paths):
    """Returns the tags that universal-ctags finds in the files: dicts with name, kind, line, end, scope, path."""
    command = ["ctags", "--output-format=json", "--languages=C++", "--c++-kinds=fpmcs", "--fields=+neS", "-f", "-", "-L", "-"]
    made = subprocess.run(command, input="\n".join(map(str, paths)), capture_output=True, text=True, check=True)
    return [json.loads(line) for line in made.stdout.splitlines()]


def figures(root):
    """Returns the figures by name. A figure is a number, or a list of (size, name) with the largest first."""
    paths = list(sources(root))
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    found = tags(paths)
    functions = [(tag["end"] - tag["line"] + 1, tag["name"], pathlib.Path(tag["path"])) for tag in found
                 if tag["kind"] == "function" and "end" in tag]
    methods = collections.defaultdict(set)
    members = collections.Counter()
    for tag in found:
        if not tag["path"].endswith(".h") or tag.get("scopeKind") not in {"class", "struct"}:
            continue
        scope = tag["scope"].removeprefix("uma::").replace("engine::", "")
        if tag["kind"] in {"prototype", "function"}:
            methods[scope].add((tag["name"], tag["line"]))
        elif tag["kind"] == "member":
            members[scope] += 1
    engine = root / "src" / "engine"
    lambdas = re.compile(r"\[[^\]\[]*\bthis\b[^\]\[]*\]\s*(?:\(|\{|<|mutable)")
    return {
        "files": len(paths),
        "lines": sum(text.count("\n") for text in texts.values()),
        f"files over {LINES_PER_FILE_MAX} lines": over(((text.count("\n"), str(path.relative_to(root))) for path, text in texts.items()),
                                                       LINES_PER_FILE_MAX),
        f"functions over {LINES_PER_FUNCTION_MAX} lines": over(((size, f"{name} ({path.name})") for size, name, path in functions),
                                                               LINES_PER_FUNCTION_MAX),
        f"classes over {METHODS_PER_CLASS_MAX} methods": over(((len(of), name) for name, of in methods.items()), METHODS_PER_CLASS_MAX),
        f"classes over {MEMBERS_PER_CLASS_MAX} members": over(((count, name) for name, count in members.items()), MEMBERS_PER_CLASS_MAX),
        "lambdas that capture this, in engine": sum(len(lambdas.findall(text)) for path, text in texts.items() if engine in path.parents),
        "comments \"cancelled meanwhile\"": sum(text.count("cancelled meanwhile") for text in texts.values()),
        "files that include lane.h": sum(bool(re.search(r'#include "engine/(?:lane/)?lane\.h"', text)) for text in texts.values()),
        "project headers that lane.h includes": sum(text.count('#include "') for path, text in texts.items() if path.name == "lane.h"),
    }


def over(sized, limit):
    return sorted((entry for entry in sized if entry[0] > limit), reverse=True)


def figures_of(commit):
    if commit is None:
        return figures(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "-C", ROOT, "archive", commit, "src", "apps"], capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        return figures(pathlib.Path(folder))


def main():
    commits = sys.argv[1:3] or [None]
    made = [figures_of(commit) for commit in commits]
    for name in made[0]:
        values = [value if isinstance(value := each[name], int) else len(value) for each in made]
        print(f"{name:<42}" + "".join(f"{value:>12,}" for value in values))
    for name in made[0]:
        for commit, each in zip(commits, made):
            if isinstance(each[name], list) and each[name]:
                entries = ", ".join(f"{what} {size}" for size, what in each[name])
                print(f"\n{name}, {commit or 'work tree'}: {entries}")


if __name__ == "__main__":
    main()
