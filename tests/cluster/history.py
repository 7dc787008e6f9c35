"""Decides whether the operations of concurrent clients on sessions are linearizable: whether they can be put into one order that agrees with
what each returned and with the time at which each began and ended.

A session is a list of items that only grows: inputs, whose texts are unique, and replies. A read returns the list, but for inputs that
wait for a reply, of which it only says that there are some. So an order is given by the longest list that was read, and what is left is
to compare it with the times: O(n log n) for n operations.

An operation that failed has not happened. One whose outcome is unknown has happened once or not at all, at any time after its begin.
"""

import bisect
import dataclasses
import itertools
import math

OK, FAILED, UNKNOWN = "ok", "failed", "unknown"
INPUT, REPLY = "user", "assistant"


@dataclasses.dataclass
class Operation:
    """One call of a client. Times are of one monotonic clock, in seconds."""

    kind: str  # append, turn, read, delete
    session: str
    client: str
    begin: float
    end: float = math.inf
    outcome: str = UNKNOWN
    text: str = ""  # append: the input. turn: the reply.
    follows: str = ""  # turn: the last input that this client knew to be there when it asked for the reply.
    node: str = ""  # Which node was asked, for people.
    items: list | None = None  # read: pairs of role and text; None: there is no such session.
    is_waiting: bool = False  # read: inputs without a reply follow the items.
    waiting: list = dataclasses.field(default_factory=list)  # read: their texts.

    def __str__(self):
        shown = f" {self.text[:60]!r}" if self.text else "" if self.items is None else f" of {len(self.items)} items"
        return f"{self.client}'s {self.kind}{shown} ({self.outcome}, {self.begin:.3f} to {self.end:.3f} s)"


@dataclasses.dataclass
class Anomaly:
    """Why a session's history is not linearizable."""

    name: str  # lost, doubled, phantom, forked, reordered, stale, misplaced, resurrected
    session: str
    message: str

    def __str__(self):
        return f"{self.session}: {self.name}: {self.message}"


