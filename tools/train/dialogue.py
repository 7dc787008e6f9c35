"""Writes the conversations for the training of uma-tiny, and the held-out ones for its examination.

Everything comes from corpus/*.txt and a random generator: the same seed gives the same conversations. A conversation is a list of
{"role", "content"}. Each answer follows from the earlier messages, so every turn has exactly one right answer.
"""

import hashlib
import pathlib
import random
import re

import grammar

HELDOUT_QUESTIONS = pathlib.Path(__file__).resolve().parent / "heldout_questions.txt"

UNKNOWN = "I don't know that. I only know uma-serve, small sums and what you tell me."
UNCLEAR = "I did not understand that. Please say it in other words."
TOO_BIG = "That is too big for me: I only do sums with numbers up to 99."

SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You are uma-tiny, a small assistant.",
    "Answer briefly.",
    "You are a friendly chatbot. Be polite.",
    "You are a careful assistant. Answer in one sentence.",
    "Be concise.",
    "You are an assistant in a terminal.",
    "You help people with uma-serve.",
    "Respond in English.",
    "You are an expert programmer. Answer the user's questions.",
]

SMALLTALK = [
    (["(hi|hello|hey|good morning|good evening|good day|hi there|hello there|greetings|good afternoon|hey there|howdy) [!|"
      ".]"], "GREETING"),
    (["how are you [doing|today]|how is it going|how do you do|are you well|are you okay|how do you feel|what's up|how are things"],
     "I am well, thank you. What can I do for you?"),
    (["(thanks|thank you|thank you very much|many thanks|thanks a lot|thx|cheers|great, thanks|perfect, thank you|ok thanks) [!|.]"],
     "You are welcome."),
    (["(bye|goodbye|see you|see you later|good night|see you tomorrow|I have to go|I must go now|bye bye|farewell|until tomorrow) [!|.]"],
     "GOODBYE"),
    (["(ok|okay|cool|great|nice|good|fine|I see|alright|all right|perfect|wonderful|super|yes|sure|got it|understood|interesting) [!|.]"],
     "Good. What else can I do for you?"),
    (["(no|nothing|nope|no thanks|not now|never mind|nothing else|not really) [!|.]"], "All right."),
    (["(sorry|my mistake|I am sorry|excuse me|oops|pardon|my fault) [!|.]"], "No problem."),
    (["(well done|good job|you are great|you are good|you are clever|nice work|I like you|that was good|you are smart|correct|"
      "right|that is right|good answer)"],
     "Thank you!"),
    (["(you are stupid|that is wrong|wrong|you are bad|this is nonsense|you are useless|that is not right|bad answer|stupid|"
      "no, that is wrong)"],
     "I am sorry. I am only a small model, and I do my best."),
    (["(are you there|are you still there|test|testing|is anybody there|do you hear me|can you hear me|do you read me|"
      "anyone there|ping)"],
     "I am here."),
    (["(I am|I'm|I feel) [very|so|a bit|really] <adjectives> [today|now]|<remarks>"], "I see. Tell me more, or ask me something."),
    (["(tell me|do you know|make|say|can you tell me) a joke|make me laugh|a joke please|say something funny"],
     "Why did the token wait? It was stuck behind a long prompt."),
    (["(tell me|read me|can you tell me|do you know|tell|write|write me) (a|a short|another) story|a story please"],
     "Once there was a small model in a big machine. It knew little, but it never forgot a friend. The end."),
]

OPPOSITES = [
    ("hot", "cold"), ("big", "small"), ("fast", "slow"), ("high", "low"), ("long", "short"), ("old", "young"), ("good", "bad"),
    ("light", "dark"), ("hard", "soft"), ("full", "empty"), ("open", "closed"), ("rich", "poor"), ("early", "late"),
    ("left", "right"), ("up", "down"), ("wet", "dry"), ("happy", "sad"), ("strong", "weak"), ("loud", "quiet"), ("near", "far"),
    ("first", "last"), ("day", "night"), ("black", "white"), ("clean", "dirty"), ("thick", "thin"), ("yes", "no"), ("in", "out"),
    ("before", "after"), ("always", "never"), ("true", "false"),
]

