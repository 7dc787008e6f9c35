#!/usr/bin/env python3
"""Compares ways to serve several requests at once, on the same work: umad with each policy, draft tokens, and two workers.

Each contestant gets a fresh umad and these loads:
  mixed     short and medium prompts that arrive over time (a trace drawn from --seed): throughput, time to first token, pauses
  capacity  1, 2, 4, ... streams together, up to the slots: how many run at the same time, nearly as fast as one alone
  at once   100 requests at the same moment (in the first round only: --at-once-pairs)
The contestants take turns, in the opposite order every second round. A figure is the median of the rounds, a ratio is the
median of the rounds' ratios. No request has a deadline, so that all contestants do the same work.
Exit codes: 0 measured, 1 usage, 2 a contestant failed, 130 interrupted.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

import compare
import svg_chart
from compare import say

DOCS = compare.ROOT / "docs"
BASELINE = "sequential"  # a server without concurrency
CELLS_PER_SLOT = 1024
OTHERS_BUSY_MAX = 0.05  # share of the cores; above it a run is marked as disturbed

# The load of one round. Every third request of the mixed load is a medium one.
SHORT = dict(input_length=24, output_length=32)
MEDIUM = dict(input_length=256, output_length=64)
AT_ONCE = dict(prompt_words=7, tokens=50)
CAPACITY = dict(prompt_words=31, tokens=64)


@dataclasses.dataclass(frozen=True)
class Strategy:
    """A configuration of umad. Slots and cells are those of the whole daemon, which several workers share."""

    name: str
    policy: str = "continuous"
    workers: int = 1
    scheduler: tuple = ()  # keys and values of the section `scheduler`


def strategies(slice_ms):
    """Returns the strategies by their keys for --only, in the order of the table."""
    return {
        "continuous": Strategy("continuous"),
        "guessed": Strategy("continuous + draft tokens", scheduler=(("speculation", "auto"),)),
        "static_batch": Strategy("static_batch", policy="static_batch"),
        "iterative": Strategy("iterative", policy="iterative"),
        "time_slice": Strategy(f"time_slice of {slice_ms} ms", policy="time_slice", scheduler=(("slice_ms", slice_ms),)),
        "sequential": Strategy("sequential", policy="sequential"),
        "shared": Strategy("2 workers, shared weights", workers=2),
        "replicated": Strategy("2 workers, replicated weights", workers=2, scheduler=(("weights", "replicated"),)),
    }


def config_text(strategy):
    """The configuration file of a contestant."""
    settings = {"speculation": "off", **dict(strategy.scheduler)}
    scheduler = ", ".join(f"{key}: {value}" for key, value in settings.items())
    return f"policy: {strategy.policy}\nscheduler: {{{scheduler}}}\nkv: {{layout: split}}\nlimits: {{deadline_ms: 0}}\n"


# Title of the column, key of its figure.
COLUMNS = [
    ("tokens/s", "tokens_per_s"),
    ("requests/s", "requests_per_s"),
    ("TTFT p50, ms", "ttft_p50_ms"),
    ("TTFT p95, ms", "ttft_p95_ms"),
    ("TPOT p50, ms", "tpot_p50_ms"),
    ("worst pause, ms", "worst_pause_ms"),
    ("memory, MiB", "pss_mib"),
    ("CPU busy", "cpu_busy_ratio"),
    ("capacity, streams", "capacity_streams"),
    ("{n} at once: wall, s", "at_once_wall_s"),
    ("{n} at once: TTFT p95, s", "at_once_ttft_p95_s"),
    ("{n} at once: failed", "at_once_failed"),
]
RATIO_COLUMNS = [("tokens/s ÷ sequential", "tokens_per_s"), ("TTFT p50 ÷ sequential", "ttft_p50_ms")]


def mixed_trace(seed, requests, span_s):
    """Returns a trace for uma-bench: short and medium prompts that arrive at random over about `span_s` seconds."""
    chance = random.Random(seed)
    at_ms = 0.0
    lines = []
    for number in range(requests):
        lines.append(json.dumps({"timestamp": round(at_ms, 1), **(MEDIUM if number % 3 == 2 else SHORT)}))
        at_ms += chance.expovariate(requests / (span_s * 1000))
    return "\n".join(lines) + "\n"


def percentile(values, fraction):
    """The smallest value that at least `fraction` of the values do not exceed, as in uma-bench; None without values."""
    ordered = sorted(values)
    return ordered[max(math.ceil(fraction * len(ordered)), 1) - 1] if ordered else None


def gaps(times):
    return [later - earlier for earlier, later in zip(times, times[1:])]


def time_per_output_token(times):
    """The mean time between the tokens of one stream; None for fewer than two tokens."""
    return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None


def slowest_pace_ms(streams):
    """The pace of the slowest stream, in ms per token: the larger of its inter-token p95 and its mean, because pauses between
    time slices may show in only one of the two. `streams` has the times of each stream's tokens. None if the streams did not
    run at the same time: a stream that waits for the end of another one is not concurrent."""
    if max(times[0] for times in streams) >= min(times[-1] for times in streams):
        return None
    return max(max(percentile(gaps(times), 0.95), time_per_output_token(times)) for times in streams)


def stream_counts(slots):
    """1, 2, 4, ... up to the slots."""
    return [2**power for power in range(slots.bit_length())]


def capacity(paces, pace_ms_max):
    """The largest number of streams that kept the pace, if every smaller number that was tried did too; 0 if a single stream
    did not. `paces`: (number of streams, pace in ms or None), in ascending order."""
    kept = 0
    for count, pace_ms in paces:
        if pace_ms is None or pace_ms > pace_ms_max:
            break
        kept = count
    return kept


def add_capacities(measured, factor):
    """Adds the capacity of each contestant of a round. The bound is the same for all, from the pace of a lone stream under the
    first contestant: measured by its own pace, a contestant that is slow with one stream would seem to carry more streams."""
    alone_ms = next(iter(measured.values()))["paces"][0][1]
    for figures in measured.values():
        figures["capacity_streams"] = capacity(figures["paces"], factor * alone_ms)


def knows_weights(output):
    """Whether umad's output, after a start with scheduler.weights and a missing model, complains about the model only."""
    return "weights" not in output


