"""Tests of the corpus and of the writer of conversations. They need the standard library only."""

import random
import unittest

import dialogue
import exam_items
import grammar


class Grammar(unittest.TestCase):
    def sentences(self, pattern, lists=None):
        return {grammar.expand(pattern, random.Random(seed), lists or {}) for seed in range(200)}

    def test_choices_options_and_lists(self):
        self.assertEqual({"a", "b c"}, self.sentences("(a|b c)"))
        self.assertEqual({"go", "go now"}, self.sentences("go [now]"))
        self.assertEqual({"go", "go on"}, self.sentences("go (on)?"))
        self.assertEqual({"x", "y"}, self.sentences("<letters>", {"letters": ["x", "y"]}))
        self.assertEqual({"a c", "a b c", "b c", "c"}, self.sentences("[a] [b] c"))

    def test_brackets_must_match(self):
        for pattern in ("(a|b", "[a"):
            with self.assertRaises(ValueError):
                grammar.parse(pattern)


class Sentences(unittest.TestCase):
    def test_gerunds(self):
        for phrase, gerund in (("stop the daemon", "stopping the daemon"), ("use a model", "using a model"), ("tie a tie", "tying a tie"),
                               ("see the log", "seeing the log"), ("quit", "quitting")):
            self.assertEqual(gerund, dialogue.gerund(phrase))

    def test_a_value_takes_its_article(self):
        self.assertEqual("You work as an actor.", dialogue.fill("You work as a v.", "actor"))
        self.assertEqual("You work as a cook.", dialogue.fill("You work as a v.", "cook"))


class Conversations(unittest.TestCase):
    def write(self, seed, count=40):
        writer = dialogue.Writer(dialogue.Corpus(), random.Random(seed))
        return [list(writer.conversation(lambda messages: len(messages) >= 12)) for _ in range(count)]

    def test_the_same_seed_writes_the_same(self):
        self.assertEqual(self.write(3), self.write(3))
        self.assertNotEqual(self.write(3), self.write(4))

    def test_user_and_assistant_take_turns(self):
        for messages in self.write(5):
            spoken = [message["role"] for message in messages if message["role"] != "system"]
            self.assertEqual(["user", "assistant"] * (len(spoken) // 2), spoken)
            self.assertTrue(all(message["content"].strip() for message in messages))
            self.assertFalse(any("\0" in message["content"] for message in messages))

    def test_what_was_told_is_what_is_answered(self):
        writer = dialogue.Writer(dialogue.Corpus(), random.Random(7))
        for name, attribute in writer.corpus.attributes.items():
            writer.begin()
            writer.ask(name)
            writer.tell(name)
            writer.ask(name)
            self.assertEqual(attribute["none"], writer.messages[1]["content"])
            self.assertIn(writer.told[name], writer.messages[-1]["content"])

    def test_every_fact_is_asked_and_has_questions_in_the_examination(self):
        corpus = dialogue.Corpus()
        examined = {name for name, _ in exam_items.questions("test")}
        self.assertEqual(set(corpus.facts) | {"unknown"}, examined)
        for name, (answer, files) in corpus.facts.items():
            self.assertEqual(2, len(files), f"{name} is asked in facts.txt and in facts_more_*.txt")
            self.assertTrue(answer)

    def test_the_training_never_asks_what_the_examination_asks(self):
        corpus = dialogue.Corpus()
        writer = dialogue.Writer(corpus, random.Random(11))
        asked = set()
        for name in corpus.facts:
            writer.begin()
            for _ in range(150):
                writer.fact(name)
            asked |= {dialogue.plain(message["content"]) for message in writer.messages[::2]}
        self.assertGreater(len(asked), 5000)
        self.assertFalse(asked & corpus.heldout_wordings)

    def test_the_examination_uses_values_that_the_training_does_not(self):
        lists = dialogue.Corpus().lists
        trained = {item.lower() for name, items in lists.items() if not name.endswith("_heldout") for item in items}
        for name in lists:
            if name.endswith("_heldout"):
                self.assertFalse(trained & {item.lower() for item in lists[name]}, name)
        for messages in exam_items.items("test", 1)["recall 3-6"]:
            self.assertEqual("assistant", messages[-1]["role"])
            self.assertGreaterEqual(len(messages), 10)


if __name__ == "__main__":
    unittest.main()
