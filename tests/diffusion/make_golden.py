#!/usr/bin/env python3
"""Computes small models with the structure of Stable Diffusion in PyTorch and writes what every part of them computes.

    tools/with_torch 'python3 -B tests/diffusion/make_golden.py > src/llm/picture/diffusion_golden.txt'

src/llm/picture/diffusion_graph_test.cpp makes the same weights, which follow from the tensors' names, and compares. The mathematics is
written here from the papers (Rombach et al. 2022; Radford et al. 2021; Ho et al. 2020) and the layers of the original
implementation, without looking at the C++ code's order of computation.

Lines: "model NAME", "tensor NAME SIZE...", "result NAME COUNT MEAN RMS SAMPLE...". Sizes are PyTorch's. The SAMPLES samples are at
equal distances, from 0 on.
"""

import math
import sys

import torch
import torch.nn.functional as F

SAMPLES = 48
TOKENS = 49_408
LENGTH = 77
TIME = 601.0
HEIGHT, WIDTH = 8, 16  # Of the latent picture.


def hashed(name, count):
    """Returns `count` numbers from -1 to 1 that follow from the name. The arithmetic is that of 32-bit unsigned integers."""
    seed = 2_166_136_261
    for byte in name.encode():
        seed = (seed ^ byte) * 16_777_619 & 0xFFFFFFFF
    x = (torch.arange(count, dtype=torch.int64) * 2_654_435_761 + seed) & 0xFFFFFFFF
    for factor in (0x45D9F3B, 0x45D9F3B):
        x = ((x ^ (x >> 16)) * factor) & 0xFFFFFFFF
    x = x ^ (x >> 16)
    return (x.double() / 2**31 - 1).float()


