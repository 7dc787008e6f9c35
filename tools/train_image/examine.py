#!/usr/bin/env python3
"""Examines an exported model: captions of every split, judged by the checker. Prints a table for docs/IMAGE_MODEL.md.

    examine.py MODEL.gguf [--prompts 600] [--sheet docs/image_model.png] [--curves]
"""

import argparse
import pathlib

import checker
import drawing
import png
import sample
from examination import HEAD, KINDS, SPLITS, prompts, rates, row


def examine(network, chosen, **options):
    """Returns the verdicts about the pictures that a network draws for the captions of scenes."""
    pictures = sample.generate(network, [scene.caption for scene in chosen], range(1, len(chosen) + 1), **options)
    return checker.check(drawing.levels(pictures), [scene.claim for scene in chosen])


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
    print(HEAD)
    settings = {"steps": options.steps, "guidance": options.guidance}
    for kind, title in KINDS.items():
        print(row(title, rates(examine(network, prompts("known", options.prompts, kind), **settings))), flush=True)
    for split, title in SPLITS.items():
        print(row(f"{split}: {title}", rates(examine(network, prompts(split, options.prompts), **settings))), flush=True)
    if options.curves:
        chosen = prompts("known", options.prompts)
        for steps in (4, 8, 12, 16, 24, 32):
            print(row(f"{steps} steps", rates(examine(network, chosen, steps=steps, guidance=options.guidance))), flush=True)
        for guidance in (1.0, 1.5, 2.5, 4.0, 6.0):
            print(row(f"guidance {guidance}", rates(examine(network, chosen, steps=options.steps, guidance=guidance))), flush=True)
    if options.sheet:
        chosen = prompts("known", 32) + [scene for split in ("H1", "H2", "H3", "H4") for scene in prompts(split, 8)]
        pictures = sample.generate(network, [scene.caption for scene in chosen], range(1, 65), **settings)
        png.write(options.sheet, png.sheet(pictures, 8))
        for at, scene in enumerate(chosen):
            print(f"row {at // 8 + 1}, column {at % 8 + 1}: {scene.caption}")


if __name__ == "__main__":
    main()
