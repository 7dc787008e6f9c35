"""The forms of messages that the templates of families take, where they differ from those of OpenAI's API."""

import copy
import json

# A message in the neutral form has reasoning_content, calls whose arguments are objects, and content that may be "". In every form, the
# result of a call has the name of its function. The keys:
#   thoughts    the field that has the reasoning: "thinking", or "part", a part of the content; else reasoning_content
#   arguments   "text": the arguments of a call are JSON
#   ids         "kimi": functions.NAME:INDEX, "counted": "0", "1" and so on, over the whole conversation; else any nine letters or digits
#   alone       True: a message with calls and reasoning has no content
#   one_call    True: a message has one call, and the call's result follows it
#   calls       opening, a call, between two, closing: the template leaves calls out, so they are written into the content
#   functions   True: the tools are also a text in the variable "functions"
FORMS = {
    "openai": {},
    "arguments_as_text": {"arguments": "text"},
    "firefunction": {"functions": True},
    "harmony": {"thoughts": "thinking", "alone": True, "one_call": True},
    "one_call": {"one_call": True},
    "granite_3": {"calls": ("<|tool_call|>[", "%s", ", ", "]")},
    "smollm3": {"calls": ("", "<tool_call>%s</tool_call>", "\n", "")},
    "mistral": {"thoughts": "part"},
    "kimi": {"ids": "kimi"},
    "command": {"ids": "counted"},
}

# The families whose templates write tools, calls or thoughts.
FAMILIES = {
    "openai": (
        "apertus apriel_1_5 apriel_1_6 command_r_plus deepseek_v3_2 deepseek_v4 ernie4_5_thinking exaone4 functionary_3_1 "
        "functiongemma gemma4 glm_4_6 glm_4_7 glm_5_2 granite4 hermes_tools hunyuan_a13b "
        "jamba kimi_k3 lfm2 lfm2_5 llama4 minimax_m2 minimax_m3 mirothinker mistral_v11 mistral_v13 mistral_v3 "
        "nemotron_3 nemotron_nano_v2 olmo3 phi4_mini qwen2_5 qwen3 qwen3_5 qwen3_coder qwen3_thinking seed_oss step_3_5 "
        "xlam2"),
    "arguments_as_text": "deepseek_v3_1 functionary_3_2",
    "firefunction": "firefunction_v2",
    "granite_3": "granite3_3",
    "smollm3": "smollm3",
    "harmony": "gpt_oss",
    "one_call": "gigachat_3 gigachat_3_1 internlm3 llama3_1",
    "mistral": "magistral",
    "kimi": "kimi_k2 kimi_k2_thinking",
    "command": "cohere2_moe command_r7b",
}


def form_of(family):
    """The name of a family's form; None for a family without calls and thoughts."""
    return next((form for form, families in FAMILIES.items() if family in families.split()), None)


def with_one_call(messages):
    """The messages, with a message for each call in front of the call's result."""
    divided, placed = [], set()
    results = {message["tool_call_id"]: message for message in messages if "tool_call_id" in message}
    for message in messages:
        calls = message.get("tool_calls", [])
        if message.get("tool_call_id") in placed:
            continue
        divided += [dict(message, tool_calls=calls[:1])] if calls else [message]
        for i, call in enumerate(calls):
            divided += [{"role": "assistant", "content": "", "tool_calls": [call]}] if i > 0 else []
            divided += [results[call["id"]]] if call["id"] in results else []
            placed.add(call["id"])
    return divided


def in_form(conversation, name):
    """A copy of a conversation of the neutral form in the form with this name."""
    form = FORMS[name]
    conversation = copy.deepcopy(conversation)
    if form.get("one_call"):
        conversation["messages"] = with_one_call(conversation["messages"])
    ids, names = {}, {}
    if form.get("functions") and "tools" in conversation:
        conversation["functions"] = json.dumps(conversation["tools"], ensure_ascii=False, indent=4)
    for message in conversation["messages"]:
        for call in message.get("tool_calls", []):
            index = len(ids)
            named = {"kimi": f"functions.{call['function']['name']}:{index}", "counted": str(index)}
            names[call["id"]] = call["function"]["name"]
            ids[call["id"]] = named.get(form.get("ids"), call["id"])
            call["id"] = ids[call["id"]]
            if form.get("arguments") == "text":
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        if "calls" in form and "tool_calls" in message:
            opening, each, between, closing = form["calls"]
            calls = [json.dumps({name: call["function"][name] for name in ("name", "arguments")}, ensure_ascii=False)
                     for call in message.pop("tool_calls")]
            message["content"] += ("\n" if message["content"] else "") + opening + between.join(each % call for call in calls) + closing
        if "tool_call_id" in message:
            message["name"] = names[message["tool_call_id"]]
            message["tool_call_id"] = ids[message["tool_call_id"]]
        if "reasoning_content" in message and "thoughts" in form:
            thoughts = message.pop("reasoning_content")
            if form["thoughts"] == "part":
                parts = [{"type": "thinking", "thinking": thoughts}, {"type": "text", "text": message["content"]}]
                message["content"] = [part for part in parts if part.get("text") != ""]
            else:
                message[form["thoughts"]] = thoughts
                if form.get("alone") and "tool_calls" in message:
                    message.pop("content")
    return conversation


def with_tools(calls):
    """The conversations of calls.json; those with "tools": true get its tools."""
    return {name: dict(given, tools=calls["tools"]) if "tools" in given else given for name, given in calls["conversations"].items()}
