#!/usr/bin/env python3
"""Compares umad with the packaged llama-server, and for `burst` with the raw library, on the same model and settings.

Each measurement gets a fresh server, the contestants take turns in alternating order, and a ratio is the median of the rounds'
ratios, so that a machine that slows down for a while slows both. bench/README.md explains the scenarios.
Exit codes: 0 measured, 1 usage, 2 a contestant failed, 130 interrupted.
"""

import argparse
import contextlib
import csv
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

import svg_chart

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / "build/release/bin"
CONTESTANTS = ("umad", "llama-server", "library")
N_BATCH = 2048  # umad's defaults, given to the others too
N_UBATCH = 512
READY_S = 120
STOP_S = 10
WARM_PAUSE_S = 5  # between the two bursts of --warm: umad measures calls of every width meanwhile
QUIET_TOKENS = 100  # default of uma-bench storm: tokens of each stream before the long prompts arrive

# For each scenario: the figures to compare, its slots and cells per slot, the layout of the cells if it is not split, and whether
# llama-server keeps its prompt caches. It does only in scenarios that measure the reuse of earlier text.
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
    "chat_restart": dict(
        figures=["last_turn_wall_s", "last_turn_ttft_p50_ms", "later_turns_ttft_max_ms", "reused_tokens"],
        slots=4, cells=2048, caches=True),
    "agent": dict(
        figures=["agents_wall_s", "first_half_wall_s", "second_half_wall_s", "server_cpu_s_before", "server_cpu_s_after",
                 "first_half_computed_ratio", "second_half_computed_ratio",
                 "first_half_agents_computed_ratio", "second_half_agents_computed_ratio",
                 "side_computed_ratio", "chat_computed_ratio",
                 "first_half_turn_p50_ms", "first_half_turn_max_ms", "first_half_ttft_p50_ms", "first_half_ttft_max_ms",
                 "second_half_turn_p50_ms", "second_half_turn_max_ms", "second_half_ttft_p50_ms", "second_half_ttft_max_ms",
                 "resumed_turn_max_ms", "resumed_ttft_max_ms",
                 "chat_quiet_p50_ms", "chat_quiet_p95_ms", "chat_busy_p50_ms", "chat_busy_p95_ms", "chat_busy_max_ms", "chat_tokens",
                 "agent_first_prompt_tokens", "agent_last_prompt_tokens"],
        slots=8, cells=8192, layout="unified", caches=True),
    "long_ctx": dict(figures=None, slots=1, cells=32768, caches=False),
    "ipc_overhead": dict(
        figures=["ttft_p50_ms", "inter_token_p50_ms", "server_cpu_ms_per_token", "server_cpu_percent"],
        slots=1, cells=1024, caches=False),
    "trace": dict(
        figures=["tokens_per_s", "ttft_p50_ms", "ttft_p95_ms", "inter_token_p95_ms", "inter_token_max_ms", "wall_s"],
        slots=8, cells=4096, caches=True),
}

# The load of uma-bench for each scenario that restarts the server.
RESTARTED = {"chat_restart": "chat", "agent": "agent"}


class ContestantFailed(Exception):
    """A contestant failed. The message is shown to the user."""


def median(values):
    """The median of the values that are not None; None if there are no such values."""
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return None
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def median_ratio(rounds, figure, one, other):
    """The median over the rounds of one contestant's figure divided by the other's; None if no round has both."""
    ratios = []
    for measured in rounds:
        a = measured.get(one, {}).get(figure)
        b = measured.get(other, {}).get(figure)
        if a is not None and b:
            ratios.append(a / b)
    return median(ratios)


def library_tokens_per_s(jsonl, tokens):
    """Generated tokens divided by the time of prompt and generation together, from the JSON line with `tokens` new tokens."""
    for line in jsonl.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            if row["tg"] == tokens:
                return row["pl"] * row["tg"] / (row["t_pp"] + row["t_tg"])
    raise ContestantFailed(f"llama-batched-bench printed no result for {tokens} new tokens")


