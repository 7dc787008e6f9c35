"""Checks the daemon's answers: they must be well-formed, and errors must have a code of docs/protocol/errors.md.

The functions raise a Fault otherwise.
"""

import json

import openai_shapes

# HTTP statuses with their possible codes (docs/protocol/errors.md); "" is an error without a code.
PROTO = {"E_PROTO_001", "E_PROTO_002", "E_PROTO_003", "E_PROTO_004", "E_PROTO_005"}
STATUSES = {
    400: PROTO | {"E_LIMIT_001", "E_LIMIT_004", "E_MODEL_003", "context_length_exceeded"}, 401: {"E_AUTH_001"}, 403: {"E_AUTH_001", "E_PROTO_003"},
    404: {"E_MODEL_001", "E_SESSION_001", "E_PROTO_004", "E_PROTO_003"}, 405: PROTO, 408: PROTO | {"E_LIMIT_003"}, 409: {"E_SESSION_002", "E_PROTO_003"},
    413: PROTO, 415: PROTO, 426: PROTO, 431: PROTO, 429: {"E_LIMIT_002", "E_LIMIT_005"}, 503: {"E_LIMIT_003", "E_MODEL_002"},
}
CODES = {code for codes in STATUSES.values() for code in codes}
CONTINUES = {"token", "progress", "context_shift", "data", "reasoning", "tool_call", "image_begin", "image_chunk", "history", "snapshot"}
ENDS = {"eos", "error", "session", "ack", "sessions", "exported", "embedding", "rerank", "models", "metrics", "trace", "receipt", "pong", "watch_end"}
ENDS_OF_STREAMS = {"image_generation.completed", "response.completed", "response.incomplete", "response.failed", "message_stop", "error"}
REASONS = {"stop", "tool_calls", "length", "cancelled", "timeout", "slow_consumer", "error"}
# Requests with one of these may get E_RUNTIME_001: the reply may reach a place where the grammar allows no token.
CONSTRAINTS = (b"grammar", b"format", b"schema", b"tool")


class Fault(Exception):
    """A violation by the daemon."""


def is_json(headers):
    return (headers.get("Content-Type") or "").startswith("application/json")


def check_error(error, sent, status=None):
    """Checks an error object of HTTP. Errors of Anthropic's API have the code in umad's own field."""
    if "code" not in error and "uma" in error:
        details = error.get("details", {"error_code": ""})
        if list(details) != ["error_code"]:
            raise Fault(f"an error with other details: {details}")
        error = {**{key: value for key, value in error.items() if key != "details"}, "code": error["uma"]["code"], "param": error["uma"].get("param")}
    if reason := openai_shapes.mismatch({"error": error}, openai_shapes.ERROR):
        raise Fault(f"an error with the wrong form: {reason}")
    check_code(error["code"], sent, error["message"], STATUSES.get(status, CODES))


def check_code(code, sent, message, allowed):
    if code == "E_RUNTIME_001" and any(word in sent for word in CONSTRAINTS):
        return
    if code not in allowed:
        raise Fault(f"code {code}: {message}")


