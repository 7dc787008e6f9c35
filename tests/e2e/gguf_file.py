"""Changes model files: metadata can be changed, removed or renamed; the tensors stay."""

import copy
import struct

_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_U32, _STRING, _ARRAY = 4, 8, 9


def _text(data, at):
    size, = struct.unpack_from("<Q", data, at)
    return data[at + 8:at + 8 + size].decode("utf-8", "surrogateescape"), at + 8 + size


def _after(data, kind, at):
    """The offset behind a value."""
    if kind == _STRING:
        return _text(data, at)[1]
    if kind != _ARRAY:
        return at + _WIDTHS[kind]
    items, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if items != _STRING:
        return at + count * _WIDTHS[items]
    for _ in range(count):
        at = _text(data, at)[1]
    return at


def _packed(text):
    data = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


class GgufFile:
    """A model file. `pairs`: kind and bytes of each value by its key; `tensors`: name, sizes, type and bytes of each."""

    def __init__(self, data):
        magic, version, tensors_count, pairs_count = struct.unpack_from("<4sIQQ", data)
        assert magic == b"GGUF" and version == 3
        at = 24
        self.pairs = {}
        for _ in range(pairs_count):
            key, at = _text(data, at)
            kind, = struct.unpack_from("<I", data, at)
            end = _after(data, kind, at + 4)
            self.pairs[key] = (kind, data[at + 4:end])
            at = end
        infos = []
        for _ in range(tensors_count):
            name, at = _text(data, at)
            dimensions, = struct.unpack_from("<I", data, at)
            sizes = struct.unpack_from(f"<{dimensions}Q", data, at + 4)
            kind, offset = struct.unpack_from("<IQ", data, at + 4 + 8 * dimensions)
            infos.append((name, sizes, kind, offset))
            at += 16 + 8 * dimensions
        begin = (at + 31) // 32 * 32
        ends = [info[3] for info in infos[1:]] + [len(data) - begin]
        self.tensors = [(name, sizes, kind, data[begin + offset:begin + end]) for (name, sizes, kind, offset), end in zip(infos, ends)]

    def texts(self, key):
        """The items of a list of texts."""
        data = self.pairs[key][1]
        count, = struct.unpack_from("<Q", data, 4)
        found, at = [], 12
        for _ in range(count):
            text, at = _text(data, at)
            found.append(text)
        return found

    def numbers(self, key):
        """The items of a list of integers of 32 bits."""
        data = self.pairs[key][1]
        count, = struct.unpack_from("<Q", data, 4)
        return list(struct.unpack_from(f"<{count}i", data, 12))

    def set_text(self, key, value):
        self.pairs[key] = (_STRING, _packed(value))

    def set_number(self, key, value):
        self.pairs[key] = (_U32, struct.pack("<I", value))

    def set_float(self, key, value):
        self.pairs[key] = (6, struct.pack("<f", value))

    def set_texts(self, key, values):
        self.pairs[key] = (_ARRAY, struct.pack("<IQ", _STRING, len(values)) + b"".join(map(_packed, values)))

    def set_numbers(self, key, values, kind=5):
        form = {5: "i", 6: "f"}[kind]
        self.pairs[key] = (_ARRAY, struct.pack(f"<IQ{len(values)}{form}", kind, len(values), *values))

    def rename_architecture(self, name):
        """Makes it a model of another architecture with the same numbers."""
        old = self.architecture
        self.pairs = {name + key[len(old):] if key.startswith(old + ".") else key: value for key, value in self.pairs.items()}
        self.set_text("general.architecture", name)

    @property
    def architecture(self):
        return _text(self.pairs["general.architecture"][1], 0)[0]

    def __bytes__(self):
        head = struct.pack("<4sIQQ", b"GGUF", 3, len(self.tensors), len(self.pairs))
        for key, (kind, value) in self.pairs.items():
            head += _packed(key) + struct.pack("<I", kind) + value
        offset = 0
        for name, sizes, kind, data in self.tensors:
            head += _packed(name) + struct.pack("<I", len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes)
            head += struct.pack("<IQ", kind, offset)
            offset += len(data)
        return head + bytes(-len(head) % 32) + b"".join(data for _, _, _, data in self.tensors)

    def split(self, count):
        """The bytes of each piece, if the model is split over `count` files. The first has the metadata."""
        pieces = []
        for number in range(count):
            piece = copy.copy(self)
            first, end = (len(self.tensors) * edge // count for edge in (number, number + 1))
            piece.tensors = self.tensors[first:end]
            piece.pairs = dict(self.pairs) if number == 0 else {}
            for key, form, value in (("no", "<H", number), ("count", "<H", count), ("tensors.count", "<i", len(self.tensors))):
                piece.pairs[f"split.{key}"] = (2 if form == "<H" else 5, struct.pack(form, value))
            pieces.append(bytes(piece))
        return pieces
