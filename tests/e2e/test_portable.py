"""Sessions as files: exported from one daemon and imported into another; forged and truncated files; the CLI's two commands."""

import base64
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import uma
from test_tools import CALL, HISTORY, WEATHER

OPTIONS = {"max_tokens": 12, "ignore_eos": True}
PART_BYTES = 300_000


def export(client, session, **fields):
    """The file of a session, or the answer if the export is refused."""
    reply = client.finish(client.start(type="export_session", session_id=session, **fields))
    if reply.last["event"] != "exported":
        return reply.last
    file = b"".join(base64.b64decode(event["data"], validate=True) for event in reply.events[:-1])
    assert len(file) == reply.last["bytes"], reply.last
    return file


def send_file(client, file, **fields):
    """Sends a whole file; returns the id of the import, whose answer follows."""
    imported = client.start(type="import_session", **fields)
    for begin in range(0, max(1, len(file)), PART_BYTES):
        part = file[begin:begin + PART_BYTES]
        is_last = begin + PART_BYTES >= len(file)
        answer = client.call(type="import_data", target=imported, data=base64.b64encode(part).decode(), last=is_last)
        assert answer == {"id": answer["id"], "event": "ack", "received_bytes": begin + len(part)}, answer
    return imported


def import_file(client, file, **fields):
    return client.finish(send_file(client, file, **fields)).last


class Portable(uma.DaemonTest):
    model = uma.TINY_CHAT
    flags = ("--kv-cells", "8192", "--slots", "4")

    def conversation(self, **fields):
        session = self.client.create_session(**fields)
        for text in ("one two three", "four"):
            self.client.generate(text, session_id=session, **OPTIONS)
        self.client.append(session, "five")
        return session

    def said(self, session):
        detail = self.client.session(session)
        return {name: detail[name] for name in ("mode", "tokens", "pending_tokens", "turns", "messages", "text") if name in detail}

    def test_tools_calls_and_thoughts_travel(self):
        session = self.client.create_session(mode="chat")
        options = {"tools": [WEATHER], "max_tokens": 4, "ignore_eos": True}
        self.client.generate(messages=HISTORY, session_id=session, **options)
        copy = import_file(self.client, export(self.client, session))["session_id"]
        self.assertEqual(self.said(session), self.said(copy))
        self.assertEqual([CALL], self.client.session(copy)["messages"][1]["tool_calls"])
        question = [{"role": "user", "content": "And now?"}]
        first, second = (self.client.generate(messages=question, session_id=each, **options) for each in (session, copy))
        self.assertEqual(first.usage["prompt_tokens"], second.usage["prompt_tokens"])
        self.assertEqual("length", second.reason)

    def test_a_copy_is_the_same_and_goes_on_alike(self):
        for mode in ("chat", "text"):
            with self.subTest(mode=mode):
                session = self.conversation(mode=mode)
                copy = import_file(self.client, export(self.client, session), name=f"copy in {mode}")
                self.assertEqual(("session", True, f"copy in {mode}"), (copy["event"], copy["tokens_kept"], copy["name"]))
                self.assertNotEqual(session, copy["session_id"])
                self.assertEqual(self.said(session), self.said(copy["session_id"]))
                self.client.generate_stream(session, **OPTIONS)
                reply = self.client.generate_stream(copy["session_id"], **OPTIONS)
                self.assertEqual("length", reply.reason)
                self.assertEqual(self.client.session(session)["tokens"], self.client.session(copy["session_id"])["tokens"])

    def test_what_was_imported_survives_a_kill(self):
        session = self.conversation()
        copy = import_file(self.client, export(self.client, session))["session_id"]
        before = self.said(copy)
        self.daemon.process.kill()
        self.daemon.process.wait()
        self.daemon.start().wait_ready()
        self.client.close()
        self.client = self.another_client()
        self.assertEqual(before, self.said(copy))

    def test_into_a_daemon_of_another_model(self):
        file = export(self.client, self.conversation(name="travels"))
        with uma.Daemon(uma.TINY, "--kv-cells", "4096", "--slots", "2") as other, other.client() as client:
            copy = import_file(client, file)
            self.assertEqual(("session", False, "travels"), (copy["event"], copy["tokens_kept"], copy["name"]))
            self.assertEqual(1, copy["turns"])
            self.assertEqual("tiny", copy["model"])
            self.assertEqual(self.client.session("travels")["messages"], client.session("travels")["messages"])
            reply = client.generate_stream("travels", **OPTIONS)
            self.assertEqual((12, "none"), (reply.usage["completion_tokens"], reply.usage["tier"]))
            self.assert_error(import_file(client, file), "E_PROTO_003", "travels", "exists already")

    def test_a_large_one_comes_in_parts(self):
        session = self.client.create_session(mode="text")
        self.client.append(session, "word " * 1500)
        file = export(self.client, session)
        imported = self.client.start(type="import_session")
        for begin in range(0, len(file), 1000):
            answer = self.client.call(type="import_data", target=imported, last=begin + 1000 >= len(file),
                                      data=base64.b64encode(file[begin:begin + 1000]).decode())
            self.assertEqual("ack", answer["event"], answer)
        self.assertEqual("session", self.client.finish(imported).last["event"])

    def test_what_is_wrong_is_refused_and_leaves_nothing(self):
        file = export(self.client, self.conversation())
        count = self.client.metrics()["sessions"]
        broken = [b"", b"GGUF", file[:-1], file[:100], file + b"x", file[:60] + b"\xff" + file[61:], b"umasessn" + b"\xff" * 100]
        for bad in broken:
            self.assert_error(import_file(self.client, bad), "E_PROTO_003", "the session file cannot be used")
        self.assert_error(self.client.call(type="import_data", target="nobody", data="", last=True), "E_PROTO_003", "target")
        self.assertEqual(count, self.client.metrics()["sessions"])

    def test_a_client_that_leaves_in_the_middle_leaves_nothing(self):
        file = export(self.client, self.conversation())
        count = self.client.metrics()["sessions"]
        with self.daemon.client() as leaving:
            imported = leaving.start(type="import_session")
            leaving.call(type="import_data", target=imported, data=base64.b64encode(file[:99]).decode())
        self.assertEqual("session", import_file(self.client, file)["event"])
        self.assertEqual(count + 1, self.client.metrics()["sessions"])

    def test_unknown_sessions_have_no_file(self):
        self.assert_error(export(self.client, "nobody"), "E_SESSION_001")


