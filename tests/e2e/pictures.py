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


def read_png(data):
    """Returns (width, height, levels) of an 8-bit RGB file without interlace: rows from the top, three bytes for each pixel."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n", data[:8]
    at, packed, head = 8, b"", None
    while at < len(data):
        (size,), kind = struct.unpack_from(">I", data, at), data[at + 4:at + 8]
        body = data[at + 8:at + 8 + size]
        assert zlib.crc32(kind + body) == struct.unpack_from(">I", data, at + 8 + size)[0], kind
        if kind == b"IHDR":
            head = struct.unpack(">IIBBBBB", body)
        packed += body if kind == b"IDAT" else b""
        at += 12 + size
    width, height, depth, colours, *rest = head
    assert (depth, colours, rest) == (8, 2, [0, 0, 0]), head
    raw, line, before, rows = zlib.decompress(packed), 3 * width, bytes(3 * width), []
    for y in range(height):
        kind, row = raw[y * (line + 1)], bytearray(raw[y * (line + 1) + 1:(y + 1) * (line + 1)])
        for x in range(line):
            left, above, corner = row[x - 3] if x >= 3 else 0, before[x], before[x - 3] if x >= 3 else 0
            row[x] = (row[x] + _predicted(kind, left, above, corner)) % 256
        rows.append(bytes(row))
        before = row
    return width, height, b"".join(rows)


def _predicted(kind, left, above, corner):
    """What a filter of the PNG specification (section 9) predicts for a byte."""
    if kind == 4:
        guess = left + above - corner
        return min((left, above, corner), key=lambda near: abs(guess - near))
    return (0, left, above, (left + above) // 2)[kind]
