#!/usr/bin/env python3
"""Writes the tables of request fields in docs/protocol from src/wire/request_fields.cpp.

Each table is between two comments, <!-- fields: ROUTE --> and <!-- end -->, where ROUTE is a name of wire::RequestRoute; the rest of
the pages is written by hand. tests/docs_test.py fails if the tables are not those that this script writes.

Run: python3 tools/fields_tables.py
"""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "src/wire/request_fields.cpp"
HEADER = ROOT / "src/wire/request_fields.h"
PAGES = ROOT / "docs/protocol"

TEXT = r'((?:"(?:[^"\\]|\\.)*"\s*)+)'  # one string literal or several adjacent ones
ROW = re.compile(r"\{([\w |]+),\s*" + TEXT + r",\s*(served|ignored|warned|refused),\s*" + TEXT + r"(?:,\s*" + TEXT + r")?\},")
GROUP = re.compile(r"constexpr std::uint32_t (\w+) = ([\w |]+);")
BIT = re.compile(r"constexpr std::uint32_t (\w+) = bit\(RequestRoute::(\w+)\);")
PLACE = re.compile(r"(<!-- fields: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
CLASSES = {"served": "served", "ignored": "ignored", "warned": "left out, with a warning", "refused": "refused"}


def text_of(literals):
    return "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals or ""))


def routes_of(header):
    """Returns the routes that have a table, in their order."""
    return re.findall(r"^  (\w+),?$", re.search(r"enum class RequestRoute .*?\{\n(.*?)\};", header, re.DOTALL)[1], re.MULTILINE)


def rows(source):
    """Returns (routes, paths, class, note, harmless values) of each row, in the table's order."""
    groups = {name: {route} for name, route in BIT.findall(source)}
    for name, parts in GROUP.findall(source):
        groups[name] = set().union(*(groups[part.strip()] for part in parts.split("|")))
    table = source.partition("kFields[] = {")[2].partition("\n};")[0]
    return [(set().union(*(groups[part.strip()] for part in names.split("|"))), text_of(paths).split(), kind, text_of(note),
             text_of(harmless).split()) for names, paths, kind, note, harmless in ROW.findall(table)]


def fields_of(source, route):
    """Returns {path: class} of a route."""
    return {path: kind for routes, paths, kind, _, _ in rows(source) if route in routes for path in paths}


def table(source, route):
    """The fields of a route, grouped by class and note."""
    groups = {}
    for kind in CLASSES:
        for routes, paths, of_kind, note, harmless in rows(source):
            if route not in routes or of_kind != kind:
                continue
            unless = f", except {', '.join(f'`{value}`' for value in harmless)}" if harmless else ""
            groups.setdefault((kind, f"{CLASSES[kind]}{unless}" + (f": {note}" if note else "")), []).extend(paths)
    lines = [f"| {', '.join(f'`{path}`' for path in paths)} | {text} |" for (_, text), paths in groups.items()]
    return "\n".join(["| fields | |", "|---|---|", *lines]) + "\n"


def with_tables(page, source):
    """Returns the page with new tables from the source."""
    return PLACE.sub(lambda place: place[1] + table(source, place[2]) + place[3], page)


def routes_in(page):
    return [route for _, route, _ in PLACE.findall(page)]


if __name__ == "__main__":
    for path in sorted(PAGES.glob("*.md")):
        path.write_text(with_tables(path.read_text(), TABLE.read_text()))
