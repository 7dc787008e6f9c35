"""Compares chat templates with other engines: with Jinja2 on random templates, with llama-server on those of model families."""

import json
import os
import pathlib
import random
import subprocess
import sys
import time
import unittest

import uma

TEMPLATES = uma.ROOT / "tests" / "templates"
RENDER = uma.BUILD / "bin" / "render_template"
sys.path.insert(0, str(TEMPLATES))
import expect  # noqa: E402 - it is beside the templates
import forms  # noqa: E402
import oracle  # noqa: E402

FAMILY_TABLE = uma.BUILD / "bin" / "family_table"
SEED = int(os.environ.get("UMA_E2E_SEED", "1"))


def render_all(cases):
    """The answers of umad's engine to (template, input) pairs."""
    lines = "".join(json.dumps({"template": source, "input": given}) + "\n" for source, given in cases)
    done = subprocess.run([RENDER], input=lines.encode(), stdout=subprocess.PIPE, timeout=uma.WAIT_S, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


class Maker:
    """Makes random templates of the features that the engine supports. Many of them fail, in both engines alike."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def pick(self, *choices):
        return self.random.choice(choices)

    def literal(self):
        return self.pick("0", "1", "-3", "7", "2.5", "true", "none", "'a'", "'Hello World'", "' x '", "''", "'—,b,c'", '"it\'s"', "'a\\nb'",
                         "[]", "[1, 2, 3]", "['b', 'A', 'c']", "{}", "{'a': 1, 'b': [2]}", "{1: 'a', 0: [2], '1': 3}", "(1, 'z')", "[ns]")

    def atom(self, depth):
        if depth <= 0 or self.random.random() < 0.25:
            return self.pick(self.literal(), "m.role", "m.content", "messages", "messages[0]", "nothing", "loop.index", "ns.n", "text")
        return f"({self.expression(depth - 1)})"

    def filter(self, depth):
        argument = self.atom(depth - 2)
        return self.pick("upper", "lower", "trim", "title", "capitalize", "length", "list", "first", "last", "string", "int", "float", "abs",
                         "tojson", "tojson(indent=2)", "reverse | list", "sort", "unique | list", "items | list", "dictsort", "escape",
                         "indent(2)", "indent(1, true)", "safe", "map('upper') | list", "map(attribute='role') | list",
                         "select('string') | list", "rejectattr('role', 'eq', 'user') | list", f"default({argument})",
                         f"default({argument}, true)", "replace('a', 'bb')", f"join({self.pick(repr(','), repr(''))})", "join('-', attribute='role')")

    def method(self):
        return self.pick("upper()", "lower()", "strip()", "lstrip()", "rstrip('d ')", "split()", "split(',')", "split('l', 1)", "rsplit('l', 1)",
                         "replace('l', 'L', 1)", "startswith('H')", "endswith('d')", "find('o')", "count('l')", "title()", "splitlines()",
                         "items() | list", "keys() | list", "values() | list", "get('a')", "get('zz', 3)", "removeprefix('H')", "isdigit()")

    def expression(self, depth):
        left, right = self.atom(depth - 1), self.atom(depth - 1)
        return self.pick(
            left, f"{left} {self.pick('+', '-', '*', '//', '/', '%', '~')} {right}", f"{left} ~ {right} ~ {self.atom(depth - 1)}",
            f"{left} {self.pick('==', '!=', '<', '<=', '>', '>=', 'in', 'not in')} {right}", f"{left} and {right}", f"{left} or {right}",
            f"not {left}", f"{left} | {self.filter(depth)}", f"{left} | {self.filter(depth)}", f"{left}.{self.method()}", f"{left}.{self.method()}",
            f"{left} if {right} else {self.atom(depth - 1)}", f"{left} is {self.pick('', 'not ')}{self.test()}", f"{left}[{right}]",
            f"{left}[{self.pick('', '1', '-2')}:{self.pick('', '2', '-1')}{self.pick('', ':2', ':-1')}]", f"-{left}", f"[{left}, {right}]",
            f"{{'k': {left}, 'l': {right}}}", f"{left} < {right} < {self.atom(depth - 1)}")

    def test(self):
        return self.pick("defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence", "iterable",
                         "true", "false", "odd", "even", "in [1, 'a']", "eq('a')", "equalto 1", "divisibleby 2", "gt 1", "upper", "lower")

    def tag(self, text):
        return "{%" + self.pick("", "", "", "-", "+") + f" {text} " + self.pick("", "", "", "-", "+") + "%}"

    def printed(self, text):
        return "{{" + self.pick("", "", "-") + f" {text} " + self.pick("", "", "-") + "}}"

    def blanks(self):
        return self.pick("", "", " ", "\n", "  ", "\n  ", "\n\n", " a ", "<|x|>", "b\n", "\t")

    def body(self, depth):
        return "".join(self.blanks() + self.statement(depth) + self.blanks() for _ in range(self.random.randint(1, 3)))

    def statement(self, depth):
        value = self.expression(self.pick(0, 1, 2))
        if depth <= 0:
            return self.printed(value)
        inner = self.body(depth - 1)
        return self.pick(
            self.printed(value), self.printed(value), self.tag(f"if {value}") + inner + self.tag("endif"),
            self.tag(f"if {value}") + inner + self.tag("elif true") + self.body(0) + self.tag("else") + "x" + self.tag("endif"),
            self.tag("for m in messages") + inner + self.tag("endfor"),
            self.tag(f"for m in {self.expression(1)}") + inner + self.tag("else") + "none" + self.tag("endfor"),
            self.tag(f"for q in messages if {self.expression(1)}") + inner + self.tag("endfor"),
            self.tag("for k, v in {'a': 1, 'b': none}.items()") + "{{ k }}{{ v }}" + inner + self.tag("endfor"),
            self.tag(f"set text = {value}") + inner, self.tag(f"set ns.n = {value}"), self.tag("set text") + inner + self.tag("endset"),
            "{% macro f(m, z=1) %}" + self.body(0) + "{{ z }}{% endmacro %}" + self.printed("f('q')") + self.printed("f('q', z=2)"),
            self.tag("filter upper") + inner + self.tag("endfilter"), "{#" + self.pick("", "-") + " c " + self.pick("", "-") + "#}",
            self.tag("raw") + " {{ x }} " + self.tag("endraw"), self.tag("generation") + inner + self.tag("endgeneration"))

    def template(self):
        # A macro inside a loop is refused by design, so a template has either loops or macros.
        while True:
            source = "{% set ns = namespace(n=0) %}" + self.body(self.pick(0, 0, 1, 2))
            if source.count("macro") == 0 or source.count("for ") == 0:
                return source


class AgainstJinja2(unittest.TestCase):
    MESSAGES = [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hello\nw→rld, <b>"},
                {"role": "assistant", "content": "<think>a</think>\n\nb"}, {"role": "user", "content": "7"}]

    def test_templates_by_chance(self):
        maker = Maker(SEED)
        given = oracle.with_tokens({"messages": self.MESSAGES, "unix_s": 43200})
        cases = [(maker.template(), given) for _ in range(3000)]
        rendered = 0
        for (source, _), ours in zip(cases, render_all(cases)):
            theirs = oracle.render(source, given)
            if "text" not in theirs:
                continue  # umad's result is not checked: Jinja2 compiles first, so it also refuses parts that never run
            if self.is_known_difference(theirs["text"], ours):
                continue
            rendered += 1
            self.assertEqual(theirs, ours, f"seed {SEED}, template {source!r}")
        self.assertGreater(rendered, 300, "enough of them must be worth comparing")

    def is_known_difference(self, text, ours):
        """Whether umad refuses what Jinja2 accepts, or Jinja2 prints addresses or types of Python objects."""
        if " object at 0x" in text or "<built-in" in text or "dict_" in text or "<bound" in text or "<class" in text:
            return True
        return any(reason in ours.get("error", "") for reason in (
            "cannot be printed", "cannot be an item", "cannot be put into", "keys of a dict must be texts", "is not supported", "inside a loop", "is not a function"))

    def test_the_families(self):
        basic, by_form = expect.read(TEMPLATES / "conversations.json"), expect.inputs()
        self.assertEqual(expect.read(TEMPLATES / "inputs.json"), by_form, "tests/templates/expect.py writes this file")
        for path in sorted((TEMPLATES / "families").glob("*.jinja")):
            with self.subTest(family=path.stem):
                self.assertEqual(expect.read(path.with_suffix(".json")), expect.expected(path, basic, by_form),
                                 "tests/templates/expect.py writes these files")


class Table(unittest.TestCase):
    def test_the_table_of_the_docs_is_what_the_templates_show(self):
        done = subprocess.run([FAMILY_TABLE, "--check", uma.ROOT / "docs" / "MODELS.md"], capture_output=True, text=True, timeout=uma.WAIT_S)
        self.assertEqual((0, ""), (done.returncode, done.stderr))


class AgainstLlamaServer(unittest.TestCase):
    """llama-server's engine renders the same text from the same input. Left out: templates that print the date, print the
    beginning of a text in the middle, or read absent tools; and system messages if the template refuses them."""

    FAMILIES = ("chatml", "command_r", "deepseek_r1", "deepseek_v3", "falcon", "gemma2", "gemma3", "glm4", "hermes_tools", "llama3",
                "mistral_nemo", "mistral_v1", "openchat", "phi3", "phi4", "qwen2_5", "qwen3", "smollm2", "smollm3", "vicuna", "yi", "zephyr")
    REFUSE_SYSTEM = ("gemma2", "mistral_v1")
    CONVERSATIONS = ("question", "system", "turns")

    # The variables that llama-server sets for a template, unless the request does.
    DEFAULTS = {"enable_thinking": True, "preserve_thinking": True, "clear_thinking": False, "truncate_history_thinking": False,
                "drop_thinking": False}
    # Conversations with calls and thoughts that it does not write as Jinja2 does.
    CALLS = ("call", "content_and_call", "parallel", "next_turn")
    DIFFERENT = {
        "gemma4": CALLS,  # puts results into the messages with the calls, for an older template
        "hermes_tools": ("tools_offered", *CALLS),  # refuses a list as the key of a dict, which Jinja2 does not find
        "mistral_v3": ("thoughts_of_a_reply", "thinking_on", "thinking_off", "thinking_kept"),  # reads absent tools
    }
    # It refuses dicts with integers as keys, takes the second for a model without thoughts, and does not set `functions` for the third.
    LEFT_OUT = ("seed_oss", "hunyuan_a13b", "firefunction_v2")

    def ask(self, path, requests):
        with uma.LlamaServer(uma.TINY_CHAT, "--chat-template-file", str(path), "-c", "256", "-np", "1", "-t", "1") as server:
            return {name: json.loads(server.post("/apply-template", request)) for name, request in requests.items()}

    def apply(self, path, conversations):
        answers = self.ask(path, {name: {"messages": given["messages"]} for name, given in conversations.items()})
        return {name: answer["prompt"] for name, answer in answers.items()}

    def request(self, given):
        """A conversation in the neutral form as a request of OpenAI's API."""
        made = forms.in_form(given, "arguments_as_text")
        switches = {name: value for name, value in made.items() if name not in ("messages", "tools")}
        return {**{name: made[name] for name in ("messages", "tools") if name in made}, "chat_template_kwargs": switches}

    def test_calls_and_thoughts(self):
        """llama-server brings the neutral form into that of the template, but for the ids of calls, several calls if the template
        takes one, and calls that the template leaves out."""
        every = forms.with_tools(expect.read(TEMPLATES / "calls.json"))
        for path in sorted((TEMPLATES / "families").glob("*.jinja")):
            form = forms.form_of(path.stem)
            if form is None or path.stem in self.LEFT_OUT:
                continue
            form = "openai" if forms.FORMS[form].keys() & {"ids", "calls"} else form
            left_out = self.DIFFERENT.get(path.stem, ()) + (("parallel",) if forms.FORMS[form].get("one_call") else ())
            conversations = {name: given for name, given in every.items() if name not in left_out}
            # Some templates print the date.
            before = int(time.time())
            theirs = self.ask(path, {name: self.request(given) for name, given in conversations.items()})
            inputs = [dict(self.DEFAULTS, **forms.in_form(given, form), eos_token="</s>", bos_token="", unix_s=unix_s)
                      for unix_s in (before, int(time.time())) for given in conversations.values()]
            ours = render_all([(path.read_text(encoding="utf-8"), given) for given in inputs])
            for i, (name, answer) in enumerate(theirs.items()):
                with self.subTest(family=path.stem, conversation=name):
                    self.assertIn(answer.get("prompt"), [ours[i].get("text"), ours[i + len(theirs)].get("text")])

    def test_the_families(self):
        every = json.loads((TEMPLATES / "conversations.json").read_text(encoding="utf-8"))
        for family in self.FAMILIES:
            names = [name for name in self.CONVERSATIONS if name != "system" or family not in self.REFUSE_SYSTEM]
            conversations = {name: every[name] for name in names}
            path = TEMPLATES / "families" / f"{family}.jinja"
            theirs = self.apply(path, conversations)
            ours = render_all([(path.read_text(encoding="utf-8"), dict(given, eos_token="</s>", bos_token="")) for given in conversations.values()])
            for name, answer in zip(conversations, ours):
                with self.subTest(family=family, conversation=name):
                    self.assertEqual(theirs[name], answer.get("text"))


if __name__ == "__main__":
    unittest.main()
