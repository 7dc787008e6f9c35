"""The official clients of Anthropic's and Ollama's APIs for Node against a real daemon: whole loops with a tool, and what else
programs do with them. The weights of the model follow a script (tools/make_model/scripted_weights.h)."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import uma

FOLDER = pathlib.Path(__file__).parent / "sdks"
THINKING = "The file must be read first."
ARGUMENTS = {"path": "notes.txt", "line": 1}
CONTENT = "violet heron 4711"
ANSWER = f"The file says:{CONTENT}."
PLAIN = "A reply without tools."
SCRIPT = {"tool": {"name": "read_file", "arguments": ARGUMENTS}, "answer_prefix": "The file says:", "thinking": THINKING,
          "plain_answer": PLAIN}
WINDOW = 16384


class SdkTest(unittest.TestCase):
    """A daemon with a scripted model, and further ones: the clients choose by name."""

    program = None

    @classmethod
    def check_clients(cls):
        uma.need_packages(FOLDER)

    @classmethod
    def setUpClass(cls):
        cls.check_clients()
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="uma-e2e-sdks-")))
        (cls.folder / "notes.txt").write_text(f"{CONTENT}\nend\n")
        (cls.folder / "script.json").write_text(json.dumps(SCRIPT))
        model = cls.folder / "scripted.gguf"
        subprocess.run([uma.MAKE_MODEL, "--script", cls.folder / "script.json", "--out", model], check=True, timeout=uma.WAIT_S)
        for other in ("tiny-chat.gguf", "tiny-embed.gguf"):
            shutil.copy(uma.BUILD / "models" / other, cls.folder)
        cls.daemon = uma.Daemon(model, "--http", "127.0.0.1:0", "--n-ctx", str(WINDOW), config=f"models_dirs: [{cls.folder}]\n")
        cls.addClassCleanup(cls.daemon.kill)
        cls.daemon.start().wait_ready()
        cls.url = re.search(r"http +(http://127\.0\.0\.1:\d+)/v1", cls.daemon.log()).group(1)

    @classmethod
    def tearDownClass(cls):
        status = cls.daemon.terminate()
        assert status == 0, f"umad ended with {status}:\n{cls.daemon.log()[-8000:]}"
        cls.daemon.check_reuse()

    def run_scenario(self, name):
        """The output of a scenario of the program."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        ran = subprocess.run(["node", FOLDER / self.program, name, self.url, self.folder / "notes.txt"], capture_output=True, text=True,
                             timeout=uma.WAIT_S, env=environment, check=False)
        self.assertEqual(0, ran.returncode, ran.stderr[-2000:])
        return json.loads(ran.stdout)

    def assert_cancels(self, name):
        """Runs a scenario, which must cancel a request. Returns its output."""
        with self.daemon.client() as client:
            before = client.metrics()["requests_cancelled_total"]
            seen = self.run_scenario(name)
            uma.until(lambda: client.metrics()["requests_cancelled_total"] == before + 1, "the generation was cancelled")
        return seen


