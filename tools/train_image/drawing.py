"""Draws scenes with signed distances: batched, antialiased, the same for the same scene.

Pixel (row, column) has its centre at y = row + 0.5, x = column + 0.5. The coverage of a pixel by a shape is
clamp(0.5 - d, 0, 1), where d is the signed distance from the pixel's centre to the shape, in pixels. Things are laid over
the ground in their order: new = old + coverage * (colour - old), in RGB from 0 to 1.
"""

import math

import torch

from scenes import SIDE
from words import COLOURS, GROUNDS, SHAPES

COLOUR_TABLE = torch.tensor(list(COLOURS.values())) / 255.0
GROUND_TABLE = torch.tensor(list(GROUNDS.values())) / 255.0
STAR_WAIST = 0.45  # radius of a star's inner corners, as a share of that of its tips


def distance(shape, x, y, r):
    """Returns the signed distance to a shape whose box is centred at (0, 0), with half the width r. y points down."""
    if shape == "circle":
        return torch.hypot(x, y) - r
    if shape == "ring":  # the hole has half the radius
        return (torch.hypot(x, y) - 0.75 * r).abs() - 0.25 * r
    ax, ay = x.abs(), y.abs()
    if shape == "square":
        return torch.maximum(ax, ay) - r
    if shape == "cross":  # arms of a third of the width
        return torch.minimum(torch.maximum(ax - r, ay - r / 3), torch.maximum(ax - r / 3, ay - r))
    if shape == "triangle":  # (0, -r), (r, r), (-r, r)
        return torch.maximum(y - r, (2 * ax - y - r) / math.sqrt(5.0))
    if shape == "star":  # five tips, one at the top; its box is 1.902 R wide and 1.809 R high
        tip = r / math.sin(0.4 * math.pi)
        y = y - tip * (1 - math.cos(0.2 * math.pi)) / 2
        # The angle to the nearest tip is folded to 0 ... pi/5; then the star is a line from its tip to an inner corner.
        angle = (torch.remainder(torch.atan2(x, -y) + 0.2 * math.pi, 0.4 * math.pi) - 0.2 * math.pi).abs()
        radius = torch.hypot(x, y)
        px, py = radius * torch.cos(angle) - tip, radius * torch.sin(angle)
        ex, ey = STAR_WAIST * math.cos(0.2 * math.pi) - 1, STAR_WAIST * math.sin(0.2 * math.pi)
        return (py * -ex + px * ey) / math.hypot(ex, ey)
    raise ValueError(shape)


def draw(scenes):
    """Returns the pictures of scenes: float [scenes, SIDE, SIDE, 3], RGB from 0 to 1."""
    grounds, colours = list(GROUNDS), list(COLOURS)
    pictures = GROUND_TABLE[torch.tensor([grounds.index(scene.ground) for scene in scenes])][:, None, None, :].repeat(1, SIDE, SIDE, 1)
    centres = torch.arange(SIDE) + 0.5
    for layer in range(max(len(scene.things) for scene in scenes)):
        for shape in SHAPES:
            rows = [at for at, scene in enumerate(scenes) if len(scene.things) > layer and scene.things[layer].shape == shape]
            if not rows:
                continue
            x, y, r = torch.tensor([scenes[at].boxes[layer] for at in rows]).T[:, :, None, None]
            coverage = (0.5 - distance(shape, centres[None, None, :] - x, centres[None, :, None] - y, r)).clamp(0, 1)[..., None]
            colour = COLOUR_TABLE[torch.tensor([colours.index(scenes[at].things[layer].colour) for at in rows])][:, None, None, :]
            pictures[rows] += coverage * (colour - pictures[rows])
    return pictures
