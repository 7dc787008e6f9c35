"""Anthropic's message threads: conversations that the server holds. They survive a restart and a kill, belong to one tenant, and
go on from any of their messages."""

import concurrent.futures
import http.client
import json
import pathlib
import re
import tempfile
import unittest

import test_http_operations
import uma

BETA = "message-threads-2026-08-12"
SYSTEM = "You are a patient teacher who explains every step. " * 10
TOOLS = [{"name": "clock", "description": "Tells the time.", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}}]
CREATE = {"type": "create"}
FORCED = {"tool_choice": {"type": "tool", "name": "clock"}, "max_tokens": 200}


def user(content):
    return {"role": "user", "content": content}


def after(message):
    return {"type": "continue", "previous_message_id": message["id"]}


class Threads(unittest.TestCase):
    def setUp(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="uma-e2e-threads-")))
        self.keys, lines = zip(*(test_http_operations.new_key(name) for name in ("ann", "bob")))
        (folder / "keys").write_text("\n".join(lines) + "\n")
        (folder / "keys").chmod(0o600)
        self.daemon = uma.Daemon(uma.TINY_CHAT, "--http", "127.0.0.1:0", "--http-keys", str(folder / "keys"), "--kv-cells", "8192",
                                 "--slots", "4")
        self.addCleanup(self.daemon.kill)
        self.start()

    def start(self):
        self.daemon.start().wait_ready()
        self.port = int(re.findall(r"http +http://127\.0\.0\.1:(\d+)/v1", self.daemon.log())[-1])

    def request(self, method, path, body=None, key=0, beta=BETA):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=uma.WAIT_S)
        try:
            headers = {"x-api-key": self.keys[key], "anthropic-version": "2023-06-01", **({"anthropic-beta": f"a, {beta}"} if beta else {})}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def ask(self, content, thread, key=0, beta=BETA, **fields):
        """Returns the status and the answer."""
        body = {"model": "claude-sonnet-5", "max_tokens": 16, "temperature": 0, "messages": [user(content)], **fields}
        if thread is not None:
            body["thread"] = thread
        status, answer = self.request("POST", "/v1/messages?beta=true", body, key, beta)
        return status, json.loads(answer)

    def message(self, content, thread, **fields):
        status, answer = self.ask(content, thread, **fields)
        self.assertEqual((200, "message"), (status, answer.get("type")), answer)
        return answer

    def refused(self, status, code, content, thread, **fields):
        got, answer = self.ask(content, thread, **fields)
        self.assertEqual((status, "error"), (got, answer.get("type")), answer)
        self.assertEqual(code, answer["error"].get("details", {}).get("error_code"), answer)
        return answer["error"]["message"]

    def begin(self):
        return self.message("Hello", CREATE, system=SYSTEM, tools=TOOLS)

    def prompt(self, message):
        usage = message["usage"]
        return usage["input_tokens"] + usage["cache_read_input_tokens"]

    def check_reused(self, message, before):
        """All of the conversation up to `before` comes from the cache, and what is new is computed."""
        self.assertGreaterEqual(message["usage"]["cache_read_input_tokens"], self.prompt(before))
        self.assertLess(message["usage"]["input_tokens"], 60)

    def test_a_request_brings_only_what_is_new(self):
        first = self.begin()
        second = self.message("And then?", after(first))
        self.check_reused(second, first)
        call = self.message("What time is it?", after(second), **FORCED)
        self.assertEqual("tool_use", call["stop_reason"])
        self.check_reused(call, second)
        result = {"type": "tool_result", "tool_use_id": call["content"][0]["id"], "content": "noon"}
        answer = self.message([result, {"type": "text", "text": "Is that late?"}], after(call))
        self.check_reused(answer, call)
        status, items = self.request("GET", f"/v1/responses/{answer['id'].replace('msg_', 'resp_')}/input_items?order=asc")
        kinds = [item.get("role") or item["type"] for item in json.loads(items)["data"]]
        self.assertEqual((200, ["system", "user", "assistant", "user", "assistant", "user", "function_call", "function_call_output", "user"]),
                         (status, kinds))

    def test_a_stream_is_a_message_of_the_thread(self):
        first = self.begin()
        body = {"max_tokens": 16, "temperature": 0, "stream": True, "messages": [user("More")], "thread": after(first)}
        status, text = self.request("POST", "/v1/messages", body)
        self.assertEqual(200, status, text)
        events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
        streamed = events[0]["message"]
        self.assertRegex(streamed["id"], r"^msg_[0-9a-f]{48}$")
        self.check_reused({"usage": next(event["usage"] for event in events if event["type"] == "message_delta")}, first)
        self.message("And then?", after(streamed))

    def test_it_goes_on_from_any_message(self):
        first = self.begin()
        second = self.message("One", after(first))
        beside = self.message("One", after(first))
        self.assertEqual(second["content"], beside["content"])
        self.assertNotEqual(second["id"], beside["id"])
        for earlier in (first, second, beside):
            self.check_reused(self.message("Two", after(earlier)), earlier)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            many = list(pool.map(lambda number: self.message(f"Number {number}", after(first)), range(4)))
        self.assertEqual(4, len({message["id"] for message in many}))

    def test_it_survives_a_restart_and_a_kill(self):
        first = self.begin()
        self.assertEqual(0, self.daemon.terminate(), self.daemon.log())
        self.start()
        second = self.message("And then?", after(first))
        self.assertGreater(self.prompt(second), self.prompt(first))
        self.daemon.process.kill()
        self.daemon.process.wait()
        self.start()
        third = self.message("The end", after(second))
        self.assertGreater(self.prompt(third), self.prompt(second))

    def test_it_belongs_to_one_tenant(self):
        first = self.begin()
        self.refused(404, "thread_not_found", "More", after(first), key=1)
        self.message("More", after(first))

    def test_what_cannot_go_on_says_why(self):
        first = self.begin()
        for unknown in ("msg_" + "0" * 48, "msg_0123456789abcdef", "resp_" + first["id"][4:], "x" * 100):
            message = self.refused(404, "thread_not_found", "More", {"type": "continue", "previous_message_id": unknown})
            self.assertIn("create", message)
        plain = self.message("Hello", None)
        self.refused(404, "thread_not_found", "More", after(plain))
        self.assertIn(BETA, self.refused(400, "thread_unsupported_request", "More", after(first), beta=None))
        self.assertIn(BETA, self.refused(400, "thread_unsupported_request", "Hello", CREATE, beta="others"))
        self.assertIn("system", self.refused(400, "thread_fingerprint_mismatch", "More", after(first), system="Another"))
        self.assertIn("tools", self.refused(400, "thread_fingerprint_mismatch", "More", after(first), tools=[]))
        self.message("More", after(first), system=SYSTEM, tools=TOOLS)
        self.refused(400, None, "More", {"type": "merge"})
        self.refused(400, None, "More", CREATE, max_tokens=0)
        self.refused(400, "thread_unsupported_request", "", CREATE, messages=[user("Hello"), {"role": "assistant", "content": "I"}])
        status, answer = self.request("POST", "/v1/messages/count_tokens", {"messages": [user("Hello")], "thread": CREATE})
        self.assertEqual((400, "thread_unsupported_request"), (status, json.loads(answer)["error"]["details"]["error_code"]))

    def test_a_message_is_a_response_that_can_be_read_and_deleted(self):
        first = self.begin()
        second = self.message("And then?", after(first))
        path = "/v1/responses/" + second["id"].replace("msg_", "resp_")
        status, text = self.request("GET", path)
        self.assertEqual(200, status, text)
        response = json.loads(text)
        self.assertEqual(second["content"][0]["text"], response["output"][0]["content"][0]["text"])
        self.assertEqual(first["id"].replace("msg_", "resp_"), response["previous_response_id"])
        self.assertEqual(404, self.request("GET", path, key=1)[0])
        self.assertEqual(200, self.request("DELETE", path)[0])
        self.refused(404, "thread_not_found", "More", after(second))
        self.message("More", after(first))

    def test_names_of_other_models_mean_that_of_the_thread(self):
        first = self.begin()
        self.check_reused(self.message("And then?", after(first), model="claude-haiku-9"), first)


if __name__ == "__main__":
    unittest.main()
