"""The schemas of zod's and pydantic's types: all are taken, in formats and in tools, and what a grammar says is taken by the library
that made its schema, unless a keyword was left out by name.

zod comes with tests/e2e/sdks; pydantic from the package index into the build folder, or the tests of it are skipped.
"""

import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

import test_http
import test_schemas
import uma

HERE = pathlib.Path(__file__).parent
PYDANTIC = uma.BUILD / "pydantic"
PACKAGES = ["pydantic==2.14.4", "email-validator==2.4.0"]
SAMPLES = 20
LEFT_OUT_MAX = 6  # Types of both libraries.
# Types that ask for more than their schemas say: for a file, a number in the text, a unit, the scheme of a URI, UTF-8 in base64, a JSON
# object in the header of a JWT. Regular expressions are no regular language.
NOT_IN_THE_SCHEMA = {"NewPath", "Decimal", "Decimal of places", "ByteSize", "dict of ints", "HttpUrl", "AnyHttpUrl", "httpUrl", "Base64Str",
                     "Base64UrlStr", "jwt", "Pattern"}


@functools.cache
def zod():
    """The command for the types of zod."""
    if shutil.which("node") is None or not (HERE / "sdks" / "node_modules" / "zod").exists():
        raise AssertionError("zod is missing: run script/bootstrap")
    return ["node", HERE / "sdks" / "zod_types.mjs"]


@functools.cache
def pydantic():
    """The command for the types of pydantic, which is installed if it is not there."""
    mark = PYDANTIC / "packages.txt"
    if not mark.exists() or mark.read_text() != " ".join(PACKAGES):
        done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", PYDANTIC, *PACKAGES], check=False,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=10 * uma.WAIT_S)
        if done.returncode != 0:
            raise unittest.SkipTest(f"pydantic cannot be installed: {done.stderr.decode()[-300:]}")
        mark.write_text(" ".join(PACKAGES))
    return [sys.executable, HERE / "pydantic_types.py"]


def run(command, lines=()):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.run(command, input=text.encode(), stdout=subprocess.PIPE, check=True, timeout=10 * uma.WAIT_S,
                          env={**os.environ, "PYTHONPATH": str(PYDANTIC)})
    return [json.loads(line) for line in done.stdout.splitlines()]


class Samples(unittest.TestCase):
    left_out = set()

    def check(self, command):
        types = run(command)
        answers = test_schemas.ask([(each["schema"], [], SAMPLES) for each in types])
        asked = []
        for each, answer in zip(types, answers):
            self.assertNotIn("error", answer, each["name"])
            if answer["left_out"]:
                self.left_out.add(each["name"])
            elif each["name"] not in NOT_IN_THE_SCHEMA:
                asked += [{"name": each["name"], "text": text} for text in answer["samples"]]
        for sample, answer in zip(asked, run([*command, "parse"], asked)):
            self.assertIsNone(answer["problem"], sample)
        self.assertGreater(len(asked), 0.9 * SAMPLES * (len(types) - len(NOT_IN_THE_SCHEMA)))
        self.assertLessEqual(len(self.left_out), LEFT_OUT_MAX, self.left_out)

    def test_of_zod(self):
        self.check(zod())

    def test_of_pydantic(self):
        self.check(pydantic())


SET = {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}, "required": ["tags"]}
PLACE = "#/properties/tags/uniqueItems"
PARAMETERS = "tools[0].function.parameters"
HELLO = [{"role": "user", "content": "Hello"}]


def tool(schema, **fields):
    return {"type": "function", "function": {"name": "f", "parameters": schema, **fields}}


def as_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}


