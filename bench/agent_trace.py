"""Sessions of coding agents as conversations: which requests an agent sends, after which others, with which messages.

A trace is a file of JSON lines, one a request, in the order of each session's time:
  session, agent      its session, and the agent or sub-agent in it that asks
  t, api_s            seconds since the session began, and until the reply was complete (null: unknown)
  prompt, generated   tokens
  blocks              the prompt as blocks of 64 tokens: runs [first, last] of ids. Equal ids of a session are equal tokens. What
                      is left of the prompt behind its last whole block is not in the trace, and is not sent
Everything here is a pure function of the trace.
"""

import dataclasses
import json
import random

BLOCK_TOKENS = 64
SYSTEM_SHARE = 15 / 16  # of a conversation's first prompt: system prompt and tools; the rest is the user's first text
FIELDS = {"session": str, "agent": int, "t": (int, float), "prompt": int, "generated": int, "blocks": list}
# Words of one syllable: one token each in models of make_model, and mostly one in others.
WORDS = [consonant + vowel for consonant in "bcdfghjklmnpqrstvwxz" for vowel in "aeiou"]
NO_TEXT = "ok"  # a message of the conversation for which the trace has no whole block


class TraceError(Exception):
    """A trace cannot be read. The message is shown to the user."""


@dataclasses.dataclass
class Request:
    session: str
    agent: int
    t: float
    api_s: float | None
    prompt_tokens: int  # as recorded
    generated_tokens: int
    blocks: tuple  # ids
    after: list = dataclasses.field(default_factory=list)  # requests whose replies it needs
    pause_s: float = 0.0  # as recorded, from the last of these replies until this request
    cuts: list = dataclasses.field(default_factory=list)  # index of the first block of each message: system, then user and assistant in turn


def read_trace(path):
    """Returns {session: [requests in order of time]}. Raises TraceError."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as failure:
        raise TraceError(f"the trace {path} cannot be read: {failure}") from None
    sessions = {}
    for number, line in enumerate(lines, 1):
        try:
            request = _read_request(json.loads(line))
        except ValueError as failure:
            raise TraceError(f"line {number} of {path} is not a request: {failure}") from None
        sessions.setdefault(request.session, []).append(request)
    if not sessions:
        raise TraceError(f"the trace {path} has no requests")
    return {name: sorted(session, key=lambda request: request.t) for name, session in sessions.items()}


def _read_request(row):
    if not isinstance(row, dict):
        raise ValueError("it must be an object")
    for name, kind in FIELDS.items():
        if not isinstance(row.get(name), kind):
            raise ValueError(f"{name} is {row.get(name)!r}")
    blocks = []
    for run in row["blocks"]:
        if not (isinstance(run, list) and len(run) == 2 and all(isinstance(end, int) for end in run) and 0 <= run[0] <= run[1] < 1 << 20):
            raise ValueError(f"blocks has {run!r}, must be runs [first, last]")
        blocks += range(run[0], run[1] + 1)
    if not blocks:
        raise ValueError("it has no blocks")
    return Request(row["session"], row["agent"], row["t"], row.get("api_s"), row["prompt"], row["generated"], tuple(blocks))


def choose(sessions, agents, requests):
    """Returns the first `requests` requests of each of the first `agents` sessions, with their dependences and messages.
    Raises TraceError."""
    if agents > len(sessions):
        raise TraceError(f"the trace has {len(sessions)} sessions, too few for {agents} agents")
    chosen = []
    for session in list(sessions.values())[:agents]:
        add_dependences(session)  # of the whole session: an agent that the limit cuts off has not done its work
        add_messages(session[:requests])
        chosen += session[:requests]
    return chosen


def add_dependences(session):
    """A request needs the reply to its own agent's last request, and those of agents that had done all their work when it was sent.
    The first one of a sub-agent needs the last reply of agent 0, which began it."""
    last_of = {request.agent: request for request in session}
    for number, request in enumerate(session):
        needed = {}  # agent → (end, its last request of these)
        for earlier in session[:number]:
            end = request.t if earlier.api_s is None else min(earlier.t + earlier.api_s, request.t)
            began_by = earlier.agent == 0 and request.agent not in needed
            if earlier.agent == request.agent or end < request.t and (began_by or last_of[earlier.agent] is earlier):
                needed[earlier.agent] = (end, earlier)
        request.after = [earlier for _, earlier in needed.values()]
        request.pause_s = request.t - max((end for end, _ in needed.values()), default=request.t)


def common(one, other):
    """The length of the longest common prefix of two sequences of the same type."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # The prefixes up to `low` are equal; those longer than `high` are not.
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def add_messages(session):
    """Cuts the prompts into messages. A prompt keeps the messages of the earlier prompt with which it has most blocks in common, as
    far as these are equal. If it goes on where that one ended, the reply comes first, and then the text of a user or a tool."""
    for number, request in enumerate(session):
        size = len(request.blocks)
        base, shared = None, 0
        for earlier in session[:number]:
            length = common(request.blocks, earlier.blocks)
            if base is None or length >= shared:
                base, shared = earlier, length
        if base is not None and shared == len(base.blocks):
            request.cuts = list(base.cuts)
            if size > shared:
                reply = min(max(round(base.generated_tokens / BLOCK_TOKENS), 1), size - shared - 1)
                request.cuts += [shared, shared + reply]
            continue
        request.cuts = [cut for number, cut in enumerate(base.cuts) if cut < shared or number == 0] if base else [0]
        # The message in which they part goes on with new text. The last message has to be a user's.
        if len(request.cuts) % 2:
            begin = max(shared, request.cuts[-1])
            request.cuts.append(min(begin + int((size - begin) * SYSTEM_SHARE), size - 1) if size > begin else size)


def block_text(session, block, words):
    """The words of a block: the same for the same ids."""
    return " ".join(random.Random(f"{session} {block}").choices(WORDS, k=words))


def messages_of(request, words, common_blocks=0):
    """Returns the request's messages for chat completions. A block has this many words. The first `common_blocks` of a session are the
    same in all sessions, as the tools and the system prompt of one program are."""
    texts = [block_text("" if block <= common_blocks else request.session, block, words) for block in request.blocks]
    messages = []
    for number, (begin, end) in enumerate(zip(request.cuts, [*request.cuts[1:], len(request.blocks)])):
        role = "system" if number == 0 else "user" if number % 2 else "assistant"
        messages.append({"role": role, "content": " ".join(texts[begin:end]) or NO_TEXT})
    return messages


def possible_reuse(prompts):
    """For each prompt, in the order in which they were sent: how many of its tokens an earlier prompt begins with, too. A server
    computes at least the last token, so that is not counted."""
    found = []
    for number, prompt in enumerate(prompts):
        longest = max((common(prompt, earlier) for earlier in prompts[:number]), default=0)
        found.append(min(longest, len(prompt) - 1))
    return found
