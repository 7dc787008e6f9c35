"""uma-cli pull against servers that follow the rules, disconnect, send wrong headers or change the file.

In every case the target is the whole file or it does not exist.
"""

import collections
import hashlib
import http.server
import json
import os
import pathlib
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import unittest
import urllib.parse

import uma
from cli import CLI, Terminal, environment
from gguf_file import GgufFile

MODEL = uma.TINY.read_bytes() if uma.TINY.exists() else b""
OTHER = MODEL[:-1000] + bytes(1000)  # another file of the same length
SIZE = len(MODEL)
FIRST = SIZE // 3
SECOND = SIZE // 3 * 2


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Served:
    """A server's answers for one path. The defaults follow the rules."""

    def __init__(self, data=b"", **settings):
        self.data = data
        self.status = 200
        self.etag = '"v1"'
        self.takes_ranges = True
        self.minds_if_range = True
        self.content_range = None  # a value instead of the right one
        self.content_length = None  # a value instead of the right one
        self.is_chunked = False
        self.is_close_delimited = False
        self.cut_at = None  # the connection ends before this byte of the file
        self.hang_at = None  # the same, and it stays open until release()
        self.headers = {}
        self.__dict__.update(settings)

    def but(self, **settings):
        return Served(**{**self.__dict__, **settings})


class Server:
    """Serves `paths`. Answers in `next` are sent first, one for each request, whatever its path."""

    def __init__(self, test):
        self.paths = {}
        self.next = collections.deque()
        self.requests = []  # (path, headers)
        self.sent = []  # (first byte, byte after the last) of every body
        self.released = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                outer.answer(self)

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.handle_error = lambda *_: None  # a client may reset its connection
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        test.addCleanup(thread.join, uma.WAIT_S)
        test.addCleanup(self.http.server_close)
        test.addCleanup(self.http.shutdown)
        test.addCleanup(self.released.set)

    def ranges(self):
        return [headers.get("Range") for _, headers in self.requests]

    def answer(self, handler):
        self.requests.append((handler.path, dict(handler.headers)))
        path = urllib.parse.urlparse(handler.path).path
        served = self.next.popleft() if self.next else self.paths.get(path, Served(status=404))
        data, first, status = served.data, 0, served.status
        asked = handler.headers.get("Range")
        condition = handler.headers.get("If-Range")
        headers = {"ETag": served.etag, **served.headers}
        if asked and status == 200 and served.takes_ranges and (not served.minds_if_range or condition in (None, served.etag)):
            first = int(asked.removeprefix("bytes=").removesuffix("-"))
            status = 206 if first < len(data) else 416
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}" if status == 206 else f"bytes */{len(data)}"
            if served.content_range is not None:
                headers["Content-Range"] = served.content_range
        body = data[first:] if status != 416 else b""
        if served.is_chunked:
            headers["Transfer-Encoding"] = "chunked"
        elif not served.is_close_delimited:
            headers["Content-Length"] = str(len(body) if served.content_length is None else served.content_length)
        try:
            handler.send_response(status)
            for name, value in headers.items():
                if value is not None:
                    handler.send_header(name, value)
            handler.end_headers()
            self.send_body(handler, served, body, first)
        except OSError:
            handler.close_connection = True  # the client has disconnected, as some tests want

    def send_body(self, handler, served, body, first):
        end = served.cut_at if served.cut_at is not None else served.hang_at
        is_whole = end is None
        body = body if is_whole else body[:max(0, end - first)]
        for at in range(0, len(body), 50000):
            piece = body[at:at + 50000]
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if served.is_chunked else piece)
        if body:
            self.sent.append((first, first + len(body)))
        handler.wfile.flush()
        if is_whole and served.is_chunked:
            handler.wfile.write(b"0\r\n\r\n")
        if served.hang_at is not None:
            self.released.wait(uma.WAIT_S)
        if not is_whole or served.is_close_delimited or served.content_length is not None:
            handler.close_connection = True


class PullTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="uma-e2e-pull-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.server = Server(self)
        self.url = self.server.url + "/m.gguf"
        self.good = Served(MODEL)
        self.server.paths["/m.gguf"] = self.good
        self.target = self.folder / "out" / "m.gguf"
        self.target.parent.mkdir()
        self.part = pathlib.Path(f"{self.target}.part")
        self.contents = [MODEL]  # the contents that the target may have
        self.addCleanup(self.assert_target_whole_or_missing)

    def environment(self, **extra):
        settings = {"HOME": self.folder, "XDG_DATA_HOME": self.folder / "data", "HF_ENDPOINT": self.server.url, "HF_TOKEN": "",
                    "NO_PROXY": "*", "no_proxy": "*"}
        return environment(**{**settings, **extra})

    def assert_target_whole_or_missing(self):
        if self.target.exists():
            self.assertIn(sha256(self.target.read_bytes()), [sha256(content) for content in self.contents])

    def run_pull(self, *arguments, out=True, preexec_fn=None, **extra):
        """Runs uma-cli pull to its end and checks the target."""
        arguments = [CLI, "pull", *arguments, *(["--out", self.target] if out else [])]
        result = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, timeout=uma.WAIT_S, check=False,
                                stdin=subprocess.DEVNULL, env=self.environment(**extra), preexec_fn=preexec_fn)
        self.assert_target_whole_or_missing()
        return result

    def start(self, *arguments):
        process = subprocess.Popen([str(CLI), "pull", *map(str, arguments), "--out", str(self.target)], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment())
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def wait_part(self, size):
        uma.until(lambda: self.part.exists() and self.part.stat().st_size == size, f"a part of {size} bytes")
        self.assertFalse(self.target.exists())

    def assert_fetched(self, result, content=MODEL):
        self.assertEqual(0, result.returncode, result.stderr)
        self.assertEqual(sha256(content), sha256(self.target.read_bytes()))
        self.assertEqual([self.target.name], os.listdir(self.target.parent), "nothing is left beside it")

    def assert_refused(self, result, status, *parts):
        self.assertEqual(status, result.returncode, result.stderr)
        self.assertEqual("", result.stdout)
        for part in parts:
            self.assertIn(str(part), result.stderr)

    def assert_no_byte_twice(self):
        at = 0
        for first, end in self.server.sent:
            self.assertEqual(at, first)
            at = end
        self.assertEqual(SIZE, at)


class Whole(PullTest):
    def test_into_the_folder_of_models(self):
        self.target = self.folder / "data" / "uma" / "models" / "m.gguf"
        result = self.run_pull(self.url + "?download=true", out=False)
        self.assert_fetched(result)
        lines = result.stdout.splitlines()
        self.assertEqual(str(self.target), lines[0])
        self.assertIn(f"({SIZE} bytes)", lines[1])
        self.assertIn(f"{sha256(MODEL)} (computed here; no checksum to compare with)", lines[2])
        self.assertTrue(lines[3].endswith(f"umad --model {self.target}"))
        self.assertIn("m.gguf: 100 %", result.stderr)
        for made in (self.folder / "data", self.target.parent):
            self.assertEqual(0o700, made.stat().st_mode & 0o777)

    def test_in_the_home(self):
        self.target = self.folder / ".local/share/uma/models/m.gguf"
        self.assert_fetched(self.run_pull(self.url, out=False, XDG_DATA_HOME=""))

    def test_chunked(self):
        self.server.paths["/m.gguf"] = self.good.but(is_chunked=True)
        self.assert_fetched(self.run_pull(self.url))

    def test_a_body_whose_end_nothing_tells(self):
        self.server.paths["/m.gguf"] = self.good.but(is_close_delimited=True)
        self.assert_refused(self.run_pull(self.url), 2, "--sha256")
        self.assert_fetched(self.run_pull(self.url, "--sha256", sha256(MODEL)))

    def test_quiet(self):
        result = self.run_pull(self.url, "--quiet")
        self.assert_fetched(result)
        self.assertEqual(("", ""), (result.stdout, result.stderr))

    def test_a_bar_at_a_terminal(self):
        with Terminal("pull", self.url, "--out", self.target, **{name: value for name, value in self.environment().items()
                                                                  if not name.startswith(("TERM", "LC_ALL"))}) as terminal:
            terminal.expect(r"m\.gguf  \[#+\]  100 %")
            terminal.expect(r"umad --model ")
            self.assertEqual(0, terminal.wait())

    def test_names(self):
        for path in ("/", "/.hidden.gguf", "/..%2Fm.gguf", "/m.bin", "/m%00.gguf"):
            with self.subTest(path=path):
                self.assert_refused(self.run_pull(self.server.url + path, out=False), 1)
        self.assertEqual([], self.server.requests)

    def test_usage(self):
        for arguments in ((), ("nonsense",), (self.url, "--sha256", "12"), ("ftp://h/m.gguf",), ("file:///etc/passwd",),
                          ("http://me:secret@h/m.gguf",), ("a/b:",)):
            with self.subTest(arguments=arguments):
                self.assert_refused(self.run_pull(*arguments), 1)


