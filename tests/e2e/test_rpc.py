"""Models on the devices of RPC servers (docs/DEVICES.md): what they compute, and what happens to the daemon when a server is wrong,
stops or goes away. The servers are two processes of the packaged ggml-rpc-server on this machine, which compute on its CPU."""

import contextlib
import glob
import pathlib
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import unittest

import shift_register
import uma

PROGRAM = next(iter(sorted(glob.glob("/usr/libexec/*/llama/bin/ggml-rpc-server") + glob.glob("/usr/bin/ggml-rpc-server"))), None)
BACKEND = next(iter(glob.glob("/usr/lib/*/ggml/backends*/libggml-rpc.so")), None)
MISSING = "no ggml-rpc-server (package llama.cpp-tools-extra) or no RPC backend (package libggml0-backend-rpc)"
REGISTER = shift_register.Register()
PROMPT = "once upon a time"
LONG_PROMPT = "the dog and the cat say hello to the small boy " * 30 + PROMPT
TOKENS = 60


class RpcServer:
    """A ggml-rpc-server on a port of the loopback. It can be ended and started again on the same port."""

    def __init__(self, *flags):
        self._flags = flags
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.name = f"rpc://127.0.0.1:{self.port}"
        self._log = tempfile.TemporaryFile()
        self.start()

    def start(self):
        self.process = subprocess.Popen([PROGRAM, "-H", "127.0.0.1", "-p", str(self.port), *self._flags], stdin=subprocess.DEVNULL, stdout=self._log,
                                        stderr=self._log, env=uma.clean_environment())
        uma.until(self._listens, "ggml-rpc-server listens")

    def _listens(self):
        # The server serves one connection at a time, so it is not asked.
        if self.process.poll() is not None:
            self._log.seek(0)
            raise AssertionError(f"ggml-rpc-server ended:\n{self._log.read()[-2000:].decode(errors='replace')}")
        listening = pathlib.Path("/proc/net/tcp").read_text()
        return f"0100007F:{self.port:04X} 00000000:0000 0A" in listening

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.kill()
        self._log.close()


class FakeServer:
    """Accepts connections on the loopback and answers each as `serve` does."""

    def __init__(self, serve):
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.name = f"rpc://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, contextlib.suppress(OSError):
                    self._serve(connection)

    def close(self):
        self._listener.close()


def say_another_version(connection):
    connection.recv(33)
    connection.sendall(struct.pack("<Q", 28) + bytes([7, 1, 0]) + bytes(25))
    connection.recv(1)


def say_something_else(connection):
    connection.recv(33)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def model_line(daemon, model="tiny-register"):
    """The line of the log that says where the model is computed."""
    return next(line for line in daemon.log().splitlines() if f" {model}:" in line and "trained for" in line)


class RpcTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="uma-rpc-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def server(self, *flags):
        made = RpcServer(*flags)
        self.addCleanup(made.close)
        return made

    def fake(self, serve):
        made = FakeServer(serve)
        self.addCleanup(made.close)
        return made

    def daemon(self, devices, *flags, config=None):
        made = uma.Daemon(uma.TINY_REGISTER, "--slots", "4", "--kv-cells", "2048", "--devices", devices, *flags, config=config)
        self.addCleanup(made.kill)
        return made.start().wait_ready()

    def two_models(self, devices, *flags, split="auto"):
        """A daemon with the model `here` on the CPU, which is loaded, and `there` on the devices, which is not."""
        cards = self.folder / "models.yaml"
        cards.write_text(f"here: {{path: {uma.TINY_REGISTER}, devices: none}}\n"
                         f"there: {{path: {uma.TINY_REGISTER}, devices: [{devices}], split: {split}}}\n")
        made = uma.Daemon("here", "--slots", "4", "--kv-cells", "2048", *flags, config=f"models: {cards}\n")
        self.addCleanup(made.kill)
        return made.start().wait_ready()

    def assert_lost(self, reply, server, reason):
        self.assertIn("error", (reply.last["event"], reply.reason), reply.last)
        self.assertEqual("E_RUNTIME_001", reply.last["code"])
        self.assertIn(f"the RPC server {server.name.removeprefix('rpc://')} is lost: {reason}", reply.last["message"])


