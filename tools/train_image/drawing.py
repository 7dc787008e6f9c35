"""Draws scenes with signed distances: batched, antialiased, the same for the same scene.

Pixel (row, column) has its centre at y = row + 0.5, x = column + 0.5. The coverage of a pixel by a shape is
clamp(0.5 - d, 0, 1), where d is the signed distance from the pixel's centre to the shape, in pixels. Things are laid over
the ground in their order: new = old + coverage * (colour - old), in RGB from 0 to 1.
"""

import torch

from scenes import SIDE
from shapes import distance
from words import COLOURS, GROUNDS, SHAPES

COLOUR_TABLE = torch.tensor(list(COLOURS.values())) / 255.0
GROUND_TABLE = torch.tensor(list(GROUNDS.values())) / 255.0


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
            coverage = (0.5 - distance(shape, centres[None, None, :] - x, centres[None, :, None] - y, r, torch)).clamp(0, 1)[..., None]
            colour = COLOUR_TABLE[torch.tensor([colours.index(scenes[at].things[layer].colour) for at in rows])][:, None, None, :]
            pictures[rows] += coverage * (colour - pictures[rows])
    return pictures


def levels(pictures):
    """Returns each of the pictures [count, SIDE, SIDE, 3], RGB from 0 to 1, as bytes."""
    return [bytes(picture.flatten().tolist()) for picture in (pictures.float().clamp(0, 1) * 255 + 0.5).to(torch.uint8)]
