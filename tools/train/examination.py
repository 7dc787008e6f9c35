"""Examines the network while it trains.

An answer counts if every token of it is the most likely one after those before it: that is exactly when greedy decoding writes it.
"""

import torch

import exam_items


class Exam:
    """Runs the development items through the network."""

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
        """The share of right answers of each group. wrong: a list that gets the conversations answered wrongly."""
        shares = {}
        for group, conversations in self.groups.items():
            results = [self.right(network, messages) for messages in conversations]
            if wrong is not None:
                wrong += [(group, messages) for messages, result in zip(conversations, results) if result is False]
            counted = [result for result in results if result is not None]
            shares[group] = round(sum(counted) / max(1, len(counted)), 3)
        return shares
