"""Images of conversations that move between umads with one PostgreSQL database: they are there wherever the conversation goes on."""

import contextlib
import http.client
import json
import re
import shutil
import subprocess
import tempfile
import unittest

import postgres
import sounds
import test_audio
import uma
from vision import CLI, FLAGS, GRAD, MODEL, RED, SAME_BITS, data_uri, question


@postgres.needed
class SharedImages(unittest.TestCase):
    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.database = self.stack.enter_context(postgres.Postgres())

    def node(self, name, *flags):
        return self.stack.enter_context(
            uma.Daemon(MODEL, *FLAGS, "--catalog", self.database.address(), "--node", name, *flags, config=SAME_BITS))

    def client(self, node):
        return self.stack.enter_context(node.client())

    def pair(self):
        first, second = self.node("a"), self.node("b")
        return first, second, self.client(first), self.client(second)

    def talk(self, client, session, text="And now?", image=None):
        content = question(image, text) if image else {"role": "user", "content": text}
        reply = client.generate(session_id=session, messages=[content], max_tokens=16)
        self.assertEqual("eos", reply.last["event"], reply.last)
        self.assertIn(reply.reason, ("stop", "length"), reply.last)
        return reply

    def begin(self, client, image=GRAD):
        """A session with an image, and what it says next."""
        session = client.create_session(mode="chat")
        self.talk(client, session, "What is this?", image)
        twin = client.call(type="fork_session", session_id=session)["session_id"]
        wanted = self.talk(client, twin).text
        client.call(type="end_session", session_id=twin)
        return session, wanted

    def count(self, table):
        return int(self.database.run_sql(f"SELECT count(*) FROM {table}"))

    def images(self, node):
        folder = node.data_dir / "images"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def end_lease(self, node):
        done = self.database.run_sql(f"UPDATE daemons SET lease_until = clock_timestamp() - interval '1 s' WHERE node = '{node}'")
        self.assertIsNotNone(done)

    def test_a_conversation_with_images_goes_on_elsewhere_and_comes_back(self):
        first, second, a, b = self.pair()
        session, wanted = self.begin(a)
        self.assertEqual([], self.images(second))
        self.assertEqual(wanted, self.talk(b, session).text)
        self.assertEqual(1, b.metrics()["images_encoded_total"])
        self.assertEqual(self.images(first), self.images(second), "the folder is a cache")
        self.talk(b, session, "And this?", RED)
        twin = b.call(type="fork_session", session_id=session)["session_id"]
        wanted = self.talk(b, twin).text
        shutil.rmtree(first.data_dir / "images")
        self.assertEqual(wanted, self.talk(a, session).text)
        self.assertEqual(2, self.count("images"))

    def test_the_image_of_a_node_that_was_killed_is_there(self):
        first, second, a, b = self.pair()
        session, wanted = self.begin(a)
        pending = a.create_session(mode="chat")
        appended = a.call(type="append_input", session_id=pending, messages=[question(RED)])
        self.assertEqual("ack", appended["event"], appended)
        a.wait_token(a.start(type="generate", session_id=session, messages=[question(RED)], max_tokens=500, ignore_eos=True))
        first.kill()  # Its data folder is gone, too.
        self.end_lease("a")
        reply = b.generate_stream(session, max_tokens=16)
        self.assertEqual("eos", reply.last["event"], reply.last)
        self.assertEqual(2, b.metrics()["images_encoded_total"], "also that of the input without a reply")
        reply = b.generate_stream(pending, max_tokens=16)
        self.assertEqual("eos", reply.last["event"], reply.last)
        self.assertEqual(2, b.metrics()["images_encoded_total"])
        b.call(type="rewind_session", session_id=session, turn=0)
        self.assertEqual(wanted, self.talk(b, session).text)
        self.assertEqual(2, len(self.images(second)))

    def test_clips_of_sound_go_the_same_way(self):
        flags = (*test_audio.FLAGS, "--catalog", self.database.address(), "--node")
        a, b = (self.client(self.stack.enter_context(uma.Daemon(uma.TINY, *flags, name, config=SAME_BITS))) for name in "ab")
        session = a.create_session(mode="chat")
        a.generate(session_id=session, messages=[test_audio.message(sounds.LOW)], max_tokens=8)
        twin = a.call(type="fork_session", session_id=session)["session_id"]
        wanted = a.generate(session_id=twin, messages=[test_audio.message()], max_tokens=16).text
        self.assertEqual(wanted, b.generate(session_id=session, messages=[test_audio.message()], max_tokens=16).text)
        self.assertEqual(1, b.metrics()["images_encoded_total"])

    def test_a_fork_keeps_the_image_when_the_session_ends(self):
        first, second, a, b = self.pair()
        session, wanted = self.begin(a)
        fork = b.call(type="fork_session", session_id=session)["session_id"]
        self.assertEqual("ack", b.call(type="end_session", session_id=session)["event"])
        self.assertEqual(1, self.count("session_images"))
        uma.until(lambda: self.images(first) == [], "a needs it no more")
        self.assertEqual(wanted, self.talk(b, fork).text)
        self.assertEqual(wanted, self.talk(a, b.call(type="fork_session", session_id=fork, turn=0)["session_id"]).text)
        for name in (fork, *(line for line in self.database.run_sql("SELECT id FROM sessions").splitlines() if line != fork)):
            self.assertEqual("ack", b.call(type="end_session", session_id=name)["event"])
        self.assertEqual(0, self.count("session_images"))

    def test_an_exported_session_takes_its_images_along(self):
        first, second, a, b = self.pair()
        session, wanted = self.begin(a)
        with tempfile.TemporaryDirectory() as folder:
            for node, *arguments in ((second, "export", session, f"{folder}/file"), (second, "import", f"{folder}/file", "--name", "copy")):
                done = subprocess.run([str(CLI), "sessions", *arguments, "--socket", str(node.socket_path)], capture_output=True, text=True,
                                      timeout=uma.WAIT_S, stdin=subprocess.DEVNULL, check=False)
                self.assertEqual(0, done.returncode, done.stderr)
        self.assertEqual("ack", b.call(type="end_session", session_id=session)["event"])
        shutil.rmtree(first.data_dir / "images", ignore_errors=True)
        self.assertEqual(wanted, self.talk(a, "copy").text)

    def test_lists_of_items_show_images_that_another_node_got(self):
        def ask(node, method, path, body=None):
            port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", node.log()).group(1))
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=uma.WAIT_S)) as connection:
                connection.request(method, path, None if body is None else json.dumps(body))
                answer = connection.getresponse()
                shown = json.loads(answer.read())
                self.assertEqual(200, answer.status, shown)
                return shown
        first, second = (self.node(name, "--http", "127.0.0.1:0") for name in "ab")
        conversation = ask(first, "POST", "/v1/conversations", {})["id"]
        item = {"role": "user", "content": [{"type": "input_image", "image_url": data_uri(GRAD)}, {"type": "input_text", "text": "Look."}]}
        added = ask(first, "POST", f"/v1/conversations/{conversation}/items", {"items": [item]})["data"]
        listed = ask(second, "GET", f"/v1/conversations/{conversation}/items")["data"]
        self.assertEqual(added[0]["content"], listed[0]["content"])
        self.assertEqual(data_uri(GRAD), listed[0]["content"][0]["image_url"])

    def test_without_the_database_nothing_is_lost(self):
        _, second, a, b = self.pair()
        session, wanted = self.begin(a)
        fork = b.call(type="fork_session", session_id=session)["session_id"]
        self.database.stop()
        refused = b.call(type="append_input", session_id=fork, messages=[question(RED)])
        self.assertEqual("E_IO_001", refused.get("code"), refused)
        reply = b.generate(session_id=fork, messages=[{"role": "user", "content": "And now?"}], max_tokens=16)
        self.assertEqual("E_IO_001", reply.code, reply.last)
        self.database.start()
        uma.until(lambda: b.call(type="touch", session_id=fork)["event"] == "ack", "b has the database again")
        self.assertEqual(2, len(b.session(fork)["messages"]))

        self.assertEqual("ack", b.call(type="append_input", session_id=fork, messages=[{"role": "user", "content": "And now?"}])["event"])

        def goes_on():  # The connection for images is tried once a second. Input without a reply stays.
            reply = b.generate_stream(fork, max_tokens=16)
            return reply.text if reply.last["event"] == "eos" else None
        self.assertEqual(wanted, uma.until(goes_on, "images are fetched again"))
        self.talk(b, fork, "And this?", RED)
        self.assertEqual(2, len(self.images(second)))

    def test_wrong_bytes_in_the_database_are_found_and_the_conversation_stays(self):
        _, second, a, b = self.pair()
        session, wanted = self.begin(a)
        self.assertIsNotNone(self.database.run_sql("UPDATE image_pieces SET bytes = set_byte(bytes, 0, 0)"))
        reply = b.generate(session_id=session, messages=[{"role": "user", "content": "And now?"}], max_tokens=16)
        self.assertEqual("error", reply.last["event"], reply.last)
        self.assertIn("the database has another file in its place", reply.message)
        self.assertEqual("E_IO_001", reply.code)
        self.assertEqual([], self.images(second))
        self.assertIsNotNone(self.database.run_sql("UPDATE image_pieces SET bytes = set_byte(bytes, 0, 137)"))
        self.assertEqual(wanted, b.generate_stream(session, max_tokens=16).text, "its input has stayed")


if __name__ == "__main__":
    unittest.main()
