"""The page in a browser against texts that mean harm, and umad against pages of other origins. Nothing may run, leave or be read."""

import http.server
import json
import pathlib
import re
import shutil
import tempfile
import threading
import unittest

import browser
import played
import uma
from test_page import LOOK_UP

ESCAPES = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b31m \x08\x7f \u202egnp.exe\u202c \u2066left\u2069 \u200b\ufeff\u200e"
TEXTS = {
    "script": "<script>window.hit='script'</script><script src=http://evil.example/x.js></script>",
    "image": "<img src=x onerror=\"window.hit='img'\"> <img src=http://evil.example/p.png> <image href=http://evil.example/q.png>",
    "svg": "<svg onload=\"window.hit='svg'\"><script>window.hit='svg script'</script><a xlink:href='javascript:window.hit=1'>x</a></svg>",
    "frames": "<iframe srcdoc=\"<script>parent.hit='frame'</script>\"></iframe><iframe src=http://evil.example></iframe>"
              "<object data=http://evil.example></object><embed src=http://evil.example>",
    "links": "[a](javascript:window.hit='link') [b](JaVaScRiPt&colon;alert(1)) [c](data:text/html,<script>alert(1)</script>) [d](vbscript:x) "
             "[e](file:///etc/passwd) [f](\x01javascript:alert(1)) [g](java\tscript:alert(1)) <javascript:alert(1)> [h](//evil.example) [i](#/manage)\n\n"
             "[j][ref]\n\n[ref]: javascript:alert(1)",
    "pictures": "![a](http://evil.example/track.png) ![b](javascript:alert(1)) ![c](data:image/svg+xml,<svg onload=alert(1)>) ![d](v1/models)",
    "page": "<style>*{display:none}</style><link rel=stylesheet href=//evil.example/x.css><base href=//evil.example/>"
            "<meta http-equiv=refresh content='0;url=http://evil.example/'><form action=http://evil.example><button>x</button></form>",
    "code": "```js\"><script>window.hit='code'</script>\nx</code></pre><script>window.hit='code'</script>\n```\n\n    <img src=x onerror=alert(1)>\n\n"
            "```html\n<script>window.hit='highlighted'</script><img src=x onerror=alert(1)>\n```\n\n`<img src=x onerror=alert(1)>`",
    "formulas": "$\\href{javascript:alert(1)}{x}$ $\\includegraphics{http://evil.example/x.png}$ $\\htmlStyle{background:url(http://evil.example)}{x}$ "
                "$\\text{<img src=x onerror=alert(1)>}$ $\\class{x}{<script>alert(1)</script>}$\n\n$$\\def\\a{\\a\\a}\\a$$\n\n$\\rule{1000000em}{1000000em}$",
    "entities": "&#60;script&#62;window.hit='entity'&#60;/script&#62; &lt;img src=x onerror=alert(1)&gt; &#x202e; &#27;[31m &#0; &#xd800; &#x110000;",
    "table": "| <script>alert(1)</script> | <img src=x onerror=alert(1)> |\n|:-:|---|\n| `<b>` | [y](javascript:alert(1)) |\n\n- [ ] <script>alert(1)</script>",
    "mutation": "<math><mtext><table><mglyph><style><!--</style><img title=\"--&gt;&lt;img src=1 onerror=alert(1)&gt;\"> "
                "<noscript><p title=\"</noscript><img src=x onerror=alert(1)>\">",
    "escapes": ESCAPES,
}
LARGE = {
    "a line": "word " * 40_000,
    "a word": "w" * 200_000,
    "items": "".join(f"- item {i}\n" for i in range(5000)),
    "numbers": "".join(f"{i}. item\n" for i in range(1, 5000)),
    "nested items": "".join(f"{'  ' * i}- {i}\n" for i in range(300)),
    "quotes": ">" * 20_000 + " x",
    "spaced quotes": "> " * 20_000 + "x",
    "brackets": "[" * 100_000,
    "links": "[a](" * 30_000,
    "stars": "*a **b " * 25_000,
    "underscores": "_" * 100_000,
    "ticks": "`" * 50_000 + " a " + "`" * 49_999,
    "table": "| a | b | c |\n|---|---|---|\n" + "| 1 | 2 | 3 |\n" * 5000,
    "cells": "|" * 50_000 + "\n" + "|-" * 50_000 + "|\n",
    "html": "<a" * 60_000,
    "formulas": "$x$ " * 3000,
    "dollars": "$" * 100_000,
    "a fence": "```python\n" + "x = 'a' + 1  # comment\n" * 8000,
    "fences": "```\nx\n```\n" * 5000,
    "addresses": "http://a.example/?b=c&d " * 8000,
    "bidi": "\u202e" * 50_000,
    "headings": "# a\n" * 10_000,
    "entities": "&amp;" * 40_000,
    "backslashes": "\\" * 100_000,
    "references": "".join(f"[r{i}]: http://a.example/{i}\n" for i in range(5000)) + "[r1] " * 5000,
}
ALL = "\n\n".join(TEXTS.values())
NAME = "<img src=x onerror=\"window.hit='name'\"><script>window.hit='name'</script>\u202egnp\x1b[31m"


