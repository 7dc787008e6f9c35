"""Forged session files: whatever is in them, the daemon keeps running, and others get the same replies as without them."""

import random
import struct
import unittest

import forged_files
import shift_register
import test_http
import uma
from test_portable import export, import_file

NOT_A_NUMBER = 0x7e00
LARGEST = 0x7bff  # finite, but its sums are not


class Forged(test_http.HttpTest):
    model = uma.TINY_REGISTER
    layout = "split"

    @classmethod
    def setUpClass(cls):
        cls.config = f"kv: {{layout: {cls.layout}}}\n"
        super().setUpClass()
        cls.register = shift_register.Register()

    def exported(self, mode="text", **fields):
        """The file of a session with two turns and pending input. No other session has its tokens, and it is ended."""
        session = self.client.create_session(mode=mode, on_full="shift")
        rng = random.Random(self.id())
        for _ in range(2):
            text = self.register.text_of(rng.choices(self.register.words, k=70)).strip()
            said = {"messages": [{"role": "user", "content": text}]} if mode == "chat" else {"prompt": text}
            self.client.generate(session_id=session, max_tokens=12, **said)
        if mode == "text":
            self.client.append(session, "and then")
        file = export(self.client, session, **fields)
        self.client.call(type="end_session", session_id=session)
        return file

    def expect_nobody_notices(self):
        """More requests than there are slots, each with a unique prompt, get the right text."""
        words = self.register.words
        for number in range(10):
            prompt = [words[(7 * number + i) % len(words)] for i in range(120)]
            reply = self.client.generate(self.register.text_of(prompt).strip(), max_tokens=20)
            wanted = self.register.continued([shift_register.BEGIN, *prompt], 20)
            self.assertEqual(wanted, [event["token_id"] for event in reply.tokens], number)

    def test_offsets_that_overflow(self):
        largest = 2**31 - 1
        for mode in ("text", "chat"):
            file = self.exported(mode)
            for turns, dropped in (((largest, -2_000_000_000), 1), ((largest, 0), 1), ((0, largest), 0), ((-1, -1), 1), ((0, 2), largest)):
                forged = forged_files.Conversation(file)
                forged.set(forged.ON_FULL_AT, 1)
                forged.set(forged.N_KEEP_AT, 0)
                forged.set(forged.DROPPED_AT, dropped)
                for turn, begin in enumerate(turns):
                    forged.set_turn(turn, 2, begin)
                with self.subTest(mode=mode, turns=turns, dropped=dropped):
                    self.assertEqual("E_PROTO_003", import_file(self.client, bytes(forged))["code"])
                    status, answer = self.request("POST", "/v1/sessions/import?name=x", bytes(forged))
                    self.assertEqual((400, "E_PROTO_003"), (status, answer["error"]["code"]))

    def test_kv_in_pieces(self):
        conversation, state = forged_files.parts(self.exported(kv=True))
        chain = struct.unpack_from(f"<{len(state.tokens) + 1}i", conversation.data, conversation.chain_at)
        self.assertEqual(list(chain[:-1]), state.tokens)
        state.tokens.append(chain[-1])
        state.pieces.append((len(state.tokens), bytearray(64)))
        answer = import_file(self.client, bytes(conversation) + bytes(state), name=f"pieces {self.layout}")
        self.assertEqual("refused", answer["kv"], answer)
        self.goes_on(answer["session_id"])

    def fork(self, session):
        return self.client.call(type="fork_session", session_id=session)["session_id"]

    def goes_on(self, session):
        """Continues the session. The reply must follow from the tokens, not from the numbers that were imported with them."""
        reply = self.client.generate_stream(session, max_tokens=8)
        self.assertEqual("eos", reply.last["event"], reply.last)
        return reply

    def test_kv_that_is_not_finite(self):
        conversation, state = forged_files.parts(self.exported(kv=True))
        data, begin, _ = list(state.tensors())[-1]
        data[begin:begin + 2] = struct.pack("<H", NOT_A_NUMBER)
        answer = import_file(self.client, bytes(conversation) + bytes(state), name=f"nan {self.layout}")
        self.assertEqual("refused", answer["kv"], answer)
        self.goes_on(answer["session_id"])
        self.expect_nobody_notices()

    def test_kv_whose_sums_are_not_finite(self):
        file = self.exported(kv=True)
        conversation, state = forged_files.parts(file)
        state.fill(LARGEST)
        answer = import_file(self.client, bytes(conversation) + bytes(state), name=f"large {self.layout}")
        self.assertEqual("kept", answer["kv"], answer)
        before = self.client.metrics()["not_finite_total"]
        reply = self.goes_on(answer["session_id"])
        self.assertGreater(self.client.metrics()["not_finite_total"], before)
        self.assertEqual(("refused", 0), (reply.usage["reuse_reason"], reply.usage["reused_tokens"]))
        plain = import_file(self.client, bytes(conversation), name=f"plain {self.layout}")
        self.assertEqual(self.goes_on(plain["session_id"]).text, reply.text, "the reply of its tokens")
        self.expect_nobody_notices()

    def test_kv_whose_head_is_wrong(self):
        file = self.exported(kv=True)
        for word in range(4):
            for value in (0, 1, 7, 2**16, 2**32 - 1):
                conversation, state = forged_files.parts(file)
                for data, at in list(state.heads()):
                    struct.pack_into("<I", data, at + 4 * word, value)
                with self.subTest(word=word, value=value):
                    answer = import_file(self.client, bytes(conversation) + bytes(state), name=f"head {self.layout} {word} {value}")
                    self.goes_on(answer["session_id"])
                    self.client.call(type="end_session", session_id=answer["session_id"])
        self.expect_nobody_notices()

    def test_kv_that_is_forged_is_nobody_elses(self):
        file = self.exported(kv=True)
        _, state = forged_files.parts(file)
        first, second = (import_file(self.client, file, name=f"{name} {self.layout}") for name in ("first", "second"))
        self.assertEqual(("kept", "kept"), (first["kv"], second["kv"]))
        # Each session uses its own KV, and a fork its parent's; a prompt with the same beginning that is computed here uses
        # none of it.
        for session, reason in ((first, "warm"), (second, "warm")):
            usage = self.goes_on(session["session_id"]).usage
            self.assertEqual((reason, len(state.tokens)), (usage["reuse_reason"], usage["reused_tokens"]))
        self.assertGreater(self.goes_on(self.fork(second["session_id"])).usage["reused_tokens"], 0)

    def test_over_http_kv_is_left_out(self):
        file = self.exported(kv=True)
        status, answer = self.request("POST", f"/v1/sessions/import?name=http-{self.layout}", file)
        self.assertEqual((200, "refused"), (status, answer["kv"]))
        self.assertEqual(0, self.goes_on(answer["session_id"]).usage["reused_tokens"])


class ForgedUnified(Forged):
    layout = "unified"


if __name__ == "__main__":
    unittest.main()
