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
    thousands = [line["pictures"] / 1e3 for line in lines]
    left.plot(thousands, [line["loss"] for line in lines], color="#335c67", label="all")
    for at in range(5):
        left.plot(thousands, [line["loss_by_t"][at] for line in lines], linewidth=0.6, label=f"t {at / 5:.1f} to {(at + 1) / 5:.1f}")
    left.set(xlabel="thousand pictures", ylabel="squared error of the velocity", yscale="log")
    left.legend(fontsize=6)
    rows = [("known", part) for part in ("all", "count", "colour", "shape", "size", "relation", "place")]
    rows += [(split, "all") for split in ("H1", "H2", "H3", "H4")]
    for split, part in rows:
        chosen = [line for line in exams if part in line["development"].get(split, {})]
        right.plot([line["pictures"] / 1e3 for line in chosen], [100 * line["development"][split][part] for line in chosen],
                   label=part if split == "known" else f"{split} {part}", linewidth=2.5 if (split, part) == ("known", "all") else 1,
                   linestyle="-" if split == "known" else "--")
    right.set(xlabel="thousand pictures", ylabel="right, %, development captions", ylim=(0, 102))
    right.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    for axis in (left, right):
        axis.grid(alpha=0.3)
    figure.suptitle(f"uma-picture: {lines[-1]['pictures'] / 1e3:.0f} thousand pictures in {lines[-1]['seconds'] / 60:.0f} minutes", fontsize=10)
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    main()
