#!/usr/bin/env python3
"""Measures what idle sessions cost: the daemon's memory, its time to start, and the time until a session generates again.

Makes many sessions through the socket, several at a time, each with one short turn, on a model that takes little memory. Then
reads the daemon's memory (without the snapshots of the warm tier, which has its own limit) and resumes some sessions at random.
Does both again after a restart of the daemon with the same catalog.
"""

import argparse
import collections
import json
import pathlib
import random
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

import compare  # noqa: E402
import strategies  # noqa: E402
import svg_chart  # noqa: E402
import uma  # noqa: E402

uma.VERIFY_EVERY = 0

CONNECTIONS = 16
WARM_UP = 500  # sessions before the first measurement, so that buffers and caches have their size
REPLY_TOKENS = 8
FLAGS = ("--kv-cells", "8192", "--slots", "8", "--threads", "1")


def make_sessions(daemon, numbers, words):
    """Makes one session for each number; returns their ids."""
    def make(some):
        ids = []
        with daemon.client(600) as client:
            for number in some:
                session = client.create_session(mode="text")
                reply = client.generate(f"{number} " + "word " * words, session_id=session, max_tokens=REPLY_TOKENS, ignore_eos=True)
                if reply.last["event"] != "eos" or reply.reason != "length":
                    raise AssertionError(f"idle: a turn ended with {reply.last}")
                ids.append(session)
        return ids
    numbers = list(numbers)
    parts = [numbers[first::CONNECTIONS] for first in range(CONNECTIONS)]
    return [session for ids in uma.parallel(*(lambda part=part: make(part) for part in parts)) for session in ids]


def look(daemon):
    """Returns the resident and the anonymous memory in bytes, without the snapshots of the warm tier."""
    with daemon.client() as client:
        states = client.metrics()["warm_bytes"]
    return {"resident": daemon.rss_bytes() - states, "anonymous": daemon.anonymous_bytes() - states}


def resume(daemon, sessions, count, rng):
    """Returns the sorted times to first token in ms of sessions drawn at random, and the number of sessions by tier."""
    times, tiers = [], collections.Counter()
    with daemon.client(600) as client:
        client.generate("a first request", max_tokens=4)
        for session in rng.sample(sessions, min(count, len(sessions))):
            usage = client.generate(" and", session_id=session, max_tokens=1, ignore_eos=True).usage
            times.append(usage["ttft_ms"])
            tiers[usage["tier"]] += 1
    return sorted(times), tiers


def start_again(daemon):
    """Restarts the daemon with its stored data; returns the seconds from its start until it is ready."""
    if daemon.terminate() != 0:
        sys.exit(f"idle: umad did not end cleanly; its log:\n{daemon.log()}")
    began = time.monotonic()
    daemon.start().wait_ready()
    return time.monotonic() - began


def measure(options):
    rng = random.Random(1)
    figures = {"sessions": options.sessions}
    with uma.Daemon(options.model, *FLAGS) as daemon:
        at_start = look(daemon)
        make_sessions(daemon, range(WARM_UP), options.words)
        before = look(daemon)
        began = time.monotonic()
        sessions = make_sessions(daemon, range(WARM_UP, WARM_UP + options.sessions), options.words)
        figures["made_s"] = time.monotonic() - began
        after = look(daemon)
        with daemon.client(600) as client:
            listed = client.call(type="list_sessions")["sessions"]
        figures["tokens"] = statistics.mean(session["tokens"] for session in listed)
        figures["bytes"] = {kind: (after[kind] - before[kind]) / options.sessions for kind in after}
        figures["resumed"] = resume(daemon, sessions, options.resumes, rng)
        figures["start_s"] = start_again(daemon)
        again = look(daemon)
        kept = options.sessions + WARM_UP
        figures["bytes_again"] = {kind: (again[kind] - at_start[kind]) / kept for kind in again}
        figures["resumed_again"] = resume(daemon, sessions, options.resumes, rng)
        start_again(daemon)  # a restart writes the catalog's log back into its file
        figures["catalog_bytes"] = (daemon.data_dir / "catalog.db").stat().st_size
    return figures


def percentile(times, part):
    return times[min(len(times) - 1, int(len(times) * part))]


def table(figures):
    lines = ["| | after creation | after a restart |", "|---|---|---|"]

    def row(name, value):
        lines.append(f"| {name} | {value('')} | {value('_again')} |")
    for kind in ("resident", "anonymous"):
        row(f"{kind} memory per idle session, bytes", lambda life, kind=kind: f"{figures['bytes' + life][kind]:,.0f}")
    row("first token of a resumed session, median, ms",
        lambda life: svg_chart.format_value(statistics.median(figures["resumed" + life][0])))
    row("the same, 95th percentile, ms", lambda life: svg_chart.format_value(percentile(figures["resumed" + life][0], 0.95)))
    row("tiers of the resumed sessions",
        lambda life: ", ".join(f"{tier} {count}" for tier, count in sorted(figures["resumed" + life][1].items())))
    text = "\n".join(lines)
    return (f"{text}\n\n{figures['sessions']:,} sessions of {figures['tokens']:.0f} tokens, made in {figures['made_s']:.0f} s; "
            f"umad starts with them in {figures['start_s']:.2f} s; catalog {figures['catalog_bytes'] / 1e6:.1f} MB.")


def main():
    parser = argparse.ArgumentParser(prog="script/bench idle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="GGUF file; script/bench passes the tiny model")
    parser.add_argument("--sessions", type=compare.positive, default=10_000, help="sessions (default 10000)")
    parser.add_argument("--words", type=compare.positive, default=40, help="words of each session's input (default 40)")
    parser.add_argument("--resumes", type=compare.positive, default=100, help="sessions that are resumed (default 100)")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file")
    parser.add_argument("--write-docs", action="store_true", help="also write the table of docs/BENCHMARKS.md")
    options = parser.parse_args()
    figures = measure(options)
    print(table(figures))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if options.write_docs:
        page = ROOT / "docs/BENCHMARKS.md"
        compare.write_whole(page, strategies.replace_block(page.read_text(), "idle", f"{options.model.name}.\n\n{table(figures)}"))


if __name__ == "__main__":
    main()
