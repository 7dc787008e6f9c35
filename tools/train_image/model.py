"""The network: a transformer on patches of pixels that predicts the clean picture from a noisy one, a time and a caption.

This docstring is the contract with other implementations. [a, b] are shapes with the last index fastest. L = text_length,
W = width, H = heads, D = W / H, P = patch, S = image_size, G = S / P, N = G * G patches, C = P * P * 3 numbers of a patch.
linear(x, M) = x M^T for a matrix M [out, in]. No linear has a bias, except those that are named `bias` below.

norm(x)    = (x - mean) / sqrt(variance + 1e-6) over the last index; the variance is the mean of the squared deviations
rms(x, w)  = x / sqrt(mean(x^2) + 1e-6) * w over the last index
silu(x)    = x / (1 + exp(-x))

attention(x, layer), x [n, W]:
    q, k, v = the three W-wide parts, in this order, of linear(x, attn_qkv [3 W, W]); each seen as [n, H, D]
    q = rms(q, attn_q_norm [D]), k = rms(k, attn_k_norm [D])          for each head; the weights are shared by the heads
    out[i, h] = sum over j of softmax over j (q[i, h] . k[j, h] / sqrt(D) + bias[h, i, j]) v[j, h]
                                                    every token sees every token, no mask; the text encoder has no bias
    the result is linear(out [n, W], attn_output [W, W])
feed_forward(x, layer), x [n, W]:
    gate, up = the two halves, in this order, of linear(x, ffn_gate_up [2 F, W])
    the result is linear(silu(gate) * up, ffn_down [W, F])

The text encoder runs once for a caption. ids [L] are words.encode(caption).
    x = text_embd[ids] + text_pos                                                                   [L, W]
    for each of text_layers:  x = x + attention(rms(x, attn_norm [W]));  x = x + feed_forward(rms(x, ffn_norm [W]))
    text = rms(x, text_norm [W]),  pooled = mean of text over its L rows                            [L, W], [W]

The trunk runs once for a step. z [S, S, 3] is the noisy picture (row, column, RGB; -1 to 1 when clean), t from 0 (clean) to
1 (noise), z = (1 - t) * picture + t * noise.
    patch[gy * G + gx, (y * P + x) * 3 + channel] = z[gy * P + y, gx * P + x, channel]              [N, C]
    image = linear(patch, patch_embd [W, C]) + pos_row[gy] + pos_col[gx]                            [N, W]
    x = the rows text + type_embd[0], then the rows image + type_embd[1]                            [L + N, W]
    T = time_frequencies;  e[i] = cos(1000 t f[i]),  e[T/2 + i] = sin(1000 t f[i]),  f[i] = 10000^(-i / (T/2)),  i < T/2
    c = silu(linear(silu(linear(e, time_in [W, T])), time_out [W, W]) + linear(pooled, pool [W, W]))          [W]
    m = linear(c, mod [6 W, W]) + mod bias                                                          [6 W]
    for each of layers:
        for text rows m' = m + mod_table[0], for image rows m' = m + mod_table[1]; mod_table [2, 6 W] is the layer's own
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = the six W-wide parts of m', in this order
        bias[h, i, j] = attn_bias[o, h], with the layer's attn_bias [(2 G - 1)^2 + 3, H] and, for the query i and the key j,
            o = (gy_i - gy_j + G - 1) * (2 G - 1) + (gx_i - gx_j + G - 1)   if both are image rows
            o = (2 G - 1)^2 + 0, 1, 2       if i, j are text and text; text and image; image and text
        x = x + gate_a * attention(norm(x) * (1 + scale_a) + shift_a)
        x = x + gate_f * feed_forward(norm(x) * (1 + scale_f) + shift_f)
    shift, scale = the two W-wide parts of linear(c, final_mod [2 W, W]) + final_mod bias
    y = linear(norm(image rows of x) * (1 + scale) + shift, output [C, W]) + output bias            [N, C]
    The predicted clean picture is y in the layout of `patch`, not clamped.
"""

import dataclasses
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

import words

EPSILON = 1e-6


