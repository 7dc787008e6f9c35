"""Writes PNG files without a library but zlib."""

import struct
import zlib

import torch


def _chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def write(path, picture, scale=1):
    """Writes a picture [height, width, 3], RGB from 0 to 1, each pixel as scale x scale pixels."""
    levels = (picture.clamp(0, 1) * 255 + 0.5).to(torch.uint8)
    levels = levels.repeat_interleave(scale, 0).repeat_interleave(scale, 1)
    height, width, _ = levels.shape
    rows = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in levels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows, 9)) + _chunk(b"IEND", b""))


def sheet(pictures, columns, gap=4):
    """Returns one picture with all of [count, side, side, 3] in rows of `columns`, `gap` white pixels between them."""
    count, side = pictures.shape[0], pictures.shape[1]
    rows = (count + columns - 1) // columns
    out = torch.ones(rows * (side + gap) + gap, columns * (side + gap) + gap, 3)
    for at in range(count):
        top, left = gap + at // columns * (side + gap), gap + at % columns * (side + gap)
        out[top : top + side, left : left + side] = pictures[at]
    return out
