#!/usr/bin/env python3
"""Writes the network as a GGUF file. README.md lists the keys and the tensors.

    export.py CHECKPOINT.pt OUT.gguf [--type F16]     the averaged weights of a checkpoint
    export.py --tiny SEED OUT.gguf                    random weights in a small shape, for tests
"""

import argparse
import dataclasses
import pathlib

import gguf
import torch

import model
import sample
import words

ARCHITECTURE = "uma-picture"
TYPES = {"Q8_0": gguf.GGMLQuantizationType.Q8_0, "F16": gguf.GGMLQuantizationType.F16, "F32": gguf.GGMLQuantizationType.F32}


def write(shape, weights, path, matrix_type="Q8_0"):
    """Writes weights {name: tensor} to a temporary name beside `path`, then renames."""
    temporary = path.with_suffix(".new")
    writer = gguf.GGUFWriter(temporary, ARCHITECTURE)
    writer.add_name("uma-picture")
    writer.add_description("Draws coloured shapes from a caption, 64x64 pixels: made by tools/train_image, see docs/IMAGE_MODEL.md")
    writer.add_license("apache-2.0")
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for name, value in dataclasses.asdict(shape).items():
        if name != "words":
            writer.add_uint32(f"{ARCHITECTURE}.{name}", value)
    writer.add_uint32(f"{ARCHITECTURE}.steps", sample.STEPS)
    writer.add_float32(f"{ARCHITECTURE}.guidance", sample.GUIDANCE)
    writer.add_float32(f"{ARCHITECTURE}.shift", sample.SHIFT)
    writer.add_string(f"{ARCHITECTURE}.prediction", "x")
    writer.add_array(f"{ARCHITECTURE}.words", words.WORDS)
    for name, weight in weights.items():
        is_matrix = weight.dim() == 2 and name.endswith(".weight")
        kind = TYPES[matrix_type if is_matrix else "F32"]
        data = gguf.quants.quantize(weight.detach().float().contiguous().numpy(), kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    temporary.rename(path)


def tiny(seed):
    """Returns a random network of model.TINY. All its weights are random, also those that training begins with at zero."""
    torch.manual_seed(seed)
    network = model.Network(model.TINY)
    for name, weight in network.named_parameters():
        if weight.dim() == 2 and name.endswith(".weight"):
            torch.nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
        elif not name.endswith("norm"):
            torch.nn.init.normal_(weight, std=0.3)
        else:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    return network


def main():
    parser = argparse.ArgumentParser(description="Writes the picture model as a GGUF file.")
    parser.add_argument("checkpoint", type=pathlib.Path, nargs="?", help="checkpoint of train.py")
    parser.add_argument("out", type=pathlib.Path, help="GGUF file")
    parser.add_argument("--type", choices=TYPES, default="Q8_0", help="type of the matrices (default Q8_0)")
    parser.add_argument("--tiny", type=int, metavar="SEED", help="write random weights in a small shape instead")
    options = parser.parse_args()
    if options.tiny is not None:
        network = tiny(options.tiny)
        write(network.shape, dict(network.named_parameters()), options.out, options.type)
    elif options.checkpoint:
        saved = torch.load(options.checkpoint)
        write(model.Shape(**saved["shape"]), saved["average"], options.out, options.type)
    else:
        parser.error("give a checkpoint or --tiny")


if __name__ == "__main__":
    main()
