"""Why a prompt was computed again: every reply says where its prompt leaves what was known, in its receipt, as Anthropic's
`diagnostics` and as OpenAI's `prompt_cache_diagnostics`."""

import copy
import json
import pathlib
import subprocess
import tempfile
import time
import unittest

import cli
import test_families
import test_http
import uma
import vision

REST = " This sentence stays the same in every request, so it is lost where something before it changes."
LOOK = ("look", "Looks at something.", {"type": "object", "properties": {"at": {"type": "string", "description": "What to look at."}}})
LISTEN = ("listen", "Listens.", {"type": "object", "properties": {}})
FIRST = {
    "system": "You keep the house. It is Monday, 10:15." + REST,
    "tools": [LOOK, LISTEN],
    "question": "What is at the door?" + REST,
    "thoughts": "I must look at the door first." + REST,
    "arguments": {"at": "the big door"},
    "result": "A grey dog." + REST,
    "next": "And at the window?" + REST,
}


def changed(**fields):
    return {**copy.deepcopy(FIRST), **fields}


# name: (the request, kind, index of the message, its role, Anthropic's type, OpenAI's reason)
CHANGES = {
    "a date in the system prompt": (changed(system=FIRST["system"].replace("Monday", "Sunday")), "system", 0, "system", "system_changed", "input_changed"),
    "tools in another order": (changed(tools=[LISTEN, LOOK]), "tools", None, None, "tools_changed", "tools_changed"),
    "a tool's description": (changed(tools=[LOOK, ("listen", "Hears.", LISTEN[2])]), "tools", None, None, "tools_changed", "tools_changed"),
    "a tool more": (changed(tools=[LOOK, LISTEN, ("wait", "Waits.", LISTEN[2])]), "tools", None, None, "tools_changed", "tools_changed"),
    "an earlier question": (changed(question="What is at the gate?" + REST), "text", 1, "user", "messages_changed", "input_changed"),
    "reasoning that is left out": (changed(thoughts=""), "reasoning", 2, "assistant", "messages_changed", "input_changed"),
    "arguments of a call": (changed(arguments={"at": "the old door"}), "call", 2, "assistant", "messages_changed", "input_changed"),
    "a tool's result": (changed(result="A black dog." + REST), "result", 3, "tool", "messages_changed", "input_changed"),
    "the last question": (changed(next="And in the garden?" + REST), "text", 4, "user", "messages_changed", "input_changed"),
}


class WhyTest(test_families.FamilyTest):
    def ok(self, path, body, headers=None):
        status, answer = self.request("POST", path, body, headers)
        self.assertEqual(200, status, answer)
        return answer

    def miss(self, answer):
        return answer["uma"]["usage"].get("cache_miss")

    def chat_of(self, model, given, compared_with=None, **fields):
        """The answer and what it says of the comparison."""
        calls = [{"id": "call_0000001", "type": "function", "function": {"name": "look", "arguments": json.dumps(given["arguments"])}}]
        thoughts = {"reasoning_content": given["thoughts"]} if given["thoughts"] else {}
        answer = self.ok("/v1/chat/completions", {
            "model": model, "max_tokens": 1, "tools": [
                {"type": "function", "function": {"name": name, "description": what, "parameters": schema}} for name, what, schema in given["tools"]],
            "messages": [{"role": "system", "content": given["system"]}, {"role": "user", "content": given["question"]},
                         {"role": "assistant", "content": None, "tool_calls": calls, **thoughts},
                         {"role": "tool", "tool_call_id": "call_0000001", "content": given["result"]}, {"role": "user", "content": given["next"]}],
            **({} if compared_with is None else {"prompt_cache_options": {"comparison_response_id": compared_with}}), **fields})
        return answer, answer["uma"].get("prompt_cache_diagnostics")

    def message_of(self, model, given, compared_with=None):
        thoughts = [{"type": "thinking", "thinking": given["thoughts"], "signature": "a"}] if given["thoughts"] else []
        answer = self.ok("/v1/messages", {
            "model": model, "max_tokens": 1, "system": given["system"],
            "tools": [{"name": name, "description": what, "input_schema": schema} for name, what, schema in given["tools"]],
            "messages": [{"role": "user", "content": given["question"]},
                         {"role": "assistant", "content": [*thoughts, {"type": "tool_use", "id": "call_0000001", "name": "look", "input": given["arguments"]}]},
                         {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_0000001", "content": given["result"]},
                                                      {"type": "text", "text": given["next"]}]}],
            "diagnostics": {"previous_message_id": compared_with}}, {"anthropic-version": "2023-06-01", "anthropic-beta": "cache-diagnosis-2026-04-07"})
        return answer, answer["diagnostics"]

    def response_of(self, model, given, compared_with=None):
        thoughts = [{"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": given["thoughts"]}]}] if given["thoughts"] else []
        answer = self.ok("/v1/responses", {
            "model": model, "max_output_tokens": 1, "store": False, "instructions": given["system"],
            "tools": [{"type": "function", "name": name, "description": what, "parameters": schema} for name, what, schema in given["tools"]],
            "input": [{"role": "user", "content": given["question"]}, *thoughts,
                      {"type": "function_call", "call_id": "call_0000001", "name": "look", "arguments": json.dumps(given["arguments"])},
                      {"type": "function_call_output", "call_id": "call_0000001", "output": given["result"]}, {"role": "user", "content": given["next"]}],
            **({} if compared_with is None else {"prompt_cache_options": {"comparison_response_id": compared_with}})})
        return answer, answer.get("prompt_cache_diagnostics")

    APIS = (chat_of, message_of, response_of)


