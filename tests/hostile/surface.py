"""The whole interface of the daemon: a valid request for every frame type and every route, and the limits of every field.

A text in angle brackets, such as "<session>", is a placeholder for a name. attackers.py replaces it by a session of the
socket's tenant, by an object of the HTTP tenant (<kept> is its conversation as a session), or by a new name. test_hostile.py
fails if the daemon serves a type, a route or a field that is not in these tables.
"""

import base64
import dataclasses

import pictures
import sounds

IMAGE = base64.b64encode(pictures.RED).decode()
AUDIO_PART = {"type": "input_audio", "input_audio": {"data": base64.b64encode(sounds.wav(sounds.tone(0.1, 440))).decode(), "format": "wav"}}
IMAGE_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + IMAGE}}
PARTS = ["one", IMAGE_PART, [{"type": "text", "text": "the dog"}, IMAGE_PART]]  # inputs of a request for vectors
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "strict": False,
                                         "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}
FLAT_TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}, "b": {"enum": ["x", "y"]}}, "required": ["a"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": SCHEMA}}
GRAMMAR = 'root ::= "a" [b-d]{1,3}'
USER = {"role": "user", "content": "the cat"}
HISTORY = [USER,
           {"role": "assistant", "content": "", "reasoning_content": "Look.",
            "tool_calls": [{"id": "call1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
           {"role": "tool", "tool_call_id": "call1", "name": "look", "content": "a dog"}]
ITEMS = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "the cat"}]},
         {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "I ask."}]},
         {"type": "function_call", "call_id": "call1", "name": "look", "arguments": "{}"},
         {"type": "function_call_output", "call_id": "call1", "output": "a dog"}]

# Values for the options of a generation. They are at the top level; over HTTP, some are under "uma".
SAMPLING = {"temperature": 0.5, "top_p": 0.9, "presence_penalty": 0.1, "frequency_penalty": 0.1, "seed": 7, "stop": ["never"],
            "logit_bias": {"15": 1, "16": False}}
SAMPLERS = {"top_k": 40, "min_p": 0.1, "repeat_penalty": 1.1, "repeat_last_n": 32, "typical_p": 0.9, "dry_multiplier": 0.8, "dry_base": 1.75,
            "dry_allowed_length": 2, "dry_penalty_last_n": -1, "dry_sequence_breakers": ["\n", ":"], "xtc_probability": 0.5,
            "xtc_threshold": 0.1, "mirostat": 2, "mirostat_tau": 5, "mirostat_eta": 0.1, "ignore_eos": False}
OWN = {**SAMPLERS, "class": "background", "deadline_ms": 20_000,
       "timeout_ms": 20_000, "target_ttft_ms": 100, "target_tbt_ms": 10, "split_reasoning": True, "grammar": GRAMMAR, "lora": []}
CHAT = {"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False, "chat_template_kwargs": {"enable_thinking": False},
        "reasoning_effort": "low", "response_format": FORMAT, "enable_thinking": True, "reasoning": {"effort": "low", "max_tokens": 2, "enabled": True},
        "thinking": {"type": "enabled", "budget_tokens": 2}, "thinking_budget": 2, "thinking_budget_tokens": 2, "thinking_token_budget": 2,
        "reasoning_budget": 2, "reasoning_budget_tokens": 2, "chat_template": "default", "documents": [{"text": "x"}]}
GENERATION = {**SAMPLING, **OWN, **CHAT, "stream": True, "progress": True, "logprobs": 2, "model": "tiny-register"}
OVER_HTTP = {**SAMPLING, "stream": True, "model": "tiny-register", "uma": OWN}
COMPARISON = {"prompt_cache_options": {"comparison_response_id": "chatcmpl-0123456789abcdef"}}
COMPLETION = {**OVER_HTTP, **SAMPLERS, **COMPARISON}

