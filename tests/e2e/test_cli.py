"""uma-cli against the real daemon: prompts, pipes, exit codes, and the views."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import termios
import threading
import unittest

import shift_register
import uma
from cli import CLI, LONG, CliTest, environment, run_cli


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
            self.assertEqual(f"added mine in {file}; umad reads the file at its start and when it receives SIGHUP (kill -HUP)\n", added.stdout.decode())
            self.assertEqual(0, models("add", "far", "https://host.example/far.gguf").returncode)
            self.assertEqual(f'mine:\n  path: {uma.TINY}\n  aliases: [default, small]\nfar:\n  url: "https://host.example/far.gguf"\n',
                             file.read_text())
            for arguments, why in ((("add", "small", uma.TINY), b"the name small is already taken"),
                                   (("add", "x", folder + "/gone.gguf"), b"is neither an existing file nor an http(s) URL"),
                                   (("add", "x", __file__), b"is not a GGUF model: it does not begin with GGUF"),
                                   (("rm", "nobody"), b"the file has no model nobody")):
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
            self.assertIn(b"an invalid frame", result.stderr)
            server.join(uma.WAIT_S)


class OneShot(CliTest):
    flags = ("--kv-cells", "8192", "--slots", "2")

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
        # The tiny model generates all of it in a fraction of a second; on a busy machine the metrics may be read too late.
        for _ in range(10):
            process = self.start("--prompt", "one two three", *LONG, stdout=subprocess.PIPE)
            self.assertEqual(1, len(os.read(process.stdout.fileno(), 1)), "text before the end")
            if self.client.metrics()["sequences_active"] >= 1:
                break
            process.communicate(timeout=uma.WAIT_S)
        else:
            self.fail("in ten tries no text came before the end of its generation")
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


class Launch(CliTest):
    model = uma.TINY_CHAT
    flags = ("--http", "127.0.0.1:0")

    def test_agents_get_the_address_that_the_daemon_says(self):
        port = re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", self.daemon.log()).group(1)
        self.assertIn(f"ANTHROPIC_BASE_URL=http://127.0.0.1:{port}\n", self.run_cli("launch", "claude", "--print").stdout.decode())

    def test_none_is_started_where_http_is_off(self):
        daemon = uma.Daemon(uma.TINY_CHAT)
        self.addCleanup(daemon.kill)
        daemon.start().wait_ready()
        self.extra["UMA_SOCKET"] = daemon.socket_path
        result = self.run_cli("launch", "claude", "--print")
        self.assertEqual((1, b""), (result.returncode, result.stdout))
        self.assertIn(b"the daemon serves no HTTP", result.stderr)


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
        self.assertRegex(self.output_of("sessions", "rename", "copy", "\u00c4hnlich").decode(), r"name +\u00c4hnlich\n")
        self.assertRegex(self.output_of("sessions", "show", "\u00c4hnlich").decode(), rf"fork of +{session}, from turn 1\n")
        self.assertEqual(["\u00c4hnlich"], [row.split()[0] for row in
                                         self.output_of("sessions", "--search", "\u00e4hn").decode().splitlines()[1:]])
        self.assertNotIn("name", self.output_of("sessions", "rename", "\u00c4hnlich").decode())
        copy = next(entry for entry, shown in self.sessions().items() if shown["name"] == "")
        self.client.call(type="update_session", session_id=copy, metadata={"title": "A copy"})
        self.assertRegex(self.output_of("sessions").decode(), rf"(?m)^{copy} +A copy ")
        self.assertEqual(b"", self.output_of("sessions", "end", session))
        self.assertEqual(b"", self.output_of("sessions", "end", copy))
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
        self.assertEqual(set(numbers) | {"workers", "devices", "memory_decisions"}, set(frame["metrics"]))

    def test_ping(self):
        self.assertRegex(self.output_of("ping").decode(), r"^pong from \S+ after [\d.]+ ms\n$")

    def test_top_once_where_there_is_no_terminal(self):
        text = self.output_of("top").decode()
        self.assertTrue(text.startswith("ok  up "), text)
        self.assertIn("model tiny-chat  ", text)
        self.assertIn("worker 0 tiny-chat  ", text)
        self.assertNotIn("\x1b", text)

    def test_top_on_a_terminal_until_ctrl_c(self):
        with self.terminal("top", "--interval", "0.1") as top:
            top.expect(r"\x1b\[\?1049h")
            top.expect("tokens/s")
            top.type("\x03")
            self.assertEqual(0, top.wait())
            self.assertTrue(top.seen.endswith(b"\x1b[?1049l"), "the user's own screen is back")

    def test_top_scrolls_and_ends_with_q(self):
        with self.terminal("top", "--interval", "0.1") as top:
            top.expect(r"\r\nKV ")
            top.type("\x1b[6~")
            top.type("q")
            self.assertEqual(0, top.wait())
            self.assertEqual(top.before[3], termios.tcgetattr(top.master)[3], "the terminal echoes again")


if __name__ == "__main__":
    unittest.main()
