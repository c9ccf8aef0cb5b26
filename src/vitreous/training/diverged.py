"""Where a loss or a gradient that is not finite began: the step is computed once more, with an eye on every module."""

import re
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from vitreous.batch import Batch
from vitreous.objectives.base import Objective

PACKAGE = Path(__file__).resolve().parents[1]


def origin(objective: Objective, batch: Batch, progress: Tensor, autocast: AbstractContextManager[object]) -> str:
    """What ceased to be finite first; empty if everything is finite this time."""
    if not all(torch.isfinite(view).all() for view in batch.views):
        return "the pictures are not finite"
    with torch.autograd.set_detect_anomaly(True):  # which notes where each function was called
        with _watched(objective) as outputs, autocast:
            losses = objective(batch, progress)
        if outputs:
            return f"first in the output of {outputs[0]}"
        parts = [name for name, value in losses.items() if not torch.isfinite(value).all()]
        if parts:
            part = min(parts, key=lambda name: name == "loss")  # rather than the sum
            return "first in the loss" if part == "loss" else f"first in the part `{part}` of the loss"
        objective.zero_grad()
        function = _not_a_number_backwards(losses["loss"])
    if function:
        return f"first in the gradient of {function}"
    gradients = ((name, one.grad) for name, one in objective.named_parameters() if one.grad is not None)
    return next((f"in the gradient of {name}" for name, one in gradients if not torch.isfinite(one).all()), "")


@contextmanager
def _watched(objective: Objective) -> Iterator[list[str]]:
    """The modules whose output is not finite, in the order in which they end."""
    found: list[str] = []

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        if any(_is_bad(one) for one in tree_leaves(output) if isinstance(one, Tensor)):
            found.append(f"{names[module]} ({type(module).__name__})")

    names = {module: name for name, module in objective.named_modules() if name}
    hooks = [module.register_forward_hook(note) for module in names]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _is_bad(output: Tensor) -> bool:
    """What has no gradient may be infinite: masks are."""
    return bool((output.isnan() | (output.isinf() & output.requires_grad)).any())


def _not_a_number_backwards(loss: Tensor) -> str:
    """The first function that returns NaN in the backward pass, and the line of this package that called it."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            named = re.search(r"'(\w+?)(?:Backward\d*)?' returned nan", str(error))
            if named is None:
                raise
            calls = "".join(str(warning.message) for warning in told)
            places = re.findall(rf'File "{re.escape(str(PACKAGE))}/(\S+)", line (\d+)', calls)
            return named[1] + (f" ({places[-1][0]}, line {places[-1][1]})" if places else "")
    return ""
