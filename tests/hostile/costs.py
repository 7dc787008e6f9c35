"""Clients of one tenant whose requests are cheap to send and expensive to serve: what the audits of umad have found. In a process of
its own, with the lowest priority, so that the machine's time goes to umad.

  costs.py '{"port": 8642, "socket": "/tmp/uma.sock", "key": "uma-…", "attackers": 20}'

Runs until its input ends. Writes one object then: how often each kind was sent, by status.
"""

import base64
import collections
import contextlib
import http.client
import json
import os
import socket
import struct
import sys
import threading
import time
import zlib

MB = 1_000_000
SLOW_READ_BYTES = 65_536  # A slow reader takes so much in a second.


def png_of_one_colour(side):
    """A picture of 3 × side² bytes in a file of a few kilobytes."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = zlib.compress(bytes((1 + 3 * side) * side), 9)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))


def expensive_grammar(number):
    """Each letter begins hundreds of alternatives. The number makes it another text than the last one's."""
    ranges = (f"[\\x{low:02x}-\\x{high:02x}] [a-z]" for low in range(0x20, 0x38) for high in range(0x58, 0x7e))
    return f"root ::= r*\nr ::= {' | '.join(ranges)}\n# {number}\n"


class Cost:
    """One attacker: its connection, and what it has stored."""

    def __init__(self, given, end):
        self.given = given
        self.end = end
        self.number = 0

    def send(self, path, body, method="POST"):
        """Returns the status."""
        connection = http.client.HTTPConnection("127.0.0.1", self.given["port"], timeout=60)
        try:
            text = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            connection.request(method, path, text, {"Authorization": "Bearer " + self.given["key"]})
            answer = connection.getresponse()
            self.answer = answer.read()
            return answer.status
        finally:
            connection.close()

    def many_messages(self):
        return self.send("/v1/chat/completions", '{"messages":[' + ",".join(['{"role":"user","content":""}'] * 40_000) + "]}")

    def special_tokens(self):
        return self.send("/tokenize", {"content": "<|im_end|>" * 100_000, "parse_special": True})

    def long_text(self):
        return self.send("/v1/completions", {"prompt": "word " * 3 * MB, "max_tokens": 1})

    def long_line_ends(self):
        return self.send("/tokenize", {"content": "\n" * MB})

    def long_instructions(self):
        return self.send("/v1/responses", {"input": "hi", "instructions": "word " * 3 * MB, "max_output_tokens": 1})

    def count_tokens(self):
        return self.send("/v1/messages/count_tokens", {"model": "any", "messages": [{"role": "user", "content": "word " * 3 * MB}]})

    def token_ids(self):
        return self.send("/v1/completions", '{"prompt":[' + ",".join(["1"] * 8 * MB) + "]}")

    def detokenize(self):
        return self.send("/detokenize", '{"tokens":[' + ",".join(["1"] * 8 * MB) + "]}")

    def documents(self):
        return self.send("/v1/rerank", '{"model":"ranks","query":"a","documents":[' + ",".join(['""'] * 5 * MB) + "]}")

    def unknown_field(self):
        return self.send("/v1/chat/completions",
                         '{"max_tokens":1,"messages":[{"role":"user","content":"a"}],"x":[' + ",".join(["{}"] * 5 * MB) + "]}")

    def stored_bytes(self):
        """A response of a token whose tools have 10 MB."""
        tool = {"type": "function", "name": "f", "description": "x" * 10 * MB, "parameters": {"type": "object"}}
        return self.send("/v1/responses", {"input": "hi", "tools": [tool], "max_output_tokens": 1})

    def slow_reader(self):
        items = [{"role": "user", "content": "x" * 1000}] * 60
        status = self.send("/v1/conversations", {"items": items})
        kept = json.loads(self.answer).get("id")
        if status != 200:
            return status
        one = f"GET /v1/conversations/{kept}/items?limit=100 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.given['key']}\r\n\r\n"
        with contextlib.closing(socket.create_connection(("127.0.0.1", self.given["port"]), timeout=60)) as connection:
            connection.sendall(one.encode() * 100)
            while not self.end.is_set() and connection.recv(SLOW_READ_BYTES):
                self.end.wait(1)
        return status

    def forks(self):
        status = self.send("/v1/sessions", {"mode": "chat", "system": "word " * 100})
        if status != 200:
            return status
        session = json.loads(self.answer)["session_id"]
        statuses = [self.send(f"/v1/sessions/{session}/fork", {}) for _ in range(20)]
        self.send(f"/v1/sessions/{session}", None, "DELETE")
        return statuses[-1]

    def broken_import(self):
        return self.send("/v1/sessions/import", b"umasession" * (3 * MB // 2))

    def pipelined(self):
        """64 answers of a large session that nobody reads."""
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as one:
            one.settimeout(30)
            one.connect(self.given["socket"])
            for i in range(64):
                frame = json.dumps({"id": str(i), "type": "generate", "prompt": "the cat", "max_tokens": 256, "ignore_eos": True}).encode()
                one.sendall(struct.pack("<I", len(frame)) + frame)
            self.end.wait(10)
        return 200

    def grammars(self):
        self.number += 1
        return self.send("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "n": 4, "max_tokens": 64, "temperature": 1,
                                                  "uma": {"grammar": expensive_grammar(f"{id(self)} {self.number}")}})

    def large_picture(self):
        url = "data:image/png;base64," + base64.b64encode(png_of_one_colour(6000)).decode()
        return self.send("/v1/chat/completions", {"max_tokens": 1, "messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": url}}]}]})

    def connections(self):
        """As many as there are, over HTTP and over the socket."""
        held = []
        try:
            for kind in (socket.AF_INET, socket.AF_UNIX):
                with contextlib.suppress(OSError):
                    for _ in range(400):
                        one = socket.socket(kind)
                        held.append(one)
                        one.settimeout(1)
                        one.connect(("127.0.0.1", self.given["port"]) if kind == socket.AF_INET else self.given["socket"])
            self.end.wait(10)
        finally:
            for one in held:
                one.close()
        return 200

    def leaves(self):
        """Leaves before the answer, again and again."""
        body = json.dumps({"prompt": "word " * 100_000, "max_tokens": 1}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.given['key']}\r\nContent-Length: {len(body)}\r\n\r\n"
        for _ in range(10):
            with contextlib.closing(socket.create_connection(("127.0.0.1", self.given["port"]), timeout=30)) as one:
                one.sendall(head.encode() + body)
        return 200


KINDS = (Cost.many_messages, Cost.special_tokens, Cost.long_text, Cost.long_line_ends, Cost.long_instructions, Cost.count_tokens,
         Cost.token_ids, Cost.detokenize, Cost.documents, Cost.unknown_field, Cost.slow_reader, Cost.stored_bytes, Cost.forks,
         Cost.broken_import, Cost.pipelined, Cost.grammars, Cost.large_picture, Cost.connections, Cost.leaves)


def main():
    given = json.loads(sys.argv[1])
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    end = threading.Event()
    lock = threading.Lock()
    sent = collections.Counter()

    def attack(kind):
        cost = Cost(given, end)
        while not end.is_set():
            try:
                status = kind(cost)
            except Exception as problem:
                status = type(problem).__name__
                time.sleep(0.1)
            with lock:
                sent[f"{kind.__name__} {status}"] += 1

    threads = [threading.Thread(target=attack, args=(KINDS[i % len(KINDS)],), daemon=True) for i in range(given["attackers"])]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    sys.stdin.read()
    end.set()
    until = time.monotonic() + 90
    for thread in threads:
        thread.join(max(0, until - time.monotonic()))
    with lock:
        print(json.dumps(sent), flush=True)


if __name__ == "__main__":
    main()
