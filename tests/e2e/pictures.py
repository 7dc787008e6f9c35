"""Small PNG files, written with the standard library only."""

import struct
import zlib


def png(width, height, rows):
    """A PNG file that claims this size. Each of its rows begins with the number of a filter; 0: none."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


RED = png(32, 32, (b"\0" + bytes((230, 30, 40)) * 32) * 32)
GRADIENT = png(32, 32, b"".join(b"\0" + b"".join(bytes((8 * x, 8 * y, 255 - 4 * (x + y))) for x in range(32)) for y in range(32)))
