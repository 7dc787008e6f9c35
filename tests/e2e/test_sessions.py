"""Sessions: delta input, reuse of KV across turns, fork, rewind, names, and the state after a disconnect."""

import unittest

import uma

OPTIONS = {"max_tokens": 12, "ignore_eos": True}


class Sessions(uma.DaemonTest):
    flags = ("--kv-cells", "4096", "--slots", "8")

    def text_session(self, text="one two three", **fields):
        session = self.client.create_session(mode="text", **fields)
        self.assertEqual("ack", self.client.append(session, text)["event"])
        return session

    def chain_of(self, session):
        return self.client.session(session)["text"]

    def test_a_session_from_start_to_end(self):
        session = self.client.create_session(mode="text")
        appended = self.client.append(session, "one two three")
        self.assertEqual("ack", appended["event"])
        self.assertGreater(appended["pending_tokens"], 0)
        self.assertEqual("one two three", self.client.session(session)["pending_text"].lstrip())
        reply = self.client.generate_stream(session, **OPTIONS)
        self.assertEqual(12, reply.usage["completion_tokens"])
        detail = self.client.session(session)
        self.assertEqual((1, 0, False), (detail["turns"], detail["pending_tokens"], detail["busy"]))
        self.assertNotIn("pending_text", detail)
        self.assertEqual("one two three" + reply.text, detail["text"].lstrip())
        self.assertIn(session, [entry["session_id"] for entry in self.client.call(type="list_sessions")["sessions"]])
        self.assertEqual("ack", self.client.call(type="end_session", session_id=session)["event"])
        self.assert_error(self.client.session(session), "E_SESSION_001")
        self.assertNotIn(session, [entry["session_id"] for entry in self.client.call(type="list_sessions")["sessions"]])

    def test_a_list_comes_in_pages(self):
        made = [self.client.create_session(mode="text") for _ in range(3)]
        listed, after = [], {}
        while True:
            page = self.client.call(type="list_sessions", limit=1, **after)
            listed += [entry["session_id"] for entry in page["sessions"]]
            if not page["has_more"]:
                break
            after = {"after": listed[-1]}
        self.assertEqual(sorted(made), sorted(session for session in listed if session in made))
        self.assertEqual(len(set(listed)), len(listed))
        self.assert_error(self.client.call(type="list_sessions", after="nobody"), "E_SESSION_001")
        self.assert_error(self.client.call(type="list_sessions", limit=0), "E_PROTO_003")

    def test_a_second_turn_reuses_what_was_computed(self):
        session = self.text_session("words of no other session " * 15)
        first = self.client.generate_stream(session, **OPTIONS)
        self.assertEqual(0, first.usage["reused_tokens"])
        self.client.append(session, " four")
        second = self.client.generate_stream(session, **OPTIONS)
        usage = second.usage
        self.assertEqual(usage["prompt_tokens"], usage["reused_tokens"] + usage["recomputed_tokens"])
        self.assertGreaterEqual(usage["reused_tokens"], first.usage["prompt_tokens"])
        self.assertLessEqual(usage["recomputed_tokens"], 8)
        self.assertEqual("hot", usage["tier"])
        self.assertGreaterEqual(usage["prompt_tokens"], first.usage["prompt_tokens"] + 12)

    def test_generate_with_a_session_appends_and_generates_as_one(self):
        apart = self.text_session()
        self.client.generate_stream(apart, **OPTIONS)
        self.client.append(apart, " four")
        expected = self.client.generate_stream(apart, **OPTIONS)
        together = self.client.create_session(mode="text")
        self.client.generate("one two three", session_id=together, **OPTIONS)
        reply = self.client.generate(" four", session_id=together, **OPTIONS)
        self.assertEqual(expected.text, reply.text)
        self.assertEqual(expected.usage["prompt_tokens"], reply.usage["prompt_tokens"])
        self.assertEqual(self.chain_of(apart), self.chain_of(together))

    def test_several_appends_are_one_input(self):
        session = self.text_session("one")
        pending = self.client.append(session, " two")["pending_tokens"]
        self.assertGreater(self.client.append(session, " three")["pending_tokens"], pending)
        reply = self.client.generate_stream(session, **OPTIONS)
        self.assertEqual(1, self.client.session(session)["turns"])
        self.assertEqual("one two three" + reply.text, self.chain_of(session).lstrip())

    def test_generating_with_nothing_pending_continues(self):
        whole = self.text_session()
        expected = self.client.generate_stream(whole, max_tokens=24, ignore_eos=True).text
        parts = self.text_session()
        text = "".join(self.client.generate_stream(parts, **OPTIONS).text for _ in range(2))
        self.assertEqual(expected, text)

    def test_an_empty_chain_has_nothing_to_generate_from(self):
        session = self.client.create_session(mode="text")
        self.assert_error(self.client.generate_stream(session), "E_PROTO_003")

    def test_unknown_sessions(self):
        for request in ({"type": "append_input", "text": "a"}, {"type": "generate_stream"}, {"type": "end_session"},
                        {"type": "fork_session"}, {"type": "rewind_session", "turn": 0}, {"type": "touch"}, {"type": "get_session"},
                        {"type": "regenerate"}, {"type": "generate", "prompt": "a"}):
            with self.subTest(type=request["type"]):
                self.assert_error(self.client.call(request, session_id="0" * 32), "E_SESSION_001")

    def test_sessions_survive_a_disconnect_between_turns(self):
        with self.daemon.client() as first:
            session = first.create_session(mode="text")
            first.append(session, "one two three")
            first.generate_stream(session, **OPTIONS)
        reply = self.client.generate(" four", session_id=session, **OPTIONS)
        self.assertGreater(reply.usage["reused_tokens"], 0)

    def test_sessions_survive_a_disconnect_during_a_reply(self):
        with self.daemon.client() as first:
            session = first.create_session(mode="text")
            first.append(session, "one two three")
            running = first.start(type="generate_stream", session_id=session, max_tokens=2000, ignore_eos=True)
            first.wait_token(running, 3)
        uma.until(lambda: not self.client.session(session)["busy"], "the reply of a client that is gone ends")
        detail = self.client.session(session)
        self.assertLess(detail["tokens"], 1500, "the reply was cut short")
        self.assertEqual("eos", self.client.generate(" four", session_id=session, **OPTIONS).last["event"])

    def test_a_busy_session_refuses_and_nothing_changes(self):
        session = self.text_session()
        other = self.another_client()
        running = self.client.start(type="generate_stream", session_id=session, max_tokens=1500, ignore_eos=True)
        self.client.wait_token(running)
        # Fields that the running reply itself changes are left out.
        kept = [name for name in other.session(session) if name not in ("id", "tier", "hot_bytes", "warm_bytes", "cold_bytes", "last_used_s")]
        before = {name: other.session(session)[name] for name in kept}
        self.assert_error(other.append(session, " four"), "E_SESSION_002")
        self.assert_error(other.generate_stream(session), "E_SESSION_002")
        self.assert_error(other.generate(" four", session_id=session), "E_SESSION_002")
        self.assert_error(other.call(type="rewind_session", session_id=session, turn=0), "E_SESSION_002")
        self.assertEqual(before, {name: other.session(session)[name] for name in kept})
        self.assertTrue(before["busy"])
        self.assertTrue(other.call(type="cancel", session_id=session)["cancelled"])
        self.assertEqual("cancelled", self.client.finish(running).reason)
        self.assertEqual("ack", other.append(session, " four")["event"])

    def test_ending_a_session_cancels_its_reply(self):
        session = self.text_session()
        running = self.client.start(type="generate_stream", session_id=session, max_tokens=1500, ignore_eos=True)
        self.client.wait_token(running)
        other = self.another_client()
        self.assertEqual("ack", other.call(type="end_session", session_id=session)["event"])
        self.assertEqual("cancelled", self.client.finish(running).reason)
        self.assert_error(other.session(session), "E_SESSION_001")

    def test_a_fork_goes_its_own_way(self):
        session = self.text_session()
        self.client.generate_stream(session, **OPTIONS)
        fork = self.client.call(type="fork_session", session_id=session, name="a fork")
        self.assertEqual("session", fork["event"])
        self.assertNotEqual(session, fork["session_id"])
        self.assertEqual(self.chain_of(session), self.chain_of("a fork"))
        expected = self.client.generate(" four", session_id=session, **OPTIONS)
        forked = self.client.generate(" four", session_id="a fork", **OPTIONS)
        self.assertEqual(expected.text, forked.text)
        before = self.chain_of(session)
        self.client.generate(" five", session_id="a fork", **OPTIONS)
        self.assertEqual(before, self.chain_of(session))

    def test_rewind_keeps_the_turns_up_to_the_one_named(self):
        session = self.text_session()
        self.client.generate_stream(session, **OPTIONS)
        after_first = self.chain_of(session)
        second = self.client.generate(" four", session_id=session, **OPTIONS)
        self.client.generate(" five", session_id=session, **OPTIONS)
        self.assertEqual("ack", self.client.call(type="rewind_session", session_id=session, turn=0)["event"])
        self.assertEqual(after_first, self.chain_of(session))
        self.assertEqual(1, self.client.session(session)["turns"])
        self.assertEqual(second.text, self.client.generate(" four", session_id=session, **OPTIONS).text)
        self.assert_error(self.client.call(type="rewind_session", session_id=session, turn=7), "E_PROTO_003", "turn")

    def test_regenerate_replaces_the_last_reply(self):
        session = self.text_session()
        first = self.client.generate_stream(session, **OPTIONS)
        again = self.client.finish(self.client.start(type="regenerate", session_id=session, **OPTIONS))
        self.assertEqual(first.text, again.text)
        self.assertEqual(1, self.client.session(session)["turns"])
        other = self.client.finish(self.client.start(type="regenerate", session_id=session, temperature=2, seed=1, **OPTIONS))
        self.assertEqual("one two three" + other.text, self.chain_of(session).lstrip())

    def test_names_are_unique_and_work_like_ids(self):
        session = self.text_session(name="diary")
        self.assertEqual(session, self.client.session("diary")["session_id"])
        self.assert_error(self.client.call(type="create_session", name="diary"), "E_PROTO_003", "diary")
        self.assertEqual("eos", self.client.generate_stream("diary", **OPTIONS).last["event"])
        self.client.call(type="end_session", session_id="diary")
        self.assertTrue(self.client.create_session(name="diary"))
        self.client.call(type="end_session", session_id="diary")

    def test_touch_marks_a_session_as_used(self):
        session = self.text_session()
        self.assertIn(self.client.call(type="touch", session_id=session)["event"], ("ack", "session"))

    def test_a_session_ends_with_its_ttl(self):
        session = self.client.create_session(ttl_s=1)
        kept = self.client.create_session()
        uma.until(lambda: self.client.session(session).get("code") == "E_SESSION_001", "a session without use ends after its TTL")
        self.assertEqual("session", self.client.session(kept)["event"])

    def test_a_cancelled_reply_keeps_its_tokens_so_far(self):
        session = self.text_session()
        running = self.client.start(type="generate_stream", session_id=session, max_tokens=1500, ignore_eos=True)
        self.client.wait_token(running, 5)
        self.client.call(type="cancel", target=running)
        reply = self.client.finish(running)
        self.assertEqual("cancelled", reply.reason)
        self.assertGreaterEqual(reply.usage["completion_tokens"], 5)
        self.assertEqual("one two three" + reply.text, self.chain_of(session).lstrip())
        following = self.client.generate(" four", session_id=session, **OPTIONS)
        self.assertGreater(following.usage["reused_tokens"], reply.usage["prompt_tokens"])


