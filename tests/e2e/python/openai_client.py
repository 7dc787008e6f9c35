"""The client `openai`."""

import asyncio
import base64
import json
import struct

import openai

from scenarios import ANSWER, CONTENT, PLAIN, QUESTION, RANDOM, SCHEMA, SCRIPTED, URL, VECTORS, Verdict, equal, raised, read_file, run

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0)
TOOL = {"type": "function", "function": {"name": "read_file", "description": "Reads a line of a file.", "parameters": SCHEMA}}
ASKED = [{"role": "user", "content": QUESTION}]


def arguments_of(call):
    return json.loads(call.function.arguments)


def test_an_answer():
    answer = client.chat.completions.create(model=SCRIPTED, messages=ASKED)
    equal((PLAIN, "stop"), (answer.choices[0].message.content, answer.choices[0].finish_reason))
    equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
    assert answer._request_id


def test_a_stream_is_the_same_answer():
    stream = client.chat.completions.create(model=SCRIPTED, messages=ASKED, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    equal(PLAIN, "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices))
    assert chunks[-1].usage.completion_tokens > 0


def test_a_loop_with_a_tool():
    messages = list(ASKED)
    first = client.chat.completions.create(model=SCRIPTED, messages=messages, tools=[TOOL]).choices[0]
    equal("tool_calls", first.finish_reason)
    (call,) = first.message.tool_calls
    messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": read_file(**arguments_of(call))}]
    second = client.chat.completions.create(model=SCRIPTED, messages=messages, tools=[TOOL])
    equal(ANSWER, second.choices[0].message.content)


def test_a_loop_of_streams():
    messages = list(ASKED)
    with client.chat.completions.stream(model=SCRIPTED, messages=messages, tools=[TOOL]) as stream:
        message = stream.get_final_completion().choices[0].message
    (call,) = message.tool_calls
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": read_file(**arguments_of(call))}]
    with client.chat.completions.stream(model=SCRIPTED, messages=messages, tools=[TOOL]) as stream:
        said = "".join(event.delta for event in stream if event.type == "content.delta")
    equal(ANSWER, said)


def test_a_reply_of_a_type():
    parsed = client.chat.completions.parse(model=RANDOM, messages=ASKED, response_format=Verdict).choices[0].message.parsed
    assert isinstance(parsed, Verdict)


def test_a_call_of_a_type():
    tool = openai.pydantic_function_tool(Verdict)
    choice = {"type": "function", "function": {"name": "Verdict"}}
    parsed = client.chat.completions.parse(model=RANDOM, messages=ASKED, tools=[tool], tool_choice=choice)
    (call,) = parsed.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Verdict)


def test_choices_and_logprobs():
    answer = client.chat.completions.create(model=RANDOM, messages=ASKED, n=2, logprobs=True, top_logprobs=3, max_tokens=4, seed=1)
    equal(2, len(answer.choices))
    for choice in answer.choices:
        equal({3}, {len(place.top_logprobs) for place in choice.logprobs.content})


def test_a_completion():
    whole = client.completions.create(model=RANDOM, prompt="Once", max_tokens=8, temperature=0)
    streamed = client.completions.create(model=RANDOM, prompt="Once", max_tokens=8, temperature=0, stream=True)
    equal(whole.choices[0].text, "".join(chunk.choices[0].text for chunk in streamed))


def test_responses_continue_each_other():
    first = client.responses.create(model=SCRIPTED, input=QUESTION, tools=[{"type": "function", "name": "read_file", "parameters": SCHEMA}])
    (call,) = [item for item in first.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": read_file(**json.loads(call.arguments))}
    tools = [{"type": "function", "name": "read_file", "parameters": SCHEMA}]
    second = client.responses.create(model=SCRIPTED, previous_response_id=first.id, input=[result], tools=tools)
    equal(ANSWER, second.output_text)
    equal(second.id, client.responses.retrieve(second.id).id)


def test_a_response_is_streamed_and_typed():
    with client.responses.stream(model=RANDOM, input="Is it right?", text_format=Verdict) as stream:
        final = stream.get_final_response()
    assert isinstance(final.output_parsed, Verdict)


def test_a_response_without_storage_goes_on_by_its_items():
    tools = [{"type": "function", "name": "read_file", "parameters": SCHEMA}]
    items = [{"role": "user", "content": QUESTION}]
    first = client.responses.create(model=SCRIPTED, input=items, tools=tools, store=False)
    items += first.output
    (call,) = [item for item in first.output if item.type == "function_call"]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": CONTENT})
    equal(ANSWER, client.responses.create(model=SCRIPTED, input=items, tools=tools, store=False).output_text)


def test_why_a_prompt_was_computed_again():
    instructions = "You keep the house. " * 20
    first = client.responses.create(model=SCRIPTED, input=QUESTION, instructions=instructions)
    equal(None, first.prompt_cache_diagnostics)
    for text, kind in ((instructions, "cache_hit"), ("Today. " + instructions, "cache_miss")):
        compared = {"comparison_response_id": first.id}
        said = client.responses.create(model=SCRIPTED, input=QUESTION, instructions=text, prompt_cache_options=compared).prompt_cache_diagnostics
        equal(kind, said.type)
    equal("input_changed", said.reason)
    assert said.cache_missed_tokens > 20


def test_a_conversation():
    conversation = client.conversations.create()
    answer = client.responses.create(model=SCRIPTED, conversation=conversation.id, input="Hello")
    equal(PLAIN, answer.output_text)
    kinds = {item.type for item in client.conversations.items.list(conversation.id)}
    assert "message" in kinds, kinds


def test_vectors():
    numbers = client.embeddings.create(model=VECTORS, input=["one text", "another"], encoding_format="float").data
    packed = client.embeddings.create(model=VECTORS, input=["one text", "another"], encoding_format="base64").data
    for plain, coded in zip(numbers, packed, strict=True):
        bits = base64.b64decode(coded.embedding)
        seen = struct.unpack(f"<{len(plain.embedding)}f", bits)
        assert all(abs(a - b) < 1e-6 for a, b in zip(plain.embedding, seen, strict=True))


def test_models():
    names = {model.id for model in client.models.list()}
    assert {SCRIPTED, RANDOM, VECTORS} <= names, names
    equal(SCRIPTED, client.models.retrieve(SCRIPTED).id)


def test_errors_are_the_clients_own_types():
    problem = raised(openai.BadRequestError, lambda: client.chat.completions.create(model=SCRIPTED, messages=ASKED, temperature=-3))
    equal("temperature", problem.param)
    too_long = [{"role": "user", "content": "far too long " * 50000}]
    problem = raised(openai.BadRequestError, lambda: client.chat.completions.create(model=SCRIPTED, messages=too_long))
    equal("context_length_exceeded", problem.code)


async def test_many_at_once():
    async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0) as many:
        answers = await asyncio.gather(*(many.chat.completions.create(model=SCRIPTED, messages=ASKED) for _ in range(6)))
    equal({PLAIN}, {answer.choices[0].message.content for answer in answers})


if __name__ == "__main__":
    run()