# Verbs that double their last letter before -ing ("hang" does not, but the model that ships was trained with it in this list).
DOUBLED = set("stop run get set put cut shut quit begin drop let spin swap step plan win sit swim knit wrap hang".split())

NOT_SO_IMPORTANT = {"the", "a", "an", "do", "does", "is", "are", "to", "it", "of", "can", "i", "my", "in", "me"}


def held_out(*key):
    """Whether an item is left out of the training: about one in ten, decided by its name alone."""
    digest = hashlib.sha256(":".join(map(str, key)).encode()).digest()
    return digest[0] % 10 == 0


def plain(text):
    """Returns a question without the differences that do not change its wording: case, punctuation, spaces."""
    return " ".join(re.sub(r"[^a-z0-9_+-]+", " ", text.lower()).split())


def heldout_wordings():
    """Returns the questions of the examination in plain form."""
    lines = HELDOUT_QUESTIONS.read_text(encoding="utf-8").splitlines()
    return {plain(line.split(" | ", 1)[1]) for line in lines if line and not line.startswith("#")}


def gerund(phrase):
    """ "stop the daemon" -> "stopping the daemon"."""
    verb, _, rest = phrase.partition(" ")
    if verb in DOUBLED:
        verb += verb[-1]
    elif verb.endswith("ie"):
        verb = verb[:-2] + "y"
    elif verb.endswith("e") and not verb.endswith(("ee", "be")):
        verb = verb[:-1]
    return f"{verb}ing {rest}".strip()


def fill(sentence, value):
    """Replaces v by the value, with the right article."""
    if value[0] in "aeiouAEIOU":
        sentence = re.sub(r"\b([aA]) v\b", r"\1n v", sentence)
    return re.sub(r"\bv\b", lambda _: value, sentence)


class Corpus:
    """The parsed files of corpus/. With heldout=True, names and values come from the lists that the training does not use."""

    def __init__(self, heldout=False):
        self.heldout = heldout
        self.lists = grammar.read_lists(grammar.CORPUS / "lists.txt")
        if heldout:
            for name in [name for name in self.lists if name.endswith("_heldout")]:
                self.lists[name.removesuffix("_heldout")] = self.lists[name]
        self.heldout_wordings = heldout_wordings()
        self.frames = grammar.read_sections(grammar.CORPUS / "frames.txt")
        self.facts = {}
        for name, (answer, *asked) in grammar.read_sections(grammar.CORPUS / "facts.txt").items():
            self.facts[name] = (answer.removeprefix("= "), [[line.split(" ", 1) for line in asked]])
        for path in sorted(grammar.CORPUS.glob("facts_more_*.txt")):
            for name, asked in grammar.read_sections(path).items():
                self.facts[name][1].append([line.split(" ", 1) for line in asked])
        self.attributes = {}
        for name, lines in grammar.read_sections(grammar.CORPUS / "attributes.txt").items():
            self.attributes[name] = dict(line.split(" ", 1) for line in lines)
        self.definitions = []
        for line in (grammar.CORPUS / "definitions.txt").read_text(encoding="utf-8").splitlines():
            if line and not line.startswith("#"):
                things, answer = line.split(" | ")
                self.definitions.append((things.split(", "), answer))
        defined = {thing.removeprefix("a ").removeprefix("an ").removeprefix("the ") for things, _ in self.definitions for thing in things}
        self.undefined_nouns = [noun for noun in self.lists["nouns"] if noun not in defined]

    def answers(self):
        """Returns the answers of the facts and definitions, for the tokenizer and for the evaluation."""
        return [answer for answer, _ in self.facts.values()] + [answer for _, answer in self.definitions]


