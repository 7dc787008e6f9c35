#!/usr/bin/env python3
"""Writes the tables of docs/METRICS.md from src/core/metrics_table.h.

Each table is between two comments, <!-- metrics: GROUP --> and <!-- end -->; the rest of the page is written by hand.
tests/docs_test.py fails if the tables of the page are not those that this script writes.

Run: python3 tools/metrics_tables.py
"""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "src/core/metrics_table.h"
PAGE = ROOT / "docs/METRICS.md"

TEXT = r'((?:"(?:[^"\\]|\\.)*"\s*)+)'  # one string literal or several adjacent ones
ROW = re.compile(r'\{"(\w+)",\s*(counter|gauge|text|list),\s*(\w+),\s*"([^"]*)",\s*' + TEXT + r',\s*(?:read|not_known)')
FAMILY = re.compile(r'\{"(\w+)",\s*"(\w*)",\s*' + TEXT + r',\s*\{\{(.*?)\}\}\}', re.DOTALL)
PLACE = re.compile(r"(<!-- metrics: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def text_of(literals):
    return "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals))


def rows(source):
    """Returns (name, kind, group, unit, help) of each metric, in the table's order."""
    return [(name, kind, group, unit, text_of(help)) for name, kind, group, unit, help in ROW.findall(source)]


def families(source):
    """Returns (names with labels, help) of each histogram."""
    found = []
    for name, label, help, places in FAMILY.findall(source.partition("kHistograms")[2]):
        values = re.findall(r'"(\w*)", &', places)
        names = [f'`uma_{name}_seconds{{{label}="{value}"}}`' if label else f"`uma_{name}_seconds`" for value in values]
        found.append((", ".join(names), text_of(help)))
    return found


def table(source, group):
    if group == "histograms":
        return "\n".join(["| name | what is timed |", "|---|---|", *(f"| {names} | {help} |" for names, help in families(source))]) + "\n"
    of_group = [row for row in rows(source) if row[2] == group]
    lines = [f"| `{name}` | {kind} | {unit} | {help} |" for name, kind, _, unit, help in of_group]
    return "\n".join(["| name | kind | unit | meaning |", "|---|---|---|---|", *lines]) + "\n"


def with_tables(page, source):
    """Returns the page with new tables from the source."""
    return PLACE.sub(lambda place: place[1] + table(source, place[2]) + place[3], page)


def groups_of(page):
    return [group for _, group, _ in PLACE.findall(page)]


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(), TABLE.read_text()))
