#!/usr/bin/env python3
"""Collects the figures that umad reports about itself under a fixed load: burst of 1, 4, 8 and 16 streams, and storm. Makes
docs/SCORECARD.md.

Each load gets a fresh umad without a warm-up: the metrics snapshot counts from the start, so it is about this load only.
Exit codes: 0 measured, 1 usage, 2 umad failed, 130 interrupted.
"""

import argparse
import json
import pathlib
import shutil
import sys
import tempfile
import textwrap
import threading

import compare
from compare import say

sys.path.insert(0, str(compare.ROOT / "tests" / "e2e"))

import uma  # noqa: E402

SAMPLE_EVERY_S = 0.1
PAGE = compare.ROOT / "docs/SCORECARD.md"

# Title of the row, key, digits after the point, meaning.
LINES = [
    ("inter-token p50, ms", "p50_ms", 1, "Half of the tokens came within this time after the one before."),
    ("inter-token p95, ms", "p95_ms", 1, "95 of 100 tokens did."),
    ("inter-token p99, ms", "p99_ms", 1, "99 of 100 tokens did."),
    ("TTFT p50, ms", "ttft_p50_ms", 0, "Median time from a request's receipt to its first token."),
    ("TTFT p95, ms", "ttft_p95_ms", 0, "The same, 95th percentile."),
    ("tokens/s", "tokens_per_s", 1, "Generated tokens divided by the whole time, prompts included."),
    ("average batch", "avg_batch", 2, "Mean streams of the decode calls with at least one."),
    ("copy-free ratio", "copy_free_ratio", 2, "Share of logits rows that are read where the library wrote them."),
    ("ΣBMT, MB/token", "bmt_mb_per_token", 1,
     "Bytes moved per token: weights and cached KV divided by a decode call's streams, estimated mean."),
    ("ΣBMT, GB/s", "bmt_gb_per_s", 2, "These bytes divided by the whole time, without those that prompts move."),
    ("device busy ratio", "device_busy_ratio", 3, "CPU time divided by time × compute threads; spinning counts as busy."),
    ("promises kept", "promises_kept_total", 0, "Tokens within the time promised between two tokens."),
    ("promises broken", "promises_broken_total", 0, "Tokens later than promised."),
    ("other processes, share of cores", "others_busy_ratio", 3, "Above a few percent the column is not reliable."),
]


def moved_mb(samples):
    """Megabytes moved in total: the tokens generated between two samples, multiplied by the MB per token of the later one.
    `samples`: (tokens_total, bmt_mb_per_token) in order of time."""
    return sum((later[0] - earlier[0]) * later[1] for earlier, later in zip(samples, samples[1:]))


def summarize(metrics, samples, wall_s, cpu_s, threads):
    """The figures of a column, from a snapshot of a daemon that did this load only."""
    tokens = samples[-1][0] - samples[0][0]
    mb = moved_mb(samples)
    figures = {key: metrics[key] for _, key, _, _ in LINES if key in metrics}
    figures["tokens_per_s"] = metrics["tokens_total"] / wall_s
    figures["bmt_mb_per_token"] = mb / tokens if tokens else None
    figures["bmt_gb_per_s"] = mb / 1000 / wall_s
    if metrics["device_busy_ratio"] is None:  # the daemon does not report it on a CPU
        figures["device_busy_ratio"] = cpu_s / (wall_s * threads)
    return figures


class Sampler:
    """Reads the metrics periodically while a block runs, over a separate connection."""

    def __init__(self, path):
        self.client = uma.Client(path, 600)
        self.samples = []
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def sample(self):
        metrics = self.client.metrics()
        self.samples.append((metrics["tokens_total"], metrics["bmt_mb_per_token"]))
        return metrics

    def run(self):
        while not self.done.wait(SAMPLE_EVERY_S):
            self.sample()

    def __enter__(self):
        self.sample()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()
        self.last = self.sample()
        self.client.close()


def measure(options, folder, scenario, slots, cells, runs, arguments):
    """Measures one column: `runs` loads, one after the other, on a fresh umad."""
    say(f"{scenario}, {slots} slots")
    others = compare.OthersWatch()
    wall_s = cpu_s = 0.0
    with compare.running_umad(options.umad, options.model, folder, "kv: {layout: split}\n", compare.cells_flag(options.umad), slots * cells, "--slots",
                              slots, "--threads", options.threads) as (process, path, log_path):
        try:
            uma.until(lambda: is_loaded(path), "the model loaded", compare.READY_S)
            with Sampler(path) as sampler:
                for number in range(runs):
                    command = [options.uma_bench, scenario, "--socket", path, "--json", "--no-warm-up", "--seed",
                               options.seed + 1000 * number, "--server-pid", process.pid, *arguments]
                    load = json.loads(compare.run_command(command))["figures"]
                    wall_s += load["wall_s"]
                    cpu_s += load["server_cpu_s"]
        except (compare.ContestantFailed, AssertionError, OSError, uma.ConnectionClosed) as failure:
            raise compare.ContestantFailed(f"{scenario}: {failure}\nthe end of umad's log:\n{compare.tail(log_path)}") from None
    figures = summarize(sampler.last, sampler.samples, wall_s, cpu_s, options.threads)
    figures["others_busy_ratio"] = others.ratio()
    return figures


