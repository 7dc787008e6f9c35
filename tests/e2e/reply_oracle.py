"""Runs a random mixed load on one umad and compares every reply with that of an undisturbed one.

A script is the work of one client, fixed by a seed: a conversation through one of the listeners, a long prompt, texts to embed,
or a request that is cancelled. Many clients run scripts at the same time on a daemon with random settings: too few slots for
them, every layout, lanes, threads and tier of states. Then a daemon with one slot and no stored states runs the same scripts
one after another. All replies are greedy. With `scheduler: {reproducible: strict}` they must be equal. Otherwise a reply may
differ where the sums of another batch shape decide between two tokens that are almost equally likely. From there on the two
belong to different conversations and are not compared.
"""

import base64
import collections
import dataclasses
import http.client
import itertools
import json
import math
import pathlib
import random
import re
import shutil
import subprocess
import tempfile
import threading
import time

import pictures
import uma

# The largest allowed difference, in nats, by which the undisturbed daemon finds its own token more likely where two replies
# differ. If sums of another batch shape decided, it was mostly below 0.1, and 0.7 at most: after two names, the shipped model
# is undecided at the second piece of "Fay" or "Dora", and the shapes of the batches before move the gap between the two from
# 0.6 to 1.2. If a copy had the cells of another text, it was 8.
NATS_MAX = 2.0
NAMES = "Ada Ben Cleo Dora Emil Fay Gus Hana".split()
QUESTIONS = ("What is my name?", "What is uma-serve?", "What is 17 + 8?", "What happens if I disconnect?", "Who are you?",
             "What is a session?", "Say it again.")
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
          "required": ["name", "age"], "additionalProperties": False}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of the daemon under load. The undisturbed one has the same where its tokens depend on them."""
    slots: int = 8
    threads: int = 1
    layout: str = "auto"
    lanes: str = "auto"
    warm: str = "auto"
    cold: str = "auto"
    reproducible: str = "off"
    speculation: str = "off"
    verify: int = 3
    clients: int = 12
    kinds: tuple = ()  # the kinds of scripts; empty: all

    @staticmethod
    def by_chance(rng):
        reproducible = rng.choice(("off", "off", "on", "strict"))
        return Settings(slots=rng.choice((2, 3, 4, 6, 8, 16)), threads=rng.choice((1, 2)),
                        layout=rng.choice(("split", "unified", "auto")) if reproducible == "off" else "auto",
                        lanes=rng.choice(("auto", "split", "turns", "off")), warm=rng.choice(("auto", "auto", "0", "2M")),
                        cold=rng.choice(("auto", "auto", "0", "4M")), reproducible=reproducible,
                        speculation=rng.choice(("off", "auto")), verify=rng.choice((0, 2, 5)), clients=rng.choice((8, 12, 16)))

    def config(self, is_quiet):
        scheduler = {"reproducible": self.reproducible}
        kv = {"layout": self.layout}
        if is_quiet:
            kv.update(warm_bytes_max=0, cold_bytes_max=0)
        else:
            scheduler.update(lanes=self.lanes, speculation=self.speculation)
            kv.update(warm_bytes_max=self.warm, cold_bytes_max=self.cold)
        return {"scheduler": scheduler, "kv": kv}

    def flags(self, is_quiet):
        slots = 1 if is_quiet else self.slots
        # A shared pool has fewer cells than the slots want; a slot's part has as many as the model's length.
        cells = 2048 * slots if self.layout == "split" or is_quiet else 2048 * max(2, slots // 2)
        if self.reproducible != "off":
            cells = 2048 * slots  # needs a part for each slot
        return ["--slots", slots, "--threads", self.threads, "--kv-cells", cells]


class Listener:
    """The listeners of one daemon: a socket, and HTTP with a key for each of two tenants."""

    KEYS = ("a", "b")

    def __init__(self, settings, is_quiet, models):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="uma-oracle-"))
        self.keys = {}
        lines = []
        for name in self.KEYS:
            printed = subprocess.run([uma.UMAD, "key", "new", name], capture_output=True, text=True, check=True, timeout=uma.WAIT_S)
            self.keys[name], line = re.fullmatch(r"key   (\S+)\nline  (.+)\n", printed.stdout).groups()
            lines.append(line)
        (self.folder / "keys").write_text("\n".join(lines) + "\n")
        (self.folder / "keys").chmod(0o600)
        config = settings.config(is_quiet)
        config["http"] = {"keys_file": str(self.folder / "keys")}
        if models.embeds:
            (self.folder / "models").mkdir()
            shutil.copy(models.embeds, self.folder / "models" / "embeds.gguf")
            config["models_dirs"] = [str(self.folder / "models")]
        flags = [*settings.flags(is_quiet), "--http", "127.0.0.1:0", *(["--mmproj", models.projector] if models.projector else [])]
        self.daemon = uma.Daemon(models.chat, *flags, config=json.dumps(config),
                                  environment={"UMA_VERIFY": 0 if is_quiet else settings.verify}).start().wait_ready()
        self.port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", self.daemon.log()).group(1))

    def close(self):
        status = self.daemon.terminate()
        log = self.daemon.log()
        self.daemon.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        return status, log

    def post(self, key, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=uma.WAIT_S)
        try:
            connection.request("POST", path, json.dumps(body),
                               {"Authorization": "Bearer " + self.keys[key], "Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise AssertionError(f"{path}: {answer.status} {text[:300]}")
            return json.loads(text)
        finally:
            connection.close()


@dataclasses.dataclass
class Said:
    """One reply. `asked`: a one-shot request with the same tokens; None: there is none."""
    text: str
    asked: dict | None = None
    usage: dict | None = None
    tokens: list | None = None  # if the listener reports them
    vectors: list | None = None


class Script:
    """The work of one client, fixed by `seed`. run() returns the replies in order."""

    def __init__(self, seed, models, only=()):
        self.rng = random.Random(seed)
        self.seed = seed
        self.models = models
        kinds = ["crowd"] * 10 + ["session"] * 3 + ["response"] * 2 + ["chat"] * 2 + ["long"] * 2 + ["schema", "abort", "abort"]
        if models.embeds:
            kinds.append("embed")
        if models.images:
            kinds += ["image", "image"]
        self.kind = self.rng.choice([kind for kind in kinds if not only or kind in only])

    def run(self, listener):
        self.rng = random.Random(self.seed + 1)
        with listener.daemon.client() as client:
            return getattr(self, self.kind)(listener, client)

    def long_text(self):
        return "one two three " * (self.models.words_max * 3 // 10)

    def user(self):
        if self.rng.random() < 0.4:
            return f"My name is {self.rng.choice(NAMES)}."
        if self.rng.random() < 0.15:
            return " ".join(self.rng.choice(("one", "two", "three")) for _ in range(self.rng.randrange(20, self.models.words_max // 5)))
        return self.rng.choice(QUESTIONS)

    def crowd(self, listener, client):
        """Requests of many clients at once: often the same long text, then a conversation of two turns with a shared
        beginning."""
        said = []
        long = {"prompt": self.long_text(), "max_tokens": 3}
        texts = (f"My name is {self.rng.choice(NAMES)}.", "What is my name?")
        is_response = self.rng.random() < 0.5
        if self.rng.random() < 0.5:
            if is_response:
                made = listener.post("a", "/v1/completions", {**long, "temperature": 0})
                said.append(Said(made["choices"][0]["text"], long, made["uma"]["usage"]))
            else:
                said.append(self.noted(client.generate(**long, temperature=0), long))
        return said + (self.responses(listener, texts) if is_response else self.turns(client, texts))

    def turns(self, client, texts):
        said, history, session = [], [], client.create_session(mode="chat")
        for text in texts:
            history.append({"role": "user", "content": text})
            reply = client.generate(session_id=session, messages=history[-1:], max_tokens=30, temperature=0)
            said.append(self.noted(reply, {"messages": list(history), "max_tokens": 30}))
            history.append({"role": "assistant", "content": reply.text})
        client.call(type="end_session", session_id=session)
        return said

    def session(self, _, client):
        """Turns of a session, some of them rewound, regenerated, or continued in a fork."""
        said = []
        history = [{"role": "system", "content": "You are brief."}] if self.rng.random() < 0.3 else []
        session = client.create_session(mode="chat", **({"system": history[0]["content"]} if history else {}))
        sessions = [(session, history)]
        for _ in range(self.rng.randrange(2, 6)):
            session, history = sessions[self.rng.randrange(len(sessions))]
            turns = sum(message["role"] == "user" for message in history)
            kind = self.rng.random()
            if turns > 0 and kind < 0.15:
                copy = client.call(type="fork_session", session_id=session)["session_id"]
                sessions.append((copy, list(history)))
                session, history = sessions[-1]
            elif turns > 1 and kind < 0.3:
                client.call(type="rewind_session", session_id=session, turn=turns - 2)
                del history[-2:]
            if turns > 0 and kind > 0.9:
                del history[-1:]
                reply = client.finish(client.start(type="regenerate", session_id=session, max_tokens=40, temperature=0))
            else:
                history.append({"role": "user", "content": self.user()})
                reply = client.generate(session_id=session, messages=history[-1:], max_tokens=40, temperature=0)
            said.append(self.noted(reply, {"messages": list(history), "max_tokens": 40}))
            history.append({"role": "assistant", "content": reply.text})
        for session, _ in sessions:
            client.call(type="end_session", session_id=session)
        return said

    @staticmethod
    def noted(reply, asked):
        if reply.last["event"] != "eos" or reply.reason not in ("stop", "length"):
            raise AssertionError(f"a reply ended with {reply.last}")
        return Said(reply.text, asked, reply.usage, [event["token_id"] for event in reply.tokens])

    def response(self, listener, _):
        first = f"My name is {self.rng.choice(NAMES)}."
        return self.responses(listener, (first, *(self.user() for _ in range(self.rng.randrange(1, 3)))))

    @staticmethod
    def responses(listener, texts):
        """Turns of the second tenant; each continues the response before it."""
        said, history, previous = [], [], {}
        for text in texts:
            history.append({"role": "user", "content": text})
            made = listener.post("b", "/v1/responses", {"input": text, "temperature": 0, "max_output_tokens": 30, **previous})
            reply = "".join(part.get("text", "") for item in made["output"] for part in item.get("content", []))
            said.append(Said(reply, {"messages": list(history), "max_tokens": 30}, made.get("uma", {}).get("usage")))
            history.append({"role": "assistant", "content": reply})
            previous = {"previous_response_id": made["id"]}
        return said

    def chat(self, listener, _):
        """Turns that each send the whole history."""
        said, history, key = [], [], self.rng.choice(Listener.KEYS)
        for _ in range(self.rng.randrange(1, 4)):
            history.append({"role": "user", "content": self.user()})
            made = listener.post(key, "/v1/chat/completions", {"messages": history, "temperature": 0, "max_tokens": 30})
            reply = made["choices"][0]["message"]["content"]
            said.append(Said(reply, {"messages": list(history), "max_tokens": 30}, made["uma"]["usage"]))
            history.append({"role": "assistant", "content": reply})
        return said

    def long(self, listener, client):
        """A long text of the first tenant or of the socket's tenant: often the shared one, sometimes a unique one."""
        text = self.long_text()
        if self.rng.random() < 0.4:
            words = self.rng.randrange(self.models.words_max // 2)
            text = " ".join(self.rng.choice(("one", "two", "three", "four")) for _ in range(words + 10))
        tokens = self.rng.choice((3, 20))
        asked = {"prompt": text, "max_tokens": tokens}
        if self.rng.random() < 0.5:
            return [self.noted(client.generate(**asked, temperature=0), asked)]
        made = listener.post("a", "/v1/completions", {**asked, "temperature": 0})
        return [Said(made["choices"][0]["text"], asked, made["uma"]["usage"])]

    def schema(self, _, client):
        asked = {"messages": [{"role": "user", "content": self.user()}], "max_tokens": 40,
                 "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}}
        return [self.noted(client.generate(**asked, temperature=0), asked)]

    def abort(self, _, client):
        """Disconnects or cancels in the middle of the prompt or of the reply. The partial reply is not compared."""
        name = {"session_id": client.create_session(mode="chat")} if self.rng.random() < 0.5 else {}
        text = self.user() if self.rng.random() < 0.5 else self.long_text()
        request = client.start(type="generate", messages=[{"role": "user", "content": text}], max_tokens=60, temperature=0, **name)
        time.sleep(self.rng.random() * 0.03)
        if self.rng.random() < 0.5:
            client.call(type="cancel", target=request)
            client.finish(request)
            if name:
                client.call(type="end_session", **name)
        return []

    def embed(self, _, client):
        texts = [" ".join(self.rng.choice(NAMES) for _ in range(self.rng.randrange(3, 15))) for _ in range(self.rng.randrange(1, 9))]
        answer = client.call(type="embed", texts=texts, model="embeds")
        if answer["event"] != "embedding":
            raise AssertionError(f"an embedding ended with {answer}")
        return [Said("", vectors=answer["embeddings"])]

    def image(self, listener, client):
        url = {"url": "data:image/png;base64," + self.rng.choice(self.models.images)}
        asked = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": url},
                                                           {"type": "text", "text": self.rng.choice(QUESTIONS)}]}], "max_tokens": 20}
        if self.rng.random() < 0.5:
            return [self.noted(client.generate(**asked, temperature=0), asked)]
        made = listener.post(self.rng.choice(Listener.KEYS), "/v1/chat/completions", {**asked, "temperature": 0})
        return [Said(made["choices"][0]["message"]["content"], asked, made["uma"]["usage"])]


