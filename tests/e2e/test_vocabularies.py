"""Agents' loops with vocabularies of trained models, whose tokens cross the borders of a template: a reply is found again when a client
that keeps the conversation sends it back. Each family's template is put into the shipped model; with UMA_REAL_MODEL=FILE also into that
one. The marks of a template become control tokens, in place of the vocabulary's last words."""

import json
import os
import pathlib
import re
import signal
import tempfile

import gguf_file
import test_families
import test_http
import test_templates
import test_turns
import uma

MODELS = [uma.ROOT / "models/uma-tiny.gguf", *map(pathlib.Path, filter(None, [os.environ.get("UMA_REAL_MODEL")]))]
STEPS = 4
REUSED_MIN = 0.99  # Of the tokens of a prompt and its reply, by the next prompt.
ENDS_MAX = 2  # The last token is computed, and the token that ended the reply may not be the template's.
CONTROL = 3  # A type of tokens.
# Families for which uma-tiny writes what their template does not: calls whose first token begins in the prompt, or whose mark is that of
# an end; thoughts without end; answers without their recipient.
COMPUTED_AGAIN = {"lfm2_5", "gigachat_3", "kimi_k3", "functionary_3_2"}
TOOLS = [{"type": "function", "function": {
    "name": "write_file", "description": "Writes a file.",
    "parameters": {"type": "object",
                   "properties": {"path": {"type": "string", "enum": ["src/main.cpp", "a {b}.json", "x\n}"]}, "mode": {"type": "string", "enum": ["r", "w"]}, "new": {"type": "boolean"}},
                   "required": ["path", "mode", "new"]}}}]


def reordered(arguments):
    """The same arguments as another library writes them; those of a call that was cut stay."""
    try:
        json.loads(arguments)
    except json.JSONDecodeError:
        return arguments
    return json.dumps(dict(reversed(json.loads(arguments).items())), separators=(" , ", ":"))


def write_model(source, family, folder):
    """Writes the model `source` with the template of the family; its marks are control tokens, and the one behind replies ends them."""
    template = (test_templates.TEMPLATES / "families" / f"{family}.jinja").read_text(encoding="utf-8")
    model = gguf_file.GgufFile(source.read_bytes())
    model.set_text("tokenizer.chat_template", template)
    tokens, types = model.texts("tokenizer.ggml.tokens"), model.numbers("tokenizer.ggml.token_type")
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "REPLY"}]
    given = {**test_families.switches(family, {"messages": talk}), "bos_token": "", "eos_token": "</s>", "unix_s": 0}
    (written,) = test_templates.render_all([(template, given)])
    end = test_turns.MARK.search(written.get("text", "").rpartition("REPLY")[2])
    ends = {end.group()} if end else set()
    marks = {mark for mark in test_turns.MARK.findall(template) if re.search("[|｜[]|^<(start|end)_", mark)} | ends
    free = [i for i, kind in enumerate(types) if kind != CONTROL]
    for mark in sorted(marks.difference(tokens)):
        i = free.pop()
        tokens[i], types[i] = mark, CONTROL
    model.set_texts("tokenizer.ggml.tokens", tokens)
    model.set_numbers("tokenizer.ggml.token_type", types)
    for mark in ends:
        for key in ("eos", "eot"):
            model.set_number(f"tokenizer.ggml.{key}_token_id", tokens.index(mark))
    path = folder / f"{source.stem}-{family}.gguf"
    path.write_bytes(bytes(model))
    return path


class Vocabularies(test_http.HttpTest):
    flags = ("--http", "127.0.0.1:0", "--n-ctx", "2048", "--kv-cells", "4096", "--slots", "2")
    takes_long = True

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.families = test_turns.read_turns()
        cls.config = f"models_dirs: [{folder.name}]\n"
        super().setUpClass()

    def loop(self, model, entry):
        """For each prompt behind a reply that says something and is no cut call: the tokens of the prompt that were reused, and those that could be."""
        messages = [{"role": "system", "content": "You write files.\n\nBe brief.\n"}, {"role": "user", "content": "Write a file.\n"}]
        steps, known = [], None
        for step in range(STEPS):
            is_call = step % 2 == 0
            fields = {"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200} if is_call else {"max_tokens": 24}
            status, answer = self.request("POST", "/v1/chat/completions", {
                "model": model, "messages": messages, "tools": TOOLS, "temperature": 0, "thinking_budget": 6,
                "chat_template_kwargs": entry.get("arguments", {}), **fields})
            self.assertEqual(200, status, answer)
            usage, choice = answer["usage"], answer["choices"][0]
            said = choice["message"]
            if known is not None:
                steps.append((usage["prompt_tokens_details"]["cached_tokens"], min(known, usage["prompt_tokens"])))
            is_cut_call = choice["finish_reason"] == "length" and "tool_calls" in said
            says_nothing = not ((said["content"] or "").strip() or said.get("reasoning_content") or said.get("tool_calls"))
            known = None if is_cut_call or says_nothing else usage["prompt_tokens"] + usage["completion_tokens"]
            messages.append({key: value for key, value in said.items() if value is not None})
            for call in said.get("tool_calls", []):
                call["function"]["arguments"] = reordered(call["function"]["arguments"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "done {\n"})
            if messages[-1]["role"] == "assistant":
                messages.append({"role": "user", "content": "}\n And now?\n"})
        return steps

    def use(self, path):
        """Has the daemon read its folder of models until it knows this one."""
        self.daemon.signal(signal.SIGHUP)
        uma.until(lambda: path.stem in [each["id"] for each in self.request("GET", "/v1/models")[1]["data"]], f"{path.stem} is registered")

    def test_replies_that_come_back_are_found(self):
        for source in MODELS:
            for family, entry in self.families.items():
                with self.subTest(family=family, model=source.stem):
                    path = write_model(source, family, self.folder)
                    self.addCleanup(path.unlink, missing_ok=True)
                    self.use(path)
                    steps = self.loop(path.stem, entry)
                    self.request("POST", "/models/unload", {"model": path.stem})
                    path.unlink()  # Copies of a large model would fill a disk.
                    if entry["verdict"] == "kept" and family not in COMPUTED_AGAIN:
                        for reused, known in steps:
                            self.assertGreaterEqual(reused + ENDS_MAX, REUSED_MIN * known, steps)
                    else:
                        self.assertTrue(any(reused > 0 for reused, _ in steps), steps)