def supports_replication(umad, folder):
    """Asks umad itself: its error or remark names a key or value that it does not know."""
    config = pathlib.Path(folder) / "probe.yaml"
    config.write_text("scheduler: {weights: replicated}\n")
    command = [umad, "--config", config, "--model", "no such model", "--socket", pathlib.Path(folder) / "probe.sock",
               "--data-dir", pathlib.Path(folder) / "probe"]
    done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                          env={name: value for name, value in os.environ.items() if not name.startswith("UMA_")}, check=False)
    return knows_weights(done.stdout + done.stderr)


def pss_mib(pid):
    """Memory of a process in MiB. A page that several processes share is divided between them."""
    text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE).group(1)) / 1024


class Bench:
    """Measures one contestant at a time, each in a fresh umad."""

    def __init__(self, options, folder):
        self.options = options
        self.folder = pathlib.Path(folder)

    def measure(self, strategy, seed, with_at_once):
        per_worker = self.options.slots // strategy.workers
        flags = ["--slots", per_worker, "--kv-cells", per_worker * CELLS_PER_SLOT, "--workers", strategy.workers, "--threads",
                 self.options.threads]
        others = compare.OthersWatch()
        with compare.running_umad(self.options.umad, self.options.model, self.folder, config_text(strategy), *flags) as started:
            process, path, log_path = started
            try:
                figures = self.measure_mixed(path, process.pid, seed)
                figures["pss_mib"] = pss_mib(process.pid)
                figures["paces"] = self.measure_paces(path, seed)
                if with_at_once:
                    figures |= self.measure_at_once(path, seed)
            except compare.ContestantFailed as failure:
                raise compare.ContestantFailed(f"{strategy.name}: {failure}\nthe end of its log:\n"
                                               f"{compare.tail(log_path)}") from None
        figures["others_busy_ratio"] = others.ratio()
        return figures

    def run_load(self, path, seed, *arguments, may_fail=False):
        """Runs uma-bench once; returns its figures, and the times of each stream's tokens."""
        csv_path = self.folder / "tokens.csv"
        command = [self.options.uma_bench, *arguments, "--socket", path, "--seed", seed, "--json", "--csv", csv_path]
        output = compare.run_command(command, statuses=(0, 2) if may_fail else (0,))
        if not output:
            raise compare.ContestantFailed("uma-bench reached no server")
        streams = compare.read_streams(csv_path.read_text())
        return json.loads(output)["figures"], [times for _, times in streams.values()]

    def measure_mixed(self, path, pid, seed):
        trace = self.folder / "mixed.jsonl"
        trace.write_text(mixed_trace(seed, self.options.requests, self.options.span_s))
        run, streams = self.run_load(path, seed, "trace", trace, "--limit", self.options.requests, "--server-pid", pid)
        return {
            "tokens_per_s": run["tokens_per_s"],
            "requests_per_s": run["requests"] / run["wall_s"],
            "ttft_p50_ms": run["ttft_p50_ms"],
            "ttft_p95_ms": run["ttft_p95_ms"],
            "tpot_p50_ms": compare.median([time_per_output_token(times) for times in streams]),
            "worst_pause_ms": run["inter_token_max_ms"],
            "cpu_busy_ratio": run["server_cpu_s"] / (run["wall_s"] * len(os.sched_getaffinity(0))),
        }

    def measure_paces(self, path, seed):
        paces = []
        for count in stream_counts(self.options.slots):
            # Each number has its own seed, so that no prompt begins like one that was computed before.
            streams = self.run_load(path, seed + 200 + 2 * count, "burst", "--no-warm-up", "--streams", count, "--prompt-words",
                                    CAPACITY["prompt_words"], "--tokens", CAPACITY["tokens"])[1]
            paces.append((count, slowest_pace_ms(streams)))
        return paces

    def measure_at_once(self, path, seed):
        run, _ = self.run_load(path, seed + 800, "burst", "--no-warm-up", "--streams", self.options.at_once, "--prompt-words",
                               AT_ONCE["prompt_words"], "--tokens", AT_ONCE["tokens"], may_fail=True)
        ttft_ms = run["ttft_p95_ms"]
        return {"at_once_wall_s": run["wall_s"], "at_once_ttft_p95_s": None if ttft_ms is None else ttft_ms / 1000,
                "at_once_failed": run["failures"]}