def die_with_parent():
    """Makes the calling child process end with this script, even if the script is killed (prctl PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def tail(path, lines=15):
    text = pathlib.Path(path).read_text(errors="replace")
    return "\n".join(text.splitlines()[-lines:])


@contextlib.contextmanager
def running(command, log_path):
    """Runs a server as a context manager. At the end of the block, also after an exception, it ends this process by its pid."""
    with open(log_path, "wb") as log:
        process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   env={**os.environ, "GGML_NO_BACKTRACE": "1", "UMA_HTTP": "off"}, preexec_fn=die_with_parent)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(process, log_path, is_ready, look_every_s=0.05):
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ContestantFailed(f"{process.args[0]} ended with status {process.returncode}:\n{tail(log_path)}")
        try:
            if is_ready():
                return
        except OSError:
            pass  # not listening yet
        time.sleep(look_every_s)
    raise ContestantFailed(f"{process.args[0]} was not ready after {READY_S} s:\n{tail(log_path)}")


def answers_ping(path):
    """Whether umad answers a ping frame. The model may still be loading: uma-bench's warm-up waits for it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(path)
        body = b'{"id":"ready","type":"ping"}'
        connection.sendall(struct.pack("<I", len(body)) + body)
        return b"pong" in connection.recv(4096)


def answers_ok(port, path="/health"):
    """Whether a server answers this path with 200: /health of llama-server, /ready of umad."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    finally:
        connection.close()


def cpu_s(pid):
    """CPU seconds that a process has used, with its threads."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid, field="VmRSS"):
    """Resident memory of a process now, or its peak (VmHWM). Servers map the model's file, whose pages count."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise ContestantFailed(f"process {pid} has no {field}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def cells_flag(program):
    """The flag for the KV cells of a worker; before 0.2 it was --n-ctx."""
    text = subprocess.run([program, "--help"], capture_output=True, text=True, check=False).stdout
    return "--kv-cells" if "--kv-cells" in text else "--n-ctx"


@contextlib.contextmanager
def running_umad(program, model, folder, config, *flags):
    """Runs umad as a context manager with a socket in `folder` and an empty data folder. `config` is the text of its
    configuration file. Yields the process, its socket and its log as soon as umad answers."""
    folder = pathlib.Path(folder)
    path, log_path, config_path = str(folder / "uma.sock"), folder / "umad.log", folder / "umad.yaml"
    config_path.write_text(config)
    with tempfile.TemporaryDirectory(dir=folder) as data:  # empty, so that nothing from another run is reused
        command = [program, "--model", model, "--socket", path, "--data-dir", data, "--config", config_path, *flags]
        with running(command, log_path) as process:
            wait_until_ready(process, log_path, lambda: answers_ping(path))
            yield process, path, log_path


def run_command(command, statuses=(0,)):
    """Runs a program and returns its output. Raises ContestantFailed, with the end of the output, for a status not in `statuses`."""
    command = [str(part) for part in command]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, preexec_fn=die_with_parent,
                          env={**os.environ, "GGML_NO_BACKTRACE": "1"})
    if done.returncode not in statuses:
        raise ContestantFailed(f"{' '.join(command)}\nended with status {done.returncode}: "
                               f"{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def read_streams(csv_text):
    """Converts uma-bench's rows to {session: (is_interactive, [time of each token in ms])}."""
    streams = {}
    for row in csv.DictReader(csv_text.splitlines()):
        interactive, times = streams.setdefault(int(row["session_id"]), (row["is_interactive"] == "1", []))
        times.append(float(row["ts_ms"]))
    return streams


def storm_gaps(csv_text, quiet):
    """Returns the gaps between tokens of the decoding streams: (seconds since the long prompts were sent, gap in ms), in order
    of time. uma-bench sends the long prompts when each of these streams has `quiet` tokens."""
    decoding = [times for interactive, times in read_streams(csv_text).values() if interactive]
    if not decoding or min(map(len, decoding)) < quiet:
        raise ContestantFailed(f"a stream of storm ended before it had its {quiet} quiet tokens")
    began = max(times[quiet - 1] for times in decoding)
    return sorted(((later - began) / 1000, later - earlier) for times in decoding for earlier, later in zip(times, times[1:]))


def shared_flags(threads):
    """What llama-server and the library get like umad."""
    return ["-b", N_BATCH, "-ub", N_UBATCH, "-fa", "auto", "-t", threads]


