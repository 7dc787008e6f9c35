"""The network: llama architecture (RMSNorm, rotary positions, grouped-query attention, SwiGLU, tied embeddings)."""

import dataclasses

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclasses.dataclass
class Shape:
    vocabulary: int = 1536
    width: int = 192
    layers: int = 4
    heads: int = 6
    kv_heads: int = 2
    feed_forward: int = 512
    context: int = 2048
    rope_base: float = 10000.0
    norm_epsilon: float = 1e-5

    @property
    def head_width(self):
        return self.width // self.heads


class Norm(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape.width))
        self.epsilon = shape.norm_epsilon

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon) * self.weight).to(x.dtype)


def rotate(x, cos, sin):
    """Rotates the halves of each head by the angles of the position. The exporter converts them to llama's order of pairs."""
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    return torch.cat((low * cos - high * sin, low * sin + high * cos), -1).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        kv_width = shape.kv_heads * shape.head_width
        self.attention_norm = Norm(shape)
        self.qkv = nn.Linear(shape.width, shape.width + 2 * kv_width, bias=False)
        self.attention_output = nn.Linear(shape.width, shape.width, bias=False)
        self.feed_forward_norm = Norm(shape)
        self.gate_up = nn.Linear(shape.width, 2 * shape.feed_forward, bias=False)
        self.down = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def attend(self, x, cos, sin, mask):
        # Not torch's fused attention, whose backward pass is four times slower on a CPU at these sizes.
        shape, (rows, length, _) = self.shape, x.shape
        kv, head, group = shape.kv_heads, shape.head_width, shape.heads // shape.kv_heads
        q, k, v = self.qkv(x).split([shape.width, kv * head, kv * head], -1)
        q = rotate(q.view(rows, length, shape.heads, head), cos, sin).transpose(1, 2) * head**-0.5
        k = rotate(k.view(rows, length, kv, head), cos, sin).transpose(1, 2)
        v = v.view(rows, length, kv, head).transpose(1, 2)
        scores = torch.bmm(q.reshape(rows * kv, group * length, head), k.reshape(rows * kv, length, head).transpose(1, 2))
        weights = (scores.view(rows * kv, group, length, length) + mask).softmax(-1).to(x.dtype)
        mixed = torch.bmm(weights.view(rows * kv, group * length, length), v.reshape(rows * kv, length, head))
        return self.attention_output(mixed.view(rows, shape.heads, length, head).transpose(1, 2).reshape(rows, length, shape.width))

    def forward(self, x, cos, sin, mask):
        x = x + self.attend(self.attention_norm(x), cos, sin, mask)
        gate, up = self.gate_up(self.feed_forward_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Network(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape)
        half = shape.head_width // 2
        frequencies = shape.rope_base ** (-torch.arange(half) / half)
        angles = torch.arange(shape.context)[:, None] * frequencies
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                inner = name.endswith(("attention_output.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.03 / (2 * shape.layers) ** 0.5 if inner else 0.03)

    def forward(self, ids, positions, chosen):
        """Returns logits [chosen.sum(), vocabulary] after the tokens that `chosen` marks. ids, positions, chosen: [rows, length]."""
        x = self.embedding(ids)
        if torch.is_autocast_enabled("cpu"):
            x = x.to(torch.get_autocast_dtype("cpu"))
        cos, sin = self.cos[positions][:, :, None], self.sin[positions][:, :, None]
        mask = torch.full((ids.shape[1],) * 2, -1e4, dtype=x.dtype).triu(1)
        for layer in self.layers:
            x = layer(x, cos.to(x.dtype), sin.to(x.dtype), mask)
        return F.linear(self.norm(x[chosen]), self.embedding.weight).float()
