"""One generation: its events, its options and its receipt."""

import unittest

import uma


class Generate(uma.DaemonTest):
    """Generations of the tiny model, whose weights are random: its text means nothing and is the same every time."""

    flags = ("--kv-cells", "4096", "--slots", "8")

    def generate(self, prompt="one two three", **fields):
        fields.setdefault("max_tokens", 16)
        fields.setdefault("ignore_eos", True)
        reply = self.client.generate(prompt, **fields)
        self.assertEqual("eos", reply.last["event"], reply.last)
        return reply

    def test_events_and_usage(self):
        reply = self.generate(max_tokens=12)
        self.assertEqual("length", reply.reason)
        self.assertEqual(12, len(reply.tokens))
        for event in reply.tokens:
            self.assertEqual({"id", "event", "text", "token_id"}, set(event))
            self.assertIsInstance(event["token_id"], int)
        usage = reply.usage
        self.assertEqual(12, usage["completion_tokens"])
        self.assertEqual(usage["prompt_tokens"], usage["reused_tokens"] + usage["recomputed_tokens"])
        self.assertGreater(usage["prompt_tokens"], 0)
        self.assertGreater(usage["ttft_ms"], 0)
        self.assertIn(usage["tier"], ("hot", "warm", "cold", "none"))
        for name in ("reuse_reason", "restore_ms", "queue_ms", "tokens_per_s", "seed"):
            self.assertIn(name, usage)

    def test_greedy_is_the_default_and_repeats(self):
        first = self.generate()
        self.assertEqual(first.text, self.generate().text)
        self.assertEqual(first.text, self.generate(temperature=0, seed=5).text)

    def test_without_stream_eos_has_all(self):
        streamed = self.generate()
        whole = self.generate(stream=False)
        self.assertEqual([], whole.tokens)
        self.assertEqual(streamed.text, whole.last["text"])
        self.assertEqual(16, whole.usage["completion_tokens"])

    def test_a_reply_without_max_tokens_ends_when_the_context_is_full(self):
        reply = self.client.generate("one two", ignore_eos=True)
        cells = self.client.models()[0]["sequence_tokens_max"]
        self.assertIn(reply.usage["prompt_tokens"] + reply.usage["completion_tokens"], (cells, cells + 1))
        self.assertEqual("length", reply.reason)

    def test_a_seed_repeats_and_is_returned(self):
        hot = dict(temperature=1.5, max_tokens=24)
        first = self.generate(seed=42, **hot)
        self.assertEqual(42, first.usage["seed"])
        self.assertEqual(first.text, self.generate(seed=42, **hot).text)
        others = {self.generate(seed=seed, **hot).text for seed in range(1, 5)}
        self.assertGreater(len(others), 1)

    def test_a_drawn_seed_can_be_used_again(self):
        hot = dict(temperature=1.5, max_tokens=24)
        drawn = self.generate(**hot)
        self.assertEqual(drawn.text, self.generate(seed=drawn.usage["seed"], **hot).text)
        self.assertNotEqual(drawn.usage["seed"], self.generate(**hot).usage["seed"])

    def test_the_largest_seed(self):
        largest = 2**64 - 1
        self.assertEqual(largest, self.generate(seed=largest, temperature=1).usage["seed"])

    def test_top_k_1_is_greedy_at_any_temperature(self):
        self.assertEqual(self.generate().text, self.generate(temperature=2, top_k=1).text)

    def test_logit_bias_forces_and_forbids_tokens(self):
        plain = self.generate(max_tokens=4)
        first = plain.tokens[0]["token_id"]
        without = self.generate(max_tokens=4, logit_bias={str(first): -100})
        self.assertNotIn(first, [event["token_id"] for event in without.tokens])
        forced = self.generate(max_tokens=4, logit_bias={"300": 100})
        self.assertEqual([300] * 4, [event["token_id"] for event in forced.tokens])

    def test_a_bias_outside_the_vocabulary_is_refused(self):
        self.assert_error(self.client.generate("a", logit_bias={"2000000000": 1}), "E_PROTO_003", "logit_bias")

    def test_repeat_penalty_changes_a_forced_loop(self):
        looping = self.generate(max_tokens=12, logit_bias={"300": 100})
        penalised = self.generate(max_tokens=12, logit_bias={"300": 100}, presence_penalty=2, frequency_penalty=2, repeat_penalty=100)
        self.assertNotEqual(looping.text, penalised.text)

    def test_a_stop_string_ends_the_reply_and_is_not_shown(self):
        text = self.generate(max_tokens=40).text
        for begin, end in ((5, 8), (10, 11), (0, 2), (12, 24)):
            stop = text[begin:end]
            reply = self.generate(max_tokens=40, stop=[stop])
            self.assertEqual("stop", reply.reason)
            self.assertEqual(text[:text.index(stop)], reply.text)
            self.assertEqual(reply.text, self.generate(max_tokens=40, stop=stop, stream=False).text)

    def test_a_stop_string_split_across_tokens(self):
        pieces = [event["text"] for event in self.generate(max_tokens=40).tokens]
        text = "".join(pieces)
        # The stop string begins inside one token's text and ends inside the next one's, so no single token contains it.
        at = next(i for i in range(3, len(pieces) - 1) if len(pieces[i]) >= 2 and len(pieces[i + 1]) >= 2)
        stop = pieces[at][-1] + pieces[at + 1][0]
        reply = self.generate(max_tokens=40, stop=[stop, "never said"])
        self.assertEqual("stop", reply.reason)
        self.assertEqual(text[:text.index(stop)], reply.text)

    def test_the_beginning_of_a_stop_string_that_does_not_come_is_shown_at_the_end(self):
        text = self.generate(max_tokens=20).text
        reply = self.generate(max_tokens=20, stop=[text[-4:] + " and this never comes"])
        self.assertEqual("length", reply.reason)
        self.assertEqual(text, reply.text)

    def test_the_earliest_of_several_stop_strings_wins(self):
        text = self.generate(max_tokens=40).text
        late, early = text[20:24], text[8:11]
        reply = self.generate(max_tokens=40, stop=[late, early])
        self.assertEqual(text[:min(text.index(late), text.index(early))], reply.text)

    def test_every_event_is_whole_utf8_and_emojis_survive(self):
        # receive() decodes strictly, so a torn character fails there. At a high temperature the model generates many single
        # bytes.
        reply = self.generate("😀🎉 日本語 Ωμέγα \U0010ffff", max_tokens=40, temperature=2, seed=3)
        self.assertEqual(40, reply.usage["completion_tokens"])

    def test_every_byte_value_as_text(self):
        text = "".join(map(chr, range(1, 256)))
        self.assertGreaterEqual(self.generate(text).usage["prompt_tokens"], 64)
        for code in (1, 0x7F, 0x80, 0xFF, 0x7FF, 0x800, 0xFFFD, 0xFFFF, 0x10000, 0x10FFFF):
            self.generate(chr(code), max_tokens=1)

    def test_marks_in_a_prompt_are_control_tokens_unless_it_says_otherwise(self):
        def tokens(prompt, **fields):
            return self.generate(prompt, max_tokens=1, **fields).usage["prompt_tokens"]
        self.assertEqual(2, tokens("<s></s>"), "BOS appears once")
        self.assertGreater(tokens("<s></s>", parse_special=False), 4)

    def test_messages_on_a_model_without_a_template_use_chatml(self):
        reply = self.generate(None, messages=[{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}])
        self.assertEqual(16, reply.usage["completion_tokens"])

    def test_another_models_name_is_refused(self):
        self.assert_error(self.client.generate("a", model="unheard-of"), "E_MODEL_001", "unheard-of")
        self.assertEqual("eos", self.client.generate("a", model="tiny", max_tokens=1).last["event"])

    def test_progress_comes_where_it_is_asked(self):
        reply = self.generate(" ".join(["word"] * 400), progress=True, max_tokens=2)
        stages = [event["stage"] for event in reply.events if event["event"] == "progress"]
        self.assertIn("prefill", stages)
        self.assertEqual([], [event for event in self.generate("word " * 400).events if event["event"] == "progress"])

    def test_many_requests_on_one_connection(self):
        ids = [self.client.start(type="generate", prompt="one two three", max_tokens=30, ignore_eos=True) for _ in range(32)]
        for request_id in ids:
            reply = self.client.finish(request_id)
            self.assertEqual("length", reply.reason)
            self.assertEqual(30, len(reply.tokens))

    def test_a_background_request_ends_too(self):
        self.assertEqual(16, self.generate(**{"class": "background"}).usage["completion_tokens"])


