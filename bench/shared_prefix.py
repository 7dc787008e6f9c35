#!/usr/bin/env python3
"""Measures what a shared system prompt saves: the time to the first token of a node that has never seen the prompt, when another
node has stored its KV (shared), and when none has (computed).

Two nodes have one catalog and one folder of states. In each pair the first node has two conversations with a new system prompt and
stores its KV. Then the second node is asked with this prompt, and with another new one of the same length, in alternating order.
Every receipt is checked. Prints medians of the times in ms and of the pairs' ratios, and the bytes of a stored system prompt.
"""

import argparse
import contextlib
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

import compare  # noqa: E402
import postgres  # noqa: E402
import test_cluster_states  # noqa: E402
import uma  # noqa: E402

uma.VERIFY_EVERY = 0


def ask(client, system, text):
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    return client.generate(messages=messages, max_tokens=1, ignore_eos=True).usage


def first_token_ms(client, system, is_shared):
    usage = ask(client, system, "Who is Ada?")
    # All prompts begin with the same few tokens of the template.
    if usage["tier"] != "shared" if is_shared else usage["reused_tokens"] > usage["prompt_tokens"] / 10:
        sys.exit(f"shared_prefix: the system prompt should be {'shared' if is_shared else 'computed'}: {usage}")
    return usage["ttft_ms"], usage["prompt_tokens"]


def main():
    parser = argparse.ArgumentParser(prog="script/bench shared_prefix", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="GGUF file; script/bench passes the 134m model")
    parser.add_argument("--pairs", type=compare.positive, default=7, help="pairs (default 7)")
    parser.add_argument("--tokens", type=compare.positive, default=1000, help="tokens of the system prompt (default 1000)")
    parser.add_argument("--threads", type=compare.positive, help="compute threads (default: umad's)")
    options = parser.parse_args()

    times = {"shared": [], "computed": []}
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(postgres.Postgres())
        folder = stack.enter_context(test_cluster_states.Folder())
        flags = ["--kv-cells", 16384, "--slots", 4, *(["--threads", options.threads] if options.threads else [])]
        clients = []
        for name in "ab":
            node = stack.enter_context(uma.Daemon(options.model, *flags, "--catalog", database.address(), "--node", name,
                                                  "--shared-states", folder.address))
            clients.append(stack.enter_context(node.client(600)))
            clients[-1].generate("a first request " * 20, max_tokens=4)
        first, second = clients
        for pair in range(options.pairs):
            systems = {way: f"{pair} {way} " + "word " * options.tokens for way in times}
            ask(first, systems["shared"], "What is new?")
            ask(first, systems["shared"], "What is old?")
            uma.until(lambda: first.metrics()["shared_prefixes_written_total"] == pair + 1, "the system prompt is stored")
            for way in times if pair % 2 == 0 else reversed(times):
                ms, tokens = first_token_ms(second, systems[way], way == "shared")
                times[way].append(ms)
            print(f"shared_prefix: pair {pair + 1} of {options.pairs}: {times['shared'][-1]:.1f} ms, {times['computed'][-1]:.1f} ms",
                  flush=True)
        figures = first.metrics()
        bytes_each = figures["shared_written_bytes_total"] / figures["shared_writes_total"]
    ratio = statistics.median(shared / computed for shared, computed in zip(times["shared"], times["computed"]))
    print("| tokens | computed, ms | shared, ms | shared ÷ computed | MiB |\n|---|---|---|---|---|")
    print(f"| {tokens:,} | {statistics.median(times['computed']):.0f} | {statistics.median(times['shared']):.0f} | {ratio:.3f} "
          f"| {bytes_each / (1 << 20):.1f} |")


if __name__ == "__main__":
    main()