def run_rounds(bench, contestants):
    """Returns one dictionary for each round: name → figures."""
    options = bench.options
    rounds = []
    for number in range(options.pairs):
        measured = {}
        for strategy in contestants if number % 2 == 0 else contestants[::-1]:
            say(f"round {number + 1} of {options.pairs}: {strategy.name}")
            measured[strategy.name] = bench.measure(strategy, options.seed + 1000 * number, number < options.at_once_pairs)
        rounds.append({strategy.name: measured[strategy.name] for strategy in contestants})
        add_capacities(rounds[-1], options.factor)
        if options.json:
            write_json(options, rounds)
    return rounds


def write_json(options, rounds):
    document = {"model": options.model.name, "threads": options.threads, "slots": options.slots, "cells_per_slot": CELLS_PER_SLOT,
                "seed": options.seed, "requests": options.requests, "span_s": options.span_s, "at_once": options.at_once,
                "capacity_factor": options.factor, "rounds": rounds}
    compare.write_whole(options.json, json.dumps(document, indent=1) + "\n")


def summarize(rounds, figure, name):
    """The median of the rounds. For a capacity it is the lower of two middle values: a number of streams that was measured."""
    values = [measured[name].get(figure) for measured in rounds]
    if figure == "capacity_streams":
        return statistics.median_low(values)
    return compare.median(values)


