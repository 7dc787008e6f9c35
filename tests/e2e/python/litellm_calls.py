"""LiteLLM's providers for OpenAI's, Anthropic's, Ollama's and vLLM's servers."""

import json

import litellm

from scenarios import ANSWER, PLAIN, QUESTION, RANDOM, SCHEMA, SCRIPTED, URL, VECTORS, Verdict, equal, raised, read_file, run

litellm.suppress_debug_info = True
PROVIDERS = {"openai": f"{URL}/v1", "hosted_vllm": f"{URL}/v1", "anthropic": URL, "ollama_chat": URL}
TOOL = {"type": "function", "function": {"name": "read_file", "description": "Reads a line of a file.", "parameters": SCHEMA}}
ASKED = [{"role": "user", "content": QUESTION}]


def call(provider, model, **fields):
    return litellm.completion(model=f"{provider}/{model}", api_base=PROVIDERS[provider], api_key="unused", max_retries=0, **fields)


def test_answers_and_streams():
    for provider in PROVIDERS:
        equal(PLAIN, call(provider, SCRIPTED, messages=ASKED).choices[0].message.content)
        parts = call(provider, SCRIPTED, messages=ASKED, stream=True)
        equal(PLAIN, "".join(part.choices[0].delta.content or "" for part in parts))


def test_loops_with_a_tool():
    for provider in PROVIDERS:
        message = call(provider, SCRIPTED, messages=ASKED, tools=[TOOL]).choices[0].message
        (called,) = message.tool_calls
        result = {"role": "tool", "tool_call_id": called.id, "name": "read_file", "content": read_file(**json.loads(called.function.arguments))}
        answer = call(provider, SCRIPTED, messages=[*ASKED, message, result], tools=[TOOL])
        equal(ANSWER, answer.choices[0].message.content)


def test_replies_of_a_type():
    for provider in ("openai", "hosted_vllm", "ollama_chat"):
        answer = call(provider, RANDOM, messages=ASKED, response_format=Verdict)
        Verdict.model_validate_json(answer.choices[0].message.content)


def test_texts():
    whole = litellm.text_completion(model=f"text-completion-openai/{RANDOM}", api_base=f"{URL}/v1", api_key="unused", prompt="Once",
                                    max_tokens=4, temperature=0)
    assert whole.choices[0].text


def test_responses():
    answer = litellm.responses(model=f"openai/{SCRIPTED}", api_base=f"{URL}/v1", api_key="unused", input="Hello")
    equal(PLAIN, answer.output_text)


def test_vectors():
    for provider in ("openai", "ollama"):
        base = URL if provider == "ollama" else f"{URL}/v1"
        answer = litellm.embedding(model=f"{provider}/{VECTORS}", api_base=base, api_key="unused", input=["one text", "another"])
        equal([64, 64], [len(each["embedding"]) for each in answer.data])


def test_a_prompt_that_is_too_long():
    too_long = [{"role": "user", "content": "far too long " * 50000}]
    for provider in ("openai", "anthropic"):
        raised(litellm.ContextWindowExceededError, lambda provider=provider: call(provider, SCRIPTED, messages=too_long))


if __name__ == "__main__":
    run()
