"""Clients and frameworks for Python against a real daemon: each program of the folder python/ has the scenarios of one of them.

script/bootstrap --python installs their packages, which python/*.txt pin, from the Python index. Without it these tests are skipped."""

import ast
import json
import os
import pathlib
import subprocess
import unittest

import test_sdks
import uma

FOLDER = pathlib.Path(__file__).parent / "python"


class PythonTest(test_sdks.SdkTest):
    """Runs a program once; its scenarios, which report by themselves, are the tests."""

    packages = "current"  # python/current.txt

    @classmethod
    def check_clients(cls):
        cls.python = uma.ROOT / "build" / "python" / cls.packages / "bin" / "python"
        if not cls.python.exists():
            raise unittest.SkipTest("the clients for Python are not installed (script/bootstrap --python)")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        given = {"url": cls.url, "file": str(cls.folder / "notes.txt"), "content": test_sdks.CONTENT, "answer": test_sdks.ANSWER,
                 "plain": test_sdks.PLAIN, "thinking": test_sdks.THINKING}
        environment = {"PATH": os.environ["PATH"], "HOME": str(cls.folder), "UMA_CLIENT_TEST": json.dumps(given), "NO_PROXY": "*"}
        # Some import their tokenizers' tables or report their use at the start: nothing but the loopback is there for them.
        environment |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_AGENTS_DISABLE_TRACING": "1", "DO_NOT_TRACK": "1"}
        ran = subprocess.run([cls.python, FOLDER / cls.program], capture_output=True, text=True, timeout=8 * uma.WAIT_S, env=environment,
                             check=False)
        cls.seen = {}
        for line in ran.stdout.splitlines():
            if line.startswith('{"scenario"'):
                said = json.loads(line)
                cls.seen[said["scenario"]] = said["problem"]
        cls.said = (ran.stdout + ran.stderr)[-3000:]


def scenario_test(name):
    def test(self):
        self.assertIn(name, self.seen, f"the program ended before it:\n{self.said}")
        if self.seen[name] is not None:
            self.fail(self.seen[name])
    return test


def tests_of(name, program, packages="current"):
    """The test class of a program, with a test for each scenario."""
    tree = ast.parse((FOLDER / program).read_text())
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    tests = {function: scenario_test(function) for function in functions if function.startswith("test_")}
    return type(name, (PythonTest,), tests | {"__module__": __name__, "program": program, "packages": packages})


OpenAi = tests_of("OpenAi", "openai_client.py")
Anthropic = tests_of("Anthropic", "anthropic_client.py")
Ollama = tests_of("Ollama", "ollama_client.py")
LangChain = tests_of("LangChain", "langchain_agents.py")
PydanticAi = tests_of("PydanticAi", "pydantic_ai_agents.py")
OpenAiAgents = tests_of("OpenAiAgents", "openai_agents.py")
LiteLlm = tests_of("LiteLlm", "litellm_calls.py")
SmolAgents = tests_of("SmolAgents", "smolagents_agents.py")
Instructor = tests_of("Instructor", "instructor_modes.py", "older")
LlamaIndex = tests_of("LlamaIndex", "llama_index_models.py", "older")
OpenWebUi = tests_of("OpenWebUi", "open_webui_server.py", "webui")

if __name__ == "__main__":
    unittest.main()
