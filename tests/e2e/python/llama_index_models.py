"""LlamaIndex' models for OpenAI's and Ollama's servers, with the client `openai` of the version before."""

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike

from scenarios import ANSWER, PLAIN, QUESTION, RANDOM, SCRIPTED, URL, Verdict, equal, read_file, run


def openai_like(name, **fields):
    fields = {"is_chat_model": True, "is_function_calling_model": True, "max_retries": 0} | fields
    return OpenAILike(model=name, api_base=f"{URL}/v1", api_key="unused", **fields)


def ollama(name):
    return Ollama(model=name, base_url=URL, request_timeout=60)


def test_answers_and_streams():
    asked = [ChatMessage(role="user", content="Hello")]
    for api in (openai_like, ollama):
        equal(PLAIN, api(SCRIPTED).chat(asked).message.content)
        equal(PLAIN, "".join(part.delta or "" for part in api(SCRIPTED).stream_chat(asked)))


def test_a_completion():
    assert openai_like(RANDOM, is_chat_model=False, max_tokens=4).complete("Once").text


async def test_agents_with_a_function():
    for api in (openai_like, ollama):
        agent = FunctionAgent(tools=[read_file], llm=api(SCRIPTED), streaming=False)
        equal(ANSWER, (await agent.run(QUESTION)).response.content)


def test_a_reply_of_a_type_by_a_forced_call():
    typed = openai_like(RANDOM).as_structured_llm(Verdict)
    assert isinstance(typed.complete("Is it right?").raw, Verdict)


def test_a_reply_of_a_type_by_schema():
    assert isinstance(ollama(RANDOM).as_structured_llm(Verdict).complete("Is it right?").raw, Verdict)


def test_a_model_without_functions_answers_although_a_call_is_required():
    # LlamaIndex sends tool_choice "required" without tools.
    model = openai_like(SCRIPTED, is_function_calling_model=False)
    asked = [ChatMessage(role="user", content="Hello")]
    equal(PLAIN, model.chat(asked, tool_choice="required").message.content)


if __name__ == "__main__":
    run()
