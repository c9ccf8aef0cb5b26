"""Costs: of a prediction by the fitted model on this machine, and of fitting it."""

import statistics
import time
from dataclasses import dataclass

import torch

from vitreous import platforms
from vitreous.data.images import Picture
from vitreous.prediction.predictor import Predictor

TIMED = 5  # predictions to take the median of


@dataclass(frozen=True, kw_only=True)
class Costs:
    picture_s: float  # of one picture on the CPU, from pixels to probabilities
    peak_bytes: int | None  # of this process, if the system reports it
    peak_gpu_bytes: int | None = None  # None: no GPU


def costs(predictor: Predictor, picture: Picture) -> Costs:
    predictor(picture)  # the first is slower
    times = []
    for _ in range(TIMED):
        began = time.perf_counter()
        predictor(picture)
        times.append(time.perf_counter() - began)
    return Costs(
        picture_s=statistics.median(times),
        peak_bytes=platforms.peak_memory(),
        peak_gpu_bytes=torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None,
    )