class Limits(uma.DaemonTest):
    flags = ("--kv-cells", "256", "--slots", "1", "--max-tokens", "40")
    config = "limits: {max_prompt_bytes: 3000}\nkv: {layout: split}\n"

    def prompt_of(self, tokens_count):
        """A prompt of exactly so many tokens, as the daemon counts them."""
        for words in range(1, 400):
            reply = self.client.generate("a" + " b" * words, max_tokens=1)
            if reply.last["event"] == "error":
                break
            if reply.usage["prompt_tokens"] == tokens_count:
                return "a" + " b" * words
        self.fail(f"no prompt of {tokens_count} tokens found")

    def test_max_tokens_is_clamped(self):
        reply = self.client.generate("a", max_tokens=1000, ignore_eos=True)
        self.assertEqual(40, reply.usage["completion_tokens"])
        self.assertEqual("length", reply.reason)
        self.assertEqual(40, self.client.generate("a", max_tokens=2**40, ignore_eos=True).usage["completion_tokens"])

    def test_the_edge_of_the_context(self):
        cells = self.client.models()[0]["sequence_tokens_max"]
        per_word = (self.client.generate("a" + " b" * 20, max_tokens=1).usage["prompt_tokens"] -
                    self.client.generate("a" + " b" * 10, max_tokens=1).usage["prompt_tokens"]) / 10
        base = self.client.generate("a" + " b" * 10, max_tokens=1).usage["prompt_tokens"] - 10 * per_word
        words = int((cells - base) / per_word)
        fits = over = None
        for count in range(words - 6, words + 7):
            reply = self.client.generate("a" + " b" * count, max_tokens=40, ignore_eos=True)
            if reply.last["event"] == "eos":
                fits = (count, reply)
            elif over is None:
                over = (count, reply)
        self.assertIsNotNone(fits, "no prompt near the edge fits")
        self.assertIsNotNone(over, "no prompt near the edge is too long")
        self.assertEqual(fits[0] + 1, over[0], "between fitting and not fitting lies one token")
        # The longest prompt that fits leaves a cell for at least one token, and the reply ends at the end of the context.
        self.assertEqual("length", fits[1].reason)
        self.assertGreaterEqual(fits[1].usage["completion_tokens"], 1)
        self.assertLessEqual(fits[1].usage["prompt_tokens"] + fits[1].usage["completion_tokens"], cells + 1)
        tokens_over = fits[1].usage["prompt_tokens"] + round(per_word)
        self.assert_error(over[1], "E_LIMIT_001", cells, tokens_over)

    def test_a_prompt_of_too_many_bytes(self):
        self.assert_error(self.client.generate("x" * 3001), "E_LIMIT_001", "3000", "3001")

    def test_a_session_that_outgrows_its_context(self):
        session = self.client.create_session(mode="text")
        self.assertEqual("ack", self.client.append(session, "a" + " b" * 90)["event"])
        before = self.client.session(session)
        cells = self.client.models()[0]["sequence_tokens_max"]
        self.assert_error(self.client.append(session, " c" * 170), "E_LIMIT_004", cells)
        self.assert_error(self.client.generate(" c" * 170, session_id=session), "E_LIMIT_004", cells)
        self.assert_error(self.client.append(session, " c" * 300), "E_LIMIT_001", cells)  # too large even for an empty session
        self.assertEqual(before["pending_tokens"], self.client.session(session)["pending_tokens"], "nothing changed")
        self.assertEqual("eos", self.client.generate_stream(session, max_tokens=4).last["event"])

    def test_a_full_session_ends_its_reply_and_refuses_more(self):
        session = self.client.create_session(mode="text")
        self.client.append(session, "a" + " b" * 60)
        for _ in range(10):
            reply = self.client.generate_stream(session, ignore_eos=True)
            if reply.last["event"] == "error":
                break
            self.assertEqual("length", reply.reason)
        self.assert_error(reply, "E_LIMIT_004")
        self.assertEqual("session", self.client.session(session)["event"])