class Why(WhyTest):
    families = ("deepseek_v3_1", "glm_4_6", "kimi_k2_thinking", "minimax_m2", "qwen3", "seed_oss")
    # Their templates do not write the reasoning of a reply before the last question.
    forget_reasoning = ("deepseek_v3_1", "glm_4_6", "minimax_m2", "qwen3")

    @classmethod
    def setUpClass(cls):
        cls.config = cls.with_templates(cls.families)
        super().setUpClass()

    def check(self, api, family, name):
        given, kind, message, role, anthropic, openai = CHANGES[name]
        # Otherwise the prompt would be known from another API.
        before, given = ({**each, "system": f"{api.__name__} {name}. {each['system']}"} for each in (FIRST, given))
        first, said = api(self, family, before)
        self.assertIsNone(said, "nothing was asked, or there is nothing before")
        answer, said = api(self, family, given, first["id"])
        miss = self.miss(answer)
        self.assertEqual((kind, message, role), (miss["kind"], miss.get("message"), miss.get("role")), miss)
        self.assertGreater(miss["lost_tokens"], 60 if name != "the last question" else 16, miss)
        self.assertLess(miss["token"], miss["known_tokens"])
        self.assertEqual(miss["compared_with"], first["id"][-len(miss["compared_with"]):])
        if miss["token"] > 32:  # A shorter prefix is not worth a copy.
            self.assertGreaterEqual(answer["uma"]["usage"]["reused_tokens"], miss["token"] - 1, "what is the same is reused")
        behind = miss["known_tokens"] - miss["token"]
        if api is WhyTest.message_of:
            self.assertEqual({"cache_miss_reason": {"type": anthropic, "cache_missed_input_tokens": behind}}, said)
        else:
            self.assertEqual({"type": "cache_miss", "reason": openai, "cache_missed_tokens": behind, "comparison_reusable_tokens": miss["known_tokens"]}, said)

    def test_each_change_has_its_place(self):
        for family in self.families:
            for api in self.APIS:
                for name in CHANGES:
                    if name.startswith("reasoning") and family in self.forget_reasoning:
                        continue
                    with self.subTest(family=family, api=api.__name__, change=name):
                        self.check(api, family, name)

    def test_nothing_has_changed(self):
        for api in self.APIS:
            first, _ = api(self, "qwen3", FIRST)
            again, said = api(self, "qwen3", FIRST, first["id"])
            self.assertIn(said, (None, {"type": "cache_hit"}))
            self.assertIsNone(self.miss(again))

    def test_another_model(self):
        for api, wanted in zip(self.APIS, ("reason", "cache_miss_reason", "reason")):
            first, _ = api(self, "qwen3", FIRST)
            answer, said = api(self, "glm_4_6", FIRST, first["id"])
            self.assertEqual("model", self.miss(answer)["kind"])
            reason = said[wanted]
            self.assertEqual("model_changed", reason["type"] if isinstance(reason, dict) else reason)

    def test_an_unknown_reply(self):
        not_found = {"type": "comparison_response_not_found"}
        unknown = "resp_" + 48 * "0"
        for api, name, wanted in ((WhyTest.chat_of, "chatcmpl-0123456789abcdef", not_found), (WhyTest.response_of, unknown, not_found),
                                  (WhyTest.message_of, "msg_0123456789abcdef", {"cache_miss_reason": {"type": "previous_message_not_found"}})):
            answer, said = api(self, "qwen3", FIRST, name)
            self.assertEqual(wanted, said)
            self.assertEqual("not_found", self.miss(answer)["kind"])

    def test_without_a_name_the_most_similar_prompt_counts(self):
        first, _ = self.chat_of("qwen3", changed(system="Another house." + REST))
        answer, said = self.chat_of("qwen3", changed(system="Another house." + REST, result="Nothing." + REST))
        miss = self.miss(answer)
        self.assertIsNone(said)
        self.assertEqual(("result", 3, "tool"), (miss["kind"], miss["message"], miss["role"]))
        self.assertTrue(first["id"].endswith(miss["compared_with"]))

    def test_the_effort_of_reasoning(self):
        first, _ = self.chat_of("seed_oss", FIRST, thinking_budget=512)
        answer, said = self.chat_of("seed_oss", FIRST, first["id"], thinking_budget=1024)
        self.assertEqual(("settings", "reasoning_effort_changed"), (self.miss(answer)["kind"], said["reason"]))

    def test_only_the_first_choice_is_compared(self):
        first, _ = self.chat_of("qwen3", FIRST)
        given, *_ = CHANGES["the last question"]
        one, two = self.ok("/v1/chat/completions", {
            "model": "qwen3", "max_tokens": 1, "n": 2, "messages": [{"role": "system", "content": given["system"]}, {"role": "user", "content": given["next"]}],
            "prompt_cache_options": {"comparison_response_id": first["id"]}})["choices"]
        self.assertEqual("cache_miss", one["uma"]["prompt_cache_diagnostics"]["type"])
        self.assertNotIn("prompt_cache_diagnostics", two["uma"], "the second reply has the prompt of the first")

    def test_in_a_thread(self):
        fields = {"model": "qwen3", "max_tokens": 4, "system": FIRST["system"], "diagnostics": {"previous_message_id": None}}
        headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "message-threads-2026-08-12,cache-diagnosis-2026-04-07"}
        first = self.ok("/v1/messages", {**fields, "thread": {"type": "create"}, "messages": [{"role": "user", "content": FIRST["question"]}]}, headers)
        self.assertIsNone(first["diagnostics"])
        answer = self.ok("/v1/messages", {**fields, "system": "Another one." + REST, "messages": [{"role": "user", "content": FIRST["question"]}],
                                          "diagnostics": {"previous_message_id": first["id"]}}, headers)
        self.assertEqual("system_changed", answer["diagnostics"]["cache_miss_reason"]["type"])
        self.assertEqual(200, self.request("GET", f"/v1/receipts/{first['id']}")[0])

    def test_in_streams(self):
        first, _ = self.message_of("qwen3", FIRST)
        connection = self.connect()
        connection.request("POST", "/v1/messages", json.dumps({
            "model": "qwen3", "max_tokens": 2, "stream": True, "system": "Another one." + REST, "messages": [{"role": "user", "content": "Well?"}],
            "diagnostics": {"previous_message_id": first["id"]}}), {"anthropic-version": "2023-06-01"})
        lines = connection.getresponse().read().decode().split("\n")
        begun = next(json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: "))
        self.assertEqual("message_start", begun["type"])
        self.assertIn(begun["message"]["diagnostics"]["cache_miss_reason"]["type"], ("system_changed", "tools_changed"))
        first, _ = self.response_of("qwen3", FIRST)
        connection = self.connect()
        connection.request("POST", "/v1/responses", json.dumps({
            "model": "qwen3", "max_output_tokens": 2, "stream": True, "instructions": "Another one." + REST, "input": "Well?",
            "prompt_cache_options": {"comparison_response_id": first["id"]}}))
        events = [json.loads(line.removeprefix("data: ")) for line in connection.getresponse().read().decode().split("\n") if line.startswith("data: ")]
        self.assertEqual("cache_miss", events[-1]["response"]["prompt_cache_diagnostics"]["type"])

    def test_malformed_comparisons(self):
        for path, field in (("/v1/messages", {"diagnostics": {"previous_message_id": 7}}), ("/v1/messages", {"diagnostics": 7}),
                            ("/v1/chat/completions", {"prompt_cache_options": {"comparison_response_id": []}}),
                            ("/v1/responses", {"prompt_cache_options": {"comparison_response_id": "a" * 300}})):
            body = {"model": "qwen3", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]} if "responses" not in path else {"input": "a"}
            status, answer = self.request("POST", path, {**body, **field})
            self.assertEqual(400, status, answer)
            self.assertIn(next(iter(field)), answer["error"]["message"])


