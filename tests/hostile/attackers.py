"""Clients that break the protocols on purpose. Each step has its own seed. Violations by the daemon (judge.py) are recorded in
the Account as faults."""

import base64
import collections
import http.client
import io
import json
import random
import re
import socket
import struct
import threading
import time

import mutations
import pictures
import surface
import uma
import websocket
from judge import Fault, check_answer, check_event, is_watch

FRAME_BYTES_MAX = 16 << 20  # the daemon's limit with a model that takes images


class Account:
    """The requests and results of all attackers. Thread-safe."""

    def __init__(self):
        self.lock = threading.Lock()
        self.requests = collections.Counter()  # by attack
        self.answers = collections.Counter()  # by status, code or event
        self.faults = []

    def count(self, attack, requests=1):
        with self.lock:
            self.requests[attack] += requests

    def saw(self, answer):
        with self.lock:
            self.answers[answer] += 1

    def fault(self, text):
        with self.lock:
            self.faults.append(text)

    @property
    def requests_total(self):
        return sum(self.requests.values())


class Target:
    """The addresses of the daemon. `epoch` increases before each kill and after each restart, so it is odd in between."""

    def __init__(self, socket_path, port, key, others_session=None):
        self.socket_path = socket_path
        self.port = port
        self.key = key
        self.others_session = others_session  # a session of a tenant without attackers
        self.epoch = 0
        self.crowd = threading.Lock()  # held by the attacker that opens very many connections


class Shared:
    """A byte stream of several answers for http.client's parsers. They cannot close it."""

    def __init__(self, stream):
        self.stream = stream

    def makefile(self, *_):
        return _Unclosed(self.stream)


class _Unclosed:
    def __init__(self, stream):
        self.readline, self.read, self.readinto, self.flush, self.peek, self.read1 = (
            stream.readline, stream.read, stream.readinto, stream.flush, stream.peek, stream.read1)
        self.closed = False

    def close(self):
        self.closed = True


class Refused(Exception):
    """The daemon closed the connection, and is allowed to."""