class Requests(test_http.HttpTest):
    """The same types, and one keyword that is left out, in requests to a daemon."""

    model = uma.TINY_CHAT
    flags = (*test_http.HttpTest.flags, "--ollama", "127.0.0.1:0")

    def check_taken(self, types):
        connection = self.connect()
        for each in types:
            schema = each["schema"]
            for fields in ({"response_format": as_format(schema)}, {"tools": [tool(schema)]},
                           {"tools": [tool(schema)], "tool_choice": "required"}):
                status, answer = self.chat(connection=connection, **{**fields, "max_tokens": 2})
                self.assertEqual(200, status, f"{each['name']}: {answer}")

    def test_each_type_of_zod_is_taken(self):
        self.check_taken(run(zod()))

    def test_each_type_of_pydantic_is_taken(self):
        self.check_taken(run(pydantic()))

    def answer(self, path, body):
        """The header, and the objects of the answer."""
        connection = self.connect()
        connection.request("POST", path, json.dumps(body).encode())
        answer = connection.getresponse()
        text = answer.read().decode()
        self.assertEqual(200, answer.status, text)
        lines = [line.removeprefix("data: ") for line in text.split("\n") if line.removeprefix("data: ").startswith("{")]
        return answer.getheader("x-uma-schema-left-out"), [json.loads(line) for line in lines]

    def test_each_api_names_what_it_leaves_out(self):
        flat = {"type": "function", "name": "f", "parameters": SET}
        cases = [
            ("/v1/chat/completions", {"messages": HELLO, "response_format": as_format(SET)}, "response_format.json_schema.schema"),
            ("/v1/chat/completions", {"messages": HELLO, "tools": [tool(SET)]}, PARAMETERS),
            ("/v1/chat/completions", {"messages": HELLO, "tools": [tool(SET, strict=True)], "tool_choice": "required"}, PARAMETERS),
            ("/v1/completions", {"prompt": "Hello", "response_format": as_format(SET)}, "response_format.json_schema.schema"),
            ("/v1/responses", {"input": "Hello", "text": {"format": {"type": "json_schema", "name": "x", "schema": SET}}},
             "text.format.schema"),
            ("/v1/responses", {"input": "Hello", "tools": [flat], "tool_choice": "required"}, PARAMETERS),
            ("/v1/messages", {"messages": HELLO, "output_config": {"format": {"type": "json_schema", "schema": SET}}},
             "output_config.format.schema"),
            ("/v1/messages", {"messages": HELLO, "tools": [{"name": "f", "input_schema": SET}], "tool_choice": {"type": "any"}}, PARAMETERS),
            ("/api/chat", {"messages": HELLO, "format": SET}, "format"),
            ("/api/generate", {"prompt": "Hello", "format": SET}, "format"),
        ]
        for path, body, field in cases:
            limit = {"/v1/responses": {"max_output_tokens": 16}, "/api/chat": {"options": {"num_predict": 8}},
                     "/api/generate": {"options": {"num_predict": 8}}}.get(path, {"max_tokens": 8})
            for stream in (False, True):
                with self.subTest(path=path, field=field, stream=stream):
                    header, objects = self.answer(path, {**body, **limit, "stream": stream})
                    self.assertEqual(field + PLACE, header)
                    last = objects[-1].get("response", objects[-1]) if path == "/v1/responses" else objects[-1]
                    ends = [each for each in objects if "uma" in each] or [last]
                    self.assertEqual([field + PLACE], ends[-1]["uma"]["usage"]["schema_left_out"], objects[-1])
            status, refused = self.request("POST", path, {**body, **limit, "uma": {"strict_schema": True}})
            self.assertEqual(400, status, refused)
            self.assertIn(PLACE, json.dumps(refused))

    def test_on_the_socket(self):
        for fields, field in (({"response_format": as_format(SET)}, "response_format.json_schema.schema"), ({"tools": [tool(SET)]}, PARAMETERS)):
            reply = self.client.generate(messages=HELLO, max_tokens=8, **fields)
            self.assertEqual([field + PLACE], reply.last["usage"]["schema_left_out"])
            refused = self.client.generate(messages=HELLO, max_tokens=8, strict_schema=True, **fields)
            self.assertEqual("error", refused.last["event"])
            self.assertIn(PLACE, refused.last["message"])

    def test_what_is_enforced_whole_is_not_named(self):
        header, objects = self.answer("/v1/chat/completions", {"messages": HELLO, "max_tokens": 8, "response_format": as_format({"type": "object"})})
        self.assertIsNone(header)
        self.assertNotIn("schema_left_out", objects[-1]["uma"]["usage"])


if __name__ == "__main__":
    unittest.main()
