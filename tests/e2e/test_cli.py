"""uma-cli against the real daemon: prompts, pipes, exit codes, the chat at a terminal, and the views."""

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import termios
import threading
import time
import unittest

import shift_register
import uma

CLI = uma.BUILD / "bin" / "uma-cli"
LONG = ("--max-tokens", "2000")  # the daemon's limit: far more than any test waits for


def environment(**extra):
    """No settings and no history of the person who runs the tests."""
    return uma.clean_environment(TERM="xterm", LC_ALL="C.UTF-8", **extra)


def run_cli(*arguments, given=None, **extra):
    """Runs uma-cli to its end. `given`: bytes for its standard input, which is /dev/null without."""
    source = {"stdin": subprocess.DEVNULL} if given is None else {"input": given}
    return subprocess.run([str(CLI), *map(str, arguments)], capture_output=True, timeout=uma.WAIT_S, env=environment(**extra),
                          check=False, **source)


class Terminal:
    """uma-cli on a pseudo-terminal of its own, as a person sees it. As a context manager the process is gone after."""

    def __init__(self, *arguments, **extra):
        try:
            self.master, slave = pty.openpty()
        except OSError as problem:
            raise unittest.SkipTest(f"this system gives no pseudo-terminals ({problem})") from problem
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.before = termios.tcgetattr(self.master)
        self.process = subprocess.Popen([str(CLI), *map(str, arguments)], stdin=slave, stdout=slave, stderr=slave,
                                        start_new_session=True, env=environment(**extra),
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        self.seen = b""  # all of the output
        self.mark = 0  # where the part begins that was not waited for yet

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)

    def type(self, keys):
        os.write(self.master, keys.encode())

    def read_more(self, timeout_s=0.05):
        """Reads what is there; False when the terminal was closed by the process."""
        readable, _, _ = select.select([self.master], [], [], timeout_s)
        if not readable:
            return True
        try:
            data = os.read(self.master, 1 << 16)
        except OSError:  # EIO: the process has ended
            return False
        self.seen += data
        return bool(data)

    def expect(self, pattern):
        """Waits for `pattern` in what came since the last match; returns the text up to its end."""
        found = None

        def look():
            nonlocal found
            is_open = self.read_more()
            found = re.search(pattern.encode(), self.seen[self.mark:])
            if found is None and not is_open:
                raise AssertionError(f"the process ended before {pattern!r}:\n{self.seen.decode(errors='replace')}")
            return found is not None

        try:
            uma.until(look, f"{pattern!r} on the terminal")
        except AssertionError as problem:
            raise AssertionError(f"{problem}\nseen: {self.seen[self.mark:]!r}") from None
        text = self.seen[self.mark:self.mark + found.end()].decode(errors="replace")
        self.mark += found.end()
        return text

    def prompt(self):
        """Waits for the next chat prompt, until keys go to the line editor; returns what was shown before it."""
        shown = self.expect(r"(?:^|[\r\n])(?:\x1b\[[0-9;?]*[A-Za-z])*> ")
        uma.until(lambda: not termios.tcgetattr(self.master)[3] & termios.ICANON, "the line editor reads keys")
        return shown

    def wait(self):
        """The exit status, once the process has ended by itself; its output is read meanwhile."""
        deadline = time.monotonic() + uma.WAIT_S
        while self.read_more():
            if self.process.poll() is not None:
                break
            if time.monotonic() > deadline:
                raise AssertionError(f"the program does not end; it has shown {self.text()!r}")
        with contextlib.suppress(OSError):
            self.read_more(0)
        return self.process.wait(uma.WAIT_S)

    def text(self):
        return self.seen.decode(errors="replace")