@dataclasses.dataclass(frozen=True)
class Models:
    chat: pathlib.Path
    embeds: pathlib.Path | None = None  # another model, loaded beside it
    projector: pathlib.Path | None = None
    images: tuple = ()  # PNG files in base64
    words_max: int = 1000  # approximate limit of a text


def shipped_models():
    return Models(uma.ROOT / "models" / "uma-tiny.gguf", embeds=uma.BUILD / "models" / "tiny-embed.gguf")


def vision_models():
    images = tuple(base64.b64encode(image).decode() for image in (pictures.RED, pictures.GRADIENT))
    return Models(uma.TINY_REGISTER, projector=uma.BUILD / "models" / "mmproj-tiny-register.gguf", images=images, words_max=180)


@dataclasses.dataclass
class Outcome:
    replies: int = 0
    equal: int = 0
    near: int = 0     # differ where two tokens are almost equally likely
    skipped: int = 0  # came after a reply of that kind
    reused: int = 0   # continued from cached tokens
    verified: int = 0
    tiers: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    wrong: list = dataclasses.field(default_factory=list)

    def __str__(self):
        return (f"{self.replies} replies: {self.equal} equal, {self.near} near ties and {self.skipped} after them, "
                f"{len(self.wrong)} wrong; {self.reused} reused ({dict(self.tiers)}), {self.verified} verified")


