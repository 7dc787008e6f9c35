"""What the programs of this folder share: the daemon that they call, and how their scenarios are run.

A program has functions named test_*; each is one thing that programs do with a client, and fails by an exception. The last line
of a program calls run(), which prints a line of JSON for each function: its name and what went wrong, or null.
"""

import asyncio
import inspect
import json
import os
import sys
import traceback
from typing import Literal

from pydantic import BaseModel

_given = json.loads(os.environ["UMA_CLIENT_TEST"])
URL = _given["url"]  # of the daemon, without a path
FILE = _given["file"]  # that the tool reads
CONTENT = _given["content"]  # its first line
ANSWER = _given["answer"]  # of the scripted model, once it knows the content
PLAIN = _given["plain"]  # of the scripted model, without tools
THINKING = _given["thinking"]  # of the scripted model, before it calls the tool

SCRIPTED = "scripted"  # follows the script
RANDOM = "tiny-chat"  # has random weights, so that only a constraint makes its reply what was asked for
VECTORS = "tiny-embed"
QUESTION = "What does notes.txt say?"


class Verdict(BaseModel):
    """What was found."""

    is_right: bool
    kind: Literal["text", "picture"]


def read_file(path: str, line: int) -> str:
    """Reads a line of a file.

    Args:
        path: The name of the file.
        line: The number of the line, from 1.
    """
    assert path == "notes.txt", path
    with open(FILE, encoding="utf-8") as lines:
        return lines.read().splitlines()[line - 1]


SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "line": {"type": "integer"}},
    "required": ["path"],
    "additionalProperties": False,
}


def equal(expected, seen):
    assert expected == seen, f"expected {expected!r}, got {seen!r}"


def raised(kind, call):
    """The exception of this kind that the call raises."""
    try:
        call()
    except kind as problem:
        return problem
    raise AssertionError(f"{kind.__name__} was expected")


def run():
    program = sys.modules["__main__"]
    for name, scenario in list(vars(program).items()):
        if not name.startswith("test_"):
            continue
        problem = None
        try:
            asyncio.run(scenario()) if inspect.iscoroutinefunction(scenario) else scenario()
        except BaseException:  # noqa: B902 - reported, and the next scenario runs
            problem = traceback.format_exc()
        print(json.dumps({"scenario": name, "problem": problem}), flush=True)
