"""Splits: which pictures train, choose and test, by a seeded stratified choice that depends on nothing else."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.data.base import Labels, Source, Subset
from vitreous.keys import mix, purpose_code, sample_keys

Indices = NDArray[np.int64]


@dataclass
class Splits:
    """What training sees, what choices are made on, and what is reported."""

    train: Source
    val: Source | None
    test: Source | None
    notes: tuple[str, ...] = ()  # what was skipped when the data was opened


def strata(source: Source) -> Labels:
    """(N,) what every part should hold in proportion; one group where the targets tell of none."""
    groups = source.targets.strata
    return np.zeros(len(source), dtype=np.int64) if groups is None else groups


def _hashes(num: int, seed: int, purpose: str) -> Indices:
    """(num,) a random order's sort keys, by (seed, purpose, position) alone."""
    keys = sample_keys(seed, 0, torch.arange(num))
    return mix(keys ^ purpose_code(purpose)).numpy()


def _ranks(labels: Labels, seed: int, purpose: str) -> Indices:
    """(N,) each sample's place, from 0, in a random order of its class."""
    order = np.lexsort((_hashes(len(labels), seed, purpose), labels))
    starts = np.searchsorted(labels[order], labels[order])
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(labels)) - starts
    return ranks


def _offsets(labels: Labels, seed: int, purpose: str) -> NDArray[np.float64]:
    """(N,) a number in (0, 1) for each sample's class: which class comes first where not all can."""
    num_classes = int(labels.max()) + 1
    order = _hashes(num_classes, seed, purpose + " class").argsort()
    return ((order.argsort() + 0.5) / num_classes)[labels]


def held_out(labels: Labels, fraction: float, seed: int, purpose: str) -> tuple[Indices, Indices]:
    """Indices that stay and indices held out, both ascending; every class keeps at least one picture."""
    ranks, counts = _ranks(labels, seed, purpose), np.bincount(labels)[labels]
    # Sample r of a class of n stands at (r + offset) / n, so a first part of this order has all classes in proportion.
    order = ((ranks + _offsets(labels, seed, purpose)) / counts).argsort(kind="stable")
    order = order[ranks[order] < counts[order] - 1]
    num = max(1, round(fraction * len(labels))) if fraction > 0 else 0
    held = np.sort(order[:num])
    return np.setdiff1d(np.arange(len(labels)), held), held


def limited(labels: Labels, num: int, seed: int) -> Indices:
    """`num` ascending indices: one of each class, then in proportion. More include those of fewer."""
    ranks, counts = _ranks(labels, seed, "train limit"), np.bincount(labels)[labels]
    place = (ranks + _offsets(labels, seed, "train limit")) / counts
    return np.sort((place - 2.0 * (ranks == 0)).argsort(kind="stable")[:num])


def carve(source: Source, fraction: float, seed: int, purpose: str) -> tuple[Source, Source | None]:
    """The source without a stratified part, and that part (None where there is nothing to take)."""
    stay, held = held_out(strata(source), fraction, seed, f"{purpose} split")
    if not len(held):
        return source, None
    return Subset(source, stay), Subset(source, held, f"{source.name} ({purpose} part)")