# By type: the required fields of a frame, and its options.
FRAMES = {
    "generate": ({"prompt": "the cat", "max_tokens": 4}, {**GENERATION, "session_id": "<session>", "messages": HISTORY}),
    "generate_stream": ({"session_id": "<session>", "max_tokens": 4}, GENERATION),
    "regenerate": ({"session_id": "<session>", "max_tokens": 4}, GENERATION),
    "create_session": ({"mode": "text", "ttl_s": 600},
                       {"model": "tiny-register", "system": "be brief", "name": "<name>", "on_full": "shift", "n_keep": 4,
                        "ephemeral": True, "public": True, "metadata": {"title": "t"}}),
    "append_input": ({"session_id": "<session>", "text": "the dog"}, {"messages": [USER, {"role": "user", "content": [IMAGE_PART]}]}),
    "cancel": ({"session_id": "<session>"}, {"target": "<import>"}),
    "end_session": ({"session_id": "<session>"}, {}),
    "fork_session": ({"session_id": "<session>"}, {"name": "<name>", "turn": -1, "metadata": {"title": "t", "tags": None}}),
    "update_session": ({"session_id": "<session>", "metadata": {"title": "t", "tags": None}}, {"name": "<name>"}),
    "rewind_session": ({"session_id": "<session>", "turn": 0}, {}),
    "touch": ({"session_id": "<session>"}, {}),
    "get_session": ({"session_id": "<session>"}, {}),
    "list_sessions": ({}, {"after": "<session>", "limit": 10, "order": "desc", "q": "t"}),
    "export_session": ({"session_id": "<session>", "kv": True}, {}),
    "import_session": ({}, {"name": "<name>"}),
    "import_data": ({"target": "<import>", "data": "dW1hc2Vzc24="}, {"last": True}),
    "embed_image": ({"data": IMAGE}, {"images": [{"data": IMAGE}, {"url": "data:image/png;base64," + IMAGE}], "path": "/etc/passwd",
                                      "url": "http://127.0.0.1:9/", "model": "pictures", "class": "background", "deadline_ms": 20_000}),
    "describe_image": ({"data": IMAGE, "query": "what", "max_tokens": 4}, {**GENERATION, "path": "/etc/passwd", "url": "file:///etc/passwd"}),
    "generate_image": ({"prompt": "a red circle", "model": "draws", "steps": 2},
                       {"negative_prompt": "a blue square", "width": 64, "height": 64, "n": 2, "guidance": 1.5, "cfg_scale": 2, "seed": 7,
                        "sampler": "euler_a", "schedule": "karras", "image": {"data": IMAGE}, "strength": 0.5, "partial_images": 1, "metadata": False, "class": "background", "deadline_ms": 20_000}),
    "embed": ({"texts": ["one", "two"], "model": "embeds"},
              {"texts": PARTS, "model": "pictures", "task": "query", "dimensions": 8, "normalize": False, "encoding_format": "base64",
               "long_input": "chunk", "class": "background", "deadline_ms": 20_000}),
    "rerank": ({"query": "where", "documents": ["one", {"text": "two"}], "model": "ranks"},
               {"top_n": 1, "return_documents": True, "long_input": "truncate", "class": "background", "deadline_ms": 20_000}),
    "load_model": ({"model": "embeds"}, {}),
    "unload_model": ({"model": "embeds"}, {}),
    "pull_model": ({"source": "embeds"}, {}),
    "models": ({}, {}),
    "metrics": ({}, {}),
    "trace": ({}, {"seconds": 2}),
    "ping": ({}, {}),
    "watch": ({"interval_ms": 100}, {"history_s": 60}),
    "get_receipt": ({}, {"reply": "<session>"}),
}


@dataclasses.dataclass(frozen=True)
class Route:
    method: str
    path: str
    body: dict | None = None  # None: the route takes no body
    options: dict = dataclasses.field(default_factory=dict)
    status: int = 200  # of the answer to this body


CHAT_BODY = {"messages": [USER], "max_tokens": 4}
RERANK = {"query": "where", "documents": ["one", "two"], "model": "ranks"}
RERANK_OPTIONS = {"top_n": 1, "return_documents": True, "uma": {"long_input": "truncate", "class": "background", "deadline_ms": 20_000}}

