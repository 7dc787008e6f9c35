"""smolagents' models and agents over chat completions."""

import json

from smolagents import OpenAIModel, ToolCallingAgent, tool

import scenarios
from scenarios import PLAIN, RANDOM, SCRIPTED, URL, equal, run


def model(name, **fields):
    return OpenAIModel(model_id=name, api_base=f"{URL}/v1", api_key="unused", **fields)


ASKED = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]


def test_an_answer():
    equal(PLAIN, model(SCRIPTED).generate(ASKED).content)


def test_a_stream():
    equal(PLAIN, "".join(part.content or "" for part in model(SCRIPTED).generate_stream(ASKED)))


def test_a_stop_string_beside_a_schema():
    schema = {"type": "object", "properties": {"code": {"enum": ["a", "b"]}}, "required": ["code"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "Code", "schema": schema}}
    said = model(RANDOM).generate(ASKED, stop_sequences=["Observation:"], response_format=wanted).content
    assert json.loads(said)["code"] in ("a", "b"), said


def test_an_agent_calls_its_tool():
    seen = []

    @tool
    def read_file(path: str, line: int) -> str:
        """Reads a line of a file.

        Args:
            path: The name of the file.
            line: The number of the line, from 1.
        """
        seen.append(scenarios.read_file(path, line))
        return seen[-1]

    agent = ToolCallingAgent(tools=[read_file], model=model(SCRIPTED), max_steps=1, verbosity_level=0)
    agent.run(scenarios.QUESTION)
    equal([scenarios.CONTENT], seen)


if __name__ == "__main__":
    run()
