#!/usr/bin/env python3
"""Measures what it costs to watch the daemon: a load runs alone and beside clients of GET /v1/events, in turn.

The clients read as fast as they can and parse nothing. A ratio is the median of the rounds' ratios. `other_cpu_ms_per_s` is the
CPU time that all of the daemon's threads but the computing ones used in a second: what it costs to serve and to be watched.
"""

import argparse
import json
import pathlib
import re
import selectors
import socket
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

import compare  # noqa: E402
import uma  # noqa: E402

uma.VERIFY_EVERY = 0

FIGURES = {"storm": ("quiet_p50_ms", "quiet_p99_ms", "busy_p50_ms", "busy_p99_ms", "all_done_ms"),
           "burst": ("inter_token_p50_ms", "inter_token_p99_ms", "ttft_p50_ms", "tokens_per_s")}


CPU = "other_cpu_ms_per_s"
COMPUTING = ("uma-lane", "uma-prefill", "uma-compute")


def other_cpu_s(pid):
    """CPU seconds that the threads of the process have used, without the computing ones."""
    total_ns = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if not (task / "comm").read_text().startswith(COMPUTING):
            total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e9


class Watchers:
    """Clients that watch until the block ends, read by one thread."""

    def __init__(self, port, count, interval_ms):
        self.bytes = 0
        self.has_lost = False  # the daemon closed one of them
        self.is_over = False
        self.selector = selectors.DefaultSelector()
        self.clients = []
        for _ in range(count):
            client = socket.create_connection(("127.0.0.1", port), timeout=uma.WAIT_S)
            client.sendall(f"GET /v1/events?interval_ms={interval_ms} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            client.setblocking(False)
            self.selector.register(client, selectors.EVENT_READ)
            self.clients.append(client)
        self.thread = threading.Thread(target=self.read)

    def read(self):
        while not self.is_over:
            for key, _ in self.selector.select(0.2):
                part = key.fileobj.recv(1 << 20)
                self.bytes += len(part)
                if not part:
                    self.has_lost = True
                    self.selector.unregister(key.fileobj)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.is_over = True
        self.thread.join()
        self.selector.close()
        for client in self.clients:
            client.close()


def run_load(daemon, port, options, seed):
    """Runs the load once and returns its figures."""
    cpu_s, began_s = other_cpu_s(daemon.process.pid), time.monotonic()
    command = [str(uma.BUILD / "bin" / "uma-bench"), options.load, "--http", f"127.0.0.1:{port}", "--streams", str(options.streams),
               "--tokens", str(options.tokens), "--seed", str(seed), "--json", *options.more]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    if done.returncode != 0:
        sys.exit(f"watchers: uma-bench failed:\n{done.stdout}{done.stderr}")
    figures = json.loads(done.stdout)["figures"]
    cpu_s = other_cpu_s(daemon.process.pid) - cpu_s
    return {name: figures[name] for name in FIGURES[options.load]} | {CPU: 1000 * cpu_s / (time.monotonic() - began_s)}


def run_watched(daemon, port, options, seed):
    """Runs the load beside the watchers; returns its figures and the bytes that a watcher got."""
    with Watchers(port, options.watchers, options.interval_ms) as watchers:
        figures = run_load(daemon, port, options, seed)
    if watchers.has_lost or watchers.bytes == 0:
        sys.exit("watchers: the daemon closed a client that watched, or sent nothing")
    return figures, watchers.bytes / options.watchers


def measure(options):
    flags = ("--http", "127.0.0.1:0", "--slots", str(options.slots), "--kv-cells", str(options.cells))
    rounds, sizes = [], []
    with uma.Daemon(options.model, *flags, config=json.dumps({"http": {"access_log": "off"}})) as daemon:
        port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", daemon.log()).group(1))
        run_load(daemon, port, options, 1)
        for number in range(options.pairs):
            def watched(seed=11 + 2 * number):
                figures, size = run_watched(daemon, port, options, seed)
                sizes.append(size)
                return figures
            def alone(seed=10 + 2 * number):
                return run_load(daemon, port, options, seed)
            if number % 2:  # the order alternates
                beside = watched()
                rounds.append((alone(), beside))
            else:
                first = alone()
                rounds.append((first, watched()))
    ratios = {name: statistics.median(beside[name] / alone[name] for alone, beside in rounds) for name in (*FIGURES[options.load], CPU)}
    return {"rounds": rounds, "ratios": ratios, "bytes_per_watcher": statistics.median(sizes)}


def table(options, figures):
    lines = [f"| {options.load}, {options.streams} streams | alone | beside {options.watchers} who watch | ratio |", "|---|---|---|---|"]
    for name in (*FIGURES[options.load], CPU):
        alone, beside = (statistics.median(pair[side][name] for pair in figures["rounds"]) for side in (0, 1))
        lines.append(f"| {name} | {alone:.2f} | {beside:.2f} | {figures['ratios'][name]:.3f} |")
    return "\n".join(lines) + f"\n\nBytes to each who watched, in one run: {figures['bytes_per_watcher']:,.0f}."


def main():
    parser = argparse.ArgumentParser(prog="script/bench watchers", description=__doc__,
                                     epilog="Arguments after -- go to uma-bench, for example: watchers --load storm -- --long-prompts 2")
    parser.add_argument("--model", type=pathlib.Path, required=True, help="GGUF file; script/bench passes the 134m model")
    parser.add_argument("--load", choices=sorted(FIGURES), default="storm", help="scenario of uma-bench (default storm)")
    parser.add_argument("--watchers", type=compare.positive, default=10, help="clients that watch (default 10)")
    parser.add_argument("--interval-ms", type=compare.positive, default=250, help="between two snapshots (default 250)")
    parser.add_argument("--streams", type=compare.positive, default=4, help="streams at once (default 4)")
    parser.add_argument("--slots", type=compare.positive, default=8, help="slots of the daemon (default 8)")
    parser.add_argument("--cells", type=compare.positive, default=32_768, help="KV cells of the daemon (default 32768)")
    parser.add_argument("--tokens", type=compare.positive, default=400, help="new tokens of each stream (default 400)")
    parser.add_argument("--pairs", type=compare.positive, default=5, help="rounds (default 5)")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file")
    arguments = sys.argv[1:]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:end])
    options.more = arguments[end + 1:]
    compare.warn_if_busy()
    figures = measure(options)
    print(table(options, figures))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
