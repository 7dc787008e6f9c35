"""Well-behaved clients of a separate tenant, in a separate process. Under attack they must get the same replies as undisturbed.

  victims.py '{"port": 8642, "key": "uma-…", "kinds": ["stream"]}'

Writes "ready" when each client knows its expected replies. Then it sends requests until its input ends, and writes one object
with the report of each kind. An interrupted reply is requested again, after a check whether the daemon has stored it.
"""

import dataclasses
import http.client
import json
import random
import sys
import threading
import time

import shift_register
import surface
import uma

NAMES = "once upon a time there was a little girl and her dog and cat live near the water by a small house".split()
SCRIPTS = 6
VECTORS_APART_MAX = 5e-3  # the numbers of a text's vector may differ by this, because other texts are in the batch


@dataclasses.dataclass
class Heard:
    """The report of the victims of a kind."""
    replies: int = 0
    breaks: int = 0  # interrupted connections
    waited: int = 0  # temporary refusals, status 503
    wrong: list = dataclasses.field(default_factory=list)
    pauses: list = dataclasses.field(default_factory=list)  # begin and end of the longest time between two pieces of each stream, in s
    first_ms: list = dataclasses.field(default_factory=list)  # the time until the first piece of each reply


class Broken(Exception):
    """The connection ended before the answer did."""


class Listener:
    """A persistent connection that is opened again after a failure."""

    def __init__(self, port, key):
        self.port = port
        self.headers = {"Authorization": "Bearer " + key}
        self.connection = None

    def send(self, method, path, body=None):
        """Returns the answer with an unread body."""
        try:
            if self.connection is None:
                self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=uma.WAIT_S)
            self.connection.request(method, path, None if body is None else json.dumps(body), self.headers)
            return self.connection.getresponse()
        except (OSError, http.client.HTTPException) as problem:
            raise self.broken(problem) from problem

    def broken(self, problem):
        self.connection.close()
        self.connection = None
        if isinstance(problem, TimeoutError):
            raise AssertionError(f"the daemon sent nothing for {uma.WAIT_S:.0f} s") from problem
        return Broken(repr(problem))

    def ask(self, method, path, body=None):
        """Returns status and object."""
        answer = self.send(method, path, body)
        try:
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as problem:
            raise self.broken(problem) from problem

    def stream(self, path, body, heard):
        """Returns the text of a stream and its terminal object; adds the times to `heard`. Returns None after a status 503."""
        began = time.monotonic()
        answer = self.send("POST", path, {**body, "stream": True})
        if answer.status != 200:
            value = json.loads(answer.read())
            if answer.status == 503:
                return None
            raise AssertionError(f"{path}: {answer.status} {value}")
        text, last, received, times = "", None, b"", []
        try:
            while part := answer.read1(1 << 16):
                received += part
                *blocks, received = received.split(b"\n\n")
                for block in blocks:
                    data = next(line[6:] for line in block.split(b"\n") if line.startswith(b"data: "))
                    piece, event = piece_of(data)
                    last = event or last
                    if piece is not None:
                        text += piece
                        times.append(time.monotonic())
        except (OSError, http.client.HTTPException) as problem:
            raise self.broken(problem) from problem
        if last is None:
            raise self.broken(EOFError("a stream without an end"))
        if times:
            heard.first_ms.append(1000 * (times[0] - began))
        if len(times) > 1:
            heard.pauses.append(max(zip(times, times[1:]), key=lambda pause: pause[1] - pause[0]))
        return text, last


def piece_of(data):
    """Returns the text of an event or None, and the event itself if it ends the reply, else None."""
    if data == b"[DONE]":
        return None, None
    event = json.loads(data)
    if "error" in event and "object" not in event and "type" not in event or event.get("type") == "response.failed":
        raise AssertionError(f"a stream ended with {event}")
    if event.get("type") == "response.output_text.delta":
        return event["delta"], None
    if event.get("type") in ("response.completed", "response.incomplete"):
        return None, event
    choices = event.get("choices") or []
    if not choices:
        return None, None
    piece = choices[0].get("text", choices[0].get("delta", {}).get("content"))
    return piece or None, event if choices[0]["finish_reason"] else None


class Victim(threading.Thread):
    """Repeats its scripts. `prepare` runs them once, undisturbed, and opens the connection: while a peer's share of connections is
    used up, the daemon closes new ones that have not sent a key. `run` compares."""

    def __init__(self, listener, stop):
        super().__init__(daemon=True)
        self.listener = listener
        self.stop = stop
        self.heard = Heard()
        self.wanted = {}

    def prepare(self):
        for script in range(SCRIPTS):
            self.play(script)
        assert not self.heard.wrong, self.heard.wrong
        self.heard = Heard()

    def run(self):
        script = 0
        try:
            while not self.stop.is_set():
                self.play(script % SCRIPTS)
                script += 1
        except Exception as problem:
            self.heard.wrong.append(f"{type(self).__name__}, script {script % SCRIPTS}: {type(problem).__name__}: {problem}")

    def reply(self, script, number, call, kept=lambda: None):
        """Compares the result of call() with the expected one. After a broken connection, repeats the call, unless kept()
        returns a stored reply."""
        while True:
            try:
                said = call()
                if said is not None:
                    break
                self.heard.waited += 1
                time.sleep(0.1)
            except Broken:
                self.heard.breaks += 1
                said = self.persist(kept)
                if said is not None:
                    break
                time.sleep(0.1)
        self.heard.replies += 1
        wanted = self.wanted.setdefault((script, number), said)
        if not self.equals(wanted, said):
            self.heard.wrong.append(f"{type(self).__name__}, script {script}, reply {number}: {said!r} instead of {wanted!r}")
        return wanted

    def persist(self, call):
        """Repeats a call until no connection breaks."""
        while True:
            try:
                return call()
            except Broken:
                time.sleep(0.1)

    def equals(self, wanted, said):
        return wanted == said


