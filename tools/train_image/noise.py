"""The noise that a picture begins with: the same numbers for the same seed, here and in the daemon.

Number i of a draw is made by one call of Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011)
with the counter (offset, 0, i, 0) and the key (low 32 bits of the seed, high 32 bits). The first two of its four results, a
and b, give the number by Box and Muller, in double precision, rounded to float at the end:
    u = a * 2.3283064e-10 + 2.3283064e-10 / 2
    v = b * (2.3283064e-10 * 6.2831855) + 2.3283064e-10 * 6.2831855 / 2
    number = sqrt(-2 ln u) * sin(v)
The offset is 0 for the picture's first noise; later draws, if there are any, count up. This is the layout of PyTorch's CUDA
generator. Picture number k of a request has the seed + k. In a picture, i = (row * image_size + column) * 3 + channel.
"""

import torch

MASK = 0xFFFFFFFF
SCALE = 2.3283064e-10


def _multiply(a, b):
    """Returns the high and the low 32 bits of a * b. a: int below 2^32; b: int64 tensor of values below 2^32."""
    low = b * (a & 0xFFFF)
    middle = b * (a >> 16) + (low >> 16)
    return (middle >> 16) & MASK, ((middle << 16) | (low & 0xFFFF)) & MASK


def philox(counter, key):
    """Philox 4x32-10. counter: int64 [4, n], key: two ints; returns int64 [4, n]."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = _multiply(0xD2511F53, c0)
        high1, low1 = _multiply(0xCD9E8D57, c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return torch.stack((c0, c1, c2, c3))


def normal(seed, count, offset=0):
    """Returns `count` normally distributed floats. seed: 0 to 2^64 - 1."""
    index = torch.arange(count, dtype=torch.int64)
    zero = torch.zeros_like(index)
    a, b = philox(torch.stack((zero + offset, zero, index, zero)), (seed & MASK, seed >> 32))[:2].double()
    u = a * SCALE + SCALE / 2
    v = b * (SCALE * 6.2831855) + SCALE * 6.2831855 / 2
    return ((-2.0 * u.log()).sqrt() * v.sin()).float()