def warm(figures):
    """The figures under the names of a second load."""
    return {f"warm_{name}": value for name, value in figures.items()}


class Bench:
    """Runs one scenario against one contestant at a time, each time from a fresh process."""

    def __init__(self, options, load_args, folder):
        self.options = options
        self.load_args = load_args  # for uma-bench
        self.folder = pathlib.Path(folder)
        self.prompt_tokens_known = None  # tokens of one request's prompt
        self.tokens_csv = {}  # contestant → the rows of its first round, if a chart is requested

    def measure(self, contestant, slots, seed):
        run = {"umad": self.run_umad, "before": self.run_before, "llama-server": self.run_llama_server,
               "library": self.run_library}[contestant]
        figures = run(slots, seed)
        if contestant == "library" and self.options.warm:
            figures = figures | warm(figures)  # It computes an empty batch before it measures.
        if self.options.chart and contestant not in self.tokens_csv:
            self.tokens_csv[contestant] = self.csv_path().read_text()
        return figures

    def csv_path(self):
        return self.folder / "tokens.csv"

    def run_before(self, slots, seed):
        return self.run_umad(slots, seed, self.options.before)

    def run_umad(self, slots, seed, program=None):
        # The others use the split layout. By default umad uses the unified one if a slot gets few cells.
        workers = self.options.workers
        address = f"127.0.0.1:{free_port()}" if self.options.umad_http else "off"
        program = program or self.options.umad
        flags = [cells_flag(program), self.n_ctx(slots) // workers, "--slots", slots // workers,
                 "--threads", self.options.threads * workers, "--workers", workers, "--http", address]
        with running_umad(program, self.options.model, self.folder, f"kv: {{layout: {self.options.layout}}}\n",
                          *flags) as (process, path, log_path):
            listener = ["--http", address] if self.options.umad_http else ["--socket", path]
            return self.run_load(listener, slots, seed, process, log_path, lambda: answers_ping(path))

    def run_llama_server(self, slots, seed):
        port = free_port()
        log_path = self.folder / "llama-server.log"
        command = [self.options.llama_server, "--model", self.options.model, "--host", "127.0.0.1", "--port", port,
                   "-c", self.n_ctx(slots), "-np", slots, "--no-kv-unified" if self.options.layout == "split" else "--kv-unified",
                   *shared_flags(self.options.threads)]
        load_args = []
        if self.options.scenario == "agent":
            command += ["--cache-reuse", 256]  # its other caches of prompts are on by default
            load_args = ["--restore-space"]
        if not SCENARIOS[self.options.scenario]["caches"]:
            command += ["--no-cache-prompt", "--cache-ram", 0]
        with running(command, log_path) as process:
            wait_until_ready(process, log_path, lambda: answers_ok(port))
            return self.run_load(["--http", f"127.0.0.1:{port}", *load_args], slots, seed, process, log_path,
                                 lambda: answers_ok(port))

    def run_library(self, slots, seed):
        # The number of tokens per word depends on the model, so the library gets as many prompt tokens as the servers.
        prompt_tokens = self.prompt_tokens(slots, seed)
        # llama-batched-bench prints from a thread and may exit before the last line is out (seen in one of three runs). So a
        # second point, of one token, follows the one that counts.
        command = [self.options.library, "-m", self.options.model, "-c", self.n_ctx(slots), *shared_flags(self.options.threads),
                   "--no-kv-unified", "-npp", prompt_tokens, "-ntg", f"{self.options.tokens},1", "-npl", slots,
                   "--output-format", "jsonl"]
        return {"tokens_per_s": library_tokens_per_s(run_command(command), self.options.tokens)}

    def prompt_tokens(self, slots, seed):
        if self.prompt_tokens_known is None:
            figures = self.run_umad(slots, seed)
            self.prompt_tokens_known = round(figures["prompt_tokens"] / figures["requests"])
        return self.prompt_tokens_known

    def run_load(self, address, slots, seed, process, log_path, is_ready):
        if self.options.scenario in RESTARTED:
            return self.run_load_with_restart(address, seed, process, log_path, is_ready)
        command = [self.options.uma_bench, self.options.scenario, *address, "--json", "--seed", seed, "--server-pid", process.pid]
        if self.options.scenario == "burst":
            command += ["--streams", slots, "--prompt-words", self.options.prompt_words, "--tokens", self.options.tokens]
        if self.options.scenario == "long_ctx":
            command += ["--ctx", ",".join(str(n) for n in (16384, 32768) if n <= self.n_ctx(slots))]
        if self.options.chart:
            command += ["--csv", self.csv_path()]
        try:
            figures = json.loads(run_command(command + self.load_args))["figures"]
            if self.options.warm:
                time.sleep(WARM_PAUSE_S)
                command[command.index("--seed") + 1] = seed + 500  # prompts of neighbouring seeds share words
                figures |= warm(json.loads(run_command(command + self.load_args))["figures"])
            return figures
        except ContestantFailed as failure:
            raise ContestantFailed(f"{failure}\nthe end of the server's log:\n{tail(log_path)}") from None

    def run_load_with_restart(self, address, seed, process, log_path, is_ready):
        """Runs the scenario's load, and restarts the server with the same arguments when the load pauses."""
        command = [self.options.uma_bench, RESTARTED[self.options.scenario], *address, "--json", "--pause", "--seed", seed, *self.load_args]
        with subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              preexec_fn=die_with_parent) as load:
            if load.stdout.readline() != "paused\n":
                raise ContestantFailed(f"uma-bench ended early; the end of the server's log:\n{tail(log_path)}")
            cpu_before_s = cpu_s(process.pid)
            process.terminate()
            process.wait(STOP_S)
            with running(process.args, log_path) as again:
                wait_until_ready(again, log_path, is_ready)
                figures, _ = load.communicate("\n")
                cpu_after_s = cpu_s(again.pid)
        if load.returncode != 0:
            raise ContestantFailed(f"uma-bench ended with status {load.returncode}; the end of the server's log:\n"
                                   f"{tail(log_path)}")
        return {**json.loads(figures)["figures"], "server_cpu_s_before": cpu_before_s, "server_cpu_s_after": cpu_after_s}

    def n_ctx(self, slots):
        return slots * self.options.cells_per_slot


