#!/usr/bin/env python3
"""What guessing tokens gains and costs: umad with scheduler.speculation auto against off, in turn, on the same work.

The model has random weights, so how repetitive its text is must be arranged with logit_bias:
  repeats   one word over and over: every guess is right, the most that can be gained
  half      two words in an order the model chooses: guesses abound, and about half of them are wrong
  plain     what the model says by itself, which hardly ever repeats: nothing to gain
Prints medians of tokens/s and of the rounds' ratios. Exit code 2 if umad fails.
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

TEXTS = {"repeats": {"700": 100}, "half": {"700": 60, "701": 60}, "plain": {}}


def tokens_per_s(daemon, bias, streams, tokens, seed):
    """Generated tokens over the time from the first of them to the last, all streams together."""
    with daemon.client(600) as client:
        ids = [client.start(type="generate", prompt=f"{seed} {number} and so it goes on", max_tokens=tokens, ignore_eos=True,
                            temperature=0, logit_bias=bias) for number in range(streams)]
        began = None
        count = 0
        while client.replies:
            event = client.pump()
            if event["event"] == "token":
                began = began or time.monotonic()
                count += 1
            elif event["event"] != "eos" or event["reason"] != "length":
                sys.exit(f"speculation: {event}")
            else:
                client.replies.pop(event["id"])
        assert len(ids) * tokens == count
        return count / (time.monotonic() - began)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--streams", default="1,4")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    results = {}
    for pair in range(options.pairs):
        for setting in ("auto", "off") if pair % 2 == 0 else ("off", "auto"):
            config = f"scheduler: {{speculation: {setting}}}\nkv: {{layout: split}}\n"
            with uma.Daemon(options.model, "--n-ctx", 8192, config=config) as daemon:
                tokens_per_s(daemon, {}, 1, 8, "warm up")
                for streams in map(int, options.streams.split(",")):
                    for text, bias in TEXTS.items():
                        speed = tokens_per_s(daemon, bias, streams, options.tokens, pair)
                        results.setdefault((text, streams), {}).setdefault(setting, []).append(speed)
    print(f"{'text':<9}{'streams':>8}{'auto':>10}{'off':>10}{'ratio':>8}   (medians of {options.pairs} pairs, tokens/s)")
    rows = []
    for (text, streams), speeds in results.items():
        ratio = statistics.median(a / b for a, b in zip(speeds["auto"], speeds["off"]))
        row = {"text": text, "streams": streams, "ratio": ratio} | {name: statistics.median(values) for name, values in speeds.items()}
        rows.append(row)
        print(f"{text:<9}{streams:>8}{row['auto']:>10.1f}{row['off']:>10.1f}{ratio:>8.2f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
