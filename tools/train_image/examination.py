"""What an examination asks and how it is counted, for examine.py and tests/e2e/picture_exam.py. Needs no PyTorch."""

import random

import scenes

SPLITS = {
    "known": "known combinations", "H1": "colour and shape never seen together", "H2": "colour, shape and size never seen together",
    "H3": "relations between pairs never seen so", "H4": "counts of a shape never seen", "H5": "ground and colour never seen together",
    "H6": "wordings never seen", "H7": "three things, two relations",
}
KINDS = {"single": "one thing", "counted": "several equal things", "related": "two things, a relation", "joined": "two things", "three": "three things"}
ATTRIBUTES = ["all", "count", "colour", "shape", "size", "relation", "place", "ground", "swapped", "junk"]


def prompts(split, count, kind=None):
    """Returns the scenes whose captions are examined: the same for the same arguments."""
    return [scenes.scene(random.Random(f"examination {split} {kind} {at}"), split, kind) for at in range(count)]


def rates(verdicts):
    """Returns {attribute: share of right ones} over the verdicts that speak of it."""
    out = {}
    for attribute in ATTRIBUTES:
        values = [verdict[attribute] for verdict in verdicts if attribute in verdict]
        if values:
            out[attribute] = round(sum(values) / len(values), 4)
    return out


HEAD = "| captions | " + " | ".join(ATTRIBUTES) + " |\n|---" + "|---" * len(ATTRIBUTES) + "|"


def row(name, result):
    """Returns a line of the table: the rates of one kind of captions."""
    return f"| {name} | " + " | ".join(f"{100 * result[attribute]:.1f} %" if attribute in result else "" for attribute in ATTRIBUTES) + " |"