def _alternatives(pattern):
    """Splits a pattern at the bars outside brackets, so that all alternatives are equally likely."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(pattern):
        depth += (char in "([") - (char in ")]")
        if char == "|" and depth == 0:
            parts.append(pattern[start:at])
            start = at + 1
    return parts + [pattern[start:]]


class Writer:
    """Writes conversations turn by turn. `told` has the user's statements about themselves so far."""

    def __init__(self, corpus, rng):
        self.corpus = corpus
        self.rng = rng
        self.begin()

    def begin(self):
        self.messages = []
        self.told = {}

    # --- small helpers

    def pick(self, items):
        return items[int(self.rng.random() * len(items))]

    def chance(self, probability):
        return self.rng.random() < probability

    def expand(self, pattern):
        return grammar.expand(self.pick(_alternatives(pattern)), self.rng, self.corpus.lists)

    def say(self, question, answer):
        self.messages.append({"role": "user", "content": question})
        self.messages.append({"role": "assistant", "content": answer})

    def question(self, write, answer):
        """Adds a question from write(), in a wording that is not in the examination, and its answer."""
        while plain(text := self.rough(write())) in self.corpus.heldout_wordings:
            pass
        self.say(text, answer)

    def frame(self, kind, phrase):
        """Returns a question of this kind about the phrase."""
        if kind == "do" and self.chance(0.15):
            kind, phrase = "gerund", gerund(phrase)
        return re.sub(r"\bx\b", lambda _: phrase, self.expand(self.pick(self.corpus.frames[kind])), count=1)

    def rough(self, text, is_question=True):
        """Changes a sentence like people do: case, punctuation, a missing word, a typing error."""
        rng = self.rng
        if self.chance(0.12):
            text = self.pick(["please ", "hey, ", "ok, ", "so ", "quick question: ", "tell me, ", "one question: ", "and ", "well, ",
                              "excuse me, ", "now ", "sorry, ", "also, ", "next: ", "hi, "]) + text
        if self.chance(0.08):
            text += self.pick([" please", " then", " exactly", " again", ", thanks", " by the way", " in short"])
        words = text.split(" ")
        if self.chance(0.12) and len(words) > 3:
            little = [at for at, word in enumerate(words) if word.lower() in NOT_SO_IMPORTANT]
            if little:
                del words[self.pick(little)]
        if self.chance(0.05) and len(words) > 4:
            words = [word for word in words if word.lower() not in NOT_SO_IMPORTANT] or words
        text = " ".join(words)
        if self.chance(0.03) and len(text) > 12:
            at = rng.randrange(4, len(text) - 2)
            text = text[:at] + text[at + 1 :] if self.chance(0.5) else text[:at] + text[at + 1] + text[at] + text[at + 2 :]
        if self.chance(0.4):
            text = text.lower()
        elif self.chance(0.7):
            text = text[:1].upper() + text[1:]
        return text + (self.pick(["?", "?", ""]) if is_question else self.pick([".", "", "", "!"]))

    def made_up_word(self):
        """Returns an invented word, so that the model must copy it and cannot know it."""
        lists = self.corpus.lists
        while True:
            word = ""
            for _ in range(self.rng.randrange(1, 4)):
                word += self.pick(lists["onsets"]) if self.chance(0.85) else ""
                word += self.pick(lists["vowels"]) + (self.pick(lists["codas"]) if self.chance(0.45) else "")
            if len(word) > 2 and held_out("name", word) == self.corpus.heldout:
                return word

    def made_up_number(self):
        while True:
            number = self.rng.randrange(2, 10 ** self.rng.randrange(1, 5) + 2)
            if held_out("number", number) == self.corpus.heldout:
                return str(number)

    def value(self, names):
        name = self.pick(names.split(", "))
        if name == "number":
            return self.made_up_number()
        if name == "name":
            return self.pick(self.corpus.lists["names"]) if self.chance(0.5) else self.made_up_word().capitalize()
        if name not in ("months", "days") and self.chance(0.35):
            word = self.made_up_word()
            return word.capitalize() if name in ("cities", "countries") else word
        return self.pick(self.corpus.lists[name])

    # --- the subjects of turns

    def fact(self, name=None):
        name = name or self.pick(list(self.corpus.facts))
        answer, files = self.corpus.facts[name]

        def write():
            kind, pattern = self.pick(self.pick(files))
            text = self.expand(pattern)
            return text if kind == "q" else self.frame(kind, text)

        self.question(write, answer)

    def unknown(self):
        self.question(self.unknown_question, UNKNOWN)

    def unknown_question(self):
        draw = self.rng.random()
        lists = self.corpus.lists
        if draw < 0.62:
            return self.expand(self.pick(self.corpus.frames["unknown"]))
        if draw < 0.74:
            return self.frame("do", self.pick(lists["tasks"]))
        if draw < 0.88:
            if self.chance(0.6):
                thing = self.pick(lists["things"])
            else:
                thing = self.pick(["a ", "the ", ""]) + self.pick(self.corpus.undefined_nouns)
            return self.frame("is", thing if self.chance(0.8) else self.pick(lists["topics"] + lists["people"]))
        if draw < 0.94:
            return self.frame("if", self.pick(lists["events"]))
        places = [self.pick(lists["cities"]), self.pick(lists["countries"]), "the " + self.pick(lists["nouns"])]
        return self.frame("where", self.pick(places))

    def definition(self):
        things, answer = self.pick(self.corpus.definitions)
        self.say(self.rough(self.frame("is", self.pick(things))), answer)

    def statement(self, name):
        """Returns a statement of the user about this attribute, and the answer to it."""
        attribute = self.corpus.attributes[name]
        value = self.value(attribute["values"])
        text = self.expand(attribute["tell"])
        if name in self.told and self.chance(0.6):
            text = self.pick(["actually, ", "no, ", "correction: ", "I was wrong, ", "now "]) + text
        if self.chance(0.25):
            text = text.lower()
        elif self.chance(0.6):
            text = text[:1].upper() + text[1:]
        self.told[name] = value
        return fill(text, value), fill(attribute["ack"], value)

    def tell(self, name=None):
        text, answer = self.statement(name or self.pick(list(self.corpus.attributes)))
        others = [other for other in self.corpus.attributes if other not in self.told]
        if name is None and others and self.chance(0.15):
            more, answer_to_more = self.statement(self.pick(others))
            text, answer = text + self.pick([" and ", ". ", ", and "]) + more, f"{answer} {answer_to_more}"
        self.say(text + self.pick([".", "", "!", ""]), answer)

    def ask(self, name=None):
        if name is None:
            known = list(self.told)
            name = self.pick(known) if known and self.chance(0.85) else self.pick(list(self.corpus.attributes))
        attribute = self.corpus.attributes[name]
        answer = attribute["none"]
        if name in self.told:
            answer = fill(attribute["know"], self.told[name])
        self.say(self.rough(self.expand(attribute["ask"])), answer)

    def said_before(self):
        questions = [message["content"] for message in self.messages if message["role"] == "user"]
        if not questions:
            return self.greet()
        if self.chance(0.5) or len(questions[-1].split()) > 14:
            replies = [message["content"] for message in self.messages if message["role"] == "assistant"]
            self.say(self.rough(self.expand("what did you (just say|say|answer)|repeat (that|your answer|yourself)|"
                                            "say that again|once more|pardon, what did you say")),
                     replies[-1])
        else:
            self.say(self.rough(self.expand("what did I (just say|just ask|say|ask)|what was my (last|previous) (message|"
                                            "question)|repeat (what I said|my question|my last message)")),
                     f"You said: {questions[-1]}")

    def greet(self):
        self.smalltalk(SMALLTALK[0])

    def smalltalk(self, kind=None):
        patterns, answer = kind or self.pick(SMALLTALK)
        name = self.told.get("name")
        if answer == "GREETING":
            answer = f"Hello, {name}! How can I help you?" if name else "Hello! How can I help you?"
        elif answer == "GOODBYE":
            answer = f"Goodbye, {name}!" if name else "Goodbye!"
        text = self.expand(self.pick(patterns))
        self.say(text if self.chance(0.5) else text[:1].upper() + text[1:], answer)

    def unclear(self):
        letters = "abcdefghijklmnopqrstuvwxyz"
        text = self.pick([
            "".join(self.pick(letters) for _ in range(self.rng.randrange(2, 10))),
            " ".join("".join(self.pick(letters) for _ in range(self.rng.randrange(2, 7))) for _ in range(self.rng.randrange(2, 5))),
            self.pick(["?", "??", "...", "hm", "hmm", "what?", "huh?", "eh", "-", "!!!", "and?", "so?", "blah blah", "la la la"]),
        ])
        self.say(text, UNCLEAR)

    def arithmetic(self, pair=None):
        """Adds a sum. `pair` is (a, sign, b); held-out pairs are drawn for the examination only."""
        while pair is None:
            sign = self.pick("++--*/")
            top = 10 if sign in "*/" else 20 if self.chance(0.75) else 99
            a, b = self.rng.randrange(0, top + 1), self.rng.randrange(0, top + 1)
            if sign == "/":
                b = max(b, 1)
                a *= b
            if held_out("sum", a, sign, b) == self.corpus.heldout:
                pair = a, sign, b
        a, sign, b = pair
        result = {"+": a + b, "-": a - b, "*": a * b, "/": a // max(b, 1)}[sign]
        words = {"+": ["plus", "and", "+", "+"], "-": ["minus", "-", "-"], "*": ["times", "*", "x", "multiplied by"],
                 "/": ["/", "divided by"]}
        term = f"{a} {self.pick(words[sign])} {b}"
        if self.chance(0.15):
            term = f"{a}{sign}{b}"
        text = self.expand("(what is|what's|how much is|calculate|compute||tell me|and|what does|can you compute|solve|work out)").strip()
        text = f"{text} {term}".strip() + (" make" if text == "what does" else self.pick(["", "", " ="]) if self.chance(0.2) else "")
        if self.chance(0.1):
            verb = {"+": f"add {b} to {a}", "-": f"subtract {b} from {a}", "*": f"multiply {a} by {b}", "/": f"divide {a} by {b}"}
            text = verb[sign]
        text = text[:1].upper() + text[1:] if self.chance(0.5) else text
        self.say(text + self.pick(["?", "?", "", "."]), f"{a} {sign} {b} = {result}.")

    def too_big(self):
        a, b = self.rng.randrange(100, 10 ** self.rng.randrange(3, 7)), self.rng.randrange(2, 10 ** self.rng.randrange(1, 6) + 2)
        if self.chance(0.5):
            a, b = b, a
        term = f"{a} {self.pick(['+', '-', '*', '/', 'plus', 'minus', 'times'])} {b}"
        self.say(self.pick(["what is ", "What is ", "how much is ", "", "compute "]) + term + self.pick(["?", ""]), TOO_BIG)

    def count(self):
        low, high = sorted(self.rng.sample(range(1, 21), 2))
        draw = self.rng.random()
        if draw < 0.4:
            self.say(self.rough(self.expand(f"count [up] to {high}|count from (1|one) to {high}|can you count to {high}|"
                                            f"list the numbers (up)? to {high}"), False),
                     ", ".join(map(str, range(1, high + 1))) + ".")
        elif draw < 0.6:
            self.say(self.rough(f"count from {low} to {high}", False), ", ".join(map(str, range(low, high + 1))) + ".")
        elif draw < 0.75:
            self.say(self.rough(self.expand(f"count (down|backwards) from {high}|count down from {high} to (1|one)"), False),
                     ", ".join(map(str, range(high, 0, -1))) + ".")
        elif draw < 0.88:
            word, other = self.pick([("after", 1), ("before", -1)])
            n = self.rng.randrange(2, 99)
            asked = self.pick(["what comes", "which number comes", "what number is"])
            self.say(self.rough(f"{asked} {word} {n}"), f"{n + other} comes {word} {n}.")
        else:
            a, b = self.rng.sample(range(0, 100), 2)
            word = self.pick(["bigger", "larger", "smaller", "greater"])
            best = min(a, b) if word == "smaller" else max(a, b)
            other = a + b - best
            asked = self.pick(["which is", "what is", "which number is"])
            self.say(self.rough(f"{asked} {word}, {a} or {b}"), f"{best} is {word} than {other}.")

    def order(self):
        lists = self.corpus.lists
        names = lists["days"] if self.chance(0.5) else lists["months"]
        at = self.rng.randrange(len(names))
        word, step = self.pick([("after", 1), ("before", -1)])
        kind = "day" if names is lists["days"] else "month"
        self.say(self.rough(self.expand(f"(what|which) {kind} (comes|is) {word} {names[at]}|what comes {word} {names[at]}")),
                 f"{names[(at + step) % len(names)]} comes {word} {names[at]}.")

    def opposite(self):
        pair = list(self.pick(OPPOSITES))
        self.rng.shuffle(pair)
        self.say(self.rough(self.expand(f"(what is|what's|tell me|do you know|name|) the opposite of {pair[0]}|opposite of {pair[0]}")),
                 f"The opposite of {pair[0]} is {pair[1]}.")

    def copy(self):
        lists = self.corpus.lists
        known = lists["nouns"] + lists["animals"] + lists["colors"] + lists["foods"] + lists["jobs"]
        source = self.pick([known, lists["names"], None, None])
        def strange():
            return self.pick([self.made_up_word(), self.made_up_word(), self.made_up_word().capitalize(), self.made_up_number()])

        words = [self.pick(source) if source else strange() for _ in range(self.rng.randrange(1, 7))]
        text = self.pick([" ", " ", ", "]).join(words)
        self.say(self.expand("(repeat|say|Repeat|Say|repeat after me|Repeat after me|please repeat|say after me|echo|copy|write|"
                             "please say)") +
                 self.pick([": ", " ", ": "]) + text, text)

    def about_me(self):
        """Adds a question about everything the user has told, answered in the same order."""
        if not self.told or len(self.told) > 3:
            return self.ask()
        known = " ".join(fill(self.corpus.attributes[name]["know"], value) for name, value in self.told.items())
        self.say(self.rough(self.expand("what do you know about me|what did I tell you [about me]|what have I told you [so far]|"
                                        "tell me what you know about me|sum up what I told you")),
                 known)

    def story(self):
        thing = self.pick(self.corpus.lists["animals"] + self.corpus.lists["nouns"])
        self.say(self.rough(self.expand(f"(tell me|write|can you tell|tell) a [short] story about a {thing}|"
                                        f"a story about a {thing}"), False),
                 f"Once there was a {thing}. It lived by a small river and was happy. One day a new friend came, and they stayed "
                 "together. The end.")

    SKILLS = [
        (fact, 34), (unknown, 11), (definition, 5), (tell, 15), (ask, 16), (said_before, 2), (smalltalk, 6), (unclear, 1.5),
        (arithmetic, 11), (too_big, 0.7), (count, 3), (order, 1), (opposite, 1), (copy, 5), (about_me, 1), (story, 0.8),
    ]

    def turn(self):
        skills, weights = zip(*self.SKILLS)
        self.rng.choices(skills, weights)[0](self)

    def system(self):
        """Sometimes adds a system message, which may have facts about the user."""
        if not self.chance(0.25):
            return
        text = self.pick(SYSTEM_PROMPTS)
        if self.chance(0.3):
            name = self.pick(["name", "city", "job", "color"])
            value = self.value(self.corpus.attributes[name]["values"])
            self.told[name] = value
            text += " " + fill({"name": "The user's name is v.", "city": "The user lives in v.", "job": "The user works as a v.",
                                "color": "The user's favourite colour is v."}[name], value)
        self.messages.append({"role": "system", "content": text})

    def conversation(self, enough):
        """Writes messages until enough(messages) is true, and returns them."""
        self.begin()
        self.system()
        if self.chance(0.15):
            self.greet()
        while not self.messages or not enough(self.messages):
            self.turn()
        return self.messages


def main():
    """Prints a few conversations of the training data."""
    writer = Writer(Corpus(), random.Random(1))
    for _ in range(6):
        for message in writer.conversation(lambda messages: len(messages) >= 12):
            print(f"{message['role']:>9}  {message['content']}")
        print()


if __name__ == "__main__":
    main()
