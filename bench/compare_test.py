#!/usr/bin/env python3
"""Unit tests of compare.py: its arithmetic, its table, and the end of the processes that it starts."""

import argparse
import os
import pathlib
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import compare


class Arithmetic(unittest.TestCase):
    def test_median_ignores_what_was_not_measured(self):
        self.assertEqual(compare.median([3, None, 1, 2]), 2)
        self.assertEqual(compare.median([4, 1, 2, 3]), 2.5)
        self.assertIsNone(compare.median([None]))

    def test_ratio_is_the_median_of_the_rounds(self):
        rounds = [{"umad": {"f": 2}, "x": {"f": 1}}, {"umad": {"f": 90}, "x": {"f": 30}}, {"umad": {"f": 8}, "x": {"f": 2}}]
        self.assertEqual(compare.median_ratio(rounds, "f", "umad", "x"), 3)

    def test_ratio_of_a_missing_or_zero_figure_is_none(self):
        self.assertIsNone(compare.median_ratio([{"umad": {"f": 2}, "x": {}}], "f", "umad", "x"))
        self.assertIsNone(compare.median_ratio([{"umad": {"f": 2}, "x": {"f": 0}}], "f", "umad", "x"))

    def test_library_counts_generated_tokens_over_all_the_time(self):
        lines = ('main: n_kv_max = 2048\n{"pp": 32, "tg": 64, "pl": 4, "t_pp": 0.5, "t_tg": 1.5, "speed": 1}\n'
                 '{"pp": 32, "tg": 1, "pl": 4, "t_pp": 0.5, "t_tg": 0.1, "speed": 1}\n')
        self.assertEqual(compare.library_tokens_per_s(lines, 64), 128)
        with self.assertRaises(compare.ContestantFailed):
            compare.library_tokens_per_s("nothing\n", 64)


class Table(unittest.TestCase):
    def test_has_medians_and_ratios_to_each_other_contestant(self):
        rounds = [{"umad": {"t": 200.0}, "llama-server": {"t": 100.0}, "library": {"t": 400.0}}]
        table = compare.format_table({4: rounds}, ["t"], ["umad", "llama-server", "library"])
        self.assertEqual(table.splitlines()[0], "| slots | figure | umad | llama-server | library | umad ÷ llama-server | umad ÷ library |")
        self.assertEqual(table.splitlines()[2], "| 4 | t | 200.0 | 100.0 | 400.0 | 2 | 0.5 |")

    def test_finds_the_figures_of_long_contexts_by_itself(self):
        rounds = [{"umad": {"wall_s": 1, "ctx_128_tokens_per_s": 5}}]
        self.assertIn("| 1 | ctx_128_tokens_per_s | 5 |", compare.format_table({1: rounds}, None, ["umad"]))


class Storm(unittest.TestCase):
    ROWS = ("session_id,token_idx,ts_ms,is_interactive\n0,0,10,1\n0,1,20,1\n0,2,1030,1\n1,0,12,1\n1,1,30,1\n1,2,40,1\n2,0,900,0\n"
            "2,1,5000,0\n")

    def test_gaps_are_those_of_decoding_streams_around_the_arrival(self):
        self.assertEqual(compare.storm_gaps(self.ROWS, 2), [(-0.01, 10.0), (0.0, 18.0), (0.01, 10.0), (1.0, 1010.0)])

    def test_a_stream_that_ended_early_is_no_storm(self):
        with self.assertRaises(compare.ContestantFailed):
            compare.storm_gaps(self.ROWS, 4)
        with self.assertRaises(compare.ContestantFailed):
            compare.storm_gaps("session_id,token_idx,ts_ms,is_interactive\n", 1)

    def test_the_quiet_tokens_are_those_uma_bench_was_given(self):
        self.assertEqual(compare.quiet_tokens(["--tokens", "9", "--quiet-tokens", "7"]), 7)
        self.assertEqual(compare.quiet_tokens(["--tokens", "9"]), compare.QUIET_TOKENS)

    def test_a_chart_of_another_scenario_is_a_usage_error(self):
        self.assertEqual(compare.main(["burst", "--model", __file__, "--chart", "x.svg"]), 1)


