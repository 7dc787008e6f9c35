"""Breaks valid requests: values of the wrong type and around the limits, missing, double and unknown fields, damaged text and
files. The results depend on the random generator only."""

import copy
import json
import struct
import zlib

import forged_files
import surface

# Values as text, because some values are not valid JSON.
WRONG = [
    b"null", b"true", b"false", b"0", b"-0", b"-1", b"1.5", b"1e1", b"1e999", b"-1e999", b"1e-400", b"NaN", b"Infinity", b"-Infinity",
    b"1e308", b"00", b"+1",
    b"2147483647", b"2147483648", b"4294967296", b"9223372036854775807", b"9223372036854775808", b"18446744073709551615",
    b"18446744073709551616", b"-9223372036854775809", b"1" * 400, b"0." + b"3" * 5000,
    b'""', b'"x"', b'" "', b'"\\u0000"', b'"a\\u0000b"', b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\ud83d\\ude00"', b'"\\x"', b'"\x01"',
    b'"\xff\xfe"', b'"\xed\xa0\x80"', b'"\xc0\x80"', b'"\xf4\x90\x80\x80"', b'"\xe2\x82"', b'"' + b"x" * 70_000 + b'"',
    b'"' + "😀".encode() * 5000 + b'"', b'"' + b"\\u00e9" * 5000 + b'"', b'"' + "\u202e\ufeff".encode() + b'"',
    b"[]", b"{}", b"[null]", b"[[]]", b'[""]', b'["x", 1]', b"[1e999]", b'{"": null}', b'{"a": {"a": {}}}', b'{"type": "function"}', b'{"type": 7}',
    b"[" + b"0," * 20_000 + b"0]", b"[" + b'"x",' * 5000 + b'"x"]', b"[" + b"{}," * 5000 + b"{}]",
    b"{" + b",".join(b'"k%d":0' % i for i in range(5000)) + b"}", b'{"a":1,"a":2}',
    *(b"[" * depth + b"]" * depth for depth in (29, 30, 31, 32, 33, 1000)),
    *(b'{"a":' * depth + b"0" + b"}" * depth for depth in (30, 31, 32, 33, 1000)),
    b"[" * 100_000, b'{"a":' * 10_000,
]
# Limit for the size of a body after one mutation, above every limit of the daemon. Without it, long lists of long values would
# exhaust the attacker's memory.
BODY_BYTES_MAX = 20 << 20


