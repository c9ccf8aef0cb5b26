"""Other labels than those of the set: several right ones per picture, or another set's classes.

- ReaL accuracy ("Are we done with ImageNet?", Beyer et al. 2020): a prediction is right if it is one of the labels that
  people gave the picture when asked again; pictures on which they did not agree are left out.
- A class mapping, for sets like ObjectNet (Barbu et al. 2019), whose classes differ from the model's: the model chooses
  among the classes that are mapped to, and is right if the picture's class is mapped to its choice.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous import settings
from vitreous.errors import UserError, did_you_mean
from vitreous.evaluation.logits import LabelledLogits
from vitreous.evaluation.metrics import Estimate, wilson

LabelSets = list[frozenset[int]]  # by picture: the numbers of the right classes


# ---- Several right labels per picture


@dataclass(frozen=True)
class SetAccuracy:
    accuracy: Estimate  # Wilson's interval
    pictures: int
    left_out: int  # pictures without a right label

    def to_json(self) -> Any:
        return settings.to_json(self)


def read_label_sets(path: Path, classes: tuple[str, ...]) -> LabelSets:
    """A JSON list with one list of labels per picture, each the number or the name of a class, or nothing."""
    rows = _json(path)
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise UserError(f"{path}: expected a list of lists of labels, one for every picture")
    numbers: dict[Any, int] = {name: number for number, name in enumerate(classes)}
    return [
        frozenset(_number(label, numbers, len(classes), f"{path}: picture {place}") for label in row)
        for place, row in enumerate(rows)
    ]


def _number(label: Any, numbers: dict[Any, int], num_classes: int, where: str) -> int:
    if type(label) is int and 0 <= label < num_classes:
        return label
    if isinstance(label, str) and label in numbers:
        return numbers[label]
    raise UserError(f"{where} has the label {label!r}, which is neither a class of the model nor its number")


def set_accuracy(found: LabelledLogits, label_sets: LabelSets, places: Tensor) -> SetAccuracy:
    """`places`: by a picture's id, the index of its set."""
    chosen = places[found.ids].tolist()
    judged = [best in label_sets[at] for best, at in zip(found.best().tolist(), chosen, strict=True) if label_sets[at]]
    if not judged:
        raise UserError("none of these pictures has a right label")
    return SetAccuracy(wilson(sum(judged), len(judged)), len(judged), len(found) - len(judged))


def places_of(names: Sequence[str], num_sets: int) -> Tensor:
    """(N,) the index of each picture's labels. If files have distinct numbers from 1 in their names, these count, in
    any folder: ILSVRC2012_val_00000293.JPEG is at 292, as in ReaL's list. Otherwise the labels must be in the order of
    the data, and there must be as many sets as pictures."""
    found = [re.search(r"(\d+)\D*$", Path(name).stem) for name in names]
    numbers = [int(match[1]) for match in found if match]
    if len(set(numbers)) == len(names) and min(numbers, default=0) >= 1:
        if max(numbers) > num_sets:
            raise UserError(
                f"{names[numbers.index(max(numbers))]} has the number {max(numbers):,}, but there are labels for "
                f"{num_sets:,} pictures"
            )
        return torch.tensor(numbers, dtype=torch.int64) - 1
    if num_sets != len(names):
        raise UserError(
            f"there are labels for {num_sets:,} pictures, but {len(names):,} pictures, whose names do not number them: "
            "give one list of labels for each, in the order of the data"
        )
    return torch.arange(num_sets)


# ---- Another set's classes


@dataclass(frozen=True)
class ClassMapping:
    """The model's classes for each class of the data. Data classes without any are left out."""

    to: dict[str, tuple[str, ...]]

    @classmethod
    def read(cls, path: Path) -> "ClassMapping":
        """JSON: {"data class": ["model class", ...]}; one name in place of a list will do."""
        rows = _json(path)
        if not isinstance(rows, dict):
            raise UserError(f"{path}: expected an object that maps each class of the data to classes of the model")
        lists = {name: [value] if isinstance(value, str) else value for name, value in rows.items()}
        for name, values in lists.items():
            if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
                raise UserError(f"{path}: {name!r} must be mapped to a list of the model's class names")
        return cls({name: tuple(values) for name, values in lists.items()})


def mapped(found: LabelledLogits, data_classes: Sequence[str], mapping: ClassMapping) -> LabelledLogits:
    """Logits of the data's classes. `found` has labels numbered by them, and the model's classes and logits.

    The logit of a data class is the largest of the model's classes for it, so that the choice is made among all classes
    mapped to. Pictures of classes without a mapping are left out; ids stay.
    """
    numbers = {name: number for number, name in enumerate(found.classes)}
    kept = [name for name in data_classes if mapping.to.get(name)]
    for name in kept:
        for target in mapping.to[name]:
            if target not in numbers:
                near = did_you_mean(target, list(numbers))
                raise UserError(f"the class mapping maps {name!r} to {target!r}, which the model does not know.{near}")
    shared = [target for target, times in Counter(t for n in kept for t in mapping.to[n]).items() if times > 1]
    if shared:
        those = " and ".join(repr(name) for name in kept if shared[0] in mapping.to[name])
        raise UserError(
            f"the class mapping maps {those} to {shared[0]!r}: the model cannot tell them apart. Map only one of them "
            "to it"
        )
    if len(kept) < 2:
        raise UserError(
            f"the class mapping covers {len(kept)} of the data's {len(data_classes)} classes; at least two are needed"
        )
    table = torch.tensor([kept.index(name) if name in kept else -1 for name in data_classes], dtype=torch.int64)
    labels = table[found.labels]
    logits = torch.stack([found.logits[:, [numbers[t] for t in mapping.to[n]]].amax(dim=1) for n in kept], dim=1)
    return LabelledLogits(logits, labels, found.ids, tuple(kept)).only(labels >= 0)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as JSON ({error})") from None
