#!/usr/bin/env python3
"""Trains uma-tiny from a seed and writes it as a GGUF file. ./train provides the libraries and starts it.

Every batch follows from (seed, step) alone, so an interrupted run continues from its last checkpoint with the same result.
"""

import argparse
import json
import math
import multiprocessing
import pathlib
import random
import sys
import time

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import dialogue
import examination
import export
import model
import tokenizer as chat_tokenizer

# Tokens of a row, tokens of a batch, and the share of such batches. Short rows teach the questions, long rows the memory.
BUCKETS = [(80, 4096, 0.42), (256, 4096, 0.38), (512, 4096, 0.14), (1024, 4096, 0.06)]
# Muon for the matrices of the layers, AdamW for the embedding and the norms (Jordan, 2024).
MUON_RATE, ADAM_RATE = 0.02, 4e-3
WARM_UP = 100  # steps
WEIGHT_DECAY = 0.02
CHECKPOINT_EVERY = 500  # steps
EXAMINE_EVERY = 1000  # steps


class Batches:
    """Makes the batch of a step. Each process has one."""

    def __init__(self, seed, tokenizer_path, context):
        self.seed = seed
        self.chat = chat_tokenizer.Chat(Tokenizer.from_file(str(tokenizer_path)))
        self.corpus = dialogue.Corpus()
        self.context = context

    def row(self, writer, rng, length):
        """Returns one conversation of `length` + 1 tokens: (ids, positions, learn)."""
        ids, learn = [], []
        while len(ids) <= length:  # a conversation that is too short is written again
            wanted = length * (1.0 + 0.2 * rng.random()) + 20
            messages = writer.conversation(lambda messages: sum(7 + len(m["content"]) / 3.6 for m in messages) > wanted)
            ids, learn = self.chat.encode(messages)
        ids, learn = ids[: length + 1], learn[: length + 1]
        # Half of the rows leave gaps in the positions between turns. So the model learns distances up to the whole context at
        # the cost of short rows (Zhu et al., "PoSE", 2023).
        positions, spare, gap = [], self.context - len(ids), 0
        stretched = rng.random() < 0.5
        for token in ids:
            if stretched and token == self.chat.start and rng.random() < 0.3:
                jump = int(spare * rng.random() ** 2)
                gap, spare = gap + jump, spare - jump
            positions.append(len(positions) + gap)
        return ids, positions, learn

    def __call__(self, step):
        rng = random.Random(f"{self.seed} batch {step}")
        length, tokens, _ = rng.choices(BUCKETS, [weight for _, _, weight in BUCKETS])[0]
        writer = dialogue.Writer(self.corpus, rng)
        rows = [self.row(writer, rng, length) for _ in range(tokens // length)]
        ids, positions, learn = (torch.tensor(column) for column in zip(*rows))
        return ids[:, :-1], positions[:, :-1], learn[:, 1:], ids[:, 1:]


_batches = None


def _begin_batches(*arguments):
    global _batches
    torch.set_num_threads(1)
    _batches = Batches(*arguments)


def _make_batch(step):
    return tuple(part.numpy() for part in _batches(step))


def schedule(step, steps):
    """Returns the factor of the learning rate at a step: linear warm-up, constant, then linear to 0 over the last 60 %."""
    return min(1.0, (step + 1) / WARM_UP) * min(1.0, (steps - step) / (0.6 * steps))


def train(options):
    out = options.work
    out.mkdir(parents=True, exist_ok=True)
    tokenizer_path = out / "tokenizer.json"
    if not tokenizer_path.exists():
        chat_tokenizer.train(options.seed).save(str(tokenizer_path))
    chat = chat_tokenizer.Chat(Tokenizer.from_file(str(tokenizer_path)))
    torch.manual_seed(options.seed)
    shape = model.Shape()
    network = model.Network(shape)
    matrices = [p for name, p in network.named_parameters() if p.dim() == 2 and name != "embedding.weight"]
    others = [p for name, p in network.named_parameters() if p.dim() != 2 or name == "embedding.weight"]
    optimizers = [
        torch.optim.Muon(matrices, lr=MUON_RATE, weight_decay=WEIGHT_DECAY, momentum=0.95),
        torch.optim.AdamW(others, lr=ADAM_RATE, weight_decay=0.0, betas=(0.9, 0.98), fused=True),
    ]
    rates = [MUON_RATE, ADAM_RATE]
    print(f"{sum(p.numel() for p in network.parameters()):,} parameters, {options.steps} steps", flush=True)

    checkpoint_path, log_path = out / "checkpoint.pt", out / "log.jsonl"
    begin, seconds_before, tokens = 0, 0.0, 0
    if checkpoint_path.exists():
        saved = torch.load(checkpoint_path)
        if (saved["seed"], saved["steps"]) != (options.seed, options.steps):
            sys.exit(f"train: {checkpoint_path} is for seed {saved['seed']} and {saved['steps']} steps, not {options.seed} and "
                     f"{options.steps}: remove {out} to start again")
        network.load_state_dict(saved["network"])
        for optimizer, state in zip(optimizers, saved["optimizers"]):
            optimizer.load_state_dict(state)
        begin, seconds_before, tokens = saved["step"], saved["seconds"], saved["tokens"]
        print(f"continuing from step {begin}", flush=True)
        lines = log_path.read_text(encoding="utf-8").splitlines(keepends=True)
        log_path.write_text("".join(line for line in lines if json.loads(line)["step"] <= begin), encoding="utf-8")
    else:
        log_path.unlink(missing_ok=True)

    exam = examination.Exam(chat, options.seed)
    started, losses = time.monotonic(), []
    pool = multiprocessing.get_context("spawn").Pool(1, _begin_batches, (options.seed, tokenizer_path, shape.context))
    window = 8  # batches made ahead
    ahead = [pool.apply_async(_make_batch, (step,)) for step in range(begin, min(begin + window, options.steps))]
    for step in range(begin, options.steps):
        ids, positions, learn, targets = (torch.from_numpy(part) for part in ahead.pop(0).get())
        if step + window < options.steps:
            ahead.append(pool.apply_async(_make_batch, (step + window,)))
        for optimizer, rate in zip(optimizers, rates):
            for group in optimizer.param_groups:
                group["lr"] = rate * schedule(step, options.steps)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = network(ids, positions, learn)
        loss = F.cross_entropy(logits, targets[learn])
        network.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            sys.exit(f"train: the loss of step {step} is {losses[-1]}, not a finite number")
        tokens += ids.numel()

        done = step + 1
        if done % 100 == 0 or done == options.steps:
            seconds = seconds_before + time.monotonic() - started
            line = {"step": done, "tokens": tokens, "seconds": round(seconds, 1), "loss": round(sum(losses) / len(losses), 4)}
            losses = []
            if done % EXAMINE_EVERY == 0 or done == options.steps:
                line |= {"development": exam.run(network)}
            if done % CHECKPOINT_EVERY == 0 or done == options.steps:
                state = {"seed": options.seed, "steps": options.steps, "step": done, "seconds": seconds, "tokens": tokens,
                         "network": network.state_dict(), "optimizers": [optimizer.state_dict() for optimizer in optimizers]}
                torch.save(state, checkpoint_path.with_suffix(".new"))
                checkpoint_path.with_suffix(".new").rename(checkpoint_path)
            with log_path.open("a", encoding="utf-8") as log:
                log.write(json.dumps(line) + "\n")
            left = (options.steps - done) * (seconds - seconds_before) / max(1, done - begin)
            print(json.dumps(line), f"{left / 60:.0f} min left", flush=True)
    pool.terminate()
    export.write(network, chat.tokenizer, options.out)
    print(f"wrote {options.out}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="random seed (default 1)")
    parser.add_argument("--steps", type=int, default=6500, help="training steps (default 6500)")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder of checkpoints and the log")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="GGUF file to write")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