def format_table(rounds, at_once):
    """Returns a Markdown table with a row for each strategy. It has ratios only if the baseline was measured too."""
    names = list(rounds[0])
    ratios = RATIO_COLUMNS if BASELINE in names else []
    titles = ["strategy", *(title for title, _ in ratios), *(title.format(n=at_once) for title, _ in COLUMNS)]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for name in names:
        cells = [compare.median_ratio(rounds, figure, name, BASELINE) for _, figure in ratios]
        cells += [summarize(rounds, figure, name) for _, figure in COLUMNS]
        lines.append("| " + " | ".join([name, *map(compare.format_number, cells)]) + " |")
    return "\n".join(lines)


def describe_others(ratio):
    """States how much of the cores other processes took, and whether that disturbed the run."""
    mark = ": **disturbed, not to be cited**" if ratio > OTHERS_BUSY_MAX else ""
    return f"Other processes took up to {ratio:.0%} of the cores{mark}."


def describe(options, rounds):
    """Describes the measurement, for the text above a table, with the share of other processes."""
    rounds_count = len(rounds)
    at_once_rounds = min(options.at_once_pairs, rounds_count)
    others = max(figures["others_busy_ratio"] for measured in rounds for figures in measured.values())
    return (f"{options.model.name}, {options.threads} compute threads, {options.slots} slots of {CELLS_PER_SLOT} cells; medians of "
            f"{rounds_count} round{'s' if rounds_count > 1 else ''} (the {options.at_once} requests at once: {at_once_rounds}), "
            f"seed {options.seed}.\n"
            f"Mixed load: {options.requests} requests over about {options.span_s:g} s, two of three with {SHORT['input_length']} words "
            f"and {SHORT['output_length']} new tokens, the third with {MEDIUM['input_length']} and {MEDIUM['output_length']}. "
            f"At once: {AT_ONCE['prompt_words']} words and {AT_ONCE['tokens']} new tokens each.\n"
            f"Capacity: streams that run at the same time, each within {options.factor:g} × the pace of a lone stream under "
            "the first strategy. "
            f"{describe_others(others)}")


def draw(rounds, at_once):
    charted = {"tokens_per_s": "throughput (tokens/s)", "ttft_p95_ms": "first token, p95 (ms)",
               "tpot_p50_ms": "time per output token, p50 (ms)", "worst_pause_ms": "worst pause of a stream (ms)",
               "pss_mib": "memory (MiB)", "at_once_wall_s": f"{at_once} requests at once, all done (s)"}
    names = list(rounds[0])
    groups = [(label, {name: summarize(rounds, figure, name) for name in names}) for figure, label in charted.items()]
    return svg_chart.bar_chart("Strategies on the same mixed load", names, groups, names[0])


