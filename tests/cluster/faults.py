#!/usr/bin/env python3
"""Lets clients converse over three umads on one PostgreSQL database, while nodes, connections and the database fail. Afterwards everything
heals, every session goes on, the history is linearizable (history.py), and every reply is the one of a single undisturbed node.

  tests/cluster/faults.py [--kills N] [--minutes M] [--seed S] [--clients C] [--only-kills] [--full-database]

It ends when N nodes were killed in the middle of turns, at the latest after M minutes. --only-kills leaves out all other faults.
--full-database also fills the database's file
system for a while, which needs root, for the mount of a small one. The exit status is 1 if anything was lost, doubled or different.
"""

import argparse
import contextlib
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]

import history  # noqa: E402 - it is in this folder
import postgres  # noqa: E402
import uma  # noqa: E402
from relay import Mode, Relay  # noqa: E402

MODEL = uma.TINY_CHAT
CONFIG = "scheduler:\n  reproducible: strict\n"  # A state that is computed again elsewhere has the same bits.
FLAGS = ("--kv-cells", "32768", "--slots", "8")
REPLY_TOKENS = 80
REPLY = {"max_tokens": REPLY_TOKENS, "ignore_eos": True, "temperature": 0}
TURNS_PER_SESSION = 12
LEASE_S = 15
ANSWER_WITHIN_S = 6.5  # Then a client turns to another node.
GOES_ON_WITHIN_S = 120 * uma.SLOW
RETRYABLE = ("E_SESSION_002", "E_IO_001", "E_IO_002", "E_LIMIT_003")
NODES = "abc"


class Node:
    """A umad that is started again and again in the same folder, with a relay of its own to the database."""

    def __init__(self, name, database):
        self.name = name
        self.relay = Relay(database.folder / ".s.PGSQL.5432")
        address = f"postgresql://postgres@127.0.0.1:{self.relay.port}/uma?sslmode=disable&gssencmode=disable"
        self.daemon = uma.Daemon(MODEL, *FLAGS, "--catalog", address, "--node", name, config=CONFIG)
        self.lock = threading.Lock()
        self.process_lock = threading.Lock()  # Held by who ends and starts it.
        self.turns = 0  # Turns in progress, as the clients see it.

    def add_turns(self, count):
        with self.lock:
            self.turns += count

    def start(self, is_over):
        """Starts it until it is ready: without the database a start fails, and a service manager would repeat it."""
        while not is_over():
            self.daemon.start()
            try:
                self.daemon.wait_ready()
                return
            except AssertionError:
                self.kill_process()

    def kill_process(self):
        if self.daemon.is_running():
            self.daemon.process.kill()
        self.daemon.process.wait()

    def check_running(self):
        """Raises if it has ended by itself."""
        status = self.daemon.process.poll()
        if status is not None:
            raise AssertionError(f"node {self.name} ended by itself with {status}")

    def terminate(self):
        self.check_running()
        status = self.daemon.terminate()
        if status != 0:
            raise AssertionError(f"node {self.name} ended with {status} after SIGTERM")

    def close(self):
        """Ends it; returns its log and what was wrong."""
        problems = []
        try:
            self.terminate()
        except (AssertionError, subprocess.TimeoutExpired) as problem:
            problems = [str(problem)]
        log = self.daemon.log()
        self.daemon.kill()
        self.relay.close()
        return log, problems + [f"node {self.name}: {line}" for line in log.splitlines() if "UMA_CHECK" in line or "are not those of" in line]


class Cluster:
    """Three nodes, their database, and what was counted."""

    def __init__(self, database):
        self.database = database
        self.nodes = [Node(name, database) for name in NODES]
        self.lock = threading.Lock()
        self.operations = []
        self.counts = {}
        self.kill_times = []
        self.waits = []  # For each conversation that met errors: seconds until it went on, and kills meanwhile.
        self.problems = []
        self.is_over = threading.Event()  # No new conversation begins.
        self.has_failed = threading.Event()  # Everything ends.

    def record(self, operation):
        with self.lock:
            self.operations.append(operation)

    def count(self, name, number=1):
        with self.lock:
            self.counts[name] = self.counts.get(name, 0) + number

    def fail(self, problem):
        with self.lock:
            self.problems.append(problem)
        self.is_over.set()
        self.has_failed.set()

    def start(self):
        uma.parallel(*(lambda node=node: node.start(self.has_failed.is_set) for node in self.nodes))

    def close(self):
        return [node.close() for node in self.nodes]