class Scripts(unittest.TestCase):
    def test_busy_time_leaves_out_idle_iowait_and_what_is_counted_twice(self):
        tick = os.sysconf("SC_CLK_TCK")
        self.assertEqual(compare.system_busy_s(f"cpu  {tick} {tick} {tick} 900 800 {tick} 0 {tick} {tick} {tick}\ncpu0 1\n"), 5)

    def test_the_time_of_our_own_children_is_not_others(self):
        watch = compare.OthersWatch()
        before = watch._ours_s()
        compare.run_command([sys.executable, "-c", "import time\nwhile time.process_time() < 0.2: pass"])
        self.assertGreaterEqual(watch._ours_s() - before, 0.19)

    def test_the_time_of_a_process_grows_as_it_computes(self):
        before = compare.cpu_s(os.getpid())
        while compare.cpu_s(os.getpid()) < before + 0.05:
            pass
        self.assertGreaterEqual(time.process_time(), 0.05)

    def test_a_command_is_shown_without_its_paths(self):
        self.assertEqual(compare.shown_command("x", ["--model", "m", "--pairs", "2", "--json", "j", "--write-docs"]),
                         "script/bench x --pairs 2 --write-docs")

    def test_the_way_a_script_ends_is_its_exit_code(self):
        def fail(problem):
            raise problem
        self.assertEqual(compare.exit_code_of(lambda: None), 0)
        self.assertEqual(compare.exit_code_of(lambda: fail(SystemExit(2))), 1)
        self.assertEqual(compare.exit_code_of(lambda: fail(SystemExit(0))), 0)
        self.assertEqual(compare.exit_code_of(lambda: fail(compare.ContestantFailed("x"))), 2)
        self.assertEqual(compare.exit_code_of(lambda: fail(KeyboardInterrupt())), 130)

    def test_a_failed_command_is_reported_unless_its_status_is_expected(self):
        self.assertEqual(compare.run_command(["sh", "-c", "echo out; exit 2"], statuses=(0, 2)), "out\n")
        with self.assertRaisesRegex(compare.ContestantFailed, "ended with status 3"):
            compare.run_command(["sh", "-c", "exit 3"], statuses=(0, 2))


class Processes(unittest.TestCase):
    def test_a_server_ends_with_its_block_even_when_that_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaises(RuntimeError):
                with compare.running(["sleep", "1000"], f"{folder}/log") as process:
                    raise RuntimeError
            self.assertIsNotNone(process.returncode)
            with self.assertRaises(ProcessLookupError):
                os.kill(process.pid, 0)

    def test_a_server_that_ends_early_is_reported_with_its_last_words(self):
        with tempfile.TemporaryDirectory() as folder:
            log = f"{folder}/log"
            with compare.running(["sh", "-c", "echo no such model; exit 3"], log) as process:
                process.wait()
                with self.assertRaisesRegex(compare.ContestantFailed, "(?s)ended with status 3.*no such model"):
                    compare.wait_until_ready(process, log, lambda: False)

    def test_another_build_of_umad_takes_the_place_of_the_others(self):
        here = [sys.executable] * 3  # any existing program
        options, _ = compare.parse_arguments(["storm", "--model", __file__, "--umad", here[0], "--before", here[1], "--uma-bench", here[2]])
        self.assertEqual(["umad", "before"], options.contestants)
        ratio = compare.format_table({4: [{"umad": {"x": 3}, "before": {"x": 2}}]}, ["x"], options.contestants).splitlines()[-1]
        self.assertEqual("| 4 | x | 3 | 2 | 1.5 |", ratio)

    def parse(self, *arguments):
        here = sys.executable  # any existing program
        return compare.parse_arguments(["--model", __file__, "--umad", here, "--uma-bench", here, "--llama-server", here, *arguments])

    def test_agents_use_http_and_share_one_pool_of_cells(self):
        options, load_args = self.parse("agent", "--pairs", "1", "--", "--turns", "4")
        self.assertTrue(options.umad_http)
        self.assertEqual(("unified", [8], 8192), (options.layout, options.slots_list, options.cells_per_slot))
        self.assertEqual(["--turns", "4"], load_args)
        self.assertEqual("split", self.parse("agent", "--layout", "split")[0].layout)
        self.assertEqual("split", self.parse("chat")[0].layout)
        self.assertFalse(self.parse("chat")[0].umad_http)

    def test_usage_errors_exit_with_1(self):
        self.assertEqual(compare.main(["nonsense"]), 1)


class Restart(unittest.TestCase):
    # A load that pauses once; a server that counts its starts in a file.
    LOAD = ("import json, sys\nassert sys.argv[1] == 'agent' and '--pause' in sys.argv, sys.argv\nprint('paused', flush=True)\n"
            "sys.stdin.readline()\nprint(json.dumps({'figures': {'starts': len(open(sys.argv[3]).read())}}))\n")

    def test_a_load_that_pauses_gets_a_new_server_with_the_same_arguments(self):
        with tempfile.TemporaryDirectory() as folder:
            starts, log, load = (pathlib.Path(folder) / name for name in ("starts", "log", "load"))
            starts.write_text("")
            load.write_text(f"#!{sys.executable}\n{self.LOAD}")
            load.chmod(0o755)
            options = argparse.Namespace(scenario="agent", uma_bench=load)
            bench = compare.Bench(options, [], folder)
            server = ["sh", "-c", f"printf x >> {starts}; exec sleep 1000"]
            with compare.running(server, log) as process:
                compare.wait_until_ready(process, log, lambda: starts.read_text() == "x")
                figures = bench.run_load_with_restart(["--http", starts], 1, process, log, lambda: starts.read_text() == "xx")
            self.assertEqual(2, figures["starts"])
            self.assertLess(figures["server_cpu_s_before"], 10)


if __name__ == "__main__":
    unittest.main()
