"""Small files of pictures, PNG written with the standard library only."""

import base64
import struct
import zlib


def png(width, height, rows, depth=8, colours=2, palette=b"", alpha=b""):
    """A PNG file that claims this size. Each of its rows begins with the number of a filter; 0: none."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0)
    tables = (chunk(b"PLTE", palette) if palette else b"") + (chunk(b"tRNS", alpha) if alpha else b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + tables + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


RED = png(32, 32, (b"\0" + bytes((230, 30, 40)) * 32) * 32)
GRADIENT = png(32, 32, b"".join(b"\0" + b"".join(bytes((8 * x, 8 * y, 255 - 4 * (x + y))) for x in range(32)) for y in range(32)))

# The gradient, losslessly.
GRADIENT_WEBP = base64.b64decode(
    "UklGRj4AAABXRUJQVlA4TDEAAAAvH8AHAAmASNoffIWI/qcuAILwH64hBrz/IXAICQjR/9eyMggKAQRA/J2bmABMarM3AA==")
# Left red and right blue, to be turned by 90 degrees (EXIF): a person sees red above blue, 16 by 32 pixels.
PHOTO_JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/4QAiRXhpZgAASUkqAAgAAAABABIBAwABAAAABgAAAAAAAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDh"
    "IQDQ4RDgsLEBYQERMUFRUVDA8XGBYUGBIUFRT/2wBDAQMEBAUEBQkFBQkUDQsNFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBT/"
    "wAARCAAQACADASIAAhEBAxEB/8QAHwAAAQUBAQEBAQEAAAAAAAAAAAECAwQFBgcICQoL/8QAtRAAAgEDAwIEAwUFBAQAAAF9AQIDAAQRBRIhMUEGE1FhByJxFDKBkaEII0"
    "KxwRVS0fAkM2JyggkKFhcYGRolJicoKSo0NTY3ODk6Q0RFRkdISUpTVFVWV1hZWmNkZWZnaGlqc3R1dnd4eXqDhIWGh4iJipKTlJWWl5iZmqKjpKWmp6ipqrKztLW2t7i5"
    "usLDxMXGx8jJytLT1NXW19jZ2uHi4+Tl5ufo6erx8vP09fb3+Pn6/8QAHwEAAwEBAQEBAQEBAQAAAAAAAAECAwQFBgcICQoL/8QAtREAAgECBAQDBAcFBAQAAQJ3AAECAx"
    "EEBSExBhJBUQdhcRMiMoEIFEKRobHBCSMzUvAVYnLRChYkNOEl8RcYGRomJygpKjU2Nzg5OkNERUZHSElKU1RVVldYWVpjZGVmZ2hpanN0dXZ3eHl6goOEhYaHiImKkpOU"
    "lZaXmJmaoqOkpaanqKmqsrO0tba3uLm6wsPExcbHyMnK0tPU1dbX2Nna4uPk5ebn6Onq8vP09fb3+Pn6/9oADAMBAAIRAxEAPwDxSiiivwo/01PB6KKK/wBrT/Io/9k=")
# Of one colour, progressive.
CMYK_JPEG = base64.b64decode(
    "/9j/7gAOQWRvYmUAZAAAAAAA/9sAQwADAgIDAgIDAwMDBAMDBAUIBQUEBAUKBwcGCAwKDAwLCgsLDQ4SEA0OEQ4LCxAWEBETFBUVFQwPFxgWFBgSFBUU/8IAFAgAEAAQBE"
    "MRAE0RAFkRAEsRAP/EABYAAQEBAAAAAAAAAAAAAAAAAAAIB//aAA4EQwBNAFkASwAAAAHYJhm+qQAP/8QAFBABAAAAAAAAAAAAAAAAAAAAIP/aAAgBQwABBQIf/8QAFBAB"
    "AAAAAAAAAAAAAAAAAAAAIP/aAAgBTQABBQIf/8QAFBABAAAAAAAAAAAAAAAAAAAAIP/aAAgBWQABBQIf/8QAFBABAAAAAAAAAAAAAAAAAAAAIP/aAAgBSwABBQIf/8QAFB"
    "ABAAAAAAAAAAAAAAAAAAAAIP/aAAgBQwAGPwIf/8QAFBABAAAAAAAAAAAAAAAAAAAAIP/aAAgBTQAGPwIf/8QAFBABAAAAAAAAAAAAAAAAAAAAIP/aAAgBWQAGPwIf/8QA"
    "FBABAAAAAAAAAAAAAAAAAAAAIP/aAAgBSwAGPwIf/8QAFBABAAAAAAAAAAAAAAAAAAAAIP/aAAgBQwABPyEf/8QAFBABAAAAAAAAAAAAAAAAAAAAIP/aAAgBTQABPyEf/8"
    "QAFBABAAAAAAAAAAAAAAAAAAAAIP/aAAgBWQABPyEf/8QAFBABAAAAAAAAAAAAAAAAAAAAIP/aAAgBSwABPyEf/9oADgRDAE0AWQBLAAAAEFVV/8QAFBABAAAAAAAAAAAA"
    "AAAAAAAAIP/aAAgBQwABPxAf/8QAFBABAAAAAAAAAAAAAAAAAAAAIP/aAAgBTQABPxAf/8QAFBABAAAAAAAAAAAAAAAAAAAAIP/aAAgBWQABPxAf/8QAFBABAAAAAAAAAA"
    "AAAAAAAAAAIP/aAAgBSwABPxAf/9k=")


def webp_chunk(kind, data):
    return kind + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)


def riff(chunks):
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WEBP" + chunks


def webp_canvas(width, height, flags=0):
    return webp_chunk(b"VP8X", struct.pack("<I", flags) + struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3])


def _frame(file):
    """A frame of an animation of 32 by 32 pixels."""
    return webp_chunk(b"ANMF", bytes(6) + struct.pack("<I", 31)[:3] * 2 + bytes(4) + file[12:])


ANIMATED_WEBP = riff(webp_canvas(32, 32, 2) + webp_chunk(b"ANIM", bytes(6)) + _frame(GRADIENT_WEBP) + _frame(GRADIENT_WEBP))
ALL = (RED, GRADIENT, GRADIENT_WEBP, ANIMATED_WEBP, PHOTO_JPEG, CMYK_JPEG)


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