class Told(WhyTest):
    """The answer outside of the reply: uma-cli, /v1/receipts, /metrics, the log, and a header."""
    families = ("qwen3",)

    @classmethod
    def setUpClass(cls):
        cls.config = cls.with_templates(cls.families)
        super().setUpClass()

    def why(self, *arguments):
        return cli.run_cli("--socket", self.daemon.socket_path, "why", *arguments)

    def test_by_the_id_of_a_reply(self):
        before = self.client.metrics()["misses_result_total"]
        first, _ = self.chat_of("qwen3", FIRST)
        given, *_ = CHANGES["a tool's result"]
        answer, _ = self.chat_of("qwen3", given, first["id"])
        miss = self.miss(answer)
        said = f"the result of a tool, message 3 (tool), differs from token {miss['token']} on: {miss['lost_tokens']} tokens computed again"
        for arguments in ((answer["id"],), ()):
            done = self.why(*arguments)
            self.assertEqual((0, b""), (done.returncode, done.stderr))
            self.assertIn(said, done.stdout.decode())
        self.assertEqual(miss, json.loads(self.why("--json", answer["id"]).stdout)["usage"]["cache_miss"])
        self.assertEqual((200, {"object": "receipt", "usage": answer["uma"]["usage"]}), self.request("GET", f"/v1/receipts/{answer['id']}"))
        self.assertEqual(404, self.request("GET", "/v1/receipts/chatcmpl-0123456789abcdef")[0])
        self.assertNotEqual(0, self.why("nothing").returncode)
        self.assertEqual(before + 1, self.client.metrics()["misses_result_total"])

    def test_by_a_session(self):
        session = self.client.create_session(model="qwen3", system="You keep the house." + REST, name="house")
        for text in ("What is at the door?", "And now?"):
            reply = self.client.generate(session_id=session, messages=[{"role": "user", "content": text + REST}], max_tokens=4)
        self.assertNotIn(reply.usage.get("cache_miss", {}).get("kind"), ("system", "tools", "text"), "a conversation only grows")
        self.assertIn("prompt tokens reused", self.why("house").stdout.decode())
        self.client.call(type="end_session", session_id=session)
        self.assertNotEqual(0, self.why(session).returncode, "an ended session is forgotten")

    def test_a_clock_in_the_system_prompt(self):
        warnings = []
        for minute in range(10, 16):
            connection = self.connect()
            connection.request("POST", "/v1/chat/completions", json.dumps({
                "model": "qwen3", "max_tokens": 1, "messages": [{"role": "system", "content": f"It is 12:{minute}." + 4 * REST},
                                                                {"role": "user", "content": "Well?" + 4 * REST}]}))
            answer = connection.getresponse()
            answer.read()
            warnings.append(answer.getheader("x-uma-warning"))
        self.assertEqual([None] * 3, warnings[:3])
        for warning in warnings[3:]:
            self.assertIn("in message 0 (system)", warning)
        self.assertEqual(1, self.daemon.log().count("as with a clock or a counter"), "once is enough")


