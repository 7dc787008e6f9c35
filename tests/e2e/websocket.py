"""A WebSocket client (RFC 6455) that sends what it is told, whether the protocol permits it or not."""

import base64
import http.client
import json
import os
import socket
import struct

import uma

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class Closed(Exception):
    """The server has ended the connection: with `code`, or without a word (None)."""

    def __init__(self, code=None, reason=""):
        super().__init__(f"closed with {code}: {reason}")
        self.code = code


def upgrade_bytes(path, *headers):
    key = base64.b64encode(os.urandom(16)).decode()
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
             f"Sec-WebSocket-Key: {key}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def frame(data, kind=TEXT, is_last=True, is_masked=True, length=None, reserved=0):
    """A frame; `length`: a length that is not that of the data."""
    size = len(data) if length is None else length
    head = bytes([kind | (0x80 if is_last else 0) | reserved << 4])
    mask_bit = 0x80 if is_masked else 0
    if size < 126:
        head += bytes([mask_bit | size])
    elif size < 1 << 16:
        head += bytes([mask_bit | 126]) + struct.pack(">H", size)
    else:
        head += bytes([mask_bit | 127]) + struct.pack(">Q", size)
    if not is_masked:
        return head + data
    mask = os.urandom(4)
    repeated = int.from_bytes((mask * (len(data) // 4 + 1))[:len(data)])
    return head + mask + (int.from_bytes(data) ^ repeated).to_bytes(len(data))


class WebSocket:
    """Raises http.client.HTTPException, with the status as its first argument, if the server refuses the upgrade."""

    def __init__(self, port, path="/v1/responses", *headers):
        self.stream = socket.create_connection(("127.0.0.1", port), timeout=uma.WAIT_S)
        try:
            self.stream.sendall(upgrade_bytes(path, *headers))
            self.file = self.stream.makefile("rb")
            answer = http.client.HTTPResponse(self)
            answer.begin()
            self.headers = answer.headers
            if answer.status != 101:
                raise http.client.HTTPException(answer.status, answer.read().decode())
        except BaseException:
            self.stream.close()
            raise

    def makefile(self, *_):
        return _Unclosed(self.file)

    def close(self):
        self.file.close()
        self.stream.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, value, **options):
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.stream.sendall(frame(data, **options))

    def read(self, count):
        data = self.file.read(count)
        if len(data) < count:
            raise Closed
        return data

    def receive_frame(self):
        """Returns the opcode, whether the message ends here, and the data."""
        first, second = self.read(2)
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack(">H", self.read(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", self.read(8))
        assert second & 0x80 == 0, "a server masks nothing"
        return first & 0x0F, bool(first & 0x80), self.read(size)

    def receive(self):
        """The next message of the server as an object; pings are answered."""
        data = b""
        while True:
            kind, is_last, part = self.receive_frame()
            if kind == CLOSE:
                raise Closed(struct.unpack(">H", part[:2])[0] if part else None, part[2:].decode())
            if kind == PING:
                self.send(part, kind=PONG)
                continue
            if kind == PONG:
                continue
            data += part
            if is_last:
                return json.loads(data)

    def events(self, **create):
        """Asks for a response; returns its events to the last, or the error alone."""
        self.send({"type": "response.create", **create})
        events = [self.receive()]
        while events[-1]["type"] not in ("error", "response.completed", "response.incomplete", "response.failed"):
            events.append(self.receive())
        return events

    def respond(self, given, **create):
        """The response to the input."""
        last = self.events(input=given, **create)[-1]
        assert last["type"] in ("response.completed", "response.incomplete"), last
        return last["response"]


class _Unclosed:
    """The file of a connection that goes on behind an HTTP answer."""

    def __init__(self, file):
        self.file = file

    def __getattr__(self, name):
        return getattr(self.file, name)

    def close(self):
        pass
