#!/usr/bin/env python3
"""Measures what idle HTTP connections cost: the daemon's memory for each, and the effect on streams beside them.

Opens many connections, sends one request on each, and leaves them idle. Streams over HTTP run without them and beside them in
turn, as many at once as there are slots. A ratio is the median of the rounds' ratios.
"""

import argparse
import json
import pathlib
import re
import resource
import socket
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

import compare  # noqa: E402
import uma  # noqa: E402

uma.VERIFY_EVERY = 0

WARM_UP = 200  # connections before the first measurement, so that pools and tables have their size
REQUEST = b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
FIGURES = ("inter_token_p50_ms", "inter_token_p99_ms", "ttft_p50_ms", "tokens_per_s")


def connect(port):
    """Opens a connection, sends one request on it and returns it open."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=uma.WAIT_S)
    connection.sendall(REQUEST)
    answer = b""
    while not answer.endswith(b"}"):
        part = connection.recv(4096)
        if not part:
            raise AssertionError("connections: the listener closed a new connection")
        answer += part
    return connection


def are_open(connections):
    """Whether the daemon has closed none of the connections."""
    for connection in connections:
        connection.setblocking(False)
        try:
            if connection.recv(1) == b"":
                return False
        except BlockingIOError:
            pass
    return True


def stream(port, options, seed):
    """Runs one burst of streams and returns its figures."""
    command = [str(uma.BUILD / "bin" / "uma-bench"), "burst", "--http", f"127.0.0.1:{port}", "--streams", str(options.streams),
               "--tokens", str(options.tokens), "--seed", str(seed), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        sys.exit(f"connections: uma-bench failed:\n{done.stdout}{done.stderr}")
    return {name: json.loads(done.stdout)["figures"][name] for name in FIGURES}


def measure(options):
    cells = options.streams * 256
    flags = ("--http", "127.0.0.1:0", "--slots", str(options.streams), "--kv-cells", str(cells))
    config = json.dumps({"http": {"connections_max": options.connections + options.streams + WARM_UP + 16, "access_log": "off"}})
    rounds = []
    with uma.Daemon(options.model, *flags, config=config) as daemon:
        port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", daemon.log()).group(1))
        for connection in [connect(port) for _ in range(WARM_UP)]:
            connection.close()
        stream(port, options, 1)
        memory = []
        for number in range(options.pairs):
            alone = stream(port, options, 10 + 2 * number)
            before = daemon.anonymous_bytes()
            idle = [connect(port) for _ in range(options.connections)]
            memory.append((daemon.anonymous_bytes() - before) / options.connections)
            beside = stream(port, options, 11 + 2 * number)
            if not are_open(idle):
                sys.exit("connections: the listener closed idle connections while streams ran: give fewer --tokens, so that a "
                         "round is shorter than 75 s")
            for connection in idle:
                connection.close()
            rounds.append((alone, beside))
    ratios = {name: statistics.median(beside[name] / alone[name] for alone, beside in rounds) for name in FIGURES}
    # Only the first round counts: later ones reuse its memory.
    return {"bytes_per_connection": memory[0], "rounds": rounds, "ratios": ratios}


def table(options, figures):
    lines = [f"| {options.streams} streams | alone | beside {options.connections:,} idle connections | ratio |", "|---|---|---|---|"]
    for name in FIGURES:
        alone, beside = (statistics.median(pair[side][name] for pair in figures["rounds"]) for side in (0, 1))
        lines.append(f"| {name} | {alone:.2f} | {beside:.2f} | {figures['ratios'][name]:.2f} |")
    return "\n".join(lines) + f"\n\nMemory per idle connection: {figures['bytes_per_connection']:,.0f} bytes."


def main():
    parser = argparse.ArgumentParser(prog="script/bench connections", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="GGUF file; script/bench passes the tiny model")
    parser.add_argument("--connections", type=compare.positive, default=5000, help="idle connections (default 5000)")
    parser.add_argument("--streams", type=compare.positive, default=64, help="streams at once, and slots (default 64)")
    parser.add_argument("--tokens", type=compare.positive, default=64, help="new tokens of each stream (default 64)")
    parser.add_argument("--pairs", type=compare.positive, default=5, help="rounds (default 5)")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < 2 * options.connections:
        print(f"connections: this process may open {hard} files, fewer than {2 * options.connections}: raise `ulimit -Hn` or "
              "give fewer --connections", file=sys.stderr)
    figures = measure(options)
    print(table(options, figures))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
