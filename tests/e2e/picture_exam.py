#!/usr/bin/env python3
"""Examines the picture model that ships: umad draws captions of every split, and tools/train_image/checker.py looks at the pixels.

    tests/e2e/picture_exam.py [--prompts 600] [--model FILE]

Prints the table of docs/IMAGE_MODEL.md. The captions are those of tools/train_image/examine.py.
"""

import argparse
import base64
import concurrent.futures
import multiprocessing
import pathlib
import sys

import pictures
import uma

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools/train_image"
sys.path.append(str(TOOLS))
import checker  # noqa: E402
from examination import HEAD, KINDS, SPLITS, prompts, rates, row  # noqa: E402

NAME = "uma-picture"
SIDE = 64
TOGETHER = 8  # requests


def draw(client, caption, **fields):
    """Returns the levels of one picture: rows from the top, three bytes for each pixel."""
    reply = client.finish(client.start(type="generate_image", model=NAME, prompt=caption, **fields))
    assert reply.reason == "stop", reply.last
    png = b"".join(base64.b64decode(event["data"]) for event in reply.events if event["event"] == "image_chunk")
    width, height, levels = pictures.read_png(png)
    assert (width, height) == (SIDE, SIDE), (width, height)
    return levels


def _judge(job):
    levels, claim = job
    return checker.judge(*checker.look(levels), claim)


def examine(daemon, chosen):
    """Returns {attribute: share of right ones} for the pictures of the scenes; the seed of a picture is its number from 1."""
    def draw_some(first):
        with daemon.client() as client:
            return [(at, draw(client, chosen[at].caption, seed=at + 1)) for at in range(first, len(chosen), TOGETHER)]
    with concurrent.futures.ThreadPoolExecutor(TOGETHER) as pool:
        drawn = dict(pair for some in pool.map(draw_some, range(TOGETHER)) for pair in some)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return rates(pool.map(_judge, [(drawn[at], scene.claim) for at, scene in enumerate(chosen)]))


def main():
    parser = argparse.ArgumentParser(description="Examines the picture model that ships.")
    parser.add_argument("--prompts", type=int, default=600, help="captions of each row (default 600)")
    options = parser.parse_args()
    daemon = uma.Daemon(None).start()
    try:
        daemon.wait_ready()
        print(HEAD)
        rows = [(title, prompts("known", options.prompts, kind)) for kind, title in KINDS.items()]
        rows += [(f"{split}: {title}", prompts(split, options.prompts)) for split, title in SPLITS.items()]
        for title, chosen in rows:
            print(row(title, examine(daemon, chosen)), flush=True)
    finally:
        daemon.terminate()


if __name__ == "__main__":
    main()
