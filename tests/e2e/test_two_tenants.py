"""Two tenants: one attacks over HTTP with a key, the other uses the socket and must not notice. The attacks aim at the parts
that all requests share: preparing, following grammars, memory. Afterwards all counted bytes are given back."""

import contextlib
import json
import select
import socket
import threading

import test_http
import uma
from test_http_operations import with_key

MIB = 1 << 20


def ballast(size):
    """Tools of so many bytes: texts of messages that cannot fit would be refused before they wait."""
    return [{"type": "function", "name": "f", "description": "x" * size, "parameters": {"type": "object"}}]


class TwoTenants(test_http.HttpTest):
    takes_long = True
    flags = ("--http", "127.0.0.1:0", "--kv-cells", "32768", "--slots", "4", "--threads", "1")
    config = "limits: {queue_bytes_max: 16M, deadline_ms: 0}\n"

    @classmethod
    def setUpClass(cls):
        cls.key, flags = with_key(cls, "attacker")
        cls.flags = (*cls.flags, *flags)
        super().setUpClass()

    def setUp(self):
        super().setUp()
        self.wanted = self.client.generate("Once upon a time", max_tokens=40, ignore_eos=True).text

    def tearDown(self):
        uma.until(lambda: self.client.metrics()["request_bytes"] == 0, "all counted bytes are given back")
        self.assertEqual(self.wanted, self.client.generate("Once upon a time", max_tokens=40, ignore_eos=True).text)
        super().tearDown()

    def attack(self, path, **body):
        """Returns the status and the answer."""
        return self.request("POST", path, body, {"Authorization": f"Bearer {self.key}"})

    def post_and_stay(self, path, **body):
        """Sends a request and returns the connection without reading the answer."""
        data = json.dumps(body).encode()
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=uma.WAIT_S)
        self.addCleanup(connection.close)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.key}\r\n"
                               f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        return connection

    def stream_beside(self, attack):
        """Runs a stream of the other tenant during the attack."""
        attacker = threading.Thread(target=attack)
        stream = self.client.start(type="generate", prompt="Once upon a time", max_tokens=400, ignore_eos=True)
        self.client.wait_token(stream)
        attacker.start()
        reply = self.client.finish(stream)
        attacker.join(uma.WAIT_S)
        self.assertFalse(attacker.is_alive())
        self.assertTrue(reply.text.startswith(self.wanted), reply.text)

    def test_grammars_that_are_long_to_compile(self):
        for grammar in ("root ::= (((){4096}){4096}){4096}", 'root ::= ((' + '"()"' * 300 + "){4096}){4096}"):
            statuses = []
            self.stream_beside(lambda: statuses.append(self.attack("/v1/completions", prompt="x", n=16, grammar=grammar)[0]))
            self.assertIn(statuses, ([200], [400]))

    def test_schemas_that_are_long_to_compile(self):
        names = [f"k{i}" for i in range(2000)]
        one = {"enum": names}
        for schema in ({"$defs": {"a": one, "b": one}, "allOf": [{"$ref": f"#/$defs/{'ab'[i % 2]}"} for i in range(40)]},
                       {"type": "object", "required": names + names, "properties": {name: {} for name in names[:50]}}):
            answer = {}
            def attack(schema=schema):
                answer["status"] = self.attack("/v1/chat/completions", messages=[{"role": "user", "content": "x"}], max_tokens=1, n=8,
                                               response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})[0]
            self.stream_beside(attack)
            self.assertIn(answer["status"], (200, 400))

    def test_a_grammar_that_is_long_to_follow(self):
        alternatives = " | ".join(f"e0 [\\x{32 + i % 90:02x}]" for i in range(2000))
        grammar = f'root ::= {" r" * 200}\nr ::= {alternatives}\ne0 ::= ""\n'
        statuses = []
        self.stream_beside(lambda: statuses.append(self.attack("/v1/completions", prompt="x", n=8, max_tokens=20, temperature=1, top_p=0.9, grammar=grammar)[0]))
        self.assertIn(statuses, ([200], [400]))

    def test_many_biases_are_refused(self):
        status, answer = self.attack("/v1/completions", prompt="x", logit_bias={str(i): 1 for i in range(1025)})
        self.assertEqual((400, "logit_bias"), (status, answer["error"]["param"]))

    def test_what_waits_for_a_conversation_is_counted_and_goes_with_its_client(self):
        def wait_and_leave():
            conversation, stream = self.stream_in_a_conversation()
            for _ in range(10):
                waiting = self.post_and_stay("/v1/responses", conversation=conversation, input="and", tools=ballast(MIB // 2))
                uma.until(lambda: self.client.metrics()["request_bytes"] > MIB // 2, "the request to be counted")
                waiting.close()
                uma.until(lambda: self.client.metrics()["request_bytes"] < MIB // 4, "the request to be gone with its client")
            stream.close()
            self.wait_idle()

        wait_and_leave()  # after which the allocator has what it needs
        rss = self.daemon.rss_bytes()
        for _ in range(12):
            wait_and_leave()
        # Each thread of the pool has a heap of its own; 120 requests that stay would be 60 MiB.
        self.assertLess(self.daemon.rss_bytes() - rss, 32 * MIB)

    def test_one_that_fills_its_share_leaves_room_for_the_other(self):
        conversation, _ = self.stream_in_a_conversation()
        def used():
            return self.client.metrics()["request_bytes"]
        # One after another: of many at once the bodies alone may fill the share, and most requests are refused.
        for _ in range(100):
            before = used()
            if before > 7 * MIB:
                break
            waiting = self.post_and_stay("/v1/responses", conversation=conversation, input="and", tools=ballast(MIB // 8))
            uma.until(lambda before=before, waiting=waiting: used() > before + MIB // 8 or select.select([waiting], [], [], 0)[0], "its place")
        self.assertGreater(used(), 7 * MIB)
        self.assertLessEqual(used(), 8 * MIB)
        status, answer = self.attack("/v1/responses", conversation=conversation, input="and", tools=ballast(MIB - 1000))
        self.assertEqual((503, "E_LIMIT_003"), (status, answer["error"]["code"]), answer)
        self.assertEqual(self.wanted, self.client.generate("Once upon a time", max_tokens=40, ignore_eos=True).text)
        self.let_the_attacker_leave()

    def stream_in_a_conversation(self):
        """Starts a stream in a conversation of the attacker; returns its id and the connection that reads the reply."""
        status, conversation = self.attack("/v1/conversations")
        self.assertEqual(200, status, conversation)
        stream = self.post_and_stay("/v1/responses", conversation=conversation["id"], input="go on", stream=True,
                                    uma={"ignore_eos": True}, max_output_tokens=8000)
        self.assertTrue(stream.recv(1))
        return conversation["id"], stream

    def let_the_attacker_leave(self):
        """Closes the attacker's connections."""
        self.doCleanups()
        self.client = self.daemon.client()
        self.addCleanup(self.client.close)
        self.wait_idle()


if __name__ == "__main__":
    test_http.unittest.main()
