#!/usr/bin/env python3
"""Unit tests of kv_types.py: what it computes from replies and probabilities."""

import math
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import kv_types


def logs(**probabilities):
    return {token: math.log(value) for token, value in probabilities.items()}


class Exactness(unittest.TestCase):
    def test_a_reply_counts_up_to_its_first_difference(self):
        self.assertEqual(1, kv_types.equal_part([1, 2, 3, 4], [1, 2, 3, 4]))
        self.assertEqual(0.5, kv_types.equal_part([1, 2, 3, 4], [1, 2, 9, 4]))
        self.assertEqual(0, kv_types.equal_part([1, 2], [2, 2]))
        self.assertEqual(0.25, kv_types.equal_part([1, 2, 3, 4], [1]), "an early end is a difference")

    def test_the_divergence_of_whole_distributions(self):
        ours, theirs = logs(a=0.5, b=0.5), logs(a=0.25, b=0.75)
        expected = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
        self.assertAlmostEqual(expected, kv_types.divergence(ours, theirs))
        self.assertAlmostEqual(0, kv_types.divergence(ours, ours))

    def test_tokens_that_only_one_of_them_has_count_with_the_rest(self):
        ours, theirs = logs(a=0.6, b=0.3), logs(a=0.6, c=0.2)
        self.assertAlmostEqual(0, kv_types.divergence(ours, theirs), msg="0.4 are left in both")
        self.assertGreater(kv_types.divergence(logs(a=0.6, b=0.3), logs(a=0.5, b=0.3)), 0)

    def test_all_figures(self):
        first, second = logs(a=0.6, b=0.4), logs(a=0.4, b=0.6)
        figures = kv_types.exactness({"replies": [[1, 2]], "places": [first, first]}, {"replies": [[1, 3]], "places": [first, second]})
        self.assertEqual((0.5, 0.5), (figures["equal"], figures["top"]))
        self.assertAlmostEqual(1000 * (0.6 - 0.4) * math.log(0.6 / 0.4) / 2, figures["KL"])


if __name__ == "__main__":
    unittest.main()
