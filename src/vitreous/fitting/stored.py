"""What a finished fit stores in its run directory, so that its report can be drawn again (`vitreous report RUN`).

    plan.json, data.json            written when training begins: the request, the plan, the check of the data
    results.json, metrics.jsonl     of training
    student.json, student/, ...     of a student, which also learned from unlabelled pictures (`student`)
    evaluation.json                 what was measured
    predictions/                    what else the kind of task keeps (`Account`): for classifiers, the logits
    fit.json                        the rest: costs, the time of each stage

Pictures are read from the data again, and the model is inspected again.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitreous import settings
from vitreous.data.check import DataReport
from vitreous.data.fingerprint import names_digest
from vitreous.errors import UserError, did_you_mean_beside
from vitreous.evaluation.full import evaluation_of
from vitreous.fitting.after import inspected_findings, scored_part, shown_as
from vitreous.fitting.begun import Begun
from vitreous.fitting.costs import Costs
from vitreous.fitting.fitted import Fitted
from vitreous.fitting.kinds import fit_of
from vitreous.fitting.student import lesson_of
from vitreous.storage import atomic
from vitreous.weights.trained import Trained


@dataclass(frozen=True, kw_only=True)
class Ending:
    """fit.json"""

    timings: tuple[tuple[str, float], ...]  # stage, seconds
    costs: Costs


def keep(result: Fitted[Any]) -> None:
    result.account.save(result.out)
    settings.save(Ending(timings=tuple(result.timings.items()), costs=result.costs), result.out / "fit.json")


def stored(run: str | Path, device: torch.device | str = "cpu") -> Fitted[Any]:
    """The result of a finished fit. The model is inspected on `device`."""
    run = Path(run)
    if not run.is_dir():
        raise UserError(f"{run}: no such run.{did_you_mean_beside(run)}")
    if not (run / "plan.json").is_file():
        raise UserError(f"{run}: not a run of `vitreous fit`; `vitreous evaluate` measures other runs")
    begun = Begun.load(run)
    if not (run / "fit.json").is_file():
        raise UserError(f"{run}: this fit has not finished; give its command again to resume it")
    ending, data = settings.load(Ending, run / "fit.json"), settings.load(DataReport, run / "data.json")
    recipe = begun.plan.recipe
    splits = recipe.data.build()
    if splits.test is None or names_digest(splits.test) != begun.pictures[-1]:
        raise UserError(f"the pictures in {begun.request.data} have changed since the fit in {run}; fit them again")
    splits, model = scored_part(splits, begun.plan.scored, recipe.data.split_seed), Trained.load(run)
    return Fitted(
        out=run,
        request=begun.request,
        data=data,
        plan=begun.plan,
        splits=splits,
        results=atomic.read_json(run / "results.json"),
        card=model.card,
        first_models=begun.first_models,
        candidates=begun.candidates,
        lesson=lesson_of(run) if begun.request.unlabelled is not None else None,
        evaluation=evaluation_of(atomic.read_json(run / "evaluation.json"), str(run / "evaluation.json")),
        account=fit_of(data.task, data.where).account.load(run),
        findings=inspected_findings(model.task().to(device), shown_as(recipe, model.card), splits),
        timings=dict(ending.timings),
        costs=ending.costs,
    )
