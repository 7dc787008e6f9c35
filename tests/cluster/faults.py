#!/usr/bin/env python3
"""Lets clients converse over three umads on one PostgreSQL database, while nodes, connections and the database fail. Afterwards everything
heals, every session goes on, the history is linearizable (history.py), and every reply is the one of a single undisturbed node.

  tests/cluster/faults.py [--kills N] [--minutes M] [--seed S] [--clients C] [--think S] [--answer S]
                          [--between S S] [--down S] [--only-kills] [--full-database] [--partitions]

It ends when N nodes were killed in the middle of turns, at the latest after M minutes. A killed node stays away for `--down` seconds, and
the next one is killed after a time between those of `--between`. A client waits for `--think` seconds at most between two turns, and asks
another node if there is no answer within `--answer` seconds. --only-kills leaves out all other faults. --full-database also fills the
database's file system for a while, which needs root, for the mount of a small one. --partitions has each part in a network namespace and
cuts their links instead of the other faults; it needs root, too. The exit status is 1 if anything was lost, doubled or different.
"""

import argparse
import contextlib
import pathlib
import statistics
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]

import history  # noqa: E402 - it is in this folder
import installation  # noqa: E402
import network  # noqa: E402
import postgres  # noqa: E402
import uma  # noqa: E402
from clients import REPLY, Client, Conversation, Ended, RouterClient  # noqa: E402
from nemesis import ALL_TROUBLES, PARTITIONS, Nemesis, small_file_system  # noqa: E402
from nodes import CONFIG, FLAGS, MODEL, SETTINGS, InstalledNode, Node  # noqa: E402

NODES = "abc"
ANSWER_WITHIN_S = 6.5 * uma.SLOW  # More than a node waits for a session.


class Cluster:
    """Three nodes, their database (postgres.Postgres or installation.Installation), and what was counted."""

    def __init__(self, database, nodes, think_s, answer_within_s=ANSWER_WITHIN_S):
        self.database = database
        self.nodes = nodes
        self.think_s = think_s  # Clients wait for so long at most between two turns.
        self.answer_within_s = answer_within_s  # Then a client turns to another node.
        self.lock = threading.Lock()
        self.operations = []
        self.counts = {}
        self.kills = []  # Times and names.
        self.waits = []  # For each conversation that met errors: seconds until it went on, and kills meanwhile.
        self.takeovers = []  # The same for each conversation whose node was killed, with errors or without.
        self.problems = []
        self.is_over = threading.Event()  # No new conversation begins.
        self.has_failed = threading.Event()  # Everything ends.

    def record(self, operation):
        with self.lock:
            self.operations.append(operation)

    def count(self, name, number=1):
        with self.lock:
            self.counts[name] = self.counts.get(name, 0) + number

    def note_kill(self, node):
        with self.lock:
            self.kills.append((time.monotonic(), node.name))

    def kills_between(self, begin, end):
        with self.lock:
            return sum(begin < when < end for when, _ in self.kills)

    def fail(self, problem):
        with self.lock:
            self.problems.append(problem)
        self.is_over.set()
        self.has_failed.set()

    def start(self):
        uma.parallel(*(lambda node=node: node.start(self.has_failed.is_set) for node in self.nodes))

    def close(self):
        return [node.close() for node in self.nodes]


# The end: everything heals, and is looked at

def continue_all(cluster, clients):
    """Every session takes a further input and reply, from any node."""
    cluster.is_over.clear()
    finisher = Client(cluster, len(clients), "end")
    deleted = {operation.session for operation in cluster.operations if operation.kind == "delete"}
    found = {}
    for client in clients:
        # Sessions of the API's key are not those of the socket.
        other = finisher if type(client) is Client else RouterClient(cluster, len(clients) + 1 + client.number, "end")
        for conversation in client.own:
            other.converse(conversation)
            found[conversation.id] = other.read(conversation.id).items
    shared = clients[0].shared
    finisher.converse(shared)
    finisher.turn(shared.id, "")
    found[shared.id] = finisher.read(shared.id).items
    for session in deleted:
        finisher.read(session)
    return found


def replay(items, client):
    """Says the same to a node that nobody disturbs. Returns what differs, or None."""
    session = client.create_session()
    unanswered = []
    for index, (role, text) in enumerate(items):
        if role == history.INPUT:
            unanswered.append(text)
            assert client.append(session, text)["event"] == "ack"
            continue
        reply = client.generate_stream(session, **REPLY)
        if reply.text != text:
            texts = [token["text"] for token in reply.tokens]
            # A client that had given up on the node has cancelled this reply: it is the beginning of the whole one.
            count = next((count for count in range(len(texts)) if "".join(texts[:count]) == text), None)
            if count is None:
                return f"item {index} is {text!r}, but alone {reply.text!r}"
            last = client.session(session)["turns"] - 1
            if last > 0:
                assert client.call(type="rewind_session", session_id=session, turn=last - 1)["turns"] == last
            else:
                client.call(type="end_session", session_id=session)
                session = client.create_session()
            for pending in unanswered:
                client.append(session, pending)
            client.generate_stream(session, **dict(REPLY, max_tokens=count))
        unanswered = []
    client.call(type="end_session", session_id=session)
    return None


def differences(sessions):
    """The sessions whose replies a single node does not give."""
    found = []
    with uma.Daemon(MODEL, *FLAGS, config=CONFIG) as single, single.client() as client:
        for session, items in sessions.items():
            if difference := replay(items, client):
                found.append(f"{session}: another reply: {difference}")
    return found