@unittest.skipUnless(PROGRAM and BACKEND, MISSING)
class OverServers(RpcTest):
    def test_the_known_text_over_two_servers(self):
        one, other = self.server(), self.server()
        # One server alone would have the model, because it fits there.
        daemon = self.daemon(f"{one.name},{other.name}", "--split", "1,1")
        self.assertIn(f", on {one.name} (2), {other.name} (2)", model_line(daemon))
        with daemon.client() as client, daemon.client() as beside:
            replies = uma.parallel(lambda: client.generate(PROMPT, max_tokens=TOKENS),
                                   lambda: beside.generate("the small boy", max_tokens=TOKENS))
        self.assertEqual([REGISTER.says(PROMPT, TOKENS), REGISTER.says("the small boy", TOKENS)], [reply.text for reply in replies])
        self.assertEqual(0, daemon.terminate(), daemon.log())

    def test_some_layers_on_a_server(self):
        server = self.server()
        daemon = self.daemon(server.name, "--gpu-layers", "2")
        self.assertIn(f", 2 of 4 layers on {server.name}", model_line(daemon))
        with daemon.client() as client:
            self.assertEqual(REGISTER.says(PROMPT, TOKENS), client.generate(PROMPT, max_tokens=TOKENS).text)
        self.assertEqual(0, daemon.terminate(), daemon.log())

    def test_a_server_with_two_devices(self):
        server = self.server("-d", "CPU,CPU")
        for names, flags, where in ((server.name, ("--split", "1,1"), f"on {server.name}#0 (2), {server.name}#1 (2)"),
                                    (server.name, (), f"on {server.name}#"), (f"{server.name}#1", (), f"on {server.name}#1"),
                                    (f"{server.name}#1,{server.name}#0", ("--split", "3,1"), f"on {server.name}#1 (3), {server.name}#0 (1)")):
            with self.subTest(names=names, flags=flags):
                daemon = self.daemon(names, *flags)
                self.assertIn(f", {where}", model_line(daemon))
                with daemon.client() as client:
                    self.assertEqual(REGISTER.says(PROMPT, TOKENS), client.generate(PROMPT, max_tokens=TOKENS).text)
                    devices = {device["name"]: device for device in client.metrics()["devices"]}
                self.assertEqual({f"{server.name}#0", f"{server.name}#1"}, set(devices))
                self.assertEqual(0, daemon.terminate(), daemon.log())
        for names, reason in ((f"{server.name}#2", "the server has 2 device(s)"), (f"{server.name},{server.name}#0", "is named twice")):
            with self.subTest(names=names):
                daemon = uma.Daemon(uma.TINY_REGISTER, "--devices", names).start()
                self.addCleanup(daemon.kill)
                self.assertEqual(1, daemon.wait())
                self.assertIn(reason, daemon.log())

    def test_without_layers_no_server_is_asked(self):
        daemon = self.daemon("rpc://127.0.0.1:1", "--gpu-layers", "0")
        self.assertNotIn("rpc://", model_line(daemon))
        self.assertEqual(0, daemon.terminate(), daemon.log())

    def test_a_conversation_goes_on_after_restarts_of_daemon_and_server(self):
        server = self.server()
        daemon = self.daemon(server.name)
        with daemon.client() as client:
            session = client.create_session(mode="text")
            first = client.generate(LONG_PROMPT, session_id=session, max_tokens=8)
            self.assertEqual(REGISTER.says(LONG_PROMPT, 8), first.text)
        self.assertEqual(0, daemon.terminate(), daemon.log())
        server.kill()
        server.start()
        daemon.start().wait_ready()
        with daemon.client() as client:
            second = client.generate(" the end", session_id=session, max_tokens=8)
            self.assertGreater(second.usage["reused_tokens"], 100)
            self.assertEqual(REGISTER.says(LONG_PROMPT + first.text + " the end", 8), second.text)
        self.assertEqual(0, daemon.terminate(), daemon.log())

    def test_prompts_beside_streams_do_not_mix_their_graphs(self):
        server = self.server()
        daemon = self.daemon(server.name, "--threads", "2", config="scheduler: {lanes: split}\n")
        prompts = [f"{words} " * 100 + PROMPT for words in ("the dog", "a cat", "the small boy", "hello")]
        for _ in range(3):
            clients = [daemon.client() for _ in prompts]
            replies = uma.parallel(*[lambda client=client, prompt=prompt: client.generate(prompt, max_tokens=40)
                                     for client, prompt in zip(clients, prompts)])
            for client, prompt, reply in zip(clients, prompts, replies):
                self.assertEqual(REGISTER.says(prompt, 40), reply.text)
                client.close()
        self.assertEqual(0, daemon.terminate(), daemon.log())

    def test_two_models_share_a_server(self):
        server = self.server()
        cards = self.folder / "models.yaml"
        cards.write_text("".join(f"{name}: {{path: {uma.TINY_REGISTER}, devices: [{server.name}]}}\n" for name in ("one", "two")))
        daemon = uma.Daemon("one", "--slots", "2", "--kv-cells", "512", config=f"models: {cards}\n")
        self.addCleanup(daemon.kill)
        daemon.start().wait_ready()
        with daemon.client() as one, daemon.client() as two:
            replies = uma.parallel(lambda: one.generate(PROMPT, model="one", max_tokens=TOKENS),
                                   lambda: two.generate(PROMPT, model="two", max_tokens=TOKENS))
            self.assertEqual([REGISTER.says(PROMPT, TOKENS)] * 2, [reply.text for reply in replies])
        self.assertEqual(0, daemon.terminate(), daemon.log())

    def test_vectors_are_those_of_the_processor(self):
        model = uma.BUILD / "models" / "tiny-embed.gguf"
        vectors = []
        for devices in (self.server().name, "none"):
            daemon = uma.Daemon(model, "--devices", devices, config="kv: {flash_attention: off}\n")
            self.addCleanup(daemon.kill)
            daemon.start().wait_ready()
            with daemon.client() as client:
                vectors.append(client.call(type="embed", texts=["the dog sat by the door", "a cat"])["embeddings"])
            self.assertEqual(0, daemon.terminate(), daemon.log())
        for one, other in zip(*vectors):
            self.assertGreater(sum(a * b for a, b in zip(one, other)), 0.999)


