"""Images: as vectors and in chats."""

import base64
import http.client
import json
import math
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import unittest
import urllib.request

import pictures
from uma import TINY, WAIT_S, Daemon, DaemonTest, run_umad, until
from vision import CLI, FLAGS, GRAD, MODEL, PROJECTOR, RED, SAME_BITS, data_of, data_uri, noise, question


def hostile_images():
    """Name and bytes of files that must be refused as images."""
    whole = pictures.GRADIENT
    flipped = bytearray(whole)
    flipped[whole.find(b"IDAT") + 20] ^= 0xFF
    return {
        "empty": b"",
        "text": b"hello",
        "truncated": whole[:len(whole) // 2],
        "head only": whole[:33],
        "damaged": bytes(flipped),
        "huge picture": pictures.png(60_000, 60_000, b""),
        "bomb": pictures.png(8, 8, bytes(50_000_000)),
        "no rows": pictures.png(2000, 2000, b""),
        "gif of nothing": b"GIF89a" + bytes(10) + b";",
        "jpeg of nothing": b"\xff\xd8\xff\xe0\x00\x04ab\xff\xd9",
        "webp of nothing": b"RIFF\x20\x00\x00\x00WEBPVP8 " + bytes(20),
        "webp truncated": pictures.GRADIENT_WEBP[:40],
        "webp damaged": pictures.riff(pictures.webp_chunk(b"VP8L", pictures.GRADIENT_WEBP[20:40])),
        "webp of 268 million pixels": pictures.riff(pictures.webp_chunk(b"VP8L", b"/" + b"\xff" * 5)),
        "webp whose frame is larger than its canvas": pictures.riff(pictures.webp_canvas(1, 1) + pictures.GRADIENT_WEBP[12:]),
        "gif whose picture is larger than its canvas": b"GIF89a\1\0\1\0\x80\0\0" + bytes(6) + b",\0\0\0\0\xff\xff\xff\xff\0\2\2\x44\1\0;",
        "gif without colours": b"GIF89a\1\0\1\0\0\0\0,\0\0\0\0\1\0\1\0\0\2\2\x44\1\0;",
        "jpeg truncated": pictures.PHOTO_JPEG[:400],
        "bmp truncated": b"BM" + bytes(8) + struct.pack("<IIiiHHI", 54, 40, 100, 100, 1, 24, 0) + bytes(24),
        "avif": b"\0\0\0\x20ftypavif" + bytes(20),
        "heic": b"\0\0\0\x20ftypheic" + bytes(20),
        "gguf": b"GGUF" + bytes(100),
        "wav": b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(40),
    }


def tool_pictures():
    """Path and body of a request in each API in which a tool returns a text and a picture."""
    user = {"role": "user", "content": "Look."}
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return {
        "/v1/chat/completions": {"model": "m", "max_tokens": 2, "messages": [
            user, {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": [
                {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": data_uri(GRAD)}}]}]},
        "/v1/responses": {"model": "m", "max_output_tokens": 16, "input": [
            user, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [
                {"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": data_uri(GRAD)}]}]},
        "/v1/messages": {"model": "m", "max_tokens": 2, "messages": [
            user, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [
                {"type": "text", "text": "a"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data_of(GRAD)}}]}]}]},
        "/api/chat": {"model": "m", "stream": False, "options": {"num_predict": 2}, "messages": [
            user, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
            {"role": "tool", "content": "a", "images": [data_of(GRAD)]}]},
    }


