"""What a finished fit leaves in its run directory, so that its report can be drawn again (`vitreous report RUN`).

    plan.json, data.json            written when training begins: the request, the plan, the check of the data
    results.json, metrics.jsonl     of training
    evaluation.json, answers/       what was measured, and the logits it was measured on (val and test)
    fit.json                        the rest: few-shot accuracies, costs, the pixel baseline, the time of each stage

Pictures are read from where the data lies, and the model is looked into once more.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from vitreous import settings
from vitreous.data.check import DataReport
from vitreous.data.fingerprint import names_digest
from vitreous.errors import UserError
from vitreous.evaluation.full import evaluation_of
from vitreous.evaluation.logits import LabelledLogits
from vitreous.evaluation.pixels import Baseline
from vitreous.evaluation.probes import FewShot
from vitreous.fitting.after import scored_part
from vitreous.fitting.costs import Costs
from vitreous.fitting.fit import Begun, FitResult, inspected_findings
from vitreous.fitting.keep import shown_as
from vitreous.fitting.pixels import PixelFit, PixelsBegun
from vitreous.storage import atomic
from vitreous.weights import own
from vitreous.weights.trained import Trained

ANSWERS = "answers"


@dataclass(frozen=True, kw_only=True)
class Account:
    """fit.json"""

    timings: tuple[tuple[str, float], ...]  # stage, seconds
    few_shot: tuple[FewShot, ...]
    costs: Costs
    baseline: Baseline | None


@dataclass(frozen=True, kw_only=True)
class PixelAccount:
    """fit.json of a segmenter: its predictions are made again"""

    timings: tuple[tuple[str, float], ...]
    costs: Costs


def keep(result: FitResult | PixelFit) -> None:
    if isinstance(result, PixelFit):
        settings.save(PixelAccount(timings=tuple(result.timings.items()), costs=result.costs), result.out / "fit.json")
        return
    parts = {"val": result.val, "test": result.test}
    tensors = {
        name: {"logits": part.logits, "labels": part.labels, "ids": part.ids}
        for name, part in parts.items()
        if part is not None
    }
    own.write_folder(result.out / ANSWERS, tensors, {"classes": list(result.test.classes)})
    account = Account(
        timings=tuple(result.timings.items()),
        few_shot=result.few_shot,
        costs=result.costs,
        baseline=result.baseline,
    )
    settings.save(account, result.out / "fit.json")


def stored(run: str | Path, device: torch.device | str = "cpu") -> FitResult | PixelFit:
    """The result of a fit that has ended. The model is looked into on `device`."""
    run = Path(run)
    if not (run / "plan.json").is_file():
        raise UserError(f"{run}: not the run of a fit, so there is no report; `vitreous evaluate` measures other runs")
    if "first" not in atomic.read_json(run / "plan.json"):
        return _stored_pixels(run, device)
    if not (run / ANSWERS).is_dir():
        raise UserError(
            f"{run}: this fit has not finished, or is of an earlier version; give its command again, and it goes on"
        )
    begun, account = settings.load(Begun, run / "plan.json"), settings.load(Account, run / "fit.json")
    splits = begun.plan.recipe.data.build()
    found = own.read_folder(run / ANSWERS)
    answers = {
        name: LabelledLogits(part["logits"], part["labels"], part["ids"], tuple(found.documents["classes"]))
        for name, part in found.tensors.items()
    }
    if names_digest(splits.test) != begun.pictures[-1]:  # type: ignore[arg-type]
        raise UserError(f"the pictures in {begun.request.data} have changed since the fit in {run}; fit them anew")
    splits = scored_part(splits, begun.plan.scored, begun.plan.recipe.data.split_seed)
    model = Trained.load(run)
    shown = shown_as(begun.plan.recipe, model.card)
    return FitResult(
        out=run,
        request=begun.request,
        data=settings.load(DataReport, run / "data.json"),
        plan=begun.plan,
        splits=splits,
        results=atomic.read_json(run / "results.json"),
        card=model.card,
        first=begun.first,
        candidates=begun.candidates,
        val=answers.get("val"),
        test=answers["test"],
        evaluation=evaluation_of(atomic.read_json(run / "evaluation.json"), str(run / "evaluation.json")),
        few_shot=account.few_shot,
        findings=inspected_findings(model.task().to(device), shown, splits),
        timings=dict(account.timings),
        costs=account.costs,
        baseline=account.baseline,
    )


def _stored_pixels(run: Path, device: torch.device | str) -> PixelFit:
    if not (run / "fit.json").is_file():
        raise UserError(f"{run}: this fit has not finished; give its command again, and it goes on")
    begun, account = settings.load(PixelsBegun, run / "plan.json"), settings.load(PixelAccount, run / "fit.json")
    splits, model = begun.plan.recipe.data.build(), Trained.load(run)
    if splits.test is None or names_digest(splits.test) != begun.pictures[-1]:
        raise UserError(f"the pictures in {begun.request.data} have changed since the fit in {run}; fit them anew")
    return PixelFit(
        out=run,
        request=begun.request,
        data=settings.load(DataReport, run / "data.json"),
        plan=begun.plan,
        splits=splits,
        results=atomic.read_json(run / "results.json"),
        card=model.card,
        evaluation=evaluation_of(atomic.read_json(run / "evaluation.json"), str(run / "evaluation.json")),
        findings=inspected_findings(model.task().to(device), shown_as(begun.plan.recipe, model.card), splits),
        timings=dict(account.timings),
        costs=account.costs,
    )
