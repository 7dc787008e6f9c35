"""The examination: questions and conversations that are not in the training data."""

import random

import dialogue

DEVELOPMENT_EACH = 2  # questions of each id for development; the others are for the test


def questions(part):
    """Returns the held-out questions about uma-serve and other things as a list of (id, question). part: "development" or
    "test"."""
    grouped = {}
    for line in dialogue.HELDOUT_QUESTIONS.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, question = line.split(" | ", 1)
            grouped.setdefault(name, []).append(question)
    items = []
    for name, asked in grouped.items():
        half = len(asked) // 2 if name == "unknown" else DEVELOPMENT_EACH
        items += [(name, question) for question in (asked[:half] if part == "development" else asked[half:])]
    return items


def recall(writer, turns_between):
    """Returns a conversation whose last question is about a statement of `turns_between` turns before."""
    writer.begin()
    name = writer.pick(list(writer.corpus.attributes))
    writer.tell(name)
    first = len(writer.messages)
    while len(writer.messages) < first + 2 * turns_between:
        known = dict(writer.told)
        mark = len(writer.messages)
        writer.turn()
        said_again = any(known[name].lower() in message["content"].lower() for message in writer.messages[mark:])
        if said_again or writer.told.get(name) != known[name]:
            del writer.messages[mark:]
            writer.told = known
    writer.ask(name)
    return writer.messages


def sums(writer, count):
    items = []
    for _ in range(count):
        writer.begin()
        writer.arithmetic()
        items.append(list(writer.messages))
    return items


def items(part, seed):
    """Returns groups of conversations, {group: [messages]}. The last message of each is the expected answer."""
    corpus = dialogue.Corpus(heldout=True)
    writer = dialogue.Writer(corpus, random.Random(f"{seed} exam {part}"))
    count = 150 if part == "test" else 40
    groups = {"uma-serve": [], "unknown": []}
    for name, question in questions(part):
        answer = dialogue.UNKNOWN if name == "unknown" else corpus.facts[name][0]
        group = "unknown" if name == "unknown" else "uma-serve"
        groups[group].append([{"role": "user", "content": question}, {"role": "assistant", "content": answer}])
    for label, (least, most) in {"recall 0-2": (0, 2), "recall 3-6": (3, 6), "recall 7-12": (7, 12), "recall 30-40": (30, 40)}.items():
        size = count if least < 30 else 20 if part == "test" else 13  # the long ones take a while
        groups[label] = [list(recall(writer, writer.rng.randrange(least, most + 1))) for _ in range(size)]
    groups["sums"] = sums(writer, count)
    return groups
