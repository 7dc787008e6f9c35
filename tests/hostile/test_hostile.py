"""Attackers of every kind beside victims: the daemon survives, the victims get the same replies as undisturbed, and nothing leaks.
script/soak does the same for longer."""

import json
import re
import socket
import unittest

import arena
import attackers
import judge
import surface
import uma

SEED = 1
ATTACKERS = 4
STEPS = 500  # steps of each attacker


def source(name):
    return (uma.ROOT / "src" / name).read_text()


class Tables(unittest.TestCase):
    """The attackers know every type, route and field of the daemon."""

    def test_every_frame_type(self):
        table = source("wire/own/request_codec.cpp").split("kDecoders = {{")[1].split("}};")[0]
        self.assertEqual(set(re.findall(r'\{"(\w+)", ', table)), set(surface.FRAMES))

    def test_every_route(self):
        served = {(method.strip("_").upper(), re.sub(r"\{\w+\+?\}", "*", path))
                  for method, path in re.findall(r'HttpRoute\{(\w+), "([^"]+)"', source("server/http/routes.cpp"))}
        self.assertGreater(len(served), 30)
        known = {(route.method, re.sub(r"<\w+>|tiny-register", "*", route.path.partition("?")[0])) for route in surface.ROUTES}
        self.assertEqual(served, {(method, path) for method, path in known if method != "HEAD"})
        self.assertLessEqual({("GET", path) for method, path in known if method == "HEAD"}, served)  # HEAD has the routes of GET.

    def test_every_field(self):
        text = "\n".join(path.read_text() for path in (uma.ROOT / "src" / "wire").rglob("*.cpp") if not path.stem.endswith("_test"))
        names = set(re.findall(r'\b\w+\.(?:text|required_text|boolean|integer|unsigned_integer|number|array|object|find)\(\s*"(\w+)"', text))
        self.assertGreater(len(names), 80)
        self.assertEqual(set(), names - set(surface.FIELDS))


class Hostile(unittest.TestCase):
    takes_long = True

    @classmethod
    def setUpClass(cls):
        cls.arena = cls.enterClassContext(arena.Arena())

    @classmethod
    def tearDownClass(cls):
        status = cls.arena.daemon.terminate()
        assert status == 0, f"umad ended with {status}:\n{cls.arena.daemon.log()[-8000:]}"

    def setUp(self):
        self.account = attackers.Account()
        self.arena.wait_empty()

    def tearDown(self):
        self.assertTrue(self.arena.daemon.is_running(), self.arena.daemon.log()[-8000:])
        self.assertEqual([], self.account.faults[:5])
        self.arena.wait_empty()

    def attacker(self, seed=SEED):
        made = attackers.Attacker(self.arena.target(), self.account, seed)
        self.addCleanup(made.leave)
        return made

    def test_every_request_of_the_tables_is_served(self):
        """Otherwise its mutations would break invalid requests."""
        attacker = self.attacker()
        for route in surface.ROUTES:
            with self.subTest(route=route):
                attacker.make_things()
                body = None if route.body is None else attacker.filled(json.dumps(route.body).encode())
                if route.body == "<file>":
                    body = attacker.files[0]
                status, answer = attacker.exchange(route.method, attacker.path_of(route), body)
                self.assertEqual(route.status, status, answer)
        for kind, (body, _) in surface.FRAMES.items():
            with self.subTest(kind=kind):
                attacker.make_things()
                if kind == "import_session":
                    continue  # it is answered only after its data
                if kind == "import_data":
                    attacker.open_import()
                    attacker.things["import"] = "open"
                before = self.account.answers["E_PROTO_003"]
                attacker.frame_exchange(attacker.filled(json.dumps(attacker.frame_of(kind, body)).encode()).replace(b"<import>", b"open"))
                self.assertEqual(before, self.account.answers["E_PROTO_003"])
                attacker.leave()
        self.assertEqual(set(), set(self.account.answers) - {route.status for route in surface.ROUTES} - judge.ENDS, "errors of valid requests")

    def test_attackers_beside_victims(self):
        with self.arena.victims("stream", "chat", "agent", "embeds") as undisturbed:
            uma.until(lambda: self.arena.metrics()["requests_total"] > 100, "some replies")
        status, others = self.arena.request("POST", "/v1/sessions", {"mode": "chat", "name": "not yours"})
        self.assertEqual(200, status, others)
        rss = self.arena.memory("VmRSS")
        with self.arena.victims("stream", "chat", "agent", "embeds") as heard:
            target = self.arena.target(others["session_id"])
            for thread in attackers.attack(target, self.account, SEED, ATTACKERS, steps=STEPS):
                thread.join(uma.WAIT_S * 10)
                self.assertFalse(thread.is_alive(), "an attacker hangs")
        for kind, victim in heard.items():
            quiet = undisturbed[kind]
            worst, worst_quiet = (1000 * max((end - begin for begin, end in each["pauses"]), default=0) for each in (victim, quiet))
            print(f"\n  {kind}: {victim['replies']} replies, worst gap {worst:.0f} ms, first token after {max(victim['first_ms']):.0f} ms at most; "
                  f"undisturbed {worst_quiet:.0f} and {max(quiet['first_ms']):.0f} ms", end="")
            self.assertEqual([], victim["wrong"])
            self.assertEqual(0, victim["breaks"])
            self.assertGreater(victim["replies"], 0)
        self.assertEqual((200, {**others, "messages": []}), self.arena.request("GET", "/v1/sessions/" + others["session_id"]),
                         "the session of another tenant has changed")
        self.arena.wait_empty()
        grown = self.arena.memory("VmRSS") - rss
        print(f"\n  {self.account.requests_total} requests, RSS {grown / arena.MIB:+.0f} MiB, answers {dict(self.account.answers.most_common(12))}")
        self.assertGreater(self.account.answers[400], 50)
        self.assertGreater(self.account.answers[200], 50)
        if not uma.IS_SANITIZED:  # sanitizers keep freed memory in quarantine
            self.assertLess(grown, arena.GROWTH_BYTES_MAX)

    def test_more_connections_than_there_may_be(self):
        with self.arena.victims("stream", "embeds") as heard:
            uma.until(lambda: self.arena.metrics()["requests_total"] > 10, "some replies")
            for _ in range(3):
                held = []
                for _ in range(300):
                    connection = socket.create_connection(("127.0.0.1", self.arena.port), timeout=uma.WAIT_S)
                    self.addCleanup(connection.close)
                    held.append(connection)
                for connection in held:
                    connection.close()
        for victim in heard.values():
            self.assertEqual(([], 0), (victim["wrong"], victim["breaks"]))


if __name__ == "__main__":
    unittest.main()
