"""Judges pictures: finds the things in the pixels and compares them with what a caption claims. No network is involved.

The steps, for a picture of 8-bit levels (floor(255 * value + 0.5)):
1. The class of a pixel is the nearest palette colour (COLOURS, then GROUNDS; the first of equal ones) if its RGB distance is at
   most 55, else EDGE. The ground is the commonest of the four ground colours among the classes of the 2 outer pixels.
2. A core is a 4-connected set of pixels of one class, not the ground's nor EDGE, that is solid: it has at least 12 pixels, and
   at least a quarter as many 2x2 blocks as pixels. Antialiased edges between two colours may look like a third one, but they are
   thin and so not solid.
3. The coverage of a core is a number per pixel: clamp((p - g).(c - g) / |c - g|^2, 0, 1) for pixels p of the core and for their
   8 neighbours that are in no core, 0 elsewhere; g is the ground's palette colour, c the core's.
4. Its shape: the coverage has an area A (its sum) and a centroid. Each shape is drawn as drawing.py does, at the radius and the
   centre that give it the same area and centroid, and compared: sum of the minima / sum of the maxima. The best shape must reach
   0.75 and be 0.05 ahead of the second, else the core has no shape. A ring must be closed: a 4-connected walk over pixels with
   a coverage below 0.5, from the ring's centre, must not reach the border of the picture.
5. The size is that of the radius: up to 8 small, up to 12 medium, else large.
6. Solid 4-connected sets of pixels that are neither of the ground's class nor in or beside a core are things without colour.
7. The things of the claim are assigned to what was found so that as many attributes as possible are right. The picture is right
   if all attributes are, the ground is, and nothing else was found.
"""

import dataclasses
import itertools
import math

from scenes import SIDE
from shapes import STAR_WAIST, distance
from words import COLOURS, GROUNDS, PLACES, SHAPES

