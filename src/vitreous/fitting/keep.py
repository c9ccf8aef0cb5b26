"""Keep: of all models that a fit has made, the best on the validation part."""

from typing import Any

from vitreous.fitting.base import TaskFit
from vitreous.fitting.begun import Begun
from vitreous.fitting.candidates import FINE_TUNED, FROM_SCRATCH, Candidate, Kept, Said, Scored, chosen
from vitreous.weights.trained import Trained

TRAINED = "trained"  # folder of what training left


def keep_best(task: TaskFit[Any], begun: Begun, *, trained: bool) -> Kept:
    """Nothing here depends on the clock, so that a resumed run decides the same."""
    out, recipe = task.job.out, begun.plan.recipe
    models: dict[str, Trained] = {}
    said: dict[str, Said | None] = {}
    scores: dict[str, Scored | None] = {}

    def add(name: str, model: Trained) -> None:
        found = task.seen(name, model, recipe)
        models[name], said[name] = model, found
        scores[name] = None if found is None else Scored(found.score(), len(found))

    # First models are compared on all pictures that they were scored on: more than a small validation part has.
    floor = None
    for one in begun.first_models:
        add(one.name, Trained.load(out / one.folder))
        floor = one if one.is_as_good_as(floor) else floor
    if trained:
        learned = Trained.load(out / TRAINED)
        add(FINE_TUNED if recipe.start else FROM_SCRATCH, learned)
        for name, model in task.variants(learned, begun, scores, floor):
            add(name, model)
    num_train = len(task.job.parts.of(recipe).train)
    best, reason = chosen(
        scores, None if floor is None else floor.name, is_continued=bool(recipe.start), num_train=num_train
    )
    candidates = tuple(
        Candidate(name=name, score=None if found is None else found.value, is_kept=name == best)
        for name, found in scores.items()
    )
    return Kept(models[best], said[best], candidates, best, reason)
