#!/usr/bin/env python3
"""Tokenizes prompts with the tokenizers library, as CLIP's authors describe it, and writes the tokens.

    tools/with_torch 'python3 -B tests/diffusion/make_tokens.py > src/llm/picture/clip_tokens_golden.txt'

A line is a prompt as a JSON text, a tab, and its tokens. src/llm/picture/clip_tokens_test.cpp compares.
"""

import json
import pathlib

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

MERGES = pathlib.Path(__file__).resolve().parents[2] / "src/llm/picture/clip_merges.txt"
WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
PROMPTS = [
    "", "a", "a photo of a cat", "A Photo, of a CAT!", "an astronaut riding a horse on mars, 4k, highly detailed",
    "portrait of a woman's face; it's raining, they'd left, I'll go, we've, you're, I'm, don't", "2026 was a good year 123456",
    "   blanks \t and\nlines  ", "masterpiece, best quality, (ultra-detailed:1.2), 8k wallpaper", "naïve café über straße ÉCOLE İstanbul",
    "привет мир", "こんにちは世界", "猫の写真", "שלום", "مرحبا بالعالم", "नमस्ते", "안녕하세요", "🎨🖌️ a painting 👩‍🚀", "½ cup, x² + y³ = z, Ⅷ",
    "e\u0301 and é", "don''t 'S 'LL o'clock rock'n'roll", "trailing'", "'", "''''", "...!!!???", "a_b-c.d/e\\f", "<|startoftext|> text",
    "supercalifragilisticexpialidocious antidisestablishmentarianism", "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz", "http://example.com/a?b=c&d=e#f",
    "C++ and C#", "#hashtag @someone", "100% wool", "$5.99 €3 £2", "ﬁne ligature", "a\u00a0b", "a\u2003b", "tab\tbed", "１２３ ＡＢＣ",
    "oil painting of a fox, by a river, sunset -- wide angle", "red circle left of blue square", "1girl, solo, long_hair", "Ǆ ǅ ǆ",
    "ΑΒΓ αβγ ς Σ", "ß ẞ", "ÿ Ÿ", "µ μ", "\u200bzero\u200dwidth", "combining a\u0308\u0304", "mixed漢字kana", "☃ ☔ ♥", "\U0001d54f math",
    "word " * 90,
]


def printable():
    """The characters that stand for the bytes, in the order of the first tokens."""
    kept = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in kept]
    return [chr(byte) for byte in kept] + [chr(256 + i) for i in range(len(others))]


def main():
    merges = [tuple(line.split(" ")) for line in MERGES.read_text(encoding="utf-8").splitlines()]
    letters = printable()
    names = letters + [f"{letter}</w>" for letter in letters] + ["".join(pair) for pair in merges]
    vocabulary = {}
    for token, name in enumerate(names):
        vocabulary[name] = token
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, end_of_word_suffix="</w>", continuing_subword_prefix=""))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(WORDS), behavior="removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    for prompt in PROMPTS:
        print(json.dumps(prompt, ensure_ascii=False), *tokenizer.encode(prompt).ids, sep="\t")


if __name__ == "__main__":
    main()
