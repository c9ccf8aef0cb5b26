"""Begun: what was asked for and what was decided, so that the same call can resume; and the data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous import settings
from vitreous.data.check import DataReport, check
from vitreous.data.sources import DataSettings
from vitreous.data.splits import Splits
from vitreous.errors import UserError
from vitreous.fitting.candidates import Candidate
from vitreous.fitting.choices import Plan
from vitreous.fitting.first import FirstModel
from vitreous.fitting.wishes import Balance, Hardware, Wishes
from vitreous.storage import atomic
from vitreous.training.run import RunDirectory

VERSION = 2  # of plan.json
LEAKED = 0.5  # share of training pictures also in val or test, above which the split itself is wrong


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for: the same request resumes the run."""

    data: str
    start: str | None = None
    minutes: float | None = None
    unlabelled: str | None = None  # more pictures, without labels
    balance: Balance = "auto"
    changes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Begun:
    """plan.json: what was asked for and what was decided, measured only once, so that resuming is exact."""

    request: Request
    plan: Plan
    first_models: tuple[FirstModel, ...]  # in the order in which they were made
    candidates: tuple[Candidate, ...] = ()  # what could be kept, once that is known
    pictures: tuple[str, ...] = ()  # digests of names and labels by part: others would be split differently
    version: int = VERSION

    @classmethod
    def load(cls, out: Path) -> "Begun":
        path = out / "plan.json"
        document = atomic.read_json(path)
        version = document.get("version", 1) if isinstance(document, dict) else 1
        if version != VERSION:
            than = "an earlier" if version < VERSION else "a later"
            raise UserError(f"{out}: begun by {than} version of fit, so it cannot be resumed; give another --out")
        return settings.from_json(cls, document, where=str(path))


def begun_before(out: Path, request: Request) -> Begun | None:
    """What an earlier call recorded, if it was the same call."""
    path = out / "plan.json"
    # A plan that trained nothing does not bind anybody: it may not even be possible.
    run = RunDirectory(out)
    run.check_ours()
    trained = bool(run.checkpoints.paths()) or run.results() is not None
    if not (trained and path.is_file()):
        return None
    begun = Begun.load(out)
    if begun.request != request:
        there, here = _options(begun.request), _options(request)
        differing = [
            f"{name} {there.get(name, 'not given')} there, {here.get(name, 'not given')} here"
            for name in dict.fromkeys((*there, *here))
            if there.get(name) != here.get(name)
        ]
        raise UserError(
            f"{out} holds a different fit ({'; '.join(differing)}). "
            "Choose another --out, or give the same options to resume it"
        )
    return begun


def _options(request: Request) -> dict[str, str]:
    """A request as it is given on the command line."""
    found = {
        "data": request.data,
        "--from": request.start,
        "--minutes": None if request.minutes is None else f"{request.minutes:g}",
        "--unlabelled": request.unlabelled,
        "--balance": request.balance,
        **{f"--{name}": text for name, text in request.changes},
    }
    return {name: value for name, value in found.items() if value is not None}


def wishes_of(request: Request) -> Wishes:
    return Wishes(
        start=request.start,
        balance=request.balance,
        has_unlabelled=request.unlabelled is not None,
        seconds=None if request.minutes is None else 60 * request.minutes,
        changes=dict(request.changes),
    )


def hardware_of(request: Request) -> Hardware:
    return Hardware.here(dict(request.changes).get("training.device", "auto"))


# ---- the data


@dataclass(frozen=True, kw_only=True)
class _Data:
    data: DataSettings


def data_settings(request: Request) -> DataSettings:
    given = {name: text for name, text in request.changes if name.startswith("data.")}
    return settings.changed(_Data(data=DataSettings(where=request.data)), given).data


def checked(splits: Splits, source: DataSettings, out: Path, resumed: bool) -> DataReport:
    if splits.test is None:
        raise UserError(
            f"{source.where}: no pictures are left to test a model on. Give more, at least two of every class, or add "
            "a test part"
        )
    path = out / "data.json"
    report = settings.load(DataReport, path) if resumed and path.is_file() else check(splits, source.where)
    if len(report.left_out) > LEAKED * len(splits.train):
        raise UserError(
            f"{source.where}: {len(report.left_out):,} of {len(splits.train):,} training pictures also appear in the "
            f"validation or test part, such as {report.leaks[0].picture}. Separate the parts, or remove the copies"
        )
    for part in report.parts:
        if part.boxes is not None and part.boxes.total == part.boxes.crowd:
            raise UserError(
                f"{source.where}: no picture of {part.name} has an object: add some that do, or move some from another "
                "part"
            )
    print("\n".join(f"  {line}" for line in report.summary()), flush=True)
    return report


# ---- files


def write(out: Path, name: str, document: Any) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        atomic.write_json(document, out / f"{name}.json")
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from None