class WithoutDaemon(unittest.TestCase):
    def test_help_and_version(self):
        result = run_cli("--help")
        self.assertEqual(0, result.returncode)
        for word in (b"--prompt", b"--max-tokens", b"--temp", b"--top-p", b"--no-stream", b"--model", b"--session", b"--socket", b"chat",
                     b"sessions", b"models", b"metrics", b"top"):
            self.assertIn(word, result.stdout)
        self.assertRegex(run_cli("--version").stdout, rb"^uma-cli \d+\.\d+\.\d+\n$")

    def test_no_daemon(self):
        for arguments in (("--prompt", "x"), ("chat",), ("models",), ("sessions",), ("metrics",), ("top",), ("ping",)):
            with self.subTest(arguments=arguments):
                result = run_cli(*arguments, "--socket", "/nonexistent/s")
                self.assertEqual(2, result.returncode)
                self.assertEqual(b"", result.stdout)
                self.assertEqual(b"uma-cli: no daemon answers on /nonexistent/s: start one with `umad --model FILE`\n", result.stderr)

    def test_a_socket_that_nobody_listens_on(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/s"
            with socket.socket(socket.AF_UNIX) as left_behind:
                left_behind.bind(path)
            result = run_cli("ping", UMA_SOCKET=path)
            self.assertEqual(2, result.returncode)
            self.assertIn(b"no daemon answers on " + path.encode(), result.stderr)

    def test_usage(self):
        for arguments, given in (((), None), (("--nope",), None), (("--max-tokens", "many", "--prompt", "x"), None), (("sessions", "end"), None),
                                 (("sessions", "rewind", "x", "-1"), None), (("--prompt", "x", "chat"), None), (("--prompt", ""), None), ((), b""),
                                 (("--prompt", "-"), b"\xff\xfe"), (("ping", "--socket", "x" * 200), None), (("top", "--interval", "0"), None)):
            with self.subTest(arguments=arguments):
                result = run_cli(*arguments, given=given)
                self.assertEqual(1, result.returncode, result.stderr)
                self.assertEqual(b"", result.stdout)
                self.assertNotEqual(b"", result.stderr)

    def test_the_list_of_models(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "uma", "models.yaml")

            def models(*arguments):
                return run_cli("models", *arguments, XDG_CONFIG_HOME=folder)

            added = models("add", "mine", os.path.relpath(uma.TINY), "--alias", "default", "small")
            self.assertEqual((0, b""), (added.returncode, added.stderr))
            self.assertEqual(f"added mine in {file}; umad reads it when it is sent HUP (kill -HUP), or started\n", added.stdout.decode())
            self.assertEqual(0, models("add", "far", "https://host.example/far.gguf").returncode)
            self.assertEqual(f'mine:\n  path: {uma.TINY}\n  aliases: [default, small]\nfar:\n  url: "https://host.example/far.gguf"\n',
                             file.read_text())
            for arguments, why in ((("add", "small", uma.TINY), b"the name small is taken already"),
                                   (("add", "x", folder + "/gone.gguf"), b"no such file"),
                                   (("add", "x", __file__), b"is no model: it does not begin with GGUF"),
                                   (("rm", "nobody"), b"there is no model nobody")):
                refused = models(*arguments)
                self.assertEqual((1, b""), (refused.returncode, refused.stdout))
                self.assertIn(why, refused.stderr)
            self.assertEqual(0, models("rm", "mine").returncode)
            self.assertEqual('far:\n  url: "https://host.example/far.gguf"\n', file.read_text())
            self.assertEqual(["models.yaml"], os.listdir(file.parent))

    def test_a_server_that_does_not_speak_the_protocol(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
            path = f"{folder}/s"
            listener.bind(path)
            listener.listen()

            def answer():
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    connection.recv(1)

            server = threading.Thread(target=answer, daemon=True)
            server.start()
            result = run_cli("ping", UMA_SOCKET=path)
            self.assertEqual(3, result.returncode)
            self.assertIn(b"not a frame", result.stderr)
            server.join(uma.WAIT_S)


class CliTest(uma.DaemonTest):
    """Tests whose uma-cli finds the daemon by its environment."""

    def setUp(self):
        super().setUp()
        self.state = tempfile.mkdtemp(prefix="uma-e2e-state-")
        self.addCleanup(shutil.rmtree, self.state, ignore_errors=True)
        self.extra = {"UMA_SOCKET": self.daemon.socket_path, "XDG_STATE_HOME": self.state}

    def run_cli(self, *arguments, given=None):
        return run_cli(*arguments, given=given, **self.extra)

    def output_of(self, *arguments, given=None):
        """Standard output of a run that must succeed and say nothing else."""
        result = self.run_cli(*arguments, given=given)
        self.assertEqual((0, b""), (result.returncode, result.stderr))
        return result.stdout

    def start(self, *arguments, **streams):
        process = subprocess.Popen([str(CLI), *map(str, arguments)], stdin=subprocess.DEVNULL, env=environment(**self.extra), **streams)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def terminal(self, *arguments):
        return Terminal(*arguments, **self.extra)

    def sessions(self):
        return {entry["session_id"]: entry for entry in self.client.call(type="list_sessions")["sessions"]}

    def cancelled(self):
        return self.client.metrics()["requests_cancelled_total"]


class OneShot(CliTest):
    flags = ("--n-ctx", "8192", "--slots", "2")

    def expected(self, prompt, **fields):
        return self.client.generate(prompt, max_tokens=16, **fields).text.encode()

    def test_a_prompt(self):
        self.assertEqual(self.expected("one two three") + b"\n", self.output_of("--prompt", "one two three", "--max-tokens", 16))

    def test_a_prompt_from_standard_input(self):
        answer = self.expected("one two three") + b"\n"
        for arguments in ((), ("--prompt", "-")):
            with self.subTest(arguments=arguments):
                self.assertEqual(answer, self.output_of(*arguments, "--max-tokens", 16, given=b"one two three\n"))

    def test_flag_and_standard_input_are_joined(self):
        answer = self.expected("Summarise:\n\none\ntwo") + b"\n"
        self.assertEqual(answer, self.output_of("--prompt", "Summarise:", "--max-tokens", 16, given=b"one\ntwo\n"))

    def test_options_reach_the_daemon(self):
        fields = {"temperature": 1.5, "seed": 42, "top_p": 0.9, "top_k": 50, "min_p": 0.001}
        flags = ("--temp", 1.5, "--seed", 42, "--top-p", 0.9, "--top-k", 50, "--min-p", 0.001)
        self.assertEqual(self.expected("one two", **fields) + b"\n", self.output_of("--prompt", "one two", "--max-tokens", 16, *flags))

    def test_no_stream_prints_the_same(self):
        self.assertEqual(self.expected("one two three") + b"\n",
                         self.output_of("--prompt", "one two three", "--max-tokens", 16, "--no-stream"))

    def test_stop(self):
        text = self.expected("one two three").decode()
        stop = text[len(text) // 2:][:4]
        self.assertEqual(text[:text.index(stop)].encode() + b"\n",
                         self.output_of("--prompt", "one two three", "--max-tokens", 16, "--stop", stop))

    def test_usage_goes_to_standard_error(self):
        result = self.run_cli("--prompt", "one two three", "--max-tokens", 16, "--usage")
        self.assertEqual(0, result.returncode)
        self.assertEqual(self.expected("one two three") + b"\n", result.stdout)
        self.assertRegex(result.stderr, rb"^\d+ prompt tokens.*, 16 new, first after \d+ ms, [\d.]+ tokens/s, seed \d+\n$")

    def test_a_model_that_does_not_exist(self):
        for arguments in (("--prompt", "x", "--model", "nope"), ("chat", "--model", "nope")):
            with self.subTest(arguments=arguments):
                result = self.run_cli(*arguments)
                self.assertEqual((2, b""), (result.returncode, result.stdout))
                self.assertIn(b"(E_MODEL_001)", result.stderr)

    def test_a_prompt_larger_than_the_daemon_takes(self):
        result = self.run_cli(given=b"x " * (1 << 20))
        self.assertEqual((2, b""), (result.returncode, result.stdout))
        self.assertRegex(result.stderr, rb"\(E_(PROTO_002|LIMIT_001)\)")

    def test_a_session_by_name_is_created_and_then_used(self):
        self.output_of("--session", "notes", "--prompt", "one two three", "--max-tokens", 8)
        result = self.run_cli("--session", "notes", "--prompt", "four", "--max-tokens", 8, "--usage")
        self.assertEqual(0, result.returncode, result.stderr)
        self.assertIn(b"reused from hot", result.stderr)
        (session,) = self.sessions().values()
        self.assertEqual(("notes", 2), (session["name"], session["turns"]))
        self.assertEqual(b"", self.output_of("sessions", "end", "notes"))
        self.assertEqual({}, self.sessions())

    def test_a_session_id_that_does_not_exist(self):
        result = self.run_cli("--session", "0" * 32, "--prompt", "x")
        self.assertEqual(2, result.returncode)
        self.assertIn(b"(E_SESSION_001)", result.stderr)
        self.assertEqual({}, self.sessions())

    def test_ctrl_c_cancels(self):
        before = self.cancelled()
        process = self.start("--prompt", "one two three", *LONG, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        first = os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=uma.WAIT_S)
        self.assertEqual((130, b""), (process.returncode, errors))
        self.assertTrue((first + output).endswith(b"\n"))
        self.wait_idle()
        self.assertEqual(before + 1, self.cancelled())

    def test_a_reader_that_leaves_cancels_without_a_word(self):
        before = self.cancelled()
        process = self.start("--prompt", "one two three", *LONG, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        self.assertEqual(0, process.wait(uma.WAIT_S))
        self.assertEqual(b"", process.stderr.read())
        process.stderr.close()
        self.wait_idle()
        self.assertEqual(before + 1, self.cancelled())

    def test_the_shells_head(self):
        result = subprocess.run(["bash", "-c", f'"{CLI}" --prompt "one two three" --max-tokens 2000 | head -c 5; echo " ${{PIPESTATUS[0]}}"'],
                                capture_output=True, stdin=subprocess.DEVNULL, timeout=uma.WAIT_S, env=environment(**self.extra), check=True)
        self.assertEqual(b"", result.stderr)
        self.assertTrue(result.stdout.endswith(b" 0\n"), result.stdout)
        self.wait_idle()

    def test_a_disk_that_is_full(self):
        with open("/dev/full", "wb") as full:
            process = self.start("--prompt", "one two three", *LONG, stdout=full, stderr=subprocess.PIPE)
            _, errors = process.communicate(timeout=uma.WAIT_S)
        self.assertEqual(2, process.returncode)
        self.assertIn(b"No space left on device", errors)
        self.wait_idle()

    def test_it_streams(self):
        # The tiny model says all of it in a fraction of a second; on a busy machine the look at the daemon may come too late.
        for _ in range(10):
            process = self.start("--prompt", "one two three", *LONG, stdout=subprocess.PIPE)
            self.assertEqual(1, len(os.read(process.stdout.fileno(), 1)), "text before the end")
            if self.client.metrics()["sequences_active"] >= 1:
                break
            process.communicate(timeout=uma.WAIT_S)
        else:
            self.fail("no text ever came before the end of its generation")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=uma.WAIT_S)
        self.assertEqual(130, process.returncode)
        self.wait_idle()

    def test_standard_descriptors_that_are_closed(self):
        result = subprocess.run(["bash", "-c", f'"{CLI}" --prompt "one two three" --max-tokens 16 <&-'], capture_output=True,
                                timeout=uma.WAIT_S, env=environment(**self.extra), check=True)
        self.assertEqual(self.expected("one two three") + b"\n", result.stdout)


class KnownText(CliTest):
    model = uma.TINY_REGISTER

    def test_all_of_it_is_written_as_it_should(self):
        prompt = "once upon a time there was a little girl"
        self.assertEqual(shift_register.Register().says(prompt, 500) + "\n", self.output_of("--prompt", prompt, "--max-tokens", 500).decode())


class Chat(CliTest):
    model = uma.TINY_CHAT
    flags = ("--n-ctx", "16384", "--slots", "4", "--max-tokens", "4000")
    LONG = ("--max-tokens", "4000")

    def said(self, session):
        return [message["content"] for message in self.client.session(session)["messages"] if message["role"] == "user"]

    def wait_said(self, session, *texts):
        """Waits until the user's messages are these. The prompt alone proves nothing: it is drawn again while a line is edited."""
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
            for line, shown in (("/help", r"/regenerate\s+another answer"), ("/nope", "there is no command /nope: /help lists them"),
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
            chat.type("secnd\x1b[D\x1b[Do\r")  # two steps left, then the letter that was missing
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
        with uma.Daemon(uma.TINY_CHAT, "--max-tokens", "4000", "--n-ctx", "8192") as daemon:
            with Terminal("chat", "--max-tokens", "4000", UMA_SOCKET=daemon.socket_path) as chat:
                chat.prompt()
                chat.type("Tell me everything\r")
                chat.expect(r"everything\r\n[^\r\n]")
                daemon.process.kill()
                self.assertEqual(2, chat.wait())
                self.assertIn("went away before its answer was complete", chat.text())
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


class Views(CliTest):
    model = uma.TINY_CHAT

    def test_sessions(self):
        name = "r\u00e9sum\u00e9"
        self.output_of("--session", name, "--prompt", "one", "--max-tokens", 4)
        self.output_of("--session", name, "--prompt", "two", "--max-tokens", 4)
        (session,) = self.sessions()
        for arguments in (("sessions",), ("sessions", "list")):
            header, row = self.output_of(*arguments).decode().splitlines()
            self.assertEqual(["SESSION", "HOT", "TOKENS", "TURNS", "MODE", "LAST", "USED"], header.split())
            self.assertRegex(row, rf"^{name} +[\d.]+K +\d+ +2  chat  \d+ s ago$")
            self.assertEqual(header.index("TURNS") + len("TURNS"), row.index(" 2 ") + 2, "columns are aligned")
        frame = json.loads(self.output_of("sessions", "--json"))
        self.assertEqual(session, frame["sessions"][0]["session_id"])
        shown = self.output_of("sessions", "show", name).decode()
        self.assertIn("[user]\none\n", shown)
        self.assertIn("[assistant]\n", shown)
        self.assertEqual(4, len(json.loads(self.output_of("sessions", "show", name, "--json"))["messages"]))
        self.assertRegex(self.output_of("sessions", "rewind", name, 0).decode(), r"turns +1\n")
        self.assertRegex(self.output_of("sessions", "fork", name, "copy").decode(), r"name +copy\n")
        self.assertEqual({name, "copy"}, {entry["name"] for entry in self.sessions().values()})
        self.assertEqual(b"", self.output_of("sessions", "end", session))
        self.assertEqual(b"", self.output_of("sessions", "end", "copy"))
        result = self.run_cli("sessions", "show", name)
        self.assertEqual((2, b""), (result.returncode, result.stdout))
        self.assertIn(b"(E_SESSION_001)", result.stderr)

    def test_models(self):
        header, row, *_ = self.output_of("models").decode().splitlines()
        self.assertEqual("NAME", header.split()[0])
        self.assertEqual(["tiny-chat", "ready", "chat"], row.split()[:3])
        self.assertTrue(json.loads(self.output_of("models", "--json"))["models"][0]["has_chat_template"])

    def test_metrics(self):
        numbers = dict(line.split() for line in self.output_of("metrics").decode().split("\n\n")[0].splitlines())
        self.assertEqual("tiny-chat", numbers["model"])
        self.assertEqual("0", numbers["sequences_active"])
        frame = json.loads(self.output_of("metrics", "--json"))
        self.assertEqual(set(numbers) | {"workers", "memory_decisions"}, set(frame["metrics"]))

    def test_ping(self):
        self.assertRegex(self.output_of("ping").decode(), r"^pong from \S+ after [\d.]+ ms\n$")

    def test_top_once_where_there_is_no_terminal(self):
        text = self.output_of("top").decode()
        self.assertTrue(text.startswith("tiny-chat  up "), text)
        self.assertNotIn("\x1b", text)

    def test_top_on_a_terminal_until_ctrl_c(self):
        with self.terminal("top", "--interval", "0.1") as top:
            top.expect(r"\x1b\[\?1049h")
            top.expect("tokens/s")
            top.type("\x03")
            self.assertEqual(0, top.wait())
            self.assertTrue(top.seen.endswith(b"\x1b[?1049l"), "the user's own screen is back")


if __name__ == "__main__":
    unittest.main()
