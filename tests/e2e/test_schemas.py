"""Compares grammars of JSON Schemas with python3-jsonschema: every text of a grammar is valid for its schema, and most valid
values are texts of the grammar.

The schemas are random ones, those of the JSON Schema test suite that can be grammars (it comes with Debian's
libtest-json-schema-acceptance-perl; other systems skip it), and those of replies of a daemon.
"""

import json
import os
import pathlib
import random
import subprocess
import unittest

import jsonschema

import uma

TEXTS = uma.BUILD / "bin" / "schema_texts"
SEED = int(os.environ.get("UMA_E2E_SEED", "1"))
SUITE = pathlib.Path("/usr/share/perl5/auto/share/dist/Test-JSON-Schema-Acceptance/tests/draft2020-12")  # Debian's package of it


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def ask(requests):
    """The answers of schema_texts to (schema, texts, samples) triples."""
    lines = "".join(json.dumps({"schema": schema, "texts": texts, "samples": samples, "seed": SEED}) + "\n"
                    for schema, texts, samples in requests)
    done = subprocess.run([TEXTS], input=lines.encode(), stdout=subprocess.PIPE, timeout=10 * uma.WAIT_S, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]  # of bytes: at line feeds only


def no_duplicates(pairs):
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        raise ValueError(f"duplicate keys: {keys}")
    return dict(pairs)


def problem_of(schema, text, unique=True):
    """Returns why `text` is not valid for the schema; None if it is valid."""
    try:
        value = json.loads(text, object_pairs_hook=no_duplicates if unique else None)
    except ValueError as problem:
        return str(problem)
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    found = next(validator.iter_errors(value), None)
    return found.message if found else None


def has_open_objects(schema):
    """Whether values of the schema may have unlisted properties, two of which can have the same name."""
    text = json.dumps(schema)
    return any(part in text for part in ('"additionalProperties": true', '"additionalProperties": {', '"properties": {}', '"prefixItems"',
                                         '"patternProperties"'))


