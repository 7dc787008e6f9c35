"""The checker of histories (tests/cluster/history.py) finds each anomaly, and none where there is none."""

import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cluster"))
import history  # noqa: E402 - it is in that folder
from history import FAILED, OK, UNKNOWN, Operation  # noqa: E402


def append(text, begin, end, outcome=OK, client="a"):
    return Operation("append", "s", client, begin, end, outcome, text=text)


def turn(reply, follows, begin, end, outcome=OK, client="a"):
    return Operation("turn", "s", client, begin, end, outcome, text=reply, follows=follows)


def read(items, begin, end, is_waiting=False, client="a"):
    """`items`: words, of which those that begin with "r" are replies; None: no session."""
    pairs = None if items is None else [("assistant" if word[0] == "r" else "user", word) for word in items.split()]
    return Operation("read", "s", client, begin, end, OK, items=pairs, is_waiting=is_waiting)


def delete(begin, end, outcome=OK):
    return Operation("delete", "s", "a", begin, end, outcome)


class Anomalies(unittest.TestCase):
    def names(self, *operations):
        return sorted({anomaly.name for anomaly in history.check(operations)})

    def test_an_input_that_was_acknowledged_and_is_gone_is_lost(self):
        self.assertEqual(["lost"], self.names(append("u1", 0, 1), append("u2", 2, 3), read("u1", 4, 5)))

    def test_a_reply_that_was_acknowledged_and_is_gone_is_lost(self):
        self.assertEqual(["lost"], self.names(append("u1", 0, 1), turn("r1", "u1", 2, 3), append("u2", 4, 5), read("u1 u2", 6, 7)))

    def test_a_session_that_nobody_deleted_is_lost(self):
        self.assertEqual(["lost"], self.names(append("u1", 0, 1), read("u1", 1, 2), read(None, 3, 4)))

    def test_an_input_that_is_there_twice_is_doubled(self):
        self.assertEqual(["doubled"], self.names(append("u1", 0, 1), read("u1 u1", 2, 3)))

    def test_a_reply_that_is_there_twice_is_doubled(self):
        operations = append("u1", 0, 1), turn("r1", "u1", 2, 3), read("u1 r1 r1", 4, 5)
        self.assertEqual(["doubled"], self.names(*operations))
        self.assertEqual([], self.names(*operations, turn("", "u1", 2, 9, UNKNOWN)))

    def test_what_nobody_said_is_a_phantom(self):
        self.assertEqual(["phantom"], self.names(append("u1", 0, 1), read("u1 u2", 2, 3)))
        self.assertEqual(["phantom"], self.names(append("u1", 0, 1), read("u1 r1", 2, 3)))

    def test_a_failed_change_that_is_there_is_a_phantom(self):
        self.assertEqual(["phantom"], self.names(append("u1", 0, 1, FAILED), read("u1", 2, 3)))
        self.assertEqual(["phantom"], self.names(append("u1", 0, 1), turn("", "u1", 1, 2, FAILED), read("u1 r1", 2, 3)))

    def test_inputs_in_another_order_than_they_were_said_are_reordered(self):
        self.assertEqual(["reordered"], self.names(append("u1", 0, 1), append("u2", 2, 3, client="b"), read("u2 u1", 4, 5)))
        self.assertEqual([], self.names(append("u1", 0, 2.5), append("u2", 2, 3, client="b"), read("u2 u1", 4, 5)))

    def test_a_read_that_misses_what_was_there_before_it_is_stale(self):
        end = read("u1 r1 u2", 6, 7)
        operations = append("u1", 0, 1), turn("r1", "u1", 1, 2), append("u2", 2, 3), end
        self.assertEqual(["stale"], self.names(*operations, read("u1", 4, 5, client="b")))
        self.assertEqual([], self.names(*operations, read("u1", 1.5, 5, client="b")))

    def test_reads_do_not_go_back(self):
        operations = append("u1", 0, 1), append("u2", 1, 9), read("u1 u2", 10, 11)
        self.assertEqual(["stale"], self.names(*operations, read("u1 u2", 2, 3, client="b"), read("u1", 4, 5, client="c")))
        self.assertEqual([], self.names(*operations, read("u1 u2", 2, 5, client="b"), read("u1", 4, 6, client="c")))

    def test_a_read_of_the_future_is_found(self):
        self.assertEqual(["reordered"], self.names(append("u1", 2, 3), read("u1", 0, 1), read("u1", 4, 5)))

    def test_inputs_that_wait_are_not_shown_and_not_missed(self):
        operations = append("u1", 0, 1), turn("r1", "u1", 1, 2), append("u2", 2, 3), turn("r2", "u2", 6, 7), read("u1 r1 u2 r2", 8, 9)
        self.assertEqual([], self.names(*operations, read("u1 r1", 4, 5, is_waiting=True)))
        self.assertEqual(["stale"], self.names(*operations, read("u1 r1", 7.5, 7.6, is_waiting=True)))
        self.assertEqual(["reordered"], self.names(*operations, read("u1 r1", 1.8, 1.9, is_waiting=True)))
        self.assertEqual([], self.names(append("u1", 0, 1), read("", 2, 3, is_waiting=True)))

    def test_inputs_that_waited_in_a_session_that_was_deleted_before_it_was_read_again(self):
        operations = append("u1", 0, 1), turn("r1", "u1", 1, 2), append("u2", 2, 3), read("u1 r1", 4, 5, is_waiting=True)
        self.assertEqual([], self.names(*operations, turn("r2", "u2", 6, 7), delete(8, 9)))

    def test_two_reads_of_which_neither_continues_the_other_are_forked(self):
        operations = append("u1", 0, 1), append("u2", 1, 9, UNKNOWN), append("u3", 1, 9, UNKNOWN, client="b")
        self.assertEqual(["forked"], self.names(*operations, read("u1 u2", 2, 8), read("u1 u3", 2, 8)))

    def test_a_reply_to_another_input_is_misplaced(self):
        operations = append("u1", 0, 1), append("u2", 6, 8), read("u1 u2 r1", 9, 10)
        self.assertEqual(["misplaced"], self.names(*operations, turn("r1", "u1", 2, 7)))
        self.assertEqual([], self.names(*operations, turn("r1", "u2", 8, 8.5)))

    def test_an_input_of_another_client_may_come_before_the_reply(self):
        self.assertEqual([], self.names(append("u1", 0, 1), append("u2", 1, 2, client="b"), turn("r1", "u1", 3, 4), read("u1 u2 r1", 5, 6)))

    def test_what_follows_the_end_of_a_session_is_resurrected(self):
        self.assertEqual(["resurrected"], self.names(append("u1", 0, 1), delete(2, 3), read("u1", 4, 5)))
        self.assertEqual(["resurrected"], self.names(append("u1", 0, 1), read("u1", 1, 2), delete(2, 3), append("u2", 4, 5)))
        self.assertEqual([], self.names(append("u1", 0, 1), read("u1", 1, 2), append("u2", 2, 4), delete(2, 3), read(None, 5, 6)))

    def test_an_end_of_unknown_outcome_may_have_happened(self):
        self.assertEqual([], self.names(append("u1", 0, 1), delete(2, 9, UNKNOWN), read("u1", 3, 4), read(None, 5, 6)))
        self.assertEqual([], self.names(append("u1", 0, 1), delete(2, 9, UNKNOWN), read("u1", 30, 40)))

    def test_what_is_unknown_may_be_there_or_not_and_late(self):
        unknown = append("u2", 2, 2, UNKNOWN)
        unknown.end = history.math.inf
        operations = append("u1", 0, 1), unknown, append("u3", 4, 5, client="b")
        self.assertEqual([], self.names(*operations, read("u1 u3", 6, 7)))
        self.assertEqual([], self.names(*operations, read("u1 u3 u2", 6, 7)))
        self.assertEqual([], self.names(*operations, read("u1 u3", 6, 7), read("u1 u3 u2", 8, 9)))
        self.assertEqual(["stale"], self.names(*operations, read("u1 u3 u2", 6, 7), read("u1 u3", 8, 9)))

    def test_sessions_are_apart(self):
        first = append("u1", 0, 1)
        second = Operation("read", "other", "a", 2, 3, OK, items=[])
        self.assertEqual([], self.names(first, second, read("u1", 2, 3)))