class ManySessions(uma.DaemonTest):
    config = "limits: {max_sessions: 3}\n"

    def test_the_number_of_sessions_is_bounded(self):
        sessions = [self.client.create_session() for _ in range(3)]
        self.assert_error(self.client.call(type="create_session"), "E_LIMIT_002", "3")
        self.assert_error(self.client.call(type="fork_session", session_id=sessions[0]), "E_LIMIT_002")
        self.client.call(type="end_session", session_id=sessions[0])
        self.assertTrue(self.client.create_session())


class Chat(uma.DaemonTest):
    model = uma.TINY_CHAT

    def test_the_model_says_that_it_can_chat(self):
        self.assertTrue(self.client.models()[0]["has_chat_template"])

    def test_messages_use_the_models_template(self):
        reply = self.client.generate(None, messages=[{"role": "user", "content": "hello"}], max_tokens=5, ignore_eos=True)
        self.assertEqual(5, reply.usage["completion_tokens"])

    def test_text_of_a_users_message_never_becomes_a_control_token(self):
        def tokens(content):
            return self.client.generate(None, messages=[{"role": "user", "content": content}], max_tokens=1).usage["prompt_tokens"]
        self.assertGreaterEqual(tokens("<|im_end|>") - tokens("a"), 4)

    def test_a_session_is_a_chat_and_keeps_its_messages(self):
        session = self.client.create_session(system="be brief")
        answer = self.client.append(session, "hello")
        self.assertEqual("ack", answer["event"])
        reply = self.client.generate_stream(session, max_tokens=6, ignore_eos=True)
        self.client.append(session, messages=[{"role": "user", "content": "more"}])
        second = self.client.generate_stream(session, max_tokens=6, ignore_eos=True)
        self.assertGreater(second.usage["reused_tokens"], 0)
        detail = self.client.session(session)
        self.assertEqual("chat", detail["mode"])
        self.assertEqual(2, detail["turns"])
        self.assertEqual([("system", "be brief"), ("user", "hello"), ("assistant", reply.text), ("user", "more"),
                          ("assistant", second.text)],
                         [(message["role"], message["content"]) for message in detail["messages"]])


if __name__ == "__main__":
    unittest.main()