def run_rounds(bench, contestants, slots, pairs):
    """Returns one dictionary for each round: contestant → figures. Every second round runs in the opposite order."""
    rounds = []
    for number in range(pairs):
        order = contestants if number % 2 == 0 else contestants[::-1]
        measured = {}
        for contestant in order:
            say(f"{bench.options.scenario}, {slots} slots, round {number + 1} of {pairs}: {contestant}")
            # Each round has its own seed: all contestants get the same prompts, and no prompt is sent in two rounds.
            measured[contestant] = bench.measure(contestant, slots, 1000 * (number + 1))
        rounds.append(measured)
    return rounds


def format_number(value):
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def compared_with_umad(contestants):
    return [name for name in contestants if name != "umad"] if "umad" in contestants else []


def format_table(rounds_by_slots, figures, contestants, first_title="slots"):
    """Returns a Markdown table with a row for each number of slots and figure: medians, and umad's ratios to the others. The keys
    may be something else than slots, which `first_title` names."""
    others = compared_with_umad(contestants)
    titles = [first_title, "figure", *contestants, *(f"umad ÷ {name}" for name in others)]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for slots, rounds in rounds_by_slots.items():
        names = figures or [name for name in next(iter(rounds[0].values())) if name.startswith("ctx_")]
        for figure in names:
            cells = [median([measured[name].get(figure) for measured in rounds]) for name in contestants]
            cells += [median_ratio(rounds, figure, "umad", name) for name in others]
            lines.append("| " + " | ".join([str(slots), figure, *map(format_number, cells)]) + " |")
    return "\n".join(lines)


def say(text):
    print(f"{pathlib.Path(sys.argv[0]).stem}: {text}", file=sys.stderr, flush=True)


