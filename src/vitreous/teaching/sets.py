"""Sets: pictures with labels and pictures without, and a teacher's labels for the latter."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitreous import settings
from vitreous.data.base import Labels, Source, Subset
from vitreous.data.duplicates import overlaps
from vitreous.data.joined import joined, read_joined, write_joined
from vitreous.data.memory import InMemory, estimated_bytes
from vitreous.data.opening import same_data
from vitreous.data.sources import DataSettings, parse_numbers, without, written_numbers
from vitreous.data.splits import Splits
from vitreous.display.words import counted
from vitreous.errors import UserError
from vitreous.recipes.recipe import Recipe
from vitreous.teaching.pseudo import PseudoLabelled
from vitreous.terminal import note

OpenData = Callable[[DataSettings], Splits]


@dataclass(frozen=True)
class Sets:
    """Pictures with labels, pictures without, and the settings that find them again."""

    labelled: DataSettings
    unlabelled: DataSettings
    splits: Splits
    rest: Source

    @classmethod
    def opened(cls, labelled: DataSettings, where: str | None, open_data: OpenData = DataSettings.build) -> "Sets":
        """`where`: the pictures without labels; None: the training pictures beyond a limit."""
        labelled = labelled.located()
        splits = open_data(labelled)
        if where is None or same_data(where, labelled.where):
            return cls(labelled, *_left_over(labelled, splits, open_data))
        unlabelled = without_labels(where, labelled.keep_gb)
        rest = open_data(unlabelled).train
        leaked = leaks(rest, splits)
        if len(leaked):
            note(f"{where}: left out {counted(len(leaked), 'picture')} that are also in the validation or test part")
            numbers = rest.numbers(leaked).tolist()
            unlabelled = replace(unlabelled, leave_out=written_numbers(numbers))
            rest = without(rest, numbers)
        return cls(labelled, unlabelled, splits, rest)

    def write(self, folder: Path, labels: PseudoLabelled, ratio: float) -> None:
        by_class = labels.by_class(self.splits.train.classes)
        write_joined(
            folder,
            labelled=settings.to_json(self.labelled),
            unlabelled=settings.to_json(self.unlabelled),
            classes=self.splits.train.classes,
            pictures=len(self.rest),
            taken=labels.taken,
            probabilities=labels.probabilities,
            ratio=ratio,
            account={"shown": labels.shown, "by_class": settings.to_json(by_class)},
        )

    def joined(self, folder: Path) -> Splits:
        """As `--data.where FOLDER` would open them, from what is open already."""
        about, taken, probabilities = read_joined(folder)
        named = held(Subset(self.rest, taken), self.labelled)
        named = named if len(named) == len(taken) else Subset(self.rest, taken)  # else unreadable: reported later
        return replace(self.splits, train=joined(self.splits.train, named, probabilities, about.ratio))


def without_labels(where: str, keep_gb: float) -> DataSettings:
    """All pictures of a folder or set, whatever labels they have."""
    data = DataSettings(where=where, need_labels=False, val_fraction=0.0, test_fraction=0.0, keep_gb=keep_gb)
    return data.located()


def held(source: Source, data: DataSettings) -> Source:
    """In memory if `data` would be; then without unreadable pictures."""
    fits = data.shrink_px is not None or estimated_bytes(source) <= data.keep_gb * 1e9
    return InMemory(source, data.shrink_px) if source.pictures is None and fits else source


def leaks(rest: Source, splits: Splits) -> Labels:
    """The indices of pictures that are also in the validation or test part, exactly or nearly: a model that learned
    from them would be measured on what it has seen."""
    known = [part for part in (splits.val, splits.test) if part is not None]
    return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *overlaps(rest, known)]))


def _left_over(labelled: DataSettings, splits: Splits, open_data: OpenData) -> tuple[DataSettings, Splits, Source]:
    used: Labels = splits.train.numbers(np.arange(len(splits.train)))
    whole = replace(labelled, train_fraction=1.0, train_limit=None)
    opened = open_data(whole).train
    if len(opened) <= len(used):
        raise UserError(
            f"{labelled.where}: all training pictures are used with their labels; name others with --unlabelled, or "
            "use fewer labels with --data.train_limit"
        )
    given = parse_numbers(labelled.leave_out) if labelled.leave_out else []
    unlabelled = replace(whole, leave_out=written_numbers([*given, *used.tolist()]))
    return unlabelled, splits, without(opened, used.tolist())


def on_joined(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe on a joined set, balanced so that pictures with labels come as often as the ratio says."""
    order = replace(recipe.data.order, balance=True)
    data = DataSettings(
        where=str(folder.absolute()),
        val_fraction=0.0,
        test_fraction=0.0,
        order=order,
        keep_gb=recipe.data.keep_gb,
        shrink_px=recipe.data.shrink_px,
    )
    return replace(recipe, data=data)
