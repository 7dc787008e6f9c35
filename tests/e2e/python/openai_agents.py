"""OpenAI's agents over chat completions and responses."""

from typing import Literal

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, SQLiteSession, function_tool
from openai import AsyncOpenAI

import scenarios
from scenarios import ANSWER, PLAIN, QUESTION, RANDOM, SCRIPTED, URL, Verdict, equal, run


@function_tool
def read_file(path: str, line: int) -> str:
    """Reads a line of a file."""
    return scenarios.read_file(path, line)


def client():
    return AsyncOpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0)


def chat(model):
    return OpenAIChatCompletionsModel(model=model, openai_client=client())


def responses(model):
    return OpenAIResponsesModel(model=model, openai_client=client())


async def test_a_run_with_a_tool():
    for api in (chat, responses):
        agent = Agent(name="Reader", instructions="You help with files.", model=api(SCRIPTED), tools=[read_file])
        equal(ANSWER, (await Runner.run(agent, QUESTION)).final_output)


async def test_a_streamed_run():
    for api in (chat, responses):
        agent = Agent(name="Reader", model=api(SCRIPTED), tools=[read_file])
        run_ = Runner.run_streamed(agent, QUESTION)
        async for _ in run_.stream_events():
            pass
        equal(ANSWER, run_.final_output)


async def test_a_reply_of_a_type():
    for api in (chat, responses):
        agent = Agent(name="Judge", model=api(RANDOM), output_type=Verdict)
        assert isinstance((await Runner.run(agent, QUESTION)).final_output, Verdict)


async def test_a_tool_that_must_be_called_beside_a_type():
    @function_tool
    def look(number: Literal[1, 2]) -> str:
        """Looks at one of two things."""
        return "nothing"

    for api in (chat, responses):
        settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
        agent = Agent(name="Judge", model=api(RANDOM), tools=[look], output_type=Verdict, model_settings=settings,
                      tool_use_behavior="stop_on_first_tool")
        seen = await Runner.run(agent, QUESTION)
        equal(["tool_call_item", "tool_call_output_item"], [item.type for item in seen.new_items if item.type != "reasoning_item"])


async def test_a_session_goes_on():
    session = SQLiteSession("one")
    agent = Agent(name="Speaker", model=chat(SCRIPTED))
    equal(PLAIN, (await Runner.run(agent, "Hello", session=session)).final_output)
    equal(PLAIN, (await Runner.run(agent, "Again", session=session)).final_output)
    assert len(await session.get_items()) == 4


async def test_a_conversation_of_the_server():
    api = client()
    conversation = await api.conversations.create()
    agent = Agent(name="Speaker", model=responses(RANDOM), model_settings=ModelSettings(max_tokens=40), output_type=Verdict)
    seen = await Runner.run(agent, QUESTION, conversation_id=conversation.id)
    assert isinstance(seen.final_output, Verdict)


if __name__ == "__main__":
    run()
