"""The page in a browser: sessions that are named, searched, moved and shared by tabs; keys; the keyboard alone; a telephone; a daemon
that ends in the middle of a reply."""

import json
import pathlib
import signal
import socket
import tempfile
import unittest
import urllib.request

import browser
import uma
from test_http_operations import with_key
from test_page import TalkTest, write_models


class Sessions(TalkTest):
    takes_long = True

    def test_titles_tags_and_search(self):
        seen = self.scenario("sessions.named", model="player")
        title = "Ships & <b>harbours</b>"
        self.assertEqual("sea, work", seen.typed)
        self.assertEqual({title, "First: ask1"}, set(seen.titles[:2]))
        self.assertEqual(([title], [title], [title], []), tuple(seen.found[words] for words in ("#work", "ships sea", "ships sea", "nothing")))
        self.assertIn("First: ask1", seen.found["first"])
        self.assertNotIn(title, seen.found["first"])
        self.assertEqual((f"{title} – uma-serve", title), (seen.page, seen.reloaded))

    def test_sessions_beyond_the_list_are_found_by_tags_and_ids(self):
        old = [self.ask("POST", "v1/sessions", {"mode": "chat", "model": "player", "metadata": {"title": f"Voyage {i}", "tags": tags}})["session_id"]
               for i, tags in enumerate(("harbour,deep", "deep"))]
        seen = self.scenario("sessions.older", old=old, queries=["#harbour", "voyage #deep", old[1], f"voyage {'f' * 32}"],
                             expects=["status of 404"])
        self.assertEqual([["Voyage 0"], ["Voyage 0", "Voyage 1"], ["Voyage 1"], []], [sorted(titles) for titles in seen.found])
        self.assertEqual("Older sessions", seen.hints[0])
        self.assertIn("title or tags", seen.hints[1])

    def test_an_old_list_does_not_replace_a_new_name(self):
        self.assertEqual("Renamed", self.scenario("sessions.stale_list", model="player", name="Renamed"))

    def test_a_session_travels_as_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            seen = self.scenario("sessions.files", model="player", folder=folder, expects=["status of 400"])
        self.assertEqual({"First_ ask1"}, {pathlib.Path(name).stem for name in (seen.name, seen.markdownName)})
        self.assertIn("# First: ask1\n\n## You\n\nFirst: ask1\n\n## Reply\n\nThis is reply 1.\n", seen.markdown)
        self.assertEqual(seen.before["asked"], seen.after["asked"])
        self.assertIn("This is reply 1.", seen.after["replied"][0])
        self.assertEqual(self.texts(seen.id), self.texts(seen.imported))
        self.assertTrue(seen.refused)

    def test_forks_rewinding_and_deleting(self):
        seen = self.scenario("sessions.forked_and_deleted", model="player")
        self.assertEqual(["First: ask1", "Fork: First: ask1 (fork)"], seen.tree[:2])
        self.assertEqual((seen.fork, "5"), (seen.kept, seen.seed))
        self.assertNotIn("Fork: First: ask1 (fork)", seen.titles)
        self.assertEqual(3, self.session(seen.id)["turns"])
        self.assertNotIn(seen.fork, [session["session_id"] for session in self.ask("GET", "v1/sessions?limit=1000")["data"]])

    def begun(self, *texts):
        """A session with these messages answered."""
        session = self.ask("POST", "v1/sessions", {"mode": "chat", "model": "player"})["session_id"]
        for text in texts:
            self.ask("POST", "v1/responses", {"conversation": f"conv_{session}", "input": text})
        return session

    def test_a_message_that_is_not_kept_stands_before_a_new_draft(self):
        seen = self.scenario("sessions.append_fails", model="player", first="Kept: ask1", lost="Lost,", draft="and new: ask2",
                             expects=["ERR_FAILED"])
        self.assertIn("umad does not answer.", seen.told)
        self.assertEqual("Lost,\n\nand new: ask2", seen.message)
        self.assertEqual([("user", "Kept: ask1"), ("user", "Lost,\n\nand new: ask2")], [each for each in self.texts(seen.id) if each[0] == "user"])

    def test_messages_are_taken_back_even_if_a_deletion_fails(self):
        session = self.begun()
        for text in ("One", "Two"):
            self.ask("POST", f"v1/conversations/conv_{session}/items", {"items": [{"role": "user", "content": text}]})
        seen = self.scenario("sessions.taken_back", session=session, expects=["ERR_FAILED"])
        self.assertEqual(["Two", ["One"]], seen.partly)
        self.assertEqual("One\n\nTwo", seen.whole)
        self.assertEqual([], self.texts(session))

    def test_a_long_session_is_read_page_by_page(self):
        texts = [f"Number {i}: ask{i % 9 + 1}" for i in range(55)]
        seen = self.scenario("sessions.long", session=self.begun(*texts), last=texts[-1])
        self.assertEqual(texts[5:], seen.first)
        self.assertEqual(texts, seen.all)
        self.assertEqual([*texts, "Again: ask2"], seen.after)

    def test_a_reply_of_another_program_is_read_when_the_connection_is_back(self):
        session = self.ask("POST", "v1/sessions", {"mode": "chat", "model": "slow"})["session_id"]

        def begin():
            body = {"conversation": f"conv_{session}", "input": "Tell me a long story.", "background": True, "stream": True}
            with urllib.request.urlopen(f"{self.url}v1/responses", json.dumps(body).encode(), timeout=uma.WAIT_S) as answer:
                answer.readline()

        seen = self.scenario("sessions.attach_fails", session=session, answers={"begin": begin}, expects=["ERR_FAILED"])
        self.assertEqual([], seen.problems)

    def test_two_tabs_show_the_same_reply(self):
        seen = self.scenario("sessions.two_tabs", model="slow")
        self.assertEqual(*seen.texts)
        self.assertEqual(["Told twice"] * 2, [titles[0] for titles in seen.titles])
        self.assertEqual(1, self.session(seen.id)["turns"])

    def test_the_keyboard_alone(self):
        seen = self.scenario("sessions.keyboard", model="player", slow="slow")
        self.assertEqual(("Skip to the content", "Message"), (seen.skip, seen.skipped))
        self.assertEqual(["Anchor:\nask1"], [text.removesuffix("Edit").strip().removesuffix("Copy").strip() for text in seen.first["asked"]])
        self.assertIn("This is reply 1.", seen.first["replied"][0])
        self.assertIn("Search", seen.search)
        self.assertIn("Anchor:", seen.row)

    def test_a_telephone(self):
        session = self.ask("POST", "v1/sessions", {"mode": "chat", "model": "player", "name": "A voyage"})["session_id"]
        text = "A table: | a | b |\n\n" + "w" * 400 + "\n\nask1"
        self.ask("POST", "v1/responses", {"conversation": f"conv_{session}", "input": text})
        seen = self.scenario("sessions.telephone", model="player", session="A voyage")
        self.assertEqual([], seen.wide)


