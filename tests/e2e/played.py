"""Models whose replies a test writes down (make_model --replies): a message that ends with a cue gets the reply of this cue."""

import json
import re
import subprocess

import test_templates
import uma

TEMPLATE = test_templates.TEMPLATES / "families" / "qwen3.jinja"
# What the template writes between a cue and the reply, with two control tokens. Behind the result of a tool there is more.
TAIL = "<|im_end|>\n<|im_start|>assistant\n"
RESULT_TAIL = "\n</tool_response>" + TAIL
PIECES_MAX = 100  # A reply ends at most 127 tokens behind its cue.


def pieces_of(text):
    """The text in at most PIECES_MAX pieces of whole words."""
    words = re.findall(r"\s*\S+|\s+", text)
    step = max(1, -(-len(words) // PIECES_MAX))
    return ["".join(words[at:at + step]) for at in range(0, len(words), step)]


def tokens_of_tail(tail):
    """All characters but those of the control tokens are tokens."""
    return len(tail.replace("<|im_end|>", "E").replace("<|im_start|>", "S"))


def write_model(path, replies, results=(), echoing=(), template=TEMPLATE):
    """Writes a model. `replies`: the text by its cue, four at most. `results`: those of the cues that end the result of a tool.
    `echoing`: further cues, each with a digit at its end; the last reply is theirs, with the digit in place of each "#"."""
    tokens, cues, played = {}, [], []
    for number, (cue, text) in enumerate(replies.items()):
        cues.append({"text": cue, "echo": "0", "reply": number})
        reply = []
        for i, part in enumerate(text.split("#") if echoing and number == len(replies) - 1 else [text]):
            reply += ([None] if i > 0 else []) + pieces_of(part)
        played.append({"after": tokens_of_tail(RESULT_TAIL if cue in results else TAIL), "tokens": reply})
        tokens.update(dict.fromkeys(piece for piece in reply if piece is not None))
    cues += [{"text": cue, "echo": cue[-1], "reply": len(replies) - 1} for cue in echoing]
    tokens = [token for token in tokens if token not in ("\n", *map(chr, range(0x21, 0x7f)))]
    assert not [token for token in tokens if token in RESULT_TAIL], "a word of a reply is a token in the tail"
    script = {"tokens": [{"text": "<|im_start|>", "is_control": True}, {"text": "<|im_end|>", "is_control": True},
                         *({"text": text} for text in [*(cue["text"] for cue in cues), *tokens])],
              "cues": cues, "replies": played, "end": "<|im_end|>"}
    source = path.with_suffix(".json")
    source.write_text(json.dumps(script))
    subprocess.run([uma.MAKE_MODEL, "--replies", source, "--chat-template-file", template, "--out", path], check=True,
                   timeout=uma.WAIT_S)