class Dated(WhyTest):
    TEMPLATE = ("<|im_start|>system\nYou are kind." + REST + " It is {{ strftime_now('%H:%M:%S') }}.<|im_end|>\n"
                "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
                "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")

    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        (folder / "dated.jinja").write_text(cls.TEMPLATE)
        subprocess.run([uma.MAKE_MODEL, "--chat-template-file", folder / "dated.jinja", "--out", folder / "dated.gguf"], check=True, timeout=uma.WAIT_S)
        cls.config = f"models_dirs: [{folder}]\n"
        super().setUpClass()

    def test_the_date_of_the_template(self):
        for path, first_said, said in (
                ("/v1/chat/completions", {"max_tokens": 1}, {"type": "cache_miss", "reason": "input_changed"}),
                ("/v1/responses", {"max_output_tokens": 1, "store": False}, {"type": "cache_miss", "reason": "input_changed"}),
                ("/v1/messages", {"max_tokens": 1, "diagnostics": {"previous_message_id": None}}, {"cache_miss_reason": {"type": "unavailable"}})):
            with self.subTest(path=path):
                body = {"model": "dated", "input" if "responses" in path else "messages": [{"role": "user", "content": path + REST}], **first_said}
                first = self.ok(path, body)
                time.sleep(1.1)
                answer = self.ok(path, {**body, **({"diagnostics": {"previous_message_id": first["id"]}} if "messages" in path else
                                                   {"prompt_cache_options": {"comparison_response_id": first["id"]}})})
                miss = self.miss(answer)
                self.assertEqual(("template", None, None), (miss["kind"], miss.get("message"), miss.get("role")), miss)
                self.assertGreater(miss["token"], 16, "the words before the date are the same")
                named = answer.get("diagnostics") or answer.get("prompt_cache_diagnostics") or answer["uma"]["prompt_cache_diagnostics"]
                self.assertEqual(said, {name: named[name] for name in said})


