"""Chat templates as transformers renders them: Jinja2 with its options, filters and functions. The other opinion of the tests."""

import copy
import datetime
import functools
import json

import jinja2
import jinja2.ext
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    """{% generation %}: marks what a model is trained on; prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_print"), [], [], body).set_lineno(line)

    def _print(self, caller):
        return caller()


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def _environment():
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    # The time of every test: the beginning of 1970.
    environment.globals["strftime_now"] = lambda form: datetime.datetime(1970, 1, 1).strftime(form)
    return environment


_ENVIRONMENT = _environment()


@functools.lru_cache(maxsize=1)
def _compiled(source):
    return _ENVIRONMENT.from_string(source)


def with_tokens(given):
    """An input with the names of a model's tokens."""
    return dict({"bos_token": "<s>", "eos_token": "</s>"}, **given)


def render(source, given):
    """{"text": ...} or {"error": ...}. `given` is what tests/templates/json_input.h takes."""
    context = dict({"messages": [], "tools": None, "documents": None, "add_generation_prompt": True}, **copy.deepcopy(given))  # some filters change lists
    try:
        return {"text": _compiled(source).render(**context)}
    except Exception as problem:  # noqa: B902 - templates fail in every way that Python knows
        return {"error": str(problem)}
