"""Computes the text of the model tiny-register (tools/make_model/shift_register.h) without any library: the next word follows
from earlier ones by exclusive or. So a test knows the right text, on every CPU and beside any other sequences."""

import struct

import uma

BITS = 10
DISTANCES = (2, 13, 67)  # how far back each layer looks
REACH = sum(DISTANCES) + 1  # the number of tokens from which the next word follows
BEGIN = 1  # the token <s>


def read_vocabulary(path):
    """The texts of all tokens, and the numbers of the control and byte tokens, from a GGUF file."""
    with open(path, "rb") as file:
        def number(kind):
            return struct.unpack(f"<{kind}", file.read(struct.calcsize(f"<{kind}")))[0]

        def value(kind):
            if kind == 8:
                return file.read(number("Q")).decode()
            if kind == 9:
                element, count = number("I"), number("Q")
                return [value(element) for _ in range(count)]
            return number({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}[kind])

        assert file.read(4) == b"GGUF", path
        number("I"), number("Q")
        facts = {value(8): value(number("I")) for _ in range(number("Q"))}
    return facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]


class Register:
    def __init__(self, path=uma.TINY_REGISTER):
        self.texts, kinds = read_vocabulary(path)
        words = [token for token, text in enumerate(self.texts) if kinds[token] == 1 and text.startswith("▁") and len(text) > 1]
        self.words = words[:1 << BITS]
        self.codes = [token % (1 << BITS) for token in range(len(self.texts))]
        for code, word in enumerate(self.words):
            self.codes[word] = code
        self.tokens_by_text = {text: token for token, text in enumerate(self.texts)}

    def tokens_of(self, text):
        """<s> and the tokens of words in the vocabulary, each after a space (optional before the first)."""
        return [BEGIN, *(self.tokens_by_text[f"▁{word}"] for word in text.split())]

    def text_of(self, tokens):
        return "".join(self.texts[token] for token in tokens).replace("▁", " ")

    def continued(self, tokens, count):
        """The next `count` tokens."""
        def rotated(code):
            return code >> 1 | (code & 1) << BITS - 1

        states = [[] for _ in DISTANCES]  # the state of each token, by layer
        made = []
        for position, token in enumerate([*tokens, *[None] * count]):
            if token is None:
                made.append(token := self.words[state])
            state = self.codes[token]
            for layer, distance in enumerate(DISTANCES):
                states[layer].append(state)
                state = rotated(state) ^ states[layer][max(0, position - distance)]
        return made

    def says(self, prompt, count):
        """The text that follows a prompt of words in the vocabulary."""
        return self.text_of(self.continued(self.tokens_of(prompt), count))
