"""The objects of OpenAI's API that umad answers with, as the API reference defines them: their required and optional fields.

Facts from the API reference (chat completions, completions, responses, models, errors). A shape is a type, a set of constants,
a list with the shape of its elements, a dict of fields ("name?" may be absent), or a tuple of alternatives. Fields that no
shape names are refused, as a client's strict parser refuses them; exceptions are umad's own field "uma", and models.
"""

NULL = type(None)
REASONS = {"stop", "length", "tool_calls", "content_filter", "function_call"}

TOP_LOGPROB = {"token": str, "logprob": (float, int), "bytes": ([int], NULL)}
TOKEN_LOGPROB = {**TOP_LOGPROB, "top_logprobs": [TOP_LOGPROB]}
CHAT_LOGPROBS = ({"content": ([TOKEN_LOGPROB], NULL), "refusal?": ([TOKEN_LOGPROB], NULL)}, NULL)
TEXT_LOGPROBS = ({"tokens": [str], "token_logprobs": [(float, int, NULL)], "top_logprobs": ([(dict, NULL)], NULL), "text_offset": [int]}, NULL)

USAGE = {
    "prompt_tokens": int, "completion_tokens": int, "total_tokens": int,
    "prompt_tokens_details?": {"cached_tokens?": int, "audio_tokens?": int},
    "completion_tokens_details?": {"reasoning_tokens?": int, "audio_tokens?": int, "accepted_prediction_tokens?": int,
                                   "rejected_prediction_tokens?": int},
}

TOOL_CALL = {"id": str, "type": {"function"}, "function": {"name": str, "arguments": str}}
# reasoning_content is not OpenAI's: DeepSeek introduced it, and clients of local servers read it.
MESSAGE = {"role": {"assistant"}, "content": (str, NULL), "refusal": (str, NULL), "tool_calls?": [TOOL_CALL], "reasoning_content?": (str, NULL),
           "annotations?": list}
CHAT = {
    "id": str, "object": {"chat.completion"}, "created": int, "model": str, "usage?": USAGE, "system_fingerprint?": (str, NULL),
    "service_tier?": (str, NULL),
    "choices": [{"index": int, "message": MESSAGE, "finish_reason": REASONS, "logprobs": CHAT_LOGPROBS}],
}

TOOL_CALL_DELTA = {"index": int, "id?": str, "type?": {"function"}, "function?": {"name?": str, "arguments?": str}}
DELTA = {"role?": {"assistant"}, "content?": (str, NULL), "refusal?": (str, NULL), "tool_calls?": [TOOL_CALL_DELTA],
         "reasoning_content?": (str, NULL)}
CHAT_CHUNK = {
    "id": str, "object": {"chat.completion.chunk"}, "created": int, "model": str, "usage?": (USAGE, NULL), "system_fingerprint?": (str, NULL),
    "service_tier?": (str, NULL),
    "choices": [{"index": int, "delta": DELTA, "finish_reason": (REASONS, NULL), "logprobs?": CHAT_LOGPROBS}],
}

# The objects of a stream have the same shape; the reason is null in all but the last.
TEXT = {
    "id": str, "object": {"text_completion"}, "created": int, "model": str, "usage?": (USAGE, NULL), "system_fingerprint?": (str, NULL),
    "choices": [{"index": int, "text": str, "finish_reason": (REASONS, NULL), "logprobs": TEXT_LOGPROBS}],
}

STATUS = {"in_progress", "completed", "incomplete"}
OUTPUT_TEXT = {"type": {"output_text"}, "text": str, "annotations": list, "logprobs?": list}
INPUT_TEXT = {"type": {"input_text"}, "text": str}
REASONING_TEXT = {"type": {"reasoning_text"}, "text": str}
OUTPUT_MESSAGE = {"id": str, "type": {"message"}, "status": STATUS, "role": {"assistant"}, "content": [OUTPUT_TEXT]}
INPUT_MESSAGE = {"id": str, "type": {"message"}, "status?": STATUS, "role": {"user", "system", "developer"}, "content": [INPUT_TEXT]}
REASONING = {"id": str, "type": {"reasoning"}, "summary": list, "content?": [REASONING_TEXT], "status?": STATUS, "encrypted_content?": (str, NULL)}
FUNCTION_CALL = {"id?": str, "type": {"function_call"}, "call_id": str, "name": str, "arguments": str, "status?": STATUS}
FUNCTION_CALL_OUTPUT = {"id": str, "type": {"function_call_output"}, "call_id": str, "output": str, "status": STATUS}
OUTPUT_ITEM = (OUTPUT_MESSAGE, REASONING, FUNCTION_CALL)
ITEM = (*OUTPUT_ITEM, INPUT_MESSAGE, FUNCTION_CALL_OUTPUT)
FUNCTION_TOOL = {"type": {"function"}, "name": str, "parameters": (dict, NULL), "strict": (bool, NULL), "description?": (str, NULL)}
FORMAT = ({"type": {"text", "json_object"}}, {"type": {"json_schema"}, "name": str, "schema": dict, "strict?": (bool, NULL), "description?": str})
CACHE_MISS_REASONS = {"model_changed", "prompt_cache_key_changed", "tools_changed", "text_format_changed", "reasoning_effort_changed",
                      "verbosity_changed", "context_compacted", "input_changed", "service_tier_changed"}
