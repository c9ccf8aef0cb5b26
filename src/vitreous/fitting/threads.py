"""Threads: how many help. Next to other programs, threads wait for each other: one may be several times as fast."""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

BETTER = 0.85  # fewer threads are used only if they take less than this share of the time
LAYERS, REPEATS = 8, 3


def settled(seconds: Callable[[int], float] | None = None) -> int:
    """Set torch to the number of threads that is fastest now, of all, half of them, and so on, and return it. `seconds`
    times some work with a number of threads."""
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
    """Times layers such as those of a small ViT; the median of a few rounds."""
    torch.set_num_threads(num)
    generator = torch.Generator().manual_seed(0)  # its own: the global one must not change
    tokens = torch.randn(1024, 256, generator=generator)
    weights = torch.randn(256, 256, generator=generator) / 16
    times = []
    for _ in range(REPEATS + 1):
        began, x = time.perf_counter(), tokens
        for _ in range(LAYERS):
            x = F.layer_norm(F.gelu(x @ weights), (256,))
        times.append(time.perf_counter() - began)
    return sorted(times[1:])[REPEATS // 2]
