#!/usr/bin/env python3
"""Measures pictures: the time of one and of several at once, how soon a cancel ends one, and a chat's pauses beside them.

The model is a picture model in the format of uma-picture (docs/IMAGE_MODEL.md), trained or not: the time is the same.
Exit codes: 0 measured, 1 usage, 2 the daemon failed.
"""

import argparse
import json
import pathlib
import statistics
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

import uma  # noqa: E402

uma.VERIFY_EVERY = 0
BATCH = 8


def draw(client, model, **fields):
    """Returns the seconds of a request."""
    began = time.monotonic()
    reply = client.finish(client.start(type="generate_image", prompt="", model=model, **fields))
    if reply.reason != "stop":
        raise AssertionError(reply.last)
    return time.monotonic() - began


def cancel(client, model):
    """Returns the seconds from a cancel in the middle of a picture to the last event."""
    running = client.start(type="generate_image", prompt="", model=model, steps=150)
    while sum(event["event"] == "progress" for event in client.replies[running].events) < 3:
        client.pump()
    began = time.monotonic()
    client.start(type="cancel", target=running)
    client.finish(running)
    return time.monotonic() - began


def chat_gaps(daemon, tokens, seed):
    """Returns the seconds between the tokens of a stream."""
    with daemon.client() as client:
        return client.generate("Tell me of the sea.", max_tokens=tokens, ignore_eos=True, seed=seed, temperature=1).gaps_s()


def drawing_beside(daemon, model, stop):
    with daemon.client() as client:
        while not stop.is_set():
            draw(client, model)


def measure(options):
    folder = options.picture.resolve().parent
    model = options.picture.stem
    with uma.Daemon(options.model, config=f"models_dirs: [{folder}]\n") as daemon, daemon.client() as client:
        draw(client, model)
        ones, batches, cancels = [], [], []
        for _ in range(options.rounds):
            ones.append(draw(client, model))
            batches.append(draw(client, model, n=BATCH))
            cancels.append(cancel(client, model))
        quiet = [gap for seed in range(options.rounds) for gap in chat_gaps(daemon, options.tokens, seed)]
        stop = threading.Event()
        beside = threading.Thread(target=drawing_beside, args=(daemon, model, stop), daemon=True)
        beside.start()
        busy = [gap for seed in range(options.rounds) for gap in chat_gaps(daemon, options.tokens, seed)]
        stop.set()
        beside.join()
        return {
            "picture_s": statistics.median(ones), "batch_s": statistics.median(batches),
            "batch_to_single": statistics.median(batch / (BATCH * one) for batch, one in zip(batches, ones)),
            "cancel_ms": [round(1000 * value, 1) for value in sorted(cancels)],
            "gap_p50_ms": [1000 * statistics.median(gaps) for gaps in (quiet, busy)], "gap_worst_ms": [1000 * max(gaps) for gaps in (quiet, busy)],
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", type=pathlib.Path, help="GGUF file of the picture model")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models" / "uma-tiny.gguf", help="chat model beside it (default uma-tiny)")
    parser.add_argument("--rounds", type=int, default=5, help="repetitions (default 5)")
    parser.add_argument("--tokens", type=int, default=200, help="tokens of a chat (default 200)")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    options = parser.parse_args()
    if not options.picture.is_file():
        parser.error(f"{options.picture}: no such file")
    try:
        found = measure(options)
    except (AssertionError, OSError, uma.ConnectionClosed) as problem:
        print(f"pictures: {problem}", file=sys.stderr)
        return 2
    print(f"one picture {found['picture_s']:.2f} s; {BATCH} at once {found['batch_s']:.2f} s, {found['batch_to_single']:.2f} of {BATCH} times one")
    print(f"cancel {found['cancel_ms'][len(found['cancel_ms']) // 2]} ms, at most {found['cancel_ms'][-1]} ms")
    print("a chat's pauses, alone and beside pictures: median {:.1f} and {:.1f} ms, worst {:.1f} and {:.1f} ms".format(*found["gap_p50_ms"], *found["gap_worst_ms"]))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
