"""A short run of tests/cluster/faults.py: three nodes on one PostgreSQL server, of which everything fails for a while."""

import contextlib
import os
import pathlib
import sys
import unittest

import postgres

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cluster"))
import faults  # noqa: E402 - it is in that folder
import installation  # noqa: E402
import network  # noqa: E402

TROUBLES = ("restart_database", "cut_commits", "cut_off_node", "pause_beyond_lease", "restart_node")


@postgres.needed
class Faults(unittest.TestCase):
    takes_long = True

    def test_nothing_is_lost_doubled_or_different(self):
        with postgres.Postgres() as database:
            result = faults.run(database, kills=4, seconds=40, seed=os.getpid(), troubles=TROUBLES, between_kills_s=(0.5, 3))
        self.assertEqual([], result.problems, result)
        self.assertGreater(result.counts["turns"], 0)
        self.assertGreater(result.sessions, 0)

    @unittest.skipIf(os.getuid() != 0, "only root mounts a small file system, which can be full")
    def test_a_full_database_refuses_changes_and_loses_none(self):
        with contextlib.ExitStack() as stack:
            database = stack.enter_context(postgres.Postgres(lambda folder: stack.enter_context(faults.small_file_system(folder, 160))))
            result = faults.run(database, kills=0, seconds=12, seed=os.getpid(), clients_count=4, troubles=("full_database",))
        self.assertEqual([], result.problems, result)
        self.assertGreater(result.counts["full database"], 0)


@postgres.needed
class Partitions(unittest.TestCase):
    """The same in network namespaces, with links that are cut, and with clients that go through HAProxy."""

    takes_long = True

    @classmethod
    def setUpClass(cls):
        problem = installation.why_not() or network.why_not()
        if problem:
            raise unittest.SkipTest(problem)
        network.leave_host()

    def test_nothing_is_lost_doubled_or_different(self):
        result = faults.run_with_partitions(kills=100, seconds=30, seed=os.getpid())
        self.assertEqual([], result.problems, result)
        self.assertGreater(result.counts["turns"], 0)
        self.assertGreater(result.counts["turns through the router"], 0)
        self.assertGreater(sum(result.counts.get(name.replace("_", " "), 0) for name in faults.PARTITIONS), 0)


if __name__ == "__main__":
    unittest.main()
