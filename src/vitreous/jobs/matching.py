"""Evaluates a model of pictures and words: by retrieval, or as a zero-shot classifier."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from vitreous.data.base import Source, Subset, with_classes
from vitreous.data.sources import DataSettings
from vitreous.data.splits import limited, strata
from vitreous.data.targets import ClassLabels
from vitreous.errors import UserError
from vitreous.evaluation.full import ClassEvaluation, evaluate_classes, fitted_calibration
from vitreous.evaluation.logits import LabelledLogits, collect_logits
from vitreous.evaluation.retrieval import RetrievalEvaluation, evaluate_ranks
from vitreous.jobs.data import AskedData, batches_for
from vitreous.jobs.words import encoded
from vitreous.nn.graphed import Graphed
from vitreous.nn.half import half_where_native
from vitreous.prediction.zero_shot import zero_shot
from vitreous.tasks.image_text import ImageText
from vitreous.tasks.retrieval import RetrievalMetric
from vitreous.training.devices import World
from vitreous.weights.trained import Trained

CALIBRATING = 2000  # most labelled pictures to fit a temperature to


@torch.no_grad()
def evaluate_retrieval(model: Trained, source: Source, world: World) -> RetrievalEvaluation:
    task = model.task().to(world.device)
    assert isinstance(task, ImageText)
    if isinstance(source.targets, ClassLabels):
        raise UserError(f"{source.name}: its pictures have classes, not captions: --zero-shot goes by their names")
    metric, predict = RetrievalMetric(task.embed_texts), Graphed(task, lambda task, images: task.predict(images))
    for batch in batches_for(model, encoded(source, model.tokenizer(), task.settings.text), world):
        with half_where_native(world.device):
            metric.update(predict(batch.images), batch)
    if not metric.num:
        raise UserError(f"{source.name}: none of its pictures could be read")
    return evaluate_ranks(metric.ranks(), torch.cat(metric.owner))


def evaluate_zero_shot(
    model: Trained,
    asked: AskedData,
    split: str,
    *,
    templates: Sequence[str],
    coverages: tuple[float, ...],
    world: World,
) -> ClassEvaluation:
    """On the classes of the data, by their names. A temperature is fitted to another part, if there is one."""
    source = asked.part(split)
    classifier = zero_shot(model, _labelled(source).classes, templates, world.device)
    task = classifier.task().to(world.device)

    def predicted(part: Source) -> LabelledLogits:
        with half_where_native(world.device):
            return collect_logits(task, batches_for(classifier, part, world), classifier.card.classes)

    other = _other_part(asked, split, source)
    val = None if other is None else predicted(other)
    return evaluate_classes(val, predicted(source), coverages=coverages)


def calibrated(classifier: Trained, data: str, world: World) -> Trained:
    """A classifier of names, with a temperature and prediction sets fitted to labelled pictures of those names."""
    settings = DataSettings(where=data)
    parts = (settings.whole_part(name) for name in ("val", "train"))
    source = next((part for part in parts if part is not None), None)
    if source is None:
        raise UserError(f"{data}: has neither val nor train pictures to calibrate on")
    labelled, names = _labelled(source), classifier.card.classes
    try:
        known = with_classes(labelled, names)
    except UserError:
        other = next((name for name in labelled.classes if name not in names), "")
        given = f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
        raise UserError(f"{data}: its class {other!r} is not among the names that were given ({given})") from None
    some = Subset(known, limited(strata(known), min(CALIBRATING, len(known)), seed=0), known.name)
    task = classifier.task().to(world.device)
    with half_where_native(world.device):
        found = collect_logits(task, batches_for(classifier, some, world), classifier.card.classes)
    return replace(classifier, card=replace(classifier.card, calibration=fitted_calibration(found)))


def _other_part(asked: AskedData, split: str, source: Source) -> Source | None:
    for name in ("val", "train"):
        part = None if name == split else asked.settings.whole_part(name)
        if part is not None and part.name != source.name and part.classes == source.classes:
            return Subset(part, limited(strata(part), min(CALIBRATING, len(part)), seed=0), part.name)
    return None


def _labelled(source: Source) -> Source:
    if not isinstance(source.targets, ClassLabels):
        raise UserError(f"{source.name}: zero-shot needs pictures with one class each, and these have other labels")
    return source
