#!/usr/bin/env python3
"""Measures what three nodes behind HAProxy do for many users, against one node: PostgreSQL for the sessions, a Redis server for states,
everything on this machine.

Every user holds a conversation by /v1/responses with `previous_response_id`. A node computes with one thread, so the CPU time of its
process is the time that it would need on a machine of its own, and the slowest node's is the time of all: throughput is by CPU time,
because one machine does not have the cores of three. Tokens that an earlier turn of the conversation had, and that were not found again,
are computed again. Prints medians of the rounds.
"""

import argparse
import collections
import json
import pathlib
import random
import statistics
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "cluster"), str(ROOT / "tests" / "e2e")]

import compare  # noqa: E402
import installation  # noqa: E402

WORDS = "time light water stone river house tree road night morning paper letter window garden music winter".split()


class User:
    """One conversation. Counts what its turns took."""

    def __init__(self, cluster, number, options):
        self.cluster = cluster
        self.chance = random.Random(number)
        self.options = options
        self.generated = 0
        self.earlier = 0  # tokens of earlier turns, over all turns
        self.again = 0  # those of them that were computed again
        self.nodes = []

    def run(self):
        answer, context = None, 0
        for _ in range(self.options.turns):
            body = {"input": " ".join(self.chance.choices(WORDS, k=self.options.words)), "max_output_tokens": self.options.tokens,
                    "temperature": 0, "uma": {"ignore_eos": True}}
            if answer:
                body["previous_response_id"] = answer.body["id"]
            answer = self.cluster.call("POST", "/v1/responses", body)
            if answer.status != 200:
                raise AssertionError(answer)
            usage = answer.body["usage"]
            self.nodes.append(answer.node)
            self.generated += usage["output_tokens"]
            self.earlier += context
            self.again += max(0, context - usage["input_tokens_details"]["cached_tokens"])
            context = usage["input_tokens"] + usage["output_tokens"]


def measure(count, options):
    """The figures of an installation of so many nodes."""
    # Room for all users on each node, as it has on a machine of its own.
    settings = {"threads": 1, "slots": options.slots, "kv": {"cells": 65536}, "scheduler": {"speculation": "off"}}
    with (tempfile.TemporaryDirectory(prefix="uma-bench-cluster-") as folder,
          installation.Installation(folder, nodes=installation.NODES[:count], model=options.model, settings=settings) as cluster):
        for name in cluster.nodes:
            cluster.call("POST", "/v1/responses", {"input": "begin", "max_output_tokens": 4}, at=name)
        users = [User(cluster, number, options) for number in range(options.users)]
        before = {name: compare.cpu_s(cluster.processes[name].pid) for name in cluster.nodes}
        workers = [threading.Thread(target=user.run) for user in users]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        used = {name: compare.cpu_s(cluster.processes[name].pid) - before[name] for name in cluster.nodes}
    turns = collections.Counter(node for user in users for node in user.nodes)
    if sum(turns.values()) != options.users * options.turns:
        sys.exit(f"cluster: {options.users * options.turns - sum(turns.values())} turns are missing")
    generated = sum(user.generated for user in users)
    return {"tokens_per_cpu_s": generated / max(used.values()), "busiest_share": max(used.values()) / sum(used.values()),
            "computed_again": sum(user.again for user in users) / sum(user.earlier for user in users),
            "moves": sum(one != other for user in users for one, other in zip(user.nodes, user.nodes[1:])), "turns": dict(turns)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--users", type=int, default=48, help="(default: %(default)s)")
    parser.add_argument("--turns", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument("--words", type=int, default=40, help="of each input (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=24, help="of each reply (default: %(default)s)")
    parser.add_argument("--slots", type=int, default=48, help="of each node (default: %(default)s)")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures of all rounds to this file")
    options = parser.parse_args()
    if problem := installation.why_not():
        sys.exit(f"cluster: {problem}: run script/bootstrap --cluster")
    rounds = []
    for number in range(options.rounds):
        counts = (1, 3) if number % 2 == 0 else (3, 1)
        rounds.append({count: measure(count, options) for count in counts})
        print(f"round {number + 1} of {options.rounds}: {rounds[-1]}", file=sys.stderr, flush=True)

    def median(figure, count):
        return statistics.median(each[count][figure] for each in rounds)
    ratio = statistics.median(each[3]["tokens_per_cpu_s"] / each[1]["tokens_per_cpu_s"] for each in rounds)
    print("| figure | 1 node | 3 nodes |\n|---|---|---|")
    print(f"| tokens per second of the busiest node's CPU | {median('tokens_per_cpu_s', 1):.0f} | {median('tokens_per_cpu_s', 3):.0f} ({ratio:.2f} times) |")
    print(f"| share of the busiest node | 1.00 | {median('busiest_share', 3):.2f} |")
    print(f"| tokens of earlier turns that were computed again | {median('computed_again', 1):.1%} | {median('computed_again', 3):.1%} |")
    print(f"| turns at another node than the one before | – | {median('moves', 3):.0f} of {options.users * (options.turns - 1)} |")
    if options.json:
        options.json.write_text(json.dumps(rounds, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
