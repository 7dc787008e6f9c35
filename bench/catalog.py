#!/usr/bin/env python3
"""Measures what a turn costs by where sessions are kept: SQLite, PostgreSQL on this machine, and with --before also SQLite with
another build of umad.

Each round starts every contestant on a fresh data folder, in alternating order. One client, then several, each append a short input
and generate one token, again and again; the model is so small that the catalog is most of a turn. PostgreSQL waits for the disk at
each commit, as SQLite does. Prints medians of the time of a turn, of turns per second, and of the CPU time of umad and of the
database for each turn; then the medians of the rounds' ratios to the first contestant.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

import compare  # noqa: E402
import postgres  # noqa: E402
import uma  # noqa: E402

uma.VERIFY_EVERY = 0

FIGURES = {"one_ms": "one client, ms per turn", "many_ms": "{clients} clients, ms per turn", "turns_per_s": "{clients} clients, turns/s",
           "umad_cpu_ms": "CPU of umad, ms per turn", "database_cpu_ms": "CPU of the database, ms per turn"}


def children(process):
    return [int(child) for task in pathlib.Path(f"/proc/{process}/task").iterdir() for child in (task / "children").read_text().split()]


def converse(daemon, turns, times):
    with daemon.client(600) as client:
        session = client.create_session(mode="text")
        client.generate("begin", session_id=session, max_tokens=1, ignore_eos=True)
        for number in range(turns):
            began = time.monotonic()
            client.generate(f" {number}", session_id=session, max_tokens=1, ignore_eos=True)
            times.append(1000 * (time.monotonic() - began))


def measure(program, catalog, options):
    """The figures of one contestant in one round."""
    with contextlib.ExitStack() as stack:
        flags = ["--kv-cells", 65536, "--slots", options.clients]
        database = stack.enter_context(postgres.Postgres(fsync=True)) if catalog == "postgres" else None
        if database:
            flags += ["--catalog", database.address(), "--node", "bench"]
        daemon = uma.Daemon(options.model, *flags, config="scheduler: {speculation: off}\n")
        daemon.arguments[0] = str(program)
        stack.enter_context(daemon)
        with daemon.client() as client:
            client.generate("a first request", max_tokens=4)
        one = []
        converse(daemon, options.turns, one)
        many = [[] for _ in range(options.clients)]
        workers = [threading.Thread(target=converse, args=(daemon, options.turns, times)) for times in many]
        processes = [database.process.pid, *children(database.process.pid)] if database else []
        before = compare.cpu_s(daemon.process.pid), sum(map(compare.cpu_s, processes))
        began = time.monotonic()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        wall_s = time.monotonic() - began
        count = options.turns * options.clients
        return {"one_ms": statistics.median(one), "many_ms": statistics.median(sum(many, [])), "turns_per_s": count / wall_s,
                "umad_cpu_ms": 1000 * (compare.cpu_s(daemon.process.pid) - before[0]) / count,
                "database_cpu_ms": 1000 * (sum(map(compare.cpu_s, processes)) - before[1]) / count}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--turns", type=int, default=200, help="of each client (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--before", type=pathlib.Path, metavar="UMAD", help="another build of umad, with SQLite")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures of all rounds to this file")
    options = parser.parse_args()
    contestants = {"before": (options.before, "sqlite")} if options.before else {}
    contestants |= {"sqlite": (uma.UMAD, "sqlite")}
    if postgres.programs():
        contestants["postgres"] = (uma.UMAD, "postgres")
    rounds = []
    for number in range(options.rounds):
        names = list(contestants) if number % 2 == 0 else list(reversed(contestants))
        rounds.append({name: measure(*contestants[name], options) for name in names})
        print(f"round {number + 1} of {options.rounds}: " + ", ".join(f"{name} {rounds[-1][name]['many_ms']:.2f} ms" for name in contestants),
              file=sys.stderr, flush=True)
    first = next(iter(contestants))
    print("| figure | " + " | ".join(contestants) + " | " + " | ".join(f"{name} ÷ {first}" for name in list(contestants)[1:]) + " |")
    print("|---" * (2 * len(contestants)) + "|")
    for figure, title in FIGURES.items():
        values = [f"{statistics.median(each[name][figure] for each in rounds):.2f}" for name in contestants]
        ratios = [f"{statistics.median(each[name][figure] / each[first][figure] for each in rounds):.2f}" if rounds[0][first][figure] else "–"
                  for name in list(contestants)[1:]]
        print(f"| {title.format(clients=options.clients)} | " + " | ".join(values + ratios) + " |")
    if options.json:
        options.json.write_text(json.dumps(rounds, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
