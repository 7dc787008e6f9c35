#!/usr/bin/env python3
"""Writes what each template of families/ makes of each conversation, as Jinja2 itself renders it, beside the template.

Needs the Python package jinja2. template_families_test.cpp compares our engine with these files; read the difference before you commit it.
Run: python3 tests/templates/expect.py
"""

import json
import pathlib

import oracle

FOLDER = pathlib.Path(__file__).resolve().parent


def main():
    conversations = json.loads((FOLDER / "conversations.json").read_text(encoding="utf-8"))
    for path in sorted((FOLDER / "families").glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        expected = {name: oracle.render(source, oracle.with_tokens(given)) for name, given in conversations.items()}
        path.with_suffix(".json").write_text(json.dumps(expected, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
