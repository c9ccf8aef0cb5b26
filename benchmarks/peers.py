"""Peers that need a word before they are imported: beside a CPU build of torch, torchvision lacks two operators that
its Python code names, and timm imports torchvision."""

from types import ModuleType

import torch

# Kept alive: with it the operators would go.
_OPERATORS = None if torch.cuda.is_available() else torch.library.Library("torchvision", "DEF")
if _OPERATORS is not None:
    for _name in ("nms", "qnms"):
        _OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def timm() -> ModuleType:
    import timm

    return timm


def transforms() -> ModuleType:
    """torchvision's."""
    from torchvision import transforms

    return transforms