def nats_between(listener, said):
    """The largest difference, up to and including the place where the two texts part, by which the undisturbed daemon finds its
    own most likely token more likely than that of `said`. Infinity if the other token is not among its twenty most likely.
    """
    # Generates past the end, to learn how likely the end was.
    with listener.daemon.client() as client:
        reply = client.generate(**said.asked, temperature=0, logprobs=20, ignore_eos=True)
    if reply.reason != "length":
        raise AssertionError(f"the undisturbed daemon replies {reply.last}")
    left = said.text.encode()
    tokens = list(said.tokens or [])
    most = 0.0
    for place in (place for event in reply.events for place in event.get("logprobs", [])):
        def continues(way, left=left, tokens=tokens):
            if not left or (said.tokens and not tokens):
                return not way["bytes"]
            if tokens:
                return way["token_id"] == tokens[0]
            return bool(way["bytes"]) and left.startswith(bytes(way["bytes"]))
        best = place["top_logprobs"][0]["logprob"]
        if continues(place):
            most = max(most, best - place["logprob"])
            left = left[len(place["bytes"]):]
            del tokens[:1]
            continue
        ways = [way["logprob"] for way in place["top_logprobs"] if continues(way)]
        return max(most, best - max(ways)) if ways else math.inf
    return most if not left else math.inf


