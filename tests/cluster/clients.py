"""Clients for faults.py: each converses, tries again what failed, and records what it asked and heard."""

import contextlib
import http.client
import math
import random
import time

import history
import uma

REPLY_TOKENS = 80
REPLY = {"max_tokens": REPLY_TOKENS, "ignore_eos": True, "temperature": 0}
TURNS_PER_SESSION = 12
GOES_ON_WITHIN_S = 120 * uma.SLOW
RETRYABLE = ("E_SESSION_002", "E_IO_001", "E_IO_002", "E_LIMIT_003")


class Ended(Exception):
    """The run has failed elsewhere."""


class Conversation:
    """A session as a client knows it."""

    def __init__(self, session_id, is_shared=False):
        self.id = session_id
        self.is_shared = is_shared
        self.turns = 0
        self.nodes = set()  # That may own it.
        self.went_on_at = time.monotonic()


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
        self.asked = set()  # Nodes, in this turn.
        self.last_node = ""
        self.own = []
        self.connections = {}

    # One request

    def connection(self, node):
        """A connection to the node, or None: nobody listens there."""
        if node.name not in self.connections:
            try:
                self.connections[node.name] = node.client(self.cluster.answer_within_s)
            except OSError:
                return None
        return self.connections[node.name]

    def drop(self, node):
        connection = self.connections.pop(node.name, None)
        if connection is not None:
            connection.close()

    def note_failure(self, operation):
        self.cluster.count("retries")
        if self.failed_at is None:
            self.failed_at = operation.begin
        self.pause()

    def pause(self):
        self.cluster.has_failed.wait(self.random.uniform(0, 0.1))

    def request(self, kind, session, call, text="", follows=""):
        """Sends a request to any node and records it. Returns the operation and the answer; the answer is None if there was none."""
        node = self.random.choice(self.cluster.nodes)
        connection = self.connection(node)
        if connection is None:
            self.cluster.count("refused connections")
            self.pause()
            return None, None
        operation = history.Operation(kind, session, self.name, time.monotonic(), text=text, follows=follows, node=node.name)
        answer = None
        self.asked.add(node.name)
        self.last_node = node.name
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
            self.note_failure(operation)
            if kind != "read":
                self.cluster.record(operation)
        return operation, answer

    def refused(self, operation, event):
        """Sets the outcome of a request that was answered with an error."""
        self.note_failure(operation)
        code = event.get("code")
        if code not in RETRYABLE:
            self.cluster.fail(f"{operation}: {event}")
        operation.outcome = history.FAILED
        if code == "E_IO_002":  # It may still happen.
            operation.outcome, operation.end = history.UNKNOWN, math.inf
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
                self.note_failure(operation)
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
            operation, answer = self.request("create", "", lambda connection: connection.call(type="create_session"))
            if answer is None:
                continue
            if answer["event"] == "session":
                return Conversation(answer["session_id"])
            self.note_failure(operation)
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
                self.note_failure(operation)
                self.cluster.record(operation)
                continue
            self.refused(operation, reply.last)

    def converse(self, conversation):
        """An input and a reply; in a session that several clients share, only one of them asks for replies."""
        begin = time.monotonic()
        self.asked = set(conversation.nodes)
        text = self.append(conversation.id)
        if not conversation.is_shared or self.number == 0:
            self.turn(conversation.id, text)
            self.cluster.count("turns")
        conversation.turns += 1
        self.note_waits(conversation, begin, time.monotonic())
        conversation.nodes = {self.last_node}
        conversation.went_on_at = time.monotonic()

    def note_waits(self, conversation, begin, end):
        if self.failed_at is not None:
            kills = self.cluster.kills_between(self.failed_at - 1, end)
            with self.cluster.lock:
                self.cluster.waits.append((end - self.failed_at, kills))
            self.failed_at = None
        with self.cluster.lock:
            died = [when for when, name in self.cluster.kills if when > conversation.went_on_at and name in self.asked]
        if died and not conversation.is_shared:
            # From the kill, or from when the user went on, if that was later.
            begin = max(begin, died[0])
            kills = self.cluster.kills_between(begin - 1, end)
            with self.cluster.lock:
                self.cluster.takeovers.append((end - begin, kills))

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
        self.cluster.is_over.wait(self.random.uniform(0, self.cluster.think_s))