class Result:
    def __init__(self, cluster, seconds):
        self.counts = dict(sorted(cluster.counts.items()))
        self.operations = len(cluster.operations)
        self.waits = list(cluster.waits)
        self.takeovers = list(cluster.takeovers)
        self.problems = [str(problem) for problem in cluster.problems]
        self.sessions = 0
        self.seconds = seconds
        self.logs = []
        self.history = []

    def __str__(self):
        lines = [f"{self.seconds:.0f} s, {self.sessions} sessions, {self.operations} operations"]
        lines += [f"{number:7d} {name}" for name, number in self.counts.items()]
        for what, waits in (("conversations met an error; from the request that failed first they", self.waits),
                            ("conversations lost their node; from its kill, or from when they wanted to go on, they", self.takeovers),
                            ("of these met no other kill meanwhile: they", [wait for wait in self.takeovers if wait[1] <= 1])):
            seconds = sorted(wait[0] for wait in waits)
            if seconds:
                p99 = seconds[min(len(seconds) - 1, round(0.99 * len(seconds)))]
                lines.append(f"{len(seconds):7d} {what} took {statistics.median(seconds):.1f} s (median), {p99:.1f} s (p99), "
                             f"{seconds[-1]:.1f} s (longest)")
        lines += [f"FAILED: {problem}" for problem in self.problems]
        return "\n".join(lines) + ("" if self.problems else "\nnothing was lost, doubled or different")


def run(database, kills, seconds, seed, clients_count=6, troubles=ALL_TROUBLES, between_kills_s=(1, 6), down_s=0, think_s=0.1,
        answer_within_s=ANSWER_WITHIN_S):
    """Runs clients and faults with nodes behind relays; returns the Result."""
    cluster = Cluster(database, [Node(name, database) for name in NODES], think_s, answer_within_s)
    return run_on(cluster, kills, seconds, seed, [Client] * clients_count, troubles, between_kills_s, down_s)


def run_with_partitions(kills, seconds, seed, clients_count=6, troubles=PARTITIONS, between_kills_s=(3, 12), think_s=0.1):
    """The same in network namespaces, whose links are cut; every second client goes through HAProxy. Needs root."""
    with tempfile.TemporaryDirectory(prefix="uma-faults-") as folder, \
            installation.Installation(folder, True, NODES, MODEL, SETTINGS) as installed:
        cluster = Cluster(installed, [InstalledNode(name, installed) for name in NODES], think_s)
        kinds = [(Client, RouterClient)[number % 2] for number in range(clients_count)]
        return run_on(cluster, kills, seconds, seed, kinds, troubles, between_kills_s)


def run_on(cluster, kills, seconds, seed, kinds, troubles, between_kills_s, down_s=0):
    """`kinds`: of the clients. The first one must be a Client."""
    begin = time.monotonic()
    sessions = {}
    try:
        cluster.start()
        with cluster.nodes[0].client() as client:
            shared = Conversation(client.create_session(), is_shared=True)
        clients = [kind(cluster, number, seed, shared) for number, kind in enumerate(kinds)]
        threads = [threading.Thread(target=client.run) for client in clients]
        for thread in threads:
            thread.start()
        nemesis = Nemesis(cluster, seed, kills, begin + seconds, troubles, between_kills_s, down_s)
        try:
            nemesis.run()
        except AssertionError as problem:
            cluster.fail(problem)
        finally:
            cluster.is_over.set()
            for thread in threads:
                thread.join()
        if not cluster.has_failed.is_set():
            sessions = continue_all(cluster, clients)
    except Ended:
        pass
    finally:
        closed = cluster.close()
    result = Result(cluster, time.monotonic() - begin)
    result.sessions = len(sessions)
    result.problems += [str(anomaly) for anomaly in history.check(cluster.operations)]
    for log, problems in closed:
        result.logs.append(log)
        result.problems += problems
    result.problems += differences(sessions)
    result.history = cluster.operations
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--think", type=float, default=0.1)
    parser.add_argument("--answer", type=float, default=ANSWER_WITHIN_S)
    parser.add_argument("--only-kills", action="store_true")
    parser.add_argument("--between", type=float, nargs=2, default=(1, 6))
    parser.add_argument("--down", type=float, default=0)
    parser.add_argument("--full-database", action="store_true")
    parser.add_argument("--partitions", action="store_true")
    parser.add_argument("--logs", type=pathlib.Path, help="folder for the nodes' logs and the history of a run that failed")
    arguments = parser.parse_args()
    problem = "" if postgres.programs() else "PostgreSQL is not installed"
    if arguments.partitions:
        problem = installation.why_not() or network.why_not()
    if problem:
        sys.exit(f"faults: {problem}")
    return report(run_as_asked(arguments), arguments.logs)


def run_as_asked(arguments):
    seconds = 60 * arguments.minutes
    if arguments.partitions:
        return run_with_partitions(arguments.kills, seconds, arguments.seed, arguments.clients, think_s=arguments.think)
    troubles = () if arguments.only_kills else ALL_TROUBLES
    with contextlib.ExitStack() as stack:
        mount = None
        if arguments.full_database:
            troubles += ("full_database",)
            mount = lambda folder: stack.enter_context(small_file_system(folder, 160))  # noqa: E731
        database = stack.enter_context(postgres.Postgres(mount))
        return run(database, arguments.kills, seconds, arguments.seed, arguments.clients, troubles, arguments.between,
                   arguments.down, arguments.think, arguments.answer)


def report(result, folder):
    """Prints the result, and writes logs and history of a run that failed; returns the exit status."""
    print(result)
    if result.problems and folder:
        folder.mkdir(parents=True, exist_ok=True)
        for name, log in zip(NODES, result.logs):
            (folder / f"{name}.log").write_text(log)
        lines = [f"{operation.session} {operation.node} {operation} {operation.items or ''}" for operation in result.history]
        (folder / "history").write_text("\n".join(lines))
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