def is_allowed(said):
    """Whether the reply follows the schema, or is the beginning of a text that does."""
    try:
        value = json.loads(said.text)
    except ValueError:
        return said.text.lstrip().startswith("{") and len(said.tokens) == said.asked["max_tokens"]
    return set(value) == set(SCHEMA["required"]) and isinstance(value["age"], int)


def compare(listener, script, said, outcome, is_strict):
    wanted = script.run(listener)
    for number, (ours, theirs) in enumerate(zip(wanted, said, strict=True)):
        outcome.replies += 1
        usage = theirs.usage or {}
        if usage.get("reused_tokens"):
            outcome.reused += 1
            outcome.tiers[f"{usage['tier']} {usage['reuse_reason']}"] += 1
        if ours.vectors is not None:
            apart = max(abs(a - b) for one, other in zip(ours.vectors, theirs.vectors) for a, b in zip(one, other))
            if apart > 5e-3:
                outcome.wrong.append((script.seed, script.kind, number, f"vectors {apart:.5f} apart", "", usage))
            else:
                outcome.equal += 1
            continue
        if ours.text == theirs.text:
            outcome.equal += 1
            continue
        if is_strict:
            nats = math.inf
        elif script.kind == "schema":
            # All tokens that the schema allows are so unlikely that the least rounding decides between them.
            nats = 0 if is_allowed(theirs) else math.inf
        else:
            nats = nats_between(listener, theirs)
        if nats > NATS_MAX:
            outcome.wrong.append((script.seed, script.kind, number, ours.text, theirs.text, usage, nats))
        else:
            outcome.near += 1
        outcome.skipped += len(said) - number - 1
        return


