"""Takes session files apart, changes them, and puts them together with right checksums (docs/SESSION_FILE.md,
docs/STATE_FILE.md)."""

import ctypes
import struct

_BLOCK = 4096


class _Digest(ctypes.Structure):
    _fields_ = (("low", ctypes.c_uint64), ("high", ctypes.c_uint64))


_xxhash = ctypes.CDLL("libxxhash.so.0")
_xxhash.XXH3_128bits.restype = _Digest
_xxhash.XXH3_128bits.argtypes = (ctypes.c_char_p, ctypes.c_size_t)


def checksum(data):
    digest = _xxhash.XXH3_128bits(bytes(data), len(data))
    return struct.pack("<QQ", digest.low, digest.high)


def in_blocks(data):
    return data + bytes(-len(data) % _BLOCK)


class Conversation:
    """The first part of a file. Numbers are changed in place, so nothing else moves."""

    COUNTS_AT, ON_FULL_AT, N_KEEP_AT, DROPPED_AT, METADATA_AT, TEXTS_AT = 44, 84, 88, 92, 96, 100

    def __init__(self, file):
        self.data = bytearray(file[:struct.unpack_from("<I", file, 12)[0] - 16])

    def set(self, at, value):
        struct.pack_into("<i", self.data, at, value)

    def turn_at(self, turn):
        """Where a turn lies; the chain follows the last one."""
        counts = struct.unpack_from("<10I", self.data, self.COUNTS_AT)
        metadata, = struct.unpack_from("<I", self.data, self.METADATA_AT)
        return self.TEXTS_AT + sum(counts[:3]) + counts[8] + counts[9] + metadata + 12 * turn

    @property
    def chain_at(self):
        return self.turn_at(struct.unpack_from("<10I", self.data, self.COUNTS_AT)[3])

    def set_turn(self, turn, field, value):
        """Sets a field of a turn. `field`: 0: begin of its input; 1: begin of its reply; 2: its first message."""
        self.set(self.turn_at(turn) + 4 * field, value)

    def __bytes__(self):
        return bytes(self.data) + checksum(self.data)

    @property
    def length(self):
        return len(self.data) + 16


class State:
    """The KV that follows a conversation without images."""

    def __init__(self, data):
        head_bytes, = struct.unpack_from("<I", data, 12)
        self.version, = struct.unpack_from("<I", data, 8)
        tenant, session, identity, tokens, pieces = struct.unpack_from("<5I", data, 36)
        assert tenant == session == 0
        at = 56
        self.identity = data[at:at + identity]
        at += identity
        self.tokens = list(struct.unpack_from(f"<{tokens}i", data, at))
        at += 4 * tokens
        self.pieces = []  # (end, bytes) of each piece
        payload_at = head_bytes
        for piece in range(pieces):
            end, size = struct.unpack_from("<iQ", data, at + 12 * piece)
            self.pieces.append((end, bytearray(data[payload_at:payload_at + size])))
            payload_at += len(in_blocks(bytes(size)))

    def __bytes__(self):
        tokens = struct.pack(f"<{len(self.tokens)}i", *self.tokens)
        image = struct.pack("<Q", len(self.identity)) + self.identity + struct.pack("<Q", len(self.tokens)) + tokens
        image += struct.pack("<Q", len(self.pieces))
        begin = 0
        for end, data in self.pieces:
            image += struct.pack("<iiQ", begin, end, len(data)) + data
            begin = end
        entries = b"".join(struct.pack("<iQ", end, len(data)) for end, data in self.pieces)
        head_bytes = len(in_blocks(bytes(56 + len(self.identity) + len(tokens) + len(entries) + 16)))
        head = b"umastate" + struct.pack("<II", self.version, head_bytes) + checksum(image)
        head += struct.pack("<6I", 0, 0, 0, len(self.identity), len(self.tokens), len(self.pieces)) + self.identity + tokens + entries
        head += bytes(head_bytes - 16 - len(head))
        return head + checksum(head) + b"".join(in_blocks(bytes(data)) for _, data in self.pieces)

    def heads(self):
        """Yields (bytes of the piece, offset of the numbers that describe its keys and values): whether values are transposed,
        the layers, and by how much keys and values are rotated."""
        for data, begin, _ in self.tensors():
            if begin == self._first:
                yield data, begin - 12 - 16

    def tensors(self):
        """Yields (bytes of the piece, begin, end) of the keys and values of each layer, in the library's format (16-bit
        floats)."""
        for _, data in self.pieces:
            at = 8
            streams, = struct.unpack_from("<I", data, at)
            at += 4
            for _ in range(streams):
                cells, = struct.unpack_from("<I", data, at)
                at += 4
                if cells == 0:
                    continue
                at += 12 * cells
                transposed, layers = struct.unpack_from("<II", data, at)
                at += 16
                self._first = at + 12
                for tensor in range(2 * layers):
                    if transposed and tensor >= layers:
                        kind, number_bytes, width = struct.unpack_from("<iII", data, at)
                        size = number_bytes * width * cells
                    else:
                        kind, row_bytes = struct.unpack_from("<iQ", data, at)
                        size = row_bytes * cells
                    at += 12
                    assert kind == 1, "16-bit floats"
                    yield data, at, at + size
                    at += size
            assert at == len(data)

    def fill(self, bits):
        """Sets every key and value to the same number, given as the bits of a 16-bit float."""
        for data, begin, end in self.tensors():
            data[begin:end] = struct.pack("<H", bits) * ((end - begin) // 2)


def parts(file):
    conversation = Conversation(file)
    return conversation, State(file[conversation.length:])
