#!/usr/bin/env python3
"""Measures whether a stream notices that KV of replies that have just ended is written to disk (kv.write_within).

A round: some conversations end a turn each, then one stream runs while umad writes their KV, in the one daemon; the other daemon has
kv.write_within: none. Prints the stream's gaps between tokens on both sides, and the median of the rounds' ratios. Fails if a round
ends before what it should measure is written.
"""

import argparse
import contextlib
import http.client
import json
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

import compare  # noqa: E402
import kills  # noqa: E402
import strategies  # noqa: E402
import uma  # noqa: E402

uma.VERIFY_EVERY = 0
FIGURES = {"p50_ms": statistics.median, "p99_ms": lambda gaps: strategies.percentile(gaps, 0.99), "max_ms": max}


def ask(port, text, tokens):
    """Returns the times at which the tokens of the reply came, in s."""
    body = json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "ignore_eos": True, "stream": True})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=uma.WAIT_S)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        return [time.monotonic() for line in connection.getresponse() if b'"content"' in line]


def written(daemon):
    with daemon.client() as client:
        return client.metrics()["cold_written_bytes_total"]


def run_round(daemon, seed, options):
    """Returns the figures of the stream's gaps in ms, and the bytes written meanwhile."""
    port = kills.port_of(daemon)
    for number in range(options.conversations):
        ask(port, f"{seed} {number}: " + "words " * options.words, 2)
    before = written(daemon)
    times = ask(port, f"{seed}: tell a story", options.tokens)
    gaps = [1000 * gap for gap in strategies.gaps(times)]
    return {name: figure(gaps) for name, figure in FIGURES.items()} | {"mib": (written(daemon) - before) / (1 << 20)}


def main(arguments):
    parser = argparse.ArgumentParser(prog="script/bench early_writes", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="GGUF file; script/bench passes the 134m model")
    parser.add_argument("--conversations", type=compare.positive, default=4, help="whose turns end before the stream (default 4)")
    parser.add_argument("--words", type=compare.positive, default=700, help="of their prompts (default 700)")
    parser.add_argument("--tokens", type=compare.positive, default=600, help="of the stream (default 600)")
    parser.add_argument("--pairs", type=compare.positive, default=8, help="rounds (default 8)")
    options = parser.parse_args(arguments)
    compare.warn_if_busy()
    flags = ("--http", "127.0.0.1:0", "--n-ctx", "4096", "--slots", str(options.conversations + 1))
    rounds = []
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(uma.Daemon(options.model, *flags, config=f"kv: {{layout: unified, write_within: {within}}}\n"))
                 for within in ("5s", "none")]
        for number in range(-1, options.pairs):
            measured = [None, None]
            for side in ((0, 1), (1, 0))[number % 2]:
                measured[side] = run_round(sides[side], number, options)
            if measured[0]["mib"] == 0 or measured[1]["mib"] > 0:
                sys.exit(f"early_writes: {measured[0]['mib']:.1f} MiB were written beside the stream, and {measured[1]['mib']:.1f} without "
                         "early writes: the stream must be longer")
            if number >= 0:  # The one before them warms up.
                rounds.append(measured)
    print(f"{options.model.name}, {options.conversations} conversations, {statistics.median(pair[0]['mib'] for pair in rounds):.0f} MiB "
          f"written beside a stream of {options.tokens} tokens; {options.pairs} rounds.\n")
    print("| gap between tokens | written | not written | ratio |\n|---|---|---|---|")
    for name in FIGURES:
        early, late = (statistics.median(pair[side][name] for pair in rounds) for side in (0, 1))
        print(f"| {name} | {early:.2f} | {late:.2f} | {statistics.median(pair[0][name] / pair[1][name] for pair in rounds):.3f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
