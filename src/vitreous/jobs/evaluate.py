"""Everything that can be measured of a trained model on data: `vitreous evaluate` and `vitreous.evaluate`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitreous import settings
from vitreous.data.base import Source, with_classes
from vitreous.data.kinds import TaskKind
from vitreous.data.sources import DataSettings, check_classes
from vitreous.data.splits import Splits
from vitreous.display.html import together
from vitreous.display.tables import Table
from vitreous.display.words import counted, percent
from vitreous.errors import UserError, did_you_mean
from vitreous.evaluation.conformal import COVERAGES, check_coverage
from vitreous.evaluation.features import FeatureSet, has_tanh_layer, pooled_features, tanh_features
from vitreous.evaluation.full import Evaluation, evaluate_classes, evaluate_fully
from vitreous.evaluation.logits import LabelledLogits, collect_logits
from vitreous.evaluation.probes import FewShot, LinearProbe, Neighbours, few_shot, knn, linear_probe
from vitreous.evaluation.relabel import ClassMapping, SetAccuracy, mapped, places_of, read_label_sets, set_accuracy
from vitreous.evaluation.retrieval import RetrievalEvaluation
from vitreous.jobs.by_picture import BY_PICTURE, ByPicture
from vitreous.jobs.data import AskedData, OpenData, batches_for
from vitreous.jobs.matching import evaluate_retrieval, evaluate_zero_shot
from vitreous.nn.half import half_where_native
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.terminal import note
from vitreous.training.devices import World
from vitreous.weights.trained import Trained

PROBES = ("knn", "linear", "fewshot")
PLACED: dict[TaskKind, str] = {"segment": "masks", "detect": "objects", "instances": "objects"}


@dataclass(frozen=True)
class Probed:
    """How good the frozen features are, without the head."""

    features: str  # pooled, or tanh: the hidden layer of the head (paper 3.1)
    knn: tuple[Neighbours, ...] = ()
    linear: LinearProbe | None = None
    few_shot: tuple[FewShot, ...] = ()

    def rows(self) -> list[tuple[str, str, str]]:
        rows = [(self.features, f"{one.num}-NN", one.accuracy.percent()) for one in self.knn]
        if self.linear is not None:
            rows.append((self.features, f"linear, penalty {self.linear.penalty:g}", self.linear.accuracy.percent()))
        for one in self.few_shot:
            draws = counted(len(one.accuracies), "draw")
            spread = f"{percent(one.mean, 2)} (deviation {100 * one.spread:.2f}, {draws})"
            rows.append((self.features, f"{one.shots} per class, least squares", spread))
        return rows


@dataclass(frozen=True)
class Assessment:
    evaluation: Evaluation | RetrievalEvaluation | None  # None: no head, or one for other classes
    label_sets: SetAccuracy | None = None  # if sets of right labels were given
    probes: tuple[Probed, ...] = ()
    unpredicted: str | None = None  # why the model's own predictions were not evaluated, if it has a head

    def to_json(self) -> Any:
        return settings.to_json(self)

    def tables(self) -> list[Table]:
        found = [] if self.evaluation is None else self.evaluation.tables()
        if self.label_sets is not None:
            of = counted(self.label_sets.pictures, "picture")
            note = f"{self.label_sets.left_out:,} that have no right label were left out"
            found.append(
                Table((of, "prediction among the right labels"), [("", self.label_sets.accuracy.percent())], note)
            )
        if self.probes:
            rows = [row for one in self.probes for row in one.rows()]
            found.append(Table(("frozen features", "probe", "accuracy"), rows, self.unpredicted or ""))
        return found

    def summary(self) -> str:
        return "\n\n".join(one.text() for one in self.tables())

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return together(one.html() for one in self.tables()).markup


def evaluate(
    where: str | Path,
    data: str | Path | None = None,
    split: str = "test",
    *,
    changes: Mapping[str, Any] | None = None,
    device: str = "auto",
    coverages: Sequence[float] = COVERAGES,
    probes: Sequence[str] = (),
    label_sets: str | Path | None = None,  # JSON: the right labels of each picture (ReaL, Beyer et al. 2020)
    mapping: str | Path | None = None,  # JSON: the model's classes for each class of the data (ObjectNet)
    templates: Sequence[str] | None = None,  # zero-shot: sentences with {} for the name of a class of the data
    open_data: OpenData = DataSettings.build,
) -> Assessment:
    """Evaluate a model on a split of its own data, or of other data, as `vitreous evaluate` does. The temperature is
    the model's own; if it has none, and for prediction sets, the validation part of its own data is fitted.

    `changes` are settings of other data by their dotted names: {"data.layout.label_column": "breed"}. `probes` (knn,
    linear, fewshot) measure the frozen features and need only labels: the classes need not be the model's.
    """
    _check(coverages, probes, label_sets, mapping)
    is_zero_shot = templates is not None
    if is_zero_shot and (probes or label_sets is not None or mapping is not None):
        raise UserError("--zero-shot measures the names of the classes alone: leave out --probe, --labels and --map")
    model, world = Trained.load(where), World.join(device)
    asked = AskedData.find(where, data, changes, for_labels=is_zero_shot or bool(probes and not model.card.predicts))
    if templates is not None:
        found = evaluate_zero_shot(model, asked, split, templates=templates, coverages=tuple(coverages), world=world)
        return Assessment(found)
    splits = asked.splits(open_data) if asked.is_own or probes else None
    probed = _probed(model, splits, split, world=world, probes=probes) if splits is not None and probes else ()
    if model.card.task is None:
        if not probes:
            raise UserError(f"{where}: an encoder without a head; to measure it, give --probe {','.join(PROBES)}")
        return Assessment(None, probes=probed)
    source = asked.part(split, splits)
    if not model.card.predicts:  # two towers retrieve texts, if there are any; probes need only labels
        finds = source.targets.task == "match" or not probes
        return Assessment(evaluate_retrieval(model, source, world) if finds else None, probes=probed)
    held_out = splits.val if splits is not None and asked.is_own and split == "test" else None
    if measure := BY_PICTURE.get(model.card.task.task_kind):
        return Assessment(_by_picture(measure, model, held_out, source, world), probes=probed)
    if mapping is None and probes and (unpredicted := _other_classes(source, model.card.classes)):
        return Assessment(None, probes=probed, unpredicted=unpredicted)
    evaluation, right = _by_class(
        model, held_out, source, world, coverages=coverages, label_sets=label_sets, mapping=mapping
    )
    return Assessment(evaluation, right, probed)


def _by_class(
    model: Trained,
    val: Source | None,
    test: Source,
    world: World,
    *,
    coverages: Sequence[float],
    label_sets: str | Path | None,
    mapping: str | Path | None,
) -> tuple[Evaluation, SetAccuracy | None]:
    """Evaluate a task whose targets are classes of whole pictures."""
    task, classes = model.task().to(world.device), model.card.classes

    def predicted(source: Source) -> LabelledLogits:
        with half_where_native(world.device):
            return collect_logits(task, batches_for(model, source, world), classes)

    if mapping is not None:
        renamed = mapped(predicted(test), test.classes, ClassMapping.read(Path(mapping)))
        return evaluate_classes(None, renamed, temperature=model.card.temperature), None
    found = predicted(with_classes(test, classes))
    if len(test.bad):
        note(test.bad.summary())
    held_out = None if val is None else predicted(with_classes(val, classes))
    right = None
    if label_sets is not None:
        sets = read_label_sets(Path(label_sets), classes)
        right = set_accuracy(found, sets, places_of([test.where(at) for at in range(len(test))], len(sets)))
    evaluation = evaluate_fully(held_out, found, calibration=model.card.calibration, coverages=tuple(coverages))
    return evaluation, right


def _by_picture(measure: ByPicture, model: Trained, val: Source | None, test: Source, world: World) -> Evaluation:
    """Evaluate a task whose targets have places in the picture."""
    assert model.card.task is not None
    has = test.targets.task
    wanted, given = PLACED[model.card.task.task_kind], PLACED.get(has or "label", "neither masks nor objects")
    if wanted != given:
        raise UserError(
            f"{test.name}: its pictures have {given}, and this model predicts {wanted}: give pictures with {wanted}"
        )
    classes, predictor = model.card.classes, TorchPredictor(model, world.device)
    known = None if val is None else with_classes(val, classes)
    found = measure(predictor, known, with_classes(test, classes), calibration=model.card.calibration)
    if len(test.bad):
        note(test.bad.summary())
    return found


def _check(
    coverages: Sequence[float], probes: Sequence[str], label_sets: str | Path | None, mapping: str | Path | None
) -> None:
    for name in probes:
        if name not in PROBES:
            raise UserError(f"there is no probe {name!r}; there are {', '.join(PROBES)}.{did_you_mean(name, PROBES)}")
    for wanted in coverages:
        check_coverage(wanted)
    if label_sets is not None and mapping is not None:
        raise UserError("--labels and --map both replace the pictures' labels: give one of them")


def _other_classes(source: Source, classes: Sequence[str]) -> str | None:
    """Says which classes of the pictures the model does not know; None if it knows them all."""
    counts = source.targets.counts(len(source.classes))
    occur = source.classes if counts is None else [source.classes[number] for number in np.flatnonzero(counts)]
    unknown = sorted(set(occur) - set(classes))
    if not unknown:
        return None
    others = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    return f"The model does not know {unknown[0]!r}{others}, so its own predictions were not measured."


def _probed(model: Trained, splits: Splits, split: str, *, world: World, probes: Sequence[str]) -> tuple[Probed, ...]:
    test: Source | None = getattr(splits, split)
    if test is None or split == "train":
        raise UserError(f"probes are fitted on train and must be scored on another part, not {split}")
    check_classes(splits.train)  # a run without labels has not checked them
    kinds: dict[str, tuple[FeatureSet, FeatureSet]] = {}
    parts = [batches_for(model, part, world) for part in (splits.train, test)]
    encoder = model.encoder()
    with half_where_native(world.device):
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
