"""What captions say: scenes, their wordings, and the combinations that are held out of the training.

A claim is what a caption says. A scene is a claim with everything that it leaves open decided (colour, size, ground) and with
the place of each object. Combinations of the splits H1 to H7 are in no scene of the training, said or unsaid.
"""

import dataclasses
import hashlib
import itertools
import random
import re

from words import COLOURS, GROUNDS, PLACES, SHAPES, SIZES, TEXT_LENGTH, split

SIDE = 64  # pixels
GRID = 8  # pixels: the centres of boxes are multiples of it, as the borders of patches are
NEAR, MIDDLE, FAR = 2, 4, 6  # centres in units of GRID: the thirds of the picture
THINGS_MAX = 4
TRIES = 1000  # contents that are tried for one scene


@dataclasses.dataclass(frozen=True)
class Thing:
    colour: str | None  # None: the caption does not say it
    shape: str
    size: str | None


@dataclasses.dataclass(frozen=True)
class Claim:
    kind: str  # single, counted, related, joined, three, longer
    things: tuple  # of Thing
    ground: str | None = None
    place: str | None = None  # of the only thing
    relations: tuple = ()  # of (index, relation, index)


@dataclasses.dataclass(frozen=True)
class Scene:
    caption: str
    claim: Claim
    ground: str
    things: tuple  # of Thing, complete
    boxes: tuple  # of (x, y, radius) in pixels, the centre and half the width of each thing's box


# H1: colour and shape. Each shape once, no colour twice.
HELD_PAIRS = {("cyan", "circle"), ("purple", "square"), ("orange", "triangle"), ("pink", "star"), ("green", "ring"), ("yellow", "cross")}
HELD_COUNTS = {(2, "ring"), (3, "triangle"), (4, "square")}  # H4
HELD_GROUNDS = {("gray", "green"), ("black", "purple"), ("dark gray", "yellow")}  # H5


def _hash(text):
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _held_triples():
    """Returns H2: colour, shape and size, four of each size, whose pairs are known and all different."""
    chosen, pairs = set(), set(HELD_PAIRS)
    for size in SIZES:
        pool = sorted(itertools.product(COLOURS, SHAPES), key=lambda pair: _hash(f"{size} {pair[0]} {pair[1]}"))
        four = [pair for pair in pool if pair not in pairs][:4]
        pairs |= set(four)
        chosen |= {(colour, shape, size) for colour, shape in four}
    return chosen


HELD_TRIPLES = _held_triples()


def relation_is_held(first, relation, second):
    """H3. "right" and "below" are the same as "left" and "above" with the things exchanged."""
    if relation in ("right", "below"):
        first, second, relation = second, first, {"right": "left", "below": "above"}[relation]
    return _hash(f"{first.colour} {first.shape} {relation} {second.colour} {second.shape}") % 10 == 0


def held_out(claim, ground, things):
    """Returns the splits that this content belongs to; nothing if it may be trained. H6 is a split of wordings."""
    splits = set()
    if any((thing.colour, thing.shape) in HELD_PAIRS for thing in things):
        splits.add("H1")
    if any((thing.colour, thing.shape, thing.size) in HELD_TRIPLES for thing in things):
        splits.add("H2")
    if any(relation_is_held(things[i], relation, things[j]) for i, relation, j in claim.relations):
        splits.add("H3")
    if claim.kind == "counted" and (len(things), things[0].shape) in HELD_COUNTS:
        splits.add("H4")
    if any((ground, thing.colour) in HELD_GROUNDS for thing in things):
        splits.add("H5")
    if claim.kind == "longer":
        splits.add("H7")
    return splits


# --- content

KINDS = {"single": 0.30, "counted": 0.20, "related": 0.35, "joined": 0.10, "three": 0.05}


def _thing(rng):
    return Thing(rng.choice(list(COLOURS)), rng.choice(SHAPES), rng.choice(list(SIZES)))


