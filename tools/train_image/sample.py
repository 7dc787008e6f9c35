#!/usr/bin/env python3
"""Draws pictures with an exported GGUF file, in F32: the reference for other implementations.

    sample.py MODEL.gguf "a red circle left of a blue square" --out picture.png

The sampler is Euler on S steps from t = 1 (noise) to t = 0. In step i = 0 ... S - 1, t = time(i) and t' = time(i + 1), where
time(i) = shift * u / (1 + (shift - 1) * u), u = (S - i) / S, in double: more of the steps are where the noise is strong.
    x0, x1 = the network's pictures for no caption and for the caption;  x = clamp(x0 + guidance * (x1 - x0), -1, 1)
    z = x + (t' / t) * (z - x), which is z + (t' - t) * v with the velocity v = (z - x) / t
The last step gives x itself. Another caption may take the place of "no caption": that is the negative prompt. With a guidance
of 1, x0 is not needed. z begins as noise.normal(seed). A value of -1 to 1 becomes the level floor(127.5 * (value + 1) + 0.5).
"""

import argparse
import concurrent.futures
import os
import pathlib

import gguf
import torch

import model
import noise
import png
import words

BATCH = 32  # pictures that are computed together
STEPS, GUIDANCE, SHIFT = 16, 2.5, 3.0

# Threads that compute a batch each. torch itself gets one: its own threads meet after each operation, and beside other work
# they then wait most of the time.
_pool = None


def pool(threads=None):
    """Returns the pool of threads. The first call decides their number (default: all processors)."""
    global _pool
    if _pool is None:
        torch.set_num_threads(1)
        _pool = concurrent.futures.ThreadPoolExecutor(threads or os.cpu_count())
    return _pool


def load(path):
    """Returns the network of a GGUF file, its matrices dequantised."""
    reader = gguf.GGUFReader(path)

    def value(key):
        return reader.get_field(key).contents()

    assert value("general.architecture") == "uma-picture" and value("uma-picture.prediction") == "x", path
    assert value("uma-picture.shift") == SHIFT, path
    assert value("uma-picture.words") == words.WORDS, f"{path} has other words than words.py"
    names = [name for name in model.Shape.__dataclass_fields__ if name != "words"]
    network = model.Network(model.Shape(**{name: int(value(f"uma-picture.{name}")) for name in names}))
    weights = {tensor.name: torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy()) for tensor in reader.tensors}
    network.load_state_dict({name: weights[name].view(old.shape) for name, old in network.state_dict().items()})
    return network.eval()


def time_of(step, steps):
    share = (steps - step) / steps
    return SHIFT * share / (1 + (SHIFT - 1) * share)


def _generate(network, captions, seeds, steps, guidance, negative, precise):
    side = network.shape.image_size
    z = torch.stack([noise.normal(seed, side * side * 3) for seed in seeds]).view(-1, side, side, 3)
    branches = [captions] if guidance == 1 else [[negative] * len(captions), captions]
    ids = torch.tensor([words.encode(caption) for branch in branches for caption in branch])
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=not precise):
        text, pooled = network.encode(ids)
        for step in range(steps):
            t = torch.full((len(ids),), time_of(step, steps))
            x = network.denoise(z.repeat(len(branches), 1, 1, 1), t, text, pooled)
            if len(branches) == 2:
                without, x = x.chunk(2)
                x = without + guidance * (x - without)
            x = x.clamp(-1, 1)
            z = x + time_of(step + 1, steps) / time_of(step, steps) * (z - x)
    return z * 0.5 + 0.5


def generate(network, captions, seeds, steps=STEPS, guidance=GUIDANCE, negative="", precise=True):
    """Returns pictures [captions, S, S, 3], RGB from 0 to 1. `precise`: in F32, else in bf16."""
    parts = [slice(begin, begin + BATCH) for begin in range(0, len(captions), BATCH)]
    return torch.cat(list(pool().map(lambda part: _generate(network, captions[part], seeds[part], steps, guidance, negative, precise), parts)))


def main():
    parser = argparse.ArgumentParser(description="Draws pictures with an exported GGUF file.")
    parser.add_argument("model", type=pathlib.Path, help="GGUF file")
    parser.add_argument("captions", nargs="+", help="what to draw, a picture each")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("picture.png"), help="PNG file (default picture.png)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first picture (default 1); the others count up")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps (default {STEPS})")
    parser.add_argument("--guidance", type=float, default=GUIDANCE, help=f"guidance (default {GUIDANCE})")
    parser.add_argument("--negative", default="", help="what not to draw")
    parser.add_argument("--scale", type=int, default=4, help="pixels of the file for a pixel of the picture (default 4)")
    parser.add_argument("--raw", type=pathlib.Path, help="also write the pictures as text, a number from 0 to 1 in a line")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + len(options.captions))
    pictures = generate(load(options.model), options.captions, seeds, options.steps, options.guidance, options.negative)
    png.write(options.out, png.sheet(pictures, min(8, len(pictures))) if len(pictures) > 1 else pictures[0], options.scale)
    if options.raw:
        options.raw.write_text("".join(f"{number:.9g}\n" for number in pictures.flatten().tolist()), encoding="ascii")


if __name__ == "__main__":
    main()