class Broken(PullTest):
    def test_connections_that_break_off_are_continued(self):
        self.server.next += [self.good.but(cut_at=FIRST), self.good.but(cut_at=SECOND)]
        self.assert_fetched(self.run_pull(self.url))
        self.assertEqual([None, f"bytes={FIRST}-", f"bytes={SECOND}-"], self.server.ranges())
        self.assertEqual('"v1"', self.server.requests[1][1]["If-Range"])
        self.assert_no_byte_twice()

    def test_killed_and_started_again(self):
        self.server.next.append(self.good.but(hang_at=FIRST))
        process = self.start(self.url)
        self.wait_part(FIRST)
        process.kill()
        process.wait(uma.WAIT_S)
        self.assert_fetched(self.run_pull(self.url, "--sha256", sha256(MODEL)))
        self.assertEqual(f"bytes={FIRST}-", self.server.ranges()[1])
        self.assert_no_byte_twice()

    def test_ctrl_c_keeps_the_part(self):
        for number, size in ((signal.SIGINT, FIRST), (signal.SIGTERM, SECOND)):
            with self.subTest(signal=number):
                self.server.next.append(self.good.but(hang_at=size))
                process = self.start(self.url)
                self.wait_part(size)
                process.send_signal(number)
                output, problem = process.communicate(timeout=uma.WAIT_S)
                self.assertEqual((130, ""), (process.returncode, output))
                self.assertIn(f"kept in {self.part}", problem)
                self.assertEqual(size, self.part.stat().st_size)
        self.assert_fetched(self.run_pull(self.url))
        self.assert_no_byte_twice()

    def test_a_connection_that_stalls(self):
        self.server.next.append(self.good.but(hang_at=FIRST))
        self.assert_fetched(self.run_pull(self.url, "--stall-timeout", 3))
        self.assert_no_byte_twice()

    def test_a_server_that_ignores_ranges(self):
        self.server.next.append(self.good.but(cut_at=FIRST))
        self.server.paths["/m.gguf"] = self.good.but(takes_ranges=False)
        self.assert_fetched(self.run_pull(self.url, "--sha256", sha256(MODEL)))
        self.assertEqual([(0, FIRST), (0, SIZE)], self.server.sent)

    def test_a_file_that_changes_meanwhile(self):
        self.contents = [OTHER]
        for minds in (True, False):
            with self.subTest(minds_if_range=minds):
                self.target.unlink(missing_ok=True)
                self.server.next.append(self.good.but(cut_at=FIRST))
                self.server.paths["/m.gguf"] = Served(OTHER, etag='"v2"', minds_if_range=minds)
                self.assert_fetched(self.run_pull(self.url), OTHER)

    def test_a_wrong_range(self):
        for content_range in (f"bytes {FIRST - 1}-{SIZE - 1}/{SIZE}", f"bytes {FIRST}-{SIZE}/{SIZE + 1}", "nonsense", ""):
            with self.subTest(content_range=content_range):
                self.target.unlink(missing_ok=True)
                self.server.next += [self.good.but(cut_at=FIRST), self.good.but(content_range=content_range)]
                self.assert_fetched(self.run_pull(self.url))

    def test_a_part_that_is_whole(self):
        self.server.next.append(self.good.but(is_chunked=True, cut_at=SIZE))  # every byte, but not the end of the body
        self.assert_fetched(self.run_pull(self.url))
        self.assertEqual([None, f"bytes={SIZE}-"], self.server.ranges())  # 416
        self.assert_no_byte_twice()

    def test_a_part_of_unknown_origin(self):
        self.part.write_bytes(OTHER[:FIRST])
        self.assert_fetched(self.run_pull(self.url))
        self.part.write_bytes(OTHER[:FIRST])
        pathlib.Path(f"{self.part}.json").write_text("{")
        self.assert_fetched(self.run_pull(self.url, "--force"))
        self.assertEqual([None, None], self.server.ranges())

    def test_a_length_that_is_too_long(self):
        self.server.paths["/m.gguf"] = self.good.but(content_length=SIZE + 100, takes_ranges=False)
        self.assert_refused(self.run_pull(self.url), 2, "attempts without progress")
        self.assertFalse(self.target.exists())
        self.assertLessEqual(len(self.server.requests), 10)

    def test_a_busy_server(self):
        self.server.next += [Served(status=503), self.good.but(cut_at=FIRST), Served(b"wait", status=429)]
        self.assert_fetched(self.run_pull(self.url))
        self.assert_no_byte_twice_in_model()

    def assert_no_byte_twice_in_model(self):
        self.server.sent.remove((0, 4))
        self.assert_no_byte_twice()

    def test_no_server(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))  # nothing listens on it
            self.assert_refused(self.run_pull(f"http://127.0.0.1:{unused.getsockname()[1]}/m.gguf"), 2, "cannot fetch m.gguf")
        self.assertEqual([], os.listdir(self.target.parent))