def _content(rng, kind, says_all):
    """Returns (claim, ground, things). `says_all`: the claim leaves no colour, size or ground open."""
    count = {"single": 1, "counted": rng.randint(2, THINGS_MAX), "related": 2, "joined": 2, "three": 3, "longer": 3}[kind]
    things = [_thing(rng)]
    while len(things) < count:
        other = things[0] if kind == "counted" else _thing(rng)
        if kind == "related" and rng.random() < 0.5:  # half of the pairs share an attribute
            shared = rng.choice(["colour", "shape"])
            other = dataclasses.replace(other, **{shared: getattr(things[0], shared)})
        things.append(other)
    says_colour = says_all or kind not in ("single", "counted") or rng.random() > 0.08
    says_size = [says_all or rng.random() < 0.5 for _ in things]
    if kind == "counted":
        says_size = says_size[:1] * count
    if kind == "three" and not says_all and rng.random() < 0.5:
        says_size = [False] * count
    said = tuple(dataclasses.replace(thing, colour=thing.colour if says_colour else None, size=thing.size if says else None)
                 for thing, says in zip(things, says_size))
    ground = rng.choice(list(GROUNDS))
    relations = {"related": ((0, rng.choice(["left", "right", "above", "below"]), 1),),
                 "longer": ((0, rng.choice(["left", "right"]), 1), (0, rng.choice(["above", "below"]), 2))}.get(kind, ())
    claim = Claim(kind, said, ground if says_all or rng.random() < 0.5 else None,
                  rng.choice(list(PLACES)) if kind == "single" and rng.random() < 0.5 else None, relations)
    return claim, ground, tuple(things)


def _is_drawable(claim, things):
    pairs = [(thing.colour, thing.shape) for thing in things]
    return claim.kind == "counted" or len(set(pairs)) == len(pairs)


# --- placing


def _centres(rng, claim, varied):
    """Returns the centre (column, row) of each thing in units of GRID. `varied`: what the caption leaves open is random.

    Layouts are tidy: two things that are side by side are in one line, and several equal things form a pattern.
    What a caption leaves open is then small enough for a small network to learn from few pictures."""
    count = len(claim.things)
    if claim.kind == "longer":
        (_, beside, _), (_, upright, _) = claim.relations
        x, y = (NEAR if beside == "left" else FAR), (NEAR if upright == "above" else FAR)
        return [(x, y), (NEAR + FAR - x, y), (x, NEAR + FAR - y)]
    if count == 1:
        if claim.place:
            return [tuple((NEAR, MIDDLE, FAR)[third] for third in PLACES[claim.place])]
        return [(MIDDLE + rng.randint(-1, 1), MIDDLE + rng.randint(-1, 1))] if varied else [(MIDDLE, MIDDLE)]
    if count == 2:
        relation = claim.relations[0][1] if claim.relations else rng.choice(["left", "above"]) if varied else "left"
        line = MIDDLE + rng.randint(-1, 1) if varied else MIDDLE
        ends = (NEAR, FAR) if relation in ("left", "above") else (FAR, NEAR)
        return [(end, line) if relation in ("left", "right") else (line, end) for end in ends]
    if count == 3:
        return [(MIDDLE, NEAR), (NEAR, FAR), (FAR, FAR)]
    return [(x, y) for y in (NEAR, FAR) for x in (NEAR, FAR)]


# --- wording

COLOUR_WORDS = {"purple": "(purple|purple|violet)"}
GROUND_WORDS = {"gray": "(gray|grey)", "dark gray": "dark (gray|grey)"}
SHAPE_WORDS = {"circle": "(circle|circle|disc)", "square": "(square|square|box)"}
PLURALS = {"circle": "(circles|circles|discs)", "square": "(squares|squares|boxes)", "cross": "crosses"}
SIZE_WORDS = {"small": "(small|small|tiny)", "large": "(large|big)"}
COUNT_WORDS = {2: "(two|two|2)", 3: "(three|three|3)", 4: "(four|four|4)"}
RELATION_WORDS = {"left": "(left of|to the left of|on the left of)", "right": "(right of|to the right of|on the right of)",
                  "above": "(above|above|over)", "below": "(below|below|under|beneath)"}
INVERSE = {"left": "right", "right": "left", "above": "below", "below": "above"}
CENTRE = "(centre|center|middle)"
PLACE_WORDS = {"centre": f"in the {CENTRE}", "top": "(at|on) the top", "bottom": "(at|on) the bottom",
               "left": "(at|on) the left( side|)", "right": "(at|on) the right( side|)"}
LEADS = "(||||draw|show|(|draw )a (picture|drawing) of|an image of|V)"  # V: there is, there are
GROUND_SAYS = "(on a G background|on G|against a G background|with a G background)"
# {A} and {B} are things with their articles, R and I the relation and its inverse.
RELATED = ["A R B", "A R B", "A R B", "A is R B", "B with A R it", "B and A R it"]
JOINED = ["A and B", "A and B", "A with B", "A beside B", "A next to B"]
# H6: wordings that are never trained. Their words are known from others.
HELD_WORDINGS = {"single": "there is A on a picture P", "counted": "a picture with N", "related": "R B there is A", "joined": "a drawing with A beside B"}


