"""Assess: everything that can be measured of a trained model on data. What `vitreous evaluate` prints."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous import jobs, settings
from vitreous.data.loader import EvalLoader
from vitreous.data.sources import DataSettings, Source, Splits, check_classes, with_classes
from vitreous.errors import UserError, did_you_mean
from vitreous.evaluation.answers import Answers, answers
from vitreous.evaluation.conformal import COVERAGES, check_coverage
from vitreous.evaluation.features import FeatureSet, has_tanh_layer, pooled_features, tanh_features
from vitreous.evaluation.full import Evaluation, evaluate_fully
from vitreous.evaluation.probes import FewShot, LinearProbe, Neighbours, few_shot, knn, linear_probe
from vitreous.evaluation.relabel import ClassMapping, SetAccuracy, mapped, places_of, read_label_sets, set_accuracy
from vitreous.terminal import table
from vitreous.trained import Trained
from vitreous.training.devices import World

PROBES = ("knn", "linear", "fewshot")


@dataclass(frozen=True)
class Probed:
    """What frozen features know, without the head."""

    features: str  # pooled, or tanh: the hidden layer of the head (paper 3.1)
    knn: tuple[Neighbours, ...] = ()
    linear: LinearProbe | None = None
    few_shot: tuple[FewShot, ...] = ()

    def rows(self) -> list[tuple[str, str, str]]:
        rows = [(self.features, f"{one.num}-NN ({one.weights})", one.accuracy.percent()) for one in self.knn]
        if self.linear is not None:
            rows.append((self.features, f"linear, penalty {self.linear.penalty:g}", self.linear.accuracy.percent()))
        for one in self.few_shot:
            spread = f"{100 * one.mean:.2f} % (deviation {100 * one.spread:.2f}, {len(one.accuracies)} draws)"
            rows.append((self.features, f"{one.shots} a class, least squares", spread))
        return rows


@dataclass(frozen=True)
class Assessment:
    evaluation: Evaluation | None  # None: an encoder without a head
    label_sets: SetAccuracy | None = None  # where sets of right labels were given
    probes: tuple[Probed, ...] = ()

    def to_json(self) -> Any:
        return settings.to_json(self)

    def summary(self) -> str:
        parts = [] if self.evaluation is None else [self.evaluation.summary()]
        if self.label_sets is not None:
            found = self.label_sets
            parts.append(
                f"an answer among the right labels: {found.accuracy.percent()} of {found.pictures:,} pictures "
                f"({found.left_out:,} without a right label left out)"
            )
        if self.probes:
            rows = [row for one in self.probes for row in one.rows()]
            parts.append(table(rows, ("frozen features", "probe", "accuracy")))
        return "\n\n".join(parts)


def assess(
    where: str | Path,
    data: str | None = None,
    split: str = "test",
    *,
    device: str = "auto",
    coverages: tuple[float, ...] = COVERAGES,
    probes: tuple[str, ...] = (),
    label_sets: Path | None = None,  # JSON: the right labels of each picture (ReaL, Beyer et al. 2020)
    mapping: Path | None = None,  # JSON: which of the model's classes stand for each class of the data (ObjectNet)
    open_data: jobs.OpenData = DataSettings.build,
) -> Assessment:
    """A model on a split of its own data, or of other data. The temperature is the one that the model carries; where it
    carries none, and for prediction sets, the validation part of its own data is fitted."""
    for name in probes:
        if name not in PROBES:
            raise UserError(f"no probe is called {name!r}: {', '.join(PROBES)}.{did_you_mean(name, PROBES)}")
    for wanted in coverages:
        check_coverage(wanted)
    if label_sets is not None and mapping is not None:
        raise UserError("--labels and --map each give the pictures other labels: give one of them")
    model, world = Trained.load(where), World.join(device)
    own = _own_splits(where, data, open_data)
    probed = _probed(model, own or _other_splits(where, data), split, world=world, probes=probes) if probes else ()
    if model.card.task is None:
        if not probes:
            raise UserError(f"{where}: an encoder without a head; give --probe {','.join(PROBES)} to measure it")
        return Assessment(None, probes=probed)
    task, classes = model.task().to(world.device), model.card.classes

    def answered(source: Source) -> Answers:
        return answers(task, _batches(source, model, world), classes)

    source = jobs.part(where, data, split) if own is None else getattr(own, split)
    if source is None:
        raise UserError(f"{where}: there is no {split} part")
    if mapping is not None:
        found = mapped(answered(source), source.classes, ClassMapping.read(mapping))
        return Assessment(evaluate_fully(None, found, temperature=model.card.temperature), probes=probed)
    test = answered(with_classes(source, classes))
    val = None if own is None or own.val is None or split != "test" else answered(with_classes(own.val, classes))
    right = None
    if label_sets is not None:
        sets = read_label_sets(label_sets, classes)
        right = set_accuracy(test, sets, places_of([source.where(at) for at in range(len(source))], len(sets)))
    known = model.card.temperature if model.card.temperature != 1 else None
    return Assessment(evaluate_fully(val, test, temperature=known, coverages=coverages), right, probed)


def _own_splits(where: str | Path, data: str | None, open_data: jobs.OpenData) -> Splits | None:
    """The data that the run was trained on, as it was split then, where that is what is asked for."""
    own = jobs.own_data(where, data)
    return None if own is None else open_data(own)


def _other_splits(where: str | Path, data: str | None) -> Splits:
    if data is None:
        raise UserError(f"{where} does not say what it was trained on; name the data to probe it on")
    return DataSettings(where=data).build()


def _batches(source: Source, model: Trained, world: World) -> EvalLoader:
    return EvalLoader(source, model.card.preprocessing, batch_size=256, device=world.device, workers=2)


def _probed(model: Trained, splits: Splits, split: str, *, world: World, probes: tuple[str, ...]) -> tuple[Probed, ...]:
    test: Source | None = getattr(splits, split)
    if test is None or split == "train":
        raise UserError(f"probes are fitted on train and need another part to be scored, not {split}")
    check_classes(splits.train)  # a run without labels has not looked for them
    kinds: dict[str, tuple[FeatureSet, FeatureSet]] = {}
    parts = [_batches(part, model, world) for part in (splits.train, test)]
    encoder = model.encoder()
    kinds["pooled"] = (
        pooled_features(encoder, parts[0], world.device),
        pooled_features(encoder, parts[1], world.device),
    )
    if model.card.task is not None:
        task = model.task().to(world.device)
        if has_tanh_layer(task):
            kinds["tanh"] = (tanh_features(task, parts[0]), tanh_features(task, parts[1]))
    return tuple(
        Probed(
            features=name,
            knn=(knn(train.to(world.device), scored.to(world.device)),) if "knn" in probes else (),
            linear=linear_probe(train.to(world.device), scored.to(world.device)) if "linear" in probes else None,
            few_shot=few_shot(train, scored) if "fewshot" in probes else (),
        )
        for name, (train, scored) in kinds.items()
    )