class Random(unittest.TestCase):
    """Histories of a list that is correct, seen through operations of random length."""

    @staticmethod
    def correct(chance, count):
        """Each operation takes effect at a moment between its begin and its end."""
        items, operations, now = [], [], 0.0
        for number in range(count):
            now += chance.random()
            begin, end = now - chance.random() * 3, now + chance.random() * 3
            kind = chance.choice(("append", "append", "read", "turn"))
            if kind == "append":
                items.append(("user", f"u{number}"))
                operations.append(append(f"u{number}", begin, end, chance.choice((OK, OK, UNKNOWN)), client=f"c{number}"))
            elif kind == "turn":
                items.append(("assistant", f"r{number}"))
                operations.append(turn(f"r{number}", "", begin, end, client=f"c{number}"))
            else:
                operations.append(Operation("read", "s", "reader", begin, end, OK, items=list(items)))
        operations.append(Operation("read", "s", "reader", now + 10, now + 11, OK, items=list(items)))
        return operations

    def test_correct_histories_are_linearizable(self):
        for seed in range(200):
            self.assertEqual([], history.check(self.correct(random.Random(seed), 60)), seed)

    def test_every_acknowledged_operation_that_is_taken_out_is_missed(self):
        for seed in range(200):
            chance = random.Random(seed)
            operations = self.correct(chance, 60)
            victim = chance.choice([operation for operation in operations if operation.kind in ("append", "turn") and operation.outcome == OK])
            for operation in operations:
                if operation.kind == "read":
                    operation.items = [item for item in operation.items if item[1] != victim.text]
            self.assertEqual({"lost"}, {anomaly.name for anomaly in history.check(operations)}, seed)

    def test_every_pair_that_changes_places_is_seen(self):
        for seed in range(200):
            chance = random.Random(seed)
            operations = self.correct(chance, 60)
            inputs = [operation for operation in operations if operation.kind == "append"]
            one, other = next((one, other) for one in inputs for other in inputs if one.end < other.begin and one.outcome == OK)
            swapped = {one.text: other.text, other.text: one.text}
            for operation in operations:
                if operation.kind == "read" and len({text for _, text in operation.items} & set(swapped)) == 2:
                    operation.items = [(role, swapped.get(text, text)) for role, text in operation.items]
            self.assertNotEqual([], history.check(operations), seed)


if __name__ == "__main__":
    unittest.main()
