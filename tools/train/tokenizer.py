"""The model's own tokenizer: byte-level BPE learned from its conversations, ChatML control tokens, complete for any bytes."""

import random

import tokenizers

import dialogue

VOCABULARY_SIZE = 1536
START, END = "<|im_start|>", "<|im_end|>"
CONTROL = [START, END]
CONVERSATIONS = 6000  # conversations from which the merges are learned

# Text is divided before merging as by llama.cpp's pre-tokenizer "qwen2", which separates digits.
PRE_TOKENIZER = "qwen2"
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def train(seed):
    """Learns the merges from conversations of this seed. Returns a tokenizers.Tokenizer."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(_PATTERN), behavior="isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    corpus = dialogue.Corpus()
    writer = dialogue.Writer(corpus, random.Random(f"{seed} tokenizer"))

    def texts():
        for _ in range(CONVERSATIONS):
            for message in writer.conversation(lambda messages: len(messages) >= 8):
                yield message["role"] + "\n"
                yield message["content"]
        yield from corpus.answers() * 50

    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(CONTROL),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.add_special_tokens(CONTROL)
    return tokenizer


class Chat:
    """Converts messages to token ids, and marks those that the model has to learn: the assistant's."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.start = tokenizer.token_to_id(START)
        self.end = tokenizer.token_to_id(END)
        self.newline = self.text("\n")
        self.heads = {role: [self.start] + self.text(role + "\n") for role in ("system", "user", "assistant")}

    def text(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def encode(self, messages):
        """Returns (ids, learn); learn[i] is true if token i is one of the assistant's."""
        ids, learn = [], []
        encoded = self.tokenizer.encode_batch([message["content"] for message in messages], add_special_tokens=False)
        for message, encoding in zip(messages, encoded):
            head = self.heads[message["role"]]
            body = encoding.ids + [self.end]
            ids += head + body + self.newline
            learn += [False] * len(head) + [message["role"] == "assistant"] * len(body) + [False] * len(self.newline)
        return ids, learn
