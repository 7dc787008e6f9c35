#!/usr/bin/env python3
"""Compares umad with the packaged llama-server, and for `burst` with the raw library, on the same model and settings.

Each measurement gets a fresh server, the contestants take turns in alternating order, and a ratio is the median of the rounds'
ratios, so that a machine that slows down for a while slows both. bench/README.md explains the scenarios.
Exit codes: 0 measured, 1 usage, 2 a contestant failed, 130 interrupted.
"""

import argparse
import contextlib
import ctypes
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / "build/release/bin"
CONTESTANTS = ("umad", "llama-server", "library")
N_BATCH = 2048  # umad's defaults, given to the others too
N_UBATCH = 512
READY_S = 120
STOP_S = 10

# Per scenario: the figures worth comparing, the slots and cells per slot it needs, and whether llama-server keeps its prompt caches
# (only where coming back to a conversation is the point).
SCENARIOS = {
    "burst": dict(
        figures=["tokens_per_s", "ttft_p50_ms", "inter_token_p50_ms", "inter_token_max_ms", "server_cpu_ms_per_token"],
        slots=None, cells=1024, caches=False),
    "storm": dict(
        figures=["quiet_p95_ms", "busy_p50_ms", "busy_p95_ms", "busy_p99_ms", "busy_max_ms", "long_ttft_p50_ms",
                 "long_ttft_max_ms", "all_done_ms"],
        slots=6, cells=2560, caches=False),
    "mixed": dict(
        figures=["short_ttft_p50_ms", "short_ttft_max_ms", "short_inter_token_p95_ms", "short_inter_token_max_ms",
                 "long_ttft_ms", "wall_s"],
        slots=4, cells=2048, caches=False),
    "chat": dict(
        figures=["wall_s", "first_turn_ttft_p50_ms", "later_turns_ttft_p50_ms", "later_turns_ttft_max_ms", "reused_tokens"],
        slots=4, cells=2048, caches=True),
    "long_ctx": dict(figures=None, slots=1, cells=32768, caches=False),
    "ipc_overhead": dict(
        figures=["ttft_p50_ms", "inter_token_p50_ms", "server_cpu_ms_per_token", "server_cpu_percent"],
        slots=1, cells=1024, caches=False),
    "trace": dict(
        figures=["tokens_per_s", "ttft_p50_ms", "ttft_p95_ms", "inter_token_p95_ms", "inter_token_max_ms", "wall_s"],
        slots=8, cells=4096, caches=True),
}


class ContestantFailed(Exception):
    """What the person at the terminal needs to read."""


def median(values):
    """The middle value, or the mean of the two middle ones; None of nothing."""
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return None
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def median_ratio(rounds, figure, one, other):
    """The median over the rounds of one contestant's figure over the other's; None where no round has both."""
    ratios = []
    for measured in rounds:
        a = measured.get(one, {}).get(figure)
        b = measured.get(other, {}).get(figure)
        if a is not None and b:
            ratios.append(a / b)
    return median(ratios)


def library_tokens_per_s(jsonl, tokens):
    """Generated tokens over the time of prompt and generation together, from the JSON line of `tokens` new tokens."""
    for line in jsonl.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            if row["tg"] == tokens:
                return row["pl"] * row["tg"] / (row["t_pp"] + row["t_tg"])
    raise ContestantFailed("llama-batched-bench printed no result")


def die_with_parent():
    """In the child: end when this script is killed without a chance to clean up (prctl PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def tail(path, lines=15):
    text = pathlib.Path(path).read_text(errors="replace")
    return "\n".join(text.splitlines()[-lines:])


@contextlib.contextmanager
def running(command, log_path):
    """Starts a server, ends it by its own pid when the block is left in whatever way."""
    with open(log_path, "wb") as log:
        process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   env={**os.environ, "GGML_NO_BACKTRACE": "1"}, preexec_fn=die_with_parent)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(process, log_path, is_ready):
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ContestantFailed(f"{process.args[0]} ended with {process.returncode}:\n{tail(log_path)}")
        try:
            if is_ready():
                return
        except OSError:
            pass  # not listening yet
        time.sleep(0.05)
    raise ContestantFailed(f"{process.args[0]} was not ready after {READY_S} s:\n{tail(log_path)}")


def answers_ping(path):
    """Whether umad answers a ping frame. The model may still be loading: uma-bench's warm-up waits for it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(path)
        body = b'{"id":"ready","type":"ping"}'
        connection.sendall(struct.pack("<I", len(body)) + body)
        return b"pong" in connection.recv(4096)