class Model:
    """The weights of a model, by the names in its file. Prints them as they are used for the first time."""

    def __init__(self, name):
        self.weights = {}
        print(f"model {name}")

    def weight(self, name, *sizes):
        if name in self.weights:
            return self.weights[name]
        print(f"tensor {name}", *sizes)
        numbers = hashed(name, math.prod(sizes)).reshape(sizes)
        if name.endswith("embedding.weight") or name.endswith("positional_embedding"):
            weight = 0.5 * numbers
        elif len(sizes) == 1:
            weight = 0.1 * numbers + (1.0 if name.endswith("weight") else 0.0)
        else:
            weight = numbers * math.sqrt(3 / math.prod(sizes[1:]))
        self.weights[name] = weight.double()
        return self.weights[name]

    def linear(self, name, x, width, bias=True):
        weight = self.weight(f"{name}.weight", width, x.shape[-1])
        return F.linear(x, weight, self.weight(f"{name}.bias", width) if bias else None)

    def layer_norm(self, name, x):
        width = x.shape[-1]
        return F.layer_norm(x, (width,), self.weight(f"{name}.weight", width), self.weight(f"{name}.bias", width), 1e-5)

    def group_norm(self, name, x, eps):
        channels = x.shape[1]
        return F.group_norm(x, 32, self.weight(f"{name}.weight", channels), self.weight(f"{name}.bias", channels), eps)

    def conv(self, name, x, channels, size=3, stride=1, padding=None, bias=True):
        weight = self.weight(f"{name}.weight", channels, x.shape[1], size, size)
        bias = self.weight(f"{name}.bias", channels) if bias else None
        return F.conv2d(x, weight, bias, stride, size // 2 if padding is None else padding)


def result(name, x):
    flat = x.reshape(-1)
    step = max(1, flat.numel() // SAMPLES)
    samples = [f"{value:.6g}" for value in flat[::step][:SAMPLES].tolist()]
    print(f"result {name} {flat.numel()} {flat.mean().item():.7g} {flat.square().mean().sqrt().item():.7g}", *samples)
    return x


def inputs(name, *sizes):
    return hashed(f"input {name}", math.prod(sizes)).reshape(sizes).double() * math.sqrt(3)


def attention(q, k, v, heads, causal=False):
    def split(x):
        return x.unflatten(-1, (heads, -1)).transpose(-3, -2)

    scores = split(q) @ split(k).transpose(-1, -2) / math.sqrt(q.shape[-1] // heads)
    if causal:
        scores = scores + torch.full(scores.shape[-2:], -math.inf, dtype=scores.dtype).triu(1)
    return (scores.softmax(-1) @ split(v)).transpose(-3, -2).flatten(-2)


# --- Text encoders


def clip_l(model, tokens, width, layers):
    """As Hugging Face's CLIPTextModel names it: the first family."""
    base = "cond_stage_model.transformer.text_model."
    x = model.weight(f"{base}embeddings.token_embedding.weight", TOKENS, width)[tokens]
    x = x + model.weight(f"{base}embeddings.position_embedding.weight", LENGTH, width)
    for i in range(layers):
        layer = f"{base}encoder.layers.{i}."
        h = model.layer_norm(f"{layer}layer_norm1", x)
        q, k, v = (model.linear(f"{layer}self_attn.{part}_proj", h, width) for part in "qkv")
        x = x + model.linear(f"{layer}self_attn.out_proj", attention(q, k, v, width // 64, causal=True), width)
        h = model.linear(f"{layer}mlp.fc1", model.layer_norm(f"{layer}layer_norm2", x), 4 * width)
        x = x + model.linear(f"{layer}mlp.fc2", h * torch.sigmoid(1.702 * h), width)
        result(f"text.encoder.layers.{i}.", x)
    return result("text", model.layer_norm(f"{base}final_layer_norm", x))


def open_clip(model, tokens, width, layers):
    """As OpenCLIP names it: the second family, which leaves the last layer out."""
    base = "cond_stage_model.model."
    x = model.weight(f"{base}token_embedding.weight", TOKENS, width)[tokens] + model.weight(f"{base}positional_embedding", LENGTH, width)
    for i in range(layers):
        layer = f"{base}transformer.resblocks.{i}."
        h = model.layer_norm(f"{layer}ln_1", x)
        weight = model.weight(f"{layer}attn.in_proj_weight", 3 * width, width)
        q, k, v = F.linear(h, weight, model.weight(f"{layer}attn.in_proj_bias", 3 * width)).chunk(3, -1)
        h = x + model.linear(f"{layer}attn.out_proj", attention(q, k, v, width // 64, causal=True), width)
        inner = F.gelu(model.linear(f"{layer}mlp.c_fc", model.layer_norm(f"{layer}ln_2", h), 4 * width))
        h = h + model.linear(f"{layer}mlp.c_proj", inner, width)
        if i + 1 < layers:
            x = result(f"text.encoder.layers.{i}.", h)
    return result("text", model.layer_norm(f"{base}ln_final", x))


# --- The network


class Network:
    base = "model.diffusion_model."

    def __init__(self, model, channels, multiples, is_first):
        self.model, self.channels, self.multiples, self.is_first = model, channels, multiples, is_first

    def residual(self, name, x, emb, channels):
        model = self.model
        h = model.conv(f"{name}in_layers.2", F.silu(model.group_norm(f"{name}in_layers.0", x, 1e-5)), channels)
        h = h + model.linear(f"{name}emb_layers.1", F.silu(emb), channels)[:, :, None, None]
        h = model.conv(f"{name}out_layers.3", F.silu(model.group_norm(f"{name}out_layers.0", h, 1e-5)), channels)
        if x.shape[1] != channels:
            x = model.conv(f"{name}skip_connection", x, channels, 1)
        return x + h

    def transformer(self, name, x, text):
        model, channels = self.model, x.shape[1]
        heads = 8 if self.is_first else channels // 64
        h = model.group_norm(f"{name}norm", x, 1e-6)

        def project(part, y):
            if self.is_first:
                return model.conv(f"{name}{part}", y, channels, 1)
            return model.linear(f"{name}{part}", y.permute(0, 2, 3, 1), channels).permute(0, 3, 1, 2)

        h = project("proj_in", h)
        height, width = h.shape[2:]
        h = h.flatten(2).transpose(1, 2)
        block = f"{name}transformer_blocks.0."
        for part, norm, keys in (("attn1", "norm1", None), ("attn2", "norm2", text)):
            normed = model.layer_norm(f"{block}{norm}", h)
            keys = normed if keys is None else keys
            q = model.linear(f"{block}{part}.to_q", normed, channels, False)
            k = model.linear(f"{block}{part}.to_k", keys, channels, False)
            v = model.linear(f"{block}{part}.to_v", keys, channels, False)
            h = h + model.linear(f"{block}{part}.to_out.0", attention(q, k, v, heads), channels)
        value, gate = model.linear(f"{block}ff.net.0.proj", model.layer_norm(f"{block}norm3", h), 8 * channels).chunk(2, -1)
        h = h + model.linear(f"{block}ff.net.2", value * F.gelu(gate), channels)
        return x + project("proj_out", h.transpose(1, 2).unflatten(2, (height, width)))

    def __call__(self, latent, time, text):
        model, base, first = self.model, self.base, self.channels
        frequencies = torch.exp(-math.log(10_000) * torch.arange(first // 2, dtype=torch.float64) / (first // 2))
        waves = torch.cat([torch.cos(time * frequencies), torch.sin(time * frequencies)])[None]
        emb = model.linear(f"{base}time_embed.2", F.silu(model.linear(f"{base}time_embed.0", waves, 4 * first)), 4 * first)
        result("unet.time", F.silu(emb))
        x, skipped, block = model.conv(f"{base}input_blocks.0.0", latent, first), [], 0
        skipped.append(result("unet.input_blocks.0.", x))
        for level, multiple in enumerate(self.multiples):
            block += 1
            x = self.residual(f"{base}input_blocks.{block}.0.", x, emb, multiple * first)
            x = self.transformer(f"{base}input_blocks.{block}.1.", x, text)
            skipped.append(result(f"unet.input_blocks.{block}.", x))
            if level + 1 < len(self.multiples):
                block += 1
                x = model.conv(f"{base}input_blocks.{block}.0.op", x, x.shape[1], stride=2)
                skipped.append(result(f"unet.input_blocks.{block}.", x))
        x = self.residual(f"{base}middle_block.0.", x, emb, x.shape[1])
        x = self.transformer(f"{base}middle_block.1.", x, text)
        x = result("unet.middle_block.", self.residual(f"{base}middle_block.2.", x, emb, x.shape[1]))
        block = 0
        for level, multiple in reversed(list(enumerate(self.multiples))):
            for i in range(2):
                name = f"{base}output_blocks.{block}."
                x = self.residual(f"{name}0.", torch.cat([x, skipped.pop()], 1), emb, multiple * first)
                x = self.transformer(f"{name}1.", x, text)
                if level > 0 and i == 1:
                    x = model.conv(f"{name}2.conv", F.interpolate(x, scale_factor=2, mode="nearest"), x.shape[1])
                result(f"unet.output_blocks.{block}.", x)
                block += 1
        x = model.conv(f"{base}out.2", F.silu(model.group_norm(f"{base}out.0", x, 1e-5)), 4)
        return result("predicted", x)


# --- Decoders and the encoder


def vae_residual(model, name, x, channels):
    h = model.conv(f"{name}.conv1", F.silu(model.group_norm(f"{name}.norm1", x, 1e-6)), channels)
    h = model.conv(f"{name}.conv2", F.silu(model.group_norm(f"{name}.norm2", h, 1e-6)), channels)
    if x.shape[1] != channels:
        x = model.conv(f"{name}.nin_shortcut", x, channels, 1)
    result(name.replace("first_stage_model", "vae"), x + h)
    return x + h


def vae_middle(model, name, x):
    channels, (height, width) = x.shape[1], x.shape[2:]
    x = vae_residual(model, f"{name}.block_1", x, channels)
    h = model.group_norm(f"{name}.attn_1.norm", x, 1e-6)
    q, k, v = (model.conv(f"{name}.attn_1.{part}", h, channels, 1).flatten(2).transpose(1, 2) for part in "qkv")
    h = attention(q, k, v, 1).transpose(1, 2).unflatten(2, (height, width))
    x = x + model.conv(f"{name}.attn_1.proj_out", h, channels, 1)
    result(name.replace("first_stage_model", "vae") + ".attn_1.", x)
    return vae_residual(model, f"{name}.block_2", x, channels)


def decoded(model, latent, channels):
    base = "first_stage_model.decoder."
    x = model.conv("first_stage_model.post_quant_conv", latent / 0.18215, 4, 1)
    x = result("vae.decoder.conv_in", model.conv(f"{base}conv_in", x, channels[-1]))
    x = vae_middle(model, f"{base}mid", x)
    for level in reversed(range(len(channels))):
        for i in range(2):
            x = vae_residual(model, f"{base}up.{level}.block.{i}", x, channels[level])
        if level > 0:
            x = model.conv(f"{base}up.{level}.upsample.conv", F.interpolate(x, scale_factor=2, mode="nearest"), channels[level])
            result(f"vae.decoder.up.{level}", x)
    x = model.conv(f"{base}conv_out", F.silu(model.group_norm(f"{base}norm_out", x, 1e-6)), 3)
    return result("picture", (x + 1) / 2)


def encoded(model, picture, channels):
    base = "first_stage_model.encoder."
    x = model.conv(f"{base}conv_in", 2 * picture - 1, channels[0])
    for level, width in enumerate(channels):
        x = vae_residual(model, f"{base}down.{level}.block.0", x, width)
        if level + 1 < len(channels):
            x = model.conv(f"{base}down.{level}.downsample.conv", F.pad(x, (0, 1, 0, 1)), width, stride=2, padding=0)
            result(f"vae.encoder.down.{level}", x)
    x = vae_middle(model, f"{base}mid", x)
    x = model.conv(f"{base}conv_out", F.silu(model.group_norm(f"{base}norm_out", x, 1e-6)), 8)
    mean, _ = model.conv("first_stage_model.quant_conv", x, 8, 1).chunk(2, 1)
    return result("encoded", mean * 0.18215)


def tae_decoded(model, latent, channels):
    """TAESD with its authors' numbers, in which the first layer has no weights."""
    x = F.relu(model.conv("1", torch.tanh(latent / 3) * 3, channels))
    layer = 3
    for stage in range(4):
        for _ in range(3 if stage < 3 else 1):
            h = F.relu(model.conv(f"{layer}.conv.0", x, channels))
            h = F.relu(model.conv(f"{layer}.conv.2", h, channels))
            x = F.relu(x + model.conv(f"{layer}.conv.4", h, channels))
            result(f"tae.{layer - 1}", x)
            layer += 1
        if stage < 3:
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            result(f"tae.{layer - 1}", x)
            x = model.conv(f"{layer + 1}", x, channels, bias=False)
            result(f"tae.{layer}", x)
            layer += 2
    return result("small_picture", result(f"tae.{layer - 1}", model.conv(f"{layer}", x, 3)))


def main():
    torch.set_grad_enabled(False)
    tokens = ((hashed("input tokens", LENGTH).double() + 1) / 2 * TOKENS).long().clamp(0, TOKENS - 1)
    channels = [32, 32, 64, 64]
    for name, encoder, width, layers, first, is_first in (("sd1", clip_l, 64, 2, 32, True), ("sd2", open_clip, 128, 3, 64, False)):
        model = Model(name)
        text = encoder(model, tokens, width, layers)
        latent = inputs("latent", 1, 4, HEIGHT, WIDTH)
        Network(model, first, [1, 2], is_first)(latent, TIME, text[None])
        decoded(model, latent, channels)
        if is_first:
            encoded(model, inputs("picture", 1, 3, 8 * HEIGHT, 8 * WIDTH), channels)
    tae_decoded(Model("tae"), inputs("latent", 1, 4, HEIGHT, WIDTH), 32)


if __name__ == "__main__":
    sys.exit(main())