class RouterClient(Client):
    """A client of the Responses API, through HAProxy. An input and its reply are one request. After one that failed it goes on with another
    input, because what was stored shows in the end."""

    def send(self, method, path, body=None):
        """Returns the answer; None: there was none."""
        try:
            return self.cluster.database.call(method, path, body, timeout_s=2 * self.cluster.answer_within_s)
        except (OSError, http.client.HTTPException):
            return None

    def operation(self, kind, session, **fields):
        return history.Operation(kind, session, self.name, time.monotonic(), **fields)

    def check_code(self, operation, answer):
        error = answer.body["error"]
        if answer.status < 500 and error["code"] not in RETRYABLE:
            self.cluster.fail(f"{operation}: {answer}")

    def create(self):
        for _ in self.tries("a new conversation"):
            operation = self.operation("create", "")
            answer = self.send("POST", "/v1/conversations", {})
            if answer is not None and answer.status == 200:
                return Conversation(answer.body["id"].removeprefix("conv_"))
            if answer is not None:
                self.check_code(operation, answer)
            self.note_failure(operation)

    def read(self, session):
        for _ in self.tries(f"reading session {session}"):
            operation = self.operation("read", session)
            answer = self.send("GET", f"/v1/sessions/{session}")
            if answer is None or answer.status != 200:
                if answer is not None:
                    self.check_code(operation, answer)
                self.note_failure(operation)
                continue
            operation.end, operation.outcome, operation.node = time.monotonic(), history.OK, answer.node
            operation.items = [(message["role"], message["content"]) for message in answer.body["messages"]]
            operation.is_waiting = answer.body["pending_tokens"] > 0
            self.cluster.record(operation)
            if not answer.body["busy"]:
                return operation

    def converse(self, conversation):
        begin = time.monotonic()
        self.asked = set(conversation.nodes)
        for _ in self.tries(f"a response in session {conversation.id}"):
            self.words += 1
            text = f"{self.number} says {self.words}"
            append = self.operation("append", conversation.id, text=text)
            turn = self.operation("turn", conversation.id, follows=text)
            answer = self.send("POST", "/v1/responses", {"input": text, "conversation": f"conv_{conversation.id}", "temperature": 0,
                                                         "max_output_tokens": REPLY_TOKENS, "uma": {"ignore_eos": True}})
            is_done = answer is not None and answer.status == 200
            if is_done:
                parts = [part["text"] for item in answer.body["output"] if item["type"] == "message" for part in item["content"]]
                turn.text = "".join(parts)
            for operation in (append, turn):
                operation.node = answer.node or "" if answer is not None else ""
                # The input may be stored though the reply failed.
                if is_done:
                    operation.end, operation.outcome = time.monotonic(), history.OK
                self.cluster.record(operation)
            if is_done:
                break
            if answer is not None:
                self.check_code(turn, answer)
            self.note_failure(turn)
        self.cluster.count("turns through the router")
        conversation.turns += 1
        self.last_node = answer.node
        self.asked.add(answer.node)
        self.note_waits(conversation, begin, time.monotonic())
        conversation.nodes = {answer.node}
        conversation.went_on_at = time.monotonic()

    def step(self):
        open_ones = [conversation for conversation in self.own if conversation.turns < TURNS_PER_SESSION]
        if len(open_ones) < 2:
            open_ones.append(self.create())
            self.own.append(open_ones[-1])
        self.converse(self.random.choice(open_ones))
        self.failed_at = None
        self.cluster.is_over.wait(self.random.uniform(0, self.cluster.think_s))
