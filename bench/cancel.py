#!/usr/bin/env python3
"""Measures how long umad computes a prompt after its client has left: from close() in mid-prefill until sequences_active drops.

Three cases: the prompt alone, beside two streams, and beside another prompt. Prints the rounds' median and worst in ms.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

import uma  # noqa: E402

uma.VERIFY_EVERY = 0

LONG = 6000  # tokens


def prompt(seed):
    return f"{seed} " + " ".join(["word"] * LONG)  # one token for each word


def active(client):
    return client.metrics()["sequences_active"]


def wait_for(client, count, limit_s=30):
    deadline = time.monotonic() + limit_s
    while active(client) != count:
        if time.monotonic() > deadline:
            sys.exit(f"cancel: sequences_active did not become {count} within {limit_s} s")
        time.sleep(0.001)


def measure(daemon, watcher, seed, streams, others):
    with daemon.client(600) as beside:
        for number in range(streams):
            request = beside.start(type="generate", prompt=f"{seed} {number}", max_tokens=2000, ignore_eos=True)
            beside.wait_token(request)
        for number in range(others):
            beside.start(type="generate", prompt=prompt(seed * 10 + number), max_tokens=1)
        wait_for(watcher, streams + others)
        leaving = daemon.client(600)
        leaving.start(type="generate", prompt=prompt(seed * 10 + 9), max_tokens=1)
        wait_for(watcher, streams + others + 1)
        before = watcher.metrics()["prompt_tokens_total"]
        while watcher.metrics()["prompt_tokens_total"] == before:
            time.sleep(0.001)
        time.sleep(0.1 + 0.037 * (seed % 7))  # each round leaves at another moment of a library call
        began = time.monotonic()
        leaving.close()
        wait_for(watcher, streams + others)
        took_ms = 1000 * (time.monotonic() - began)
    wait_for(watcher, 0)
    return took_ms


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="GGUF file; script/bench passes the 134m model")
    parser.add_argument("--rounds", type=int, default=10, help="rounds (default 10)")
    parser.add_argument("--json", type=pathlib.Path, help="write every round's time to this file")
    options = parser.parse_args()
    results = {}
    with uma.Daemon(options.model, "--kv-cells", 4 * 8192, "--slots", 4, config="kv: {layout: split}\n") as daemon, daemon.client(600) as watcher:
        for name, streams, others in (("alone", 0, 0), ("beside two streams", 2, 0), ("beside another prompt", 0, 1)):
            results[name] = [measure(daemon, watcher, seed, streams, others) for seed in range(1, options.rounds + 1)]
            print(f"{name:<24} median {statistics.median(results[name]):6.1f} ms, worst {max(results[name]):6.1f} ms "
                  f"of {options.rounds}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
