"""What another format carries of a model. The rest is folded into the weights, refused, or named in a note."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vitreous.data.transforms import Preprocessing
from vitreous.display.words import percent
from vitreous.errors import UserError
from vitreous.models import ModelSettings, SwinSettings, ViTSettings
from vitreous.models.swin import Windows
from vitreous.tasks import DetectSettings, ImageTextSettings, MaskQuerySettings
from vitreous.weights import formats
from vitreous.weights.card import Card
from vitreous.weights.folding import (
    Folded,
    divisor,
    fold_epsilon,
    fold_normalisation,
    fold_standardisation,
    fold_temperature,
)
from vitreous.weights.formats import Format, Given
from vitreous.weights.transformers_config import different_field


@dataclass(frozen=True)
class Carried:
    """A model as it is written in another format."""

    format: Format
    given: Given
    card: Card  # with what was folded, and what could not be, as the format's code has it
    weights: Mapping[str, Tensor]  # ours
    notes: tuple[str, ...]  # what became of what the format cannot carry, a line each


def carry(card: Card, weights: Mapping[str, Tensor], format: Format, approximate: bool = False) -> Carried:
    """The model for this format. What its code has otherwise (GELU, epsilon) and no weights make up for is an error;
    or, where the user wants it `approximate`, a note. The weights are then left as they are, for training on."""
    if isinstance(card.task, DetectSettings | MaskQuerySettings | ImageTextSettings):
        return _carried_whole(card, weights, format)
    there = format.run_as(_as_others_run(card))
    folded = fold_normalisation(fold_temperature(Folded(card, weights)), there)
    if not approximate:
        folded = fold_standardisation(fold_epsilon(folded, there), there)
    differing = _differing(folded.card, there)
    if differing and not approximate:
        raise UserError(
            f"{format.name} cannot hold this model: {'; '.join(differing)}; --approximate writes it anyway and "
            "measures how far the outputs differ"
        )
    kept = folded.card
    written = replace(kept, model=_as_there(kept.model, there.model), task=there.classifier, calibration=None)
    if card.classifier is not None and there.classifier is not None:
        written = replace(written, task=replace(there.classifier, loss=card.classifier.loss))
    given = formats.write(written, folded.weights, format)
    return Carried(format, given, written, folded.weights, (*folded.notes, *differing, *_left_out(kept, there)))


def _carried_whole(card: Card, weights: Mapping[str, Tensor], format: Format) -> Carried:
    """Nothing is folded: where the format has a place for a decoder or a second tower, it has it for all of it."""
    there = format.run_as(replace(card, calibration=None))
    return Carried(format, formats.write(there, weights, format), there, weights, tuple(_untold(card, there)))


def takers(card: Card, weights: Mapping[str, Tensor]) -> list[str]:
    """The formats that hold the model as it is."""
    outline = {n: torch.empty_like(t, device="meta") for n, t in weights.items() if not n.startswith("extra.")}
    found = []
    for name, format in formats.formats().items():
        try:
            carried = carry(card, outline, format)
            again = format.card(replace(carried.given, where=name), card.model.picture_px)
        except UserError:
            continue
        if format.fits(carried.given) and model_difference(carried.card.model, again.model) is None:
            found.append(name)
    return sorted(found, key=lambda name: name != "timm")  # which most people have


def model_difference(model: ModelSettings, again: ModelSettings) -> str | None:
    """The first field in which two are other functions of a picture; None where they are the same."""
    if isinstance(model, ViTSettings) and isinstance(again, ViTSettings):
        return different_field(model, again)
    if type(model) is not type(again):
        return "kind"
    names = [name for name in model.field_names() if name != "stochastic_depth"]
    return next((name for name in names if _told(model, name) != _told(again, name)), None)


def _told(model: ModelSettings, name: str) -> Any:
    """Of LayerScale a file tells whether there is one, and not where it began."""
    value = model.value(name)
    return value is not None if name == "layer_scale" else value


def _as_others_run(card: Card) -> Card:
    """What no other format has: a temperature, sets of classes, and two softmaxes that are averaged."""
    task = None if card.classifier is None else replace(card.classifier, fusion="logits")
    return replace(card, task=task, calibration=None)


def _as_there(model: ModelSettings, there: ModelSettings) -> ModelSettings:
    """Theirs, but for what folding made of a table of sines."""
    if isinstance(model, ViTSettings) and isinstance(there, ViTSettings):
        return replace(there, positions=model.positions)
    return there


def _differing(card: Card, there: Card) -> tuple[str, ...]:
    """What changes the outputs, in words. The group norms' epsilon is too small to tell: it is left to be measured."""
    model, other, found = card.model, there.model, []
    if isinstance(model, ViTSettings) and isinstance(other, ViTSettings):
        if model.block.mlp == "gelu" and model.block.gelu != other.block.gelu:
            found.append(f"its code uses the {other.block.gelu} GELU, this model the {model.block.gelu} one")
        if model.block.norm_epsilon != other.block.norm_epsilon:
            found.append(
                f"its norms have an epsilon of {other.block.norm_epsilon:g}, this model's {model.block.norm_epsilon:g}"
            )
    if isinstance(model, SwinSettings) and isinstance(other, SwinSettings):
        found += _small_maps(model, other)
    if divisor(card) != divisor(there):
        found.append("its standardised convolutions have another epsilon")
    if card.classifier is not None and card.classifier.head == "distilled" and card.classifier.fusion == "softmax":
        found.append("its code averages the logits of the two heads, this model their softmaxes")
    return tuple(found)