def run(settings, seed, models, seconds=20 * uma.WAIT_S, scripts=math.inf):
    """Loads one daemon for `seconds`, or with so many scripts, then compares. Returns an Outcome; raises if the daemon or a request
    failed."""
    busy = Listener(settings, False, models)
    done = []
    problems = []
    until = time.monotonic() + seconds
    begun = itertools.count()
    lock = threading.Lock()

    def client(number):
        rng = random.Random(seed * 1000 + number)
        try:
            while time.monotonic() < until and next(begun) < scripts:
                # The scripts are few, so many have equal beginnings and the undisturbed daemon has less to compute.
                script = Script(seed * 10_000 + rng.randrange(100), models, settings.kinds)
                said = script.run(busy)
                with lock:
                    done.append((script, said))
        except BaseException as problem:  # noqa: B902 - raised below
            problems.append(problem)

    threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(settings.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 4 * uma.WAIT_S)
        if thread.is_alive():
            problems.append("a client hangs")
    outcome = Outcome()
    if not problems and busy.daemon.is_running():
        with busy.daemon.client() as asks:
            metrics = asks.metrics()
        outcome.verified = metrics["reuses_verified_total"]
        if metrics["reuses_wrong_total"]:
            outcome.wrong.append((seed, "verify", metrics["reuses_wrong_total"], "", "", {}))
    status, log = busy.close()
    if problems or status != 0:
        raise AssertionError(f"{settings}, seed {seed}: umad ended with {status}, {problems[:3]}\n{log[-4000:]}")
    quiet = Listener(settings, True, models)
    try:
        known = {}  # outcomes of scripts that were compared already
        for script, said in done:
            key = (script.seed, json.dumps([reply.text for reply in said]))
            before = known.get(key)
            if before is None:
                before = known[key] = Outcome()
                compare(quiet, script, said, before, settings.reproducible == "strict")
            add(outcome, before)
    finally:
        quiet.close()
    if outcome.wrong:
        errors = [line for line in log.splitlines() if " error " in line or " warning " in line]
        outcome.wrong.append((seed, "log", len(errors), "\n".join(errors[:3])[:4000], "", {}))
    return outcome


def add(total, one):
    for field in dataclasses.fields(Outcome):
        setattr(total, field.name, getattr(total, field.name) + getattr(one, field.name))