class Conversation:
    """A session as a client knows it."""

    def __init__(self, session_id, is_shared=False):
        self.id = session_id
        self.is_shared = is_shared
        self.turns = 0


class Client:
    """A thread that converses: it asks any node, and where the outcome of a change is unknown it reads the session before it tries again."""

    def __init__(self, cluster, number, seed, shared=None):
        self.cluster = cluster
        self.name = f"client {number}"
        self.number = number
        self.random = random.Random(f"{seed}/{number}")
        self.shared = shared
        self.words = 0
        self.failed_at = None
        self.own = []
        self.connections = {}

    # One request

    def connection(self, node):
        """A connection to the node, or None: nobody listens there."""
        if node.name not in self.connections:
            try:
                self.connections[node.name] = node.daemon.client(ANSWER_WITHIN_S)
            except OSError:
                return None
        return self.connections[node.name]

    def drop(self, node):
        connection = self.connections.pop(node.name, None)
        if connection is not None:
            connection.close()

    def note_failure(self):
        self.cluster.count("retries")
        if self.failed_at is None:
            self.failed_at = time.monotonic()
        self.cluster.has_failed.wait(self.random.uniform(0, 0.1))

    def request(self, kind, session, call, text="", follows=""):
        """Sends a request to any node and records it. Returns the operation and the answer; the answer is None if there was none."""
        node = self.random.choice(self.cluster.nodes)
        connection = self.connection(node)
        if connection is None:
            self.note_failure()
            return None, None
        operation = history.Operation(kind, session, self.name, time.monotonic(), text=text, follows=follows, node=node.name)
        answer = None
        if kind == "turn":
            node.add_turns(1)
        try:
            answer = call(connection)
            operation.end = time.monotonic()
        except (OSError, uma.ConnectionClosed):
            self.drop(node)
        finally:
            if kind == "turn":
                node.add_turns(-1)
        if answer is None:
            self.note_failure()
            if kind != "read":
                self.cluster.record(operation)
        return operation, answer

    def refused(self, operation, event):
        """Sets the outcome of a request that was answered with an error."""
        self.note_failure()
        code = event.get("code")
        if code not in RETRYABLE:
            self.cluster.fail(f"{operation}: {event}")
        operation.outcome = history.UNKNOWN if code == "E_IO_002" else history.FAILED
        self.cluster.record(operation)

    # Operations, repeated until they succeed

    def tries(self, what):
        """Counts tries, until this takes too long."""
        end = time.monotonic() + GOES_ON_WITHIN_S
        while not self.cluster.has_failed.is_set():
            yield
            if time.monotonic() > end:
                self.cluster.fail(f"{self.name}: {what} was not possible within {GOES_ON_WITHIN_S:.0f} s")
        raise Ended

    def read(self, session):
        """A read of the session once it is idle; its items are None if there is no such session."""
        for _ in self.tries(f"reading session {session}"):
            operation, answer = self.request("read", session, lambda connection: connection.session(session))
            if answer is None:
                continue
            is_gone = answer.get("code") == "E_SESSION_001"
            if answer["event"] == "error" and not is_gone:
                self.note_failure()
                if answer["code"] not in RETRYABLE:
                    self.cluster.fail(f"{operation}: {answer}")
                continue
            operation.outcome = history.OK
            operation.items = None if is_gone else [(message["role"], message["content"]) for message in answer["messages"]]
            operation.is_waiting = not is_gone and answer["pending_tokens"] > 0
            operation.waiting = [] if is_gone else [message["content"] for message in answer.get("pending_messages", [])]
            self.cluster.record(operation)
            if is_gone or not answer["busy"]:
                return operation

    def create(self):
        for _ in self.tries("a new session"):
            _, answer = self.request("create", "", lambda connection: connection.call(type="create_session"))
            if answer is None:
                continue
            if answer["event"] == "session":
                return Conversation(answer["session_id"])
            self.note_failure()
            if answer["code"] not in RETRYABLE:
                self.cluster.fail(f"create_session: {answer}")

    def is_there(self, session, text):
        """Whether the session has the input, with a reply or without."""
        found = self.read(session)
        return text in found.waiting or any(text == content for _, content in found.items or ())

    def append(self, session):
        """Appends a unique input; returns it once it is there."""
        for _ in self.tries(f"an input of session {session}"):
            self.words += 1
            text = f"{self.number} says {self.words}"
            operation, answer = self.request("append", session, lambda connection, text=text: connection.append(session, text), text=text)
            if operation is None:
                continue
            if answer is not None and answer["event"] == "ack":
                operation.outcome = history.OK
                self.cluster.record(operation)
                return text
            if answer is not None:
                self.refused(operation, answer)
            if operation.outcome == history.UNKNOWN and self.is_there(session, text):
                return text

    def turn(self, session, follows):
        """Generates the reply to what is pending, until it is there."""
        is_unknown = False
        for _ in self.tries(f"a reply of session {session}"):
            if is_unknown:
                found = self.read(session)
                if found.items is None or not found.is_waiting:
                    return
            operation, reply = self.request("turn", session, lambda connection: connection.generate_stream(session, **REPLY), follows=follows)
            if operation is None:
                continue
            is_unknown = True
            if reply is None:
                continue
            if reply.reason == "length":
                operation.outcome, operation.text = history.OK, reply.text
                self.cluster.record(operation)
                return
            if reply.reason == "cancelled":
                self.note_failure()
                self.cluster.record(operation)
                continue
            self.refused(operation, reply.last)

    def converse(self, conversation):
        """An input and a reply; in a session that several clients share, only one of them asks for replies."""
        text = self.append(conversation.id)
        if not conversation.is_shared or self.number == 0:
            self.turn(conversation.id, text)
            self.cluster.count("turns")
        conversation.turns += 1
        if self.failed_at is not None:
            now = time.monotonic()
            with self.cluster.lock:
                kills = sum(self.failed_at - 1 < when < now for when in self.cluster.kill_times)
                self.cluster.waits.append((now - self.failed_at, kills))
            self.failed_at = None

    def delete(self, conversation):
        for _ in self.tries(f"the end of session {conversation.id}"):
            operation, answer = self.request("delete", conversation.id,
                                             lambda connection: connection.call(type="end_session", session_id=conversation.id))
            if operation is None:
                continue
            if answer is not None and answer["event"] == "ack":
                operation.outcome = history.OK
                self.cluster.record(operation)
            elif answer is not None and answer["code"] != "E_SESSION_001":
                self.refused(operation, answer)
            elif answer is not None:
                operation.outcome = history.FAILED
                self.cluster.record(operation)
            # An end whose outcome is unknown is found by reading.
            if self.read(conversation.id).items is None:
                self.cluster.count("deletes")
                return

    # The thread

    def run(self):
        try:
            with contextlib.suppress(Ended):
                while not self.cluster.is_over.is_set():
                    self.step()
        except BaseException as problem:  # noqa: B902 - reported by the main thread
            self.cluster.fail(f"{self.name}: {problem!r}")
        finally:
            for connection in self.connections.values():
                connection.close()
            self.connections = {}

    def step(self):
        if self.random.random() < 0.15 and self.shared.turns < 60:
            return self.converse(self.shared)
        open_ones = [conversation for conversation in self.own if conversation.turns < TURNS_PER_SESSION]
        if len(open_ones) < 2:
            open_ones.append(self.create())
            self.own.append(open_ones[-1])
        conversation = self.random.choice(open_ones)
        self.converse(conversation)
        if conversation.turns > 2 and self.random.random() < 0.02:
            self.delete(conversation)
            self.own.remove(conversation)
        self.failed_at = None
        self.cluster.is_over.wait(self.random.uniform(0, 0.1))


