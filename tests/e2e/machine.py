"""How slow this machine is at the moment. The bounds of all waits in the tests grow by it, so that only a hang reaches them."""

import time

STEPS = 500_000
REFERENCE_S = 0.025  # what the steps take on a core of a small virtual machine that has nothing else to do
SLOWNESS_MAX = 20  # a hang is to end, too


def slowness():
    """1 on a quiet machine, more on a slower or a busy one: the time that a fixed piece of work takes, against the reference."""
    began = time.perf_counter()
    total = 0
    for number in range(STEPS):
        total += number & 7
    return min(SLOWNESS_MAX, max(1.0, (time.perf_counter() - began) / REFERENCE_S))