def answers_health(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    finally:
        connection.close()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Bench:
    """Runs one scenario against one contestant at a time, each time from a fresh process."""

    def __init__(self, options, load_args, folder):
        self.options = options
        self.load_args = load_args  # for uma-bench
        self.folder = pathlib.Path(folder)

    def measure(self, contestant, slots, seed):
        run = {"umad": self.run_umad, "llama-server": self.run_llama_server, "library": self.run_library}[contestant]
        return run(slots, seed)

    def run_umad(self, slots, seed):
        path = str(self.folder / "uma.sock")
        log_path = self.folder / "umad.log"
        config = self.folder / "umad.yaml"
        config.write_text("kv: {layout: split}\n")  # as the others have it; by itself umad pools where a slot gets few cells
        command = [self.options.umad, "--model", self.options.model, "--socket", path, "--n-ctx", self.n_ctx(slots),
                   "--slots", slots, "--threads", self.options.threads, "--workers", 1, "--data-dir", self.folder / "data",
                   "--config", config]
        with running(command, log_path) as process:
            wait_until_ready(process, log_path, lambda: answers_ping(path))
            return self.run_load(["--socket", path], slots, seed, process, log_path)

    def run_llama_server(self, slots, seed):
        port = free_port()
        log_path = self.folder / "llama-server.log"
        command = [self.options.llama_server, "--model", self.options.model, "--host", "127.0.0.1", "--port", port,
                   "-c", self.n_ctx(slots), "-np", slots, "--no-kv-unified", *self.shared_flags()]
        if not SCENARIOS[self.options.scenario]["caches"]:
            command += ["--no-cache-prompt", "--cache-ram", 0]
        with running(command, log_path) as process:
            wait_until_ready(process, log_path, lambda: answers_health(port))
            return self.run_load(["--http", f"127.0.0.1:{port}"], slots, seed, process, log_path)

    def run_library(self, slots, _seed):
        prompt_tokens = self.options.prompt_words + 1  # a text begins with one token of its own
        # llama-batched-bench prints from a thread that its exit may overtake, losing the last line (seen in one of three runs):
        # so a second point, of one token, comes after the one that counts.
        command = [self.options.library, "-m", self.options.model, "-c", self.n_ctx(slots), *self.shared_flags(),
                   "--no-kv-unified", "-npp", prompt_tokens, "-ntg", f"{self.options.tokens},1", "-npl", slots,
                   "--output-format", "jsonl"]
        return {"tokens_per_s": library_tokens_per_s(self.run_command(command), self.options.tokens)}

    def run_load(self, address, slots, seed, process, log_path):
        command = [self.options.uma_bench, self.options.scenario, *address, "--json", "--seed", seed, "--server-pid", process.pid]
        if self.options.scenario == "burst":
            command += ["--streams", slots, "--prompt-words", self.options.prompt_words, "--tokens", self.options.tokens]
        if self.options.scenario == "long_ctx":
            command += ["--ctx", ",".join(str(n) for n in (16384, 32768) if n <= self.n_ctx(slots))]
        try:
            return json.loads(self.run_command(command + self.load_args))["figures"]
        except ContestantFailed as failure:
            raise ContestantFailed(f"{failure}\nthe server's last words:\n{tail(log_path)}") from None

    def run_command(self, command):
        command = [str(part) for part in command]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, preexec_fn=die_with_parent,
                              env={**os.environ, "GGML_NO_BACKTRACE": "1"})
        if done.returncode != 0:
            raise ContestantFailed(f"{' '.join(command)}\nended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def shared_flags(self):
        return ["-b", N_BATCH, "-ub", N_UBATCH, "-fa", "auto", "-t", self.options.threads]

    def n_ctx(self, slots):
        return slots * self.options.cells_per_slot


def run_rounds(bench, contestants, slots, pairs):
    """One dictionary per round: contestant → figures. Every second round runs in the opposite order."""
    rounds = []
    for number in range(pairs):
        order = contestants if number % 2 == 0 else contestants[::-1]
        measured = {}
        for contestant in order:
            say(f"{bench.options.scenario}, {slots} slots, round {number + 1} of {pairs}: {contestant}")
            # A seed per round: the same prompts for both, but none that an earlier round has sent.
            measured[contestant] = bench.measure(contestant, slots, 1000 * (number + 1))
        rounds.append(measured)
    return rounds


def format_number(value):
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def format_table(rounds_by_slots, figures, contestants):
    """Markdown: one line per number of slots and figure, medians, and umad's ratio to each of the others."""
    others = [name for name in contestants if name != "umad"] if "umad" in contestants else []
    titles = ["slots", "figure", *contestants, *(f"umad ÷ {name}" for name in others)]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for slots, rounds in rounds_by_slots.items():
        names = figures or [name for name in next(iter(rounds[0].values())) if name.startswith("ctx_")]
        for figure in names:
            cells = [median([measured[name].get(figure) for measured in rounds]) for name in contestants]
            cells += [median_ratio(rounds, figure, "umad", name) for name in others]
            lines.append("| " + " | ".join([str(slots), figure, *map(format_number, cells)]) + " |")
    return "\n".join(lines)


def say(text):
    print(f"compare: {text}", file=sys.stderr, flush=True)


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def parse_arguments(arguments):
    """Options of this script, and after a `--` those for uma-bench."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(prog="script/bench compare", description=__doc__.splitlines()[0],
                                     epilog="What follows a -- goes to uma-bench, for example: compare trace -- FILE --limit 50")
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="GGUF file; script/bench gives the 134m model")
    parser.add_argument("--pairs", type=positive, default=5, help="rounds (default 5)")
    parser.add_argument("--streams", default="1,4,8,16", help="burst: numbers of streams, one slot each (default 1,4,8,16)")
    parser.add_argument("--prompt-words", type=positive, default=31, help="burst: words of a prompt (default 31)")
    parser.add_argument("--tokens", type=positive, default=64, help="burst: new tokens of a stream (default 64)")
    parser.add_argument("--slots", type=positive, help="other scenarios: slots of both servers")
    parser.add_argument("--cells-per-slot", type=positive, help="-c is this times the slots")
    parser.add_argument("--threads", type=positive, default=2, help="compute threads of each contestant (default 2)")
    parser.add_argument("--contestants", help=f"some of {','.join(CONTESTANTS)} (default: all that the scenario has)")
    parser.add_argument("--json", type=pathlib.Path, help="write every round's figures to this file")
    parser.add_argument("--umad", default=BIN / "umad")
    parser.add_argument("--uma-bench", default=BIN / "uma-bench")
    parser.add_argument("--llama-server", default="llama-server")
    parser.add_argument("--library", default="llama-batched-bench", help="the raw library's own benchmark")
    options = parser.parse_args(arguments[:split])
    scenario = SCENARIOS[options.scenario]
    options.cells_per_slot = options.cells_per_slot or scenario["cells"]
    possible = CONTESTANTS if options.scenario == "burst" else CONTESTANTS[:2]
    options.contestants = options.contestants.split(",") if options.contestants else list(possible)
    if not set(options.contestants) <= set(possible):
        parser.error(f"{options.scenario} has the contestants {', '.join(possible)}")
    try:
        options.slots_list = ([positive(n) for n in options.streams.split(",")] if options.scenario == "burst"
                              else [options.slots or scenario["slots"]])
    except (ValueError, argparse.ArgumentTypeError):
        parser.error("--streams needs numbers such as 1,4,8")
    if not options.model.is_file():
        parser.error(f"there is no model {options.model}")
    programs = {"umad": options.umad, "llama-server": options.llama_server, "library": options.library}
    for program in [options.uma_bench, *(programs[name] for name in options.contestants)]:
        if shutil.which(program) is None:
            parser.error(f"there is no program {program}")
    return options, arguments[split + 1:]


def write_json(path, options, rounds_by_slots):
    document = {"scenario": options.scenario, "model": options.model.name, "threads": options.threads, "n_batch": N_BATCH,
                "n_ubatch": N_UBATCH, "cells_per_slot": options.cells_per_slot, "rounds_by_slots": rounds_by_slots}
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(document, indent=1) + "\n")
    temporary.replace(path)


def main(arguments):
    try:
        options, load_args = parse_arguments(arguments)
    except SystemExit as ending:  # argparse ends with 2 where our exit code for usage is 1
        return 1 if ending.code else 0
    # SIGTERM leaves by the way of Ctrl-C, so that servers are ended; set even where a shell started us with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    if os.getloadavg()[0] > 1:
        say(f"warning: other programs are busy (load {os.getloadavg()[0]:.1f}), so no figure of this run can be trusted")
    rounds_by_slots = {}
    try:
        with tempfile.TemporaryDirectory(prefix="uma-bench-") as folder:
            bench = Bench(options, load_args, folder)
            for slots in options.slots_list:
                rounds_by_slots[slots] = run_rounds(bench, options.contestants, slots, options.pairs)
                if options.json:
                    write_json(options.json, options, rounds_by_slots)
    except ContestantFailed as failure:
        say(str(failure))
        return 2
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    print(f"{options.scenario}, {options.model.name}: medians of {options.pairs} rounds; -c slots × {options.cells_per_slot}, "
          f"-b {N_BATCH}, -ub {N_UBATCH}, -fa auto, {options.threads} threads, split KV\n")
    print(format_table(rounds_by_slots, SCENARIOS[options.scenario]["figures"], options.contestants))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
