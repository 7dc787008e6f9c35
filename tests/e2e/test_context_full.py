"""A full context: sessions that end with an error, and sessions that drop their oldest turns (docs/decisions/0018)."""

import unittest

import uma

CELLS = 256  # per session
LAYOUT = "kv: {layout: split}\n"
FLAGS = ("--kv-cells", str(4 * CELLS), "--slots", "4")
OPTIONS = {"max_tokens": 40, "ignore_eos": True}


def shifts_of(reply):
    return [event for event in reply.events if event["event"] == "context_shift"]


class FullContext:
    flags = FLAGS
    config = LAYOUT
    moves = True  # whether the remaining cells are moved up in the context

    def fill(self, client, session, turns=12):
        """Adds turns until the session has dropped some; returns the reply to the last one."""
        for turn in range(turns):
            reply = client.generate(f" turn {turn}: one two three four five six", session_id=session, **OPTIONS)
            self.assertEqual("length", reply.reason, reply.last)
            self.assertEqual(40, reply.usage["completion_tokens"])
            if shifts_of(reply):
                return reply
        raise AssertionError("the context was never full")

    def test_the_oldest_turns_go_and_the_session_goes_on(self):
        session = self.client.create_session(mode="text", system="Always remember this.", on_full="shift")
        reply = self.fill(self.client, session)
        (shift,) = shifts_of(reply)
        self.assertGreater(shift["dropped_turns"], 0)
        self.assertEqual(shift["dropped_turns"], reply.usage["dropped_turns"])
        self.assertEqual(shift["dropped_tokens"], reply.usage["dropped_tokens"])
        detail = self.client.session(session)
        self.assertEqual(shift["dropped_turns"], detail["dropped_turns"])
        self.assertEqual("shift", detail["on_full"])
        self.assertLessEqual(detail["tokens"], CELLS)
        text = detail["text"].lstrip()
        self.assertTrue(text.startswith("Always remember this."), text)
        self.assertNotIn("turn 0:", text)
        self.assertTrue(text.endswith(reply.text))
        again = self.client.generate(" and more", session_id=session, **OPTIONS)
        if not shifts_of(again):
            expected = "shifted" if self.moves else "hot"
            self.assertEqual(("hot", expected), (again.usage["tier"], again.usage["reuse_reason"]))

        refused = self.client.call(type="rewind_session", session_id=session, turn=0)
        self.assert_error(refused, "E_PROTO_003", "were dropped when the context was full")
        detail = self.client.session(session)
        fork = self.client.call(type="fork_session", session_id=session)["session_id"]
        self.assertEqual(detail["text"], self.client.session(fork)["text"])
        other = self.another_client()
        one, two = uma.parallel(
            lambda: self.client.generate(" five", session_id=session, **OPTIONS),
            lambda: self.fill(other, fork),
        )
        self.assertEqual(40, one.usage["completion_tokens"])
        self.assertEqual(1, len(shifts_of(two)))
        self.assertEqual("ack", self.client.call(type="rewind_session", session_id=session, turn=detail["turns"] - 1)["event"])
        self.assertEqual(detail["text"], self.client.session(session)["text"])
        regenerated = self.client.finish(self.client.start(type="regenerate", session_id=session, **OPTIONS))
        self.assertEqual(40, regenerated.usage["completion_tokens"])

    def test_a_long_reply_drops_turns_while_it_runs(self):
        session = self.client.create_session(mode="text", on_full="shift")
        for turn in range(3):
            self.client.generate(f" turn {turn}: one two three", session_id=session, **OPTIONS)
        reply = self.client.generate(" now tell it all", session_id=session, max_tokens=2000, ignore_eos=True)
        self.assertEqual(3, sum(shift["dropped_turns"] for shift in shifts_of(reply)))
        self.assertEqual("length", reply.reason)
        detail = self.client.session(session)
        self.assertEqual(CELLS, detail["tokens"], "its own turn is never dropped, and ends the reply")
        self.assertTrue(detail["text"].endswith(reply.text))
        self.assertEqual((4, 3), (detail["turns"], detail["dropped_turns"]))
        next_turn = self.client.generate(" go on", session_id=session, **OPTIONS)
        self.assertEqual(40, next_turn.usage["completion_tokens"])
        self.assertEqual(4, self.client.session(session)["dropped_turns"])
        self.assertGreater(self.client.metrics()["context_shifts_total"], 0)


