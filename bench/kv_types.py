#!/usr/bin/env python3
"""Measures what quantised keys and values gain and cost: umad with each kv.type against f16, in turn on the same work.

  memory   MiB of KV for 1,000 tokens
  decode   generated tokens/s of N streams, each behind a prompt of about --depth tokens
  prompt   prompt tokens/s of a prompt of that length
  equal    the part of a greedy reply before its first token that differs from f16's, mean of the replies
  top      share of the places in a text at which the likeliest next token is f16's
  KL       mean Kullback-Leibler divergence from f16 at these places, in thousandths of a nat. It is computed from the tokens that are
           among the 20 likeliest of both, and all others as one, so it is a lower bound

Every type computes the same texts for `top` and `KL`, whatever it would say itself. A model with random weights has flatter
distributions than a trained one: --model models/uma-tiny.gguf is trained. Draft tokens are off. Speeds are medians of the rounds.
Exit code 1 if umad fails.
"""

import argparse
import json
import math
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

import uma  # noqa: E402

uma.VERIFY_EVERY = 0

TYPES = ("f16", "q8_0", "q5_1", "q4_0", "q8_0/q4_0")
TOP = 20
CORPUS = ROOT / "tools" / "train" / "corpus"


def corpus():
    """The sentences that the shipped model was trained with, as prompts of any model."""
    lines = "\n".join(path.read_text() for path in sorted(CORPUS.glob("*.txt"))).splitlines()
    return " ".join(line for line in lines if line and line[0] not in "#[")


def text_of(text, begin, count):
    """`count` characters from `begin` on, with the beginning behind the end."""
    return (text[begin % len(text):] + text)[:count].strip()


def checked(reply, reason="length"):
    if reply.reason != reason:
        sys.exit(f"kv_types: a request failed: {reply.last}")
    return reply


def length_of(client, text, depth):
    """How many characters have about `depth` tokens."""
    sample = text_of(text, 0, 2 * depth)
    reply = checked(client.generate(sample, max_tokens=1, ignore_eos=True))
    return len(sample) * depth // reply.usage["prompt_tokens"]


def decode_speed(client, prompts, tokens):
    """Generated tokens per second of all streams, from when the last of them has its first token. The prompts are computed before, so
    that all streams begin together."""
    for prompt in prompts:
        checked(client.generate(prompt, max_tokens=1, ignore_eos=True))
    ids = [client.start(type="generate", prompt=prompt, max_tokens=tokens, ignore_eos=True, temperature=0) for prompt in prompts]
    for request in ids:
        client.wait_token(request)
    before = sum(len(client.replies[request].tokens) for request in ids)
    began = time.monotonic()
    for request in ids:
        checked(client.finish(request))
    return (len(ids) * tokens - before) / (time.monotonic() - began)


def memory_mib(client, prompt):
    """KV of 1,000 tokens."""
    session = client.create_session(mode="text")
    reply = checked(client.generate(prompt, session_id=session, max_tokens=1, ignore_eos=True))
    used = client.session(session)["hot_bytes"]
    client.call(type="end_session", session_id=session)
    return used / reply.usage["prompt_tokens"] * 1000 / 2**20


def speeds(client, options, text, round_number):
    length = length_of(client, text, options.depth)
    at = round_number * 7919  # other texts in each round, so that nothing is reused
    prompts = [f"{round_number} {stream} " + text_of(text, at + stream * 6131, length) for stream in range(6)]
    figures = {"memory": memory_mib(client, prompts[0][:400])}
    reply = checked(client.generate(prompts[5], max_tokens=1, ignore_eos=True))
    figures["prompt"] = reply.usage["prompt_tokens"] / (reply.usage["ttft_ms"] / 1000)
    figures["decode 1"] = decode_speed(client, prompts[:1], options.tokens)
    figures["decode 4"] = decode_speed(client, prompts[1:5], options.tokens)
    return figures


