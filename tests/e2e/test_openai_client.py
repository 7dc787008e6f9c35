"""The official `openai` client for Node against a real daemon: programs that use it work by a change of their base URL."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import unittest

import uma

FOLDER = pathlib.Path(__file__).parent / "openai"


class OpenAiTest(uma.DaemonTest):
    flags = ("--http", "127.0.0.1:0", "--n-ctx", "8192", "--slots", "4")

    @classmethod
    def setUpClass(cls):
        if shutil.which("node") is None or not (FOLDER / "node_modules").exists():
            raise AssertionError("the client is missing: run script/bootstrap")
        super().setUpClass()
        cls.url = re.search(r"http +(http://127\.0\.0\.1:\d+/v1)", cls.daemon.log()).group(1)

    def run_scenario(self, name):
        """What a scenario of openai/scenarios.mjs saw."""
        environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
        ran = subprocess.run(
            ["node", FOLDER / "scenarios.mjs", name, self.url],
            capture_output=True, text=True, timeout=uma.WAIT_S, env=environment, check=False)
        self.assertEqual(0, ran.returncode, ran.stderr[-2000:])
        return json.loads(ran.stdout)

    def assert_api_error(self, error, kind, status, code, **fields):
        self.assertEqual((kind, True, status, code), (error["class"], error["isApiError"], error["status"], error["code"]))
        for name, value in fields.items():
            self.assertEqual(value, error[name], error)


class ChatCompletions(OpenAiTest):
    def test_one_answer(self):
        seen = self.run_scenario("chat")
        answer = seen["data"]
        self.assertEqual("chat.completion", answer["object"])
        choice = answer["choices"][0]
        self.assertEqual((0, "assistant"), (choice["index"], choice["message"]["role"]))
        self.assertTrue(choice["message"]["content"])
        self.assertIn(choice["finish_reason"], ("stop", "length"))
        usage = answer["usage"]
        self.assertEqual(usage["prompt_tokens"] + usage["completion_tokens"], usage["total_tokens"])

    def test_a_stream_is_the_same_answer(self):
        seen = self.run_scenario("chat_stream")
        *chunks, usage = seen["chunks"]
        self.assertEqual({"chat.completion.chunk"}, {chunk["object"] for chunk in seen["chunks"]})
        self.assertEqual(1, len({chunk["id"] for chunk in seen["chunks"]}))
        self.assertEqual("assistant", chunks[0]["choices"][0]["delta"]["role"])
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
        whole = seen["whole"]["choices"][0]
        self.assertEqual(whole["message"]["content"], text)
        reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
        self.assertEqual([None] * (len(chunks) - 1) + [whole["finish_reason"]], reasons)
        self.assertEqual([], usage["choices"])
        self.assertEqual(seen["whole"]["usage"]["completion_tokens"], usage["usage"]["completion_tokens"])

    def test_the_stream_helper_gathers_it(self):
        seen = self.run_scenario("chat_stream_helper")
        self.assertEqual("".join(seen["deltas"]), seen["final"]["choices"][0]["message"]["content"])
        self.assertGreater(len(seen["deltas"]), 1)
        self.assertGreater(seen["final"]["usage"]["completion_tokens"], 0)

    def test_breaking_off_a_stream_frees_its_sequence(self):
        before = self.client.metrics()["requests_cancelled_total"]
        seen = self.run_scenario("abort")
        self.assertEqual((3, True), (seen["received"], seen["isAborted"]))
        uma.until(lambda: self.client.metrics()["requests_cancelled_total"] == before + 1, "the generation was cancelled")
        self.wait_idle()

    def test_a_client_that_waits_no_longer_frees_its_sequence(self):
        before = self.client.metrics()["requests_cancelled_total"]
        error = self.run_scenario("timeout")
        self.assertEqual("APIConnectionTimeoutError", error["class"])
        uma.until(lambda: self.client.metrics()["requests_cancelled_total"] == before + 1, "the generation was cancelled")
        self.wait_idle()


class OtherRoutes(OpenAiTest):
    def test_completions(self):
        seen = self.run_scenario("completions")
        whole = seen["whole"]["choices"][0]
        self.assertEqual("text_completion", seen["whole"]["object"])
        self.assertEqual(whole["text"], "".join(chunk["choices"][0]["text"] for chunk in seen["chunks"]))
        self.assertEqual(whole["finish_reason"], seen["chunks"][-1]["choices"][0]["finish_reason"])

    def test_models(self):
        seen = self.run_scenario("models")
        self.assertEqual(["tiny"], [model["id"] for model in seen["listed"]])
        self.assertEqual(seen["listed"][0], seen["one"])
        self.assert_api_error(seen["unknown"], "NotFoundError", 404, "E_MODEL_001")

    def test_errors_are_the_clients_own_types(self):
        seen = self.run_scenario("errors")
        self.assert_api_error(seen["wrongType"], "BadRequestError", 400, "E_PROTO_003", param="temperature")
        self.assert_api_error(seen["noMessages"], "BadRequestError", 400, "E_PROTO_003", param="messages")
        self.assert_api_error(seen["unknownModel"], "NotFoundError", 404, "E_MODEL_001")
        self.assert_api_error(seen["tooLong"], "BadRequestError", 400, "E_LIMIT_001")
        self.assert_api_error(seen["unknownPath"], "NotFoundError", 404, "E_PROTO_004")


if __name__ == "__main__":
    unittest.main()
