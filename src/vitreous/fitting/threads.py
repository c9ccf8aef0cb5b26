"""Threads: how many help. Beside other programs threads wait for each other: one may be several times as fast."""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

BETTER = 0.85  # of the time that more threads take: fewer have to be this much faster
LAYERS, REPEATS = 8, 3


def settled(seconds: Callable[[int], float] | None = None) -> int:
    """The number of threads that is fastest now, of all, half of them, and so on; torch computes with it from here on.
    `seconds` measures some work with a number of threads."""
    measure = seconds or _seconds
    best = num = torch.get_num_threads()
    fastest = measure(num) if num > 1 else 0.0
    while num > 1:
        num //= 2
        taken = measure(num)
        if taken < BETTER * fastest:
            best, fastest = num, taken
    torch.set_num_threads(best)
    return best


def _seconds(num: int) -> float:
    """Of layers such as a small ViT has; the median of a few rounds."""
    torch.set_num_threads(num)
    generator = torch.Generator().manual_seed(0)  # its own: the global one must not be drawn from
    tokens = torch.randn(1024, 256, generator=generator)
    weights = torch.randn(256, 256, generator=generator) / 16
    times = []
    for _ in range(REPEATS + 1):
        began, x = time.perf_counter(), tokens
        for _ in range(LAYERS):
            x = F.layer_norm(F.gelu(x @ weights), (256,))
        times.append(time.perf_counter() - began)
    return sorted(times[1:])[REPEATS // 2]
