"""The client `ollama`."""

import asyncio

import ollama

from scenarios import ANSWER, PLAIN, QUESTION, RANDOM, SCRIPTED, THINKING, URL, VECTORS, Verdict, equal, raised, read_file, run

client = ollama.Client(host=URL)
ASKED = [{"role": "user", "content": QUESTION}]


def result_of(message):
    (call,) = message.tool_calls
    return {"role": "tool", "tool_name": call.function.name, "content": read_file(**call.function.arguments)}


def test_a_chat():
    answer = client.chat(SCRIPTED, ASKED)
    equal((PLAIN, "stop", True), (answer.message.content, answer.done_reason, answer.done))


def test_a_loop_with_a_function():
    first = client.chat(SCRIPTED, ASKED, tools=[read_file], think=True)
    equal(THINKING, first.message.thinking)
    second = client.chat(SCRIPTED, [*ASKED, first.message, result_of(first.message)], tools=[read_file])
    equal(ANSWER, second.message.content)


def test_a_loop_of_streams():
    calls = []
    for part in client.chat(SCRIPTED, ASKED, tools=[read_file], stream=True):
        calls += part.message.tool_calls or []
    message = ollama.Message(role="assistant", tool_calls=calls)
    parts = client.chat(SCRIPTED, [*ASKED, message, result_of(message)], tools=[read_file], stream=True)
    equal(ANSWER, "".join(part.message.content for part in parts))


def test_a_reply_of_a_type():
    answer = client.chat(RANDOM, ASKED, format=Verdict.model_json_schema())
    Verdict.model_validate_json(answer.message.content)


def test_prompts():
    equal(PLAIN, client.generate(SCRIPTED, "Hello", options={"temperature": 0}, keep_alive="5m").response)
    equal(PLAIN, "".join(part.response for part in client.generate(SCRIPTED, "Hello", stream=True)))
    raw = client.generate(RANDOM, "Once", raw=True, options={"num_predict": 4, "temperature": 0})
    equal(4, raw.eval_count)


def test_vectors():
    many = client.embed(VECTORS, ["one text", "another"])
    equal([64, 64], [len(vector) for vector in many.embeddings])
    equal(64, len(client.embeddings(VECTORS, "one text").embedding))


def test_models():
    names = {model.model for model in client.list().models}
    assert {f"{SCRIPTED}:latest", f"{VECTORS}:latest"} <= names, names
    assert "tools" in client.show(SCRIPTED).capabilities
    client.chat(SCRIPTED, [])  # loads it
    assert f"{SCRIPTED}:latest" in {model.model for model in client.ps().models}


def test_errors_are_the_clients_own_type():
    problem = raised(ollama.ResponseError, lambda: client.show("nothing"))
    equal(404, problem.status_code)
    too_long = [{"role": "user", "content": "far too long " * 100000}]
    problem = raised(ollama.ResponseError, lambda: client.chat(SCRIPTED, too_long))
    equal(400, problem.status_code)
    assert "prompt is too long" in problem.error


async def test_many_at_once():
    many = ollama.AsyncClient(host=URL)
    answers = await asyncio.gather(*(many.chat(SCRIPTED, ASKED) for _ in range(6)))
    equal({PLAIN}, {answer.message.content for answer in answers})


if __name__ == "__main__":
    run()
