"""Folding: what another format's code has as a constant, made up for in the weights, so that the function is the same.

Each part takes a card and its weights, and the card as that code runs it (`there`). Where the two differ in something
that weights can make up for, it returns both changed, with a line that says so; else it leaves them as they are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vitreous.models import ResNetSettings, ResNetStem, ViTSettings
from vitreous.weights.card import Card

Weights = Mapping[str, Tensor]
PATCHES = "encoder.stem.patches.linear"
TRUNKS = ("encoder.trunk.", "encoder.stem.trunk.")  # of a ResNet, and of a hybrid
LAST = {"tanh": "head.output."}  # the layer that makes the logits, by kind of head; of the others it is the head


@dataclass(frozen=True)
class Folded:
    card: Card
    weights: Weights
    notes: tuple[str, ...] = ()

    def then(self, weights: Weights, note: str, **changes: Any) -> "Folded":
        return Folded(replace(self.card, **changes), {**self.weights, **weights}, (*self.notes, note))


def fold_temperature(folded: Folded) -> Folded:
    """Logits that are divided by a temperature are those of a head divided by it."""
    card = folded.card
    if card.calibration is None or card.temperature == 1 or card.classifier is None:
        return folded
    start = LAST.get(card.classifier.head, "head.")
    last = {name: scaled(one, 1 / card.temperature) for name, one in folded.weights.items() if name.startswith(start)}
    return folded.then(
        last,
        f"the temperature of {card.temperature:.4g} is folded into the head",
        calibration=replace(card.calibration, temperature=1.0),
    )


def fold_normalisation(folded: Folded, there: Card) -> Folded:
    """Patches of pictures that are normalised another way are an affine change of the patch embedding."""
    card, before, after = folded.card, folded.card.preprocessing, there.preprocessing
    model = card.model
    if (before.mean, before.std) == (after.mean, after.std):
        return folded
    if (
        not isinstance(model, ViTSettings)
        or model.stem
        or not model.ends.patch_bias
        or model.channels != len(before.mean)
    ):
        return folded
    weight, bias = (folded.weights[f"{PATCHES}.{kind}"] for kind in ("weight", "bias"))
    channels = weight.double().reshape(len(weight), model.channels, -1)  # (D, C, ph * pw)
    mean, std, new_mean, new_std = (
        torch.tensor(values, dtype=torch.float64, device=weight.device)[:, None]
        for values in (before.mean, before.std, after.mean, after.std)
    )
    shift = (channels * ((new_mean - mean) / std)).sum(dim=(1, 2))
    changed = {
        f"{PATCHES}.weight": _kept((channels * (new_std / std)).reshape(weight.shape), weight),
        f"{PATCHES}.bias": _kept(bias.double() + shift, bias),
    }
    return folded.then(
        changed,
        f"the pictures' mean {_numbers(before.mean)} and std {_numbers(before.std)} are folded into the patch "
        f"embedding, which now expects a mean of {_numbers(after.mean)} and a std of {_numbers(after.std)}",
        preprocessing=replace(before, mean=after.mean, std=after.std),
    )


def fold_epsilon(folded: Folded, there: Card) -> Folded:
    """norm(s x) with epsilon e is norm(x) with epsilon e / s^2. So where everything that writes to the residual stream
    is multiplied by s, all norms that read it have another epsilon."""
    model, wanted = folded.card.model, there.model
    if not isinstance(model, ViTSettings) or not isinstance(wanted, ViTSettings):
        return folded
    before, after = model.block.norm_epsilon, wanted.block.norm_epsilon
    if before == after or min(before, after) <= 0:
        return folded
    task = folded.card.classifier
    if model.ends.pool_norm == "after" and (task is None or task.head not in ("linear", "tanh")):
        return folded  # tokens are read that went through no norm, which would take the factor away
    factor = math.sqrt(after / before)
    writers = ("encoder.stem.patches.", "encoder.prefix.", "encoder.positions.tables.", "encoder.pre_norm.")
    ends = (".attention.project_out", ".mlp.contract") if model.block.layer_scale is None else ("_scale.factor",)
    stream = {
        name: scaled(tensor, factor)
        for name, tensor in folded.weights.items()
        if name.startswith(writers) or (name.startswith("encoder.blocks.") and any(end in name for end in ends))
    }
    positions = "learned" if model.positions == "sincos" else model.positions  # no longer sines
    return folded.then(
        stream,
        f"the norms' epsilon ({before:g}, where the format has {after:g}) is folded into the "
        f"weights, which makes the residual stream {factor:.4g} times as large; --approximate keeps the weights as "
        "they are, for further training",
        model=model.changed(norm_epsilon=after, positions=positions),
    )


def fold_standardisation(folded: Folded, there: Card) -> Folded:
    """A filter's size matters to its standardisation through epsilon alone; so the right size has the effect of
    another epsilon."""
    before, after = _convolutions(folded.card), _convolutions(there)
    if before is None or after is None or divisor(folded.card) == divisor(there):
        return folded
    if min(before.conv_epsilon, after.conv_epsilon) <= 0:
        return folded
    filters = {
        name: _standardised_alike(tensor, before, after)
        for name, tensor in folded.weights.items()
        if name.startswith(TRUNKS) and tensor.ndim == 4
    }
    model = folded.card.model
    known: dict[str, Any] = {"conv_epsilon": after.conv_epsilon, "standardisation": after.standardisation}
    if isinstance(model, ViTSettings) and isinstance(model.stem, ResNetStem):
        model = replace(model, stem=replace(model.stem, **known))
    elif isinstance(model, ResNetSettings):
        model = replace(model, **known)
    return folded.then(
        filters, "the epsilon of the standardised convolutions is folded into their filters", model=model
    )


def _convolutions(card: Card) -> ResNetSettings | ResNetStem | None:
    found = card.model.stem if isinstance(card.model, ViTSettings) else card.model
    return found if isinstance(found, ResNetSettings | ResNetStem) else None


def divisor(card: Card) -> tuple[str, float] | None:
    """What filters are divided by, beside their own size; None: there are no standardised ones that others have."""
    kind = _convolutions(card)
    return None if kind is None else (kind.standardisation, kind.conv_epsilon)


def _standardised_alike(
    weight: Tensor, before: ResNetSettings | ResNetStem, after: ResNetSettings | ResNetStem
) -> Tensor:
    """The filters times the factors with which `after` makes of them what `before` made."""
    variance = weight.double().var(dim=(1, 2, 3), correction=0, keepdim=True)
    deviation, epsilon = variance.sqrt(), before.conv_epsilon
    # What `before` has beyond the variance, under the root; or beyond the deviation, without a difference of equals.
    if before.standardisation == "variance":
        square, plain = torch.full_like(variance, epsilon), epsilon / ((variance + epsilon).sqrt() + deviation)
    else:
        square, plain = epsilon**2 + 2 * epsilon * deviation, torch.full_like(variance, epsilon)
    if after.standardisation == "variance":
        return _kept(weight.double() * (after.conv_epsilon / square).sqrt(), weight)
    return _kept(weight.double() * after.conv_epsilon / plain, weight)


def scaled(tensor: Tensor, factor: float) -> Tensor:
    return _kept(tensor.double() * factor, tensor)


def _kept(values: Tensor, like: Tensor) -> Tensor:
    """In the precision of `like`, but at least in float32: rounded to half of that, a change would show."""
    return values.to(torch.promote_types(like.dtype, torch.float32))


def _numbers(values: tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{value:g}" for value in values) + ")"