class Vision(DaemonTest):
    model = MODEL
    flags = (*FLAGS, "--http", "127.0.0.1:0")

    @classmethod
    def setUpClass(cls):
        cls.pictures = pathlib.Path(tempfile.mkdtemp(prefix="uma-pictures-"))
        cls.addClassCleanup(shutil.rmtree, cls.pictures)
        shutil.copy(RED, cls.pictures / "red.png")
        cls.config = f"vision: {{allowed_dirs: [{cls.pictures}]}}\n"
        super().setUpClass()

    def embed(self, **fields):
        answer = self.client.call(type="embed_image", **fields)
        self.assertEqual("embedding", answer["event"], answer)
        return answer["embeddings"]

    def get(self, path):
        return self.post(path, None, "GET")

    def post(self, path, body, method="POST"):
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/v1", self.daemon.log()).group(1))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        result = answer.status, json.loads(answer.read())
        connection.close()
        return result

    # Vectors

    def test_vectors_are_stable_and_differ_by_image(self):
        grad, red, again = self.embed(images=[{"data": data_of(GRAD)}, {"url": data_uri(RED)}, {"data": data_uri(GRAD)}])
        self.assertEqual(128, len(grad))
        self.assertEqual(grad, again)
        self.assertAlmostEqual(1, math.fsum(value * value for value in grad), places=4)
        self.assertLess(math.fsum(a * b for a, b in zip(grad, red)), 0.999)
        self.assertEqual([grad], self.embed(data=data_of(GRAD)))
        self.assertEqual([red], self.embed(path=str(self.pictures / "red.png")))
        self.assertEqual([red], self.embed(url=f"file://{self.pictures}/red.png"))

    def test_an_image_is_encoded_once(self):
        self.embed(data=data_of(GRAD))
        before = self.client.metrics()
        self.embed(images=[{"data": data_of(GRAD)}] * 3)
        after = self.client.metrics()
        self.assertEqual(before["images_encoded_total"], after["images_encoded_total"])
        self.assertEqual(before["image_cache_hits_total"] + 3, after["image_cache_hits_total"])

    def test_a_picture_is_what_a_person_sees(self):
        def rows(pixel):
            return b"".join(b"\0" + b"".join(bytes(pixel(x, y)) for x in range(32)) for y in range(32))
        def gradient(x, y):
            return 8 * x, 8 * y, 255 - 4 * (x + y)
        wide = pictures.png(32, 32, rows(lambda x, y: (v for level in gradient(x, y) for v in (level, level))), depth=16)
        clear = pictures.png(32, 32, rows(lambda x, y: (x, y, 7, 0)), colours=6)
        white = pictures.png(32, 32, rows(lambda x, y: (255, 255, 255)))
        red = pictures.png(32, 32, rows(lambda x, y: (0,)), colours=3, palette=bytes((230, 30, 40)))
        for name, file, same in (("webp", pictures.GRADIENT_WEBP, pictures.GRADIENT), ("animated webp", pictures.ANIMATED_WEBP, pictures.GRADIENT),
                                 ("16 bits", wide, pictures.GRADIENT), ("transparent", clear, white), ("palette", red, pictures.RED)):
            with self.subTest(name):
                one, other = self.embed(images=[{"data": base64.b64encode(data).decode()} for data in (file, same)])
                self.assertEqual(other, one)
        for file in (pictures.PHOTO_JPEG, pictures.CMYK_JPEG):
            self.embed(data=base64.b64encode(file).decode())

    def test_a_decoder_that_dies_is_started_again(self):
        self.embed(data=data_of(GRAD))
        children = [child for child in pathlib.Path("/proc").glob("[0-9]*/cmdline")
                    if f"decode-media\0{self.daemon.process.pid}\0".encode() in child.read_bytes()]
        self.assertTrue(children, "a picture is decoded in a process of its own")
        for child in children:
            os.kill(int(child.parent.name), signal.SIGKILL)
        self.embed(data=data_of(RED))

    def test_vectors_over_http(self):
        status, answer = self.post("/v1/images/embeddings", {"images": [{"data": data_of(GRAD)}, {"data": data_of(RED)}]})
        self.assertEqual(200, status, answer)
        self.assertEqual([0, 1], [item["index"] for item in answer["data"]])
        self.assertEqual(self.embed(data=data_of(RED))[0], answer["data"][1]["embedding"])
        status, answer = self.post("/v1/images/embeddings", {"images": []})
        self.assertEqual(400, status, answer)

    def test_hostile_images_are_refused_and_nothing_else_happens(self):
        for name, data in hostile_images().items():
            with self.subTest(name):
                encoded = base64.b64encode(data).decode()
                answer = self.client.call(type="embed_image", data=encoded or "=")
                self.assert_error(answer, "E_PROTO_003", "image")
                reply = self.client.generate(messages=[{"role": "user", "content": [
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}}]}])
                self.assert_error(reply, "E_PROTO_003", "image")

    def test_hostile_places_are_refused(self):
        (self.pictures / "link.png").symlink_to(GRAD)
        os.mkfifo(self.pictures / "pipe")
        (self.pictures / "folder").mkdir()
        for path in ("/etc/passwd", f"{self.pictures}/../red.png", f"{self.pictures}/link.png", f"{self.pictures}/pipe",
                     f"{self.pictures}/folder", str(self.pictures), "red.png", "/dev/zero", str(GRAD)):
            with self.subTest(path):
                self.assert_error(self.client.call(type="embed_image", path=path), "E_PROTO_003", "allowed_dirs")
        for url in ("http://127.0.0.1:1/a.png", "https://example.org/a.png", "ftp://a/b", "gopher://x"):
            with self.subTest(url):
                self.assert_error(self.client.call(type="embed_image", url=url), "E_PROTO_003", "vision.urls")

    def test_the_model_says_that_it_reads_images(self):
        self.assertTrue(self.client.models()[0]["reads_images"])

    # Chats

    def ask(self, path, **fields):
        return self.client.generate(messages=[question(path)], **{"max_tokens": 24, **fields})

    def test_greedy_text_is_that_of_the_packaged_tool(self):
        def told(path):
            # umad's chats begin without the tokenizer's leading space.
            ran = subprocess.run(["llama-mtmd-cli", "-m", MODEL, "--mmproj", PROJECTOR, "--image", path, "-p", "<__media__>What is this?",
                                  "--temp", "0", "-n", "200", "-t", "1", "--chat-template", "chatml",
                                  "--override-kv", "tokenizer.ggml.add_space_prefix=bool:false"],
                                 capture_output=True, text=True, timeout=WAIT_S, stdin=subprocess.DEVNULL, check=True)
            # The tool ends without waiting for its output: sometimes most of the text is missing.
            return ran.stdout.strip() if len(ran.stdout) > 100 else None
        for path in (GRAD, RED):
            with self.subTest(path.name):
                text = until(lambda path=path: told(path), "llama-mtmd-cli prints a hundred bytes")
                self.assertTrue(self.ask(path, max_tokens=200).text.strip().startswith(text), text)

    def test_the_same_in_all_forms(self):
        text = self.ask(GRAD).text
        self.assertNotEqual(text, self.ask(RED).text)
        described = self.client.finish(self.client.start(type="describe_image", data=data_of(GRAD), query="What is this?", max_tokens=24))
        self.assertEqual(text, described.text)
        self.assertGreater(len(described.tokens), 1)
        status, answer = self.post("/v1/chat/completions", {"messages": [question(GRAD)], "max_tokens": 24, "temperature": 0})
        self.assertEqual(200, status, answer)
        self.assertEqual(text, answer["choices"][0]["message"]["content"])
        by_path = self.client.generate(max_tokens=24, messages=[{"role": "user", "content": [
            {"type": "image", "path": str(self.pictures / "red.png")}, {"type": "text", "text": "What is this?"}]}])
        self.assertEqual(self.ask(RED).text, by_path.text)

    def test_an_image_counts_as_its_rows_and_is_found_again(self):
        first = self.ask(GRAD)
        self.assertGreater(first.usage["prompt_tokens"], 256)
        before = self.client.metrics()
        again = self.ask(GRAD)
        self.assertEqual(first.text, again.text)
        self.assertGreater(again.usage["reused_tokens"], 256)
        after = self.client.metrics()
        self.assertEqual(before["images_encoded_total"], after["images_encoded_total"])
        self.assertEqual(before["image_cache_hits_total"], after["image_cache_hits_total"], "nobody asked for its rows")

    def test_the_same_picture_in_another_file_is_found_again(self):
        ask = [{"type": "image", "data": data_of(GRAD)}, {"type": "text", "text": "What is the same picture?"}]
        self.client.generate(messages=[{"role": "user", "content": ask}], max_tokens=1)
        before = self.client.metrics()["images_encoded_total"]
        ask[0]["data"] = base64.b64encode(pictures.GRADIENT_WEBP).decode()
        reply = self.client.generate(messages=[{"role": "user", "content": ask}], max_tokens=1)
        self.assertEqual(1, reply.usage["recomputed_tokens"], reply.usage)
        self.assertEqual(before, self.client.metrics()["images_encoded_total"])

    def test_results_of_tools_have_pictures_in_all_apis(self):
        for path, body in tool_pictures().items():
            with self.subTest(path):
                status, answer = self.post(path, body)
                self.assertEqual(200, status, answer)
                usage = answer.get("usage", answer)
                counted = next(usage[name] for name in ("input_tokens", "prompt_tokens", "prompt_eval_count") if name in usage)
                self.assertGreater(counted + answer.get("usage", {}).get("cache_read_input_tokens", 0), 256, answer)

    def test_a_conversation_keeps_the_picture_of_a_tool(self):
        body = tool_pictures()["/v1/responses"]
        status, answer = self.post("/v1/responses", {**body, "store": True})
        self.assertEqual(200, status, answer)
        items = self.get(f"/v1/responses/{answer['id']}/input_items?order=asc")
        output = next(item for item in items["data"] if item["type"] == "function_call_output")["output"]
        self.assertEqual(["input_text", "input_image"], [part["type"] for part in output])
        self.assertEqual(data_uri(GRAD), output[1]["image_url"])
        status, answer = self.post("/v1/responses", {"model": body["model"], "previous_response_id": answer["id"], "max_output_tokens": 16,
                                                     "input": "And now?"})
        self.assertEqual(200, status, answer)

    def test_messages_that_are_wrong(self):
        for content in ([{"type": "image_url"}], [{"type": "image_url", "image_url": {}}], [{"type": "image"}], [{"type": "audio"}],
                        [{"type": "image_url", "image_url": {"url": 7}}], [7],
                        [{"type": "image", "path": "/a", "data": "b"}]):
            with self.subTest(content):
                self.assert_error(self.client.generate(messages=[{"role": "user", "content": content}]), "E_PROTO_003", "content")
        image = question(GRAD)["content"]
        self.assert_error(self.client.generate(messages=[{"role": "system", "content": image}]), "E_PROTO_003", "content")
        self.assert_error(self.client.generate(messages=[{"role": "user", "content": image * 65}]), "E_PROTO_003", "64")
        session = self.client.create_session(mode="text")
        self.assert_error(self.client.generate(session_id=session, messages=[question(GRAD)]), "E_PROTO_003", "mode text")

    def test_a_full_context_goes_on_without_the_oldest_images(self):
        session = self.client.create_session(mode="chat", on_full="shift", system="Be brief.")
        dropped = 0
        for turn in range(10):
            reply = self.client.generate(session_id=session, messages=[question((GRAD, RED)[turn % 2])], max_tokens=8)
            self.assertEqual("eos", reply.last["event"], reply.last)
            dropped += reply.usage["dropped_turns"]
        self.assertGreater(dropped, 0)
        shown = self.client.session(session)
        self.assertEqual(dropped, shown["dropped_turns"])
        self.assertEqual("system", shown["messages"][0]["role"])
        self.assertEqual(10 - dropped, sum(len(message.get("images", [])) for message in shown["messages"]))

    def test_a_frame_with_an_image_may_be_longer_than_others(self):
        large = base64.b64encode(noise()).decode()
        self.assertGreater(len(large), 2 << 20)
        self.assertEqual(128, len(self.embed(data=large)[0]))
        self.client.send_bytes(struct.pack("<I", (16 << 20) + 1))
        self.assertEqual("E_PROTO_002", self.client.receive()["code"])

    # Responses

    def respond(self, *content, **fields):
        status, answer = self.post("/v1/responses", {
            "input": [{"role": "user", "content": list(content)}], "max_output_tokens": 24, "temperature": 0, **fields})
        self.assertEqual(200, status, answer)
        return answer

    def get(self, path):
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/v1", self.daemon.log()).group(1))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=WAIT_S) as answer:
            return json.loads(answer.read())

    def test_responses_read_images_and_go_on_with_them(self):
        text = {"type": "input_text", "text": "What is this?"}
        grad, red = ({"type": "input_image", "image_url": data_uri(path)} for path in (GRAD, RED))
        first = self.respond(grad, text)
        self.assertEqual(self.ask(GRAD).text, first["output"][0]["content"][0]["text"])
        self.assertEqual(self.ask(GRAD).text, self.respond(grad, text, store=False)["output"][0]["content"][0]["text"])
        before = self.client.metrics()["images_encoded_total"]
        second = self.respond({"type": "input_text", "text": "And"}, red, {"type": "input_text", "text": "this?"},
                              previous_response_id=first["id"])
        self.assertGreater(second["usage"]["input_tokens_details"]["cached_tokens"], 256)
        self.assertLessEqual(self.client.metrics()["images_encoded_total"], before + 1)
        items = self.get(f"/v1/responses/{second['id']}/input_items?order=asc")["data"]
        self.assertEqual([["input_image", "input_text"], ["output_text"], ["input_text", "input_image", "input_text"]],
                         [[part["type"] for part in item["content"]] for item in items])
        self.assertEqual(data_uri(GRAD), items[0]["content"][0]["image_url"])
        self.assertEqual(data_uri(RED), items[2]["content"][1]["image_url"])
        # Listed items can be sent as input.
        again = self.post("/v1/responses", {"input": items, "store": False, "max_output_tokens": 24, "temperature": 0})
        self.assertEqual(second["output"][0]["content"][0]["text"], again[1]["output"][0]["content"][0]["text"], again)

    def test_conversations_have_images_among_their_items(self):
        conversation = self.post("/v1/conversations", {})[1]["id"]
        item = {"role": "user", "content": [{"type": "input_image", "image_url": data_uri(GRAD)}, {"type": "input_text", "text": "Look."}]}
        status, added = self.post(f"/v1/conversations/{conversation}/items", {"items": [item]})
        self.assertEqual(200, status, added)
        self.assertEqual(data_uri(GRAD), added["data"][0]["content"][0]["image_url"])
        kept = self.get(f"/v1/conversations/{conversation}/items/{added['data'][0]['id']}")
        self.assertEqual(added["data"][0]["content"], kept["content"])
        answer = self.respond({"type": "input_text", "text": "What is this?"}, conversation=conversation)
        self.assertGreater(answer["usage"]["input_tokens"], 256)
        status, refused = self.post("/v1/conversations", {"items": [item]})
        self.assertEqual((400, "items"), (status, refused["error"]["param"]))

    def test_images_of_responses_that_are_wrong(self):
        for part, param in (({"type": "input_image"}, "input[0].content[0].image_url"),
                            ({"type": "input_image", "file_id": "file-1"}, "input[0].content[0].file_id"),
                            ({"type": "input_image", "image_url": "data:image/png;base64,aGVsbG8="}, "input[0].content[0]"),
                            ({"type": "input_image", "image_url": "https://example.org/a.png"}, "input[0].content[0]")):
            with self.subTest(part):
                status, answer = self.post("/v1/responses", {"input": [{"role": "user", "content": [part]}]})
                self.assertEqual((400, "E_PROTO_003", param), (status, answer["error"]["code"], answer["error"]["param"]), answer)

    # The command line

    def cli(self, *arguments):
        return subprocess.run([str(CLI), *map(str, arguments), "--socket", str(self.daemon.socket_path)],
                              capture_output=True, text=True, timeout=WAIT_S, stdin=subprocess.DEVNULL, check=False)

    def test_the_command_line_shows_images(self):
        text = self.ask(GRAD).text.strip()
        asked = self.cli("--prompt", "What is this?", "--image", GRAD, "--max-tokens", 24)
        self.assertEqual((0, text), (asked.returncode, asked.stdout.strip()), asked.stderr)
        described = self.cli("describe", GRAD, "--query", "What is this?", "--max-tokens", 24)
        self.assertEqual((0, text), (described.returncode, described.stdout.strip()), described.stderr)
        both = self.cli("--prompt", "Which?", "--max-tokens", 4, "--usage", "--image", GRAD, RED)
        self.assertEqual(0, both.returncode, both.stderr)
        self.assertGreater(int(re.match(r"(\d+) prompt tokens", both.stderr).group(1)), 512)
        embedded = self.cli("embed", "--image", GRAD, RED)
        lines = [json.loads(line) for line in embedded.stdout.splitlines()]
        self.assertEqual([str(GRAD), str(RED)], [line["image"] for line in lines], embedded.stderr)
        self.assertEqual(self.embed(data=data_of(RED))[0], lines[1]["embedding"])
        talked = subprocess.run([str(CLI), "chat", "--max-tokens", "24", "--image", str(GRAD), "--socket",
                                 str(self.daemon.socket_path)], capture_output=True, text=True, timeout=WAIT_S,
                                input="What is this?\n", check=False)
        self.assertEqual((0, text), (talked.returncode, talked.stdout.strip()), talked.stderr)

    def test_the_command_line_says_what_is_wrong_with_an_image(self):
        notes = self.pictures / "notes.txt"
        notes.write_text("hello")
        large = self.pictures / "large.bmp"
        large.write_bytes(b"BM" + bytes(12 << 20))
        damaged = self.pictures / "damaged.png"
        damaged.write_bytes(hostile_images()["damaged"])
        elsewhere = self.daemon.folder / "large.bmp"
        shutil.copy(large, elsewhere)
        for arguments, status, said in (
                (("describe", "/absent.png"), 1, "No such file"),
                (("describe", notes), 1, "not a PNG"),
                (("--prompt", "x", "--image", notes), 1, "not a PNG"),
                (("embed", "--image", self.pictures), 1, "is not a regular file"),
                (("describe", damaged), 2, "damaged"),
                (("describe", large), 2, "cannot be read"),
                (("describe", elsewhere), 2, "vision.allowed_dirs"),
                (("describe", "http://127.0.0.1:1/a.png"), 2, "vision.urls")):
            with self.subTest(arguments):
                ended = self.cli(*arguments)
                self.assertEqual(status, ended.returncode, ended.stderr)
                self.assertIn(said, ended.stderr)
                self.assertEqual("", ended.stdout)

    def test_a_session_with_an_image_travels_as_a_file(self):
        with Daemon(MODEL, *FLAGS, config=SAME_BITS) as first, Daemon(MODEL, *FLAGS, config=SAME_BITS) as second, \
                Daemon(MODEL, "--kv-cells", "4096") as blind, tempfile.TemporaryDirectory() as folder:
            def cli(daemon, *arguments):
                return subprocess.run([str(CLI), "sessions", *map(str, arguments), "--socket", str(daemon.socket_path)],
                                      capture_output=True, text=True, timeout=WAIT_S, stdin=subprocess.DEVNULL, check=False)
            with first.client() as client, second.client() as other:
                session = client.create_session(mode="chat", name="seen")
                client.generate(session_id=session, messages=[question(GRAD)], max_tokens=8)
                for kv in ((), ("--kv",)):
                    name = f"copy{len(kv)}"
                    saved = cli(first, "export", "seen", f"{folder}/{name}", *kv)
                    self.assertEqual(0, saved.returncode, saved.stderr)
                    loaded = cli(second, "import", f"{folder}/{name}", "--name", name)
                    self.assertEqual(0, loaded.returncode, loaded.stderr)
                    before = other.metrics()["images_encoded_total"]
                    reply = other.generate(session_id=name, messages=[{"role": "user", "content": "And now?"}], max_tokens=16)
                    self.assertEqual("warm" if kv else "none", reply.usage["tier"], reply.last)
                    self.assertEqual(before if kv else before + 1, other.metrics()["images_encoded_total"])
                    texts = [reply.text]
                    twin = client.call(type="fork_session", session_id=session)["session_id"]
                    texts.append(client.generate(session_id=twin, messages=[{"role": "user", "content": "And now?"}], max_tokens=16).text)
                    self.assertEqual(texts[0], texts[1])
                    refused = cli(blind, "import", f"{folder}/{name}")
                    self.assertEqual(2, refused.returncode)
                    self.assertIn("reads none", refused.stderr)


