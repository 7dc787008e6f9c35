#!/usr/bin/env python3
"""Unit tests of strategies.py: its loads, its arithmetic, its table and the block that it writes into a document."""

import argparse
import json
import pathlib
import sys
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import compare
import strategies


def stream(begin_ms, gap_ms, tokens=21):
    return [begin_ms + gap_ms * number for number in range(tokens)]


class Loads(unittest.TestCase):
    def test_the_mixed_load_is_the_same_for_a_seed(self):
        self.assertEqual(strategies.mixed_trace(7, 24, 6), strategies.mixed_trace(7, 24, 6))
        self.assertNotEqual(strategies.mixed_trace(7, 24, 6), strategies.mixed_trace(8, 24, 6))

    def test_the_mixed_load_arrives_over_time_with_a_third_of_medium_prompts(self):
        requests = [json.loads(line) for line in strategies.mixed_trace(1, 300, 6).splitlines()]
        times = [request["timestamp"] for request in requests]
        self.assertEqual(times, sorted(times))
        self.assertEqual(times[0], 0)
        self.assertTrue(4500 < times[-1] < 7500, times[-1])
        self.assertEqual(sum(request["input_length"] == strategies.MEDIUM["input_length"] for request in requests), 100)

    def test_every_request_of_the_loads_fits_a_slot(self):
        for load in (strategies.SHORT, strategies.MEDIUM):
            self.assertLess(load["input_length"] + load["output_length"] + 1, strategies.CELLS_PER_SLOT)

    def test_contestants_differ_in_their_configuration(self):
        known = strategies.strategies(100)
        ways = {(strategies.config_text(strategy), strategy.workers) for strategy in known.values()}
        self.assertEqual(len(ways), len(known))
        self.assertEqual(len({strategy.name for strategy in known.values()}), len(known))
        self.assertIn("slice_ms: 100", strategies.config_text(known["time_slice"]))
        self.assertIn(strategies.BASELINE, [strategy.name for strategy in known.values()])


class Replication(unittest.TestCase):
    def test_is_known_where_umad_complains_about_the_model_only(self):
        self.assertTrue(strategies.knows_weights('error no model "no such model": no such file here'))
        self.assertFalse(strategies.knows_weights('c.yaml:1:13: unknown key "weights" in scheduler; known: tick_ms'))
        self.assertFalse(strategies.knows_weights('scheduler.weights: expected shared, got "replicated"'))
        self.assertFalse(strategies.knows_weights("info no effect in this version: scheduler.weights"))


class Arithmetic(unittest.TestCase):
    def test_percentile_is_the_nearest_rank(self):
        self.assertEqual(strategies.percentile(range(1, 101), 0.95), 95)
        self.assertEqual(strategies.percentile([3], 0.5), 3)
        self.assertIsNone(strategies.percentile([], 0.5))

    def test_time_per_output_token_is_the_mean_gap(self):
        self.assertEqual(strategies.time_per_output_token([10, 11, 16]), 3)
        self.assertIsNone(strategies.time_per_output_token([10]))

    def test_pace_is_that_of_the_slowest_stream(self):
        self.assertEqual(strategies.slowest_pace_ms([stream(0, 10), stream(5, 12)]), 12)

    def test_streams_after_each_other_are_not_concurrent(self):
        self.assertIsNone(strategies.slowest_pace_ms([stream(0, 10), stream(300, 10)]))

    def test_pauses_too_rare_for_the_percentile_slow_the_pace(self):
        paused = stream(0, 10)[:20] + [5000]
        self.assertEqual(strategies.percentile(strategies.gaps(paused), 0.95), 10)
        self.assertEqual(strategies.slowest_pace_ms([paused]), 250)

    def test_streams_double_up_to_the_slots(self):
        self.assertEqual(strategies.stream_counts(8), [1, 2, 4, 8])
        self.assertEqual(strategies.stream_counts(6), [1, 2, 4])
        self.assertEqual(strategies.stream_counts(1), [1])

    def test_capacity_ends_at_the_first_number_that_breaks_the_pace(self):
        self.assertEqual(strategies.capacity([(1, 10), (2, 15), (4, 30), (8, 12)], 20), 2)
        self.assertEqual(strategies.capacity([(1, 10), (2, None)], 20), 1)
        self.assertEqual(strategies.capacity([(1, 30)], 20), 0)

    def test_all_contestants_have_the_bound_of_the_first_alone(self):
        measured = {"quick": {"paces": [(1, 10), (2, 19), (4, 40)]}, "slow alone": {"paces": [(1, 18), (2, 24), (4, 30)]}}
        strategies.add_capacities(measured, 2)
        self.assertEqual([figures["capacity_streams"] for figures in measured.values()], [2, 1])


