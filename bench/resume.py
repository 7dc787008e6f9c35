#!/usr/bin/env python3
"""Measures how soon a session's next reply begins, by where its state is: in the context (hot), in memory (warm), on disk with
the file dropped from the page cache (cold), or nowhere, so that all of it is computed.

Each round starts umad with two slots and makes a session of every length; the first request to it is the computed case. The
next request finds it hot. After other sessions have taken its slot, a request finds it warm. Then the daemon ends, its files
are dropped from the page cache, it starts again, and a request finds the session cold. Prints medians of the time to first
token in ms, and the medians of the rounds' ratios to computing; then how fast states came back into the context, which is
across the bus where the model is on a device.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

import compare  # noqa: E402
import strategies  # noqa: E402
import svg_chart  # noqa: E402
import uma  # noqa: E402

uma.VERIFY_EVERY = 0

LENGTHS = (256, 512, 1000, 2000, 4000)
WAYS = ("computed", "hot", "warm", "cold")
TIERS = ("warm", "cold")
CELLS = 4608  # KV cells of a slot
CONFIG = "kv: {{layout: {layout}, warm_bytes_max: 4G, cold_bytes_max: 8G, eviction: lru}}\nlimits: {{max_prompt_bytes: 100000}}\n"


def restored(client, tier):
    """The bytes that came into contexts, and the time in ms that it took from this tier, since the start."""
    metrics = client.metrics()
    return metrics["restored_bytes_total"], (metrics[f"{tier}_restore_ms_avg"] or 0) * metrics[f"{tier}_hits_total"]


class Figures:
    """The times to first token of one round in ms, and the bytes and ms of restored states, by length and way."""

    def __init__(self):
        self.ttft_ms = {}
        self.restored = {}

    def ask(self, client, session, length, way, prompt):
        before = restored(client, way) if way in TIERS else None
        usage = client.generate(prompt, session_id=session, max_tokens=1, ignore_eos=True).usage
        if before:
            self.restored[length, way] = [new - old for new, old in zip(restored(client, way), before)]
        tier = "none" if way == "computed" else way
        if usage["tier"] != tier:
            sys.exit(f"resume: a session of {length} tokens came from tier {usage['tier']}, not {tier}: {usage}")
        self.ttft_ms[length, way] = usage["ttft_ms"]


def push_out(client, seed):
    """Fills both slots with two other sessions."""
    for number in range(2):
        session = client.create_session(mode="text")
        client.generate(f"{seed} {number} " + "other " * 80, session_id=session, max_tokens=1, ignore_eos=True)


def drop_from_page_cache(folder):
    for path in [*folder.glob("*.kv"), *folder.glob("*.part")]:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run_round(model, threads, devices, layout, lengths, seed):
    figures = Figures()
    flags = ["--kv-cells", 2 * CELLS, "--slots", 2, "--devices", devices, *(["--threads", threads] if threads else [])]
    # Drivers are found as in this process's environment.
    environment = {} if devices == "none" else {name: os.environ.get(name) for name in uma.HIDDEN_GPUS}
    with uma.Daemon(model, *flags, config=CONFIG.format(layout=layout), environment=environment) as daemon:
        sessions = {}
        with daemon.client(600) as client:
            for length in lengths:
                session = sessions[length] = client.create_session(mode="text")
                figures.ask(client, session, length, "computed", f"{seed} {length} " + "word " * length)
                figures.ask(client, session, length, "hot", " and")
                push_out(client, seed * 100_000 + length)
                figures.ask(client, session, length, "warm", " and")
                push_out(client, seed * 100_000 + length + 50_000)
        if daemon.terminate() != 0:
            sys.exit(f"resume: umad did not end cleanly; its log:\n{daemon.log()}")
        drop_from_page_cache(daemon.data_dir / "kv")
        daemon.start().wait_ready()
        with daemon.client(600) as client:
            client.generate("a first request", max_tokens=4)
            for length in lengths:
                figures.ask(client, sessions[length], length, "cold", " and")
    return figures


def median(rounds, length, way):
    return statistics.median(figures.ttft_ms[length, way] for figures in rounds)


def ratio(rounds, length, way):
    return statistics.median(figures.ttft_ms[length, way] / figures.ttft_ms[length, "computed"] for figures in rounds)


def lengths_of(rounds):
    return sorted({length for length, _ in rounds[0].ttft_ms})


def table(rounds):
    lines = ["| tokens | computed, ms | hot | warm | cold | warm ÷ computed | cold ÷ computed |", "|---|---|---|---|---|---|---|"]
    for length in lengths_of(rounds):
        times = " | ".join(svg_chart.format_value(median(rounds, length, way)) for way in WAYS)
        lines.append(f"| {length:,} | {times} | {ratio(rounds, length, 'warm'):.3f} | {ratio(rounds, length, 'cold'):.3f} |")
    return "\n".join(lines)


def rates(rounds):
    lines = ["| tokens | MiB | from memory, ms | GB/s | from disk, ms | GB/s |", "|---|---|---|---|---|---|"]
    for length in lengths_of(rounds):
        cells = [f"{length:,}", f"{rounds[0].restored[length, 'warm'][0] / (1 << 20):.1f}"]
        for tier in TIERS:
            states = [figures.restored[length, tier] for figures in rounds]
            cells.append(f"{statistics.median(ms for _, ms in states):.1f}")
            cells.append(f"{statistics.median(count / max(ms, 1e-3) for count, ms in states) / 1e6:.2f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(rounds):
    groups = [(f"{length:,} tokens: first token (ms)", {way: median(rounds, length, way) for way in WAYS})
              for length in lengths_of(rounds)]
    return svg_chart.bar_chart("A session's next reply, by where its state is", list(WAYS), groups, "cold")


def main():
    parser = argparse.ArgumentParser(prog="script/bench resume", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="GGUF file; script/bench passes the 134m model")
    parser.add_argument("--rounds", type=compare.positive, default=5, help="rounds (default 5)")
    parser.add_argument("--lengths", type=compare.positive, nargs="+", default=LENGTHS,
                        help=f"tokens of the sessions, at most {max(LENGTHS)} (default {' '.join(map(str, LENGTHS))})")
    parser.add_argument("--threads", type=compare.positive, help="compute threads (default: umad's)")
    parser.add_argument("--devices", default="none", help="umad's setting devices (default none: the CPU)")
    parser.add_argument("--layout", choices=("split", "unified"), default="split", help="umad's setting kv.layout (default split)")
    parser.add_argument("--json", type=pathlib.Path, help="write every round's times to this file")
    parser.add_argument("--write-docs", action="store_true", help="also write docs/img/resume.svg and the table of docs/BENCHMARKS.md")
    options = parser.parse_args()
    if max(options.lengths) > max(LENGTHS):
        parser.error(f"a session may have {max(LENGTHS)} tokens")
    rounds = []
    for seed in range(1, options.rounds + 1):
        rounds.append(run_round(options.model, options.threads, options.devices, options.layout, options.lengths, seed))
        print(f"resume: round {seed} of {options.rounds}", flush=True)
    print(table(rounds))
    print(f"\n{rates(rounds)}")
    if options.json:
        options.json.write_text(json.dumps([{f"{length} {way}": ms for (length, way), ms in figures.ttft_ms.items()} for figures in rounds],
                                           indent=1) + "\n")
    if options.write_docs:
        compare.write_whole(ROOT / "docs/img/resume.svg", draw(rounds))
        page = ROOT / "docs/BENCHMARKS.md"
        block = (f"{options.model.name}, {options.rounds} rounds.\n\n{table(rounds)}\n\n"
                 "![Bars: time to first token, computed, hot, warm and cold, for each length](img/resume.svg)")
        compare.write_whole(page, strategies.replace_block(page.read_text(), "resume", block))


if __name__ == "__main__":
    main()
