"""What the commands of every day do, as functions: `vitreous.fit`, `vitreous.predict`, and a report drawn again."""

from collections.abc import Mapping
from pathlib import Path

from vitreous.fitting import fit as fitting
from vitreous.fitting.drafts import Balance
from vitreous.fitting.fit import FitResult
from vitreous.fitting.stored import keep, stored
from vitreous.report import write_report
from vitreous.training.devices import World

REPORT = "report.html"


def fit(
    data: str | Path,
    out: str | Path | None = None,
    *,
    start: str | Path | None = None,
    minutes: float | None = None,
    balance: Balance = "auto",
    changes: Mapping[str, str] | None = None,
    began: float | None = None,
) -> FitResult:
    """From pictures to a trained, calibrated, tested model and its report, as `vitreous fit`. The same call again goes
    on where it stopped.

    `start` is a run, or any weights that can be read. `changes` overrides choices by their dotted names, as text:
    {"model.width": "96", "training.epochs": "5"}. `minutes` count from `began`, a reading of `time.monotonic()`.
    """
    result = fitting.fit(
        str(data),
        out,
        start=None if start is None else str(start),
        minutes=minutes,
        balance=balance,
        changes=changes,
        began=began,
    )
    fitting.say("report", "Writing the report")
    account_for(result)
    return result


def account_for(result: FitResult) -> Path:
    """Keep in the run what its report is made of, and write the report."""
    keep(result)
    return write_report(result, result.out / REPORT)


def redraw(run: str | Path, path: str | Path | None = None, *, device: str = "auto") -> Path:
    """The report of a fit once more, from what lies in its run, as `vitreous report`."""
    result = stored(run, World.join(device).device)
    return write_report(result, result.out / REPORT if path is None else Path(path))