def round_of(**tokens_per_s):
    return {name: {"tokens_per_s": value, "ttft_p50_ms": 10.0, "capacity_streams": int(value), "others_busy_ratio": 0.01}
            for name, value in tokens_per_s.items()}


class Output(unittest.TestCase):
    def test_table_has_medians_ratios_of_rounds_and_dashes(self):
        rounds = [round_of(continuous=200, sequential=100), round_of(continuous=90, sequential=30), round_of(continuous=40, sequential=20)]
        lines = strategies.format_table(rounds, 100).splitlines()
        self.assertEqual(len(lines), 4)
        self.assertEqual(len({line.count("|") for line in lines}), 1)
        self.assertTrue(lines[2].startswith("| continuous | 2 | 1 | 90.0 | - |"), lines[2])
        self.assertIn("100 at once: wall, s", lines[0])

    def test_table_without_the_baseline_has_no_ratios(self):
        self.assertNotIn("÷", strategies.format_table([round_of(continuous=1)], 100))

    def test_capacity_is_a_number_that_was_measured(self):
        rounds = [round_of(x=2), round_of(x=4)]
        self.assertEqual(strategies.summarize(rounds, "capacity_streams", "x"), 2)
        self.assertEqual(strategies.summarize(rounds, "tokens_per_s", "x"), 3)

    def test_a_disturbed_run_says_so(self):
        options = argparse.Namespace(model=pathlib.Path("m.gguf"), threads=2, slots=8, at_once_pairs=1, at_once=100, seed=1, requests=24,
                                     span_s=6, factor=2)
        rounds = [round_of(x=1)]
        self.assertNotIn("disturbed", strategies.describe(options, rounds))
        rounds[0]["x"]["others_busy_ratio"] = 0.5
        self.assertIn("50% of the cores: **disturbed", strategies.describe(options, rounds))

    def test_chart_is_xml_with_a_line_for_each_strategy(self):
        root = xml.etree.ElementTree.fromstring(strategies.draw([round_of(one=1, two=2)], 100))
        shown = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        self.assertIn("one", shown)
        self.assertIn("two", shown)
        self.assertIn("throughput (tokens/s)", shown)

    def test_a_block_replaces_only_what_is_between_its_markers(self):
        text = "before\n<!-- s: begin -->\nold\n<!-- s: end -->\nafter\n"
        replaced = strategies.replace_block(text, "s", "new\n")
        self.assertEqual(replaced, "before\n<!-- s: begin -->\nnew\n<!-- s: end -->\nafter\n")
        self.assertEqual(strategies.replace_block(replaced, "s", "new"), replaced)

    def test_a_document_without_its_markers_is_refused(self):
        for text in ("", "<!-- s: begin -->", "<!-- s: end --><!-- s: begin -->", "<!-- s: begin --><!-- s: end --><!-- s: end -->"):
            with self.assertRaises(compare.ContestantFailed):
                strategies.replace_block(text, "s", "new")

    def test_the_document_has_the_markers(self):
        strategies.replace_block((strategies.DOCS / "BENCHMARKS.md").read_text(), "strategies", "x")


class Usage(unittest.TestCase):
    def test_mistakes_are_usage_errors(self):
        for arguments in (["--only", "fifo"], ["--slots", "7"], ["--span-s", "0"], ["--factor", "0.5"]):
            self.assertEqual(compare.exit_code_of(lambda given=arguments: strategies.parse_arguments(["--model", __file__, *given])), 1)
        self.assertEqual(compare.exit_code_of(lambda: strategies.parse_arguments(["--model", "/nonexistent.gguf"])), 1)


if __name__ == "__main__":
    unittest.main()