class Hostile(browser.PageTest):
    takes_long = True

    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="uma-e2e-page-hostile-")))
        argument = json.dumps({"city": f"{TEXTS['image']} {TEXTS['script']}", "days": 2})
        replies = {
            "askone": "\n\n".join(TEXTS[name] for name in ("script", "image", "svg", "links")).replace("\x01", "").replace("\t", " "),
            "asktwo": "\n\n".join(TEXTS[name] for name in ("frames", "pictures", "page", "entities", "table")),
            "askcall": f"<think>\n{TEXTS['svg']} {TEXTS['image']}\n</think>\n\n<tool_call>\n"
                       f'{{"name": "look_up", "arguments": {argument}}}\n</tool_call>'}
        played.write_model(folder / "player.gguf", replies)
        cls.model_name = "<svg·onload=hit='model'>\u202e"
        shutil.copy(uma.TINY_CHAT, folder / f"{cls.model_name}.gguf")
        cls.config = f"models_dirs: [{folder}]\n"
        super().setUpClass()

    def conversation(self, *items, model="tiny-chat", **metadata):
        made = self.ask("POST", "v1/conversations", {"items": list(items), "metadata": metadata})
        return made["id"].removeprefix("conv_")

    def shown_with(self, text):
        """A conversation that has the text in every place."""
        message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
        call = {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": json.dumps({"city": text})}
        return self.conversation(
            {"type": "message", "role": "system", "content": text}, {"type": "message", "role": "user", "content": text},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}, call,
            {"type": "function_call_output", "call_id": "c1", "output": text}, message)

    def assert_harmless(self, seen):
        for name, each in seen.items():
            with self.subTest(name):
                self.assertEqual(([], True), (each["harm"], each["isAlive"]))

    def test_texts_are_shown_as_texts(self):
        seen = self.scenario("hostile.stored", sessions={name: self.shown_with(text) for name, text in TEXTS.items()})
        self.assert_harmless(seen.seen)
        self.assertEqual([], seen.harm)
        self.assertIn("<script>window.hit='script'</script>", seen.seen["script"]["text"])
        self.assertIn("␛[31mred␛[0m", seen.seen["escapes"]["text"])
        self.assertIn("<U+202E>gnp.exe<U+202C>", seen.seen["escapes"]["text"])

    def test_huge_texts_leave_the_page_alive(self):
        # No model of these tests has so long a context, so the browser gets other texts than umad has.
        sessions = {name: self.shown_with("x") for name in LARGE}
        seen = self.scenario("hostile.stored", sessions=sessions, texts={sessions[name]: text for name, text in LARGE.items()})
        self.assert_harmless(seen.seen)
        self.assertEqual(set(LARGE), set(seen.seen))

    def test_replies_as_they_are_written(self):
        seen = self.scenario("hostile.written", model="player", tools=[LOOK_UP], questions=["One: askone", "Two: asktwo", "Call: askcall"])
        self.assertEqual(([], True), (seen.harm, seen.isAlive))
        self.assertIn("<script>window.hit='script'</script>", seen.replied[0])
        self.assertIn("[picture: a]", seen.replied[1])
        self.assertRegex(seen.replied[2], r"Tool call\s+look_up\b")
        self.assertIn("onerror", seen.replied[2])

    def test_names(self):
        session = self.shown_with("Hello")
        seen = self.scenario("hostile.names", title=NAME[:100], tag="<b>x</b>", session=session, model=self.model_name, files=[f"{NAME}.umasession", "../../x.umasession"],
                             expects=["status of 400"])
        for place, harm in seen.harm.items():
            with self.subTest(place):
                self.assertEqual([], harm)
        for name in seen.saved:
            self.assertNotRegex(name, r"[<>\"'/\\\x00-\x1f\u202e]")

    def test_addresses(self):
        places = ["#/talk/<img src=x onerror=alert(1)>", "#/talk/../../v1/models", "#/manage/<script>", "#/manage/__proto__", "#/manage/constructor",
                  "#/see/%", "#/__proto__", "#javascript:alert(1)", "?x=<script>alert(1)</script>#/talk", "#/talk/" + "0" * 32, "#/" + "a" * 10_000]
        self.assertEqual([], self.scenario("hostile.addresses", places=places, expects=["status of 404"]).harm)