RESPONSE = {
    "id": str, "object": {"response"}, "created_at": int, "status?": {*STATUS, "failed", "cancelled", "queued"}, "model": str,
    "error": ({"code": str, "message": str}, NULL), "incomplete_details": ({"reason?": {"max_output_tokens", "content_filter"}}, NULL),
    "instructions": (str, NULL), "metadata": (dict, NULL), "output": [OUTPUT_ITEM], "parallel_tool_calls": bool, "temperature": (float, int, NULL),
    "tool_choice": ({"auto", "none", "required"}, {"type": {"function"}, "name": str}), "tools": [FUNCTION_TOOL], "top_p": (float, int, NULL),
    "background?": (bool, NULL), "conversation?": ({"id": str}, NULL), "max_output_tokens?": (int, NULL), "previous_response_id?": (str, NULL),
    "reasoning?": ({"effort?": (str, NULL), "summary?": (str, NULL)}, NULL), "text?": {"format?": FORMAT, "verbosity?": (str, NULL)},
    "truncation?": ({"auto", "disabled"}, NULL), "store?": bool, "user?": (str, NULL),
    # Required by Open Responses.
    "completed_at": (int, NULL), "presence_penalty": (float, int), "frequency_penalty": (float, int), "top_logprobs": int,
    "max_tool_calls": (int, NULL), "service_tier": str, "safety_identifier": (str, NULL), "prompt_cache_key": (str, NULL),
    "usage?": ({"input_tokens": int, "input_tokens_details": {"cached_tokens": int}, "output_tokens": int,
                "output_tokens_details": {"reasoning_tokens": int}, "total_tokens": int}, NULL),
    "prompt_cache_diagnostics?": ({"type": {"cache_hit", "comparison_response_not_found", "unavailable"}},
                                  {"type": {"cache_miss"}, "reason": CACHE_MISS_REASONS, "cache_missed_tokens": int, "comparison_reusable_tokens?": int}),
}

# Behind `owned_by`: fields of Anthropic's API, OpenRouter, vLLM, llama.cpp and Ollama, from which clients learn the window.
MODEL = {"id": str, "object": {"model"}, "created": int, "owned_by": str, "type": {"model"}, "display_name": str, "created_at": str,
         "max_input_tokens": int, "max_tokens": int, "context_length": int, "max_model_len": int,
         "meta": {"n_ctx": int, "n_ctx_train": int, "n_params": int, "size": int},
         "state": {"unloaded", "loading", "ready", "failed"}, "capabilities": [str],
         "architecture": {"modality": str, "input_modalities": [str], "output_modalities": [str]},
         "modalities": {"input": [str], "output": [str]}, "supported_parameters": [str], "image_vectors?": {"shared", "projector"},
         "store?": str, "problem?": str, "memory_bytes?": int, "idle_unload_s": (float, int),
         "status": {"value": {"unloaded", "loading", "loaded"}, "progress?": (float, int), "failed?": bool}}
MODELS = {"object": {"list"}, "data": [MODEL], "has_more": bool, "first_id?": str, "last_id?": str}
ERROR = {"error": {"message": str, "type": str, "param": (str, NULL), "code": (str, NULL)}}


def mismatch(value, shape, place="$"):
    """Returns why `value` does not have the shape, with the place; None if it has."""
    if isinstance(shape, tuple):
        reasons = [mismatch(value, alternative, place) for alternative in shape]
        return None if None in reasons else reasons[0]
    if isinstance(shape, set):
        return None if any(value == constant for constant in shape) else f"{place} is {value!r}, not one of {sorted(shape)}"
    if isinstance(shape, type):
        is_right = isinstance(value, shape) and not (isinstance(value, bool) and shape is not bool)
        return None if is_right else f"{place} is {value!r}, no {shape.__name__}"
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{place} is {value!r}, no list"
        return next((reason for i, item in enumerate(value) if (reason := mismatch(item, shape[0], f"{place}[{i}]"))), None)
    if not isinstance(value, dict):
        return f"{place} is {value!r}, no object"
    known = {name.removesuffix("?") for name in shape}
    for name in value:
        if name not in known and name != "uma":
            return f"{place}.{name} is not in OpenAI's reference"
    for name, field in shape.items():
        if name.endswith("?") and name[:-1] not in value:
            continue
        if name.removesuffix("?") not in value:
            return f"{place}.{name} is missing"
        if reason := mismatch(value[name.removesuffix("?")], field, f"{place}.{name.removesuffix('?')}"):
            return reason
    return None


def of(value):
    """The shape that an object claims to have; None if the object is not OpenAI's, as the errors of Anthropic's and Ollama's APIs are not."""
    by_name = {"chat.completion": CHAT, "chat.completion.chunk": CHAT_CHUNK, "text_completion": TEXT, "model": MODEL, "list": MODELS,
               "response": RESPONSE}
    return by_name.get(value.get("object"), ERROR if isinstance(value.get("error"), dict) and value.get("type") != "error" else None)
