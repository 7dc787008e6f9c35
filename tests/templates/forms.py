"""The forms of messages that the templates of families take, where they differ from those of OpenAI's API."""

import copy
import json

# A message in the neutral form has reasoning_content, calls whose arguments are objects, and content that may be "". The keys:
#   thoughts    the field that has the reasoning: "thinking", or "part", a part of the content; else reasoning_content
#   arguments   "text": the arguments of a call are JSON
#   ids         "kimi": functions.NAME:INDEX, "counted": "0", "1" and so on, over the whole conversation; else any nine letters or digits
#   alone       True: a message with calls and reasoning has no content
#   functions   True: the tools are also a text in the variable "functions"
FORMS = {
    "openai": {},
    "arguments_as_text": {"arguments": "text"},
    "firefunction": {"functions": True},
    "harmony": {"thoughts": "thinking", "alone": True},
    "mistral": {"thoughts": "part"},
    "kimi": {"ids": "kimi"},
    "command": {"ids": "counted"},
}

# The families whose templates write tools, calls or thoughts.
FAMILIES = {
    "openai": (
        "apertus apriel_1_5 apriel_1_6 command_r_plus deepseek_v3_2 deepseek_v4 ernie4_5_thinking exaone4 functionary_3_1 "
        "functiongemma gemma4 gigachat_3 gigachat_3_1 glm_4_6 glm_4_7 glm_5_2 granite3_3 granite4 hermes_tools hunyuan_a13b "
        "internlm3 jamba kimi_k3 lfm2 lfm2_5 llama3_1 llama4 minimax_m2 minimax_m3 mirothinker mistral_v11 mistral_v13 mistral_v3 "
        "nemotron_3 nemotron_nano_v2 olmo3 phi4_mini qwen2_5 qwen3 qwen3_5 qwen3_coder qwen3_thinking seed_oss smollm3 step_3_5 "
        "xlam2"),
    "arguments_as_text": "deepseek_v3_1 functionary_3_2",
    "firefunction": "firefunction_v2",
    "harmony": "gpt_oss",
    "mistral": "magistral",
    "kimi": "kimi_k2 kimi_k2_thinking",
    "command": "cohere2_moe command_r7b",
}


def form_of(family):
    """The name of a family's form; None for a family without calls and thoughts."""
    return next((form for form, families in FAMILIES.items() if family in families.split()), None)


def in_form(conversation, name):
    """A copy of a conversation of the neutral form in the form with this name."""
    form = FORMS[name]
    conversation = copy.deepcopy(conversation)
    ids = {}
    if form.get("functions") and "tools" in conversation:
        conversation["functions"] = json.dumps(conversation["tools"], ensure_ascii=False, indent=4)
    for message in conversation["messages"]:
        for call in message.get("tool_calls", []):
            index = len(ids)
            named = {"kimi": f"functions.{call['function']['name']}:{index}", "counted": str(index)}
            ids[call["id"]] = named.get(form.get("ids"), call["id"])
            call["id"] = ids[call["id"]]
            if form.get("arguments") == "text":
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        if "tool_call_id" in message:
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