def check_answer(status, headers, body, sent):
    """Checks a whole HTTP answer. Returns its object, if it has one."""
    kind = headers.get("Content-Type") or ""
    if not headers.get("x-request-id"):
        raise Fault(f"status {status} without x-request-id")
    if sent.startswith(b"HEAD ") and not body:
        return None
    if status == 200 and kind.startswith("text/event-stream") and is_watch(sent):
        if not body.startswith(b'event: history\ndata: {"names":'):
            raise Fault(f"a watch that does not begin with the history: {body[:200]}")
        return None
    if status == 200 and kind.startswith("text/event-stream"):
        return check_stream(body.decode(), sent)
    if status == 200 and kind.startswith("application/x-ndjson"):
        return check_lines(body.decode(), sent)
    if status == 200 and not is_json(headers):
        if not body:
            raise Fault(f"an empty {kind}")
        return None
    if status == 204:
        return None
    if not is_json(headers):
        raise Fault(f"status {status} with {kind or 'no type'}: {body[:200]}")
    value = json.loads(body.decode())
    if status == 200:
        shape = openai_shapes.of(value) if isinstance(value, dict) else None  # pages of pictures get lists and null
        if shape not in (None, openai_shapes.MODELS) and "deleted" not in value and (reason := openai_shapes.mismatch(value, shape)):
            raise Fault(f"an answer with the wrong form: {reason}")
        return value
    if status == 503 and set(value) >= {"status", "requests_open"}:
        return value  # the answer of /health
    if is_ollamas(sent):
        return check_ollama_error(value, sent, status)
    may_be_internal = status == 500 and value.get("error", {}).get("code") == "E_RUNTIME_001"
    if status not in {501, *STATUSES} and not may_be_internal:
        raise Fault(f"status {status}: {body[:300]}")
    check_error(value.get("error"), sent, status)
    return value


def is_ollamas(sent):
    """Whether the request is one of Ollama's API, where an error is a text without a code."""
    return b" /api/" in sent.partition(b"\r\n")[0]


def is_watch(sent):
    """Whether the request is one for the live view, whose answer has no end."""
    return sent.startswith(b"GET /v1/events")


def check_ollama_error(value, sent, status=None):
    if list(value) != ["error"] or not isinstance(value["error"], str) or not value["error"]:
        raise Fault(f"an error with the wrong form: {str(value)[:300]}")
    may_be_internal = status == 500 and any(word in sent for word in CONSTRAINTS)
    if status not in {None, 501, *STATUSES} and not may_be_internal:
        raise Fault(f"status {status}: {value['error']}")
    return value


def check_lines(text, sent):
    """Checks a complete stream of Ollama's API: an object in each line, the last one with the end or an error."""
    if not text.endswith("\n"):
        raise Fault(f"a truncated stream: {text[-200:]!r}")
    lines = [json.loads(line) for line in text[:-1].split("\n")]
    if "error" in lines[-1]:
        check_ollama_error(lines[-1], sent)
    elif lines[-1].get("done") is not True:
        raise Fault(f"a stream without its end: {text[-300:]!r}")
    if any(line.get("done") is not False for line in lines[:-1]):
        raise Fault(f"a stream that goes on after its end: {text[-300:]!r}")
    return lines[-1]


def check_stream(text, sent):
    """Checks a complete stream of server-sent events: objects, with a terminal event at the end."""
    blocks = text.split("\n\n")
    if blocks[-1] != "":
        raise Fault(f"a truncated stream: {text[-200:]!r}")
    last = None
    for block in blocks[:-1]:
        data = "".join(line.removeprefix("data: ") for line in block.split("\n") if line.startswith("data: "))
        if not data:
            continue  # a comment
        last = data if data == "[DONE]" else json.loads(data)
        if isinstance(last, dict):
            if last.get("error") and "object" not in last and last.get("type", "error") == "error":
                check_error(last["error"], sent)
            elif last.get("object") in ("chat.completion.chunk", "text_completion"):
                if reason := openai_shapes.mismatch(last, openai_shapes.of(last)):
                    raise Fault(f"an event with the wrong form: {reason}")
    is_end = last == "[DONE]" or isinstance(last, dict) and (last.get("type") in ENDS_OF_STREAMS or last.get("stop") is True)  # llama-server's
    if not is_end:
        raise Fault(f"a stream without a terminal event: {text[-300:]!r}")


def check_event(event, sent):
    """Checks an event of the socket. Returns whether it is the last one of its request."""
    if event.get("event") not in CONTINUES | ENDS:
        raise Fault(f"an unknown event: {str(event)[:300]}")
    if event["event"] == "error" or event.get("reason") == "error":
        check_code(event.get("code"), sent, event.get("message"), CODES)
    if event["event"] == "eos" and event.get("reason") not in REASONS:
        raise Fault(f"an unknown reason: {str(event)[:300]}")
    return event["event"] in ENDS
