#!/usr/bin/env python3
"""Measures how soon umad and llama-server answer after their start: time from the program's start until it is ready and until its
first token, the first token of the first request after "ready" against that of the second and of later ones, and memory; on a quiet
machine and beside busy processes.

Each pair starts each contestant once, in alternating order. The first request is sent as soon as the server says that it is ready
(/ready of umad, /health of llama-server). `first start`: umad with an empty data folder, so it tries the file in a process of its own
and measures calls afterwards. `later starts`: with what an earlier start has kept. `--config` gives umad settings, such as
`scheduler: {lanes: turns}`.
"""

import argparse
import contextlib
import http.client
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import compare

# The prompts are these words in turn, so all have the same number of tokens and different beginnings.
WORDS = "river stone garden window letter morning winter music paper yellow silver island".split()
LATER = 5  # Requests after the first one.
PAUSE_S = 0.5  # Before each of them.
LOOK_EVERY_S = 0.01
FIGURES = ("ready_ms", "start_to_first_token_ms", "first_request_ms", "second_request_ms", "later_request_ms", "first_to_second_ratio",
           "memory_mib")
# The figures of a table, and umad's contestant in it.
TABLES = {"later starts": "umad", "first start": "umad-first"}
SPIN = [sys.executable, "-c", "while True: pass"]


@contextlib.contextmanager
def busy_processes(count):
    """Other programs that compute without end."""
    processes = [subprocess.Popen(SPIN, stdin=subprocess.DEVNULL, preexec_fn=compare.die_with_parent) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def request_ms(port, number):
    """The time until the first piece of a reply."""
    prompt = " ".join(WORDS[number:] + WORDS[:number])
    body = json.dumps({"prompt": prompt, "max_tokens": 4, "temperature": 0, "stream": True})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=compare.READY_S)
    try:
        began = time.monotonic()
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        line = response.readline()
        took_ms = 1000 * (time.monotonic() - began)
        if response.status != 200 or not line.startswith(b"data:"):
            raise compare.ContestantFailed(f"a request failed with status {response.status}: {line.decode(errors='replace')}")
        response.read()
        return took_ms
    except (OSError, http.client.HTTPException) as failure:
        raise compare.ContestantFailed(f"a request failed: {failure!r}") from None
    finally:
        connection.close()


def command_of(contestant, options, model, port, folder, known):
    cells = options.slots * options.cells_per_slot
    if contestant == "llama-server":
        return [options.llama_server, "--model", model, "--host", "127.0.0.1", "--port", port, "-c", cells, "-np", options.slots,
                "--no-kv-unified", *compare.shared_flags(options.threads)]
    config = folder / "umad.yaml"
    config.write_text("kv: {layout: split}\n" + options.config + "\n")
    data = known if contestant == "umad" else folder / "data"
    return [options.umad, "--model", model, "--socket", folder / "uma.sock", "--data-dir", data, "--config", config,
            "--kv-cells", cells, "--slots", options.slots, "--threads", options.threads, "--http", f"127.0.0.1:{port}"]


def measure(contestant, options, model, known):
    """Starts a server once and asks it. `known` is the data folder of `umad`, which an earlier start has filled."""
    port = compare.free_port()
    ready_path = "/health" if contestant == "llama-server" else "/ready"
    with tempfile.TemporaryDirectory(prefix="uma-bench-") as name:
        folder = pathlib.Path(name)
        log_path = folder / "server.log"
        began = time.monotonic()
        with compare.running(command_of(contestant, options, model, port, folder, known), log_path) as process:
            compare.wait_until_ready(process, log_path, lambda: compare.answers_ok(port, ready_path), LOOK_EVERY_S)
            ready_ms = 1000 * (time.monotonic() - began)
            first_ms = request_ms(port, 0)
            start_ms = 1000 * (time.monotonic() - began)
            later = []
            for number in range(1, 1 + LATER):
                time.sleep(PAUSE_S)
                later.append(request_ms(port, number))
            return {"ready_ms": ready_ms, "start_to_first_token_ms": start_ms, "first_request_ms": first_ms,
                    "second_request_ms": later[0], "later_request_ms": compare.median(later),
                    "first_to_second_ratio": first_ms / later[0], "memory_mib": compare.memory_mib(process.pid)}


def measure_pairs(options, model, busy):
    """Returns the figures of all contestants, pair by pair."""
    contestants = ["umad", "umad-first", "llama-server"]
    pairs = []
    with tempfile.TemporaryDirectory(prefix="uma-bench-") as known:
        measure("umad", options, model, known)
        with busy_processes(busy):
            for number in range(options.pairs):
                order = contestants if number % 2 == 0 else contestants[::-1]
                compare.say(f"{model.name}, {busy} busy, pair {number + 1} of {options.pairs}: {', '.join(order)}")
                pairs.append({name: measure(name, options, model, known) for name in order})
    return pairs


def as_umad(pairs, name):
    """The pairs with this contestant as `umad`, for a table."""
    return [{"umad": pair[name], "llama-server": pair["llama-server"]} for pair in pairs]


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(prog="script/bench first_answer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, action="append", required=True,
                        help="GGUF file, real or made; may be given several times; script/bench passes the 134m model if none is given")
    parser.add_argument("--pairs", type=compare.positive, default=5, help="pairs (default 5)")
    parser.add_argument("--busy", default="0,2", help="numbers of busy processes beside the servers (default 0,2)")
    parser.add_argument("--slots", type=compare.positive, default=4, help="slots of each server (default 4)")
    parser.add_argument("--cells-per-slot", type=compare.positive, default=4096, help="KV cells of a slot (default 4,096)")
    parser.add_argument("--threads", type=compare.positive, default=2, help="compute threads of each server (default 2)")
    parser.add_argument("--config", default="", help="YAML settings for umad besides the split layout")
    parser.add_argument("--json", type=pathlib.Path, help="write every pair's figures to this file")
    parser.add_argument("--umad", default=compare.BIN / "umad", help="program (default: that of build/release)")
    parser.add_argument("--llama-server", default="llama-server", help="program (default llama-server)")
    return parser.parse_args(arguments)


def run(arguments):
    options = parse_arguments(arguments)
    for program in (options.umad, options.llama_server):
        if shutil.which(program) is None:
            raise compare.ContestantFailed(f"there is no program {program}: build or install it")
    compare.warn_if_busy()
    measured = {}
    for model in options.model:
        with model.open("rb") as file:
            while file.read(1 << 24):
                pass  # The first server must not be the only one that reads the file from the disk.
        measured[model.name] = {busy: measure_pairs(options, model, busy) for busy in map(int, options.busy.split(","))}
        for title, name in TABLES.items():
            print(f"{title}, {model.name}: medians of {options.pairs} pairs; {options.slots} slots of {options.cells_per_slot} cells, "
                  f"{options.threads} threads\n")
            table = {busy: as_umad(pairs, name) for busy, pairs in measured[model.name].items()}
            print(compare.format_table(table, FIGURES, ["umad", "llama-server"], first_title="busy") + "\n")
    if options.json:
        compare.write_whole(options.json, json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(compare.exit_code_of(lambda: run(sys.argv[1:])))