def shown_command(name, arguments):
    """The command that repeats a run, without the options that only name files and programs."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--model", "--json", "--chart", "--umad", "--before", "--uma-bench", "--llama-server"):
        parser.add_argument(flag)
    return " ".join([f"script/bench {name}", *parser.parse_known_args(arguments)[1]])


def exit_code_of(work):
    """Runs a script and returns its exit code: 0 done, 1 usage, 2 a contestant failed, 130 interrupted."""
    # SIGTERM acts like Ctrl-C, so that servers are ended. The handlers are set even if the shell made this script ignore SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        work()
    except SystemExit as ending:  # argparse exits with 2 after a usage error; here that is 1
        return 1 if ending.code else 0
    except ContestantFailed as failure:
        say(str(failure))
        return 2
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    return 0


def system_busy_s(stat_text):
    """CPU seconds that all processes have used, from the first line of /proc/stat: all its fields except idle, iowait, and the
    time of guests, which user and nice include."""
    fields = [int(field) for field in stat_text.splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


class OthersWatch:
    """Measures the share of the cores that other processes use from now on. Compute threads spin, so they lose far more speed
    than this share."""

    def __init__(self):
        self.began_s = time.monotonic()
        self.busy_s = system_busy_s(pathlib.Path("/proc/stat").read_text())
        self.ours_s = self._ours_s()

    @staticmethod
    def _ours_s():
        spent = os.times()  # children that were waited for: every server and uma-bench that has ended
        return spent.user + spent.system + spent.children_user + spent.children_system

    def ratio(self):
        """Returns 0 to 1. REQUIRES: every child has ended; the time of running ones would count as that of other processes."""
        busy_s = system_busy_s(pathlib.Path("/proc/stat").read_text()) - self.busy_s - (self._ours_s() - self.ours_s)
        return max(busy_s, 0.0) / ((time.monotonic() - self.began_s) * os.cpu_count())


def warn_if_busy():
    if os.getloadavg()[0] > 1:
        say(f"warning: other programs are busy (load {os.getloadavg()[0]:.1f}), so the figures of this run cannot be trusted")


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"is {value}, must be 1 or more")
    return value


def parse_arguments(arguments):
    """Returns the options of this script, and the arguments after a `--`, which are for uma-bench."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(prog="script/bench compare", description=__doc__.splitlines()[0],
                                     epilog="Arguments after -- go to uma-bench, for example: compare trace -- FILE --limit 50")
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="GGUF file; script/bench passes the 134m model")
    parser.add_argument("--pairs", type=positive, default=5, help="rounds (default 5)")
    parser.add_argument("--streams", default="1,4,8,16", help="burst: numbers of streams, one slot each (default 1,4,8,16)")
    parser.add_argument("--prompt-words", type=positive, default=31, help="burst: words of a prompt (default 31)")
    parser.add_argument("--tokens", type=positive, default=64, help="burst: new tokens of a stream (default 64)")
    parser.add_argument("--warm", action="store_true",
                        help="burst: a second burst on each server, 5 s after the first one, as figures of their own (warm_…)")
    parser.add_argument("--slots", type=positive, help="other scenarios: slots of each server (default: by scenario)")
    parser.add_argument("--cells-per-slot", type=positive,
                        help="KV cells of a slot; -c is this times the slots (default: by scenario)")
    parser.add_argument("--threads", type=positive, default=2, help="compute threads of each contestant (default 2)")
    parser.add_argument("--workers", type=positive, default=1,
                        help="workers of umad, each with --threads threads; they share the slots and cells (default 1)")
    parser.add_argument("--umad-http", action="store_true", help="send requests to umad over HTTP, not over its socket")
    parser.add_argument("--layout", choices=("split", "unified"),
                        help="KV cells of both servers: each slot its own, or one pool for all (default: split; agent: unified)")
    parser.add_argument("--contestants", help=f"some of {','.join(CONTESTANTS)} (default: all of the scenario)")
    parser.add_argument("--json", type=pathlib.Path, help="write every round's figures to this file")
    parser.add_argument("--chart", type=pathlib.Path,
                        help="storm: draw the gaps between tokens of the first round to this file, as SVG")
    parser.add_argument("--umad", default=BIN / "umad", help="program (default: that of build/release)")
    parser.add_argument("--before", help="umad of another build: compare with it instead of llama-server and the library")
    parser.add_argument("--uma-bench", default=BIN / "uma-bench", help="program (default: that of build/release)")
    parser.add_argument("--llama-server", default="llama-server", help="program (default llama-server)")
    parser.add_argument("--library", default="llama-batched-bench",
                        help="program that measures the raw library (default llama-batched-bench)")
    options = parser.parse_args(arguments[:split])
    scenario = SCENARIOS[options.scenario]
    options.cells_per_slot = options.cells_per_slot or scenario["cells"]
    options.layout = options.layout or scenario.get("layout", "split")
    options.umad_http = options.umad_http or options.scenario == "agent"  # agents use OpenAI's API
    possible = CONTESTANTS if options.scenario == "burst" else CONTESTANTS[:2]
    if options.before:
        possible = ("umad", "before")
    options.contestants = options.contestants.split(",") if options.contestants else list(possible)
    if not set(options.contestants) <= set(possible):
        parser.error(f"--contestants is {','.join(options.contestants)}; {options.scenario} has {', '.join(possible)}")
    if options.chart and (options.scenario != "storm" or "library" in options.contestants):
        parser.error(f"--chart draws storm only, not {options.scenario}")
    try:
        options.slots_list = ([positive(n) for n in options.streams.split(",")] if options.scenario == "burst"
                              else [options.slots or scenario["slots"]])
    except (ValueError, argparse.ArgumentTypeError):
        parser.error(f"--streams is {options.streams}, must be numbers of 1 or more, such as 1,4,8")
    if any(slots % options.workers for slots in options.slots_list):
        parser.error(f"--workers is {options.workers}, every number of slots must be a multiple of it: {options.slots_list}")
    if options.warm and options.scenario != "burst":
        parser.error(f"--warm is for burst, not for {options.scenario}")
    if not options.model.is_file():
        parser.error(f"--model: there is no file {options.model}")
    programs = {"umad": options.umad, "before": options.before, "llama-server": options.llama_server, "library": options.library}
    for program in [options.uma_bench, *(programs[name] for name in options.contestants)]:
        if shutil.which(program) is None:
            parser.error(f"there is no program {program}: build or install it")
    return options, arguments[split + 1:]


