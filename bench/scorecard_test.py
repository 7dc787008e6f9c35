#!/usr/bin/env python3
"""Unit tests of scorecard.py: its arithmetic and the page that it writes."""

import argparse
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import scorecard

METRICS = {"p50_ms": 10.0, "p95_ms": 12.0, "p99_ms": 15.0, "ttft_p50_ms": 70.0, "ttft_p95_ms": 90.0, "tokens_total": 300, "avg_batch": 2.5,
           "copy_free_ratio": 1, "bmt_mb_per_token": 999.0, "device_busy_ratio": None, "promises_kept_total": 290,
           "promises_broken_total": 9}
SAMPLES = [(0, 0.0), (100, 10.0), (300, 20.0)]


class Arithmetic(unittest.TestCase):
    def test_bytes_moved_are_weighted_by_the_tokens_of_each_stretch(self):
        self.assertEqual(scorecard.moved_mb(SAMPLES), 100 * 10 + 200 * 20)
        self.assertEqual(scorecard.moved_mb(SAMPLES[:1]), 0)

    def test_figures_are_over_the_time_of_the_load(self):
        figures = scorecard.summarize(METRICS, SAMPLES, wall_s=2.0, cpu_s=3.0, threads=2)
        self.assertEqual(figures["tokens_per_s"], 150)
        self.assertAlmostEqual(figures["bmt_mb_per_token"], 5000 / 300)
        self.assertEqual(figures["bmt_gb_per_s"], 2.5)
        self.assertEqual(figures["device_busy_ratio"], 0.75)
        self.assertEqual(figures["promises_broken_total"], 9)

    def test_a_busy_ratio_that_the_daemon_knows_is_kept(self):
        figures = scorecard.summarize(METRICS | {"device_busy_ratio": 0.5}, SAMPLES, wall_s=2.0, cpu_s=3.0, threads=2)
        self.assertEqual(figures["device_busy_ratio"], 0.5)

    def test_no_token_is_no_bytes_per_token(self):
        figures = scorecard.summarize(METRICS | {"tokens_total": 0}, [(0, 0.0), (0, 0.0)], wall_s=1.0, cpu_s=0.0, threads=1)
        self.assertIsNone(figures["bmt_mb_per_token"])


class Page(unittest.TestCase):
    def test_has_a_line_with_a_meaning_for_every_figure(self):
        figures = scorecard.summarize(METRICS, SAMPLES, wall_s=2.0, cpu_s=3.0, threads=2) | {"others_busy_ratio": 0.0}
        lines = scorecard.format_table({"burst 1": figures, "storm": figures | {"p50_ms": None}}).splitlines()
        self.assertEqual(len(lines), 2 + len(scorecard.LINES))
        self.assertEqual({line.count("|") for line in lines}, {5})
        self.assertTrue(lines[2].startswith("| inter-token p50, ms | 10.0 | - | Half"), lines[2])
        self.assertFalse([line for line in lines[3:] if "| - |" in line])

    def test_names_the_command_that_repeats_it(self):
        options = argparse.Namespace(model=pathlib.Path("m.gguf"), threads=2, tokens=64, runs=4, long_words=1900)
        page = scorecard.format_page(options, {"burst 1": {}}, "script/bench scorecard --runs 4")
        self.assertIn("Made by `script/bench scorecard --runs 4`", page)


if __name__ == "__main__":
    unittest.main()
