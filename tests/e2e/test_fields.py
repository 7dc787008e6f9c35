"""No field of a request is dropped silently: the table of request fields (src/wire/request_fields.cpp) knows every field of the types
of OpenAI's, Anthropic's and Ollama's SDKs, and the daemon serves, refuses or names what the table says, on every path."""

import json
import pathlib
import re
import sys
import unittest

import uma
from test_http import HttpTest

sys.path.insert(0, str(uma.ROOT / "tools"))
import fields_tables  # noqa: E402

OPENAI = uma.ROOT / "tests/e2e/openai/node_modules/openai/resources"
ANTHROPIC = uma.ROOT / "tests/e2e/sdks/node_modules/@anthropic-ai/sdk/resources"
OLLAMA = uma.ROOT / "tests/e2e/sdks/node_modules/ollama/dist/browser.d.ts"

# The types of a request: the route, the file, the type's name, the place of its fields in the request.
TYPES = (
    ("chat", OPENAI / "chat/completions/completions.d.ts", "ChatCompletionCreateParamsBase", ""),
    ("chat", OPENAI / "chat/completions/completions.d.ts", "ChatCompletionStreamOptions", "stream_options."),
    ("chat", OPENAI / "chat/completions/completions.d.ts", "ChatCompletionFunctionTool", "tools[]."),
    ("chat", OPENAI / "chat/completions/completions.d.ts", "ChatCompletionCustomTool", "tools[]."),
    ("chat", OPENAI / "shared.d.ts", "FunctionDefinition", "tools[].function."),
    ("chat", OPENAI / "shared.d.ts", "ResponseFormatJSONSchema", "response_format."),
    ("chat", OPENAI / "shared.d.ts", "ResponseFormatText", "response_format."),
    ("chat", OPENAI / "shared.d.ts", "Reasoning", "reasoning."),
    ("completions", OPENAI / "completions.d.ts", "CompletionCreateParamsBase", ""),
    ("completions", OPENAI / "chat/completions/completions.d.ts", "ChatCompletionStreamOptions", "stream_options."),
    ("responses", OPENAI / "responses/responses.d.ts", "ResponseCreateParamsBase", ""),
    ("responses", OPENAI / "responses/responses.d.ts", "ResponseTextConfig", "text."),
    ("responses", OPENAI / "responses/responses.d.ts", "ResponseFormatTextJSONSchemaConfig", "text.format."),
    ("responses", OPENAI / "responses/responses.d.ts", "StreamOptions", "stream_options."),
    ("responses", OPENAI / "responses/responses.d.ts", "FunctionTool", "tools[]."),
    ("responses", OPENAI / "responses/responses.d.ts", "CustomTool", "tools[]."),
    ("responses", OPENAI / "responses/responses.d.ts", "NamespaceTool", "tools[]."),
    ("responses", OPENAI / "responses/input-tokens.d.ts", "InputTokenCountParams", ""),
    ("responses", OPENAI / "shared.d.ts", "Reasoning", "reasoning."),
    ("embeddings", OPENAI / "embeddings.d.ts", "EmbeddingCreateParams", ""),
    ("images", OPENAI / "images.d.ts", "ImageGenerateParamsBase", ""),
    ("messages", ANTHROPIC / "messages/messages.d.ts", "MessageCreateParamsBase", ""),
    ("messages", ANTHROPIC / "messages/messages.d.ts", "MessageCountTokensParams", ""),
    ("messages", ANTHROPIC / "messages/messages.d.ts", "Tool", "tools[]."),
    ("messages", ANTHROPIC / "messages/messages.d.ts", "OutputConfig", "output_config."),
    ("messages", ANTHROPIC / "messages/messages.d.ts", "JSONOutputFormat", "output_config.format."),
    ("messages", ANTHROPIC / "messages/messages.d.ts", "ThinkingConfigEnabled", "thinking."),
    ("messages", ANTHROPIC / "messages/messages.d.ts", "ThinkingConfigAdaptive", "thinking."),
    ("messages", ANTHROPIC / "beta/messages/messages.d.ts", "MessageCreateParamsBase", ""),
    ("messages", ANTHROPIC / "beta/messages/messages.d.ts", "MessageCountTokensParams", ""),
    ("messages", ANTHROPIC / "beta/messages/messages.d.ts", "BetaOutputConfig", "output_config."),
    ("ollama_chat", OLLAMA, "ChatRequest", ""),
    ("ollama_chat", OLLAMA, "Options", "options."),
    ("ollama_chat", OLLAMA, "Tool", "tools[]."),
    ("ollama_generate", OLLAMA, "GenerateRequest", ""),
    ("ollama_generate", OLLAMA, "Options", "options."),
    ("ollama_embed", OLLAMA, "EmbedRequest", ""),
    ("ollama_embed", OLLAMA, "Options", "options."),
    ("ollama_embeddings", OLLAMA, "EmbeddingsRequest", ""),
    ("ollama_embeddings", OLLAMA, "Options", "options."),
)


