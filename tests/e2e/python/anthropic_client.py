"""The client `anthropic`."""

import asyncio

import anthropic

from scenarios import ANSWER, PLAIN, QUESTION, RANDOM, SCHEMA, SCRIPTED, THINKING, URL, Verdict, equal, raised, read_file, run

client = anthropic.Anthropic(base_url=URL, api_key="unused", max_retries=0)
TOOL = {"name": "read_file", "description": "Reads a line of a file.", "input_schema": SCHEMA}
ASKED = [{"role": "user", "content": QUESTION}]


def call_of(message):
    (call,) = [block for block in message.content if block.type == "tool_use"]
    return call


def with_result(message):
    result = {"type": "tool_result", "tool_use_id": call_of(message).id, "content": read_file(**call_of(message).input)}
    return [*ASKED, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


def test_a_message():
    message = client.messages.create(model=SCRIPTED, max_tokens=100, messages=ASKED)
    equal((PLAIN, "end_turn"), (text_of(message), message.stop_reason))


def test_a_loop_with_a_tool():
    first = client.messages.create(model=SCRIPTED, max_tokens=200, messages=ASKED, tools=[TOOL])
    equal(("tool_use", THINKING), (first.stop_reason, first.content[0].thinking))
    second = client.messages.create(model=SCRIPTED, max_tokens=200, messages=with_result(first), tools=[TOOL])
    equal(ANSWER, text_of(second))
    assert second.usage.cache_read_input_tokens >= first.usage.input_tokens - 1


def test_a_loop_of_streams():
    thinking = {"type": "enabled", "budget_tokens": 1024}
    with client.messages.stream(model=SCRIPTED, max_tokens=2000, messages=ASKED, tools=[TOOL], thinking=thinking) as stream:
        first = stream.get_final_message()
    with client.messages.stream(model=SCRIPTED, max_tokens=2000, messages=with_result(first), tools=[TOOL], thinking=thinking) as stream:
        equal(ANSWER, "".join(stream.text_stream))


def test_the_clients_own_loop():
    @anthropic.beta_tool(name="read_file")
    def tool(path: str, line: int) -> str:
        """Reads a line of a file."""
        return read_file(path, line)

    last = client.beta.messages.tool_runner(model=SCRIPTED, max_tokens=200, messages=ASKED, tools=[tool]).until_done()
    equal(ANSWER, text_of(last))


def test_a_reply_of_a_type():
    message = client.messages.parse(model=RANDOM, max_tokens=60, messages=ASKED, output_format=Verdict)
    assert isinstance(message.parsed_output, Verdict)


def test_why_a_prompt_was_computed_again():
    system = "You keep the house. " * 20
    first = client.messages.create(model=SCRIPTED, max_tokens=20, messages=ASKED, system=system, diagnostics={"previous_message_id": None})
    equal(None, first.diagnostics)
    again = client.messages.create(model=SCRIPTED, max_tokens=20, messages=ASKED, system="Today. " + system, diagnostics={"previous_message_id": first.id})
    equal("system_changed", again.diagnostics.cache_miss_reason.type)
    assert again.diagnostics.cache_miss_reason.cache_missed_input_tokens > 20
    with client.messages.stream(model=SCRIPTED, max_tokens=20, messages=ASKED, system=system, diagnostics={"previous_message_id": "msg_of_nobody"}) as stream:
        equal("previous_message_not_found", stream.get_final_message().diagnostics.cache_miss_reason.type)


def test_a_forced_call():
    schema = {"type": "object", "properties": {"line": {"enum": [1, 2]}}, "required": ["line"], "additionalProperties": False}
    tool = {"name": "choose", "input_schema": schema}
    message = client.messages.create(model=RANDOM, max_tokens=60, messages=ASKED, tools=[tool], tool_choice={"type": "tool", "name": "choose"})
    assert call_of(message).input["line"] in (1, 2)


def test_tokens_are_counted():
    counted = client.messages.count_tokens(model=SCRIPTED, messages=ASKED, tools=[TOOL])
    usage = client.messages.create(model=SCRIPTED, max_tokens=200, messages=ASKED, tools=[TOOL]).usage
    equal(counted.input_tokens, usage.input_tokens + usage.cache_read_input_tokens)


def test_models():
    names = {model.id for model in client.models.list()}
    assert {SCRIPTED, RANDOM} <= names, names


def test_errors_are_the_clients_own_types():
    problem = raised(anthropic.BadRequestError, lambda: client.messages.create(model=SCRIPTED, max_tokens=9, messages=[]))
    assert "messages" in problem.message
    too_long = [{"role": "user", "content": "far too long " * 50000}]
    problem = raised(anthropic.BadRequestError, lambda: client.messages.create(model=SCRIPTED, max_tokens=9, messages=too_long))
    assert "prompt is too long: " in problem.message


async def test_many_at_once():
    async with anthropic.AsyncAnthropic(base_url=URL, api_key="unused", max_retries=0) as many:
        messages = await asyncio.gather(*(many.messages.create(model=SCRIPTED, max_tokens=100, messages=ASKED) for _ in range(6)))
    equal({PLAIN}, {text_of(message) for message in messages})


if __name__ == "__main__":
    run()
