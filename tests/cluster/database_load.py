#!/usr/bin/env python3
"""Measure what umads ask of their database: transactions, bytes of its log, and bytes on its network link, for each idle node and
second, and for each turn. Needs root, for a network namespace of the database. docs/CLUSTER.md has the result.

  tests/cluster/database_load.py [--nodes N] [--seconds S] [--turns N]
"""

import argparse
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import installation  # noqa: E402
import network  # noqa: E402


class Counters:
    NAMES = ("transactions", "bytes of the log", "bytes to the database", "bytes from it")

    def __init__(self, cluster):
        self.cluster = cluster
        self.link = pathlib.Path(f"/sys/class/net/{cluster.network.interface('db')}/statistics")

    def read(self):
        commits = self.cluster.run_sql("SELECT pg_stat_clear_snapshot(), xact_commit FROM pg_stat_database WHERE datname = 'uma'")
        log = self.cluster.run_sql("SELECT wal_bytes FROM pg_stat_wal")
        # The host's end of the link sends what the database receives.
        return (int(commits.split("|")[1]), int(log), int((self.link / "tx_bytes").read_text()), int((self.link / "rx_bytes").read_text()))

    def during(self, action):
        """What is counted during action(), after the daemons have reported: PostgreSQL counts transactions up to a second late."""
        time.sleep(1.5)
        before = self.read()
        began = time.monotonic()
        action()
        time.sleep(1.5)
        return [after - start for start, after in zip(before, self.read())], time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--turns", type=int, default=200)
    options = parser.parse_args()
    problem = installation.why_not() or network.why_not()
    if problem:
        sys.exit(problem)
    nodes = [f"box-{number}" for number in range(1, options.nodes + 1)]
    with tempfile.TemporaryDirectory() as folder, installation.Installation(folder, True, nodes=nodes) as cluster:
        counters = Counters(cluster)
        idle, seconds = counters.during(lambda: time.sleep(options.seconds))
        per_node = [count / seconds / len(cluster.nodes) for count in idle]
        conversations = [cluster.call("POST", "/v1/conversations", {}).body["id"] for _ in range(10)]

        def talk():
            for number in range(options.turns):
                answer = cluster.call("POST", "/v1/responses", {
                    "input": f"This is question {number} of a conversation.", "max_output_tokens": 40, "truncation": "auto",
                    "conversation": conversations[number % len(conversations)]})
                assert answer.status == 200, answer

        busy, seconds = counters.during(talk)
        per_turn = [(count - rate * len(cluster.nodes) * seconds) / options.turns for count, rate in zip(busy, per_node)]
        connections = cluster.run_sql("SELECT count(*) FROM pg_stat_activity WHERE datname = 'uma' AND pid <> pg_backend_pid()")
    print(f"connections of {len(cluster.nodes)} nodes: {connections}\n\n{'':24} a node and second   a turn")
    for name, rate, amount in zip(Counters.NAMES, per_node, per_turn):
        print(f"{name:24} {rate:17.1f} {amount:8.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