def _small_maps(model: SwinSettings, there: SwinSettings) -> list[str]:
    ours, theirs = (
        [Windows(grid, model.window, shifted=True, small=one.small_maps) for grid in model.maps]
        for one in (model, there)
    )
    if all((one.size, one.shift) == (other.size, other.shift) for one, other in zip(ours, theirs, strict=True)):
        return []
    ways = f"its code has small_maps {there.small_maps!r}, this model {model.small_maps!r}"
    return [f"for maps no larger than a window, {ways}"]


# ---- What users of the format need to know


def _untold(card: Card, there: Card) -> list[str]:
    notes = []
    if card.classes != there.classes:
        notes.append(f"the names of its {len(card.classes):,} classes are not part of the format")
    otherwise = _otherwise(_seen(card.preprocessing), _seen(there.preprocessing))
    if otherwise:
        notes.append(f"pictures are preprocessed differently there: {'; '.join(otherwise)}")
    return notes


def _left_out(card: Card, there: Card) -> list[str]:
    notes = _untold(card, there)
    if card.classifier is not None and there.classifier is not None and card.classifier.loss != there.classifier.loss:
        notes.append("the format does not record that a picture may have several labels (sigmoid, not softmax)")
    for coverage, least in card.sets:
        notes.append(
            f"prediction sets are not part of the format: to cover {percent(coverage, 0)} of cases, take all classes "
            f"with a probability of at least {least:.4g}"
        )
    return notes


def _seen(p: Preprocessing) -> Preprocessing:
    """Without what has no effect: nothing is cut of a picture that is shown whole, and one that fits stays as it is."""
    is_whole = p.crop in ("squash", "letterbox")
    return replace(p, crop_fraction=1.0, odd_margin="even", skip_fitting=True) if is_whole else p


def _otherwise(p: Preprocessing, there: Preprocessing) -> list[str]:
    found = []
    if p.size_px != there.size_px:
        found.append(f"{' x '.join(map(str, there.size_px))} px, not {' x '.join(map(str, p.size_px))}")
    if (p.crop, p.crop_fraction) != (there.crop, there.crop_fraction):
        found.append(f"{_cut(there)}, not {_cut(p)}")
    if p.interpolation != there.interpolation:
        found.append(f"{there.interpolation} interpolation, not {p.interpolation}")
    if p.resizer != there.resizer:
        found.append(f"resized by {there.resizer}, not {p.resizer} (at most two levels of 255 apart)")
    if p.crop == there.crop and p.odd_margin != there.odd_margin:
        found.append("an odd margin is rounded the other way")
    if p.crop == there.crop and p.skip_fitting != there.skip_fitting:
        treated = "left as they are" if there.skip_fitting else "resized and cropped too"
        found.append(f"pictures that already have the right size are {treated}")
    if (p.mean, p.std) != (there.mean, there.std):
        found.append(f"mean {there.mean} and std {there.std}, not {p.mean} and {p.std}")
    return found


def _cut(p: Preprocessing) -> str:
    if p.crop in ("squash", "letterbox"):
        return "squashed" if p.crop == "squash" else "shown whole with padding below or to the right"
    return f"{'squashed and ' if p.crop == 'squash-centre' else ''}cropped to the centre {p.crop_fraction:.4g}"


def preprocessing_in_words(p: Preprocessing) -> str:
    """What a model wants done to pictures, for whoever has to do it by hand."""
    size = " x ".join(map(str, p.size_px))
    return f"{_cut(p)}, {size} px ({p.interpolation}), levels of 0 to 1, mean {p.mean}, std {p.std}"