class Ended(Exception):
    """The run has failed elsewhere."""


class Nemesis:
    """Kills nodes in the middle of turns, and troubles nodes, connections and the database beside that."""

    def __init__(self, cluster, seed, kills, deadline, troubles, pause_between_kills_s=(1, 6)):
        self.cluster = cluster
        self.kills = kills
        self.deadline = deadline
        self.troubles = troubles
        self.between_kills_s = pause_between_kills_s
        self.random = random.Random(f"{seed}/nemesis")
        self.trouble_random = random.Random(f"{seed}/troubles")
        self.kills_done = 0

    def is_over(self):
        return self.cluster.has_failed.is_set() or self.cluster.is_over.is_set()

    def wait(self, seconds):
        self.cluster.is_over.wait(min(seconds, max(0.0, self.deadline - time.monotonic())))

    def kill_nodes(self):
        while self.kills_done < self.kills and time.monotonic() < self.deadline and not self.is_over():
            self.wait(self.random.uniform(*self.between_kills_s))
            node = self.random.choice(self.cluster.nodes)
            end = time.monotonic() + 5
            while node.turns == 0 and time.monotonic() < end and not self.is_over():
                time.sleep(0.001)
            self.wait(self.random.uniform(0, 0.02))  # Anywhere in a turn, its commit included.
            with node.process_lock:
                in_turn = node.turns > 0
                node.check_running()
                self.cluster.kill_times.append(time.monotonic())
                node.kill_process()
                self.cluster.count("kills in the middle of a turn" if in_turn else "kills between turns")
                self.kills_done += in_turn
                node.start(self.cluster.has_failed.is_set)

    def trouble(self):
        """One trouble after another, each of which heals."""
        order = []
        while not self.is_over():
            order = order or self.trouble_random.sample(self.troubles, len(self.troubles))
            name = order.pop()
            try:
                getattr(self, name)()
            except BaseException as problem:  # noqa: B902 - reported by the main thread
                return self.cluster.fail(f"{name}: {problem!r}")
            self.cluster.count(name.replace("_", " "))
            self.wait(self.trouble_random.uniform(0.5, 3))
        return None

    def run(self):
        threads = [threading.Thread(target=self.trouble)] if self.troubles else []
        for thread in threads:
            thread.start()
        try:
            self.kill_nodes()
            if self.kills == 0:
                self.wait(self.deadline - time.monotonic())
        finally:
            self.cluster.is_over.set()
            for thread in threads:
                thread.join()

    # Troubles

    def node(self):
        return self.trouble_random.choice(self.cluster.nodes)

    def restart_node(self):
        node = self.node()
        with node.process_lock:
            node.terminate()
            node.start(self.cluster.has_failed.is_set)

    def pause_beyond_lease(self):
        daemon = self.node().daemon
        process = daemon.process
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGSTOP)
            self.wait(LEASE_S + self.trouble_random.uniform(0.5, 3))
            process.send_signal(signal.SIGCONT)

    def pause_shortly(self):
        process = self.node().daemon.process
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGSTOP)
            self.wait(self.trouble_random.uniform(0.1, 3))
            process.send_signal(signal.SIGCONT)

    def relay(self, mode, shortest_s, longest_s, delay_s=0.0):
        relay = self.node().relay
        relay.delay_s = delay_s
        relay.set_mode(mode)
        try:
            self.wait(self.trouble_random.uniform(shortest_s, longest_s))
        finally:
            relay.set_mode(Mode.PASSES)

    def cut_off_node(self):
        self.relay(Mode.REFUSES, 1, 20)

    def stalled_connection(self):
        self.relay(Mode.STALLS, 1, 25)

    def lost_answers(self):
        self.relay(Mode.SWALLOWS, 1, 12)

    def cut_commits(self):
        relay = self.node().relay
        before = relay.cuts
        relay.set_mode(Mode.CUTS_COMMITS)
        try:
            end = time.monotonic() + self.trouble_random.uniform(1, 8)
            while time.monotonic() < end and not self.is_over():
                self.wait(0.05)
        finally:
            relay.set_mode(Mode.PASSES)
        self.cluster.count("commits whose answer was cut off", relay.cuts - before)

    def slow_database(self):
        for node in self.cluster.nodes:
            node.relay.delay_s = self.trouble_random.uniform(0.01, 0.15)
            node.relay.set_mode(Mode.DELAYS)
        self.wait(self.trouble_random.uniform(2, 8))
        for node in self.cluster.nodes:
            node.relay.set_mode(Mode.PASSES)

    def restart_database(self):
        self.cluster.database.stop()
        self.wait(self.trouble_random.uniform(0, 3))
        self.cluster.database.start()

    def crash_database(self):
        self.cluster.database.stop(signal.SIGQUIT)
        self.wait(self.trouble_random.uniform(0, 3))
        self.cluster.database.start()

    def end_sessions_of_the_server(self):
        self.cluster.database.run_sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'umad%'", "postgres")

    def full_database(self):
        filler = self.cluster.database.folder / "data" / "filler"
        with open(filler, "wb") as file, contextlib.suppress(OSError):
            while True:
                os.write(file.fileno(), bytes(1 << 16))
        self.wait(self.trouble_random.uniform(3, 8))
        filler.unlink()