@unittest.skipUnless(BACKEND, MISSING)
class WrongServers(RpcTest):
    def test_a_server_that_cannot_be_used_is_named_with_the_reason(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))  # And does not listen.
            for name, reason in ((f"rpc://127.0.0.1:{probe.getsockname()[1]}", "cannot connect: Connection refused"),
                                 ("rpc://nothing.invalid:50052", "cannot find the host"),
                                 (self.fake(say_another_version).name, "it speaks version 7.1.0 of the RPC protocol"),
                                 (self.fake(say_something_else).name, "it is not an RPC server of ggml"),
                                 (self.fake(lambda connection: None).name, "connection")):
                with self.subTest(reason):
                    daemon = self.two_models(name)
                    with daemon.client() as client:
                        reply = client.generate(PROMPT, model="there", max_tokens=8)
                        self.assertEqual(("error", "E_MODEL_002"), (reply.last["event"], reply.last["code"]), reply.last)
                        self.assertIn(f"devices: {name}: ", reply.last["message"])
                        self.assertIn(reason, reply.last["message"])
                        self.assertEqual(REGISTER.says(PROMPT, 8), client.generate(PROMPT, model="here", max_tokens=8).text)
                    self.assertEqual(0, daemon.terminate(), daemon.log())

    def test_a_silent_server_is_given_up(self):
        daemon = self.two_models(self.fake(lambda connection: connection.recv(1000) and connection.recv(1000)).name)
        with daemon.client() as client:
            reply = client.generate(PROMPT, model="there", max_tokens=8)
            self.assertEqual(("error", "E_MODEL_002"), (reply.last["event"], reply.last["code"]), reply.last)
            self.assertIn("it did not answer within 5 s", reply.last["message"])
        self.assertEqual(0, daemon.terminate(), daemon.log())

    def test_a_name_without_a_port_is_a_mistake_of_the_configuration(self):
        ended = uma.run_umad("--devices", "rpc://machine")
        self.assertEqual(1, ended.returncode)
        self.assertIn("rpc://HOST:PORT", ended.stderr)


