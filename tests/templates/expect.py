#!/usr/bin/env python3
"""Writes what each template of families/ makes of each conversation, as Jinja2 itself renders it, beside the template; and
inputs.json, the conversations of calls.json in each form of forms.py.

Needs the Python package jinja2. template_families_test.cpp compares our engine with these files; read the difference before you commit it.
Run: python3 tests/templates/expect.py
"""

import json
import pathlib

import forms
import oracle

FOLDER = pathlib.Path(__file__).resolve().parent


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def inputs():
    """{form: {conversation: input}}"""
    calls = forms.with_tools(read(FOLDER / "calls.json"))
    return {form: {name: forms.in_form(given, form) for name, given in calls.items()} for form in forms.FORMS}


def conversations_of(family, basic, by_form):
    """The name of the family's form, and {conversation: input}."""
    form = forms.form_of(family)
    if form is None:
        return None, basic
    # calls.json has the calls in the family's form.
    return form, dict({name: given for name, given in basic.items() if "tools" not in given}, **by_form[form])


def expected(path, basic, by_form):
    """What the file beside a template has."""
    source = path.read_text(encoding="utf-8")
    form, conversations = conversations_of(path.stem, basic, by_form)
    made = {name: oracle.render(source, oracle.with_tokens(given)) for name, given in conversations.items()}
    return dict({"form": form} if form else {}, conversations=made)


def main():
    basic, by_form = read(FOLDER / "conversations.json"), inputs()
    (FOLDER / "inputs.json").write_text(json.dumps(by_form, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    for path in sorted((FOLDER / "families").glob("*.jinja")):
        made = expected(path, basic, by_form)
        path.with_suffix(".json").write_text(json.dumps(made, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
