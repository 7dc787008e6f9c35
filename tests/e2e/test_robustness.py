"""Clients that come and go, stop reading, vanish or send garbage: the others get the same text, and no resource is leaked."""

import random
import signal
import socket
import struct
import unittest

import shift_register
import uma

MODEL = uma.TINY_REGISTER
PROMPT = "once upon a time"
OPTIONS = {"max_tokens": 600, "ignore_eos": True}
SAID = shift_register.Register().says(PROMPT, 600)


class Robustness(uma.DaemonTest):
    model = MODEL
    flags = ("--kv-cells", "16384", "--slots", "8")
    config = "limits: {tx_bytes_max: 16384}\n"

    def stream_beside(self, disturb, streams=4):
        """Lets `streams` clients stream while disturb() runs; returns their replies, all complete."""
        clients = [self.another_client() for _ in range(streams)]
        ids = [client.start(type="generate", prompt=PROMPT, **OPTIONS) for client in clients]
        for client, request_id in zip(clients, ids):
            client.wait_token(request_id)
        finished = uma.parallel(disturb, *(lambda c=c, i=i: c.finish(i) for c, i in zip(clients, ids)))
        for client in clients:
            client.close()
        return finished[1:]

    def assert_undisturbed(self, what, disturb):
        alone = self.stream_beside(lambda: None)
        disturbed = self.stream_beside(disturb)
        for reply in alone + disturbed:
            self.assertEqual("length", reply.reason, reply.last)
            self.assertEqual(OPTIONS["max_tokens"], len(reply.tokens))
            self.assertEqual(SAID, reply.text)
        quiet_ms = max(max(reply.gaps_s()) for reply in alone) * 1000
        worst_ms = max(max(reply.gaps_s()) for reply in disturbed) * 1000
        print(f"\n  {what}: worst gap {worst_ms:.1f} ms, undisturbed {quiet_ms:.1f} ms", end=" ")
        self.wait_idle()

    def test_a_client_that_stops_reading(self):
        def stop_reading():
            client = self.daemon.client()
            self.addCleanup(client.close)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for _ in range(3):
                client.start(type="generate", prompt=PROMPT, max_tokens=2000, ignore_eos=True)
        self.assert_undisturbed("stops reading", stop_reading)

    def test_a_slow_reader_ends_with_slow_consumer_and_its_session_stays(self):
        client = self.another_client()
        session = client.create_session(mode="text")
        running = [client.start(type="generate", prompt=PROMPT, max_tokens=2000, ignore_eos=True) for _ in range(6)]
        running.append(client.start(type="generate", session_id=session, prompt=PROMPT, max_tokens=2000, ignore_eos=True))
        self.wait_active()
        self.wait_idle()  # the client reads nothing until all have ended
        replies = [client.finish(request_id) for request_id in running]
        reasons = [reply.reason for reply in replies]
        self.assertIn("slow_consumer", reasons)
        self.assertEqual(set(), set(reasons) - {"slow_consumer", "length"})
        self.assertEqual("session", client.session(session)["event"])
        self.assertEqual("eos", client.generate(" Then", session_id=session, max_tokens=2).last["event"])

    def test_a_client_that_vanishes_in_its_prefill(self):
        def vanish():
            for _ in range(10):
                client = self.daemon.client()
                client.start(type="generate", prompt="the cat sat " * 300, max_tokens=100)
                client.close()
        self.assert_undisturbed("vanishes in its prefill", vanish)

    def test_clients_that_vanish_while_streaming(self):
        def vanish():
            for _ in range(5):
                client = self.daemon.client()
                running = client.start(type="generate", prompt="the cat", max_tokens=1000, ignore_eos=True)
                client.wait_token(running, 3)
                client.close()
        self.assert_undisturbed("vanishes while streaming", vanish)

    def test_a_client_that_sends_garbage(self):
        chance = random.Random(7)

        def send_garbage():
            for round_number in range(60):
                with self.daemon.client() as client:
                    data = chance.randbytes(chance.randint(1, 5000))
                    if round_number % 3 == 0:  # a right length before a wrong body
                        data = struct.pack("<I", len(data)) + data
                    elif round_number % 3 == 1:  # a frame that never becomes whole
                        data = struct.pack("<I", len(data) + 10) + data
                    try:
                        client.send_bytes(data)
                    except (BrokenPipeError, ConnectionResetError):
                        pass
        self.assert_undisturbed("garbage", send_garbage)

    def test_a_thousand_connections_leave_nothing_behind(self):
        def come_and_go(count):
            for number in range(count):
                client = self.daemon.client()
                if number % 4 == 0:
                    self.assertEqual("pong", client.call(type="ping")["event"])
                elif number % 4 == 1:
                    client.send_bytes(b"\x10\x00")
                elif number % 4 == 2:
                    client.start(type="metrics")
                client.close()

        self.client.call(type="ping")  # the connection of this test counts
        descriptors = self.daemon.descriptors()
        self.stream_beside(lambda: come_and_go(200))  # first allocates what is allocated once
        self.wait_idle()
        uma.until(lambda: self.daemon.descriptors() == descriptors, "as many descriptors as before")
        # What is allocated once may come late, so one of three rounds may grow; what is lost with each connection grows in all.
        for _ in range(3):
            rss = self.daemon.rss_bytes()
            replies = self.stream_beside(lambda: come_and_go(1000))
            for reply in replies:
                self.assertEqual("length", reply.reason)
                self.assertEqual(SAID, reply.text)
            self.wait_idle()
            uma.until(lambda: self.daemon.descriptors() == descriptors, "as many descriptors as before")
            grown = self.daemon.rss_bytes() - rss
            print(f"\n  1,000 connections: RSS {grown / 1024:+.0f} KiB, descriptors +0", end=" ")
            if grown <= 1 << 20 or uma.IS_SANITIZED:  # sanitizers keep freed memory in quarantine
                return
        self.fail("each thousand connections take more than 1 MiB")

    def test_five_hundred_connections_at_once(self):
        clients = [self.another_client() for _ in range(500)]
        for client in clients:
            client.start(id="all", type="ping")
        for client in clients:
            self.assertEqual("pong", client.finish("all").last["event"])

    def test_sessions_made_and_ended_leave_nothing_behind(self):
        def churn(count):
            for _ in range(count):
                session = self.client.create_session(mode="text")
                self.client.generate("the cat", session_id=session, max_tokens=2)
                self.client.call(type="end_session", session_id=session)
        before = self.client.metrics()["sessions"]
        churn(1000)  # the trace of the threads grows with the first ones
        rss = self.daemon.rss_bytes()
        churn(400)
        self.assertEqual(before, self.client.metrics()["sessions"])
        grown = self.daemon.rss_bytes() - rss
        print(f"\n  400 sessions: RSS {grown / 1024:+.0f} KiB", end=" ")
        if not uma.IS_SANITIZED:
            self.assertLessEqual(grown, 1 << 20)


