"""LangChain over OpenAI's chat completions and responses, Anthropic's messages and Ollama's chat."""

from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

import scenarios
from scenarios import ANSWER, PLAIN, QUESTION, RANDOM, SCRIPTED, URL, VECTORS, Verdict, equal, run


@tool
def read_file(path: str, line: int) -> str:
    """Reads a line of a file."""
    return scenarios.read_file(path, line)


def openai_chat(model):
    return ChatOpenAI(model=model, base_url=f"{URL}/v1", api_key="unused", max_retries=0)


def openai_responses(model):
    return ChatOpenAI(model=model, base_url=f"{URL}/v1", api_key="unused", max_retries=0, use_responses_api=True)


def anthropic_messages(model):
    return ChatAnthropic(model=model, base_url=URL, api_key="unused", max_retries=0, max_tokens=500)


def ollama_chat(model):
    return ChatOllama(model=model, base_url=URL)


APIS = (openai_chat, openai_responses, anthropic_messages, ollama_chat)


def test_answers_and_streams():
    for api in APIS:
        equal(PLAIN, api(SCRIPTED).invoke("Hello").text)
        equal(PLAIN, "".join(chunk.text for chunk in api(SCRIPTED).stream("Hello")))


def test_agents_with_a_tool():
    for api in APIS:
        agent = create_agent(api(SCRIPTED), tools=[read_file])
        seen = agent.invoke({"messages": [{"role": "user", "content": QUESTION}]})
        equal(ANSWER, seen["messages"][-1].text)


def test_typed_replies_by_schema():
    for api in (openai_chat, openai_responses, ollama_chat):
        typed = api(RANDOM).with_structured_output(Verdict, method="json_schema")
        assert isinstance(typed.invoke("Is it right?"), Verdict)


def test_typed_replies_by_a_forced_call():
    for api in (openai_chat, openai_responses):
        typed = api(RANDOM).with_structured_output(Verdict, method="function_calling")
        assert isinstance(typed.invoke("Is it right?"), Verdict)
    assert isinstance(anthropic_messages(RANDOM).with_structured_output(Verdict).invoke("Is it right?"), Verdict)


def test_an_agent_of_a_type():
    agent = create_agent(openai_chat(RANDOM), response_format=ProviderStrategy(Verdict))
    seen = agent.invoke({"messages": [{"role": "user", "content": "Is it right?"}]})
    assert isinstance(seen["structured_response"], Verdict)


def test_vectors_of_both_apis_are_the_same():
    openai = OpenAIEmbeddings(model=VECTORS, base_url=f"{URL}/v1", api_key="unused", check_embedding_ctx_length=False)
    one, other = openai.embed_query("one text"), OllamaEmbeddings(model=VECTORS, base_url=URL).embed_query("one text")
    assert all(abs(a - b) < 1e-6 for a, b in zip(one, other, strict=True))


if __name__ == "__main__":
    run()