class Maker:
    """Makes random schemas."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def schema(self, depth=3):
        chance = self.random
        kinds = [self.integer, self.number, self.string, self.pattern, self.enum, self.simple, self.set, self.multiple]
        if depth > 0:
            kinds += [self.keys, self.patterns_of_keys, self.object, self.object, self.array, self.any_of, self.all_of, self.tuple]
        return chance.choice(kinds)(depth)

    def simple(self, _):
        return self.random.choice([{"type": "null"}, {"type": "boolean"}, {"type": ["boolean", "null"]}, {"type": "string"}])

    def integer(self, _):
        schema = {"type": "integer"}
        low = self.random.randint(-2000, 2000)
        if self.random.random() < 0.7:
            schema[self.random.choice(["minimum", "exclusiveMinimum"])] = low
        if self.random.random() < 0.7:
            schema[self.random.choice(["maximum", "exclusiveMaximum"])] = low + 2 + self.random.choice([0, 3, 88, 12345])
        return schema

    def number(self, _):
        schema = self.integer(0)
        schema["type"] = "number"
        if self.random.random() < 0.5:
            schema = {key: value / self.random.choice([1000, 8]) if key.endswith("imum") and "xclusive" not in key else value
                      for key, value in schema.items()}
        return schema

    def string(self, _):
        schema = {"type": "string"}
        if self.random.random() < 0.5:
            schema["minLength"] = self.random.randint(0, 4)
        if self.random.random() < 0.5:
            schema["maxLength"] = self.random.randint(4, 9)
        if not schema.keys() - {"type"}:
            schema["format"] = self.random.choice(["date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname", "duration"])
        return schema

    def pattern(self, _):
        pieces = ["a", "[a-f]", "\\d", "[^\"x]", "(?:b|cc)", "\\.", "é", "[\\w-]", "."]
        body = "".join(self.random.choice(pieces) + self.random.choice(["", "", "?", "*", "+", "{2}", "{1,3}"])
                       for _ in range(self.random.randint(1, 5)))
        schema = {"type": "string", "pattern": self.random.choice(["^", "", "^(?=.*a)", "^(?!b)", "(?<!a)\\b"]) + body + self.random.choice(["$", ""])}
        if self.random.random() < 0.4:
            schema["maxLength"] = self.random.randint(3, 9)
        if self.random.random() < 0.2:
            schema["minLength"] = self.random.randint(1, 3)
        return schema

    def keys(self, depth):
        names = self.random.choice([{"enum": ["a", "b", "key"]}, {"pattern": "^[a-d]+$"}, {"minLength": 1, "maxLength": 3}, {"not": {}}])
        return {"type": "object", "propertyNames": names, "additionalProperties": self.schema(depth - 1)}

    def patterns_of_keys(self, depth):
        schema = {"type": "object", "patternProperties": {"^a": self.schema(depth - 1), "z$": self.simple(0)}}
        if self.random.random() < 0.5:
            schema["properties"] = {"ab": self.simple(0)}
        if self.random.random() < 0.5:
            schema["additionalProperties"] = self.random.choice([False, self.integer(0)])
        return schema

    def set(self, _):
        values = self.random.sample(["x", "y", "z", 1, 2, 3, None, True], self.random.randint(2, 8))
        return {"type": "array", "uniqueItems": True, "items": {"enum": values}, "minItems": self.random.randint(0, 2)}

    def multiple(self, _):
        schema = {"type": "integer", "multipleOf": self.random.choice([2, 5, 12, 100])}
        if self.random.random() < 0.5:
            schema["minimum"] = self.random.randint(-50, 50)
        return schema

    def enum(self, _):
        values = ["x", "", 0, -1.5, None, True, [1, "a"], {"k": None}, "quo\"te\\", "é\n"]
        return {"enum": self.random.sample(values, self.random.randint(1, 4))}

    def object(self, depth):
        names = self.random.sample(["a", "ab", "b", "key", "é", "with space", "q\"", ""], self.random.randint(0, 4))
        schema = {"type": "object", "properties": {name: self.schema(depth - 1) for name in names},
                  "required": [name for name in names if self.random.random() < 0.5]}
        if self.random.random() < 0.3:
            schema["additionalProperties"] = self.random.choice([False, True, self.schema(0)])
        return schema

    def array(self, depth):
        schema = {"type": "array", "items": self.schema(depth - 1)}
        if self.random.random() < 0.5:
            schema["minItems"] = self.random.randint(0, 3)
        if self.random.random() < 0.5:
            schema["maxItems"] = self.random.randint(3, 5)
        return schema

    def tuple(self, depth):
        schema = {"type": "array", "prefixItems": [self.schema(depth - 1) for _ in range(self.random.randint(1, 3))]}
        if self.random.random() < 0.5:
            schema["items"] = self.random.choice([False, self.schema(0)])
        if self.random.random() < 0.5:
            schema["minItems"] = self.random.randint(0, 3)
        return schema

    def any_of(self, depth):
        return {self.random.choice(["anyOf", "oneOf"]): [self.schema(depth - 1) for _ in range(self.random.randint(1, 3))]}

    def all_of(self, depth):
        return {"allOf": [self.object(depth - 1), self.object(depth - 1)]}

    def root(self):
        schema = self.schema()
        if self.random.random() < 0.3:
            schema = {"$defs": {"node": {"type": "object", "properties": {"value": schema, "next": {"$ref": "#/$defs/node"}},
                                         "required": ["value"], "additionalProperties": False}}, "$ref": "#/$defs/node"}
        return schema


class Schemas(unittest.TestCase):
    takes_long = True

    def test_what_a_grammar_says_is_of_its_schema(self):
        maker = Maker(SEED)
        schemas = [maker.root() for _ in range(600)]
        answers = ask([(schema, [], 6) for schema in schemas])
        texts = 0
        for schema, answer in zip(schemas, answers):
            if "error" in answer:
                self.assertEqual("no JSON value satisfies the schema", answer["error"], json.dumps(schema))
            for text in [] if answer.get("left_out") else answer.get("samples", []):
                texts += 1
                self.assertIsNone(problem_of(schema, text, unique=not has_open_objects(schema)), f"{json.dumps(schema)}: {text}")
        served = sum("error" not in answer and not answer["left_out"] for answer in answers)
        self.assertGreater(served, 0.8 * len(schemas), [answer for answer in answers if answer.get("left_out")][:20])
        self.assertGreater(texts, 2 * served)

    @staticmethod
    def suite():
        """Yields (file, schema, [(value, is valid)]) of the suite's tests for draft 2020-12."""
        for path in sorted(SUITE.glob("*.json")):
            for group in json.loads(path.read_text(encoding="utf-8")):
                yield path.stem, group["schema"], [(test["data"], test["valid"]) for test in group["tests"]]

    def test_the_suite(self):
        """Tests each schema with each value. A schema without a type gets that of the value: umad would imply the type of its
        keywords."""
        types = [("null", type(None)), ("boolean", bool), ("number", (int, float)), ("string", str), ("array", list), ("object", dict)]
        requests = []
        expected = []
        for name, schema, tests in self.suite():
            for value, is_valid in tests:
                said = {} if schema is True else schema
                if said is not False and "type" not in said:
                    said = {"type": next(type_ for type_, python in types if isinstance(value, python)), **said}
                requests.append((said, [compact(value)], 3))
                expected.append((name, is_valid, value))
        served = valid = accepted = 0
        for (said, texts, _), answer, (name, is_valid, value) in zip(requests, ask(requests), expected):
            if "error" in answer or answer["left_out"]:
                continue
            served += 1
            if is_valid:
                valid += 1
                accepted += answer["accepted"][0]
            else:
                self.assertFalse(answer["accepted"][0], f"{name}: {json.dumps(said)} has not {texts[0]}")
            for text in answer["samples"]:
                self.assertIsNone(problem_of(said, text, unique=False), f"{name}: {json.dumps(said)}: {text}")
        print(f"{served} of {len(requests)} tests have schemas that are served; of {valid} valid values {accepted} are accepted")
        self.assertGreater(valid, 50)
        self.assertGreater(accepted, 0.7 * valid)


if __name__ == "__main__":
    unittest.main()