class PortableKv(uma.DaemonTest):
    model = uma.TINY_CHAT
    flags = ("--kv-cells", "8192", "--slots", "4")
    text = "one two three four five six seven eight nine ten " * 20

    def conversation(self, **fields):
        session = self.client.create_session(**fields)
        # The text is unique, so its tokens can be found only in its own state.
        self.client.generate(f"{self.id()} {session} {self.text}", session_id=session, **OPTIONS)
        return session

    def goes_on(self, client, session):
        return client.generate("and then", session_id=session, max_tokens=24, ignore_eos=True)

    def test_a_second_daemon_goes_on_from_the_kv_of_the_first(self):
        session = self.conversation(name="travels")
        plain = export(self.client, session)
        file = export(self.client, session, kv=True)
        self.assertEqual(plain, file[:len(plain)], "the conversation comes first")
        self.assertGreater(len(file), 2 * len(plain))
        # The export has left the slot's KV where it was.
        reply = self.goes_on(self.client, session)
        self.assertEqual("hot", reply.usage["tier"])
        with uma.Daemon(self.model, "--kv-cells", "4096", "--slots", "2") as other, other.client() as client:
            copy = import_file(client, file)
            self.assertEqual(("session", "kept", "warm"), (copy["event"], copy["kv"], copy["tier"]), copy)
            there = self.goes_on(client, "travels")
            self.assertEqual(("warm", "warm"), (there.usage["tier"], there.usage["reuse_reason"]))
            self.assertGreater(there.usage["reused_tokens"], 0.8 * there.usage["prompt_tokens"])
            self.assertEqual((reply.text, reply.usage["prompt_tokens"]), (there.text, there.usage["prompt_tokens"]))
            # An imported session can be exported again.
            self.assertGreater(len(export(client, "travels", kv=True)), len(file))

    def test_from_disk(self):
        self.conversation(name="slept")
        before = export(self.client, "slept", kv=True)
        self.daemon.terminate()
        self.daemon.start().wait_ready()
        self.client.close()
        self.client = self.another_client()
        self.assertEqual("cold", self.client.session("slept")["tier"])
        self.assertEqual(before, export(self.client, "slept", kv=True))

    def test_where_it_fits_nothing_is_computed_again(self):
        file = export(self.client, self.conversation(), kv=True)
        for model, config in ((self.model, "kv: {layout: unified}\n"), (uma.TINY, "")):
            with self.subTest(model=model, config=config):
                with uma.Daemon(model, "--kv-cells", "4096", "--slots", "2", config=config) as other, other.client() as client:
                    copy = import_file(client, file, name="copy")
                    self.assertEqual(("session", "refused", "none"), (copy["event"], copy["kv"], copy["tier"]), copy)
                    reply = self.goes_on(client, "copy")
                    self.assertEqual((24, "none"), (reply.usage["completion_tokens"], reply.usage["tier"]))

    def test_a_session_without_kv_has_none(self):
        session = self.client.create_session(mode="text")
        self.client.append(session, "only input")
        file = export(self.client, session, kv=True)
        self.assertEqual(export(self.client, session), file)
        self.assertEqual("none", import_file(self.client, file)["kv"])

    def test_a_rewound_session_has_no_kv_of_what_is_gone(self):
        session = self.conversation()
        self.goes_on(self.client, session)
        self.client.call(type="rewind_session", session_id=session, turn=0)
        self.assertEqual(export(self.client, session), export(self.client, session, kv=True))

    def test_what_is_damaged_is_refused_and_leaves_nothing(self):
        session = self.conversation()
        plain, file = export(self.client, session), export(self.client, session, kv=True)
        before = self.client.metrics()
        begin = len(plain)
        broken = [file[:-1], file + b"x", file[:begin + 10], file[:begin + 5000], file + file[begin:], plain + b"\0" * 100_000]
        broken += [file[:at] + bytes([file[at] ^ 1]) + file[at + 1:] for at in (begin, begin + 12, begin + 40, begin + 9000, len(file) - 1)]
        for bad in broken:
            self.assert_error(import_file(self.client, bad), "E_PROTO_003", "the session file cannot be used")
        after = self.client.metrics()
        for name in ("sessions", "warm_sessions", "warm_bytes", "cold_sessions"):
            self.assertEqual(before[name], after[name], name)

    def test_two_at_once(self):
        sessions = [self.conversation(name=name) for name in ("first", "second")]
        files = [export(self.client, session, kv=True) for session in sessions]
        with self.another_client() as one, self.another_client() as two:
            begun = [(client, client.start(type="import_session", name=f"copy {number}")) for number, client in enumerate((one, two))]
            for begin in range(0, max(map(len, files)), PART_BYTES):
                for (client, imported), file in zip(begun, files):
                    if begin < len(file):
                        client.call(type="import_data", target=imported, last=begin + PART_BYTES >= len(file),
                                    data=base64.b64encode(file[begin:begin + PART_BYTES]).decode())
            for (client, imported), session in zip(begun, sessions):
                copy = client.finish(imported).last
                self.assertEqual("kept", copy["kv"])
                self.assertEqual(self.goes_on(self.client, session).text, self.goes_on(client, copy["session_id"]).text)

    def test_a_client_that_leaves_holds_nothing(self):
        session = self.conversation()
        file = export(self.client, session, kv=True)
        with self.daemon.client() as leaving:
            leaving.start(type="export_session", session_id=session, kv=True)
        with self.daemon.client() as leaving:
            imported = leaving.start(type="import_session")
            leaving.call(type="import_data", target=imported, data=base64.b64encode(file[:PART_BYTES]).decode())
        self.assertEqual("kept", import_file(self.client, file)["kv"])
        self.assertEqual(file, export(self.client, session, kv=True))