PALETTE = list(COLOURS) + list(GROUNDS)
PALETTE_LEVELS = list(COLOURS.values()) + list(GROUNDS.values())
EDGE = len(PALETTE)
CLASS_DISTANCE = 55.0
SOLID_PIXELS = 12
SHAPE_SCORE, SHAPE_LEAD = 0.75, 0.05
BORDER = [p for p in range(SIDE * SIDE) if min(p % SIDE, p // SIDE, SIDE - 1 - p % SIDE, SIDE - 1 - p // SIDE) < 2]
FOUND_MAX = 6  # the largest things of a picture; more make it wrong anyway

_TIP = 1.0 / math.sin(0.4 * math.pi)
# Area of a shape of radius 1, and how far its centroid is below the centre of its box.
UNIT_AREA = {"circle": math.pi, "square": 4.0, "triangle": 2.0, "ring": 0.75 * math.pi, "cross": 20 / 9,
             "star": 5 * _TIP**2 * STAR_WAIST * math.sin(0.2 * math.pi)}
CENTROID = {shape: 0.0 for shape in SHAPES} | {"triangle": 1 / 3, "star": _TIP * (1 - math.cos(0.2 * math.pi)) / 2}


@dataclasses.dataclass(frozen=True)
class Found:
    colour: str | None
    shape: str | None
    size: str
    x: float  # centre of the shape's box, in pixels
    y: float


def _near(at):
    """Returns the pixels above, below and beside a pixel."""
    x = at % SIDE
    near = [at - SIDE, at + SIDE, at - 1 if x > 0 else -1, at + 1 if x < SIDE - 1 else -1]
    return [other for other in near if 0 <= other < SIDE * SIDE]


NEAR = [_near(at) for at in range(SIDE * SIDE)]
# With the pixel itself and those at its corners.
AROUND = [[y * SIDE + x for y in range(max(0, at // SIDE - 1), min(SIDE, at // SIDE + 2)) for x in range(max(0, at % SIDE - 1), min(SIDE, at % SIDE + 2))]
          for at in range(SIDE * SIDE)]


def _regions(keys, skipped):
    """Returns the 4-connected regions of equal keys as lists of pixels. keys: SIDE * SIDE numbers in rows."""
    seen = [key in skipped for key in keys]
    regions = []
    for start, skip in enumerate(keys):
        if seen[start]:
            continue
        seen[start] = True
        region = [start]
        for at in region:  # grows while it is read
            for near in NEAR[at]:
                if not seen[near] and keys[near] == skip:
                    seen[near] = True
                    region.append(near)
        regions.append(region)
    return regions


def _is_solid(region):
    if len(region) < SOLID_PIXELS:
        return False
    pixels = set(region)
    blocks = sum(at % SIDE < SIDE - 1 and at + 1 in pixels and at + SIDE in pixels and at + SIDE + 1 in pixels for at in region)
    return 4 * blocks >= len(region)


def _walk_leaves(coverage, x, y):
    """Tells whether a walk from (x, y) over pixels with a coverage below 0.5 reaches the border of the picture."""
    start = min(max(int(y), 0), SIDE - 1) * SIDE + min(max(int(x), 0), SIDE - 1)
    if coverage.get(start, 0.0) >= 0.5:
        return True
    walked = {start}
    todo = [start]
    for at in todo:  # grows while it is read
        if at % SIDE in (0, SIDE - 1) or at // SIDE in (0, SIDE - 1):
            return True
        for near in NEAR[at]:
            if near not in walked and coverage.get(near, 0.0) < 0.5:
                walked.add(near)
                todo.append(near)
    return False


def _likeness(coverage, shape, x, y, r):
    """Returns how much of a coverage and of a drawn shape is common to both."""
    common = either = 0.0
    for row in range(max(0, int(y - 1.2 * r) - 2), min(SIDE, int(y + 1.2 * r) + 3)):
        for column in range(max(0, int(x - 1.2 * r) - 2), min(SIDE, int(x + 1.2 * r) + 3)):
            drawn = min(max(0.5 - distance(shape, column + 0.5 - x, row + 0.5 - y, r), 0.0), 1.0)
            here = coverage.get(row * SIDE + column, 0.0)
            common += min(drawn, here)
            either += drawn
    return common / (either + sum(coverage.values()) - common)


def _shape_of(coverage):
    """Returns (shape or None, radius, x, y). coverage: from 0 to 1, by pixel."""
    area = sum(coverage.values())
    cx = sum((at % SIDE + 0.5) * part for at, part in coverage.items()) / area
    cy = sum((at // SIDE + 0.5) * part for at, part in coverage.items()) / area
    scores = []
    for shape in SHAPES:
        r = math.sqrt(area / UNIT_AREA[shape])
        y = cy - CENTROID[shape] * r
        scores.append((_likeness(coverage, shape, cx, y, r), shape, r, y))
    scores.sort(reverse=True)
    best, shape, r, y = scores[0]
    sure = best >= SHAPE_SCORE and best - scores[1][0] >= SHAPE_LEAD
    if shape == "ring" and sure:
        sure = not _walk_leaves(coverage, cx, y)
    return (shape if sure else None), r, cx, y


_classes = {}  # of the colours that were met, because most are met often


def _class(colour):
    if colour not in _classes:
        if len(_classes) > 100_000:
            _classes.clear()
        far = [sum((a - b) ** 2 for a, b in zip(colour, palette)) for palette in PALETTE_LEVELS]
        nearest = min(range(EDGE), key=far.__getitem__)
        _classes[colour] = nearest if far[nearest] <= CLASS_DISTANCE**2 else EDGE
    return _classes[colour]


def _coverage(colours, core, labels, colour, ground):
    """Returns the coverage of a core, by pixel."""
    low, step = PALETTE_LEVELS[ground], [a - b for a, b in zip(PALETTE_LEVELS[colour], PALETTE_LEVELS[ground])]
    size = sum(value * value for value in step)
    pixels = set(core) | {near for at in core for near in AROUND[at] if labels[near] < 0}
    return {at: min(max(sum((value - least) * part for value, least, part in zip(colours[at], low, step)) / size, 0.0), 1.0) for at in pixels}


def look(levels):
    """Returns (ground, things found) of a picture. levels: SIDE * SIDE * 3 bytes, in rows, RGB."""
    colours = list(zip(levels[0::3], levels[1::3], levels[2::3]))
    classes = [_class(colour) for colour in colours]
    border = [classes[at] for at in BORDER]
    ground = max(range(len(COLOURS), EDGE), key=border.count)
    cores = sorted((region for region in _regions(classes, {ground, EDGE}) if _is_solid(region)), key=len, reverse=True)[:FOUND_MAX]
    labels = [-1] * (SIDE * SIDE)
    for number, core in enumerate(cores):
        for at in core:
            labels[at] = number
    found = []
    beside = set()
    for core in cores:
        colour = classes[core[0]]
        shape, r, x, y = _shape_of(_coverage(colours, core, labels, colour, ground))
        size = "small" if r <= 8.0 else "medium" if r <= 12.0 else "large"
        found.append(Found(PALETTE[colour], shape, size, x, y))
        beside.update(near for at in core for near in AROUND[at])
    rest = [int(kind != ground and at not in beside) for at, kind in enumerate(classes)]
    if any(rest):
        found += [Found(None, None, "small", 0.0, 0.0) for region in _regions(rest, {0}) if _is_solid(region)]
    return PALETTE[ground], found[:FOUND_MAX]


def relation_holds(a, relation, b):
    """Tells whether `a` is e.g. left of `b`: at least 6 pixels along the axis, and not less than across it."""
    along, across = b.x - a.x, abs(b.y - a.y)
    if relation in ("above", "below"):
        along, across = b.y - a.y, abs(b.x - a.x)
    along = -along if relation in ("right", "below") else along
    return along >= 6.0 and along >= across


def judge(ground, found, claim):
    """Returns {attribute: right?}. An attribute that the claim does not speak of is absent. "all" is the whole picture;
    "swapped" tells that only the relation is reversed, or that colours and shapes are right but not together."""
    wanted = claim.things
    padded = list(found) + [Found(None, None, "", 0.0, 0.0)] * (len(wanted) - len(found))

    def right(things):
        pairs = list(zip(wanted, things))
        colours = [want.colour is None and thing.colour in COLOURS or want.colour == thing.colour for want, thing in pairs]
        shapes = [want.shape == thing.shape for want, thing in pairs]
        sizes = [want.size is None or want.size == thing.size for want, thing in pairs]
        relations = [relation_holds(things[i], relation, things[j]) for i, relation, j in claim.relations]
        return colours, shapes, sizes, relations

    things = max(itertools.permutations(padded, len(wanted)), key=lambda chosen: sum(sum(part) for part in right(chosen)))
    colours, shapes, sizes, relations = right(things)
    verdict = {"count": len(found) == len(wanted), "colour": all(colours), "shape": all(shapes)}
    if any(want.size for want in wanted):
        verdict["size"] = all(sizes)
    if claim.relations:
        verdict["relation"] = all(relations) and all(colours) and all(shapes)
    if claim.place:
        third = tuple(min(2, max(0, int(3 * value / SIDE))) for value in (things[0].x, things[0].y))
        verdict["place"] = third == PLACES[claim.place]
    if claim.ground:
        verdict["ground"] = ground == claim.ground
    verdict["all"] = all(verdict.values())
    verdict["junk"] = any(thing.shape is None for thing in found)
    reversed_relation = bool(claim.relations) and all(colours) and all(shapes) and all(
        relation_holds(things[j], relation, things[i]) for i, relation, j in claim.relations)
    mixed = len(found) == len(wanted) and not (all(colours) and all(shapes)) and all(
        sorted(str(getattr(want, part)) for want in wanted) == sorted(str(getattr(thing, part)) for thing in found)
        for part in ("colour", "shape"))
    verdict["swapped"] = reversed_relation or mixed
    return verdict


def check(pictures, claims):
    """Returns the verdicts of pictures, as look() takes them, about their claims."""
    return [judge(*look(levels), claim) for levels, claim in zip(pictures, claims)]
