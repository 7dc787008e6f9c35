#!/usr/bin/env python3
"""Examines uma-tiny: through libllama alone (raw_greedy) and through umad's sessions, on items that are not in the training
data.

The items are conversations. The model answers every turn itself; an item is right if the last answer is exactly the expected
one. Prints a table. Exit code 1: a share is below the promise of docs/DEFAULT_MODEL.md, or umad, with one conversation at a
time, answers differently from libllama or from its first run. With several conversations at once the batches differ, and so do
the last bits of the logits: there only the shares are compared. Needs Python's standard library only; ./evaluate builds the
programs and starts it.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT / "tests" / "e2e")]

import exam_items  # noqa: E402
import uma  # noqa: E402

PROMISED = {"uma-serve": 0.90, "recall 0-2": 0.90, "recall 3-6": 0.90, "recall 7-12": 0.90}
IN_COMPANY = 8  # conversations that umad serves at the same time


def as_turns(messages):
    """Converts a conversation to raw_greedy's input."""
    item = {"turns": [message["content"] for message in messages if message["role"] == "user"]}
    if messages[0]["role"] == "system":
        item["system"] = messages[0]["content"]
    return item


def through_libllama(model, conversations):
    lines = "".join(json.dumps(as_turns(messages)) + "\n" for messages in conversations)
    result = subprocess.run([str(uma.BUILD / "bin" / "raw_greedy"), str(model)], input=lines, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"evaluate: {result.stderr.strip()}")
    return [json.loads(line)["replies"] for line in result.stdout.splitlines()]


def through_umad(daemon, conversations, at_once):
    """Runs every conversation as a session that gets only the new text, `at_once` at a time. Returns (replies, usages)."""
    replies, usages = [None] * len(conversations), []

    def some(first):
        with daemon.client() as client:
            for at in range(first, len(conversations), at_once):
                item = as_turns(conversations[at])
                session = client.create_session(**({"system": item["system"]} if "system" in item else {}))
                answers = [client.generate(turn, session_id=session, max_tokens=256, temperature=0) for turn in item["turns"]]
                replies[at] = [answer.text for answer in answers]
                usages.extend(answer.usage for answer in answers)
                client.call(type="end_session", session_id=session)

    uma.parallel(*[lambda first=first: some(first) for first in range(at_once)])
    return replies, usages


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models" / "uma-tiny.gguf",
                        help="GGUF file (default models/uma-tiny.gguf)")
    parser.add_argument("--part", choices=("test", "development"), default="test", help="part of the items (default test)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the held-out names and values (default 1)")
    parser.add_argument("--most", type=int, help="most items of a group (default: all); the shares are printed but not judged")
    parser.add_argument("--wrong", action="store_true", help="print the items that were answered wrongly")
    options = parser.parse_args()

    groups = exam_items.items(options.part, options.seed)
    if options.most:
        groups = {name: members[:: -(-len(members) // options.most)] for name, members in groups.items()}
    names = [group for group, conversations in groups.items() for _ in conversations]
    conversations = [messages for group in groups.values() for messages in group]
    raw = through_libllama(options.model, conversations)
    columns = {"libllama": raw}
    with uma.Daemon(options.model, "--slots", IN_COMPANY) as daemon:
        columns["umad"], usages = through_umad(daemon, conversations, 1)
        columns["again"], _ = through_umad(daemon, conversations, 1)
        started = time.monotonic()
        columns[f"{IN_COMPANY} at once"], _ = through_umad(daemon, conversations, IN_COMPANY)
        seconds = time.monotonic() - started

    right = {name: [answers[-1] == messages[-1]["content"] for answers, messages in zip(replies, conversations)]
             for name, replies in columns.items()}
    print(f"{'group':<14}{'items':>6}" + "".join(f"{name:>12}" for name in columns))
    failed = False
    for group, members in groups.items():
        shares = [sum(ok for ok, of in zip(column, names) if of == group) / len(members) for column in right.values()]
        print(f"{group:<14}{len(members):>6}" + "".join(f"{share:>12.1%}" for share in shares))
        if not options.most and min(shares) < PROMISED.get(group, 0):
            print(f"  below the promised {PROMISED[group]:.0%}")
            failed = True
    turns = sum(map(len, raw))
    for name in list(columns)[1:]:
        same = sum(a == b for mine, theirs in zip(columns[name], raw) for a, b in zip(mine, theirs))
        print(f"{name}: {same} of {turns} answers equal to libllama's")
        failed |= same != turns and name in ("umad", "again")
    reused = sum(usage["reused_tokens"] for usage in usages)
    prompt = sum(usage["prompt_tokens"] for usage in usages)
    completion = sum(usage["completion_tokens"] for usage in usages)
    print(f"{prompt:,} prompt tokens, {reused / prompt:.0%} reused; {completion:,} new tokens in {seconds:.1f} s, {IN_COMPANY} at once")
    if options.wrong:
        for name, messages, answers, ok in zip(names, conversations, raw, right["libllama"]):
            if not ok:
                print(f"\n[{name}] {messages[-2]['content']}\n  right: {messages[-1]['content']}\n  reply: {answers[-1]}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    os.environ.pop("UMA_MODEL", None)
    main()