def places(value, place=()):
    """Yields the paths of all nested values, as tuples of names and indices."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield (*place, key)
        yield from places(inner, (*place, key))


def holder_of(body, place):
    for key in place[:-1]:
        body = body[key]
    return body


class Mutator:
    """Makes random broken requests."""

    def __init__(self, rng):
        self.rng = rng

    def body(self, valid, options):
        """Returns the bytes of the request `valid` with some of the options, broken in a few places."""
        rng = self.rng
        if not isinstance(valid, dict):
            return self.text(json.dumps(valid).encode())
        body = copy.deepcopy(valid)
        for name in rng.sample(sorted(options), min(len(options), rng.choice((0, 0, 1, 2, 4)))):
            body[name] = copy.deepcopy(options[name])
        raws = []
        for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
            self.field(body, options, raws)
        text = self.dump(body, raws)
        return self.text(text) if rng.random() < 0.15 else text

    def field(self, body, options, raws):
        """Breaks one place of the body. A value that the JSON writer cannot write is added to `raws`, with a mark in the
        body."""
        rng = self.rng
        inside = [*places(body)]
        place = rng.choice(inside) if inside and rng.random() < 0.7 else (rng.choice(sorted(options) or ["colour"]),)
        holder = holder_of(body, place)
        name = place[-1]
        limits = surface.FIELDS.get(name, ())
        kind = rng.random()
        if kind < 0.1 and name in holder if isinstance(holder, dict) else kind < 0.1:
            del holder[name]
        elif kind < 0.5 and limits:
            holder[name] = copy.deepcopy(rng.choice(limits))
        elif kind < 0.55 and isinstance(holder, dict):
            holder["x" * rng.choice((0, 1, 1000))] = 0
        elif kind < 0.6 and isinstance(holder, list):
            count_max = BODY_BYTES_MAX // (2 + len(json.dumps(holder[:1])))
            holder.extend(copy.deepcopy(holder[0]) for _ in range(min(rng.choice((1, 64, 2048)), count_max) if holder else 0))
        else:
            raws.append(rng.choice(WRONG))
            holder[name] = f"\x7fraw{len(raws) - 1}\x7f"

    def dump(self, body, raws):
        text = json.dumps(body, ensure_ascii=self.rng.random() < 0.5).encode()
        for index, raw in enumerate(raws):
            for mark in (f'"\x7fraw{index}\x7f"'.encode(), f'"\\u007fraw{index}\\u007f"'.encode()):
                text = text.replace(mark, raw, BODY_BYTES_MAX // len(raw))
        if self.rng.random() < 0.05 and text.startswith(b"{") and len(text) > 2:  # every name twice
            text = text[:-1] + b"," + text[1:]
        return text

    def text(self, text):
        """Damages the text of a whole body."""
        rng = self.rng
        kind = rng.randrange(7)
        if kind == 0:
            return text[:rng.randrange(len(text) + 1)]
        if kind == 1:
            return text + rng.choice((b" ", b"}", b"{}", b"\0", b"trailing", text))
        if kind == 2:
            return rng.choice((b"\xef\xbb\xbf" + text, text.decode("utf-8", "replace").encode("utf-16"), b"\n" * 10_000 + text))
        if kind == 3:
            return rng.choice(WRONG)
        return self.flipped(text)

    def flipped(self, data, most=8):
        """Changes, removes or doubles a few bytes."""
        rng = self.rng
        data = bytearray(data)
        for _ in range(rng.randrange(1, most)):
            at = rng.randrange(len(data) + 1)
            kind = rng.randrange(4)
            if kind == 0:
                data[at:at] = rng.randbytes(rng.choice((1, 4, 16)))
            elif kind == 1:
                del data[at:at + rng.choice((1, 4, 64))]
            elif at < len(data):
                data[at] = rng.choice((0, 255, rng.randrange(256), data[at] ^ 1 << rng.randrange(8)))
        return bytes(data)

    def session_file(self, file):
        """Returns a session's file with changed bytes. In most cases its checksum is valid."""
        rng = self.rng
        if len(file) < 120 or rng.random() < 0.3:
            return self.flipped(file)
        conversation = forged_files.Conversation(file)
        rest = file[conversation.length:]
        for _ in range(rng.randrange(1, 4)):
            if rng.random() < 0.6:
                at = rng.choice(range(8, min(len(conversation.data) - 4, 200), 4))
                conversation.set(at, rng.choice((0, 1, -1, 2, 16, 255, 2**31 - 1, -2**31, 2**31 - 16, rng.randrange(2**31))))
            else:
                conversation.data = bytearray(self.flipped(conversation.data, 3))
        if rng.random() < 0.3 and len(conversation.data) > 16:
            struct.pack_into("<I", conversation.data, 12, len(conversation.data) + 16)
        if rng.random() < 0.3:
            rest = self.flipped(rest) if rest else b"umaimage" + struct.pack("<Q", rng.choice((0, 1, 2**63, 65_537))) + rng.randbytes(40)
        return bytes(conversation) + rest

    def image(self, file):
        """Returns a file with changed bytes, a PNG file with changed chunks and valid checksums, or the header of another format."""
        rng = self.rng
        if rng.random() < 0.3:
            return rng.choice((b"GIF89a" + rng.randbytes(40), b"\xff\xd8\xff" + rng.randbytes(200), b"BM" + rng.randbytes(120),
                               b"GIF89a\xff\xff\xff\xff\x80\0\0" + bytes(20), b"", b"\x89PNG\r\n\x1a\n", b"RIFF" + bytes(4) + b"WEBP"))
        if rng.random() < 0.3 or not file.startswith(b"\x89PNG"):
            return self.flipped(file)
        made, at = file[:8], 8
        while at + 12 <= len(file):
            length, = struct.unpack_from(">I", file, at)
            kind, data = file[at + 4:at + 8], file[at + 8:at + 8 + length]
            at += 12 + length
            if rng.random() < 0.5:
                if kind == b"IHDR":
                    data = struct.pack(">II", rng.choice((0, 1, 32, 16_384, 16_385, 2**31)), rng.choice((1, 32, 8192))) + self.flipped(data, 2)[8:]
                else:
                    data = self.flipped(data, 4)
            length = rng.choice((len(data), len(data), len(data), 0, 2**31))
            made += struct.pack(">I", length) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        return made
