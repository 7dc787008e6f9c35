"""Pydantic AI over OpenAI's chat completions and responses, Anthropic's messages and Ollama's provider."""

from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.ollama import OllamaProvider
from pydantic_ai.providers.openai import OpenAIProvider

from scenarios import ANSWER, PLAIN, QUESTION, RANDOM, SCRIPTED, URL, Verdict, equal, read_file, run


class Doubt(BaseModel):
    """What is not known."""

    missing: Literal["file", "line"]


def openai_chat(model):
    return OpenAIChatModel(model, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key="unused"))


def openai_responses(model):
    return OpenAIResponsesModel(model, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key="unused"))


def ollama(model):
    return OpenAIChatModel(model, provider=OllamaProvider(base_url=f"{URL}/v1"))


def anthropic(model):
    return AnthropicModel(model, provider=AnthropicProvider(base_url=URL, api_key="unused"))


APIS = (openai_chat, openai_responses, ollama, anthropic)


def test_answers():
    for api in APIS:
        equal(PLAIN, Agent(api(SCRIPTED)).run_sync("Hello").output)


def test_agents_with_a_tool():
    for api in APIS:
        equal(ANSWER, Agent(api(SCRIPTED), tools=[read_file]).run_sync(QUESTION).output)


def test_typed_replies_by_a_forced_call():
    for api in APIS:
        assert isinstance(Agent(api(RANDOM), output_type=ToolOutput(Verdict)).run_sync(QUESTION).output, Verdict)


def test_typed_replies_by_schema():
    for api in APIS[:3]:
        assert isinstance(Agent(api(RANDOM), output_type=NativeOutput(Verdict)).run_sync(QUESTION).output, Verdict)


def test_one_of_several_types():
    seen = Agent(openai_chat(RANDOM), output_type=[Verdict, Doubt]).run_sync(QUESTION).output
    assert isinstance(seen, Verdict | Doubt)


async def test_a_stream():
    async with Agent(openai_chat(SCRIPTED), tools=[read_file]).run_stream(QUESTION) as stream:
        equal(ANSWER, await stream.get_output())


if __name__ == "__main__":
    run()
