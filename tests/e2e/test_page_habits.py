"""The page in a browser: what people expect of every chat."""

import time
import unittest

from test_page import MARKDOWN, TalkTest

HELLO = "مرحبا، ما هو البحر؟"
KHMER = "សួស្តី\u200bពិភពលោក"


class Habits(TalkTest):
    takes_long = True

    def test_who_scrolls_up_is_not_pulled_back(self):
        seen = self.scenario("habits.scrolled_away", model="slow")
        self.assertLess(seen.followed, 5)
        self.assertLess(abs(seen.moved), 5)
        self.assertLess(seen.again, 5)

    def test_earlier_turns_do_not_move_what_is_read(self):
        session = self.ask("POST", "v1/sessions", {"mode": "chat", "model": "player"})["session_id"]
        for i in range(70):
            self.ask("POST", "v1/responses", {"conversation": f"conv_{session}", "input": f"Question {i}: ask1", "max_output_tokens": 8})
        seen = self.scenario("habits.earlier", session=session)
        self.assertGreater(seen.more, 5)
        self.assertLess(abs(seen.after - seen.before), 60, "it moves by the height of the button at most")

    def test_every_script_has_its_direction(self):
        arabic, khmer = self.scenario("habits.scripts", model="player", texts=[f"{HELLO} ask1", f"{KHMER} ask1"])
        self.assertEqual(("rtl", "rtl", "ltr", "ltr"), (arabic["typed"], arabic["said"], khmer["typed"], khmer["said"]))
        self.assertIn(KHMER, khmer["text"])
        seen = self.scenario("habits.formatted_scripts", model="arabic", text="Write: askarabic")
        self.assertEqual(("rtl", "rtl", "rtl", "ltr"), (seen.paragraph, seen.item, seen.cell, seen.code))

    def test_the_first_message_does_not_wait_for_the_list(self):
        self.assertIn("This is reply 1.", self.scenario("habits.first_message", model="player", text="At once: ask1"))

    def test_digits_are_searched_in_titles_and_not_in_ids(self):
        made = [self.ask("POST", "v1/sessions", {"mode": "chat", "model": "player", "metadata": {"title": title}})["session_id"]
                for title in ("Seventy 7", "Without")]
        found = self.scenario("habits.found", queries=["7", made[1][:8], made[1]])
        self.assertTrue(all("7" in title for title in found[0]), found[0])
        self.assertEqual((["Without"], ["Without"]), tuple(found[1:]))

    def test_texts_are_copied_without_a_clipboard(self):
        code, reply, asked = self.scenario("habits.copied", model="player", text="Tell me of the sea: askmarkdown")
        self.assertEqual('def tide(hour):\n    return "high" if hour < 6 else "low"', code.strip())
        self.assertEqual(MARKDOWN.strip(), reply.strip())
        self.assertEqual("Tell me of the sea: askmarkdown", asked)

    def test_the_conversation_is_printed_whole_and_alone(self):
        session = self.ask("POST", "v1/sessions", {"mode": "chat", "model": "player"})["session_id"]
        for _ in range(6):
            self.ask("POST", "v1/responses", {"conversation": f"conv_{session}", "input": "Tell me of the sea: askmarkdown"})
        seen = self.scenario("habits.printed", session=session)
        self.assertEqual((False, False, True), (seen.list, seen.field, seen.last))
        self.assertGreater(seen.height, seen.page)
        self.assertEqual(seen.whole, seen.height)

    def test_the_model_is_remembered(self):
        self.assertEqual("small", self.scenario("habits.remembered_model", model="small"))

    def test_colours_can_be_chosen(self):
        light, dark, reloaded = self.scenario("habits.themed")
        self.assertEqual(("rgb(245, 244, 240)", "rgb(18, 19, 20)", "rgb(18, 19, 20)"), (light, dark, reloaded))

    def test_a_first_message_that_is_refused_leaves_nothing(self):
        text = "refused " * 400
        seen = self.scenario("habits.refused_first_message", model="small", text=text.strip(), expects=["status of 400"])
        self.assertIn("too long", seen.told)
        self.assertEqual(text.strip(), seen.message)
        self.assertFalse([title for title in seen.titles if title.startswith("refused")])

    def test_a_full_context_is_no_dead_end(self):
        seen = self.scenario("habits.full_context", model="small", question="Number #: ask#", expects=["status of 400"])
        self.assertGreater(seen.asked, 1)
        self.assertEqual((f"Number {seen.asked}: ask{seen.asked}", "", False), (seen.field, seen.left, seen.isFull))
        session = self.session(seen.id)
        self.assertEqual("shift", session["on_full"])
        self.assertGreater(session["dropped_turns"], 0)

    def test_another_model_answers_in_another_version(self):
        seen = self.scenario("habits.other_model", model="player", other="small", text="Twice: ask1")
        self.assertEqual(["player", "small"], [self.session(each)["model"] for each in (seen.id, seen.made)])
        self.assertEqual(self.texts(seen.id), self.texts(seen.made))
        self.assertEqual((2, 1), (len(seen.versions), seen.rows))

    def test_long_messages_fold_and_a_session_that_is_gone_is_told(self):
        session = self.ask("POST", "v1/sessions", {"mode": "chat", "model": "player"})["session_id"]
        text = "A long one: ask1 " + "word " * 1000
        self.ask("POST", "v1/conversations/conv_" + session + "/items", {"items": [{"role": "user", "content": text}]})
        seen = self.scenario("habits.folded", session=session, expects=["status of 404"])
        self.assertLess(seen.short, 3200)
        self.assertGreater(seen.whole, 4900)
        self.assertFalse(seen.hasField)

    def test_the_focus_stays_when_an_edit_is_given_up(self):
        self.assertEqual("Edit; this version stays", self.scenario("habits.edit_given_up", model="player", text="Wait: ask1"))


class Older(TalkTest):
    takes_long = True

    def test_the_list_has_the_sessions_used_last_and_more_on_demand(self):
        def begin(i):
            return self.ask("POST", "v1/sessions", {"mode": "chat", "model": "player", "metadata": {"title": f"Voyage {i}"}})

        oldest = begin(0)
        while int(time.time()) <= oldest["last_used_s"]:
            time.sleep(0.1)
        for i in range(1, 130):
            begin(i)
        seen = self.scenario("habits.older_sessions", oldest=oldest["session_id"])
        self.assertEqual((101, 304, 130, 130, True), (seen.first, seen.status, seen.all, seen.later, seen.isThere))


if __name__ == "__main__":
    unittest.main()
