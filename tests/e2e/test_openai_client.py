"""The official `openai` client for Node against a real daemon: programs that use it work by a change of their base URL."""

import base64
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import unittest

import openai_shapes
import pictures
import uma

FOLDER = pathlib.Path(__file__).parent / "openai"


class OpenAiTest(uma.DaemonTest):
    flags = ("--http", "127.0.0.1:0", "--kv-cells", "8192", "--slots", "4")

    @classmethod
    def setUpClass(cls):
        uma.need_packages(FOLDER)
        super().setUpClass()
        cls.url = re.search(r"http +(http://127\.0\.0\.1:\d+/v1)", cls.daemon.log()).group(1)

    def run_scenario(self, name):
        """The output of a scenario of openai/scenarios.mjs."""
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

    def test_several_choices(self):
        seen = self.run_scenario("choices")
        said = [choice["message"]["content"] for choice in seen["whole"]["choices"]]
        self.assertEqual([said[0]] * 3, said)
        self.assertEqual(said, [choice["message"]["content"] for choice in seen["streamed"]["choices"]])
        texts = [choice["text"] for choice in seen["prompts"]["choices"]]
        self.assertEqual((texts[0], texts[2]), (texts[1], texts[3]))
        self.assertTrue(texts[0].startswith("Once") and texts[2].startswith("The sea"), texts)
        self.assert_api_error(seen["refused"], "BadRequestError", 400, "E_PROTO_003", param="n")

    def test_how_likely_the_tokens_were(self):
        seen = self.run_scenario("logprobs")
        whole, streamed = (seen[name]["choices"][0] for name in ("whole", "streamed"))
        self.assertEqual(whole["message"]["content"], "".join(place["token"] for place in whole["logprobs"]["content"]))
        self.assertEqual([place["token"] for place in whole["logprobs"]["content"]],
                         [place["token"] for place in streamed["logprobs"]["content"]])
        self.assertEqual({3}, {len(place["top_logprobs"]) for place in streamed["logprobs"]["content"]})
        told = seen["text"]["choices"][0]["logprobs"]
        self.assertEqual(len(told["tokens"]), len(told["token_logprobs"]))
        self.assert_api_error(seen["refused"], "BadRequestError", 400, "E_PROTO_003", param="top_logprobs")

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


class Pictures(OpenAiTest):
    config = f"models_dirs: [{uma.BUILD / 'models' / 'only-pictures'}]\n"

    @classmethod
    def setUpClass(cls):
        folder = uma.BUILD / "models" / "only-pictures"
        folder.mkdir(exist_ok=True)
        shutil.copy(uma.BUILD / "models" / "tiny-picture.gguf", folder)
        super().setUpClass()

    def test_pictures(self):
        seen = self.run_scenario("images")
        self.assertEqual(2, len(seen["whole"]["data"]))
        for entry in seen["whole"]["data"]:
            self.assertEqual((512, 512), pictures.read_png(base64.b64decode(entry["b64_json"]))[:2])
        self.assertEqual(["image_generation.partial_image"] * 2 + ["image_generation.completed"], [event["type"] for event in seen["events"]])
        self.assertEqual([0, 1], [event["partial_image_index"] for event in seen["events"][:2]])
        self.assert_api_error(seen["refused"], "BadRequestError", 400, "E_PROTO_003", param="prompt")


class OtherRoutes(OpenAiTest):
    config = "models: {unknown: refuse}\n"  # else the only model answers to every name

    def test_completions(self):
        seen = self.run_scenario("completions")
        whole = seen["whole"]["choices"][0]
        self.assertEqual("text_completion", seen["whole"]["object"])
        self.assertEqual(whole["text"], "".join(chunk["choices"][0]["text"] for chunk in seen["chunks"]))
        self.assertEqual(whole["finish_reason"], seen["chunks"][-1]["choices"][0]["finish_reason"])

    def test_models(self):
        seen = self.run_scenario("models")
        self.assertEqual("tiny", seen["listed"][0]["id"])
        self.assertEqual(seen["listed"][0], seen["one"])
        self.assert_api_error(seen["unknown"], "NotFoundError", 404, "E_MODEL_001")

    def test_errors_are_the_clients_own_types(self):
        seen = self.run_scenario("errors")
        self.assert_api_error(seen["wrongType"], "BadRequestError", 400, "E_PROTO_003", param="temperature")
        self.assert_api_error(seen["noMessages"], "BadRequestError", 400, "E_PROTO_003", param="messages")
        self.assert_api_error(seen["unknownModel"], "NotFoundError", 404, "E_MODEL_001")
        self.assert_api_error(seen["tooLong"], "BadRequestError", 400, "context_length_exceeded")
        self.assert_api_error(seen["unknownPath"], "NotFoundError", 404, "E_PROTO_004")