class Stream(Victim):
    """Long streams with a known text."""

    TOKENS = 200
    REGISTER = None

    def prepare(self):
        register = shift_register.Register()
        for script in range(SCRIPTS):
            self.wanted[script, 0] = register.says(self.prompt(script), self.TOKENS)
        super().prepare()

    def prompt(self, script):
        return " ".join(random.Random(script).choices(NAMES, k=10 + 30 * script))

    def play(self, script):
        body = {"prompt": self.prompt(script), "max_tokens": self.TOKENS, "temperature": 0, "uma": {"ignore_eos": True}}

        def call():
            made = self.listener.stream("/v1/completions", body, self.heard)
            return made and made[0]
        self.reply(script, 0, call)


class Chat(Victim):
    """Conversations that the daemon stores: after a crash every acknowledged turn exists, and an unacknowledged turn exists completely
    or not at all."""

    TURNS = 6

    def play(self, script):
        rng = random.Random(f"chat {script}")
        conversation = self.persist(lambda: self.listener.ask("POST", "/v1/conversations", {})[1])
        if "id" not in conversation:
            return time.sleep(0.1)
        path = "/v1/conversations/" + conversation["id"]
        said = []
        for turn in range(self.TURNS):
            body = {"conversation": conversation["id"], "input": " ".join(rng.choices(NAMES, k=8)), "max_output_tokens": 24, "temperature": 0,
                    "uma": {"ignore_eos": True}}

            def call(body=body):
                made = self.listener.stream("/v1/responses", body, self.heard)
                return made and made[0]

            def kept(turn=turn):
                replies = self.replies(path)
                if replies[:turn] != said:
                    self.heard.wrong.append(f"Chat, script {script}: stored replies {replies} do not begin with {said}")
                return replies[turn] if len(replies) > turn else None
            said.append(self.reply(script, turn, call, kept))
        replies = self.persist(lambda: self.replies(path))
        if replies != said:
            self.heard.wrong.append(f"Chat, script {script}: stored replies {replies} instead of {said}")
        self.persist(lambda: self.listener.ask("DELETE", path))
        return None

    def replies(self, path):
        """The stored replies of a conversation."""
        status, items = self.listener.ask("GET", path + "/items?limit=100&order=asc")
        if status != 200:
            raise AssertionError(f"{path}: {status} {items}")
        return ["".join(part["text"] for part in item["content"]) for item in items["data"] if item.get("role") == "assistant"]


class Agent(Victim):
    """A growing history with tool calls and results, sent completely with each request."""

    STEPS = 8

    def play(self, script):
        rng = random.Random(f"agent {script}")
        messages = [{"role": "system", "content": " ".join(rng.choices(NAMES, k=60))}, {"role": "user", "content": "look at the house"}]
        for step in range(self.STEPS):
            body = {"messages": messages, "tools": [surface.TOOL], "max_tokens": 16, "temperature": 0, "uma": {"ignore_eos": True}}

            def call(body=body):
                made = self.listener.stream("/v1/chat/completions", body, self.heard)
                return made and made[0]
            text = self.reply(script, step, call)
            messages = [*messages, {"role": "assistant", "content": text, "tool_calls": [
                {"id": f"call{step}", "type": "function", "function": {"name": "look", "arguments": json.dumps({"at": rng.choice(NAMES)})}}]},
                {"role": "tool", "tool_call_id": f"call{step}", "content": " ".join(rng.choices(NAMES, k=30))}]


class Embeds(Victim):
    """Vectors of a few texts."""

    def play(self, script):
        rng = random.Random(f"embeds {script}")
        texts = [" ".join(rng.choices(NAMES, k=rng.randrange(2, 20))) for _ in range(1 + script)]

        def call():
            began = time.monotonic()
            status, answer = self.listener.ask("POST", "/v1/embeddings", {"input": texts, "model": "embeds"})
            if status == 503:
                return None
            if status != 200:
                raise AssertionError(f"{status} {answer}")
            self.heard.first_ms.append(1000 * (time.monotonic() - began))
            return [item["embedding"] for item in answer["data"]]
        self.reply(script, 0, call)

    def equals(self, wanted, said):
        return len(wanted) == len(said) and all(abs(a - b) <= VECTORS_APART_MAX for one, other in zip(wanted, said) for a, b in zip(one, other))


KINDS = {"stream": Stream, "chat": Chat, "agent": Agent, "embeds": Embeds}


def main():
    given = json.loads(sys.argv[1])
    stop = threading.Event()
    victims = {kind: KINDS[kind](Listener(given["port"], given["key"]), stop) for kind in given["kinds"]}
    for victim in victims.values():
        victim.prepare()
    print("ready", flush=True)
    for victim in victims.values():
        victim.start()
    sys.stdin.read()
    stop.set()
    for kind, victim in victims.items():
        victim.join(2 * uma.WAIT_S)
        if victim.is_alive():
            victim.heard.wrong.append(f"{kind} hangs")
    print(json.dumps({kind: dataclasses.asdict(victim.heard) for kind, victim in victims.items()}), flush=True)


if __name__ == "__main__":
    main()
