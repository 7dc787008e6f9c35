"""Expands the patterns of the corpus: (a|b) chooses one, [a] and (a)? are optional, <name> is an item of a word list."""

import functools
import pathlib
import re

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"

_OPEN = {"(": ")", "[": "]"}


def read_lists(path):
    """Reads word lists; returns name -> items."""
    lists = {}
    for line in _lines(path):
        name, items = line.split(":", 1)
        lists[name] = [item.strip() for item in items.split(",")]
    return lists


def read_sections(path):
    """Reads a file of `[id]` sections; returns id -> lines."""
    sections, current = {}, None
    for line in _lines(path):
        head = re.fullmatch(r"\[([a-z_]+)\]", line)
        if head:
            current = sections.setdefault(head[1], [])
        else:
            current.append(line)
    return sections


def _lines(path):
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]


def _parse_choice(text, at, closer):
    options, parts = [], []
    while at < len(text) and text[at] != closer:
        char = text[at]
        if char == "|":
            options.append(parts)
            parts = []
            at += 1
        elif char in _OPEN:
            node, at = _parse_choice(text, at + 1, _OPEN[char])
            optional = char == "["
            if text[at : at + 1] == "?":
                optional = True
                at += 1
            parts.append(("optional" if optional else "choice", node))
        elif char == "<":
            end = text.index(">", at)
            parts.append(("list", text[at + 1 : end]))
            at = end + 1
        else:
            end = at
            while end < len(text) and text[end] not in "|()[]<" and text[end] != closer:
                end += 1
            end = max(end, at + 1)
            parts.append(("text", text[at:end]))
            at = end
    if closer and at >= len(text):
        raise ValueError(f"a {closer!r} is missing in the pattern {text!r}")
    options.append(parts)
    return options, at + 1


@functools.cache
def parse(pattern):
    """Returns the tree of a pattern. Raises ValueError if a bracket is not closed."""
    return _parse_choice(pattern, 0, "")[0]


def _expand(options, rng, lists, out):
    parts = options[int(rng.random() * len(options))]
    for kind, value in parts:
        if kind == "text":
            out.append(value)
        elif kind == "list":
            items = lists[value]
            out.append(items[int(rng.random() * len(items))])
        elif kind == "choice" or rng.random() < 0.5:
            _expand(value, rng, lists, out)


def expand(pattern, rng, lists):
    """Returns one sentence of the pattern, with corrected spaces."""
    out = []
    _expand(parse(pattern), rng, lists, out)
    text = " ".join("".join(out).split())
    return text.replace(" ,", ",").replace(" 's", "'s").replace(" :", ":")