def is_loaded(path):
    with uma.Client(path, 600) as client:
        return client.models()[0]["state"] == "ready"


def measure_all(options):
    """Returns the figures of each column by its title."""
    columns = {}
    with tempfile.TemporaryDirectory(prefix="uma-bench-") as folder:
        for streams in options.streams_list:
            columns[f"burst {streams}"] = measure(options, folder, "burst", streams, compare.SCENARIOS["burst"]["cells"], options.runs,
                                                  ["--streams", streams, "--tokens", options.tokens])
        if not options.no_storm:
            storm = compare.SCENARIOS["storm"]
            columns["storm"] = measure(options, folder, "storm", storm["slots"], storm["cells"], 1,
                                       ["--long-words", options.long_words])
    return columns


def format_table(columns):
    """Returns a Markdown table with a row for each figure; the last cell has its meaning."""
    lines = ["| figure | " + " | ".join(columns) + " | meaning |", "|" + "---|" * (len(columns) + 2)]
    for title, key, digits, meaning in LINES:
        values = [figures.get(key) for figures in columns.values()]
        cells = ["-" if value is None else f"{value:,.{digits}f}" for value in values]
        lines.append("| " + " | ".join([title, *cells, meaning]) + " |")
    return "\n".join(lines)


def format_page(options, columns, command):
    about = (f"Made by `{command}`: umad's metrics ([METRICS.md](METRICS.md)) after a fixed load, each load on a fresh daemon without a "
             f"warm-up. {options.model.name}, {options.threads} compute threads, split KV. `burst N`: N streams together, 31 words and "
             f"{options.tokens} new tokens each, {options.runs} times; `storm`: two streams decode while four prompts of "
             f"{options.long_words:,} words arrive. Tokens/s and the busy ratio use the client's clock and the process's CPU time.")
    lines = "\n".join(textwrap.wrap(about, 160, break_long_words=False, break_on_hyphens=False))
    return f"# Scorecard\n{lines}\n\n{format_table(columns)}\n"


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(prog="script/bench scorecard", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    positive = compare.positive
    parser.add_argument("--model", type=pathlib.Path, required=True, help="GGUF file; script/bench passes the 134m model")
    parser.add_argument("--streams", default="1,4,8,16", help="burst: numbers of streams (default 1,4,8,16)")
    parser.add_argument("--runs", type=positive, default=4, help="burst: runs with each number of streams (default 4)")
    parser.add_argument("--tokens", type=positive, default=64, help="burst: new tokens of each stream (default 64)")
    parser.add_argument("--long-words", type=positive, default=1900, help="storm: words of each long prompt (default 1900)")
    parser.add_argument("--no-storm", action="store_true", help="leave storm out")
    parser.add_argument("--seed", type=positive, default=1, help="seed of the prompts (default 1)")
    parser.add_argument("--threads", type=positive, default=2, help="compute threads (default 2)")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file")
    parser.add_argument("--write-docs", action="store_true", help="write docs/SCORECARD.md")
    parser.add_argument("--umad", default=compare.BIN / "umad", help="program (default: that of build/release)")
    parser.add_argument("--uma-bench", default=compare.BIN / "uma-bench", help="program (default: that of build/release)")
    options = parser.parse_args(arguments)
    try:
        options.streams_list = [positive(number) for number in options.streams.split(",")]
    except (ValueError, argparse.ArgumentTypeError):
        parser.error(f"--streams is {options.streams}, must be numbers of 1 or more, such as 1,4,8")
    if not options.model.is_file():
        parser.error(f"--model: there is no file {options.model}")
    for program in (options.umad, options.uma_bench):
        if shutil.which(program) is None:
            parser.error(f"there is no program {program}: build it with script/build")
    return options


def run(arguments):
    options = parse_arguments(arguments)
    compare.warn_if_busy()
    columns = measure_all(options)
    page = format_page(options, columns, compare.shown_command("scorecard", arguments))
    if options.json:
        compare.write_whole(options.json, json.dumps({"model": options.model.name, "threads": options.threads, "columns": columns},
                                                     indent=1) + "\n")
    if options.write_docs:
        compare.write_whole(PAGE, page)
    print(page, end="")


if __name__ == "__main__":
    sys.exit(compare.exit_code_of(lambda: run(sys.argv[1:])))
