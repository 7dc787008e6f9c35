#!/usr/bin/env python3
"""Measures what draft tokens gain and cost: umad with scheduler.speculation auto against off, in turn on the same work, each by
a daemon of its own that is up all the time. With --draft also auto with that draft model.

The model has random weights, so logit_bias determines how repetitive its text is:
  repeats   one word over and over: every draft token is accepted, the largest possible gain
  half      two words in an order that the model chooses: many draft tokens, about half of them rejected
  plain     the model's text without a bias, which hardly ever repeats: nothing to gain
Prints medians of tokens/s and of the rounds' ratios, and the share of draft tokens that was accepted.
Exit code 2 if umad fails.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

import uma  # noqa: E402

uma.VERIFY_EVERY = 0

TEXTS = {"repeats": {"700": 100}, "half": {"700": 60, "701": 60}, "plain": {}}


def tokens_per_s(daemon, bias, streams, tokens, seed, prompt, temperature=0):
    """Generated tokens of all streams divided by the time from the first token to the last."""
    with daemon.client(600) as client:
        ids = [client.start(type="generate", prompt=f"{prompt} {number} and so it goes on", max_tokens=tokens, ignore_eos=True,
                            temperature=temperature, top_k=40, seed=seed + number, logit_bias=bias) for number in range(streams)]
        began = None
        count = 0
        while client.replies:
            event = client.pump()
            if event["event"] == "token":
                began = began or time.monotonic()
                count += 1
            elif event["event"] != "eos" or event["reason"] != "length":
                sys.exit(f"speculation: a request failed: {event}")
            else:
                client.replies.pop(event["id"])
        assert len(ids) * tokens == count
        return count / (time.monotonic() - began)


def guesses(daemon):
    """Returns the number of draft tokens so far, and how many of them were accepted."""
    with daemon.client() as client:
        metrics = client.metrics()
        return metrics["drafted_tokens_total"], metrics["drafted_accepted_total"]


@contextlib.contextmanager
def started(setting, options):
    """A daemon that has measured what calls of each width cost."""
    config = f"scheduler: {{speculation: {'off' if setting == 'off' else 'auto'}}}\nkv: {{layout: split}}\n"
    if setting == "draft":
        config += f"draft_model: {options.draft}\n"
    with uma.Daemon(options.model, "--kv-cells", 8192, config=config) as daemon:
        time.sleep(options.settle_s)
        tokens_per_s(daemon, {}, 1, 8, 0, "warm up")
        yield daemon


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="GGUF file; script/bench passes the 134m model")
    parser.add_argument("--draft", type=pathlib.Path, help="also measure with this draft model of the same vocabulary")
    parser.add_argument("--texts", default=",".join(TEXTS), help="some of repeats,half,plain (default: all)")
    parser.add_argument("--temperature", type=float, default=0, help="sampling temperature (default 0: greedy)")
    parser.add_argument("--streams", default="1,4", help="numbers of streams (default 1,4)")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens of each stream (default 128)")
    parser.add_argument("--pairs", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--settle-s", type=float, default=3,
                        help="seconds after the start in which umad measures what calls of each width cost (default 3)")
    parser.add_argument("--json", type=pathlib.Path, help="write the medians to this file")
    options = parser.parse_args()
    results = {}
    settings = ["auto", "off"] + (["draft"] if options.draft else [])
    drafted = {}
    with contextlib.ExitStack() as stack:
        daemons = {setting: stack.enter_context(started(setting, options)) for setting in settings}
        for pair in range(options.pairs):
            for streams in map(int, options.streams.split(",")):
                for text in options.texts.split(","):
                    for setting in settings if pair % 2 == 0 else reversed(settings):
                        daemon = daemons[setting]
                        before = guesses(daemon)
                        speed = tokens_per_s(daemon, TEXTS[text], streams, options.tokens, 100 * pair, pair, options.temperature)
                        tried = drafted.setdefault((text, streams, setting), [0, 0])
                        tried[:] = [sum(values) for values in zip(tried, (b - a for a, b in zip(before, guesses(daemon))))]
                        results.setdefault((text, streams), {}).setdefault(setting, []).append(speed)
    best = settings[-1] if options.draft else "auto"
    heads = "".join(f"{setting:>10}" for setting in settings)
    print(f"{'text':<9}{'streams':>8}{heads}{'ratio':>8}{'drafted':>9}{'accepted':>10}   (medians of {options.pairs} rounds, "
          f"tokens/s; ratio {best} to off; with {best}, draft tokens per generated token and the share of them that was accepted)")
    rows = []
    for (text, streams), speeds in results.items():
        ratio = statistics.median(a / b for a, b in zip(speeds[best], speeds["off"]))
        tried, right = drafted[text, streams, best]
        per_token = tried / (options.pairs * streams * options.tokens)
        row = {"text": text, "streams": streams, "ratio": ratio, "guesses_per_token": per_token, "right": right / max(1, tried)} | {name: statistics.median(values) for name, values in speeds.items()}
        rows.append(row)
        speeds_text = "".join(f"{row[setting]:>10.1f}" for setting in settings)
        spread = " ".join(f"{a / b:.2f}" for a, b in zip(speeds[best], speeds["off"]))
        print(f"{text:<9}{streams:>8}{speeds_text}{ratio:>8.2f}{per_token:>9.2f}{row['right']:>10.2f}   {spread}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