class ManyAtOnce(uma.DaemonTest):
    def test_hundreds_connect_before_the_daemon_looks_up(self):
        self.daemon.signal(signal.SIGSTOP)
        clients = []
        try:
            for _ in range(500):
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self.addCleanup(connection.close)
                connection.setblocking(False)  # with a full backlog the kernel returns EAGAIN
                connection.connect(str(self.daemon.socket_path))
                clients.append(connection)
        finally:
            self.daemon.signal(signal.SIGCONT)
        for connection in clients:
            connection.settimeout(uma.WAIT_S)
            connection.sendall(uma.frame({"id": "1", "type": "ping"}))
        for connection in clients:
            self.assertIn(b"pong", connection.recv(4096))


@unittest.skipIf(uma.IS_SANITIZED, "the sanitizers' own checks need descriptors")
class OutOfDescriptors(unittest.TestCase):
    def test_the_daemon_serves_those_it_has_and_recovers(self):
        daemon = uma.Daemon(MODEL, "--kv-cells", "1024")
        daemon.arguments = ["/bin/sh", "-c", 'ulimit -n 48; exec "$@"', "sh", *daemon.arguments]
        with daemon:
            first = daemon.client()
            clients = []
            for _ in range(80):
                clients.append(daemon.client())  # connections that the daemon cannot accept stay in the kernel's backlog
            self.assertEqual("eos", first.generate(PROMPT, max_tokens=5).last["event"])
            for client in clients:
                client.close()
            with daemon.client() as later:
                self.assertEqual("pong", later.call(type="ping")["event"])
            first.close()


class IdleConnections(uma.DaemonTest):
    config = "ipc: {idle_timeout_s: 1}\n"

    def test_an_idle_connection_is_closed_and_its_session_stays(self):
        session = self.client.create_session(mode="text")
        self.assertTrue(self.client.is_closed_by_peer())
        self.assertEqual("session", self.another_client().session(session)["event"])

    def test_half_a_frame_does_not_keep_a_connection(self):
        self.client.send_bytes(b"\x10\x00\x00\x00{")
        self.assertTrue(self.client.is_closed_by_peer())

    def test_a_connection_that_works_is_not_idle(self):
        # The whole takes longer than the timeout, but each pause is shorter.
        replies = 0
        uma.until(lambda: self.client.call(type="ping") and self.client.metrics()["uptime_s"] > 2.5, "2.5 s of use")
        for _ in range(3):
            replies += self.client.call(type="ping")["event"] == "pong"
        self.assertEqual(3, replies)


if __name__ == "__main__":
    unittest.main()