class Responses(OpenAiTest):
    def test_three_turns_of_which_only_the_new_is_computed(self):
        seen = self.run_scenario("responses")
        turns = seen["turns"]
        self.assertEqual(["completed"] * 3, [turn["status"] if turn["status"] != "incomplete" else "completed" for turn in turns])
        self.assertEqual([None, turns[0]["id"], turns[1]["id"]], [turn["previous_response_id"] for turn in turns])
        for before, turn in zip(turns, turns[1:]):
            usage = turn["usage"]
            # All tokens of the turn before were cached except the last, which had not been computed.
            known = before["usage"]["total_tokens"] - 1
            self.assertGreaterEqual(usage["input_tokens_details"]["cached_tokens"], known)
            self.assertEqual(usage["input_tokens"], turn["uma"]["usage"]["reused_tokens"] + turn["uma"]["usage"]["recomputed_tokens"])
        self.assertEqual(turns[2]["output"], seen["fetched"]["output"])
        asked = [item["content"][0]["text"] for item in seen["items"] if item["role"] == "user"]
        self.assertEqual(["My name is Ada.", "I live by the sea.", "What is my name?"], asked)
        self.assertEqual("NotFoundError", seen["deleted"]["class"])

    def test_a_socket_with_incremental_input(self):
        seen = self.run_scenario("responses_socket")
        turns = seen["turns"]
        self.assertEqual(3, len(turns))
        for before, turn in itertools.pairwise(turns):
            self.assertEqual(before["id"], turn["previous_response_id"])
            self.assertGreaterEqual(turn["usage"]["input_tokens_details"]["cached_tokens"], before["usage"]["input_tokens"] - 1)
        self.assertEqual("response.created", seen["types"][0])
        self.assertEqual("previous_response_not_found", seen["error"]["code"], seen["error"])

    def test_a_stream_has_typed_events(self):
        seen = self.run_scenario("responses_stream")
        types = [event["type"] for event in seen["events"]]
        self.assertEqual(["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"], types[:4])
        self.assertEqual(["response.output_text.done", "response.content_part.done", "response.output_item.done"], types[-4:-1])
        self.assertIn(types[-1], ("response.completed", "response.incomplete"))
        self.assertEqual({"response.output_text.delta"}, set(types[4:-4]))
        self.assertEqual(list(range(len(types))), [event["sequence_number"] for event in seen["events"]])
        text = "".join(event["delta"] for event in seen["events"] if event["type"] == "response.output_text.delta")
        self.assertEqual(seen["whole"]["output"][0]["content"][0]["text"], text)

    def assert_shaped(self, *responses):
        for response in responses:
            # The client adds two fields.
            own = {name: value for name, value in response.items() if name not in ("output_text", "output_parsed")}
            self.assertIsNone(openai_shapes.mismatch(own, openai_shapes.RESPONSE), response)

    def test_tools_over_two_turns(self):
        seen = self.run_scenario("responses_tools")
        self.assert_shaped(seen["one"], seen["two"], seen["fetched"], seen["aloneAfter"])
        for answer in (seen["one"], seen["streamed"], seen["alone"]):
            (call,) = answer["output"]
            self.assertEqual(("function_call", "weather"), (call["type"], call["name"]))
            arguments = json.loads(call["arguments"])
            self.assertIn(arguments["city"], ("Paris", "Rome"))
            self.assertIn(arguments["days"], range(1, 10))
        self.assertEqual(seen["one"]["output"][0]["arguments"], seen["streamed"]["output"][0]["arguments"])
        self.assertEqual(json.loads(seen["alone"]["output"][0]["arguments"]), seen["alone"]["output"][0]["parsed_arguments"])
        self.assertEqual(seen["one"]["output"], seen["fetched"]["output"])
        self.assertEqual("response.completed", seen["events"][-1])
        self.assertIn("response.function_call_arguments.delta", seen["events"])
        usage = seen["two"]["uma"]["usage"]
        self.assertGreaterEqual(usage["reused_tokens"], seen["one"]["usage"]["total_tokens"] - 2)
        self.assertLess(usage["recomputed_tokens"], seen["one"]["usage"]["input_tokens"] // 3, "the result alone")
        self.assertEqual(["message", "function_call", "function_call_output"], [item["type"] for item in seen["items"]])
        self.assertEqual({**seen["one"]["output"][0], "uma": {"turn": 0}}, seen["items"][1])
        self.assert_api_error(seen["refused"], "BadRequestError", 400, "E_PROTO_003", param="tools[0].type")

    def test_structured_output(self):
        seen = self.run_scenario("responses_structured")
        self.assertEqual(seen["parsed"], seen["streamed"])
        for place in seen.values():
            self.assertIn(place["city"], ("Paris", "Rome"))
            self.assertIn(place["people"], range(1, 100))

    def test_an_earlier_response_is_continued_twice(self):
        seen = self.run_scenario("responses_fork")
        known = seen["first"]["usage"]["total_tokens"] - 1
        self.assertEqual(2, len({answer["id"] for answer in seen["both"]}))
        for answer in seen["both"]:
            self.assertGreaterEqual(answer["usage"]["input_tokens"], known)
            self.assertEqual(seen["first"]["id"], answer["previous_response_id"])

    def test_conversations(self):
        seen = self.run_scenario("conversations")
        self.assertEqual({"topic": "names"}, seen["made"]["metadata"])
        self.assertEqual(seen["made"]["id"], seen["reply"]["conversation"]["id"])
        self.assertEqual(["user", "user", "assistant"], [item["role"] for item in seen["items"]])
        self.assertEqual({"topic": "seas"}, seen["updated"]["metadata"])
        self.assertTrue(seen["removed"]["deleted"])
        self.assertEqual(("NotFoundError", 404), (seen["gone"]["class"], seen["gone"]["status"]))


class Constrained(OpenAiTest):
    def assert_place(self, text):
        place = json.loads(text)
        self.assertEqual({"city", "people", "tags"}, set(place))
        self.assertIn(place["city"], ("Paris", "Rome"))
        self.assertIn(place["people"], range(1, 100))
        self.assertLessEqual(len(place["tags"]), 2)
        self.assertTrue(all(len(tag) <= 4 for tag in place["tags"]), place)

    def test_structured_output(self):
        seen = self.run_scenario("structured")
        for answer in seen["answers"]:
            self.assertEqual("stop", answer["choices"][0]["finish_reason"])
            self.assert_place(answer["choices"][0]["message"]["content"])
        self.assertEqual(seen["answers"][0]["choices"][0]["message"]["content"], seen["streamed"])
        self.assert_api_error(seen["refused"], "BadRequestError", 400, "E_PROTO_003")
        self.assertIn("uniqueItems", seen["refused"]["message"])

    def test_tools(self):
        seen = self.run_scenario("tools")
        for answer in (seen["one"], seen["streamed"]):
            choice = answer["choices"][0]
            self.assertEqual("tool_calls", choice["finish_reason"])
            (call,) = choice["message"]["tool_calls"]
            self.assertEqual("weather", call["function"]["name"])
            arguments = json.loads(call["function"]["arguments"])
            self.assertEqual({"city", "days"}, set(arguments))
            self.assertIn(arguments["city"], ("Paris", "Rome"))
            self.assertIn(arguments["days"], range(1, 10))
        self.assertEqual(seen["one"]["choices"][0]["message"]["tool_calls"][0]["function"],
                         seen["streamed"]["choices"][0]["message"]["tool_calls"][0]["function"])
        (call,) = seen["required"]["choices"][0]["message"]["tool_calls"]
        self.assertIn(call["function"]["name"], ("weather", "now"))
        self.assertNotIn("tool_calls", seen["after"]["choices"][0]["message"])
        self.assert_api_error(seen["refused"], "BadRequestError", 400, "E_PROTO_003", param="tool_choice.function.name")



class Embeddings(OpenAiTest):
    model = uma.BUILD / "models" / "tiny-embed.gguf"
    flags = ("--http", "127.0.0.1:0")

    def test_vectors_as_the_client_decodes_them(self):
        seen = self.run_scenario("embeddings")
        decoded, plain = seen["decoded"], seen["plain"]
        self.assertEqual(("list", 2), (decoded["object"], len(decoded["data"])))
        self.assertEqual([0, 1], [each["index"] for each in decoded["data"]])
        for whole, short in zip(decoded["data"], plain["data"]):
            self.assertEqual((64, 8), (len(whole["embedding"]), len(short["embedding"])))
            self.assertAlmostEqual(1, sum(value * value for value in whole["embedding"]), places=4)
            scale = sum(value * value for value in whole["embedding"][:8]) ** 0.5
            for a, b in zip(whole["embedding"], short["embedding"]):
                self.assertAlmostEqual(a / scale, b, places=4)
        self.assertEqual(decoded["usage"]["prompt_tokens"], decoded["usage"]["total_tokens"])
        self.assert_api_error(seen["empty"], "BadRequestError", 400, "E_PROTO_003", param="input")


if __name__ == "__main__":
    unittest.main()