class PortableKvLimit(uma.DaemonTest):
    model = uma.TINY_CHAT
    flags = ("--kv-cells", "8192", "--slots", "4")
    config = "limits: {transfer_bytes_max: 20000}\n"

    def test_what_is_too_long_is_refused(self):
        session = self.client.create_session()
        self.client.generate(PortableKv.text, session_id=session, **OPTIONS)
        self.assert_error(export(self.client, session, kv=True), "E_LIMIT_001", "transfer_bytes_max")
        file = export(self.client, session)
        self.assertEqual("session", import_file(self.client, file, name="copy")["event"])
        imported = self.client.start(type="import_session")
        part = base64.b64encode(file + bytes(20_000)).decode()
        self.assert_error(self.client.call(type="import_data", target=imported, data=part), "E_LIMIT_001", "transfer_bytes_max")
        self.assert_error(self.client.finish(imported).last, "E_LIMIT_001")


class PortableByCli(uma.DaemonTest):
    model = uma.TINY_CHAT
    flags = ("--kv-cells", "8192", "--slots", "4")

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="uma-e2e-portable-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def run_cli(self, *arguments, **streams):
        return subprocess.run([str(uma.BUILD / "bin" / "uma-cli"), "sessions", *map(str, arguments)], timeout=uma.WAIT_S, check=False,
                              env=uma.clean_environment(UMA_SOCKET=self.daemon.socket_path),
                              **({"stdin": subprocess.DEVNULL, "capture_output": True} | streams))

    def test_to_a_file_and_from_it(self):
        session = self.client.create_session(name="work")
        self.client.generate("one two three", session_id=session, **OPTIONS)
        path = self.folder / "work.session"
        result = self.run_cli("export", "work", path)
        self.assertEqual((0, b"", b""), (result.returncode, result.stdout, result.stderr))
        self.assertEqual(0o600, path.stat().st_mode & 0o777)
        self.assertEqual([path], list(self.folder.iterdir()), "no part is left")
        piped = self.run_cli("export", "work")
        self.assertEqual((0, path.read_bytes()), (piped.returncode, piped.stdout))
        with_kv = self.folder / "kv.session"
        self.assertEqual(0, self.run_cli("export", "work", with_kv, "--kv").returncode)
        self.assertTrue(with_kv.read_bytes().startswith(path.read_bytes()))
        taken = self.run_cli("import", path)
        self.assertEqual(2, taken.returncode)
        self.assertIn(b"exists already", taken.stderr)
        imported = self.run_cli("import", path, "--name", "copy")
        self.assertEqual((0, b""), (imported.returncode, imported.stderr))
        self.assertIn(b"copy", imported.stdout)
        with open(path, "rb") as file:
            self.assertEqual(0, self.run_cli("import", "--name", "second", stdin=file).returncode)
        for name in ("copy", "second"):
            self.assertEqual(self.client.session("work")["messages"], self.client.session(name)["messages"])

    def test_what_fails_leaves_no_file_and_no_session(self):
        count = self.client.metrics()["sessions"]
        path = self.folder / "nothing"
        result = self.run_cli("export", "nobody", path)
        self.assertEqual(2, result.returncode)
        self.assertIn(b"E_SESSION_001", result.stderr)
        self.assertEqual([], list(self.folder.iterdir()))
        path.write_bytes(b"not a session")
        self.assertIn(b"(E_PROTO_003)", self.run_cli("import", path).stderr)
        self.assertEqual(2, self.run_cli("import", self.folder / "absent").returncode)
        self.assertEqual(2, self.run_cli("export", "nobody", "/dev/null").returncode)
        self.assertEqual(count, self.client.metrics()["sessions"])


if __name__ == "__main__":
    unittest.main()