class MoreSessionsThanSlots(uma.DaemonTest):
    """One slot for several conversations. KV is only a cache of the tokens, so the text is the same whatever was evicted."""

    model = uma.TINY_REGISTER
    flags = ("--kv-cells", "1024", "--slots", "1")

    def test_an_evicted_session_continues_the_same(self):
        turns = ("Once upon a time", " Then", " At the end")

        def conversation(disturb):
            session = self.client.create_session(mode="text")
            replies = []
            for turn in turns:
                replies.append(self.client.generate(turn, session_id=session, max_tokens=30, ignore_eos=True))
                if disturb:
                    self.client.generate("Something quite different", max_tokens=20, ignore_eos=True)
            return [reply.text for reply in replies], replies[-1].usage

        expected, hot = conversation(disturb=False)
        actual, evicted = conversation(disturb=True)
        self.assertEqual(expected, actual)
        self.assertEqual(hot["prompt_tokens"], evicted["prompt_tokens"])
        self.assertGreater(hot["reused_tokens"], 0)

    def test_many_conversations_take_turns(self):
        def conversation(name):
            with self.daemon.client() as client:
                session = client.create_session(mode="text", name=name)
                return [client.generate(turn, session_id=session, max_tokens=15, ignore_eos=True, deadline_ms=0).text
                        for turn in ("Once upon a time", " Then", " At the end")]
        alone = conversation("alone")
        together = uma.parallel(*(lambda name=f"n{n}": conversation(name) for n in range(6)))
        self.assertEqual([alone] * 6, together)


if __name__ == "__main__":
    unittest.main()