def write_whole(path, text):
    """Writes a file so that a reader sees either the old or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text)
    temporary.replace(path)


def quiet_tokens(load_args):
    """Returns the value of --quiet-tokens among the arguments for uma-bench, or uma-bench's default."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--quiet-tokens", type=positive, default=QUIET_TOKENS)
    return parser.parse_known_args([str(argument) for argument in load_args])[0].quiet_tokens


def draw_storm(tokens_csv, quiet):
    """Draws one round: every gap of the decoding streams, at the time of its later token."""
    series = {name: storm_gaps(text, quiet) for name, text in tokens_csv.items()}
    return svg_chart.log_points("Time between the tokens of decoding streams while long prompts arrive",
                                "time since the long prompts were sent (s)", "time between two tokens of a stream (ms)", series,
                                mark=(0, "long prompts arrive"))


def write_json(path, options, rounds_by_slots):
    document = {"scenario": options.scenario, "model": options.model.name, "threads": options.threads, "n_batch": N_BATCH,
                "n_ubatch": N_UBATCH, "cells_per_slot": options.cells_per_slot, "rounds_by_slots": rounds_by_slots}
    write_whole(path, json.dumps(document, indent=1) + "\n")


def compare(arguments):
    options, load_args = parse_arguments(arguments)
    warn_if_busy()
    rounds_by_slots = {}
    with tempfile.TemporaryDirectory(prefix="uma-bench-") as folder:
        bench = Bench(options, load_args, folder)
        for slots in options.slots_list:
            rounds_by_slots[slots] = run_rounds(bench, options.contestants, slots, options.pairs)
            if options.json:
                write_json(options.json, options, rounds_by_slots)
        if options.chart:
            write_whole(options.chart, draw_storm(bench.tokens_csv, quiet_tokens(load_args)))
    print(f"{options.scenario}, {options.model.name}: medians of {options.pairs} rounds; -c slots × {options.cells_per_slot}, "
          f"-b {N_BATCH}, -ub {N_UBATCH}, -fa auto, {options.threads} threads, {options.layout} KV\n")
    figures = SCENARIOS[options.scenario]["figures"]
    if options.warm:
        figures = [*figures, *warm(dict.fromkeys(figures))]
    print(format_table(rounds_by_slots, figures, options.contestants))


def main(arguments):
    return exit_code_of(lambda: compare(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