class Images(WhyTest):
    model = vision.MODEL
    flags = ("--http", "127.0.0.1:0", *vision.FLAGS)

    def ask(self, picture, **fields):
        return self.ok("/v1/chat/completions", {"max_tokens": 1, "messages": [
            {"role": "system", "content": "You see." + REST},
            {"role": "user", "content": [{"type": "text", "text": "Look."}, {"type": "image_url", "image_url": {"url": vision.data_uri(picture)}},
                                         {"type": "text", "text": "What is it?" + REST}]}], **fields})

    def test_another_image(self):
        first = self.ask(vision.GRAD)
        answer = self.ask(vision.RED, prompt_cache_options={"comparison_response_id": first["id"]})
        miss = self.miss(answer)
        self.assertEqual(("image", 1, "user"), (miss["kind"], miss["message"], miss["role"]))
        self.assertEqual("input_changed", answer["uma"]["prompt_cache_diagnostics"]["reason"])
        image = {"type": "base64", "media_type": "image/png"}

        def message(picture, before=None):
            return self.ok("/v1/messages", {"max_tokens": 1, "system": "You see." + REST, "model": "any", "messages": [
                {"role": "user", "content": [{"type": "image", "source": {**image, "data": vision.data_of(picture)}}, {"type": "text", "text": "What is it?" + REST}]}],
                "diagnostics": {"previous_message_id": before}})
        first = message(vision.GRAD)
        answer = message(vision.RED, first["id"])
        miss = self.miss(answer)
        self.assertEqual(("image", 1, "user"), (miss["kind"], miss["message"], miss["role"]))
        self.assertEqual("messages_changed", answer["diagnostics"]["cache_miss_reason"]["type"])

        def response(picture, **fields):
            return self.ok("/v1/responses", {"max_output_tokens": 1, "instructions": "You see." + REST, "input": [
                {"role": "user", "content": [{"type": "input_image", "image_url": vision.data_uri(picture)}, {"type": "input_text", "text": "What is it?" + REST}]}],
                **fields})
        first = response(vision.GRAD)
        answer = response(vision.RED, prompt_cache_options={"comparison_response_id": first["id"]})
        miss = self.miss(answer)
        self.assertEqual(("image", 1, "user"), (miss["kind"], miss["message"], miss["role"]))
        self.assertEqual("input_changed", answer["prompt_cache_diagnostics"]["reason"])


class Held(test_http.HttpTest):
    """A context with room for one prompt, without a store."""
    model = uma.TINY_CHAT
    flags = ("--http", "127.0.0.1:0", "--n-ctx", "1024", "--slots", "1")
    config = "kv: {warm_bytes_max: 0, cold_bytes_max: 0}\n"

    def test_kv_that_is_gone(self):
        def ask(text, **fields):
            status, answer = self.chat(text, max_tokens=1, **fields)
            self.assertEqual(200, status, answer)
            return answer
        first = ask("One" + 20 * REST)
        ask("Two" + 20 * REST)
        again = ask("One" + 20 * REST, prompt_cache_options={"comparison_response_id": first["id"]})
        miss = again["uma"]["usage"]["cache_miss"]
        self.assertEqual(("not_held", None), (miss["kind"], miss.get("cause")))
        self.assertEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], miss["token"])
        self.assertEqual(again["usage"]["prompt_tokens"] - 1, miss["token"] + miss["lost_tokens"])
        self.assertEqual({"type": "unavailable"}, again["uma"]["prompt_cache_diagnostics"])


if __name__ == "__main__":
    unittest.main()