class Attacker:
    """A server with an empty page, for each of the names that this machine has for the browser."""

    def __init__(self):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = b"<!doctype html><title>other</title><body>An innocent page.</body>"
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.http.server_port
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()


class OtherOrigins(browser.PageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.attacker = Attacker()
        cls.addClassCleanup(cls.attacker.close)

    def requests_since(self, mark):
        """Method, path and status of the requests in the access log behind its first `mark` characters."""
        return [(method, path, int(status)) for method, path, status in re.findall(r" http (\w+) (\S+) (\d+) ", self.daemon.log()[mark:])]

    def test_other_pages_get_nothing(self):
        session = self.client.create_session(mode="chat")
        def logged():
            return [self.daemon.log().count(f"GET /v1/{path} 200") for path in ("sessions", "models")]
        before = logged()
        sessions, models = (self.ask("GET", path) for path in ("v1/sessions", "v1/models"))
        uma.until(lambda: all(now > then for now, then in zip(logged(), before)), "the access log is written")
        for host in ("127.0.0.1", "localhost", "evil.example"):
            with self.subTest(host):
                mark = len(self.daemon.log())
                seen = self.scenario("origins.refused", attacker=f"http://{host}:{self.attacker.port}/", session=session)
                self.assertEqual({}, {name: value for name, value in seen.found.items() if value is not None})
                self.assertGreater(len(seen.found), 60)
                for text in seen.texts:
                    self.assertNotIn("tiny-chat", text)
                self.assertEqual(403, seen.formStatus)
                # The tab with the refusal of a form is umad's own, and asks for an icon.
                asked = [request for request in self.requests_since(mark) if request[1] != "/favicon.ico"]
                self.assertEqual([], [request for request in asked if request[2] != 403])
                self.assertLessEqual({"GET", "POST", "OPTIONS"}, {method for method, _, _ in asked})
        self.assertEqual(sessions["data"], self.ask("GET", "v1/sessions")["data"])
        self.assertEqual([model["state"] for model in models["data"]], [model["state"] for model in self.ask("GET", "v1/models")["data"]])

    def test_a_link_may_open_the_page(self):
        seen = self.scenario("origins.opened", attacker=f"http://localhost:{self.attacker.port}/")
        self.assertEqual((True, None, True), (seen.handle["isClosed"], seen.handle["title"], seen.opener))

    def test_a_name_of_the_attacker_is_refused(self):
        port = self.url.rsplit(":", 1)[1].strip("/")
        seen = self.scenario("origins.rebound", address=f"http://rebound.example:{port}/")
        self.assertEqual((403, 403), (seen.status, seen.models))
        self.assertIn("allowed_hosts", seen.text)


if __name__ == "__main__":
    unittest.main()
