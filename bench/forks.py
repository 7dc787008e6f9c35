#!/usr/bin/env python3
"""Measures what forks of a session cost in time and KV cells, compared with as many copies: sessions that share nothing.

Each round starts umad with one pool of cells, makes a session of --tokens tokens and times it, forks it --forks times, and lets
each fork generate one token after a different word. A copy is counted with the cost of the parent, which is alone in the pool:
libllama looks at all cells of a pool for each token, so each real copy would take longer than the one before. Prints medians,
and the medians of the rounds' ratios.
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

uma.VERIFY_EVERY = 0


def generate(client, session, prompt):
    reply = client.generate(prompt, session_id=session, max_tokens=1, ignore_eos=True)
    if reply.reason != "length":
        sys.exit(f"forks: a request failed: {reply.last}")
    return reply.usage


def measure(client, act):
    """Returns the seconds that act() takes, and the number of cells that it adds to those in use."""
    before = client.metrics()["workers"][0]["cells_used"]
    began = time.monotonic()
    act()
    return time.monotonic() - began, client.metrics()["workers"][0]["cells_used"] - before


def run_round(options, seed):
    """Returns (seconds, cells) of the forks, and (seconds, cells) of as many copies."""
    cells = 2 * options.tokens + 100 * options.forks
    flags = ["--kv-cells", cells, "--slots", options.forks + 1, *(["--threads", options.threads] if options.threads else [])]
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
                        sys.exit(f"forks: a fork computed {usage['recomputed_tokens']} tokens again, the limit is 16: {usage}")

            seconds, cells = measure(client, lambda: generate(client, parent, f"{seed}" + " word" * options.tokens))
            return measure(client, fork), (options.forks * seconds, options.forks * cells)


def main():
    parser = argparse.ArgumentParser(prog="script/bench forks", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="GGUF file; script/bench passes the 134m model")
    parser.add_argument("--forks", type=compare.positive, default=20, help="forks of the session (default 20)")
    parser.add_argument("--tokens", type=compare.positive, default=2000, help="approximate tokens of the parent (default 2000)")
    parser.add_argument("--rounds", type=compare.positive, default=3, help="rounds (default 3)")
    parser.add_argument("--threads", type=compare.positive, help="compute threads (default: umad's)")
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