@dataclasses.dataclass(frozen=True)
class Shape:
    image_size: int = 64
    patch: int = 8
    width: int = 192
    layers: int = 6
    heads: int = 6
    feed_forward: int = 512
    text_length: int = words.TEXT_LENGTH
    text_layers: int = 2
    time_frequencies: int = 256
    words: int = len(words.WORDS)

    @property
    def grid(self):
        return self.image_size // self.patch

    @property
    def patch_numbers(self):
        return self.patch * self.patch * 3


TINY = Shape(width=32, layers=2, heads=2, feed_forward=64, text_layers=1, time_frequencies=32)


def rms(x, weight):
    return F.rms_norm(x.float(), weight.shape, weight, EPSILON).to(x.dtype)


def norm(x):
    return F.layer_norm(x, x.shape[-1:], eps=EPSILON)


class Layer(nn.Module):
    """Attention and feed-forward, without their norms and modulation."""

    def __init__(self, shape):
        super().__init__()
        self.heads, self.head_width = shape.heads, shape.width // shape.heads
        self.attn_qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.attn_q_norm = nn.Parameter(torch.ones(self.head_width))
        self.attn_k_norm = nn.Parameter(torch.ones(self.head_width))
        self.attn_output = nn.Linear(shape.width, shape.width, bias=False)
        self.ffn_gate_up = nn.Linear(shape.width, 2 * shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def attend(self, x, bias=None):
        """bias: [heads, tokens, tokens], added to the scores."""
        # Written out: torch's fused attention has a slower backward pass on a CPU at these sizes.
        rows, length, width = x.shape
        q, k, v = self.attn_qkv(x).view(rows, length, 3, self.heads, self.head_width).permute(2, 0, 3, 1, 4)
        q = rms(q, self.attn_q_norm * self.head_width**-0.5).flatten(0, 1)
        k = rms(k, self.attn_k_norm).flatten(0, 1)
        scores = torch.bmm(q, k.transpose(1, 2))
        if bias is not None:
            scores = (scores.view(rows, self.heads, length, length) + bias.to(scores.dtype)).flatten(0, 1)
        weights = scores.softmax(-1).to(x.dtype)
        mixed = torch.bmm(weights, v.flatten(0, 1))
        return self.attn_output(mixed.view(rows, self.heads, length, self.head_width).transpose(1, 2).reshape(rows, length, width))

    def feed(self, x):
        gate, up = self.ffn_gate_up(x).chunk(2, -1)
        return self.ffn_down(F.silu(gate) * up)


class TextLayer(Layer):
    def __init__(self, shape):
        super().__init__(shape)
        self.attn_norm = nn.Parameter(torch.ones(shape.width))
        self.ffn_norm = nn.Parameter(torch.ones(shape.width))

    def forward(self, x):
        x = x + self.attend(rms(x, self.attn_norm))
        return x + self.feed(rms(x, self.ffn_norm))


class TrunkLayer(Layer):
    def __init__(self, shape):
        super().__init__(shape)
        self.mod_table = nn.Parameter(torch.zeros(2, 6 * shape.width))
        # At the start most heads prefer near patches, each to another degree, so that neighbours soon agree; a third prefers text.
        side = 2 * shape.grid - 1
        offset = torch.arange(side) - (shape.grid - 1.0)
        far = torch.hypot(offset[:, None], offset[None, :]).flatten()
        slopes = torch.tensor([2.0, 0.0, 1.0, 0.5, 0.0, 0.25]).repeat(shape.heads)[: shape.heads]
        text = torch.stack((torch.zeros_like(slopes), torch.zeros_like(slopes), torch.where(slopes > 0, -2.0, 1.0)))
        self.attn_bias = nn.Parameter(torch.cat((-far[:, None] * slopes, text)))

    def forward(self, x, modulation, length, offsets):
        """modulation: [rows, 6 width]; length: the number of text rows of x; offsets: the row of
        attn_bias for each pair of tokens."""
        parts = (modulation[:, None] + self.mod_table).to(x.dtype).chunk(6, -1)

        def each(part):  # [rows, 2, width] to [rows, tokens, width]
            return torch.cat((part[:, :1].expand(-1, length, -1), part[:, 1:].expand(-1, x.shape[1] - length, -1)), 1)

        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = map(each, parts)
        bias = self.attn_bias.index_select(0, offsets.flatten()).T.contiguous().view(self.heads, *offsets.shape)
        x = x + gate_a * self.attend(torch.addcmul(shift_a, norm(x), 1 + scale_a), bias)
        return x + gate_f * self.feed(torch.addcmul(shift_f, norm(x), 1 + scale_f))


def bias_offsets(shape):
    """Returns the row of attn_bias for each (query, key): [tokens, tokens]."""
    grid, length, side = shape.grid, shape.text_length, 2 * shape.grid - 1
    y, x = torch.arange(grid * grid) // grid, torch.arange(grid * grid) % grid
    offsets = torch.empty(length + grid * grid, length + grid * grid, dtype=torch.int64)
    offsets[:length, :length] = side * side
    offsets[:length, length:] = side * side + 1
    offsets[length:, :length] = side * side + 2
    offsets[length:, length:] = (y[:, None] - y + grid - 1) * side + x[:, None] - x + grid - 1
    return offsets


class Network(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        width = shape.width
        self.text_embd = nn.Parameter(torch.randn(shape.words, width) * 0.5)
        self.text_pos = nn.Parameter(torch.randn(shape.text_length, width) * 0.1)
        self.text = nn.ModuleList(TextLayer(shape) for _ in range(shape.text_layers))
        self.text_norm = nn.Parameter(torch.ones(width))
        self.patch_embd = nn.Linear(shape.patch_numbers, width, bias=False)
        self.pos_row = nn.Parameter(torch.randn(shape.grid, width) * 0.3)
        self.pos_col = nn.Parameter(torch.randn(shape.grid, width) * 0.3)
        self.type_embd = nn.Parameter(torch.randn(2, width) * 0.1)
        self.time_in = nn.Linear(shape.time_frequencies, width, bias=False)
        self.time_out = nn.Linear(width, width, bias=False)
        self.pool = nn.Linear(width, width, bias=False)
        self.mod = nn.Linear(width, 6 * width)
        self.blk = nn.ModuleList(TrunkLayer(shape) for _ in range(shape.layers))
        self.final_mod = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, shape.patch_numbers)
        for linear in (self.mod, self.final_mod, self.output):
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)
        half = shape.time_frequencies // 2
        self.register_buffer("frequencies", torch.exp(-math.log(10000.0) * torch.arange(half) / half), persistent=False)
        self.register_buffer("offsets", bias_offsets(shape), persistent=False)

    def encode(self, ids):
        """Returns (text [rows, L, width], pooled [rows, width]) of captions. ids: [rows, L]."""
        x = self.text_embd[ids] + self.text_pos
        if torch.is_autocast_enabled("cpu"):
            x = x.to(torch.get_autocast_dtype("cpu"))
        for layer in self.text:
            x = layer(x)
        text = rms(x, self.text_norm)
        return text, text.mean(1)

    def denoise(self, z, t, text, pooled):
        """Returns the predicted clean pictures. z: [rows, S, S, 3], t: [rows]."""
        shape, rows, grid, patch = self.shape, len(z), self.shape.grid, self.shape.patch
        patches = z.view(rows, grid, patch, grid, patch, 3).transpose(2, 3).reshape(rows, grid * grid, -1)
        places = (self.pos_row[:, None] + self.pos_col + self.type_embd[1]).flatten(0, 1)
        image = self.patch_embd(patches)
        x = torch.cat((text + self.type_embd[0].to(text.dtype), image + places.to(image.dtype)), 1)
        angles = 1000.0 * t[:, None] * self.frequencies
        time = self.time_out(F.silu(self.time_in(torch.cat((angles.cos(), angles.sin()), -1))))
        condition = F.silu(time + self.pool(pooled))
        modulation = self.mod(condition)
        for layer in self.blk:
            x = layer(x, modulation, shape.text_length, self.offsets)
        shift, scale = self.final_mod(condition)[:, None].chunk(2, -1)
        y = self.output(torch.addcmul(shift, norm(x[:, shape.text_length :]), 1 + scale))
        return y.float().view(rows, grid, grid, patch, patch, 3).transpose(2, 3).reshape(z.shape)

    def forward(self, z, t, ids):
        return self.denoise(z, t, *self.encode(ids))