class Anthropic(SdkTest):
    program = "anthropic.mjs"

    def check_call(self, message):
        self.assertEqual("tool_use", message["stop_reason"])
        thinking, call = message["content"]
        self.assertEqual(("thinking", THINKING), (thinking["type"], thinking["thinking"]))
        self.assertEqual(("tool_use", "read_file", ARGUMENTS), (call["type"], call["name"], call["input"]))
        self.assertGreater(message["usage"]["output_tokens_details"]["thinking_tokens"], 0)

    def check_answer(self, message):
        self.assertEqual(("end_turn", [{"type": "text", "text": ANSWER}]), (message["stop_reason"], message["content"]))

    def check_reuse(self, call, answer):
        """The result is computed, and not the prompt of the call. The thinking is the client's to send back."""
        usage = call["usage"]
        self.assertGreaterEqual(answer["usage"]["cache_read_input_tokens"], usage["input_tokens"] + usage["cache_read_input_tokens"] - 1)

    def test_a_loop(self):
        seen = self.run_scenario("loop")
        self.check_call(seen["call"])
        self.check_answer(seen["answer"])
        self.check_reuse(**seen)

    def test_a_loop_of_streams(self):
        call, answer = self.run_scenario("stream")
        self.check_call(call["message"])
        self.assertEqual((THINKING, ARGUMENTS, []), (call["thoughts"], json.loads(call["json"]), call["texts"]))
        self.assertEqual(call["message"]["content"][0]["signature"], call["signature"])
        self.check_answer(answer["message"])
        self.assertEqual(ANSWER, "".join(answer["texts"]))
        self.assertGreater(len(answer["texts"]), 2)
        self.assertEqual(("message_start", "message_stop"), (answer["events"][0], answer["events"][-1]))
        self.check_reuse(call["message"], answer["message"])

    def test_the_clients_own_loop(self):
        """It begins a thread by default, and sends only the result."""
        seen = self.run_scenario("runner")
        self.check_answer(seen["message"])
        self.assertEqual(1, seen["runs"])
        self.assertEqual(["create", "continue"], [request["thread"]["type"] for request in seen["requests"]])
        self.assertEqual({"tool_result"}, {block["type"] for message in seen["requests"][1]["messages"] for block in message["content"]})
        self.assertGreater(seen["message"]["usage"]["cache_read_input_tokens"], 1000)

    def test_a_thread(self):
        seen = self.run_scenario("thread")
        call, answer, more, beside = seen["turns"]
        self.check_call(call)
        self.check_answer(answer)
        self.check_reuse(call, answer)
        self.check_reuse(call, more)  # From the thinking on, which the template leaves out of earlier turns, all is new.
        self.assertEqual(["create", "continue", "continue", "create"], [request["thread"]["type"] for request in seen["requests"]])
        self.assertEqual([True, False, False, True], ["tools" in request and "system" in request for request in seen["requests"]])
        self.assertEqual([1, 1, 1, 7], [len(request["messages"]) for request in seen["requests"]])
        self.assertEqual(6, seen["messages"])
        self.assertEqual(4, len({turn["id"] for turn in seen["turns"]}))
        self.assertGreater(beside["usage"]["cache_read_input_tokens"], answer["usage"]["input_tokens"])

    def test_a_thread_that_is_lost_is_sent_again(self):
        seen = self.run_scenario("lost")
        self.check_answer(seen["answer"])

    def test_tokens_are_counted(self):
        seen = self.run_scenario("count")
        usage = seen["usage"]
        self.assertEqual(seen["counted"]["input_tokens"], usage["input_tokens"] + usage["cache_read_input_tokens"])

    def test_models(self):
        seen = self.run_scenario("models")
        self.assertEqual({"scripted", "tiny-chat", "tiny-embed"}, {model["id"] for model in seen["listed"]} - set(uma.SHIPPED_NAMES))
        self.assertEqual((seen["listed"][0], WINDOW), (seen["one"], seen["one"]["max_input_tokens"]))

    def test_a_stream_that_is_left_is_cancelled(self):
        self.assertTrue(self.assert_cancels("abort")["isAborted"])

    def test_errors_are_the_clients_own_types(self):
        seen = self.run_scenario("errors")
        for name, part in (("noMessages", "messages"), ("badTool", "tools[0].input_schema"), ("tooLong", "prompt is too long: "),
                           ("tooLongStream", "prompt is too long: ")):
            with self.subTest(name):
                error = seen[name]
                self.assertEqual(("BadRequestError", 400, "invalid_request_error"), (error["class"], error["status"], error["type"]))
                self.assertIn(part, error["message"])
                self.assertTrue(error["requestID"])


class Ollama(SdkTest):
    program = "ollama.mjs"

    def check_loop(self, call, answer):
        self.assertEqual(("", THINKING), (call["content"], call["thinking"]))
        (said,) = call["tool_calls"]
        self.assertEqual(("read_file", ARGUMENTS), (said["function"]["name"], said["function"]["arguments"]))
        self.assertEqual(ANSWER, answer["content"])

    def test_a_loop(self):
        seen = self.run_scenario("loop")
        self.check_loop(seen["call"]["message"], seen["answer"]["message"])
        self.assertEqual(("stop", True), (seen["answer"]["done_reason"], seen["answer"]["done"]))

    def test_a_loop_of_streams(self):
        seen = self.run_scenario("stream")
        self.check_loop(seen["call"]["message"], seen["answer"]["message"])
        self.assertGreater(seen["answer"]["parts"], 3)
        self.assertEqual(("stop", True), (seen["answer"]["last"]["done_reason"], seen["answer"]["last"]["done"]))

    def test_prompts(self):
        seen = self.run_scenario("generate")
        self.assertEqual((PLAIN, PLAIN), (seen["whole"]["response"], seen["streamed"]))
        self.assertIn(json.loads(seen["structured"]), ({"ok": True}, {"ok": False}))

    def test_a_stream_that_is_left_is_cancelled(self):
        self.assertEqual("AbortError", self.assert_cancels("abort")["class"])

    def test_vectors(self):
        seen = self.run_scenario("embed")
        self.assertEqual([64, 64], [len(vector) for vector in seen["many"]["embeddings"]])
        self.assertEqual(8, len(seen["one"]["embeddings"][0]))
        self.assertEqual(64, len(seen["old"]["embedding"]))

    def test_models(self):
        seen = self.run_scenario("models")
        listed = {model["name"]: model["capabilities"] for model in seen["models"]}
        self.assertEqual((["completion", "tools", "thinking"], ["embedding"]), (listed["scripted:latest"], listed["tiny-embed:latest"]))
        self.assertEqual(WINDOW, seen["shown"]["model_info"]["llama.context_length"])
        running = {model["name"]: model for model in seen["running"]}
        self.assertEqual(WINDOW, running["scripted:latest"]["context_length"])
        self.assertRegex(seen["version"]["version"], r"^\d+\.\d+\.\d+")

    def test_errors_are_the_clients_own_type(self):
        seen = self.run_scenario("errors")
        for name, status, part in (("unknown", 404, "model not found"), ("noText", 400, "scripted"), ("tooLong", 400, "prompt is too long"),
                                   ("tooLongStream", 400, "prompt is too long")):
            with self.subTest(name):
                error = seen[name]
                self.assertEqual(("ResponseError", status), (error["class"], error["status"]))
                self.assertIn(part, error["message"])


if __name__ == "__main__":
    unittest.main()