class Attacker:
    """One hostile client with a connection of each kind and its own sessions. Used by one thread. In one step, it waits for the
    daemon, or makes the daemon wait, for at most `patience_s`."""

    SLOW_S = 0.05  # between two bytes of a slow client

    def __init__(self, target, account, seed, patience_s=0.2):
        self.target = target
        self.account = account
        self.seed = seed
        self.patience_s = patience_s
        self.rng = random.Random(seed)
        self.mutator = mutations.Mutator(self.rng)
        self.epoch = target.epoch  # epoch of the daemon that has the connections
        self.socket = None
        self.connection = None
        self.held = []  # connections that do nothing
        self.things = {}
        self.files = []
        self.names = 0
        self.sent = b""
        attacks = {
            self.http_field: 30, self.http_valid: 4, self.http_path: 6, self.http_header: 4, self.http_framing: 5, self.http_early_close: 5,
            self.http_slow_writer: 1, self.http_slow_reader: 1, self.http_pipelining: 1, self.http_websocket: 4, self.http_import: 4, self.http_image: 3, self.http_audio: 2,
            self.frame_field: 30, self.frame_valid: 4, self.frame_framing: 4, self.frame_early_close: 4, self.frame_slow_writer: 1,
            self.frame_slow_reader: 1, self.frame_many_in_flight: 1, self.frame_import: 4, self.frame_half_import: 1, self.frame_image: 3,
            self.costly: 2, self.crowd: 1, self.stall: 1,
        }
        self.attacks = list(attacks)
        self.weights = list(attacks.values())

    # Steps

    def run(self, steps=None, until=None):
        """Runs this number of steps, or steps until this time."""
        number = 0
        while (steps is None or number < steps) and (until is None or time.monotonic() < until):
            self.step(number)
            number += 1
        self.leave()

    def step(self, number):
        self.rng.seed(f"{self.seed}/{number}")
        attack = self.rng.choices(self.attacks, self.weights)[0]
        epoch = self.target.epoch
        if epoch != self.epoch:  # the daemon of the connections has ended
            self.leave()
            self.epoch = epoch
        self.sent = b""
        try:
            if number % 40 == 0 or not self.things:
                self.make_things()
            attack()
            self.account.count(attack.__name__)
        except Refused:
            self.account.saw("closed")
            self.leave()
        except Exception as problem:  # a broken answer may raise anything
            self.leave()
            self.things = {}
            if epoch % 2 == 0 and epoch == self.target.epoch:
                self.account.fault(f"{attack.__name__}, step {self.seed}/{number}: {type(problem).__name__}: {problem}; sent {self.sent[:700]!r}")
            else:
                time.sleep(0.2)  # the daemon is restarting

    def leave(self):
        """Closes all connections."""
        for open_one in (self.socket, self.connection, *self.held):
            if open_one is not None:
                open_one.close()
        self.socket = self.connection = None
        self.held = []

    def make_things(self):
        """Makes sessions, a response and files for requests."""
        if self.rng.random() < 0.3:
            self.clear()
        client = self.client()
        answer = client.call(type="create_session", mode="text")
        if check_event(answer, b"") and answer["event"] == "error":
            return self.clear()
        self.things = {"session": answer["session_id"]}
        client.generate("the cat", session_id=self.things["session"], max_tokens=70, ignore_eos=True)
        status, conversation = self.ask("POST", "/v1/conversations", {})
        if status == 200:
            self.things["conversation"] = conversation["id"]
            content = [{"type": "input_image", "image_url": surface.IMAGE_PART["image_url"]["url"]}, {"type": "input_text", "text": "what"}]
            message = {"role": "user", "content": content if self.rng.random() < 0.5 else "hi"}
            status, made = self.ask("POST", "/v1/responses", {"conversation": conversation["id"], "input": [message], "max_output_tokens": 4,
                                                               "uma": {"ignore_eos": True}})
            if status == 200:
                item = made["output"][-1]["id"] if made["output"] else "msg_x"
                self.things |= {"kept": conversation["id"].removeprefix("conv_"), "response": made["id"], "item": item}
        if not self.files:
            reply = client.finish(client.start(type="export_session", session_id=self.things["session"], kv=True))
            self.files.append(b"".join(base64.b64decode(event["data"]) for event in reply.events[:-1]))
            status, file = self.ask("GET", "/v1/sessions/" + self.things.get("kept", "none") + "/export", None)
            if status == 200:
                self.files.append(file)
        return None

    def clear(self):
        """Deletes the sessions of both tenants, including those of other attackers, because there is a quota."""
        for session in self.client().call(type="list_sessions")["sessions"]:
            self.client().call(type="end_session", session_id=session["session_id"])
        status, sessions = self.ask("GET", "/v1/sessions", None)
        for session in sessions["data"] if status == 200 else ():
            self.ask("DELETE", "/v1/sessions/" + session["session_id"], None)
        self.things = {}

    def filled(self, text):
        """Replaces the placeholders of a path or a body by existing names, sometimes by names of another tenant or unknown
        names."""
        def name(found):
            kind = found.group(1).decode()
            self.names += 1
            if kind == "name":
                return f"n{self.seed}-{self.names}".replace("/", "-").encode()
            if self.rng.random() < 0.05 and self.target.others_session:
                return {"conversation": b"conv_", "response": b"resp_"}.get(kind, b"") + self.target.others_session.encode()
            return self.things.get(kind, "none").encode()
        return re.sub(rb"<(session|kept|conversation|response|item|name)>", name, text)

    # HTTP

    def http_connection(self):
        if self.connection is None:
            self.connection = self.open_tcp()
        return self.connection

    def open_tcp(self):
        return socket.create_connection(("127.0.0.1", self.target.port), timeout=uma.WAIT_S)

    def head(self, method, path, *headers):
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {self.target.key}", *headers]
        return "\r\n".join(lines).encode() + b"\r\n\r\n"

    def request_bytes(self, method, path, body):
        if body is None:
            return self.head(method, path)
        return self.head(method, path, "Content-Type: application/json", f"Content-Length: {len(body)}") + body

    def exchange(self, method, path, body):
        """Sends one well-formed request and returns the checked answer."""
        data = self.sent = self.request_bytes(method, path, body)
        connection = self.http_connection()
        is_too_long = body is not None and len(body) > 1 << 20
        try:
            connection.sendall(data)
            status, headers, answer = self.read_answer(connection, method)
        except OSError as problem:
            if is_too_long and not isinstance(problem, TimeoutError):
                raise Refused from problem  # the daemon answers and closes before it has received everything
            raise
        self.account.saw(status)
        value = check_answer(status, headers, answer, data)
        return status, value if value is not None else answer

    def read_answer(self, connection, method):
        answer = http.client.HTTPResponse(connection, method=method)
        answer.begin()
        has_no_end = answer.status == 200 and is_watch(self.sent)
        body = answer.read1(1 << 16) if has_no_end else answer.read()
        if answer.will_close or has_no_end:
            self.connection = None
            connection.close()
        return answer.status, answer.headers, body

    def ask(self, method, path, body):
        return self.exchange(method, path, None if body is None else json.dumps(body).encode())

    def route(self):
        """Chooses a random route; most have a body."""
        route = self.rng.choice(surface.ROUTES)
        return route if route.body is not None or self.rng.random() < 0.3 else self.rng.choice(surface.ROUTES)

    def path_of(self, route):
        return self.filled(route.path.encode()).decode()

    def body_of(self, route):
        if route.body == "<file>":
            return self.mutator.session_file(self.rng.choice(self.files))
        if route.body is None:
            return None
        return self.filled(self.mutator.body(route.body, route.options))

    def http_field(self):
        route = self.route()
        self.exchange(route.method, self.path_of(route), self.body_of(route))

    def http_valid(self):
        route = self.route()
        if route.body == "<file>":
            self.exchange(route.method, self.path_of(route), self.rng.choice(self.files))
        else:
            self.exchange(route.method, self.path_of(route), None if route.body is None else self.filled(json.dumps(route.body).encode()))

    def http_path(self):
        route = self.rng.choice(surface.ROUTES)
        path = self.path_of(route).encode()
        kind = self.rng.randrange(6)
        if kind == 0:
            names = (b"x" * 129, b"%00", b"%ff%fe", b"%", b"%zz", b"..", b"%2e%2e", b"a%2fb", b"0" * 32)
            path = re.sub(rb"[\w-]{20,}", lambda _: self.rng.choice(names), path)
        elif kind == 1:
            path += self.rng.choice((b"/", b"//", b"/x", b"?", b"?limit=101&after=%00", b"?limit=-1", b"?limit=1e9", b"?order=x",
                                     b"?kv=maybe", b"?name=%ff"))
        elif kind == 2:
            path = self.rng.choice((b"/", b"*", b"//", b"/v1", b"/v1/" + b"x" * 8000, b"/%2e%2e/etc/passwd", b"http://localhost/v1/models",
                                    b"/v1/models#x"))
        elif kind == 3:
            path = bytes(byte for byte in self.mutator.flipped(path, 3) if 32 < byte < 127) or b"/"
        method = self.rng.choice(("GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "PATCH")) if kind > 3 else route.method
        body = b"{}" if method in ("POST", "PUT", "PATCH") else None
        self.exchange(method, path.decode("latin-1"), body)

    def http_raw(self, data, ends=True):
        """Sends bytes that may be invalid HTTP, and checks every answer."""
        self.sent = data
        received = b""
        with self.open_tcp() as connection:
            try:
                connection.sendall(data)
                if ends:
                    connection.shutdown(socket.SHUT_WR)
                while part := connection.recv(1 << 16):
                    received += part
                    if not ends:
                        break
            except ConnectionError:
                pass  # closed while more was being sent
        stream = io.BufferedReader(io.BytesIO(received))
        while ends and stream.tell() < len(received):
            answer = http.client.HTTPResponse(Shared(stream))
            answer.begin()
            try:
                body = answer.read()
            except http.client.IncompleteRead:
                break  # the client closed its side, which cancels its requests
            self.account.saw(answer.status)
            check_answer(answer.status, answer.headers, body, data)
            if answer.will_close:
                break

    def http_header(self):
        rng = self.rng
        lines = [rng.choice(("GET /v1/models HTTP/1.1", "GET /v1/models HTTP/1.0", "GET /v1/models", "get /v1/models HTTP/1.1",
                             "GET  /v1/models HTTP/1.1", "GET /v1/models HTTP/2.0", "GET /v1/models HTTP/1.1 x", "PRI * HTTP/2.0",
                             "\x16\x03\x01\x02\x00\x01", ""))]
        lines += rng.choices((
            "Host: localhost", "Host: evil.example", "Host:", "Host: localhost\r\nHost: localhost", f"Authorization: Bearer {self.target.key}",
            "Authorization: Bearer wrong", "Authorization: Basic eDp4", "Authorization: Bearer " + "x" * 5000, "Origin: http://evil.example",
            "X: " + "y" * 20_000, "A" * 20_000, "\r\n".join(f"X-{i}: y" for i in range(2000)), "x-request-id: a\tb",
            "x-request-id: " + "z" * 200, "Bad Header: x", ": x", "X: \x00", "X: \xff", " folded", "Expect: 100-continue", "Expect: something", "Connection: upgrade\r\nUpgrade: websocket",
            "Content-Encoding: gzip",
            "Content-Length: 0", "Content-Length: -1", "Content-Length: 18446744073709551616", "Content-Length: 5", "Transfer-Encoding: chunked",
            "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: identity", "Content-Length: 1\r\nContent-Length: 2", "TE: trailers",
            "Connection: close"), k=rng.randrange(6))
        end = rng.choice((b"\r\n\r\n", b"\r\n\r\n", b"\n\n", b"\r\n", b""))
        self.http_raw("\r\n".join(lines).encode("latin-1") + end + rng.randbytes(rng.choice((0, 5))))

    def http_framing(self):
        """Sends bodies with a wrong length, and chunks of all kinds."""
        rng = self.rng
        body = json.dumps(surface.CHAT_BODY).encode()
        path = rng.choice(("/v1/chat/completions", "/v1/completions", "/v1/sessions/import", "/v1/embeddings"))
        if rng.random() < 0.5:
            length = rng.choice((len(body) + 1, len(body) - 1, 0, 2**31, 2**63, 17 << 20, 1 << 20))
            data = self.head("POST", path, f"Content-Length: {length}") + body
        else:
            kinds = (b"%x\r\n%s\r\n" % (len(body), body), b"0\r\n\r\n", b"5\r\nab\r\n", b"-1\r\n", b"fffffffffffffffff\r\n", b"7fffffffffffffff\r\n",
                     b"1;" + b"x" * 9000 + b"\r\nx\r\n", b"zz\r\n", b"1\nx\n", b"0\r\nX: y\r\n\r\n", b"\r\n", rng.randbytes(20))
            chunks = b"".join(rng.choices(kinds, k=rng.randrange(1, 5)))
            data = self.head("POST", path, "Transfer-Encoding: chunked") + chunks
        self.http_raw(data)

    def http_early_close(self):
        """Disconnects at any point: in the header, the body or the answer."""
        rng = self.rng
        body = json.dumps({**surface.CHAT_BODY, "max_tokens": 200, "stream": rng.random() < 0.5, "n": rng.choice((1, 1, 4)),
                           "uma": {"ignore_eos": True}}).encode()
        data = self.sent = self.request_bytes("POST", "/v1/chat/completions", body)
        with self.open_tcp() as connection:
            if rng.random() < 0.5:
                connection.sendall(data[:rng.randrange(len(data))])
            else:
                connection.sendall(data)
                if rng.random() < 0.7:
                    connection.recv(rng.choice((1, 400)))
            if rng.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes with a reset

    def http_slow_writer(self):
        data = self.sent = self.request_bytes("POST", "/v1/completions", b'{"prompt": "the cat", "max_tokens": 2}')
        connection = self.http_connection()
        for begin in range(0, len(data), len(data) // 8):
            connection.sendall(data[begin:begin + len(data) // 8])
            time.sleep(self.SLOW_S)
        check_answer(*self.read_answer(connection, "POST"), data)

    def http_slow_reader(self):
        body = json.dumps({"prompt": "the cat", "max_tokens": 250, "stream": True, "logprobs": 5, "uma": {"ignore_eos": True}}).encode()
        self.sent = self.request_bytes("POST", "/v1/completions", body)
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.settimeout(uma.WAIT_S)
            connection.connect(("127.0.0.1", self.target.port))
            connection.sendall(self.sent)
            for _ in range(6):
                connection.recv(16)
                time.sleep(self.SLOW_S)

    def http_pipelining(self):
        count = self.rng.choice((5, 50))
        data = self.sent = self.request_bytes("POST", "/v1/completions", b'{"prompt": "the cat", "max_tokens": 1}') * count
        connection = self.open_tcp()
        try:
            connection.sendall(data)
            stream = connection.makefile("rb")
            for _ in range(count):
                answer = http.client.HTTPResponse(Shared(stream))
                answer.begin()
                check_answer(answer.status, answer.headers, answer.read(), data)
        finally:
            connection.close()

    def http_websocket(self):
        """Sends events and frames of all kinds, whole and cut, on one connection."""
        rng = self.rng
        path = rng.choice(("/v1/responses", "/v1/responses", "/v1/responses", "/health", "/v1/chat/completions"))
        headers = rng.sample(("Origin: http://localhost", "Origin: http://evil.example", "Sec-WebSocket-Protocol: x", "Sec-WebSocket-Version: 12",
                              "Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=8", "Sec-WebSocket-Key: x"),
                             k=rng.choice((0, 0, 0, 0, 1, 2)))
        try:
            client = websocket.WebSocket(self.target.port, path, f"Authorization: Bearer {self.target.key}", *headers)
        except http.client.HTTPException as refusal:
            if refusal.args[0] not in (200, 400, 401, 403, 404, 405, 426, 429, 503):
                raise Fault(f"status {refusal.args[0]} for an upgrade") from refusal
            return
        with client:
            for _ in range(rng.randrange(1, 6)):
                self.sent = self.websocket_bytes()
                try:
                    client.stream.sendall(self.sent)
                except OSError:
                    break  # the server has ended the connection
            client.stream.settimeout(self.patience_s)
            try:
                for _ in range(rng.choice((0, 3, 40))):
                    event = client.receive()
                    if event.get("type") == "error" and not 400 <= event["status"] < 600:
                        raise Fault(f"an error with the status {event['status']}")
            except (TimeoutError, OSError):
                return
            except websocket.Closed as end:
                if end.code not in (None, 1000, 1001, 1002, 1003, 1007, 1008, 1009, 1012, 1013):
                    raise Fault(f"closed with {end.code}") from end

    def websocket_bytes(self):
        """A frame, or several, of a client who may know the protocol."""
        rng = self.rng
        create = {"type": "response.create", "input": "the cat", "max_output_tokens": 4, "store": rng.random() < 0.5}
        extra = rng.choice(({}, {"generate": False}, {"stream_id": "s"}, {"previous_response_id": "<response>"}, {"background": True},
                            {"response": create}, {"max_output_tokens": 100, "uma": {"ignore_eos": True}}, {"input": surface.ITEMS}))
        event = self.filled(json.dumps({**create, **extra}).encode())
        kind = rng.randrange(8)
        if kind < 2:
            return websocket.frame(event)
        if kind == 2:
            return websocket.frame(self.mutator.flipped(event))
        if kind == 3:
            cut = rng.randrange(len(event))
            return websocket.frame(event[:cut], is_last=False) + websocket.frame(b"x", kind=websocket.PING) + websocket.frame(event[cut:], kind=0)
        if kind == 4:
            return websocket.frame(event, kind=rng.choice((0, 2, 3, 8, 9, 10, 15)), is_masked=rng.random() < 0.5, reserved=rng.randrange(8))
        if kind == 5:
            return websocket.frame(event, length=rng.choice((0, 5, len(event) + 100, 1 << 20, 1 << 40, (1 << 64) - 1)))
        if kind == 6:
            return websocket.frame(b"", is_last=False) * rng.choice((1, 50)) + websocket.frame(b"p" * 125, kind=websocket.PING) * rng.choice((1, 200))
        return rng.randbytes(rng.choice((1, 10, 2000)))

    def http_import(self):
        self.exchange("POST", self.filled(b"/v1/sessions/import?name=<name>").decode(), self.mutator.session_file(self.rng.choice(self.files)))

    def picture(self):
        return base64.b64encode(self.mutator.image(self.rng.choice(pictures.ALL))).decode()

    def http_audio(self):
        clip = base64.b64encode(self.mutator.flipped(base64.b64decode(surface.AUDIO_PART["input_audio"]["data"]))).decode()
        part = {**surface.AUDIO_PART, "input_audio": {"data": clip, "format": self.rng.choice(("wav", "mp3", "flac"))}}
        self.exchange("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": [part]}], "max_tokens": 2}).encode())

    def http_image(self):
        part = {"type": "image_url", "image_url": {"url": self.rng.choice(("data:image/png;base64,", "data:;base64,")) + self.picture()}}
        path, body = self.rng.choice((("/v1/images/embeddings", {"images": [{"data": self.picture()} for _ in range(self.rng.choice((1, 5)))]}),
                                      ("/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}], "max_tokens": 2})))
        self.exchange("POST", path, json.dumps(body).encode())

    # The socket

    def client(self):
        if self.socket is None:
            self.socket = uma.Client(self.target.socket_path)
        return self.socket

    def frame_exchange(self, body):
        """Sends one frame and a ping; returns when both are answered. An import has no answer before its data, and a watch is
        cancelled."""
        client = self.client()
        self.sent = body
        self.names += 1
        ping = f"ping-{self.names}"
        try:
            client.send_bytes(uma.frame(body) + uma.frame({"id": ping, "type": "ping"}))
        except OSError as problem:
            if len(body) > FRAME_BYTES_MAX and not isinstance(problem, TimeoutError):
                raise Refused from problem
            raise
        has_pong = has_ended = False
        cancel = None
        while not has_pong or not has_ended or cancel:
            try:
                event = client.receive()
            except uma.ConnectionClosed as problem:
                if len(body) > FRAME_BYTES_MAX:
                    raise Refused from problem
                raise
            if event.get("id") == ping:
                has_pong = True
                if not has_ended and b"import_session" in body:
                    self.leave()
                    return
                continue
            if cancel and event.get("id") == cancel:
                cancel = None
                continue
            if event.get("event") == "history":
                cancel = "end-" + ping
                client.send_bytes(uma.frame({"id": cancel, "type": "cancel", "target": event["id"]}))
            if check_event(event, body):
                self.account.saw(event.get("code") or event["event"])
                has_ended = True

    def frame_of(self, kind, body):
        self.names += 1
        return {"id": f"r{self.names}", "type": kind, **body}

    def frame_field(self):
        kind = self.rng.choice(sorted(surface.FRAMES))
        valid, options = surface.FRAMES[kind]
        if kind == "import_data":
            self.open_import()
        body = self.filled(self.mutator.body(self.frame_of(kind, valid), options)).replace(b"<import>", b"open")
        self.frame_exchange(body)
        if kind == "import_data":
            self.leave()

    def frame_valid(self):
        kind = self.rng.choice(sorted(set(surface.FRAMES) - {"import_data"}))
        self.frame_exchange(self.filled(json.dumps(self.frame_of(kind, surface.FRAMES[kind][0])).encode()))

    def open_import(self):
        self.leave()
        self.client().start(id="open", type="import_session")

    def frame_framing(self):
        """Sends invalid and incomplete frames."""
        rng = self.rng
        whole = uma.frame({"id": "x", "type": "ping"})
        data = rng.choice((struct.pack("<I", 0), struct.pack("<I", 0xFFFFFFFF), struct.pack("<I", FRAME_BYTES_MAX + 1) + b"{",
                           whole[:rng.randrange(len(whole))], rng.randbytes(300), self.mutator.flipped(whole), b"GET / HTTP/1.1\r\n\r\n",
                           whole * 300, struct.pack("<I", 2) + b"{}" * 2000, struct.pack("<I", FRAME_BYTES_MAX) + b" " * 100_000))
        self.sent = data
        with uma.Client(self.target.socket_path) as client:
            try:
                client.send_bytes(data)
                if rng.random() < 0.5:
                    return
                client.socket.shutdown(socket.SHUT_WR)
                while True:
                    check_event(client.receive(), data)
            except (uma.ConnectionClosed, ConnectionError):
                return

    def frame_early_close(self):
        rng = self.rng
        body = {"prompt": "the cat", "max_tokens": 200, "ignore_eos": True}
        frames = b"".join(uma.frame(self.frame_of("generate", body)) for _ in range(rng.choice((1, 1, 8))))
        self.sent = frames
        with uma.Client(self.target.socket_path) as client:
            if rng.random() < 0.4:
                client.send_bytes(frames[:rng.randrange(len(frames))])
                return
            client.send_bytes(frames)
            if rng.random() < 0.6:
                check_event(client.receive(), frames)

    def frame_slow_writer(self):
        data = self.sent = uma.frame({"id": "slow", "type": "ping"})
        with uma.Client(self.target.socket_path) as client:
            for byte in data:
                client.send_bytes(bytes((byte,)))
                time.sleep(self.SLOW_S / 10)
            check_event(client.receive(), data)

    def frame_slow_reader(self):
        with uma.Client(self.target.socket_path) as client:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for _ in range(4):
                client.start(type="generate", prompt="the cat", max_tokens=250, ignore_eos=True, logprobs=5)
            client.start(type="list_sessions")
            time.sleep(self.patience_s)

    def frame_many_in_flight(self):
        """Sends more requests than a connection may have; each must be answered."""
        count = self.rng.choice((200, 1100))
        with uma.Client(self.target.socket_path) as client:
            for number in range(count):
                client.send({"id": f"f{number}", "type": "generate", "prompt": "the", "max_tokens": 1, "deadline_ms": 1 if number % 2 else 0})
            ended = 0
            while ended < count:
                ended += check_event(client.receive(), b"")
        self.account.count("frame_many_in_flight", count - 1)

    def send_import(self, client, file, is_whole=True):
        client.start(id="open", type="import_session", name=self.filled(b"<name>").decode())
        part = self.rng.choice((1000, 100_000, 1_000_000))
        if len(file) // part > 50:
            part = 100_000
        for begin in range(0, max(1, len(file)), part):
            is_last = is_whole and begin + part >= len(file)
            data = base64.b64encode(file[begin:begin + part]).decode()
            client.send({"id": f"d{begin}", "type": "import_data", "target": "open", "data": data, "last": is_last})
        return -(-max(1, len(file)) // part)

    def frame_import(self):
        self.leave()
        client = self.client()
        file = self.sent = self.mutator.session_file(self.rng.choice(self.files))
        left = 1 + self.send_import(client, file)
        while left:
            event = client.receive()
            if not check_event(event, b""):
                continue
            left -= 1
            if event["id"] == "open":
                self.account.saw(event.get("code") or "imported")
                if event["event"] == "session" and self.rng.random() < 0.7:
                    self.use_imported(client, event["session_id"])

    def use_imported(self, client, session):
        """Imports a forged session. Its content does not matter, but the daemon must survive."""
        reply = client.generate(session_id=session, max_tokens=4, messages=[surface.USER])
        check_event(reply.last, b"")
        client.call(type="end_session", session_id=session)

    def frame_half_import(self):
        with uma.Client(self.target.socket_path) as client:
            self.send_import(client, self.rng.choice(self.files) * self.rng.choice((1, 20)), is_whole=False)
            if self.rng.random() < 0.5:
                client.receive()
            time.sleep(self.patience_s / 2)

    def frame_image(self):
        kind, body = self.rng.choice((("embed_image", {"images": [{"data": self.picture()} for _ in range(self.rng.choice((1, 4)))]}),
                                      ("describe_image", {"data": self.picture(), "query": "what", "max_tokens": 2})))
        self.frame_exchange(json.dumps(self.frame_of(kind, body)).encode())

    # Both protocols

    def costly(self):
        """Sends constraints that are expensive to compile or to match."""
        rng = self.rng
        names = [f"k{rng.randrange(10**6)}" for _ in range(rng.choice((20, 1500)))]
        grammar = rng.choice(("root ::= (((){4096}){4096}){4096}", 'root ::= ((' + '"()"' * 300 + "){4096}){4096}",
                              'root ::= {}\nr ::= {}\ne ::= ""'.format(" r" * 200, " | ".join(f"e [\\x{32 + i % 90:02x}]" for i in range(2000))),
                              "root ::= " + "(" * 3000 + '"a"' + ")" * 3000, "root ::= " + " ".join(f"r{i}" for i in range(2000)),
                              "\n".join(f'r{i} ::= r{i + 1} r{i + 1} | "a"' for i in range(60)) + '\nr60 ::= "b"\nroot ::= r0'))
        schema = rng.choice(({"allOf": [{"$ref": "#/$defs/a"}] * 40, "$defs": {"a": {"enum": names}}},
                             {"type": "object", "required": names, "properties": {name: {} for name in names[:50]}},
                             {"$ref": "#/$defs/n", "$defs": {"n": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/n"}}] * 50}}},
                             {"type": "string", "pattern": "^" + "(a?){30}" * 10 + "$", "maxLength": 4000},
                             {"properties": dict.fromkeys(names[:40], {"type": "array", "maxItems": 1024,
                                                                       "items": {"maxLength": 4096, "type": "string"}})}))
        body = {"prompt": "x", "max_tokens": 4, "n": rng.choice((1, 8)), "temperature": 1, "top_p": 0.9}
        if rng.random() < 0.5:
            body["grammar"] = grammar
            self.exchange("POST", "/v1/completions", json.dumps(body).encode())
        else:
            body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
            self.exchange("POST", "/v1/chat/completions", json.dumps(body).encode())

    def stall(self):
        """Sends a part of a header or a body, but never the rest."""
        body = b'{"prompt": "the cat", "max_tokens": 2}'
        data = self.sent = self.request_bytes("POST", "/v1/completions", body)
        with self.open_tcp() as connection:
            connection.sendall(data[:self.rng.choice((5, 40, len(data) - len(body), len(data) - 1))])
            connection.settimeout(self.patience_s)
            try:
                status, headers, answer = self.read_answer(connection, "POST")
            except TimeoutError:
                return
        self.account.saw(status)
        if status != 408:
            raise Fault(f"status {status} for an incomplete request")
        check_answer(status, headers, answer, data)

    def crowd(self):
        """Opens connections that send nothing or half a request. Only one attacker does at a time, to stay below the limit for
        clients without a key."""
        if not self.target.crowd.acquire(blocking=False):
            return
        try:
            for number in range(90):
                connection = self.open_tcp() if number % 2 else uma.Client(self.target.socket_path).socket
                self.held.append(connection)
                connection.sendall(self.rng.choice((b"G", b"POST / HTTP/1.1\r\n", b"\x10\x00\x00\x00{")) if number % 3 else b"\x10")
            self.account.count("crowd", 89)
        finally:
            self.leave()
            self.target.crowd.release()


def attack(target, account, seed, attackers, steps=None, until=None, patience_s=0.2):
    """Starts this many attackers at the same time and returns their threads."""
    threads = [threading.Thread(target=Attacker(target, account, f"{seed}/{number}", patience_s).run, args=(steps, until), daemon=True)
               for number in range(attackers)]
    for thread in threads:
        thread.start()
    return threads
