"""The words that the picture model knows, and how a caption becomes their numbers.

A word is a run of ASCII letters, ASCII digits and bytes above 127; everything else separates words. Letters are lower-cased.
The numbers of a caption are <begin>, its words, and <pad> up to TEXT_LENGTH. "No caption" is <begin> and <pad> alone.
A word that is not in WORDS is an error. The model never guesses what it could mean.
"""

import re

TEXT_LENGTH = 24  # numbers of a caption, <begin> included

COLOURS = {  # RGB, 0 to 255
    "red": (220, 40, 40), "orange": (245, 140, 30), "yellow": (250, 220, 60), "green": (50, 170, 70),
    "cyan": (60, 200, 210), "blue": (50, 80, 210), "purple": (140, 60, 180), "pink": (245, 150, 200),
}
GROUNDS = {"white": (245, 245, 245), "gray": (170, 170, 170), "dark gray": (70, 70, 70), "black": (15, 15, 15)}
SHAPES = ["circle", "square", "triangle", "star", "ring", "cross"]
SIZES = {"small": 6.0, "medium": 10.0, "large": 14.0}  # half the width of the shape's box, in pixels
RELATIONS = ["left", "right", "above", "below"]
PLACES = {  # third of the picture: (column, row)
    "top left": (0, 0), "top": (1, 0), "top right": (2, 0), "left": (0, 1), "centre": (1, 1), "right": (2, 1),
    "bottom left": (0, 2), "bottom": (1, 2), "bottom right": (2, 2),
}

PAD, BEGIN = "<pad>", "<begin>"
WORDS = [PAD, BEGIN] + """
    red orange yellow green cyan blue purple violet pink white gray grey dark black
    circle circles disc discs square squares box boxes triangle triangles star stars ring rings cross crosses
    small tiny medium large big a an the one two three four 1 2 3 4
    left right above over below under beneath top bottom upper lower centre center middle corner side
    of to on in at with and beside next against it is are there background
    picture image drawing draw show
""".split()
NUMBERS = {word: number for number, word in enumerate(WORDS)}


class UnknownWord(ValueError):
    pass


def distance(a, b):
    """Returns the Levenshtein distance of two words: the least number of letters inserted, deleted or replaced."""
    row = list(range(len(b) + 1))
    for i, left in enumerate(a):
        before, row[0] = row[0], i + 1
        for j, right in enumerate(b):
            before, row[j + 1] = row[j + 1], min(row[j + 1] + 1, row[j] + 1, before + (left != right))
    return row[-1]


def nearest(word):
    """Returns the three known words with the smallest distance to `word`; of equal ones the first in WORDS."""
    return sorted(WORDS[2:], key=lambda known: distance(word[:32], known))[:3]


def split(caption):
    lower = "".join(chr(ord(letter) + 32) if "A" <= letter <= "Z" else letter for letter in caption)
    return re.findall(r"[a-z0-9\x80-\U0010ffff]+", lower)


def encode(caption):
    """Returns the TEXT_LENGTH numbers of a caption. An unknown word or a long caption is a ValueError that says what to do."""
    words = split(caption)
    for word in words:
        if word not in NUMBERS:
            raise UnknownWord(f'the picture model does not know the word "{word}"; the nearest words that it knows are '
                              + ", ".join(nearest(word)))
    if len(words) >= TEXT_LENGTH:
        raise ValueError(f"the caption has {len(words)} words, the picture model reads {TEXT_LENGTH - 1}: shorten it")
    numbers = [NUMBERS[BEGIN]] + [NUMBERS[word] for word in words]
    return numbers + [NUMBERS[PAD]] * (TEXT_LENGTH - len(numbers))


def _check_palette():
    palette = list((COLOURS | GROUNDS).values())
    for i, a in enumerate(palette):
        for b in palette[:i]:
            assert sum((x - y) ** 2 for x, y in zip(a, b)) >= 60**2, f"{a} and {b} are too similar for the checker"


_check_palette()