class VisionLives(unittest.TestCase):
    """Sessions with images across restarts, and beside others."""

    def restart(self, daemon, number):
        if number is not None:
            daemon.signal(number)
        daemon.wait()
        daemon.start().wait_ready()

    def talk(self, client, session, text, image=None):
        content = question(image, text) if image else {"role": "user", "content": text}
        reply = client.generate(session_id=session, messages=[content], max_tokens=16)
        self.assertEqual("eos", reply.last["event"], reply.last)
        return reply

    def images(self, daemon):
        return sorted(path.name for path in (daemon.data_dir / "images").iterdir())

    def test_what_may_stay_encoded_is_reserved_with_the_model(self):
        def reserved(cache):
            config = f"{SAME_BITS}vision: {{cache_bytes_max: {cache}}}\nkv: {{warm_bytes_max: 0}}\n"
            with Daemon(MODEL, *FLAGS, config=config) as daemon, daemon.client() as client:
                return client.metrics()["memory_reserved_bytes"]
        self.assertEqual(16 << 20, reserved("24M") - reserved("8M"))

    def test_many_at_once_beside_a_stream(self):
        story = dict(type="generate", messages=[{"role": "user", "content": "Tell me a story."}], max_tokens=100)

        def ask(client, path):
            return client.start(type="generate", messages=[question(path)], max_tokens=24)
        with Daemon(MODEL, *FLAGS, config=SAME_BITS) as daemon, daemon.client() as client:
            alone = client.finish(client.start(story)).text
            wanted = {path: client.finish(ask(client, path)).text for path in (GRAD, RED)}
            told = client.start(story)
            asked = [(path, ask(client, path)) for path in (GRAD, RED) * 6]
            for path, request in asked:
                self.assertEqual(wanted[path], client.finish(request).text)
            self.assertEqual(alone, client.finish(told).text)

    def test_it_goes_on_without_encoding_again(self):
        with Daemon(MODEL, *FLAGS, config=SAME_BITS) as daemon:
            with daemon.client() as client:
                session = client.create_session(mode="chat")
                self.talk(client, session, "What is this?", GRAD)
                twin = client.call(type="fork_session", session_id=session)["session_id"]
                wanted = self.talk(client, twin, "And now?").text
                self.assertEqual(1, client.metrics()["images_encoded_total"])
            self.restart(daemon, signal.SIGTERM)
            with daemon.client() as client:
                reply = self.talk(client, session, "And now?")
                self.assertEqual(wanted, reply.text)
                self.assertEqual("cold", reply.usage["tier"])
                self.assertGreater(reply.usage["reused_tokens"], 256)
                self.assertEqual(0, client.metrics()["images_encoded_total"])
                shown = client.session(session)["messages"][0]
                self.assertEqual(self.images(daemon), [image["sha256"] for image in shown["images"]])

    def test_after_a_kill_it_is_computed_again_from_its_file(self):
        with Daemon(MODEL, *FLAGS, config=SAME_BITS) as daemon:
            with daemon.client() as client:
                session = client.create_session(mode="chat")
                self.talk(client, session, "What is this?", RED)
                twin = client.call(type="fork_session", session_id=session)["session_id"]
                wanted = self.talk(client, twin, "And now?").text
            self.restart(daemon, signal.SIGKILL)
            with daemon.client() as client:
                self.assertEqual(wanted, self.talk(client, session, "And now?").text)
                self.assertEqual(1, client.metrics()["images_encoded_total"])

    def test_images_of_sessions_that_ended_are_removed(self):
        with Daemon(MODEL, *FLAGS, config=SAME_BITS) as daemon:
            with daemon.client() as client:
                kept, ended = client.create_session(mode="chat"), client.create_session(mode="chat")
                self.talk(client, kept, "What is this?", GRAD)
                self.talk(client, ended, "What is this?", RED)
                self.assertEqual(2, len(self.images(daemon)))
                client.call(type="end_session", session_id=ended)
            self.restart(daemon, signal.SIGTERM)
            self.assertEqual(1, len(self.images(daemon)))
            with daemon.client() as client:
                self.talk(client, kept, "And now?")

    def test_without_the_projector_the_session_waits_for_it(self):
        with Daemon(MODEL, *FLAGS, config=SAME_BITS) as daemon:
            with daemon.client() as client:
                session = client.create_session(mode="chat")
                self.talk(client, session, "What is this?", GRAD)
            blind = [flag for flag in daemon.arguments if flag not in ("--mmproj", str(PROJECTOR))]
            seeing, daemon.arguments = daemon.arguments, blind
            self.restart(daemon, signal.SIGTERM)
            with daemon.client() as client:
                reply = client.generate(session_id=session, messages=[{"role": "user", "content": "And now?"}])
                self.assertEqual("E_MODEL_001", reply.code, reply.last)
            daemon.arguments = seeing
            self.restart(daemon, signal.SIGTERM)
            with daemon.client() as client:
                self.talk(client, session, "And now?")