class Keys(TalkTest):
    @classmethod
    def setUpClass(cls):
        cls.key, flags = with_key(cls, "reader")
        cls.flags = (*TalkTest.flags, *flags)
        super().setUpClass()

    def test_the_page_asks_for_a_key_and_keeps_it_to_itself(self):
        # The browser notes each request that is refused: those without a key, and those for the administrator.
        seen = self.scenario("sessions.keys", model="player", wrong="uma-wrong", key=self.key, expects=["status of 401", "status of 403"])
        self.assertIn("the key is not known", seen.refused)
        self.assertIn("This is reply 1.", seen.reply)
        self.assertNotIn(self.key, seen.kept)
        self.assertNotIn(self.key[4:20], seen.kept)
        self.assertNotIn(self.key, seen.left)
        self.assertNotIn(self.key, self.daemon.log())


class Restart(browser.PageTest):
    """The daemon comes back at the same address."""

    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="uma-e2e-page-restart-")))
        cls.config = write_models(folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        cls.model = "slow"
        cls.flags = ("--http", f"127.0.0.1:{port}", "--kv-cells", "32768", "--slots", "4", "--threads", "1")
        super().setUpClass()

    def end(self, number):
        self.daemon.signal(number)
        self.daemon.wait()

    def test_the_page_says_so_and_goes_on(self):
        seen = self.scenario(
            "sessions.restarted", model="slow", expects=["status of 404", "ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE"],
            answers={"kill": lambda: self.end(signal.SIGKILL), "terminate": lambda: self.end(signal.SIGTERM),
                     "start": lambda: self.daemon.start().wait_ready() and None})
        killed, ended = seen.restarts
        self.assertEqual(["", ""], [killed["message"], ended["message"]])
        self.assertIn("Tell me a long story (kill).", killed["texts"]["asked"][-1], "the message waits to be answered")
        self.assertEqual((1, 2), (killed["replies"], ended["replies"]), "a daemon that ends by itself keeps what was written")
        for state in (killed, ended):
            self.assertIn("First message", state["texts"]["asked"][0])
            self.assertEqual(*(texts["replied"][0].split("\n")[0] for texts in (seen.before, state["texts"])))
        self.assertIn("Last message", seen.after["asked"][-1])
        said = [item["content"][0]["text"] for item in self.items(seen.id) if item.get("role") == "user"]
        self.assertEqual("First message", said[0])
        self.assertEqual("Last message", said[-1])

    def test_a_tab_that_reads_a_reply_of_another_one_says_so(self):
        seen = self.scenario("sessions.attached_restart", model="slow", answers={"kill": lambda: self.end(signal.SIGKILL),
                                                                                "start": lambda: self.daemon.start().wait_ready() and None},
                             expects=["status of 404", "ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE"])
        for told in seen.told:
            self.assertIn("The reply was lost: umad ended while it was written.", told)
        for lost in seen.lost:
            self.assertGreater(len(lost), 80, "what was seen stays")
        self.assertIn("Tell me a long story.", seen.asked[-1])


if __name__ == "__main__":
    unittest.main()
