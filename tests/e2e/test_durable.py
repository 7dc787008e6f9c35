"""Sessions across the end of the daemon: after SIGTERM, after kill -9 at any moment, on a full disk, in damaged files.

Environment:
  UMA_KILLS       number of kills in the kill test (default: 8)
  UMA_KILL_SEED   seed that chooses the events after which it kills (default: 1)
"""

import contextlib
import os
import pathlib
import random
import resource
import shutil
import sqlite3
import struct
import tempfile
import unittest

import uma

OPTIONS = {"max_tokens": 6, "ignore_eos": True}
FLAGS = ("--kv-cells", "4096", "--slots", "4")
KILLS = int(os.environ.get("UMA_KILLS", "8"))
SEED = int(os.environ.get("UMA_KILL_SEED", "1"))
WORDS = (" and", " then", " one day", " the girl", " saw a", " big", " dog.", " She", " said", " hello")


def shown(detail):
    """The fields of get_session or list_sessions that a restart does not change."""
    moves = ("id", "tier", "hot_bytes", "warm_bytes", "cold_bytes", "worker", "event")
    return {name: value for name, value in detail.items() if name not in moves}


def stored_sessions(data_dir):
    """The chain, the number of pending tokens and the number of turns of every session in the catalog, by id (docs/CATALOG.md).
    Reads a copy, because the file belongs to the daemon."""
    with tempfile.TemporaryDirectory(prefix="uma-e2e-") as folder:
        for name in ("catalog.db", "catalog.db-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(data_dir / name, folder)
        with contextlib.closing(sqlite3.connect(f"{folder}/catalog.db")) as database:
            sessions = {}
            rows = database.execute("SELECT key, id, tokens_count, pending_tokens_count, turns_count FROM sessions").fetchall()
            for key, session, tokens, pending, turns in rows:
                blocks = database.execute("SELECT tokens FROM token_blocks WHERE session = ? ORDER BY number", (key,))
                data = b"".join(block for (block,) in blocks)
                chain = list(struct.unpack(f"<{len(data) // 4}i", data))
                assert len(chain) == tokens + pending, (session, len(chain), tokens, pending)
                sessions[session] = (chain[:tokens], pending, turns)
            return sessions


class Durable(unittest.TestCase):
    def setUp(self):
        self.daemon = uma.Daemon(uma.TINY, *FLAGS)
        self.addCleanup(self.daemon.kill)
        self.daemon.start().wait_ready()

    def restart(self):
        self.assertEqual(0, self.daemon.terminate(), self.daemon.log())
        self.daemon.start().wait_ready()

    def catalog(self):
        return self.daemon.data_dir / "catalog.db"

    def test_sessions_go_on_after_a_clean_end(self):
        with self.daemon.client() as client:
            text = client.create_session(mode="text", name="tale")
            first = client.generate("one two three", session_id=text, **OPTIONS)
            self.assertEqual("ack", client.append(text, " four")["event"])
            chat = client.create_session(mode="chat", system="Be brief. äöü € 🐴")
            client.generate("Hello!", session_id=chat, **OPTIONS)
            fork = client.call(type="fork_session", session_id=chat, name="a fork")["session_id"]
            client.generate("And now?", session_id="a fork", **OPTIONS)
            gone = client.create_session(name="gone")
            client.call(type="end_session", session_id=gone)
            before = [shown(client.session(session)) for session in (text, chat, fork)]
            listed = [shown(entry) for entry in client.call(type="list_sessions")["sessions"]]
        self.restart()
        with self.daemon.client() as client:
            self.assertEqual(before, [shown(client.session(session)) for session in (text, chat, "a fork")])
            self.assertEqual(listed, [shown(entry) for entry in client.call(type="list_sessions")["sessions"]])
            self.assertEqual(3, client.metrics()["sessions"])
            self.assertEqual("E_SESSION_001", client.session(gone)["code"])
            self.assertEqual("E_PROTO_003", client.call(type="create_session", name="tale")["code"])
            detail = client.session("tale")
            self.assertEqual("one two three" + first.text, detail["text"].lstrip())
            reply = client.generate_stream("tale", **OPTIONS)
            self.assertEqual(detail["tokens"] + detail["pending_tokens"], reply.usage["prompt_tokens"])
            self.assertEqual(2, client.session("tale")["turns"])
            again = client.generate("Go on", session_id=chat, **OPTIONS)
            self.assertEqual("eos", again.last["event"])
            self.assertEqual(["system", "user", "assistant", "user", "assistant"],
                             [message["role"] for message in client.session(chat)["messages"]])
            self.assertEqual("ack", client.call(type="rewind_session", session_id=chat, turn=0)["event"])
            self.assertEqual(before[1]["messages"], client.session(chat)["messages"])

    def test_a_reply_that_the_end_cut_off_is_kept_as_far_as_it_came(self):
        with self.daemon.client() as client:
            session = client.create_session(mode="text")
            running = client.start(type="generate", session_id=session, prompt="one", max_tokens=2000, ignore_eos=True)
            client.wait_token(running, 3)
            client.socket.close()
        with self.daemon.client() as client:
            uma.until(lambda: not client.session(session)["busy"], "the reply of a client that is gone ends")
            before = shown(client.session(session))
        self.assertEqual(1, before["turns"])
        self.restart()
        with self.daemon.client() as client:
            self.assertEqual(before, shown(client.session(session)))

    def test_a_second_daemon_on_the_same_data_folder_is_refused(self):
        result = uma.run_umad("--model", uma.TINY, "--socket", self.daemon.folder / "other", "--data-dir", self.daemon.data_dir)
        self.assertEqual(1, result.returncode)
        self.assertIn("in use by another umad", result.stderr)
        self.assertIn(str(self.catalog()), result.stderr)
        with self.daemon.client() as client:
            self.assertTrue(client.create_session())

    def test_sessions_of_another_model_are_kept(self):
        with self.daemon.client() as client:
            session = client.create_session(mode="text", name="tale")
            client.generate("one", session_id=session, **OPTIONS)
            before = shown(client.session(session))
        self.assertEqual(0, self.daemon.terminate())
        model = self.daemon.arguments.index(str(uma.TINY))
        self.daemon.arguments[model] = str(uma.TINY_CHAT)
        self.daemon.start().wait_ready()
        with self.daemon.client() as client:
            self.assertEqual(["tale"], [entry["name"] for entry in client.call(type="list_sessions")["sessions"]])
            refused = client.generate("two", session_id="tale", **OPTIONS)
            self.assertEqual("E_MODEL_001", refused.code)
            self.assertIn('model "tiny"', refused.message)
        self.daemon.arguments[model] = str(uma.TINY)
        self.restart()
        with self.daemon.client() as client:
            self.assertEqual(before, shown(client.session("tale")))
            self.assertEqual("eos", client.generate("two", session_id="tale", **OPTIONS).last["event"])

    def test_a_later_version_is_refused_and_left_alone(self):
        with self.daemon.client() as client:
            client.create_session()
        self.assertEqual(0, self.daemon.terminate())
        with contextlib.closing(sqlite3.connect(self.catalog())) as database:
            database.execute("PRAGMA user_version = 99")
        content = self.catalog().read_bytes()
        self.daemon.start()
        self.assertEqual(1, self.daemon.wait())
        self.assertIn("the catalog has version 99, but this umad supports versions up to ", self.daemon.log())
        self.assertEqual(content, self.catalog().read_bytes())

    def test_a_file_that_is_no_catalog_is_moved_aside(self):
        self.assertEqual(0, self.daemon.terminate())
        self.catalog().write_bytes(b"something else" * 1000)
        self.daemon.start().wait_ready()
        with self.daemon.client() as client:
            self.assertTrue(client.create_session())
        self.assertIn("recovered: 0 sessions", self.daemon.log())
        aside = list(self.daemon.data_dir.glob("catalog.db.damaged-*"))
        self.assertEqual([b"something else" * 1000], [path.read_bytes() for path in aside if not path.name.endswith("-wal")])

    def test_a_full_disk_refuses_changes_and_loses_nothing(self):
        with self.daemon.client() as client:
            session = client.create_session(mode="text")
            client.generate("one two three", session_id=session, **OPTIONS)
            before = shown(client.session(session))
            wal = self.catalog().with_name("catalog.db-wal")
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.prlimit(self.daemon.process.pid, resource.RLIMIT_FSIZE, (wal.stat().st_size, hard))
            refused = client.append(session, " four")
            self.assertEqual(("error", "E_IO_001"), (refused["event"], refused["code"]))
            self.assertTrue(refused["message"].startswith("catalog.db: "), refused["message"])
            self.assertEqual("E_IO_001", client.call(type="create_session", name="new")["code"])
            self.assertEqual(before, shown(client.session(session)))
            one_shot = client.generate("one", **OPTIONS)
            self.assertEqual("eos", one_shot.last["event"], "what keeps nothing is served")
            resource.prlimit(self.daemon.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
            self.assertEqual("ack", client.append(session, " four")["event"])
            self.assertEqual("eos", client.generate_stream(session, **OPTIONS).last["event"])
            after = shown(client.session(session))
        self.restart()
        with self.daemon.client() as client:
            self.assertEqual(after, shown(client.session(session)))
            self.assertEqual("E_SESSION_001", client.session("new")["code"])


class Known:
    """A session as its client knows it from acknowledgements and events. These do not have the tokens of inputs: None in the
    chain."""

    def __init__(self, name, tokens_max):
        self.name = name
        self.tokens_max = tokens_max  # a longer chain is rewound to its first turn
        self.id = None
        self.turns = []  # for each turn: the tokens of its input and reply
        self.said = []  # for each turn: the text of its input, the number of tokens of its reply
        self.pending = 0
        self.pending_text = ""
        self.request = None  # the request under way: (type, received token ids, its text)

    def chain(self):
        return [token for turn in self.turns for token in turn]

    def next(self, client, chance):
        """Sends the next request."""
        if self.id is None:
            self.send(client, "create_session", name=self.name, mode="text")
        elif self.pending > 0:
            self.send(client, "generate_stream", session_id=self.id, max_tokens=chance.randint(1, 6), ignore_eos=True, deadline_ms=0)
        elif len(self.chain()) > self.tokens_max:
            self.send(client, "rewind_session", session_id=self.id, turn=0)
        else:
            words = chance.choices(WORDS, k=chance.randint(1, self.tokens_max // 8))
            self.send(client, "append_input", session_id=self.id, text="".join(words))

    def send(self, client, kind, **fields):
        self.request = (kind, [], fields.get("text"))
        client.start(id=self.name, type=kind, **fields)

    def take(self, event):
        """Records an event; returns whether the request has ended."""
        kind, tokens, text = self.request
        if event["event"] == "token":
            tokens.append(event["token_id"])
            return False
        assert event["event"] in ("session", "ack", "eos"), event
        if kind == "create_session":
            self.id = event["session_id"]
        elif kind == "append_input":
            self.appended(text, event["pending_tokens"])
        elif kind == "rewind_session":
            self.rewound()
        else:
            assert event["reason"] == "length" and event["usage"]["completion_tokens"] == len(tokens), event
            assert event["usage"]["prompt_tokens"] == len(self.chain()) + self.pending, event
            self.finish_turn(tokens)
        self.request = None
        return True

    def appended(self, text, pending):
        self.pending = pending
        self.pending_text = text

    def rewound(self):
        del self.turns[1:]
        del self.said[1:]

    def finish_turn(self, tokens):
        self.turns.append([None] * self.pending + tokens)
        self.said.append((self.pending_text, len(tokens)))
        self.pending = 0

    def check(self, stored):
        """Compares itself with the stored sessions after a crash and adopts them: the request under way may have been committed
        or not."""
        kind, tokens, text = self.request or (None, [], None)
        self.request = None
        if self.id is None:
            return  # its creation was not acknowledged, so it need not exist
        chain, pending, turns = stored[self.id]
        kept = self.chain()
        if kind == "append_input" and pending > self.pending:
            self.appended(text, pending)
        elif kind == "rewind_session" and turns == 1:
            self.rewound()
        elif kind == "generate_stream" and turns == len(self.turns) + 1:
            self.finish_turn(tokens + [None] * (len(chain) - len(kept) - self.pending - len(tokens)))
        kept = self.chain()
        assert (len(kept), self.pending, len(self.turns)) == (len(chain), pending, turns), (self.name, kind, len(kept), self.pending,
                                                                                          len(self.turns), stored[self.id])
        wrong = [place for place, token in enumerate(kept) if token is not None and token != chain[place]]
        assert not wrong, f"{self.name}: the stored tokens differ from the events at {wrong}"
        begin = 0
        for turn in self.turns:  # now the tokens of the inputs are known too
            turn[:] = chain[begin:begin + len(turn)]
            begin += len(turn)


class Kills(unittest.TestCase):
    """Twenty sessions send requests, the daemon is killed, and the catalog is compared with the events; repeatedly."""

    model = uma.TINY
    flags = FLAGS
    config = None
    tokens_max = 150

    def test_kill_9_at_any_moment_loses_nothing_that_was_said(self):
        chance = random.Random(SEED)
        sessions = {name: Known(name, self.tokens_max) for name in (f"session {number}" for number in range(20))}
        with uma.Daemon(self.model, *self.flags, config=self.config) as daemon:
            for kill in range(KILLS):
                try:
                    self.talk_until_killed(daemon, sessions, chance)
                    stored = stored_sessions(daemon.data_dir)
                    for session in sessions.values():
                        session.check(stored)
                    daemon.start().wait_ready()
                    self.compare_with_what_is_shown(daemon, sessions)
                except AssertionError as problem:
                    raise AssertionError(f"UMA_KILL_SEED={SEED} UMA_KILLS={kill + 1}") from problem
            self.go_on(daemon, sessions)
            self.assertEqual(0, daemon.terminate())
            self.assertNotIn("damaged", daemon.log())
            stored = stored_sessions(daemon.data_dir)
            for session in sessions.values():
                session.check(stored)
        self.compare_with_undisturbed(sessions, stored)

    def go_on(self, daemon, sessions):
        pass

    def compare_with_undisturbed(self, sessions, stored):
        pass

    def talk_until_killed(self, daemon, sessions, chance):
        """Every session has a request under way. After a random number of events the daemon is killed, and the events that it
        had already sent are read to the end."""
        events_left = chance.randint(1, 400)
        with daemon.client() as client:
            for session in sessions.values():
                session.next(client, chance)
            with contextlib.suppress(uma.ConnectionClosed):
                while True:
                    event = client.pump()
                    session = sessions[event["id"]]
                    events_left -= 1
                    if events_left == 0:
                        daemon.process.kill()
                    if session.take(event) and events_left > 0:
                        session.next(client, chance)
        daemon.wait()

    def compare_with_what_is_shown(self, daemon, sessions):
        with daemon.client() as client:
            listed = {entry["session_id"]: entry for entry in client.call(type="list_sessions")["sessions"]}
            for session in sessions.values():
                if session.id is None:  # its creation may have been committed; then its client finds it by its name
                    detail = client.session(session.name)
                    session.id = detail.get("session_id")
                    continue
                entry = listed[session.id]
                self.assertEqual((session.name, len(session.chain()), session.pending, len(session.turns), False),
                                 (entry["name"], entry["tokens"], entry["pending_tokens"], entry["turns"], entry["busy"]))
                self.assertEqual("session", client.session(session.name)["event"])


class KillsAndContinuations(Kills):
    """The same with conversations that are long enough for files; most of them are not in a slot when they continue. The bits
    depend on the tokens alone: restored or computed again, each session gets the same text as undisturbed."""
    takes_long = True

    flags = ("--kv-cells", "4096", "--slots", "4")
    config = "kv: {layout: split, warm_bytes_max: 64KiB, write_within: 100ms}\nscheduler: {reproducible: strict}\n"
    tokens_max = 600

    def go_on(self, daemon, sessions):
        """After the last kill each session has one more turn, and another after a clean end, which has saved long sessions to
        files."""
        self.add_turns(daemon, sessions)
        self.assertEqual(0, daemon.terminate())
        daemon.start().wait_ready()
        self.assertIn("cold", self.add_turns(daemon, sessions))

    def add_turns(self, daemon, sessions):
        """Returns the tiers of the sessions."""
        tiers = set()
        with daemon.client() as client:
            for session in sessions.values():
                if session.id is None:
                    continue
                if session.pending == 0:
                    session.appended(" and then", client.append(session.id, " and then")["pending_tokens"])
                reply = client.generate_stream(session.id, max_tokens=4, ignore_eos=True)
                self.assertEqual("length", reply.reason, reply.last)
                session.finish_turn([token["token_id"] for token in reply.tokens])
                tiers.add(reply.usage["tier"])
        return tiers

    def compare_with_undisturbed(self, sessions, stored):
        with uma.Daemon(self.model, *self.flags, config=self.config) as daemon:
            with daemon.client() as client:
                for session in sessions.values():
                    if session.id is None:
                        continue
                    alone = client.create_session(mode="text")
                    for text, count in session.said:
                        reply = client.generate(text, session_id=alone, max_tokens=count, ignore_eos=True)
                        self.assertEqual("length", reply.reason, reply.last)
                    session.id_alone = alone
            self.assertEqual(0, daemon.terminate())
            alone = stored_sessions(daemon.data_dir)
        for session in sessions.values():
            if session.id is None:
                continue
            undisturbed, disturbed = alone[session.id_alone][0], stored[session.id][0]
            differ = [place for place, (one, other) in enumerate(zip(undisturbed, disturbed)) if one != other]
            self.assertFalse(differ[:3], f"{session.name} differs at these places of {len(disturbed)}; UMA_KILL_SEED={SEED}")
            self.assertEqual(len(undisturbed), len(disturbed))


class UnifiedKillsAndContinuations(KillsAndContinuations):
    """The same with states in parts. The bits depend on the company, but the text of this model does not."""

    model = uma.TINY_REGISTER
    config = "kv: {layout: unified, warm_bytes_max: 64KiB, write_within: 100ms}\n"


if __name__ == "__main__":
    unittest.main()
