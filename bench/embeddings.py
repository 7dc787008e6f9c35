#!/usr/bin/env python3
"""Compares umad with llama-server --embedding: short texts from many clients at once, both over HTTP.

Each client keeps its connection and sends one text after the other. The contestants take turns in alternating order, each with a
fresh server with its own defaults for everything except threads, batch and slots. A ratio is the median of the rounds' ratios.
Before the first round the vectors of both are compared.
Exit codes: 0 measured, 1 usage, 2 a contestant failed.
"""

import argparse
import http.client
import json
import pathlib
import random
import re
import statistics
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

import compare  # noqa: E402
import uma  # noqa: E402

uma.VERIFY_EVERY = 0

WORDS = "the of and a to in is you that it he was for on are as with his they at be this have from".split()


def make_texts(count, words_max, rng):
    return [" ".join(rng.choices(WORDS, k=rng.randint(3, words_max))) for _ in range(count)]


def ask(connection, texts):
    connection.request("POST", "/v1/embeddings", json.dumps({"input": texts}), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise AssertionError(f"embeddings: {answer.status} {body[:300]}")
    return [each["embedding"] for each in json.loads(body)["data"]]


def measure(port, texts, clients):
    """Returns the texts per second, and the median and 95th percentile of the time of a request in ms."""
    times = []
    problems = []

    def run(own):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
            for text in own:
                began = time.monotonic()
                ask(connection, [text])
                times.append((time.monotonic() - began) * 1000)
            connection.close()
        except (OSError, AssertionError, http.client.HTTPException) as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(texts[first::clients],), daemon=True) for first in range(clients)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.monotonic() - began
    if problems:
        raise problems[0]
    times.sort()
    return {"texts_per_s": len(texts) / wall, "p50_ms": statistics.median(times), "p95_ms": times[int(len(times) * 0.95)]}


def with_umad(options, work, flash_attention="auto"):
    with uma.Daemon(options.model, "--http", "127.0.0.1:0", "--threads", options.threads,
                    config=f"kv: {{flash_attention: {flash_attention}}}\n") as daemon:
        return work(int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", daemon.log()).group(1)))


def with_llama_server(options, work, flash_attention="auto"):
    flags = ("--embedding", "-np", str(options.clients), "-t", str(options.threads), "-tb", str(options.threads), "-b", "512", "-ub", "512",
             "-c", str(512 * options.clients), "-fa", flash_attention)
    with uma.LlamaServer(options.model, *flags) as server:
        return work(server.port)


CONTESTANTS = {"umad": with_umad, "llama-server": with_llama_server}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="GGUF file; script/bench passes the embed model")
    parser.add_argument("--texts", type=int, default=1000, help="texts of a round (default 1000)")
    parser.add_argument("--clients", type=int, default=64, help="clients at once (default 64)")
    parser.add_argument("--words", type=int, default=16, help="most words of a text, 3 or more (default 16)")
    parser.add_argument("--pairs", type=int, default=3, help="rounds (default 3)")
    parser.add_argument("--threads", type=int, default=2, help="compute threads of each contestant (default 2)")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    texts = make_texts(options.texts, options.words, random.Random(1))

    few = texts[:8]

    def vectors(port):
        return ask(http.client.HTTPConnection("127.0.0.1", port, timeout=600), few)

    # Flash attention sums in 16 bits. So vectors are compared without it; speed is measured with both servers' defaults.
    pairs = zip(with_umad(options, vectors, "off"), with_llama_server(options, vectors, "off"))
    difference = max(abs(a - b) for ours, theirs in pairs for a, b in zip(ours, theirs))
    if difference > 1e-3:
        sys.exit(f"embeddings: numbers in the vectors of umad and llama-server differ by {difference:.2g}, the limit is 0.001")

    rounds = []
    for index in range(options.pairs):
        order = list(CONTESTANTS) if index % 2 == 0 else list(reversed(CONTESTANTS))
        # The first few texts warm the server up.
        measured = {name: CONTESTANTS[name](options, lambda port: (measure(port, texts[:64], options.clients),
                                                                   measure(port, texts, options.clients))[1]) for name in order}
        rounds.append(measured)
        for name in CONTESTANTS:
            figures = measured[name]
            print(f"round {index + 1}  {name:<13} {figures['texts_per_s']:8.1f} texts/s   "
                  f"p50 {figures['p50_ms']:7.1f} ms   p95 {figures['p95_ms']:7.1f} ms", flush=True)
    for figure in ("texts_per_s", "p50_ms", "p95_ms"):
        print(f"{figure}: umad / llama-server {compare.median_ratio(rounds, figure, 'umad', 'llama-server'):.2f}")
    print(f"largest difference between numbers of their vectors: {difference:.2g}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rounds, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
