"""instructor's modes over chat completions and Ollama's provider, with the client `openai` of the version before."""

import instructor
import openai

from scenarios import QUESTION, RANDOM, URL, Verdict, run


ASKED = [{"role": "user", "content": QUESTION}]


def client(mode):
    return instructor.from_openai(openai.OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0), mode=mode)


def test_modes_that_constrain_the_reply():
    for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
        seen = client(mode).chat.completions.create(model=RANDOM, messages=ASKED, response_model=Verdict, max_retries=1)
        assert isinstance(seen, Verdict), mode


def test_responses():
    api = client(instructor.Mode.RESPONSES_TOOLS)
    seen = api.responses.create(model=RANDOM, input=QUESTION, response_model=Verdict, max_retries=1)
    assert isinstance(seen, Verdict)


def test_partial_objects():
    parts = list(client(instructor.Mode.TOOLS).chat.completions.create_partial(model=RANDOM, messages=ASKED, response_model=Verdict))
    Verdict.model_validate(parts[-1].model_dump())


def test_ollamas_provider():
    api = instructor.from_provider(f"ollama/{RANDOM}", base_url=f"{URL}/v1", mode=instructor.Mode.TOOLS)
    assert isinstance(api.chat.completions.create(messages=ASKED, response_model=Verdict, max_retries=1), Verdict)


if __name__ == "__main__":
    run()
