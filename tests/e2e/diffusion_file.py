"""A small file with the structure of Stable Diffusion 1 and random weights."""

import array
import json
import math
import pathlib
import random
import struct

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "src/llm/picture/diffusion_golden.txt"
BLOCK = 65_536


def tensors(model):
    """Returns {name: sizes} of a model of the golden file."""
    found, is_own = {}, False
    for line in GOLDEN.read_text(encoding="ascii").splitlines():
        kind, *words = line.split()
        if kind == "model":
            is_own = words == [model]
        elif kind == "tensor" and is_own:
            found[words[0]] = [int(word) for word in words[1:]]
    return found


def numbers(name, sizes, values):
    """Values around 1 for what scales, around 0 for the rest, so that every layer's numbers stay near 1."""
    count = math.prod(sizes)
    if len(sizes) == 1:
        middle = 1 if name.endswith("weight") else 0
        return array.array("f", (middle + 0.1 * values[i % BLOCK] for i in range(count)))
    factor = 0.5 if name.endswith("embedding.weight") else math.sqrt(3 / math.prod(sizes[1:]))
    block = array.array("f", (factor * value for value in values[:min(count, BLOCK)]))
    return block * (count // len(block)) + block[:count % len(block)]


def write(path, model="sd1"):
    rng = random.Random(1)
    values = [rng.uniform(-1, 1) for _ in range(BLOCK)]
    head, data, at = {}, [], 0
    for name, sizes in tensors(model).items():
        data.append(numbers(name, sizes, values).tobytes())
        head[name] = {"dtype": "F32", "shape": sizes, "data_offsets": [at, at + len(data[-1])]}
        at += len(data[-1])
    text = json.dumps(head).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(data)