@unittest.skipUnless(PROGRAM and BACKEND, MISSING)
class LostServers(RpcTest):
    takes_long = True

    def streams(self, daemon):
        """Clients with a long stream each, of `here` and of `there`."""
        clients = [daemon.client(), daemon.client()]
        for client in clients:
            self.addCleanup(client.close)
        streams = [client.start(type="generate", prompt=PROMPT, model=model, max_tokens=tokens, ignore_eos=True)
                   for client, model, tokens in zip(clients, ("here", "there"), (1500, 100_000))]
        for client, stream in zip(clients, streams):
            client.wait_token(stream, 3)
        return clients, streams

    def test_a_server_that_is_killed_ends_its_streams_and_no_others(self):
        one, other = self.server(), self.server()
        daemon = self.two_models(f"{one.name}, {other.name}", split="[1, 1]")
        (here, there), (untouched, lost) = self.streams(daemon)
        other.kill()
        reply = there.finish(lost)
        self.assert_lost(reply, other, "")
        self.assertNotIn("did not answer", reply.last["message"])  # Nobody waited for it.
        self.assertTrue(REGISTER.says(PROMPT, len(reply.tokens)).startswith(reply.text), "no token came from made-up answers")
        self.assertEqual(REGISTER.says(PROMPT, 1500), here.finish(untouched).text)
        self.assertEqual(0, daemon.terminate(), daemon.log())

    def test_a_server_that_stops_is_given_up_after_the_limit(self):
        server = self.server()
        daemon = self.two_models(server.name, "--rpc-timeout", "1500ms")
        (here, there), (untouched, lost) = self.streams(daemon)
        server.signal(signal.SIGSTOP)
        reply = there.finish(lost)
        self.assert_lost(reply, server, "it did not answer within 1.5 s")
        self.assertEqual(REGISTER.says(PROMPT, 1500), here.finish(untouched).text)
        self.assertEqual(0, daemon.terminate(), daemon.log())

    def test_a_server_that_is_killed_while_the_model_is_idle(self):
        server = self.server()
        daemon = self.daemon(server.name)
        server.kill()
        uma.until(lambda: "is lost: it closed the connection" in daemon.log() or "is lost: Connection reset" in daemon.log(), "the loss")
        self.assertEqual(0, daemon.terminate(), daemon.log())

    def test_no_state_of_a_lost_server_is_kept(self):
        server = self.server()
        daemon = self.two_models(server.name)
        with daemon.client() as client:
            session = client.create_session(mode="text", model="there")
            stream = client.start(type="generate", session_id=session, prompt=LONG_PROMPT, max_tokens=100_000, ignore_eos=True)
            client.wait_token(stream, 3)
            server.kill()
            self.assert_lost(client.finish(stream), server, "")
        self.assertEqual(0, daemon.terminate(), daemon.log())
        server.start()
        daemon.start().wait_ready()
        with daemon.client() as client:
            text = client.session(session)["text"]
            reply = client.generate(" the end", session_id=session, max_tokens=8)
            self.assertEqual("length", reply.reason, reply.last)
            self.assertEqual(REGISTER.says(text + " the end", 8), reply.text)
        self.assertEqual(0, daemon.terminate(), daemon.log())

    def test_a_server_that_is_killed_during_a_load(self):
        server = self.server()
        limits = [0]

        def forward(connection):
            # Ends both connections when the library has sent some bytes.
            with socket.create_connection(("127.0.0.1", server.port)) as beyond:
                def forward_answers():
                    with contextlib.suppress(OSError):
                        while part := beyond.recv(1 << 16):
                            connection.sendall(part)
                threading.Thread(target=forward_answers, daemon=True).start()
                count = 0
                while count < limits[0] and (part := connection.recv(1 << 16)):
                    count += len(part)
                    beyond.sendall(part)
                beyond.shutdown(socket.SHUT_RDWR)  # Closing alone would wait for the other thread.

        for limit in (200, 2_000, 20_000, 200_000, 1_000_000):
            with self.subTest(limit=limit):
                limits[0] = limit
                daemon = self.two_models(self.fake(forward).name)
                with daemon.client() as client:
                    reply = client.generate(PROMPT, model="there", max_tokens=8)
                    self.assertEqual("error", reply.last["event"], reply.last)
                    self.assertIn(reply.last["code"], ("E_MODEL_002", "E_RUNTIME_001"))
                    self.assertEqual(REGISTER.says(PROMPT, 8), client.generate(PROMPT, model="here", max_tokens=8).text)
                self.assertEqual(0, daemon.terminate(), daemon.log())

    def test_a_server_that_goes_and_comes_serves_each_time(self):
        server = self.server()
        daemon = self.two_models(server.name)
        with daemon.client() as client:
            def serves():
                return client.generate(PROMPT, model="there", max_tokens=TOKENS).text == REGISTER.says(PROMPT, TOKENS)
            for _ in range(3):
                uma.until(serves, "the model's text")
                server.kill()
                reply = client.generate(PROMPT, model="there", max_tokens=8)
                self.assertIn(reply.last.get("code"), ("E_RUNTIME_001", "E_MODEL_002"), reply.last)
                self.assertIn(server.name.removeprefix("rpc://"), reply.last["message"])
                server.start()
            uma.until(serves, "the model's text")
        self.assertEqual(0, daemon.terminate(), daemon.log())

    def test_an_unloaded_model_leaves_its_server_to_others(self):
        server = self.server()
        daemons = [self.two_models(server.name), self.two_models(server.name)]
        for daemon in daemons:
            with daemon.client() as client:
                self.assertEqual(REGISTER.says(PROMPT, 8), client.generate(PROMPT, model="there", max_tokens=8).text)
                unloaded = client.call(type="unload_model", model="there")
                self.assertNotEqual("error", unloaded["event"], unloaded)
            established = f" 0100007F:{server.port:04X} 01"
            uma.until(lambda: established not in pathlib.Path("/proc/net/tcp").read_text(), "the end of the connection")
        for daemon in daemons:
            self.assertEqual(0, daemon.terminate(), daemon.log())

    def test_service_again_when_the_server_is_back(self):
        server = self.server()
        daemon = self.two_models(server.name)
        with daemon.client() as client:
            self.assertEqual(REGISTER.says(PROMPT, 8), client.generate(PROMPT, model="there", max_tokens=8).text)
            server.kill()
            self.assertEqual("error", client.generate(PROMPT, model="there", max_tokens=8).last["event"])
            server.start()

            def is_served():
                reply = client.generate(PROMPT, model="there", max_tokens=TOKENS)
                return reply.reason == "length" and reply.text == REGISTER.says(PROMPT, TOKENS)
            uma.until(is_served, "service of the model")
        self.assertEqual(0, daemon.terminate(), daemon.log())


if __name__ == "__main__":
    unittest.main()
