"""Examines the network during training.

An answer is right if each of its tokens is the most likely one after those before it: then greedy decoding generates this
answer.
"""

import torch

import exam_items


class Exam:
    """Examines the network with the development items."""

    def __init__(self, chat, seed):
        self.chat = chat
        self.groups = exam_items.items("development", seed)

    def right(self, network, messages):
        ids, _ = self.chat.encode(messages)
        answer = len(self.chat.text(messages[-1]["content"])) + 1  # with the end token
        end = len(ids) - len(self.chat.newline)
        if end > network.shape.context:
            return None
        chosen = torch.zeros(1, end - 1, dtype=torch.bool)
        chosen[0, end - 1 - answer :] = True
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = network(torch.tensor([ids[: end - 1]]), torch.arange(end - 1)[None], chosen)
        return logits.argmax(-1).tolist() == ids[end - answer : end]

    @torch.no_grad()
    def run(self, network, wrong=None):
        """Returns the share of right answers of each group. Adds those with a wrong answer to the list `wrong`."""
        shares = {}
        for group, conversations in self.groups.items():
            results = [self.right(network, messages) for messages in conversations]
            if wrong is not None:
                wrong += [(group, messages) for messages, result in zip(conversations, results) if result is False]
            counted = [result for result in results if result is not None]
            shares[group] = round(sum(counted) / max(1, len(counted)), 3)
        return shares
