#!/usr/bin/env python3
"""Tests of the noise: tools/with_torch 'python3 -B tools/train_image/noise_test.py'."""

import unittest

import torch

import noise


class Noise(unittest.TestCase):
    def test_philox_gives_the_known_answers(self):  # of the Random123 library
        for counter, key, expected in [
            ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
            ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
            ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0], [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
        ]:
            self.assertEqual(expected, noise.philox(torch.tensor(counter)[:, None], key).flatten().tolist())

    def test_the_numbers_are_normal_and_depend_on_every_argument(self):
        numbers = noise.normal(42, 64 * 64 * 3)
        self.assertAlmostEqual(0.0, numbers.mean().item(), delta=0.03)
        self.assertAlmostEqual(1.0, numbers.std().item(), delta=0.03)
        self.assertTrue(torch.equal(numbers[:100], noise.normal(42, 100)))
        for other in (noise.normal(43, 100), noise.normal(42 + 2**32, 100), noise.normal(42, 100, offset=1)):
            self.assertFalse(torch.equal(numbers[:100], other))


if __name__ == "__main__":
    unittest.main()
