"""Sessions as files: out of one daemon, into another; what is forged or cut off; the CLI's two commands."""

import base64
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import uma

OPTIONS = {"max_tokens": 12, "ignore_eos": True}
PART_BYTES = 300_000


def export(client, session):
    """The file of a session, or the answer that refuses it."""
    reply = client.finish(client.start(type="export_session", session_id=session))
    if reply.last["event"] != "exported":
        return reply.last
    file = b"".join(base64.b64decode(event["data"], validate=True) for event in reply.events[:-1])
    assert len(file) == reply.last["bytes"], reply.last
    return file


def send_file(client, file, **fields):
    """Sends a whole file; returns the id of the import, whose answer is still to come."""
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
    flags = ("--n-ctx", "8192", "--slots", "4")

    def conversation(self, **fields):
        session = self.client.create_session(**fields)
        for text in ("one two three", "four"):
            self.client.generate(text, session_id=session, **OPTIONS)
        self.client.append(session, "five")
        return session

    def said(self, session):
        detail = self.client.session(session)
        return {name: detail[name] for name in ("mode", "tokens", "pending_tokens", "turns", "messages", "text") if name in detail}

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
        with uma.Daemon(uma.TINY, "--n-ctx", "4096", "--slots", "2") as other, other.client() as client:
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


class PortableByCli(uma.DaemonTest):
    model = uma.TINY_CHAT
    flags = ("--n-ctx", "8192", "--slots", "4")

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