def says(client, options, text):
    """Greedy replies, and the likeliest tokens at many places of one text."""
    length = length_of(client, text, options.depth)
    replies = []
    for number in range(options.replies):
        prompt = text_of(text, number * 4013, length)
        reply = checked(client.generate(prompt, max_tokens=options.reply_tokens, ignore_eos=True, temperature=0))
        replies.append([token["token_id"] for token in reply.tokens])
    places = []
    for place in range(options.places):
        # The same text, a little longer each time, so that only the new tokens are computed.
        prompt = text_of(text, 31, max(1, (place + 1) * length // options.places))
        reply = checked(client.generate(prompt, max_tokens=1, ignore_eos=True, temperature=0, logprobs=TOP))
        (entry,) = [entry for event in reply.events for entry in event.get("logprobs", [])] or [{"top_logprobs": []}]
        places.append({top["token_id"]: top["logprob"] for top in entry["top_logprobs"]})  # empty: a part of a character
    return {"replies": replies, "places": places}


def divergence(ours, theirs):
    """Kullback-Leibler divergence in nats, of two dicts from token to log-probability; tokens that are not in both count as one."""
    common = ours.keys() & theirs.keys()
    total = sum(math.exp(ours[token]) * (ours[token] - theirs[token]) for token in common)
    rest, other_rest = (max(1e-9, 1 - sum(math.exp(tops[token]) for token in common)) for tops in (ours, theirs))
    return total + rest * math.log(rest / other_rest)


def equal_part(ours, theirs):
    """The part of a reply before the first token that differs."""
    equal = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    return equal / len(ours)


def likeliest(tops):
    return max(tops, key=tops.get)


def exactness(reference, said):
    pairs = [(a, b) for a, b in zip(reference["places"], said["places"], strict=True) if a and b]
    return {
        "equal": statistics.mean(equal_part(a, b) for a, b in zip(reference["replies"], said["replies"], strict=True)),
        "top": statistics.mean(likeliest(a) == likeliest(b) for a, b in pairs),
        "KL": 1000 * statistics.mean(divergence(a, b) for a, b in pairs),
    }


def daemon_with(kv_type, options):
    config = f"kv: {{type: {kv_type}, layout: split}}\nscheduler: {{speculation: off}}\n"
    return uma.Daemon(options.model, "--kv-cells", 8 * options.cells, "--slots", 8, config=config)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="GGUF file; script/bench passes the 134m model")
    parser.add_argument("--types", default=",".join(TYPES), help=f"f16 and others (default {','.join(TYPES)})")
    parser.add_argument("--depth", type=int, default=1000, help="tokens of a prompt, about (default 1000)")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of each stream that is timed (default 64)")
    parser.add_argument("--replies", type=int, default=8, help="greedy replies that are compared (default 8)")
    parser.add_argument("--reply-tokens", type=int, default=64, help="tokens of each of them (default 64)")
    parser.add_argument("--places", type=int, default=100, help="places of a text at which probabilities are compared (default 100)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the speeds (default 3)")
    parser.add_argument("--json", type=pathlib.Path, help="write every figure to this file")
    options = parser.parse_args()
    options.cells = (options.depth * 7 // 4 + max(options.tokens, options.reply_tokens) + 255) // 256 * 256
    types = options.types.split(",")
    if "f16" not in types:
        parser.error("--types needs f16, which the others are compared with")
    text = corpus()
    measured = {kv_type: [] for kv_type in types}
    said = {}
    for number in range(options.rounds):
        for kv_type in types if number % 2 == 0 else types[::-1]:
            with daemon_with(kv_type, options) as daemon, daemon.client(600) as client:
                measured[kv_type].append(speeds(client, options, text, number))
                if number == 0:
                    said[kv_type] = says(client, options, text)
    rows = {kv_type: {name: statistics.median(figures[name] for figures in measured[kv_type]) for name in measured[kv_type][0]}
            | exactness(said["f16"], said[kv_type]) for kv_type in types}
    print(f"{'kv.type':<11}{'MiB/1,000':>10}{'1 stream':>10}{'4 streams':>11}{'prompt':>9}{'equal':>8}{'top':>7}{'KL, 0.001':>11}"
          f"   ({options.model.name}; tokens/s behind {options.depth} tokens, medians of {options.rounds} rounds; {options.replies} replies "
          f"of {options.reply_tokens} tokens; {len(said['f16']['places'])} places)")
    for kv_type, row in rows.items():
        print(f"{kv_type:<11}{row['memory']:>10.1f}{row['decode 1']:>10.1f}{row['decode 4']:>11.1f}{row['prompt']:>9.0f}"
              f"{row['equal']:>8.2f}{row['top']:>7.2f}{row['KL']:>11.2f}")
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "rounds": measured}, indent=1) + "\n")


if __name__ == "__main__":
    main()
