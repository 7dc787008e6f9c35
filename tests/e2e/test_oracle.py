"""A random mixed load, with every reply compared with that of an undisturbed daemon (reply_oracle.py). script/soak does the
same for longer."""

import unittest

import reply_oracle
from reply_oracle import Settings

SCRIPTS = 30


class Oracle(unittest.TestCase):
    takes_long = True

    def check(self, settings, seed, models=None):
        outcome = reply_oracle.run(settings, seed, models or reply_oracle.shipped_models(), scripts=SCRIPTS)
        print(f"\n{settings}: {outcome}")
        self.assertEqual([], outcome.wrong)
        self.assertGreater(outcome.equal, 20)
        # The number of near-ties depends on a CPU's rounding; the comparison is meaningful only if most replies have none.
        self.assertGreater(outcome.equal, outcome.near)
        self.assertGreater(outcome.reused, 0)
        return outcome

    def test_a_crowd_that_begins_alike(self):
        outcome = self.check(Settings(slots=4, layout="split", kinds=("crowd", "long")), 1)
        self.assertGreater(outcome.verified, 0)

    def test_slots_of_their_own(self):
        self.check(Settings(slots=6, layout="split", speculation="auto"), 2)

    def test_cells_that_all_share(self):
        self.check(Settings(slots=6, layout="unified"), 3)

    def test_prompts_beside_the_streams(self):
        self.check(Settings(slots=3, layout="split", threads=2, lanes="split", verify=0), 4)

    def test_little_memory_for_states(self):
        self.check(Settings(slots=2, layout="unified", warm="2M", cold="4M"), 5)

    def test_the_same_bits_for_all(self):
        self.check(Settings(slots=4, reproducible="strict", warm="2M"), 6)

    def test_images(self):
        self.check(Settings(slots=4, layout="unified", clients=8), 7, reply_oracle.vision_models())


if __name__ == "__main__":
    unittest.main()
