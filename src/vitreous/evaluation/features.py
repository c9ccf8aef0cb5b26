"""Frozen features of every picture of a set, collected once, for probes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from vitreous import platforms
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.evaluation.logits import device_of, labels_of, shown
from vitreous.models.base import Encoder
from vitreous.nn.graphed import Graphed
from vitreous.tasks.base import Task
from vitreous.tasks.classify import Classify, TanhHead

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class FeatureSet:
    values: Tensor  # (N, D) float32
    labels: Tensor  # (N,) int64; (N, K) if pictures have several
    ids: Tensor  # (N,) int64: indices of the pictures in the source

    def __len__(self) -> int:
        return len(self.values)

    def to(self, device: torch.device | str) -> "FeatureSet":
        """Features are collected on the CPU; neighbours and linear layers are faster on a GPU with float64."""
        if torch.device(device).type in platforms.WITHOUT_FLOAT64:
            return self
        return FeatureSet(self.values.to(device), self.labels.to(device), self.ids.to(device))

    def only(self, chosen: Tensor) -> "FeatureSet":
        """Those at some places, or where a mask is true."""
        return FeatureSet(self.values[chosen], self.labels[chosen], self.ids[chosen])


def pooled_features(encoder: Encoder, batches: Iterable[Batch], device: torch.device | str = "cpu") -> FeatureSet:
    """The encoder's pooled features of every picture; the encoder is moved to the device."""
    encoder.to(device)
    return _collected(Graphed(encoder, lambda encoder, images: encoder(images).pooled), batches)


def tanh_features(task: Task, batches: Iterable[Batch]) -> FeatureSet:
    """The hidden layer of a head that has one (paper 3.1), after its tanh, on the task's own device."""
    if not has_tanh_layer(task):
        raise UserError("this model's head has no hidden layer: probe the pooled features")
    return _collected(Graphed(task, lambda task, images: task.head.hidden(task.encoder(images).pooled).tanh()), batches)


def has_tanh_layer(task: Task) -> bool:
    return isinstance(task, Classify) and isinstance(task.head, TanhHead)


@torch.no_grad()
def _collected(features: Graphed[M, Tensor], batches: Iterable[Batch]) -> FeatureSet:
    values: list[Tensor] = []
    labels: list[Tensor] = []
    ids: list[Tensor] = []
    module = features.module
    device, was_training = device_of(module), module.training
    module.eval()
    try:
        for batch in shown(batches, "features"):
            values.append(features(batch.images.to(device)).float().cpu())
            labels.append(labels_of(batch).cpu())
            ids.append(batch.ids.cpu())
    finally:
        module.train(was_training)
    if not values:
        raise UserError("there are no pictures to take features of")
    return FeatureSet(torch.cat(values), torch.cat(labels), torch.cat(ids))
