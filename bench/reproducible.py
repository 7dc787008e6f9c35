#!/usr/bin/env python3
"""Measures what scheduler.reproducible costs: umad with the settings on and strict against off, in turn on the same work.

N streams of short prompts, one stream after a long prompt, and one prompt of 1,900 tokens. Draft tokens are off in all of them,
so that only the arithmetic differs. Prints medians, and the medians of the rounds' ratios.
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


SETTINGS = ("on", "off", "strict")


def burst(client, streams, tokens, seed):
    """Generated tokens per second, from the first request to the last token."""
    began = time.monotonic()
    ids = [client.start(type="generate", prompt=f"{seed} {number} " + " ".join(["word"] * 28), max_tokens=tokens, ignore_eos=True)
           for number in range(streams)]
    for request in ids:
        reply = client.finish(request)
        if reply.reason != "length":
            sys.exit(f"reproducible: a request failed: {reply.last}")
    return streams * tokens / (time.monotonic() - began)


def deep_stream(client, tokens, seed):
    """Generated tokens per second after a prompt of 1,000 tokens."""
    request = client.start(type="generate", prompt=f"{seed} deep " + " ".join(["word"] * 1000), max_tokens=tokens, ignore_eos=True)
    client.wait_token(request)
    began = time.monotonic()
    client.finish(request)
    return (tokens - 1) / (time.monotonic() - began)


def long_prompt(client, words, seed):
    """Prompt tokens per second."""
    reply = client.generate(f"{seed} " + " ".join(["word"] * words), max_tokens=1)
    return reply.usage["prompt_tokens"] / (reply.usage["ttft_ms"] / 1000)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="GGUF file; script/bench passes the 134m model")
    parser.add_argument("--streams", default="1,4,8,16", help="numbers of streams, 16 at most (default 1,4,8,16)")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of each stream (default 64)")
    parser.add_argument("--pairs", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--json", type=pathlib.Path, help="write every round's figures to this file")
    options = parser.parse_args()
    results = {}
    for pair in range(options.pairs):
        for setting in SETTINGS if pair % 2 == 0 else SETTINGS[::-1]:
            config = f"scheduler: {{reproducible: {setting}, speculation: off}}\nkv: {{layout: split}}\n"
            with uma.Daemon(options.model, "--kv-cells", 16 * 2048, "--slots", 16, config=config) as daemon, daemon.client(600) as client:
                burst(client, 2, 8, "warm up")
                for streams in map(int, options.streams.split(",")):
                    speed = burst(client, streams, options.tokens, pair)
                    results.setdefault(f"{streams} streams, tokens/s", {}).setdefault(setting, []).append(speed)
                speed = deep_stream(client, options.tokens, pair)
                results.setdefault("1 stream after 1,000, tokens/s", {}).setdefault(setting, []).append(speed)
                speed = long_prompt(client, 1900, pair)
                results.setdefault("prompt of 1,900, tokens/s", {}).setdefault(setting, []).append(speed)
    print(f"{'':<32}{'off':>10}{'on':>10}{'strict':>10}{'on ÷ off':>10}{'strict ÷ off':>14}   (medians of {options.pairs} rounds)")
    for name, speeds in results.items():
        medians = [statistics.median(speeds[setting]) for setting in ("off", "on", "strict")]
        ratios = [statistics.median(a / b for a, b in zip(speeds[setting], speeds["off"])) for setting in ("on", "strict")]
        print(f"{name:<32}" + "".join(f"{value:>10.1f}" for value in medians) + f"{ratios[0]:>10.2f}{ratios[1]:>14.2f}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
