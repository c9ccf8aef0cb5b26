"""Transfer to another set by fine-tuning or a few-shot probe, without pictures that were seen before."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from vitreous.data.augmentation import Augmentation, CropSettings
from vitreous.data.base import Source
from vitreous.data.duplicates import overlaps
from vitreous.data.loader import EvalLoader
from vitreous.data.names import ALL
from vitreous.data.opening import same_data
from vitreous.data.sources import DataSettings, open_sources, written_numbers
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.evaluation.features import FeatureSet, pooled_features
from vitreous.evaluation.probes import few_shot
from vitreous.evaluation.score import score
from vitreous.jobs.data import OpenData
from vitreous.models import ModelSettings
from vitreous.recipes.recipe import Recipe
from vitreous.storage import atomic
from vitreous.tasks.classify import ClassifySettings
from vitreous.training.devices import World
from vitreous.training.loop import TrainingSettings
from vitreous.training.optim import SGDSettings
from vitreous.training.schedule import ScheduleSettings
from vitreous.weights.trained import Trained

PROBE_POOL = 2000  # pictures that the few shots are drawn from
PROBE_SEEDS = 3  # draws


@cache
def test_split(where: str) -> str:
    """The split to report on: test, or val if that is all there is (Imagenette)."""
    found = open_sources(where)
    return "val" if "test" not in found and "val" in found else "test"


# ---- Pictures that were seen before


@dataclass(frozen=True)
class Overlap:
    sets: list[tuple[str, int, list[int]]]  # other set, how many of our training pictures its test set holds, which

    @property
    def leave_out(self) -> str:
        return written_numbers(number for _, _, numbers in self.sets for number in numbers)


def without_overlap(data: str, others: Sequence[str], kept: Path) -> Overlap:
    """Training pictures that also occur in the test set of another set; searched for once, and `kept` as JSON."""
    known: dict[str, list[int]] = atomic.read_json(kept) if kept.is_file() else {}
    others_only = [other for other in others if not same_data(other, data)]
    unknown = [other for other in others_only if f"{data} in {other}" not in known]
    if unknown:
        found = open_sources(data)
        train = found.get("train", found.get(ALL))
        if train is None:
            raise UserError(f"{data}: no training pictures. Add a train folder or file.")
        seen = overlaps(train, [_test_part(other) for other in unknown])
        known |= {f"{data} in {other}": numbers.tolist() for other, numbers in zip(unknown, seen, strict=True)}
        kept.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_json(known, kept)
    pairs = [(other, known[f"{data} in {other}"] if other in others_only else []) for other in others]
    return Overlap([(other, len(numbers), numbers) for other, numbers in pairs])


def _test_part(where: str) -> Source:
    found = open_sources(where)
    test = found.get(test_split(where))
    # Without a split we cannot know yet which pictures will be tested on: all count.
    return found[ALL] if test is None else test


# ---- Few shots, and scores


def few_shot_accuracy(run: Path, where: str, shots: int, open_data: OpenData, device: str) -> float:
    """Mean accuracy over draws of `shots` pictures per class, by least squares on the run's frozen features."""
    splits = open_data(
        DataSettings(where=where, val_fraction=0.0, test_split=test_split(where), train_limit=_pool(where, shots))
    )
    if splits.test is None:
        raise UserError(f"{where}: there is no test part to score the few-shot probe on")
    found = few_shot(_features(run, splits.train, device), _features(run, splits.test, device), (shots,), PROBE_SEEDS)
    if not found:
        raise UserError(f"{where}: no class has {shots} training pictures; take fewer --shots")
    return found[0].mean


def _pool(where: str, shots: int) -> int | None:
    found = open_sources(where)
    train = found.get("train", found.get(ALL))
    if train is None or len(train) <= PROBE_POOL:
        return None
    return max(PROBE_POOL, 2 * shots * len(train.classes)) if len(train) > 2 * shots * len(train.classes) else None


def _features(run: Path, source: Source, device: str) -> FeatureSet:
    trained, world = Trained.load(run), World.join(device)
    preprocessing = replace(trained.card.preprocessing, crop="squash")
    batches = EvalLoader(source, preprocessing, 512, world.device, workers=0)
    return pooled_features(trained.encoder(), batches, world.device)


def test_accuracy(run: Path, recipe: Recipe, open_data: OpenData) -> float:
    """The test accuracy of a run whose test set has not been read yet."""
    world, trained, splits = World.join(recipe.training.device), Trained.load(run), open_data(recipe.data)
    if splits.test is None:
        raise UserError(f"{recipe.data.where}: there is no test part")
    with torch.no_grad():
        batches = EvalLoader(splits.test, trained.card.preprocessing, 512, world.device, workers=0)
        task = trained.task().to(world.device)
        return score(task, batches)[task.metric().headline]


# ---- Fine-tuning


def transfer_recipe(
    start: str,
    model: ModelSettings,
    normalise: Preprocessing,
    data: DataSettings,
    *,
    steps: int,
    rate: float,
    training: TrainingSettings,
    keeps_sides: bool,
) -> Recipe:
    """The paper's fine-tuning (B.1.1). `keeps_sides`: no flips or shifts, which would change structured labels."""
    shifted = Augmentation(crop=CropSettings(method="pad", pad_px=max(1, model.picture_px[0] // 8), padding="reflect"))
    return Recipe(
        name=f"transfer-{slug(data.where)}",
        data=data,
        model=model,
        start=start,
        objective=ClassifySettings(head="linear"),
        normalise=replace(normalise, crop="squash"),
        augmentation=Augmentation(crop=CropSettings(method="squash"), flip=0.0) if keeps_sides else shifted,
        optimizer=SGDSettings(lr=rate, momentum=0.9),
        schedule=ScheduleSettings(warmup_fraction=0.05),
        # Short runs of many shapes would mostly compile.
        training=replace(training, steps=steps, compile=False, keep="last", evaluate_every_epochs=0, clip=1.0),
    )


def slug(where: str) -> str:
    """A data set's name as part of a folder name."""
    return where.rstrip("/").rsplit("/", maxsplit=1)[-1].replace(":", "-")


def distinct_slugs(wheres: Sequence[str]) -> dict[str, str]:
    """The slug of each; equal ones get as many parent folders as needed to tell them apart."""
    parts = {where: where.rstrip("/").replace(":", "-").split("/") for where in wheres}
    found = {}
    for where, own in parts.items():
        for depth in range(1, len(own) + 1):
            found[where] = "-".join(own[-depth:])
            if [other[-depth:] for other in parts.values()].count(own[-depth:]) == 1:
                break
    return found


def is_structured(where: str) -> bool:
    return where.startswith("rendered:")
