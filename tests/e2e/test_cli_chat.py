"""The chat of uma-cli: at a terminal, from a pipe, and when its daemon dies."""

import os
import pathlib
import signal
import termios
import unittest

import uma
from cli import LONG, CliTest, Terminal


class Chat(CliTest):
    model = uma.TINY_CHAT
    flags = ("--kv-cells", "16384", "--slots", "4", "--max-tokens", "4000")
    LONG = ("--max-tokens", "4000")

    def said(self, session):
        return [message["content"] for message in self.client.session(session)["messages"] if message["role"] == "user"]

    def wait_said(self, session, *texts):
        """Waits until these are the user's messages. The prompt is no proof: it is drawn again while a line is edited."""
        uma.until(lambda: len(self.said(session)) == len(texts) and not self.sessions()[session]["busy"], f"{len(texts)} messages")
        self.assertEqual(list(texts), self.said(session))

    def test_a_conversation(self):
        with self.terminal("chat", "--max-tokens", "12", "--usage") as chat:
            self.assertIn("/help lists the commands", chat.prompt())
            (session,) = self.sessions()
            chat.type("Hello there\r")
            self.assertRegex(chat.prompt(), r"\d+ prompt tokens.*new")
            chat.type("And again\r")
            self.assertIn("reused from hot", chat.prompt())
            self.assertEqual(2, self.sessions()[session]["turns"])
            self.assertEqual(["Hello there", "And again"], self.said(session))
            chat.type("/exit\r")
            self.assertEqual(0, chat.wait())
        self.assertEqual({}, self.sessions(), "a session without a name ends with its chat")

    def test_tab_completes_and_another_model_goes_on(self):
        with self.terminal("chat", "--max-tokens", "4") as chat:
            chat.prompt()
            chat.type("/reg\t")
            chat.expect("enerate")
            chat.type("\x15/model \t")
            chat.expect("/model uma-tiny\r\n")
            chat.type(f"{self.model.stem}\r")
            chat.expect("new session")
            chat.prompt()
            chat.type("/copy\r")
            self.assertIn("no answer yet", chat.prompt())
            chat.type("Hello\r")
            chat.prompt()
            chat.type("/copy\r")
            chat.expect(r"\x1b\]52;c;[A-Za-z0-9+/=]+\x07")
            chat.prompt()
            chat.type("/exit\r")
            self.assertEqual(0, chat.wait())

    def test_ctrl_c_stops_the_turn_and_the_conversation_goes_on(self):
        with self.terminal("chat", *self.LONG) as chat:
            chat.prompt()
            (session,) = self.sessions()
            chat.type("Tell me everything\r")
            chat.expect(r"Tell me everything\r\n")
            chat.expect(r"[^\r\n]{4}")
            chat.type("\x03")
            chat.prompt()
            self.wait_idle()
            self.assertEqual((1, False), (self.sessions()[session]["turns"], self.sessions()[session]["busy"]))
            chat.type("/usage\r")
            chat.prompt()
            chat.type("Go on\r")
            chat.expect(r"Go on\r\n")
            chat.expect(r"[^\r\n]{4}")
            chat.type("\x03")
            self.assertRegex(chat.prompt(), "reused from hot")
            self.assertEqual(2, self.sessions()[session]["turns"])
            chat.type("/exit\r")
            self.assertEqual(0, chat.wait())

    def test_ctrl_c_at_the_prompt(self):
        with self.terminal("chat", "--max-tokens", "4") as chat:
            chat.prompt()
            chat.type("half a line")
            chat.expect("half a line")
            chat.type("\x03")
            chat.prompt()
            chat.type("\x03")
            chat.expect("Ctrl-C again")
            chat.prompt()
            chat.type("whole\r")
            chat.prompt()
            (session,) = self.sessions()
            messages = self.client.session(session)["messages"]
            self.assertEqual("whole", messages[0]["content"], "the cleared line is not part of the next one")
            chat.type("\x03")
            chat.prompt()
            chat.type("\x03")
            self.assertEqual(0, chat.wait())
        self.assertEqual({}, self.sessions())

    def test_ctrl_d_leaves_and_the_terminal_is_as_before(self):
        with self.terminal("chat") as chat:
            chat.prompt()
            chat.type("\x04")
            self.assertEqual(0, chat.wait())
            self.assertEqual(chat.before, termios.tcgetattr(chat.master))

    def test_a_terminal_that_closes_ends_the_session(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            with self.subTest(signal=number.name), self.terminal("chat") as chat:
                chat.prompt()
                self.assertEqual(1, len(self.sessions()))
                chat.process.send_signal(number)
                self.assertEqual(130, chat.wait())
                self.assertEqual({}, self.sessions())

    def test_commands(self):
        with self.terminal("chat", "--max-tokens", "6", "--session", "novel") as chat:
            self.assertIn("new session novel", chat.prompt())
            for number in range(3):
                chat.type(f"part {number}\r")
                chat.prompt()
            for line, shown in (("/help", r"/regenerate\s+generate another answer"), ("/nope", "there is no command /nope: /help lists them"),
                                ("/rewind 1", "2 turns left"), ("/regenerate", r"\w"), ("/fork", "forked into [0-9a-f]{32}: 2 turns"),
                                ("/fork sequel", "forked into sequel"), ("/sessions", "(?s)novel.*sequel|sequel.*novel"),
                                ("/switch novel", "switched to novel: 2 turns"), ("/switch nobody", r"\(E_SESSION_001\)"),
                                ("/system Be brief.", "new session"), ("/new", "new session"), ("/new diary", "new session diary")):
                with self.subTest(line=line):
                    chat.type(line + "\r")
                    self.assertRegex(chat.prompt(), shown)
            chat.type("/quit\r")
            self.assertEqual(0, chat.wait())
        self.assertEqual(["diary", "novel", "sequel"], sorted(entry["name"] for entry in self.sessions().values()))
        for name in ("diary", "novel", "sequel"):
            self.output_of("sessions", "end", name)

    def test_a_named_session_is_resumed(self):
        with self.terminal("chat", "--max-tokens", "6", "--session", "novel") as chat:
            chat.prompt()
            chat.type("one\r")
            chat.prompt()
            chat.type("\x04")
            self.assertEqual(0, chat.wait())
        with self.terminal("chat", "--max-tokens", "6", "--session", "novel", "--usage") as chat:
            self.assertIn("resumed novel: 1 turn", chat.prompt())
            chat.type("two\r")
            self.assertIn("reused from hot", chat.prompt())
            chat.type("\x04")
            self.assertEqual(0, chat.wait())
        self.output_of("sessions", "end", "novel")

    def test_lines_are_joined_edited_and_remembered(self):
        with self.terminal("chat", "--max-tokens", "2") as chat:
            chat.prompt()
            (session,) = self.sessions()
            chat.type("first\\\r")
            chat.expect(r"\. ")
            chat.type("secnd\x1b[D\x1b[Do\r")  # two steps left, then the missing letter
            self.wait_said(session, "first\nsecond")
            chat.prompt()
            chat.type("caf\u00e9 \U0001F600\r")
            self.wait_said(session, "first\nsecond", "caf\u00e9 \U0001F600")
            chat.prompt()
            chat.type("\x1b[A\x1b[A\r")  # the line before the last one
            self.wait_said(session, "first\nsecond", "caf\u00e9 \U0001F600", "second")
            chat.prompt()
            chat.type("\x04")
            self.assertEqual(0, chat.wait())
        history = pathlib.Path(self.state) / "uma" / "history"
        self.assertEqual("first\\\nsecond\ncaf\u00e9 \U0001F600\nsecond\n", history.read_text())
        self.assertEqual(0o600, history.stat().st_mode & 0o777)
        with self.terminal("chat", "--max-tokens", "2") as chat:
            chat.prompt()
            (session,) = self.sessions()
            chat.type("\x1b[A\x1b[A\r")
            self.wait_said(session, "caf\u00e9 \U0001F600")
            chat.prompt()
            chat.type("\x04")
            self.assertEqual(0, chat.wait())

    def test_lines_from_a_pipe(self):
        first = self.client.create_session()
        expected = [self.client.generate(text, session_id=first, max_tokens=6).text.encode() for text in ("one", "two\nthree")]
        self.client.call(type="end_session", session_id=first)
        self.assertEqual(b"".join(text + b"\n" for text in expected),
                         self.output_of("chat", "--max-tokens", 6, given=b"one\n\ntwo\\\nthree"))
        self.assertEqual({}, self.sessions())

    def test_a_refused_line_of_a_pipe_ends_the_chat(self):
        result = self.run_cli("chat", "--max-tokens", 4, given=b"/switch nobody\none\n")
        self.assertEqual((2, b""), (result.returncode, result.stdout))
        self.assertIn(b"(E_SESSION_001)", result.stderr)
        self.assertEqual({}, self.sessions())

    def test_a_one_shot_prompt_is_a_user_message_unless_raw(self):
        message = [{"role": "user", "content": "Hello"}]
        chat = self.client.generate(messages=message, max_tokens=8).text.encode()
        text = self.client.generate("Hello", max_tokens=8).text.encode()
        self.assertNotEqual(chat, text)
        self.assertEqual(chat + b"\n", self.output_of("--prompt", "Hello", "--max-tokens", 8))
        self.assertEqual(text + b"\n", self.output_of("--prompt", "Hello", "--max-tokens", 8, "--raw"))

    def test_what_is_shown_cannot_drive_the_terminal(self):
        self.client.create_session(name="\x1b]0;owned\x07\u009b2J")
        with self.terminal("sessions") as shown:
            self.assertEqual(0, shown.wait())
            self.assertIn("^[]0;owned^G<9B>2J", shown.text())
        self.output_of("sessions", "end", "\x1b]0;owned\x07\u009b2J")


class Faults(unittest.TestCase):
    def test_a_daemon_that_dies_during_a_turn(self):
        with uma.Daemon(uma.TINY_CHAT, "--max-tokens", "4000", "--kv-cells", "8192") as daemon:
            with Terminal("chat", "--max-tokens", "4000", UMA_SOCKET=daemon.socket_path) as chat:
                chat.prompt()
                chat.type("Tell me everything\r")
                chat.expect(r"everything\r\n[^\r\n]")
                daemon.process.kill()
                self.assertEqual(2, chat.wait())
                self.assertIn("closed the connection before its answer was complete", chat.text())
            daemon.wait()

    def test_a_daemon_that_is_gone_at_the_next_turn(self):
        with uma.Daemon(uma.TINY_CHAT) as daemon:
            with Terminal("chat", UMA_SOCKET=daemon.socket_path) as chat:
                chat.prompt()
                self.assertEqual(0, daemon.terminate())
                chat.type("Hello\r")
                self.assertEqual(2, chat.wait())
                self.assertIn("no daemon answers on", chat.text())

    def test_a_connection_closed_for_idleness_is_not_noticed(self):
        with uma.Daemon(uma.TINY_CHAT, config="ipc: {idle_timeout_s: 1}\n") as daemon:
            with Terminal("chat", "--max-tokens", "4", "--usage", UMA_SOCKET=daemon.socket_path) as chat:
                chat.prompt()
                chat.type("one\r")
                chat.prompt()

                def sockets_of_daemon():
                    folder = f"/proc/{daemon.process.pid}/fd"
                    return sum(os.readlink(f"{folder}/{fd}").startswith("socket:") for fd in os.listdir(folder))

                connected = sockets_of_daemon()
                uma.until(lambda: sockets_of_daemon() < connected, "the idle connection closed")
                chat.type("two\r")
                self.assertIn("reused from hot", chat.prompt())
                chat.type("\x04")
                self.assertEqual(0, chat.wait())


if __name__ == "__main__":
    unittest.main()
