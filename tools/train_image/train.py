#!/usr/bin/env python3
"""Trains uma-picture from a seed and writes it as a GGUF file. ./train provides the libraries and starts it.

A batch follows from (seed, step) alone, so an interrupted run continues from its last checkpoint.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import random
import sys
import time

import torch

import drawing
import examine
import export
import model
import sample
import scenes
import words

BATCH = 32  # pictures
PARTS = 2  # of a batch, each computed by one thread; the result does not depend on the number of threads
# Muon for the matrices of the layers, AdamW for the rest (Jordan, 2024).
MUON_RATE, ADAM_RATE = 0.015, 2e-3
WARM_UP = 100  # steps
WEIGHT_DECAY = 0.02
# At first a caption leaves nothing of its picture open, and most pictures have one thing: the network learns what the words look like
# before it learns that a picture may be one of many. Both shares fall linearly over the first CURRICULUM steps.
CURRICULUM = 6000
SIMPLE = 0.8  # share of pictures with one thing at the start; then that of scenes.KINDS
PLAIN = 1.0, 0.25  # share of scenes whose caption leaves nothing open: at the start, at the end
DROPPED = 0.12  # share of captions that are left out, for guidance
# Times are uniform, then shifted to the noise: what is where, and in which colour, is decided at t > 0.9, where the caption is all that
# is known.
TIME_SHIFT = 4.0
TIME_MIN = 0.15  # the least time that the sampler meets with its 16 steps is 0.167
STEPS_MAX = 1_000_000
LOG_EVERY = 50  # steps
CHECKPOINT_EVERY = 120  # seconds
EXAMINED = {"known": 96, "H1": 16, "H2": 16, "H3": 16, "H4": 16}  # captions of one examination
EXAMINED_STEPS = 12


def make_batch(seed, step):
    """Returns the parts of a step's batch: (pictures from -1 to 1, captions' numbers, times, noise) of each."""
    rng = random.Random(f"{seed} batch {step}")
    early = max(0.0, 1.0 - step / CURRICULUM)
    simple = early * (SIMPLE - scenes.KINDS["single"]) / (1.0 - scenes.KINDS["single"])
    plain = PLAIN[1] + early * (PLAIN[0] - PLAIN[1])
    chosen = [scenes.scene(rng, kind="single" if rng.random() < simple else None, plain=rng.random() < plain) for _ in range(BATCH)]
    ids = torch.tensor([words.encode("" if rng.random() < DROPPED else scene.caption) for scene in chosen])
    generator = torch.Generator().manual_seed(rng.getrandbits(62))
    # One time from each of BATCH equally likely ranges: the mean loss of a step varies less.
    share = (torch.randperm(BATCH, generator=generator) + torch.rand(BATCH, generator=generator)) / BATCH
    times = TIME_SHIFT * share / (1 + (TIME_SHIFT - 1) * share)
    pictures = drawing.draw(chosen) * 2 - 1
    noise = torch.randn(pictures.shape, generator=generator)
    return list(zip(*(whole.chunk(PARTS) for whole in (pictures, ids, times, noise))))


def schedule(step, progress):
    """Returns the factor of the learning rate: linear warm-up, constant, then linear to 0 over the last 80 % of the run."""
    return min(1.0, (step + 1) / WARM_UP) * min(1.0, max(0.0, 1.0 - progress) / 0.8)


class Run:
    """The state of a training run: everything that a checkpoint holds."""

    def __init__(self, options):
        self.options = options
        torch.manual_seed(options.seed)
        self.network = model.Network(model.Shape())
        named = list(self.network.named_parameters())
        is_layer = {name: parameter.dim() == 2 and name.startswith(("blk.", "text.")) and name.endswith(".weight") for name, parameter in named}
        matrices = [p for name, p in named if is_layer[name]]
        self.optimizers = [
            *(torch.optim.Muon(matrices[at::PARTS], lr=MUON_RATE, weight_decay=WEIGHT_DECAY, momentum=0.95) for at in range(PARTS)),
            torch.optim.AdamW([p for name, p in named if not is_layer[name]], lr=ADAM_RATE, weight_decay=0.0, betas=(0.9, 0.98), fused=True),
        ]
        self.average = model.Network(model.Shape())  # moving average of the weights: what is examined and exported
        self.average.load_state_dict(self.network.state_dict())
        self.step, self.seconds, self.examinations = 0, 0.0, 0
        self.checkpoint_path, self.log_path = options.work / "checkpoint.pt", options.work / "log.jsonl"
        self.length = {"steps": options.steps} if options.steps else {"minutes": options.minutes}

    def progress(self):
        """Returns the share of the run that is done, from 0."""
        return self.step / self.options.steps if self.options.steps else self.seconds / (60.0 * self.options.minutes)

    def save(self):
        state = {"seed": self.options.seed, "length": self.length, "shape": dataclasses.asdict(self.network.shape), "step": self.step,
                 "seconds": self.seconds, "examinations": self.examinations, "network": self.network.state_dict(),
                 "average": self.average.state_dict(), "optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}
        torch.save(state, self.checkpoint_path.with_suffix(".new"))
        self.checkpoint_path.with_suffix(".new").rename(self.checkpoint_path)

    def load(self):
        """Continues from the checkpoint, if there is one."""
        if not self.checkpoint_path.exists():
            self.log_path.unlink(missing_ok=True)
            return
        saved = torch.load(self.checkpoint_path)
        sizes = [{name: weight.shape for name, weight in state.items()} for state in (saved["network"], self.network.state_dict())]
        if (saved["seed"], saved["length"]) != (self.options.seed, self.length) or sizes[0] != sizes[1]:
            sys.exit(f"train: {self.checkpoint_path} is of a run with seed {saved['seed']} and {saved['length']}, or of another network: "
                     f"remove {self.options.work} to start again")
        self.network.load_state_dict(saved["network"])
        self.average.load_state_dict(saved["average"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"]):
            optimizer.load_state_dict(state)
        self.step, self.seconds, self.examinations = saved["step"], saved["seconds"], saved["examinations"]
        lines = self.log_path.read_text(encoding="utf-8").splitlines(keepends=True)
        self.log_path.write_text("".join(line for line in lines if json.loads(line)["step"] <= self.step), encoding="utf-8")
        print(f"continuing from step {self.step}", flush=True)

    def _part(self, part):
        """Returns (times, loss of each picture, gradients) of a part of a batch."""
        pictures, ids, times, noise = part
        t = times[:, None, None, None]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            predicted = self.network((1 - t) * pictures + t * noise, times, ids)
        # The squared error of the velocity (z - x) / t, by way of the predicted picture x (Li and He, 2511.13720).
        losses = (predicted - pictures).square().mean((1, 2, 3)) / times.clamp(min=TIME_MIN).square()
        return times, losses.detach(), torch.autograd.grad(losses.mean(), list(self.network.parameters()))

    def learn(self):
        """Does one step. Returns (loss of each picture, its time, norm of the gradient)."""
        for optimizer, rate in zip(self.optimizers, [MUON_RATE] * PARTS + [ADAM_RATE]):
            for group in optimizer.param_groups:
                group["lr"] = rate * schedule(self.step, self.progress())
        times, losses, gradients = zip(*sample.pool().map(self._part, make_batch(self.options.seed, self.step)))
        for parameter, *parts in zip(self.network.parameters(), *gradients):
            parameter.grad = torch.stack(parts).mean(0)
        gradient = torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        list(sample.pool().map(lambda optimizer: optimizer.step(), self.optimizers))
        with torch.no_grad():
            keep = min(0.999, (1 + self.step) / (10 + self.step))
            torch._foreach_lerp_(list(self.average.parameters()), list(self.network.parameters()), 1.0 - keep)
        self.step += 1
        return torch.cat(losses), torch.cat(times), gradient.item()

    def examine(self):
        """Returns {split: {attribute: share right}} of the averaged weights on a few captions."""
        return {split: examine.rates(examine.examine(self.average, examine.prompts(split, count), steps=EXAMINED_STEPS, precise=False))
                for split, count in EXAMINED.items()}

    def export(self):
        export.write(self.average.shape, dict(self.average.named_parameters()), self.options.out, self.options.type)


def train(options):
    options.work.mkdir(parents=True, exist_ok=True)
    run = Run(options)
    run.load()
    print(f"{sum(p.numel() for p in run.network.parameters()):,} parameters, {run.length}", flush=True)
    started, saved_at, window = time.monotonic() - run.seconds, run.seconds, []
    for _ in range(STEPS_MAX):
        if run.progress() >= 1.0:
            break
        window.append(run.learn())
        run.seconds = time.monotonic() - started
        if not math.isfinite(window[-1][0].mean()):
            sys.exit(f"train: the loss of step {run.step} is {window[-1][0].mean()}, not a finite number")
        is_last = run.progress() >= 1.0
        is_examined = is_last or run.progress() * options.examinations >= run.examinations + 1
        if run.step % LOG_EVERY == 0 or is_examined:
            losses, times = torch.cat([entry[0] for entry in window]), torch.cat([entry[1] for entry in window])
            bins = [losses[(times >= low / 5) & (times < (low + 1) / 5)].mean().item() for low in range(5)]
            line = {"step": run.step, "pictures": run.step * BATCH, "seconds": round(run.seconds, 1), "loss": round(losses.mean().item(), 5),
                    "loss_by_t": [round(value, 4) if math.isfinite(value) else None for value in bins],
                    "gradient": round(sum(entry[2] for entry in window) / len(window), 4)}
            window = []
            if is_examined:
                run.examinations = int(run.progress() * options.examinations)
                line |= {"development": run.examine()}
                run.export()
                run.seconds = time.monotonic() - started
            with options.work.joinpath("log.jsonl").open("a", encoding="utf-8") as log:
                log.write(json.dumps(line) + "\n")
            print(json.dumps(line), f"{100 * run.progress():.0f} %", flush=True)
            if is_examined or run.seconds - saved_at >= CHECKPOINT_EVERY:
                run.save()
                saved_at = run.seconds
    run.export()
    print(f"wrote {options.out}", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Trains the picture model from a seed and writes it as a GGUF file.")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default 1)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=60.0, help="length of the run in minutes (default 60)")
    length.add_argument("--steps", type=int, help="length of the run in steps")
    parser.add_argument("--examinations", type=int, default=10, help="examinations during the run, each with an export (default 10)")
    parser.add_argument("--threads", type=int, help="threads (default: all processors)")
    parser.add_argument("--type", choices=export.TYPES, default="Q8_0", help="type of the file's matrices (default Q8_0)")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder of checkpoints and the log")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="GGUF file to write")
    options = parser.parse_args()
    sample.pool(options.threads)
    train(options)


if __name__ == "__main__":
    main()
