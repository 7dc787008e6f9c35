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

import torch
import torch.nn.functional as F

from drawing import STAR_WAIST, distance
from scenes import SIDE
from words import COLOURS, GROUNDS, PLACES, SHAPES

PALETTE = list(COLOURS) + list(GROUNDS)
PALETTE_LEVELS = torch.tensor(list(COLOURS.values()) + list(GROUNDS.values()), dtype=torch.float32)
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


def _regions(keys, skipped):
    """Returns the 4-connected regions of equal keys as lists of pixels. keys: SIDE * SIDE numbers in rows."""
    seen = [key in skipped for key in keys]
    regions = []
    for start, skip in enumerate(keys):
        if skip in skipped or seen[start]:
            continue
        seen[start] = True
        region = [start]
        for at in region:  # grows while it is read
            x = at % SIDE
            for near in (at - SIDE, at + SIDE, at - 1 if x > 0 else -1, at + 1 if x < SIDE - 1 else -1):
                if 0 <= near < SIDE * SIDE and not seen[near] and keys[near] == keys[at]:
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
    keys = [int(value >= 0.5) for value in coverage.flatten().tolist()]
    start = min(max(int(y), 0), SIDE - 1) * SIDE + min(max(int(x), 0), SIDE - 1)
    region = next((region for region in _regions(keys, {1}) if start in region), None)
    return region is None or any(at % SIDE in (0, SIDE - 1) or at // SIDE in (0, SIDE - 1) for at in region)


def _shapes(coverage):
    """Returns (shape or None, radius, x, y) for each coverage of [count, SIDE, SIDE]."""
    centres = torch.arange(SIDE) + 0.5
    area = coverage.sum((1, 2))
    cx = (coverage.sum(1) * centres).sum(1) / area
    cy = (coverage.sum(2) * centres).sum(1) / area
    scores, radii = [], []
    for shape in SHAPES:
        r = (area / UNIT_AREA[shape]).sqrt()
        x = centres[None, None, :] - cx[:, None, None]
        y = centres[None, :, None] - (cy - CENTROID[shape] * r)[:, None, None]
        drawn = (0.5 - distance(shape, x, y, r[:, None, None])).clamp(0, 1)
        scores.append(torch.minimum(drawn, coverage).sum((1, 2)) / torch.maximum(drawn, coverage).sum((1, 2)))
        radii.append(r)
    best, order = torch.stack(scores, 1).sort(1, descending=True)
    out = []
    for at in range(len(coverage)):
        shape, r = SHAPES[order[at, 0]], radii[order[at, 0]][at].item()
        x, y = cx[at].item(), cy[at].item() - CENTROID[shape] * r
        sure = best[at, 0] >= SHAPE_SCORE and best[at, 0] - best[at, 1] >= SHAPE_LEAD
        if shape == "ring" and sure:
            sure = not _walk_leaves(coverage[at], x, y)
        out.append((shape if sure else None, r, x, y))
    return out


def look(pictures):
    """Returns (ground, things found) of each picture. pictures: [count, SIDE, SIDE, 3], RGB from 0 to 1."""
    levels = (pictures.float().clamp(0, 1) * 255 + 0.5).floor()
    far, classes = torch.stack([((levels - colour) ** 2).sum(-1) for colour in PALETTE_LEVELS]).min(0)
    classes[far > CLASS_DISTANCE**2] = EDGE
    grounds, cores, labels = [], [], torch.full((len(pictures), SIDE * SIDE), -1)
    for at, keys in enumerate(classes.flatten(1).tolist()):
        border = [keys[p] for p in BORDER]
        ground = max(range(len(COLOURS), EDGE), key=border.count)
        grounds.append(ground)
        regions = sorted((region for region in _regions(keys, {ground, EDGE}) if _is_solid(region)), key=len, reverse=True)
        for region in regions[:FOUND_MAX]:
            labels[at, region] = len(cores)
            cores.append((at, keys[region[0]]))
    labels = labels.view(-1, SIDE, SIDE)
    found = [[] for _ in grounds]
    beside = torch.zeros(labels.shape, dtype=torch.bool)
    if cores:
        rows = torch.tensor([at for at, _ in cores])
        own = labels[rows] == torch.arange(len(cores))[:, None, None]
        wide = F.max_pool2d(own[:, None].float(), 3, 1, 1)[:, 0] > 0
        beside.index_put_((rows,), wide, accumulate=True)
        ground = PALETTE_LEVELS[torch.tensor([grounds[at] for at, _ in cores])][:, None, None, :]
        step = PALETTE_LEVELS[torch.tensor([colour for _, colour in cores])][:, None, None, :] - ground
        coverage = (((levels[rows] - ground) * step).sum(-1) / (step**2).sum(-1)).clamp(0, 1)
        coverage = coverage * (own | (wide & (labels[rows] < 0)))
        for (at, colour), (shape, r, x, y) in zip(cores, _shapes(coverage)):
            size = "small" if r <= 8.0 else "medium" if r <= 12.0 else "large"
            found[at].append(Found(PALETTE[colour], shape, size, x, y))
    grounds_map = torch.tensor(grounds)[:, None, None]
    rest = (classes != grounds_map) & ~beside
    for at in rest.flatten(1).any(1).nonzero().flatten().tolist():
        found[at] += [Found(None, None, "small", 0.0, 0.0) for region in _regions(rest[at].flatten().int().tolist(), {0}) if _is_solid(region)]
    return [(PALETTE[ground], things[:FOUND_MAX]) for ground, things in zip(grounds, found)]


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
    """Returns the verdicts of pictures about their claims."""
    return [judge(ground, found, claim) for (ground, found), claim in zip(look(pictures), claims)]