def _expand(rng, pattern):
    """Replaces each (a|b) by one of its parts."""
    for _ in range(100):
        pattern, replaced = re.subn(r"\(([^()]*)\)", lambda match: rng.choice(match[1].split("|")), pattern)
        if not replaced:
            return " ".join(pattern.split())
    raise AssertionError(f"deep brackets: {pattern}")


def _noun(thing, article, plural=False):
    shape = PLURALS.get(thing.shape, thing.shape + "s") if plural else SHAPE_WORDS.get(thing.shape, thing.shape)
    colour = COLOUR_WORDS.get(thing.colour, thing.colour) if thing.colour else ""
    return f"{article} {SIZE_WORDS.get(thing.size, thing.size) if thing.size else ''} {colour} {shape}"


def _place_words(place):
    return PLACE_WORDS.get(place) or "(at|in) the {}( corner|)".format(
        place.replace("top", "(top|upper)").replace("bottom", "(bottom|lower)"))


def _word(rng, claim, held_wording):
    """Returns a caption for a claim."""
    article = rng.choices(["@", ""], [0.8, 0.2])[0]
    first = rng.choice(["the", "@"]) if article and rng.random() < 0.1 else article
    nouns = [_noun(thing, article if at else first) for at, thing in enumerate(claim.things)]
    values, lead = dict(zip("ABC", nouns)) | {"V": "there is"}, LEADS
    if claim.kind == "single":
        if article and claim.place is None and rng.random() < 0.15:
            values["A"] = _noun(claim.things[0], "(one|1)")
        pattern = "A P"
        values["P"] = _place_words(claim.place) if claim.place else ""
    elif claim.kind == "counted":
        pattern = "N"
        values |= {"N": _noun(claim.things[0], COUNT_WORDS[len(claim.things)], plural=True), "V": "there are"}
    elif claim.kind == "related":
        pattern = rng.choice(RELATED)
        lead = "" if " is " in pattern else lead
        relation = claim.relations[0][1]
        if pattern.startswith("A") and rng.random() < 0.5:  # the other thing may be named first
            values["A"], values["B"], relation = nouns[1], nouns[0], INVERSE[relation]
        values["R"] = RELATION_WORDS[relation]
    elif claim.kind == "joined":
        pattern = rng.choice(JOINED)
    elif claim.kind == "three":
        pattern = "A, B and C"
    else:
        pattern = "A R B and Q C"
        values |= {"R": RELATION_WORDS[claim.relations[0][1]], "Q": RELATION_WORDS[claim.relations[1][1]]}
    if held_wording:
        pattern, lead = HELD_WORDINGS[claim.kind], ""
    body = re.sub(r"\b[A-Z]\b", lambda match: values[match[0]], f"{lead} {pattern}")
    ground = GROUND_SAYS.replace("G", GROUND_WORDS.get(claim.ground, claim.ground)) if claim.ground else ""
    text = _expand(rng, f"{body} {ground}")
    return re.sub(r"@( (?=[aeiou]))?", lambda match: "an " if match[1] else "a", text)


# --- scenes


def scene(rng, wanted="known", kind=None, plain=False):
    """Returns a random Scene of a split: "known" (what is trained) or "H1" to "H7". `plain`: its caption leaves nothing open."""
    chosen = kind or rng.choices(list(KINDS), list(KINDS.values()))[0]
    if wanted in ("H3", "H4", "H6", "H7"):
        chosen = {"H3": "related", "H4": "counted", "H6": rng.choice(list(HELD_WORDINGS)), "H7": "longer"}[wanted]
    for _ in range(TRIES):
        claim, ground, things = _content(rng, chosen, says_all=plain or wanted in ("H1", "H2", "H5"))
        if held_out(claim, ground, things) != ({wanted} if wanted not in ("known", "H6") else set()):
            continue
        if not _is_drawable(claim, things):
            continue
        boxes = tuple((float(GRID * x), float(GRID * y), SIZES[thing.size])
                      for (x, y), thing in zip(_centres(rng, claim, not plain), things))
        caption = _word(rng, claim, wanted == "H6")
        if len(split(caption)) < TEXT_LENGTH:
            return Scene(caption, claim, ground, things, boxes)
    raise AssertionError(f"no scene of {wanted} was found in {TRIES} tries")


def main():
    for wanted in ["known", "H1", "H2", "H3", "H4", "H5", "H6", "H7"]:
        print(wanted)
        for at in range(24 if wanted == "known" else 6):
            print("   ", scene(random.Random(f"{wanted} {at}"), wanted).caption)


if __name__ == "__main__":
    main()