IMAGE_BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}}
BLOCKS = [
    {"role": "user", "content": [{"type": "text", "text": "the cat", "cache_control": {"type": "ephemeral"}}, IMAGE_BLOCK,
                                 {"type": "document", "title": "t", "context": "c", "source": {"type": "text", "data": "the dog"}},
                                 {"type": "search_result", "title": "t", "source": "s", "content": [{"type": "text", "text": "a dog"}]}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "Look.", "signature": "x"}, {"type": "server_tool_use"},
                                      {"type": "tool_use", "id": "call1", "name": "look", "input": {"at": "x"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call1", "is_error": True, "content": [IMAGE_BLOCK]}]},
    {"role": "system", "content": "be brief"},
]
MESSAGES = {"messages": BLOCKS, "system": [{"type": "text", "text": "be brief"}], "temperature": 0.5, "top_p": 0.9, "top_k": 40, "seed": 7,
            "stop_sequences": ["never"], "stream": True, "model": "tiny-register", "thinking": {"type": "enabled", "budget_tokens": 2},
            "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
            "tools": [{"name": "look", "description": "Looks.", "input_schema": TOOL["function"]["parameters"]},
                      {"type": "web_search_20250305", "name": "web_search"}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "diagnostics": {"previous_message_id": "msg_0123456789abcdef"}}
# Ollama's API.
OLLAMA_HISTORY = [{**USER, "images": [IMAGE]},
                  {"role": "assistant", "thinking": "Look.", "tool_calls": [{"function": {"name": "look", "arguments": {"at": "x"}}}]},
                  {"role": "tool", "tool_name": "look", "content": "a dog"}]
OLLAMA = {"model": "tiny-register:latest", "stream": False, "format": SCHEMA, "think": "low", "keep_alive": "5m", "logprobs": True,
          "top_logprobs": 2,
          "options": {"num_predict": 4, "num_ctx": 4096, "temperature": 0.5, "top_p": 0.9, **SAMPLERS,
                      "presence_penalty": 0.1, "frequency_penalty": 0.1, "seed": 7, "stop": ["never"]}}
FOUR = {"num_predict": 4}

ROUTES = (
    Route("POST", "/v1/chat/completions", CHAT_BODY,
          {**COMPLETION, **CHAT, "n": 2, "user": "me", "prompt_cache_key": "k", "metadata": {"session_id": "s"}, "logprobs": True, "top_logprobs": 2, "stream_options": {"include_usage": True},
           "max_completion_tokens": 4, "messages": [*HISTORY, {"role": "user", "content": [IMAGE_PART, {"type": "text", "text": "x"}]}]}),
    Route("POST", "/v1/images/embeddings", {"data": IMAGE}, {"images": [{"data": IMAGE}], "model": "tiny-register"}),
    Route("POST", "/v1/images/generations", {"prompt": "a red circle", "model": "draws", "steps": 2},
          {"n": 2, "size": "64x64", "response_format": "b64_json", "output_format": "png", "background": "auto", "stream": True,
           "partial_images": 1, "quality": "hd", "style": "vivid", "user": "me", "moderation": "low",
           "uma": {"negative_prompt": "a square", "guidance": 1.5, "seed": 7, "sampler": "Euler a", "schedule": "trailing", "metadata": False, "class": "background", "deadline_ms": 20_000}}),
    Route("POST", "/sdapi/v1/txt2img", {"prompt": "a red circle", "steps": 2, "override_settings": {"sd_model_checkpoint": "draws"}},
          {"negative_prompt": "a square", "width": 64, "height": 64, "cfg_scale": 2, "seed": -1, "batch_size": 2, "n_iter": 1,
           "sampler_name": "DPM++ 2M Karras", "scheduler": "Automatic"}),
    Route("POST", "/sdapi/v1/img2img", {"prompt": "a red circle", "steps": 2, "init_images": [IMAGE], "override_settings": {"sd_model_checkpoint": "draws"}},
          {"denoising_strength": 0.5, "width": 64, "height": 64, "seed": 7}),
    Route("GET", "/sdapi/v1/options"),
    Route("POST", "/sdapi/v1/options", {"sd_model_checkpoint": "draws"}),
    Route("GET", "/sdapi/v1/sd-models"),
    Route("GET", "/sdapi/v1/samplers"),
    Route("GET", "/sdapi/v1/schedulers"),
    Route("GET", "/sdapi/v1/progress"),
    Route("POST", "/sdapi/v1/interrupt", {}),
    Route("POST", "/v1/completions", {"prompt": "the cat", "max_tokens": 4},
          {**COMPLETION, "n": 2, "best_of": 2, "logprobs": 2, "echo": True, "prompt": [[5, 6], [7]], "grammar": GRAMMAR, "lora": [], "suffix": ""}),
    Route("POST", "/v1/messages", {"messages": [USER], "max_tokens": 4},
          {**MESSAGES, "thread": {"type": "continue", "previous_message_id": "msg_" + "0" * 48}}),
    Route("POST", "/v1/messages/count_tokens", {"messages": [USER]}, MESSAGES),
    Route("POST", "/v1/embeddings", {"input": ["one", "two"], "model": "embeds"},
          {"input": PARTS, "model": "pictures", "dimensions": 8, "encoding_format": "base64", "uma": {"task": "query", "normalize": False, "long_input": "chunk"}}),
    Route("POST", "/v1/rerank", RERANK, RERANK_OPTIONS),
    Route("POST", "/v2/rerank", RERANK, RERANK_OPTIONS),
    Route("POST", "/rerank", RERANK, RERANK_OPTIONS),
    Route("POST", "/v1/responses", {"input": "the cat", "max_output_tokens": 4},
          {**OVER_HTTP, **COMPARISON, "uma": {**OWN, "regenerate": False}, "tools": [FLAT_TOOL], "tool_choice": {"type": "function", "name": "look"}, "parallel_tool_calls": False,
           "instructions": "be brief", "previous_response_id": "<response>", "conversation": {"id": "<conversation>"}, "store": False,
           "metadata": {"a": "b"}, "truncation": "auto", "reasoning": {"effort": "low", "max_tokens": 2}, "background": True, "top_logprobs": 2, "n": 1,
           "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
           "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}, "input": ITEMS,
           "chat_template_kwargs": {"enable_thinking": False}}),
    Route("GET", "/v1/responses", status=426),
    Route("POST", "/v1/responses/input_tokens", {"input": "the cat"}, {"input": ITEMS, "instructions": "be brief", "tools": [FLAT_TOOL]}),
    Route("POST", "/v1/responses/compact", {"input": "the cat", "max_output_tokens": 4}, {"input": ITEMS, "instructions": "be brief", "previous_response_id": "<response>"}),
    Route("GET", "/v1/responses/<response>"),
    Route("GET", "/v1/responses/<response>?stream=true&starting_after=2"),
    Route("DELETE", "/v1/responses/<response>"),
    Route("POST", "/v1/responses/<response>/cancel", {}),
    Route("GET", "/v1/responses/<response>/input_items?limit=2&order=asc"),
    Route("POST", "/v1/conversations", {}, {"items": ITEMS[:1], "metadata": {"a": "b"}}),
    Route("GET", "/v1/conversations/<conversation>"),
    Route("POST", "/v1/conversations/<conversation>", {"metadata": {"a": "b"}}),
    Route("DELETE", "/v1/conversations/<conversation>"),
    Route("GET", "/v1/conversations/<conversation>/items?limit=2&order=asc"),
    Route("POST", "/v1/conversations/<conversation>/items", {"items": ITEMS[:1]},
          {"items": [{"role": "user", "content": [{"type": "input_image", "image_url": IMAGE_PART["image_url"]["url"]}]}]}),
    Route("GET", "/v1/conversations/<conversation>/items/<item>"),
    Route("DELETE", "/v1/conversations/<conversation>/items/<item>"),
    Route("GET", "/v1/sessions?limit=10&order=desc&q=t"),
    Route("POST", "/v1/sessions", {"mode": "text", "ttl_s": 600}, FRAMES["create_session"][1]),
    Route("POST", "/v1/sessions/import?name=<name>", "<file>"),
    Route("GET", "/v1/sessions/<kept>"),
    Route("PATCH", "/v1/sessions/<kept>", {"metadata": {"title": "t"}}, {"name": "<name>"}),
    Route("DELETE", "/v1/sessions/<kept>"),
    Route("POST", "/v1/sessions/<kept>/fork", {}, {"name": "<name>", "turn": 0, "metadata": {"title": "t"}}),
    Route("POST", "/v1/sessions/<kept>/rewind", {"turn": 0}),
    Route("POST", "/v1/sessions/<kept>/touch", {}),
    Route("GET", "/v1/sessions/<kept>/export"),
    Route("GET", "/v1/sessions/<kept>/receipts"),
    Route("GET", "/v1/receipts/<kept>"),
    Route("GET", "/v1/models"),
    Route("GET", "/v1/models/tiny-register"),
    Route("GET", "/v1/models/tiny-register/card", status=403),
    Route("PUT", "/v1/models/tiny-register/card", {"text": "path: tiny-register.gguf\n", "was": ""}, status=403),
    Route("GET", "/"),
    Route("HEAD", "/"),
    Route("GET", "/page.js"),
    Route("GET", "/page.css"),
    Route("GET", "/chunks/<name>", status=404),
    Route("GET", "/licences.txt"),
    Route("GET", "/api/version"),
    Route("HEAD", "/api/version"),
    Route("GET", "/api/tags"),
    Route("HEAD", "/api/tags"),
    Route("GET", "/api/ps"),
    Route("POST", "/api/show", {"model": "tiny-register"}, {"name": "tiny-register"}),
    Route("POST", "/api/chat", {"messages": [USER], "options": FOUR},
          {**OLLAMA, "messages": OLLAMA_HISTORY, "tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False}),
    Route("POST", "/api/generate", {"prompt": "the cat", "options": FOUR},
          {**OLLAMA, "system": "be brief", "raw": True, "images": [IMAGE], "suffix": "x", "template": "x", "context": [1]}),
    Route("POST", "/api/embed", {"input": ["one", "two"], "model": "embeds"}, {"truncate": False, "dimensions": 8, "keep_alive": 0}),
    Route("POST", "/api/embeddings", {"prompt": "one", "model": "embeds"}),
    Route("GET", "/models"),
    Route("POST", "/models/load", {"model": "embeds"}, status=403),
    Route("POST", "/models/unload", {"model": "embeds"}, status=403),
    Route("POST", "/api/pull", {"model": "x/y"}, {"name": "x/y", "stream": False}, status=403),
    Route("DELETE", "/api/delete", {"model": "embeds"}, {"name": "embeds"}, status=403),
    Route("POST", "/api/copy", {"source": "embeds", "destination": "y"}, status=403),
    Route("POST", "/api/create", {"model": "x"}, status=501),
    Route("POST", "/api/push", {"model": "x"}, status=501),
    Route("POST", "/tokenize", {"content": "the cat"}, {"add_special": True, "parse_special": False, "with_pieces": True, "model": "tiny-register"}),
    Route("POST", "/detokenize", {"tokens": [5, 6]}, {"model": "tiny-register"}),
    Route("POST", "/apply-template", {"messages": [USER]}, {**CHAT, "messages": HISTORY}),
    Route("POST", "/infill", {"input_prefix": "the cat", "input_suffix": "a dog"},
          {"input_extra": [{"filename": "a.h", "text": "x"}], "prompt": "is", "n_predict": 4, "temperature": 0.5, "top_p": 0.9,
           **SAMPLERS, "presence_penalty": 0.1, "frequency_penalty": 0.1, "seed": 7, "stop": ["never"],
           "stream": True, "grammar": GRAMMAR, "lora": [], "n_probs": 0}, status=400),
    Route("POST", "/completion", {"prompt": "the cat", "n_predict": 4},
          {"temperature": 0.5, "top_p": 0.9, **SAMPLERS, "seed": 7, "stop": ["never"], "stream": True, "parse_special": False, "logit_bias": {"5": 1}}),
    Route("GET", "/props"),
    Route("GET", "/health"),
    Route("GET", "/ready"),
    Route("GET", "/ready?database=required"),
    Route("GET", "/metrics"),
    Route("GET", "/v1/events?interval_ms=100"),
    Route("GET", "/v1/trace", status=403),
    Route("GET", "/v1/keys", status=403),
    Route("POST", "/v1/keys", {"name": "<name>"},
          {"tenant": "robots", "requests_per_minute": 60, "tokens_per_minute": 1000, "deadline_ms": 20_000, "admin": True}, status=403),
    Route("DELETE", "/v1/keys/<name>", status=403),
    Route("GET", "/v1/config", status=403),
)


def whole(least, most):
    return [least - 1, least, most, most + 1]


def number(least, most):
    return [least - 1e-6, least, most, most + 1e-6]


def text(least, most):
    """Returns texts of these lengths, and texts one byte beyond the limits."""
    return ["x" * length for length in (least - 1, least, most, most + 1) if length >= 0]


def repeated(element, *counts):
    return [[element] * count for count in counts]


YEAR_MS = 365 * 24 * 3600 * 1000
DEADLINE = whole(0, YEAR_MS)
INT32 = 2**31 - 1
FLAG = [0, "true", [True]]
MANY = 2048  # texts of an embedding request, documents of a reranking request

# Values around the limits of each field, by its name. A name with several meanings has the values of all.
FIELDS = {
    "reply": text(0, 128), "diagnostics": [{}, {"previous_message_id": None}, {"previous_message_id": 7}, 1], "previous_message_id": text(1, 256),
    "prompt_cache_options": [{}, {"comparison_response_id": ""}, {"comparison_response_id": []}, 1], "comparison_response_id": text(1, 256),
    "json_object": [True, False, "x"], "strict_schema": [True, False, "x"], "add_generation_prompt": [True, False, "x"],
    "continue_final_message": [True, False, "x"], "allowed_tools": [{}, {"mode": "auto", "tools": []}, [1]], "refusal": text(0, 1 << 16),
    "structured_outputs": [{}, {"choice": ["a"]}, {"regex": "("}, 1], "repetition_penalty": number(0, 100), "max_tool_calls": whole(0, INT32),
    "function_call": [{}, {"name": "f", "arguments": "{}"}, 1], "reasoning_format": ["none", "auto", 1],
    "generate": FLAG, "stream_id": text(0, 128), "response": ["x", {}, [1]], "previous_message_id": [*text(1, 256), "msg_" + "f" * 48],
    "id": text(1, 128), "type": ["", "dance", "x" * 65], "model": text(1, 128), "name": text(1, 128), "session_id": text(1, 128),
    "prompt": [*text(1, 1 << 16), [], [[]], [0], [-1], [INT32], [INT32 + 1], [[5]] * 65, ["x"] * 64], "text": text(0, 1 << 16),
    "messages": [[], *repeated(USER, 1, 2000), *repeated({"role": "user", "content": [IMAGE_PART] * 65}, 1)],
    "content": [[], *repeated({"type": "text", "text": "x"}, 1, 2000)], "role": ["", "king", "system", "tool"],
    "max_tokens": whole(-1, INT32), "max_completion_tokens": whole(-1, INT32), "max_output_tokens": whole(1, INT32),
    "temperature": number(0, 100), "top_p": number(0, 1), "top_k": whole(0, INT32), "min_p": number(0, 1), "repeat_penalty": number(0, 100),
    "repeat_last_n": whole(-1, INT32), "typical_p": number(0, 1), "dry_multiplier": number(0, 100), "dry_base": number(1, 100),
    "dry_allowed_length": whole(1, INT32), "dry_penalty_last_n": whole(-1, INT32), "xtc_probability": number(0, 1), "xtc_threshold": number(0, 1),
    "dry_sequence_breakers": [*([value] for value in text(1, 64)), *repeated("x", 0, 32, 33), "x", [1], ["\x00"]],
    "mirostat": whole(0, 2), "mirostat_tau": number(0, 100), "mirostat_eta": number(0, 1),
    "presence_penalty": number(-2, 2), "frequency_penalty": number(-2, 2), "seed": whole(0, 2**64 - 1),
    "stop": [*text(1, 1024), *repeated("x", 0, 16, 17)],
    "logit_bias": [{str(token): 1 for token in range(count)} for count in (0, 1023, 1024, 1025)]
    + [{"15": value} for value in (-101, -100, 100, 101, True, False, None)] + [{"-1": 1}, {"511": 1}, {"512": 1}, {str(INT32 + 1): 1}],
    "destination": text(1, 2048),
    "negative_prompt": text(0, 4000), "steps": whole(1, 150), "guidance": number(1, 30), "cfg_scale": number(1, 30),
    "width": whole(1, 1024), "height": whole(1, 1024), "partial_images": whole(0, 3), "batch_size": whole(1, 10), "n_iter": whole(1, 10),
    "size": ["auto", "64x64", "1024x1024", "0x0", "x", "64", "64x", "1025x1025", "-1x-1", "64x64x64", "9" * 40 + "x1"],
    "sampler_name": ["Euler", "k_euler_a", "LCM", "DDIM", " Karras", "", "x" * 65], "scheduler": ["Karras", "sgm", "", "x" * 65],
    "sampler": ["euler", "EULER A", "dpm++_2m", "ddim", "", "x" * 65], "schedule": ["discrete", "SGM Uniform", "fast", "", "x" * 65], "override_settings": [{}, {"sd_model_checkpoint": "nothing"}, {"sd_model_checkpoint": 7}],
    "enable_hr": FLAG, "mask": ["", "!", IMAGE],
    "init_images": [*repeated(IMAGE, 0, 1, 2), ["!"], [7], ["data:,x"], ["data:image/png;base64," + IMAGE]], "denoising_strength": number(0, 1),
    "image": [{}, {"data": "!"}, {"data": IMAGE}, {"data": "A" * (1 << 18)}, {"path": "/etc/passwd"}], "strength": number(0.01, 1),
    "sd_model_checkpoint": ["draws", "embeds", "nothing", "", "x" * 2000],
    "ignore_eos": FLAG, "regenerate": FLAG, "stream": FLAG, "progress": FLAG, "split_reasoning": FLAG, "ephemeral": FLAG, "public": FLAG, "kv": FLAG, "last": FLAG,
    "strict": FLAG, "echo": FLAG, "store": FLAG, "normalize": FLAG, "return_documents": FLAG, "parallel_tool_calls": FLAG,
    "include_usage": FLAG, "grammar": ["", "root ::=", "root ::= root", 'root ::= "a"{4096}', 'root ::= "a"{4097}', 'root ::= "' + "a" * (1 << 18),
                                       "root ::= ((()*)*)*", "root ::= (((){4096}){4096}){4096}", 'root ::= "\\U00110000"', "a ::= b\nroot ::= a"],
    "lora": [{}, [1], [{}], [{"name": "x", "id": 0}], *repeated({"id": 0}, 1, 16, 17), [{"name": "x" * 129}], [{"id": -1}]],
    "scale": number(-100, 100), "logprobs": whole(0, 20), "top_logprobs": whole(0, 20), "n": whole(1, 16), "best_of": whole(1, 16),
    "class": ["", "royal"], "deadline_ms": DEADLINE, "timeout_ms": DEADLINE,
    "target_ttft_ms": number(0, 3_600_000), "target_tbt_ms": number(0, 3_600_000),
    "response_format": [{"type": "text"}, {"type": "json_object"}, {"type": "song"}, {"type": "json_schema"}], "format": [{"type": "text"}, {}],
    "json_schema": [{}, {"name": "s", "schema": True}],
    "schema": [{}, {"type": "array", "items": {"type": "integer"}, "minItems": 1025}, {"type": "string", "maxLength": 4097},
               {"type": "string", "pattern": "^(((a{1,99}){1,99}){1,99})$"}, {"type": "string", "pattern": "^(a|a)*(a|a)*(a|a)*b$"},
               {"$ref": "#"}, {"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x"}}}, {"enum": list(range(5000))},
               {"allOf": [{"anyOf": [{"type": kind} for kind in ("string", "number", "null", "boolean")]}] * 40},
               {"type": "object", "required": [f"k{i}" for i in range(3000)]}, {"minimum": -2**63, "maximum": 2**63, "type": "integer"}],
    "tools": repeated(TOOL, 0, 2, 129)
    + [[{**TOOL, "function": {**TOOL["function"], "name": f"t{i}"}} for i in range(count)] for count in (128, 129)],
    "tool_choice": ["", "none", "required", {"type": "function", "function": {"name": "look"}}, {"type": "function", "name": "none"}],
    "tool_calls": [*repeated(HISTORY[1]["tool_calls"][0], 0, 128, 129)], "call_id": text(1, 256), "arguments": ["", "{", "[]", '{"a":' * 40],
    "function": [{}, {"name": "x" * 65}], "description": text(0, 1 << 14), "parameters": [{}, {"type": "string"}, {"$ref": "#"}],
    "chat_template_kwargs": [{"messages": []}, {f"k{i}": i for i in range(1000)}], "reasoning_effort": text(1, 64), "effort": text(1, 64),
    "prompt_cache_key": ["", 5, {}, "k" * 257, "\u0000"], "user": ["", 5, [], "u" * 257], "enable_thinking": FLAG, "enabled": FLAG, "budget_tokens": whole(0, INT32), "thinking_budget": whole(-1, INT32),
    "thinking_budget_tokens": whole(-1, INT32), "thinking_token_budget": whole(-1, INT32), "reasoning_budget": whole(-1, INT32),
    "reasoning_budget_tokens": whole(-1, INT32),
    "reasoning": [{}], "uma": [{}, {"session_id": "x"}, {"progress": True}], "stream_options": [{}],
    "after": [*text(1, 128), "17.s", "-1.s", "9" * 30 + ".s", "1."], "limit": whole(1, 10_000), "order": ["", "new"], "q": [*text(0, 256), "\u00c4 " * 60], "mode": ["", "song"], "ttl_s": whole(0, 2**53), "on_full": ["", "lose"], "n_keep": whole(0, INT32), "system": text(0, 1 << 16),
    "turn": [*whole(-1, INT32), *whole(0, INT32)], "target": text(1, 128), "data": ["", "A", "A===", "!", "data:,x", "data:image/png;base64,!", "A" * (1 << 18)],
    "path": ["", "/", "/etc/passwd", "../x", "/proc/self/mem", "/dev/zero", "x" * 5000],
    "url": ["", "file:///etc/passwd", "http://127.0.0.1:9/", "http://[::1]/", "http://169.254.169.254/", "ftp://x/", "https://user:a@b/",
            "x" * 70000],
    "input_audio": [{}, {"data": "", "format": "wav"}, {"data": "!", "format": "mp3"}, {"data": IMAGE, "format": "flac"}, {"data": "UklGRg==", "format": "x"}],
    "image_url": ["", {"url": ""}, {"url": "file:///dev/zero"}], "images": [*repeated({"data": IMAGE}, 0, 64, 65), ["!"], [IMAGE] * 65], "query": text(1, 1 << 16),
    "texts": [*text(1, 1 << 16), *repeated("x", 0, MANY, MANY + 1), [[]], [[-1]], [[INT32]], [[5] * 5000]],
    "input": [*text(1, 1 << 16), *repeated("x", 0, MANY, MANY + 1), [[5]], [[-1]], *repeated(ITEMS[0], 0, 1, 500), ITEMS * 40],
    "documents": [*repeated("x", 0, MANY, MANY + 1), [{}], [{"text": 1}]], "task": text(1, 128), "dimensions": whole(1, 64),
    "embd_normalize": whole(-1, 2), "output_dimension": whole(1, 64),
    "encoding_format": ["", "gold"], "long_input": ["", "eat"], "top_n": whole(1, MANY), "seconds": number(0, 3600), "interval_ms": whole(100, 10_000), "history_s": whole(0, 3600), "instructions": text(0, 1 << 16),
    "previous_response_id": ["", "resp_", "resp_" + "0" * 48, "resp_" + "g" * 48, "resp_" + "0" * 4000],
    "conversation": ["", "conv_", {"id": ""}, {"id": "conv_" + "0" * 32}, {}], "include": repeated("x", 0, 1, 5000),
    "thinking": [{"type": "disabled"}, {"type": ""}, *text(0, 1 << 16)], "source": [{"type": "file"}, {"type": "url", "url": "file:///etc/passwd"}],
    "title": text(0, 1 << 14), "context": [*text(0, 1 << 14), [], [1]], "is_error": FLAG, "tool_use_id": text(1, 256), "input_schema": [{}, {"$ref": "#"}],
    "stop_sequences": [*text(1, 1024), *repeated("x", 0, 16, 17)], "output_config": [{}, {"effort": "max"}], "disable_parallel_tool_use": FLAG,
    "metadata": FLAG + [{f"k{i}": "v" for i in range(count)} for count in (0, 16, 17)] + [{"k" * length: "v"} for length in (0, 64, 65)]
    + [{"k": "v" * length} for length in (0, 512, 513)] + [{"k": None}, {"k": 1}, {"\x00": "v"}, {"k": "\u0001\"\\" * 170}], "truncation": ["", "maybe"], "file_id": text(1, 64), "items": repeated(ITEMS[0], 0, 1, 500),
    "think": [*FLAG, "", "none", "x" * 65], "keep_alive": [-1, 0, "0s", "1h30m", "soon", "1e999h", [], 1e308], "options": [{}, {"num_gpu": 1}],
    "num_ctx": [-1, 0, 2**53], "num_predict": [-2, -1, 0, 1, INT32 + 1], "raw": FLAG, "truncate": FLAG, "background": FLAG,
    "tool_name": text(0, 128), "tool_call_id": text(0, 256), "suffix": text(0, 10), "template": text(0, 10), "namespace": text(0, 128),
    "input_prefix": text(0, 1 << 16), "input_suffix": text(0, 1 << 16), "filename": text(0, 5000), "n_probs": whole(0, 1), "n_predict": [-1, 0, 1, INT32 + 1],
    "input_extra": [{}, [1], [{}], *repeated({"text": "x"}, 0, 256, 257), [{"filename": "x" * 5000, "text": "x" * (1 << 16)}] * 4],
    "chat_template": ["default", "", "{{ x }}", *text(0, 1 << 16)], "documents": [[], [1], *repeated({"text": "x"}, 0, 1, 500)],
    "tokens": [*repeated(5, 0, 1, 5000), [-1], [INT32], [INT32 + 1], ["x"], [1e300], [[]]], "add_special": FLAG, "parse_special": FLAG,
    "was": text(0, 1 << 16), "tenant": text(1, 128), "requests_per_minute": whole(0, 10**9), "tokens_per_minute": whole(0, 10**9), "admin": FLAG,
    "with_pieces": FLAG, "encrypted_content": ["", "uma1.", "uma1.!.0", "uma1.YQ==.ca978112ca1bbdca", *text(0, 1 << 16)],
}