class Unloaded(unittest.TestCase):
    """A large image for a model that is not loaded yet. Its file, its card and the files beside it show whether it reads
    images."""

    LARGE = staticmethod(lambda: base64.b64encode(noise()).decode())

    def check(self, folder, name, **files):
        models = pathlib.Path(folder) / "models"
        models.mkdir()
        for target, source in files.items():
            shutil.copy(source, models / target.replace("__", "."))
        config = f"models: {folder}/models.yaml\nmodels_dirs: [{models}]\n"
        with Daemon(TINY, "--http", "127.0.0.1:0", "--kv-cells", "4096", config=config) as daemon, daemon.client() as client:
            listed = {model["name"]: model for model in client.models()}
            self.assertEqual(("unloaded", True), (listed[name]["state"], listed[name]["reads_images"]))
            port = int(re.search(r"http://127\.0\.0\.1:(\d+)/v1", daemon.log()).group(1))
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
            connection.request("POST", "/v1/responses", json.dumps({"model": name, "max_output_tokens": 4, "input": [{"role": "user", "content": [
                {"type": "input_image", "image_url": f"data:image/png;base64,{self.LARGE()}"}]}]}))
            answer = connection.getresponse()
            body = json.loads(answer.read())
            self.assertEqual(200, answer.status, body)
            self.assertGreater(body["usage"]["input_tokens"], 256)
            connection.close()
            self.assertTrue({model["name"]: model for model in client.models()}[name]["reads_images"])

    def test_its_card_names_the_projector(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "models.yaml").write_text("sees:\n  path: models/body.gguf\n  projector: models/eyes.gguf\n")
            self.check(folder, "sees", body__gguf=MODEL, eyes__gguf=PROJECTOR)

    def test_the_projector_lies_beside_it(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "models.yaml").write_text("")
            self.check(folder, "body", body__gguf=MODEL, **{"mmproj-body__gguf": PROJECTOR})


