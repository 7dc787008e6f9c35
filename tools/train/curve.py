#!/usr/bin/env python3
"""Draws the training curve: curve.py LOG.jsonl OUT.svg"""

import json
import sys

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "uma"
import matplotlib.pyplot as plt  # noqa: E402


def main():
    log_path, out = sys.argv[1:]
    with open(log_path, encoding="utf-8") as log:
        lines = [json.loads(line) for line in log]
    exams = [line for line in lines if "development" in line]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
    left.plot([line["tokens"] / 1e6 for line in lines], [line["loss"] for line in lines], color="#335c67")
    left.set(xlabel="million tokens", ylabel="loss of the assistant's tokens", yscale="log")
    for group in exams[0]["development"]:
        right.plot([line["tokens"] / 1e6 for line in exams], [100 * line["development"][group] for line in exams], label=group, marker=".")
    right.set(xlabel="million tokens", ylabel="right answers, %, development items", ylim=(0, 102))
    right.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    for axis in (left, right):
        axis.grid(alpha=0.3)
    figure.suptitle(f"uma-tiny: {lines[-1]['tokens'] / 1e6:.0f} million tokens in {lines[-1]['seconds'] / 60:.0f} minutes", fontsize=10)
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    main()
