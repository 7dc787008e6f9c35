#!/usr/bin/env python3
"""Unit tests of svg_chart.py: round scales, and documents that are XML and show the given values."""

import pathlib
import sys
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import svg_chart

SVG = "{http://www.w3.org/2000/svg}"


def parse(text):
    return xml.etree.ElementTree.fromstring(text)


def texts(root):
    return [element.text for element in root.iter(f"{SVG}text")]


def bars(root):
    return [element for element in root.iter(f"{SVG}rect") if element.get("class") != "card"]


class Scales(unittest.TestCase):
    def test_linear_ticks_are_round_and_reach_the_top(self):
        self.assertEqual(svg_chart.linear_ticks(250), [0, 100, 200, 300])
        self.assertEqual(svg_chart.linear_ticks(300), [0, 100, 200, 300])
        self.assertEqual(svg_chart.linear_ticks(0), [0, 1])
        for top in (0.003, 0.7, 1, 9.99, 12345, 7e6):
            ticks = svg_chart.linear_ticks(top)
            self.assertGreaterEqual(ticks[-1], top * (1 - 1e-9))
            self.assertLess(ticks[-2], top)
            self.assertLessEqual(len(ticks), 7)

    def test_log_ticks_hold_all_values(self):
        self.assertEqual(svg_chart.log_ticks(5, 5800), [1, 10, 100, 1000, 10000])
        self.assertEqual(svg_chart.log_ticks(10, 10), [10, 100])

    def test_values_have_no_exponent(self):
        self.assertEqual([svg_chart.format_value(value) for value in (0.123, 2, 19.84, 12345.6)], ["0.12", "2", "19.8", "12,346"])


class Bars(unittest.TestCase):
    def test_each_value_is_a_bar_in_proportion_and_a_missing_one_a_dash(self):
        root = parse(svg_chart.bar_chart("t", ["x", "y", "z"], [("speed (1/s)", {"x": 100, "y": 50, "z": None})], "x"))
        drawn = bars(root)
        self.assertEqual([bar.get("class") for bar in drawn], ["a", "other"])
        self.assertAlmostEqual(float(drawn[0].get("width")), 2 * float(drawn[1].get("width")), delta=0.2)
        for text in ("t", "x", "y", "z", "speed (1/s)", "100", "50", "–"):
            self.assertIn(text, texts(root))

    def test_groups_have_scales_of_their_own_and_stay_inside(self):
        groups = [(f"g{number}", {"x": 10.0**number}) for number in range(5)]
        root = parse(svg_chart.bar_chart("t", ["x"], groups, "x"))
        self.assertEqual(len(bars(root)), 5)
        self.assertEqual(len({bar.get("width") for bar in bars(root)}), 1)
        for bar in bars(root):
            self.assertLess(float(bar.get("x")) + float(bar.get("width")), svg_chart.WIDTH)
            self.assertLess(float(bar.get("y")), float(root.get("height")))

    def test_names_are_escaped_and_zeros_drawn(self):
        root = parse(svg_chart.bar_chart("a < b & c", ["<x>"], [("\"u\"", {"<x>": 0})], None))
        self.assertIn("<x>", texts(root))
        self.assertEqual(float(bars(root)[0].get("width")), 0)

    def test_text_is_readable_on_light_and_on_dark(self):
        text = svg_chart.bar_chart("t", ["x"], [("g", {"x": 1})], "x")
        self.assertIn("prefers-color-scheme: dark", text)
        self.assertEqual(len([rect for rect in parse(text).iter(f"{SVG}rect") if rect.get("class") == "card"]), 1)


class Points(unittest.TestCase):
    def test_draws_every_positive_point_of_each_series(self):
        root = parse(svg_chart.log_points("t", "x (s)", "y (ms)", {"one": [(-1, 5), (0, 50), (1, 0)], "two": [(2, 5000)]},
                                          mark=(0, "now")))
        dots = {path.get("class"): path.get("d").count("M") for path in root.iter(f"{SVG}path")}
        self.assertEqual(dots, {"a": 2, "b": 1})
        for text in ("t", "x (s)", "y (ms)", "one", "two", "now", "10,000"):
            self.assertIn(text, texts(root))

    def test_ten_times_is_the_same_step_everywhere(self):
        root = parse(svg_chart.log_points("t", "x", "y", {"one": [(0, 1), (1, 10), (2, 100)]}))
        heights = [float(dot.split("h0")[0].split()[1]) for dot in next(root.iter(f"{SVG}path")).get("d").split("M")[1:]]
        self.assertAlmostEqual(heights[0] - heights[1], heights[1] - heights[2], delta=0.2)
        self.assertGreater(heights[0], heights[1])

    def test_no_points_are_no_chart(self):
        with self.assertRaises(ValueError):
            svg_chart.log_points("t", "x", "y", {"one": [(0, 0)]})


class TimeLine(unittest.TestCase):
    def test_draws_every_point_and_every_mark(self):
        root = parse(svg_chart.time_line("t", "x (s)", "y (MiB)", [(0, 1), (1, 3), (2, 2)], [0.5, 1.5], "killed"))
        self.assertEqual(3, len(next(root.iter(f"{SVG}polyline")).get("points").split()))
        self.assertEqual(2, sum(line.get("class") == "mark" for line in root.iter(f"{SVG}line")))
        for text in ("t", "x (s)", "y (MiB)", "killed"):
            self.assertIn(text, texts(root))

    def test_no_points_are_no_chart(self):
        with self.assertRaises(ValueError):
            svg_chart.time_line("t", "x", "y", [])


if __name__ == "__main__":
    unittest.main()