def replace_block(text, name, block):
    """Returns the document with `block` in place of the old text between the markers with this name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise compare.ContestantFailed(f"the document needs one {begin} and, after it, one {end}")
    return text[:text.index(begin)] + f"{begin}\n{block.strip()}\n{end}" + text[text.index(end) + len(end):]


def write_docs(options, rounds, command):
    compare.write_whole(DOCS / "img/strategies.svg", draw(rounds, options.at_once))
    page = DOCS / "BENCHMARKS.md"
    block = (f"`{command}`: {describe(options, rounds)}\n\n{format_table(rounds, options.at_once)}\n\n"
             "![Bars: throughput, first token, time per token, worst pause, memory and the requests at once, for each strategy]"
             "(img/strategies.svg)")
    compare.write_whole(page, replace_block(page.read_text(), "strategies", block))


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(prog="script/bench strategies", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    positive = compare.positive
    known = strategies(100)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="GGUF file; script/bench passes the 134m model")
    parser.add_argument("--pairs", type=positive, default=3, help="rounds (default 3)")
    parser.add_argument("--only", default=",".join(known), help=f"some of {','.join(known)} (default: all)")
    parser.add_argument("--seed", type=positive, default=1, help="seed of arrivals and prompts (default 1)")
    parser.add_argument("--requests", type=positive, default=40,
                        help="requests of the mixed load (default 40); if sequential can keep up, all throughputs are alike")
    parser.add_argument("--span-s", type=float, default=6, help="approximate seconds over which they arrive (default 6)")
    parser.add_argument("--at-once", type=positive, default=100, help="requests at the same moment (default 100)")
    parser.add_argument("--at-once-pairs", type=int, default=1, help="rounds with these requests (default 1; 0: none)")
    parser.add_argument("--factor", type=float, default=2,
                        help="capacity: how many times slower than a lone stream a stream may be (default 2)")
    parser.add_argument("--slots", type=positive, default=8, help="slots of the whole daemon (default 8)")
    parser.add_argument("--slice-ms", type=positive, default=100, help="slice of the policy time_slice in ms (default 100)")
    parser.add_argument("--threads", type=positive, default=2, help="compute threads of the whole daemon (default 2)")
    parser.add_argument("--json", type=pathlib.Path, help="write every round's figures to this file")
    parser.add_argument("--chart", type=pathlib.Path, help="draw the medians to this file, as SVG")
    parser.add_argument("--write-docs", action="store_true", help="write docs/img/strategies.svg and the table of docs/BENCHMARKS.md")
    parser.add_argument("--umad", default=compare.BIN / "umad", help="program (default: that of build/release)")
    parser.add_argument("--uma-bench", default=compare.BIN / "uma-bench", help="program (default: that of build/release)")
    options = parser.parse_args(arguments)
    options.only = options.only.split(",")
    if not set(options.only) <= set(known):
        parser.error(f"--only is {','.join(options.only)}; the strategies are {', '.join(known)}")
    if options.slots % 2 and {"shared", "replicated"} & set(options.only):
        parser.error(f"--slots is {options.slots}, must be even: two workers share them")
    if options.span_s <= 0 or options.factor < 1:
        parser.error(f"--span-s is {options.span_s:g}, must be above 0; --factor is {options.factor:g}, must be 1 or more")
    if not options.model.is_file():
        parser.error(f"--model: there is no file {options.model}")
    for program in [options.umad, options.uma_bench]:
        if shutil.which(program) is None:
            parser.error(f"there is no program {program}: build or install it")
    return options


def choose_contestants(options, folder):
    """The requested strategies, without those that this umad does not support."""
    known = strategies(options.slice_ms)
    keys = [key for key in known if key in options.only]
    if "replicated" in keys and not supports_replication(options.umad, folder):
        say("this umad does not know scheduler.weights: replicated, so the strategy `replicated` is left out")
        keys.remove("replicated")
    if not keys:
        raise compare.ContestantFailed("no strategy is left to compare: give others with --only")
    return [known[key] for key in keys]


def run(arguments):
    options = parse_arguments(arguments)
    compare.warn_if_busy()
    with tempfile.TemporaryDirectory(prefix="uma-bench-") as folder:
        rounds = run_rounds(Bench(options, folder), choose_contestants(options, folder))
    if options.chart:
        compare.write_whole(options.chart, draw(rounds, options.at_once))
    if options.write_docs:
        write_docs(options, rounds, compare.shown_command("strategies", arguments))
    print(f"{describe(options, rounds)}\n\n{format_table(rounds, options.at_once)}")


if __name__ == "__main__":
    sys.exit(compare.exit_code_of(lambda: run(sys.argv[1:])))