class NoProjector(DaemonTest):
    flags = ("--http", "127.0.0.1:0", "--kv-cells", "4096")

    def test_a_picture_of_a_tool_does_not_end_the_conversation(self):
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/v1", self.daemon.log()).group(1))
        for path, body in tool_pictures().items():
            with self.subTest(path):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
                connection.request("POST", path, json.dumps(body))
                answer = connection.getresponse()
                self.assertEqual(200, answer.status, answer.read())
                self.assertIn("sees no images", answer.headers.get_all("x-uma-warning")[-1])
                connection.close()
        reply = self.client.generate(max_tokens=1, messages=tool_pictures()["/v1/chat/completions"]["messages"])
        self.assertEqual(1, reply.usage["unseen_images"], reply.usage)
        refused = self.client.generate(max_tokens=1, messages=[question(GRAD)])
        self.assert_error(refused, "E_MODEL_003", "--mmproj")

    def test_images_are_refused_by_what_the_model_cannot(self):
        answer = self.client.call(type="embed_image", data="aGVsbG8=")
        self.assert_error(answer, "E_MODEL_003", "--mmproj")
        self.assertFalse(self.client.models()[0]["reads_images"])


class Starts(unittest.TestCase):
    def test_a_projector_that_is_none_ends_the_start(self):
        with tempfile.TemporaryDirectory() as folder:
            ended = run_umad("--model", MODEL, "--mmproj", MODEL, "--socket", f"{folder}/s", "--data-dir", f"{folder}/d")
        self.assertEqual(1, ended.returncode, ended.stderr)
        self.assertIn("projector", ended.stderr)


if __name__ == "__main__":
    unittest.main()