def members(declarations, name):
    """Returns the names of an interface's own fields in TypeScript's declarations."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", declarations, flags=re.DOTALL)
    begin = re.search(rf"\binterface {name}\b[^{{]*\{{", text)
    if begin is None:
        raise AssertionError(f"no interface {name}")
    found, depth, at, wants_name = [], 1, begin.end(), True
    while depth > 0:
        field = re.compile(r"\s*(?:readonly )?'?([\w-]+)'?\??:").match(text, at) if depth == 1 and wants_name else None
        if field:
            found.append(field[1])
            at, wants_name = field.end(), False
            continue
        character = text[at]
        depth += (character in "{[(<") - (character in "}])" or (character == ">" and text[at - 1] != "="))
        wants_name = depth == 1 and (character == ";" or (wants_name and character.isspace()))
        at += 1
    return found


class SdkTypes(unittest.TestCase):
    """The pinned packages carry the types of the requests that their users send."""

    @classmethod
    def setUpClass(cls):
        if not OPENAI.exists() or not OLLAMA.exists():
            raise AssertionError("the clients are missing: run script/bootstrap")
        cls.source = fields_tables.TABLE.read_text()

    def test_the_parser_reads_nested_types(self):
        declarations = ("interface A extends B { /* x: 1; */ a?: { b: number; c: Array<{ d: string }> };\n  'e': (f: number) => void;\n"
                        "  readonly g: 'h' | null; i?: Map<string, number>; }\ninterface AB { z: 1; }")
        self.assertEqual(["a", "e", "g", "i"], members(declarations, "A"))

    def test_every_field_is_in_a_class(self):
        unknown, seen = [], 0
        for route, path, name, place in TYPES:
            known = fields_tables.fields_of(self.source, route)
            parents = {path[:at] for path in known for at in (dot.start() for dot in re.finditer(r"\.", path))}
            names = members(path.read_text(), name)
            self.assertTrue(names, name)
            seen += len(names)
            unknown += [f"{route}: {place}{field} of {name}" for field in names
                        if place + field not in known and not {place + field, f"{place}{field}[]"} & parents]
        self.assertGreater(seen, 250)
        self.assertEqual([], unknown)


class Served(HttpTest):
    """What the table says holds on the paths."""

    MESSAGES = [{"role": "user", "content": "What is 7 + 5?"}]
    CHAT = {"messages": MESSAGES, "max_tokens": 24, "temperature": 0}

    def ask(self, path, body):
        """Returns (status, the answer, its warnings)."""
        connection = self.connect()
        connection.request("POST", path, json.dumps(body).encode())
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), answer.headers.get_all("x-uma-warning") or []

    def test_constraints_in_every_form(self):
        schema = {"type": "object", "properties": {"team": {"enum": ["red"]}}, "required": ["team"], "additionalProperties": False}
        described = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        forms = ({"response_format": {"type": "json_object", "schema": schema}}, {"response_format": {"type": "json_schema", "schema": schema}},
                 {"response_format": described}, {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}},
                 {"json_schema": schema}, {"guided_json": schema}, {"guided_json": json.dumps(schema)}, {"structured_outputs": {"json": schema}})
        for form in forms:
            status, answer, warnings = self.ask("/v1/chat/completions", {**self.CHAT, **form})
            self.assertEqual((200, []), (status, warnings), (form, answer))
            self.assertEqual({"team": "red"}, json.loads(answer["choices"][0]["message"]["content"]), form)
            status, answer, _ = self.ask("/v1/responses", {"input": "What is 7 + 5?", "temperature": 0, **form})
            self.assertEqual(200, status, (form, answer))
            self.assertEqual({"team": "red"}, json.loads(answer["output"][-1]["content"][0]["text"]), form)
        for form, pattern in (({"guided_choice": ["red", "gr\"een\n"]}, 'red|gr"een\n'), ({"structured_outputs": {"choice": ["red"]}}, "red"),
                              ({"guided_regex": "[a-c]{3}-\\d"}, "[a-c]{3}-[0-9]"), ({"structured_outputs": {"regex": "yes|no"}}, "yes|no"),
                              ({"regex": "^é{2}$"}, "éé"), ({"ebnf": 'root ::= "a" "b"'}, "ab"), ({"guided_grammar": 'root ::= "a" "b"'}, "ab")):
            status, answer, _ = self.ask("/v1/chat/completions", {**self.CHAT, **form})
            self.assertEqual(200, status, (form, answer))
            self.assertRegex(answer["choices"][0]["message"]["content"], re.compile(rf"\A(?:{pattern})\Z"), form)

    def test_a_bad_constraint_is_named(self):
        for form, field in (({"guided_regex": "(?=a)"}, "guided_regex"), ({"structured_outputs": {"grammar": "root ::= ("}}, "structured_outputs.grammar"),
                            ({"guided_json": {"type": 3}}, "guided_json"), ({"json_schema": {}, "guided_regex": "a"}, "guided_regex"),
                            ({"response_format": {"type": "json_object", "schema": 7}}, "response_format.schema"),
                            ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag")):
            status, answer, _ = self.ask("/v1/chat/completions", {**self.CHAT, **form})
            self.assertEqual((400, field), (status, answer["error"]["param"]), answer)

    def test_numbers_of_tokens(self):
        for path, body in (("/v1/chat/completions", {"messages": self.MESSAGES}), ("/v1/completions", {"prompt": "What is"})):
            for field in ("max_tokens", "max_completion_tokens"):
                status, answer, _ = self.ask(path, {**body, field: -1, "stop": [" "], "temperature": 0})
                self.assertEqual(200, status, answer)
                status, answer, _ = self.ask(path, {**body, field: 0})
                self.assertEqual((200, 0, "length"), (status, answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]), answer)
                status, answer, _ = self.ask(path, {**body, field: "many"})
                self.assertEqual((400, field), (status, answer["error"]["param"]))
        status, answer, _ = self.ask("/v1/messages", {"messages": self.MESSAGES, "max_tokens": 0})
        self.assertEqual((200, "max_tokens", 0), (status, answer["stop_reason"], answer["usage"]["output_tokens"]), answer)
        status, answer, _ = self.ask("/infill", {"input_prefix": "a", "n_predict": 0})
        self.assertIn(status, (200, 400))  # 400: the model fills no gaps

    def test_the_prompt_is_warm_after_no_token(self):
        messages = [{"role": "user", "content": "Warm this rather long question up, please, before anybody asks it."}]
        self.ask("/v1/chat/completions", {"messages": messages, "max_tokens": 0})
        _, answer, _ = self.ask("/v1/chat/completions", {"messages": messages, "max_tokens": 2})
        self.assertGreater(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 16)

    def test_the_token_that_ends_a_reply_counts(self):
        ending = 'root ::= "The end."'
        whole = self.client.generate(messages=self.MESSAGES, temperature=0, max_tokens=200, grammar=ending)
        self.assertEqual("stop", whole.reason)
        status, answer, _ = self.ask("/v1/chat/completions", {**self.CHAT, "grammar": ending, "max_tokens": 200})
        count = answer["usage"]["completion_tokens"]
        self.assertEqual(whole.usage["completion_tokens"], count)
        _, cut, _ = self.ask("/v1/chat/completions", {**self.CHAT, "grammar": ending, "max_tokens": count - 1})
        self.assertEqual(("length", count - 1), (cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"]))

    def test_the_likelihood_of_a_text(self):
        """As lm-eval asks: the context and a continuation as tokens, of which the continuation's log probabilities are added."""
        prompt = "What is 7 + 5? It is twelve, says the clerk, and shuts the ledger."
        _, tokens, _ = self.ask("/tokenize", {"content": prompt, "add_special": True})
        tokens = tokens["tokens"]
        body = {"max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0}
        _, by_tokens, _ = self.ask("/v1/completions", {**body, "prompt": [tokens, tokens[:5]]})
        _, by_text, _ = self.ask("/v1/completions", {**body, "prompt": prompt})
        _, alone, _ = self.ask("/v1/completions", {**body, "prompt": tokens, "max_tokens": 0})
        first, second = (choice["logprobs"] for choice in by_tokens["choices"])
        self.assertEqual((len(tokens) + 1, 6), (len(first["tokens"]), len(second["tokens"])))
        self.assertEqual((None, None), (first["token_logprobs"][0], first["top_logprobs"][0]))
        self.assertTrue(all(value <= 0 for value in first["token_logprobs"][1:]))
        for place, value in zip(first["top_logprobs"][1:], first["token_logprobs"][1:]):
            self.assertGreaterEqual(max(place.values()), value)
        for left, right in zip(first["token_logprobs"][1:5], second["token_logprobs"][1:5]):
            self.assertAlmostEqual(left, right, places=3)
        self.assertEqual(len(tokens), len(alone["choices"][0]["logprobs"]["tokens"]))
        self.assertEqual(0, alone["usage"]["completion_tokens"])
        self.assertTrue(by_text["choices"][0]["text"].startswith(prompt))
        self.assertEqual(prompt, alone["choices"][0]["text"].removeprefix("<s>").strip())
        self.assertEqual([place["token_logprobs"] for place in (first,)], [by_text["choices"][0]["logprobs"]["token_logprobs"]])
        # The log probability of a token behind its context is that of the same token when it is generated.
        _, chosen, _ = self.ask("/v1/completions", {"prompt": tokens[:8], "max_tokens": 1, "logprobs": 5, "temperature": 0})
        (likely,) = chosen["choices"][0]["logprobs"]["top_logprobs"]
        self.assertAlmostEqual(max(likely.values()), max(first["top_logprobs"][8].values()), places=3)
        status, refused, _ = self.ask("/v1/completions", {**body, "prompt": "a", "stream": True})
        self.assertEqual((400, "echo"), (status, refused["error"]["param"]))

    def test_what_is_left_out_is_said(self):
        for path, body, word in (
                ("/v1/chat/completions", {**self.CHAT, "tool_choice": "required"}, "no tools"),
                ("/v1/chat/completions", {**self.CHAT, "web_search_options": {"search_context_size": "low"}}, "web search"),
                ("/v1/chat/completions", {**self.CHAT, "surprise": 1}, "surprise"),
                ("/v1/completions", {"prompt": "a", "max_tokens": 1, "surprise": 1}, "surprise"),
                ("/v1/responses", {"input": "a", "max_output_tokens": 2, "tool_choice": "required"}, "no tools"),
                ("/v1/responses", {"input": "a", "max_output_tokens": 2, "surprise": 1}, "surprise"),
                ("/v1/messages", {"messages": self.MESSAGES, "max_tokens": 2, "tool_choice": {"type": "any"}}, "no tools"),
                ("/v1/messages", {"messages": self.MESSAGES, "max_tokens": 2, "context_management": {"edits": [{"type": "x"}]}}, "context_management"),
                ("/api/chat", {"messages": self.MESSAGES, "stream": False, "options": {"num_predict": 2, "surprise": 1}}, "options.surprise"),
                ("/api/generate", {"prompt": "a", "stream": False, "surprise": 1, "options": {"num_predict": 2}}, "surprise")):
            status, answer, warnings = self.ask(path, body)
            self.assertEqual(200, status, answer)
            self.assertIn(word, " ".join(warnings), path)

    def test_what_is_refused_is_named(self):
        source = fields_tables.TABLE.read_text()
        bodies = {"chat": ("/v1/chat/completions", self.CHAT), "completions": ("/v1/completions", {"prompt": "a"}),
                  "responses": ("/v1/responses", {"input": "a"}), "messages": ("/v1/messages", {"messages": self.MESSAGES, "max_tokens": 1}),
                  "ollama_chat": ("/api/chat", {"messages": self.MESSAGES}), "ollama_generate": ("/api/generate", {"prompt": "a"}),
                  "embeddings": ("/v1/embeddings", {"input": "a"}), "images": ("/v1/images/generations", {"prompt": "a"})}
        count = 0
        for route, (path, body) in bodies.items():
            for field, kind in fields_tables.fields_of(source, route).items():
                if kind != "refused" or "[]" in field:
                    continue
                count += 1
                outer, _, inner = field.partition(".")
                status, answer, _ = self.ask(path, {**body, outer: {inner: "something"} if inner else "something"})
                self.assertEqual(400, status, (path, field))
                self.assertIn(f'"{field}" is not supported: ', answer["error"] if isinstance(answer["error"], str) else answer["error"]["message"])
        self.assertGreater(count, 50)

    def test_tokens_of_a_response_are_counted(self):
        body = {"input": "What is 7 + 5?", "instructions": "Be brief."}
        status, counted, _ = self.ask("/v1/responses/input_tokens", body)
        self.assertEqual((200, "response.input_tokens"), (status, counted["object"]), counted)
        _, made, _ = self.ask("/v1/responses", {**body, "max_output_tokens": 2})
        self.assertEqual(made["usage"]["input_tokens"], counted["input_tokens"])
        status, answer, _ = self.ask("/v1/responses/input_tokens", {"input": "a", "previous_response_id": made["id"]})
        self.assertEqual((400, "previous_response_id"), (status, answer["error"]["param"]))


if __name__ == "__main__":
    unittest.main()
