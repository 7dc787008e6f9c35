"""The shapes of the pictures, by their signed distances. For single points (ops = POINTS) and for tensors (ops = torch)."""

import math

STAR_WAIST = 0.45  # radius of a star's inner corners, as a share of that of its tips


class POINTS:
    """What torch calls its functions, for numbers."""

    hypot, atan2, cos, sin = math.hypot, math.atan2, math.cos, math.sin
    maximum, minimum, abs = max, min, abs

    @staticmethod
    def remainder(a, b):
        return a - b * math.floor(a / b)


def distance(shape, x, y, r, ops=POINTS):
    """Returns the signed distance to a shape whose box is centred at (0, 0), with half the width r. y points down."""
    if shape == "circle":
        return ops.hypot(x, y) - r
    if shape == "ring":  # the hole has half the radius
        return ops.abs(ops.hypot(x, y) - 0.75 * r) - 0.25 * r
    ax, ay = ops.abs(x), ops.abs(y)
    if shape == "square":
        return ops.maximum(ax, ay) - r
    if shape == "cross":  # arms of a third of the width
        return ops.minimum(ops.maximum(ax - r, ay - r / 3), ops.maximum(ax - r / 3, ay - r))
    if shape == "triangle":  # (0, -r), (r, r), (-r, r)
        return ops.maximum(y - r, (2 * ax - y - r) / math.sqrt(5.0))
    if shape == "star":  # five tips, one at the top; its box is 1.902 R wide and 1.809 R high
        tip = r / math.sin(0.4 * math.pi)
        y = y - tip * (1 - math.cos(0.2 * math.pi)) / 2
        # The angle to the nearest tip is folded to 0 ... pi/5; then the star is a line from its tip to an inner corner.
        angle = ops.abs(ops.remainder(ops.atan2(x, -y) + 0.2 * math.pi, 0.4 * math.pi) - 0.2 * math.pi)
        radius = ops.hypot(x, y)
        px, py = radius * ops.cos(angle) - tip, radius * ops.sin(angle)
        ex, ey = STAR_WAIST * math.cos(0.2 * math.pi) - 1, STAR_WAIST * math.sin(0.2 * math.pi)
        return (py * -ex + px * ey) / math.hypot(ex, ey)
    raise ValueError(shape)
