#!/usr/bin/env python3
"""Examines an exported model: captions of every split, judged by the checker. Prints a table for docs/IMAGE_MODEL.md.

    examine.py MODEL.gguf [--prompts 600] [--sheet docs/image_model.png] [--curves]
"""

import argparse
import pathlib
import random

import checker
import drawing
import png
import sample
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


def examine(network, chosen, **options):
    """Returns the verdicts about the pictures that a network draws for the captions of scenes."""
    pictures = sample.generate(network, [scene.caption for scene in chosen], range(1, len(chosen) + 1), **options)
    return checker.check(drawing.levels(pictures), [scene.claim for scene in chosen])


def _row(name, result):
    return f"| {name} | " + " | ".join(f"{100 * result[attribute]:.1f} %" if attribute in result else "" for attribute in ATTRIBUTES) + " |"


def main():
    parser = argparse.ArgumentParser(description="Examines an exported picture model.")
    parser.add_argument("model", type=pathlib.Path, help="GGUF file")
    parser.add_argument("--prompts", type=int, default=600, help="captions of each row (default 600)")
    parser.add_argument("--steps", type=int, default=sample.STEPS, help=f"steps (default {sample.STEPS})")
    parser.add_argument("--guidance", type=float, default=sample.GUIDANCE, help=f"guidance (default {sample.GUIDANCE})")
    parser.add_argument("--sheet", type=pathlib.Path, help="PNG file with pictures of known and of held-out captions")
    parser.add_argument("--curves", action="store_true", help="also examine known captions at several steps and guidances")
    parser.add_argument("--threads", type=int, help="threads (default: all processors)")
    options = parser.parse_args()
    sample.pool(options.threads)
    network = sample.load(options.model)
    print("| captions | " + " | ".join(ATTRIBUTES) + " |\n|---" * 1 + "|---" * len(ATTRIBUTES) + "|")
    settings = {"steps": options.steps, "guidance": options.guidance}
    for kind, title in KINDS.items():
        print(_row(title, rates(examine(network, prompts("known", options.prompts, kind), **settings))), flush=True)
    for split, title in SPLITS.items():
        print(_row(f"{split}: {title}", rates(examine(network, prompts(split, options.prompts), **settings))), flush=True)
    if options.curves:
        chosen = prompts("known", options.prompts)
        for steps in (4, 8, 12, 16, 24, 32):
            print(_row(f"{steps} steps", rates(examine(network, chosen, steps=steps, guidance=options.guidance))), flush=True)
        for guidance in (1.0, 1.5, 2.5, 4.0, 6.0):
            print(_row(f"guidance {guidance}", rates(examine(network, chosen, steps=options.steps, guidance=guidance))), flush=True)
    if options.sheet:
        chosen = prompts("known", 32) + [scene for split in ("H1", "H2", "H3", "H4") for scene in prompts(split, 8)]
        pictures = sample.generate(network, [scene.caption for scene in chosen], range(1, 65), **settings)
        png.write(options.sheet, png.sheet(pictures, 8))
        for at, scene in enumerate(chosen):
            print(f"row {at // 8 + 1}, column {at % 8 + 1}: {scene.caption}")


if __name__ == "__main__":
    main()