ALL_TROUBLES = ("restart_node", "pause_beyond_lease", "pause_shortly", "cut_off_node", "stalled_connection", "lost_answers", "cut_commits",
                "slow_database", "restart_database", "crash_database", "end_sessions_of_the_server")


@contextlib.contextmanager
def small_file_system(folder, mebibytes):
    """Mounts a small file system in memory at the folder for the block; needs root."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "uma-faults", folder], check=True, timeout=30)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True, timeout=30)


# The end: everything heals, and is looked at

def continue_all(cluster, clients):
    """Every session takes a further input and reply, from any node."""
    cluster.is_over.clear()
    finisher = Client(cluster, len(clients), "end")
    deleted = {operation.session for operation in cluster.operations if operation.kind == "delete"}
    for client in clients:
        for conversation in client.own:
            finisher.converse(conversation)
    shared = clients[0].shared
    finisher.converse(shared)
    finisher.turn(shared.id, "")
    sessions = [conversation.id for client in clients for conversation in client.own] + [shared.id]
    found = {session: finisher.read(session).items for session in sessions}
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
            turns = client.session(session)["turns"]
            client.call(type="rewind_session", session_id=session, turn=turns - 1)
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
        self.problems = [str(problem) for problem in cluster.problems]
        self.sessions = 0
        self.seconds = seconds
        self.logs = []
        self.history = []

    def __str__(self):
        lines = [f"{self.seconds:.0f} s, {self.sessions} sessions, {self.operations} operations"]
        lines += [f"{number:7d} {name}" for name, number in self.counts.items()]
        for what, waits in (("", self.waits), (", and one node was killed meanwhile", [wait for wait in self.waits if wait[1] == 1])):
            seconds = sorted(wait[0] for wait in waits)
            if seconds:
                p99 = seconds[min(len(seconds) - 1, round(0.99 * len(seconds)))]
                lines.append(f"{len(seconds)} times a conversation met an error{what}; it went on after {statistics.median(seconds):.1f} s "
                             f"(median), {p99:.1f} s (p99), {seconds[-1]:.1f} s (longest)")
        lines += [f"FAILED: {problem}" for problem in self.problems]
        return "\n".join(lines) + ("" if self.problems else "\nnothing was lost, doubled or different")


def run(database, kills, seconds, seed, clients_count=6, troubles=ALL_TROUBLES, between_kills_s=(1, 6)):
    """Runs clients and faults; returns the Result."""
    begin = time.monotonic()
    cluster = Cluster(database)
    sessions = {}
    try:
        cluster.start()
        with cluster.nodes[0].daemon.client() as client:
            shared = Conversation(client.create_session(), is_shared=True)
        clients = [Client(cluster, number, seed, shared) for number in range(clients_count)]
        threads = [threading.Thread(target=client.run) for client in clients]
        for thread in threads:
            thread.start()
        nemesis = Nemesis(cluster, seed, kills, begin + seconds, troubles, between_kills_s)
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
    parser.add_argument("--only-kills", action="store_true")
    parser.add_argument("--full-database", action="store_true")
    parser.add_argument("--logs", type=pathlib.Path, help="folder for the nodes' logs and the history of a run that failed")
    arguments = parser.parse_args()
    if postgres.programs() is None:
        sys.exit("faults: PostgreSQL is not installed")
    troubles = () if arguments.only_kills else ALL_TROUBLES
    with contextlib.ExitStack() as stack:
        mount = None
        if arguments.full_database:
            troubles += ("full_database",)
            mount = lambda folder: stack.enter_context(small_file_system(folder, 160))  # noqa: E731
        database = stack.enter_context(postgres.Postgres(mount))
        result = run(database, arguments.kills, 60 * arguments.minutes, arguments.seed, arguments.clients, troubles)
    print(result)
    if result.problems and arguments.logs:
        arguments.logs.mkdir(parents=True, exist_ok=True)
        for name, log in zip(NODES, result.logs):
            (arguments.logs / f"{name}.log").write_text(log)
        lines = [f"{operation.session} {operation.node} {operation} {operation.items or ''}" for operation in result.history]
        (arguments.logs / "history").write_text("\n".join(lines))
    sys.exit(1 if result.problems else 0)


if __name__ == "__main__":
    main()