class Refused(PullTest):
    def test_a_web_page(self):
        page = Served(b"<!DOCTYPE html><html>Please log in</html>", headers={"Content-Type": "text/html\x1b[2J"})
        self.server.next.append(page)
        result = self.run_pull(self.url)
        self.assert_refused(result, 3, "did not send a model", "status 200, content type: text/html")
        self.assertNotIn("\x1b", result.stderr)
        self.assertEqual([], os.listdir(self.target.parent))

    def test_a_web_page_does_not_cost_the_part(self):
        self.server.next += [self.good.but(cut_at=FIRST), Served(b"<html>" * 100, takes_ranges=False), self.good]
        self.assert_refused(self.run_pull(self.url), 3)
        self.assertEqual(FIRST, self.part.stat().st_size)
        self.assert_fetched(self.run_pull(self.url))

    def test_files_that_are_no_models(self):
        for data in (b"", b"GGUF", b"GGUF\x07\0\0\0" + MODEL[8:], MODEL[:8] + b"\xff" * 16 + MODEL[24:]):
            with self.subTest(size=len(data)):
                self.server.next.append(Served(data))
                self.assert_refused(self.run_pull(self.url), 3, "did not send a model")
                self.assertEqual([], os.listdir(self.target.parent))

    def test_statuses(self):
        for status, part in ((401, "a login"), (403, "a login"), (404, "does not exist"), (418, "with status 418")):
            with self.subTest(status=status):
                self.server.next.append(Served(b"no", status=status))
                self.assert_refused(self.run_pull(self.url, HF_ENDPOINT="http://localhost:1"), 2, part, status)
                self.assertEqual([], os.listdir(self.target.parent))

    def test_a_checksum(self):
        wrong = sha256(OTHER)
        self.assert_refused(self.run_pull(self.url, "--sha256", wrong), 3, wrong, sha256(MODEL))
        self.assertEqual([], os.listdir(self.target.parent))
        result = self.run_pull(self.url, "--sha256", sha256(MODEL).upper())
        self.assert_fetched(result)
        self.assertIn("(matches --sha256)", result.stdout)

    def test_a_checksum_over_two_runs(self):
        self.server.next.append(self.good.but(hang_at=FIRST))
        process = self.start(self.url)
        self.wait_part(FIRST)
        process.kill()
        process.wait(uma.WAIT_S)
        with open(self.part, "r+b") as part:
            part.seek(FIRST // 2)
            part.write(b"damage")
        self.assert_refused(self.run_pull(self.url, "--sha256", sha256(MODEL)), 3, sha256(MODEL))
        self.assertEqual([], os.listdir(self.target.parent))

    def test_redirects(self):
        for hops in range(1, 7):
            self.server.paths[f"/r{hops}.gguf"] = Served(status=302, headers={"Location": f"/r{hops - 1}.gguf"})
        self.server.paths["/r0.gguf"] = self.good
        self.assert_fetched(self.run_pull(self.server.url + "/r5.gguf"))
        self.target.unlink()
        self.assert_refused(self.run_pull(self.server.url + "/r6.gguf"), 2, "more than 5 redirects")
        for place in ("file:///etc/passwd", "ftp://127.0.0.1/m.gguf", "http://me:secret@127.0.0.1/"):
            with self.subTest(place=place):
                self.server.next.append(Served(status=302, headers={"Location": place}))
                self.assert_refused(self.run_pull(self.url), 2, "redirects to an address that pull refuses")


class Disk(PullTest):
    def test_already_here(self):
        self.assert_fetched(self.run_pull(self.url))
        self.assert_refused(self.run_pull(self.url), 1, "already exists", "--force")
        result = self.run_pull(self.url, "--sha256", sha256(MODEL))
        self.assert_fetched(result)
        self.assertIn("the file was already here", result.stdout)
        self.assertEqual(1, len(self.server.requests))
        self.assert_refused(self.run_pull(self.url, "--sha256", sha256(OTHER)), 1, "with different contents")
        self.contents.append(OTHER)
        self.server.paths["/m.gguf"] = Served(OTHER)
        self.assert_fetched(self.run_pull(self.url, "--force"), OTHER)

    def test_a_failed_replacement_leaves_the_old_file(self):
        self.target.write_bytes(MODEL)
        self.server.paths["/m.gguf"] = Served(OTHER)
        self.assert_refused(self.run_pull(self.url, "--force", "--sha256", "0" * 64), 3)
        self.assertEqual(MODEL, self.target.read_bytes())

    def test_two_at_once(self):
        self.server.next.append(self.good.but(hang_at=FIRST))
        first = self.start(self.url, "--stall-timeout", 600)
        self.wait_part(FIRST)
        self.assert_refused(self.run_pull(self.url), 2, "another uma-cli is downloading")
        self.assertEqual(FIRST, self.part.stat().st_size)
        self.server.released.set()
        first.communicate(timeout=uma.WAIT_S)
        self.assertEqual(0, first.returncode)
        self.assert_no_byte_twice()

    def test_a_disk_that_fills_up(self):
        limit = FIRST
        result = self.run_pull(self.url, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        self.assert_refused(result, 2, "free some space", f"kept in {self.part}")
        self.assertEqual(limit, self.part.stat().st_size)
        self.assert_fetched(self.run_pull(self.url))
        self.assertEqual([None, f"bytes={limit}-"], self.server.ranges())

    def test_a_disk_that_is_too_small(self):
        self.server.paths["/m.gguf"] = self.good.but(content_length=1 << 60)
        self.assert_refused(self.run_pull(self.url), 2, "free")
        self.assertEqual([], os.listdir(self.target.parent))

    def test_folders_that_take_no_files(self):
        missing = self.folder / "missing" / "m.gguf"
        self.assert_refused(self.run_pull(self.url, "--out", missing, out=False), 2, "No such file")
        self.assert_refused(self.run_pull(self.url, "--out", self.folder, out=False), 1, "is not a regular file")
        self.assert_refused(self.run_pull(self.url, "--out", f"{self.folder}/", out=False), 1, "is not the path of a file")
        if os.geteuid() != 0:
            self.target.parent.chmod(0o500)
            self.addCleanup(self.target.parent.chmod, 0o700)
            self.assert_refused(self.run_pull(self.url), 2, "Permission denied")
        self.assertEqual([], self.server.requests)


class Hub(PullTest):
    def serve(self, *paths, size=SIZE, sum_=sha256(MODEL)):
        listing = [{"type": "file", "path": path, "size": size, "lfs": {"oid": sum_, "size": size}} for path in paths]
        listing.append({"type": "directory", "path": "sub"})
        self.server.paths["/api/models/some/model/tree/main"] = Served(json.dumps(listing).encode())
        for path in paths:
            self.server.paths[f"/some/model/resolve/main/{path}"] = self.good

    def test_by_quant(self):
        self.serve("README.md", "m-Q4_K_M.gguf", "sub/m-Q8_0.gguf")
        self.target = self.folder / "data" / "uma" / "models" / "m-Q8_0.gguf"
        result = self.run_pull("some/model:q8_0", out=False)
        self.assert_fetched(result)
        self.assertIn("(matches the hub)", result.stdout)
        self.assertEqual("/api/models/some/model/tree/main?recursive=true", self.server.requests[0][0])
        self.assertEqual("/some/model/resolve/main/sub/m-Q8_0.gguf", self.server.requests[1][0])
        again = self.run_pull("some/model:q8_0", out=False)
        self.assertEqual(0, again.returncode)
        self.assertIn("the file was already here", again.stdout)

    def test_without_a_quant(self):
        self.serve("m-Q2_K.gguf", "m-Q4_K_M.gguf")
        self.assert_fetched(self.run_pull("some/model"))
        self.assertEqual("/some/model/resolve/main/m-Q4_K_M.gguf", self.server.requests[1][0])

    def test_a_choice(self):
        self.serve("m-Q8_0.gguf", "m-Q5_K_S.gguf", "m-Q5_K_M.gguf")
        result = self.run_pull("some/model")
        self.assert_refused(result, 1, "several models")
        names = [line.split() for line in result.stderr.splitlines()[1:]]
        self.assertEqual([[name, "612.3", "KiB"] for name in ("m-Q5_K_M.gguf", "m-Q5_K_S.gguf", "m-Q8_0.gguf")], names)
        self.assert_refused(self.run_pull("some/model:q5_k"), 1, "several models", "m-Q5_K_S.gguf")
        self.assert_refused(self.run_pull("some/model:q3_k"), 1, "no models", "m-Q8_0.gguf")

    def test_a_revision(self):
        self.serve("m.gguf")
        self.server.paths = {path.replace("/main", "/refs%2Fpr%2F1"): served for path, served in self.server.paths.items()}
        self.assert_fetched(self.run_pull("some/model@refs/pr/1"))

    def test_a_listing_in_pages(self):
        self.serve("m-Q8_0.gguf")
        second = self.server.paths.pop("/api/models/some/model/tree/main")
        self.server.paths["/second"] = second
        self.server.paths["/api/models/some/model/tree/main"] = Served(
            b'[{"type":"file","path":"README.md","size":1}]',
            headers={"Link": f'<{self.server.url}/second?cursor=1>; rel="next"'})
        self.assert_fetched(self.run_pull("some/model:q8_0"))

    def test_a_hub_that_breaks_off(self):
        self.serve("m.gguf")
        listing = self.server.paths["/api/models/some/model/tree/main"]
        self.server.next += [listing.but(cut_at=10), Served(status=502), listing, self.good.but(cut_at=FIRST)]
        self.assert_fetched(self.run_pull("some/model"))

    def test_listings_that_are_none(self):
        for served, status in ((Served(b"<html>"), 3), (Served(b"{}"), 3), (Served(b"[]"), 1), (Served(b"no", status=404), 2)):
            with self.subTest(status=status):
                self.server.next.append(served)
                self.assert_refused(self.run_pull("some/model"), status)

    def test_a_size_that_the_file_does_not_have(self):
        for size in (SIZE - 1000, SIZE + 1000):
            with self.subTest(size=size):
                self.serve("m.gguf", size=size)
                self.assert_refused(self.run_pull("some/model"), 3, size, SIZE)
                self.assertEqual([], os.listdir(self.target.parent))

    def test_a_body_longer_than_the_hub_says(self):
        self.serve("m.gguf", size=SIZE - 1000)
        self.server.paths["/some/model/resolve/main/m.gguf"] = self.good.but(is_chunked=True)
        self.assert_refused(self.run_pull("some/model"), 3, "the server sends more")
        self.assertEqual([], os.listdir(self.target.parent))

    def test_a_body_shorter_than_the_hub_says(self):
        self.serve("m.gguf", size=SIZE + 1000)
        self.server.paths["/some/model/resolve/main/m.gguf"] = self.good.but(is_chunked=True, takes_ranges=False)
        self.assert_refused(self.run_pull("some/model"), 2, "ended early")

    def test_another_checksum_than_the_hub_says(self):
        self.serve("m.gguf", sum_=sha256(OTHER))
        self.assert_refused(self.run_pull("some/model"), 3, sha256(OTHER), sha256(MODEL))
        self.assert_refused(self.run_pull("some/model", "--sha256", sha256(MODEL)), 3, "the hub lists")
        self.assertEqual([], os.listdir(self.target.parent))

    def test_the_token_goes_to_the_hub_only(self):
        self.serve("m.gguf")
        store = Server(self)
        store.paths["/blob"] = self.good
        self.server.paths["/some/model/resolve/main/m.gguf"] = Served(status=307, headers={"Location": "/here"})
        self.server.paths["/here"] = Served(status=302, headers={"Location": store.url + "/blob"})
        store.next.append(self.good.but(cut_at=FIRST))  # the range is requested by way of the same redirects
        self.assert_fetched(self.run_pull("some/model", HF_TOKEN="hf_secret"))
        self.assertEqual(["Bearer hf_secret"] * 5, [headers.get("Authorization") for _, headers in self.server.requests])
        self.assertEqual([None, f"bytes={FIRST}-"], store.ranges())
        for _, headers in store.requests:
            self.assertNotIn("hf_secret", str(headers))
        self.target.unlink()
        self.assert_fetched(self.run_pull(store.url + "/blob", HF_TOKEN="hf_secret"))
        self.assertNotIn("hf_secret", str(store.requests))

    def test_a_hub_that_wants_a_token(self):
        self.serve("m.gguf")
        listing = self.server.paths["/api/models/some/model/tree/main"]
        for answers in ([Served(b"no", status=401)], [listing, Served(b"no", status=403)]):
            self.server.next += answers
            self.assert_refused(self.run_pull("some/model"), 2, "HF_TOKEN")
        self.assert_refused(self.run_pull("some/model", HF_TOKEN="x\r\nEvil: 1"), 1, "HF_TOKEN")


if __name__ == "__main__":
    unittest.main()


class Split(PullTest):
    """A model in five pieces with its projector, on a hub that breaks off, lies and redirects."""

    NAMES = [f"reader-Q8_0-{number:05}-of-00005.gguf" for number in range(1, 6)]

    def setUp(self):
        super().setUp()
        self.models = self.folder / "data" / "uma" / "models"
        self.files = dict(zip(self.NAMES, GgufFile(MODEL).split(5)), **{"mmproj-F16.gguf": OTHER})
        self.here = {("mmproj-reader.gguf" if name == "mmproj-F16.gguf" else name): data for name, data in self.files.items()}
        for name, data in self.files.items():
            self.server.paths[self.path_of(name)] = Served(data)
        self.list(self.files)

    @staticmethod
    def path_of(name):
        return f"/some/model/resolve/main/{name}"

    def list(self, names, has_sums=True):
        listing = [{"type": "file", "path": name, "size": len(self.files[name]),
                    **({"lfs": {"oid": sha256(self.files[name])}} if has_sums else {})} for name in names]
        self.server.paths["/api/models/some/model/tree/main"] = Served(json.dumps(listing).encode())

    def assert_all_here(self):
        self.assertEqual({name: sha256(data) for name, data in self.here.items()},
                         {path.name: sha256(path.read_bytes()) for path in self.models.iterdir()})

    def asked(self):
        return [path.rpartition("/")[2] for path, _ in self.server.requests if "/resolve/" in path]

    def test_all_pieces_and_the_projector(self):
        result = self.run_pull("some/model:q8_0", out=False)
        self.assertEqual(0, result.returncode, result.stderr)
        self.assert_all_here()
        self.assertEqual(self.NAMES[0], self.asked()[-1], "the first piece comes last")
        lines = result.stdout.splitlines()
        self.assertEqual(str(self.models / self.NAMES[0]), lines[0])
        self.assertIn("in 6 files", lines[1])
        self.assertIn("(all files match the hub)", lines[2])

    def test_without_the_projector(self):
        self.assertEqual(0, self.run_pull("some/model:q8_0", "--no-projector", out=False).returncode)
        self.assertEqual(self.NAMES, sorted(os.listdir(self.models)))

    def test_a_hostile_hub(self):
        third, fourth = (self.files[name] for name in self.NAMES[2:4])
        moved = Served(status=302, headers={"Location": "/elsewhere"})
        self.server.paths["/elsewhere"] = Served(third)
        self.server.paths[self.path_of(self.NAMES[2])] = moved
        self.server.paths[self.path_of(self.NAMES[3])] = Served(fourth[:-9] + bytes(9))  # not what the hub lists
        self.assert_refused(self.run_pull("some/model:q8_0", out=False), 3, "but", sha256(fourth))
        self.assertNotIn(self.NAMES[0], os.listdir(self.models))
        self.assertNotIn(self.NAMES[3], os.listdir(self.models))
        self.server.paths[self.path_of(self.NAMES[3])] = Served(fourth)
        self.server.next += [self.server.paths["/api/models/some/model/tree/main"], Served(fourth, cut_at=len(fourth) // 2)]
        self.server.requests.clear()
        result = self.run_pull("some/model:q8_0", out=False)
        self.assertEqual(0, result.returncode, result.stderr)
        self.assert_all_here()
        self.assertEqual([self.NAMES[3]] * 2 + [self.NAMES[4], "mmproj-F16.gguf", self.NAMES[0]], self.asked(), "pieces that are here stay")

    def test_pieces_by_url(self):
        del self.here["mmproj-reader.gguf"]
        url = self.server.url + self.path_of(self.NAMES[1])
        self.server.paths[self.path_of(self.NAMES[4])] = Served(status=404)
        self.assert_refused(self.run_pull(url, out=False), 2, "does not exist")
        self.assertEqual(self.NAMES[1:4], sorted(os.listdir(self.models)))
        self.server.paths[self.path_of(self.NAMES[4])] = Served(self.files[self.NAMES[4]])
        self.server.requests.clear()
        self.assertEqual(0, self.run_pull(url, out=False).returncode)
        self.assert_all_here()
        self.assertEqual([self.NAMES[4], self.NAMES[0]], self.asked())
        self.assert_refused(self.run_pull(url, out=False), 1, "already exists")

    def test_a_piece_that_the_hub_lacks(self):
        self.list([name for name in self.files if name != self.NAMES[2]])
        self.assert_refused(self.run_pull("some/model:q8_0", out=False), 3, "only 4 of the 5 pieces")

    def test_what_belongs_to_one_file(self):
        self.assert_refused(self.run_pull("some/model:q8_0"), 1, "5 files", "--folder")
        self.assert_refused(self.run_pull("some/model:q8_0", "--sha256", "0" * 64, out=False), 1, "5 files")
        self.assertFalse(self.models.exists())

    def test_a_projector_serves_all_quantizations(self):
        self.files = {"reader-Q8_0.gguf": MODEL, "reader-Q4_0.gguf": MODEL, "mmproj-F16.gguf": OTHER}
        self.list(self.files, has_sums=False)
        for quant in ("Q8_0", "Q4_0"):
            self.server.paths[self.path_of(f"reader-{quant}.gguf")] = Served(MODEL)
            self.assertEqual(0, self.run_pull(f"some/model:{quant}", out=False).returncode)
        self.assertEqual(["mmproj-reader.gguf", "reader-Q4_0.gguf", "reader-Q8_0.gguf"], sorted(os.listdir(self.models)))
        self.assertEqual(1, self.asked().count("mmproj-F16.gguf"))


del PullTest  # a base class only