class _Session:
    """The check of one session."""

    def __init__(self, name, operations):
        self.name = name
        happened = [operation for operation in operations if operation.outcome != FAILED]
        self.failed = [operation for operation in operations if operation.outcome == FAILED]
        self.appends = [operation for operation in happened if operation.kind == "append"]
        self.acknowledged = {}  # Texts, by client.
        for append in self.appends:
            if append.outcome == OK:
                self.acknowledged.setdefault(append.client, set()).add(append.text)
        self.turns = sorted((operation for operation in happened if operation.kind == "turn"), key=lambda turn: turn.begin)
        self.deletes = [operation for operation in happened if operation.kind == "delete"]
        self.reads = [operation for operation in happened if operation.kind == "read" and operation.outcome == OK]
        self.anomalies = []
        lists = [read.items for read in self.reads if read.items is not None]
        self.items = max(lists, key=len, default=[])
        self.placed = []  # Operations with their first and last possible position in the order.

    def note(self, name, message):
        self.anomalies.append(Anomaly(name, self.name, message))

    def check(self):
        self.check_reads()
        self.place_appends()
        self.place_turns()
        self.place_reads()
        self.check_times()
        return self.anomalies

    def check_reads(self):
        for read in self.reads:
            if read.items is not None and read.items != self.items[:len(read.items)]:
                at = next(i for i, (one, other) in enumerate(itertools.zip_longest(read.items, self.items)) if one != other)
                self.note("forked", f"{read} has {read.items[at]!r} at {at}, where another one has {self.items[at]!r}")

    def is_complete(self):
        """Whether nothing was appended after the longest list that was read: a read of it began after all appends and turns had ended."""
        ends = [operation.end for operation in (*self.appends, *self.turns) if operation.outcome == OK]
        return any(read.items is not None and len(read.items) == len(self.items) and not read.is_waiting
                   and read.begin > max(ends, default=0.0) for read in self.reads)

    def place(self, position, operation, last=None):
        self.placed.append((position, position if last is None else last, operation))

    def place_appends(self):
        places = {}
        for index, (role, text) in enumerate(self.items):
            if role != INPUT:
                continue
            if text in places:
                self.note("doubled", f"{text!r} is at {places[text]} and at {index}")
            places.setdefault(text, index)
        known = {append.text for append in self.appends}
        for append in self.appends:
            if append.text in places:
                self.place(places[append.text], append)
            elif append.outcome == OK:
                self.place_unread(append)
        failed = {append.text: append for append in self.failed if append.kind == "append"}
        for text, index in places.items():
            if text not in known:
                self.note("phantom", f"{text!r} is at {index}, " + (f"but {failed[text]}" if text in failed else "which nobody appended"))

    def place_unread(self, operation):
        """An operation that is in no list: it comes behind the longest one, unless that one is the last."""
        if not self.deletes and self.is_complete():
            self.note("lost", f"{operation} is in no list")
        else:
            self.place(len(self.items) + 0.25, operation)

    def place_turns(self):
        inputs = {text: index for index, (role, text) in reversed(list(enumerate(self.items))) if role == INPUT}
        free = [index for index, (role, _) in enumerate(self.items) if role == REPLY]
        for turn in self.turns:
            if turn.outcome != OK:
                continue
            after = inputs.get(turn.follows, -1) if turn.follows else -1
            index = next((index for index in free if index > after and self.items[index][1] == turn.text), None)
            if index is None:
                self.place_unread(turn)
                continue
            free.remove(index)
            self.place(index, turn)
            self.check_place(turn, after, index)
        # What is left are replies of which no client heard.
        unknown = [turn for turn in self.turns if turn.outcome == UNKNOWN]
        for index in free:
            turn = next((turn for turn in unknown if inputs.get(turn.follows, -1) < index), None)
            if turn is None:
                text = self.items[index][1]
                is_doubled = any(other.outcome == OK and other.text == text for other in self.turns)
                self.note("doubled" if is_doubled else "phantom", f"the reply {text[:60]!r} at {index} is of no turn that is left")
                continue
            unknown.remove(turn)
            self.place(index, turn)

    def check_place(self, turn, after, index):
        """A reply follows its own input: nothing is between them that this client knows to have appended."""
        own = self.acknowledged.get(turn.client, set())
        if turn.follows not in own:
            return
        if after < 0:
            self.note("misplaced", f"{turn} follows {turn.follows!r}, which is in no list")
        for role, text in self.items[after + 1:index]:
            if role == INPUT and text in own:
                self.note("misplaced", f"{turn} follows {text!r}, and not {turn.follows!r}")

    def place_reads(self):
        replies = [index for index, (role, _) in enumerate(self.items) if role == REPLY]
        for read in self.reads:
            if read.items is None:
                self.place(math.inf, read)
            elif read.is_waiting:
                count = len(read.items)
                following = bisect.bisect_left(replies, count)
                last = replies[following] - 0.5 if following < len(replies) else len(self.items) + 0.5
                # At least one input follows, which may be one that no list has.
                self.place(count + 0.5 if count < len(self.items) else count - 0.5, read, last)
            else:
                self.place(len(read.items) - 0.5, read)
        gone = [read for read in self.reads if read.items is None]
        if gone and not self.deletes:
            self.note("lost", f"{gone[0]} finds no session, which nobody deleted")
        for delete in self.deletes:
            if delete.outcome == OK or gone:
                self.place(len(self.items) + 0.75, delete)

    def check_times(self):
        """In the order of positions, none begins after the end of a later one. Operations of one position are in the order of their begins."""
        # An operation comes after others at its first position, and before others at its last one.
        steps = [(first, operation.begin, False, operation) for first, _, operation in self.placed]
        steps += [(last, operation.begin, True, operation) for _, last, operation in self.placed]
        latest = None
        for _, _, is_last, operation in sorted(steps, key=lambda step: step[:3]):
            if not is_last and latest is not None and latest.begin > operation.end:
                self.note(self.kind_of(latest, operation), f"{operation} comes after {latest}, which began when it had ended")
            if is_last and (latest is None or operation.begin > latest.begin):
                latest = operation

    @staticmethod
    def kind_of(first, second):
        """The name for two operations whose order in the list contradicts their times: `second` had ended before `first` began."""
        if second.kind == "delete":
            return "resurrected"
        return "stale" if first.kind == "read" else "reordered"


def check(operations):
    """The anomalies of a history; an empty list: it is linearizable."""
    by_session = {}
    for operation in operations:
        by_session.setdefault(operation.session, []).append(operation)
    return [anomaly for name, own in sorted(by_session.items()) for anomaly in _Session(name, own).check()]
