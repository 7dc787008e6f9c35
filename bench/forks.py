#!/usr/bin/env python3
"""What forks of a session cost, in time and KV cells, against as many sessions of the same length that share nothing.

Each round starts a umad with one pool of cells, makes a session of --tokens tokens, which is timed, forks it --forks times and has
each fork say one token after a word of its own. A copy counts as much as the parent took, the only session in the pool: libllama
looks at all cells of a pool for each token, so real copies would each take longer than the one before. Prints medians, and of the
rounds' ratios.
"""

import argparse
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

import compare  # noqa: E402
import uma  # noqa: E402


def generate(client, session, prompt):
    reply = client.generate(prompt, session_id=session, max_tokens=1, ignore_eos=True)
    if reply.reason != "length":
        sys.exit(f"forks: a request failed: {reply.last}")
    return reply.usage


def measure(client, act):
    """Seconds that act() takes, and how many more cells are in use after it."""
    before = client.metrics()["workers"][0]["cells_used"]
    began = time.monotonic()
    act()
    return time.monotonic() - began, client.metrics()["workers"][0]["cells_used"] - before


def run_round(options, seed):
    """(seconds, cells) of the forks, (seconds, cells) of as many copies."""
    cells = 2 * options.tokens + 100 * options.forks
    flags = ["--n-ctx", cells, "--slots", options.forks + 1, *(["--threads", options.threads] if options.threads else [])]
    with uma.Daemon(options.model, *flags, config="kv: {layout: unified}\nlimits: {max_prompt_bytes: 1000000}\n") as daemon:
        daemon.wait_ready()
        with daemon.client(600) as client:
            generate(client, client.create_session(mode="text"), "the first request is slower")
            parent = client.create_session(mode="text")

            def fork():
                for number in range(options.forks):
                    session = client.call(type="fork_session", session_id=parent)["session_id"]
                    usage = generate(client, session, f" {number}")
                    if usage["recomputed_tokens"] > 16:
                        sys.exit(f"forks: a fork was computed again: {usage}")

            seconds, cells = measure(client, lambda: generate(client, parent, f"{seed}" + " word" * options.tokens))
            return measure(client, fork), (options.forks * seconds, options.forks * cells)


def main():
    parser = argparse.ArgumentParser(prog="script/bench forks", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="GGUF file; script/bench gives the 134m model")
    parser.add_argument("--forks", type=compare.positive, default=20)
    parser.add_argument("--tokens", type=compare.positive, default=2000, help="of the parent, about")
    parser.add_argument("--rounds", type=compare.positive, default=3)
    parser.add_argument("--threads", type=compare.positive)
    options = parser.parse_args()
    rounds = []
    for seed in range(1, options.rounds + 1):
        rounds.append(run_round(options, seed))
        print(f"forks: round {seed} of {options.rounds}", flush=True)
    print(f"{options.forks} forks of {options.tokens:,} tokens, {options.model.name}, medians of {options.rounds} rounds\n")
    print("| | forks | copies | forks ÷ copies |\n|---|---|---|---|")
    for place, title in enumerate(("time, s", "cells")):
        forks, copies = ([measured[who][place] for measured in rounds] for who in (0, 1))
        ratio = statistics.median(fork / copy for fork, copy in zip(forks, copies))
        print(f"| {title} | {statistics.median(forks):,.3g} | {statistics.median(copies):,.5g} | {ratio:.4f} |")


if __name__ == "__main__":
    main()