class Moved(FullContext, uma.DaemonTest):
    pass


class MovedInOnePool(FullContext, uma.DaemonTest):
    flags = ("--kv-cells", str(CELLS), "--slots", "4")
    config = "kv: {layout: unified}\n"


class ComputedAgain(FullContext, uma.DaemonTest):
    model = uma.BUILD / "models" / "tiny-hybrid.gguf"
    moves = False


class ComputedAgainUnderYarn(FullContext, uma.DaemonTest):
    """The library cannot move keys that YaRN has stretched."""
    config = LAYOUT + "rope: {scaling: yarn, scale: 4}\n"
    moves = False


class MovedUnderLinearScaling(FullContext, uma.DaemonTest):
    config = LAYOUT + "rope: {scaling: linear, scale: 4}\n"


class WhereBitsCount(FullContext, uma.DaemonTest):
    config = LAYOUT + "scheduler: {reproducible: \"on\"}\n"
    moves = False


class Chats(uma.DaemonTest):
    model = uma.TINY_CHAT
    flags = FLAGS
    config = LAYOUT

    def test_messages_are_what_the_model_sees(self):
        session = self.client.create_session(mode="chat", system="Be brief.", on_full="shift")
        for turn in range(12):
            self.client.generate(f"question {turn}", session_id=session, **OPTIONS)
        detail = self.client.session(session)
        self.assertGreater(detail["dropped_turns"], 0)
        messages = detail["messages"]
        self.assertEqual({"role": "system", "content": "Be brief."}, messages[0])
        self.assertEqual(f"question {detail['dropped_turns']}", messages[1]["content"])
        self.assertEqual(1 + 2 * (12 - detail["dropped_turns"]), len(messages))

    def test_without_it_a_full_context_is_an_error(self):
        session = self.client.create_session(mode="chat")
        for _ in range(30):
            answer = self.client.generate("one two three four five six seven", session_id=session, **OPTIONS).last
            if answer["event"] == "error":
                break
        self.assert_error(answer, "E_LIMIT_004")
        self.assertEqual(0, self.client.session(session)["dropped_turns"])

    def test_what_is_refused(self):
        self.assert_error(self.client.call(type="create_session", on_full="shift", n_keep=CELLS), "E_PROTO_003", "n_keep", CELLS)
        self.assert_error(self.client.call(type="create_session", n_keep=1), "E_PROTO_003", "n_keep")
        session = self.client.create_session(mode="text", on_full="shift", n_keep=100)
        self.assertEqual(100, self.client.session(session)["n_keep"])
        self.client.generate("one two three four five " * 8, session_id=session, max_tokens=60, ignore_eos=True)
        long = "six seven eight nine ten " * 60
        self.assert_error(self.client.append(session, long), "E_LIMIT_001")


class Killed(unittest.TestCase):
    def test_what_was_dropped_is_gone_with_the_turn_that_dropped_it(self):
        daemon = uma.Daemon(uma.TINY, *FLAGS, config=LAYOUT)
        self.addCleanup(daemon.kill)
        daemon.start().wait_ready()
        with daemon.client() as client:
            session = client.create_session(mode="text", on_full="shift")
            for turn in range(3):
                client.generate(f" turn {turn}: one two three", session_id=session, **OPTIONS)
            before = client.session(session)
            running = client.start(type="generate", session_id=session, prompt=" go on", max_tokens=2000, ignore_eos=True)
            while not shifts_of(client.replies[running]):
                client.pump()
            daemon.process.kill()
            daemon.wait()
        daemon.start().wait_ready()
        with daemon.client() as client:
            detail = client.session(session)
            if detail["turns"] == before["turns"]:  # else the turn was committed before the kill
                self.assertEqual((before["text"], 0), (detail["text"], detail["dropped_turns"]))
                self.assertGreater(detail["pending_tokens"], 0)
            reply = client.generate_stream(session, max_tokens=150, ignore_eos=True)
            self.assertEqual("eos", reply.last["event"], reply.last)
            after = client.session(session)
            self.assertGreater(after["dropped_turns"], 0)
            daemon.process.kill()
            daemon.wait()
        daemon.start().wait_ready()
        with daemon.client() as client:
            kept = client.session(session)
            self.assertEqual((after["text"], after["turns"], after["dropped_turns"]),
                             (kept["text"], kept["turns"], kept["dropped_turns"]))


if __name__ == "__main__":
    unittest.main()
