"""The job: plan, compare with existing output, do what is missing, mark it as done."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from vitreous.bulk import engines
from vitreous.bulk.engines import Pool
from vitreous.bulk.output import Output, Plan, Written
from vitreous.bulk.parts import Part
from vitreous.bulk.places import is_url
from vitreous.bulk.planner import grown, plan
from vitreous.bulk.work import Opened, Work
from vitreous.bulk.worker import Job, Line
from vitreous.errors import UserError
from vitreous.signals import Stopped
from vitreous.terminal import Bar

PER_PART = 4096  # pictures: what a kill can cost each worker


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for."""

    work: Work
    inputs: Sequence[str]
    out: str
    engine: engines.Name = "local"
    device: str = "auto"
    batch: int = 16
    per_part: int = PER_PART
    pool: Pool = field(default_factory=Pool)
    lines: BinaryIO | None = None  # what `-` among the inputs stands for


@dataclass(frozen=True)
class Result:
    out: str
    rows: int
    failed: int
    added: int  # by this run


def run(request: Request) -> Result:
    """A row for every picture. The same request resumes where an earlier one stopped; a different one is refused."""
    if request.engine == "ray":
        engines.connected()  # an error, if any, comes before anything is read
    out = request.out if is_url(request.out) else str(Path(request.out).expanduser().absolute())
    output = Output(out)
    opened = request.work.open("cpu" if request.engine == "ray" else request.device)
    _check_place(request, output)
    with output.store.claimed():
        planned = _planned(request, output, opened)
        before = output.written()
        output.forget_begun()
        missing = [number for number in range(len(planned)) if number not in before]
        try:
            _watch(_done(request, output, planned, missing, opened), len(missing))
        except Stopped as stop:
            parts = f"{len(output.written()):,} of {len(planned):,} parts"
            stop.kept = f"{parts} are written to {output.where}, and the same command resumes from there"
            raise
        return _finished(output, planned, set(before))


def _check_place(request: Request, output: Output) -> None:
    """Before anything is put there, a lock included."""
    for word in request.inputs:
        if not is_url(word) and Path(output.where).is_relative_to(Path(word).absolute()):
            raise UserError(f"{output.where}: inside {word}, one of the inputs; choose a --out outside it")
    others = [name for name in output.store.names() if name != "plan.jsonl"]
    if others and output.manifest() is None:
        raise UserError(
            f"{output.where}: contains {others[0]!r}, but no rows written by vitreous; choose another --out"
        )


def _planned(request: Request, output: Output, opened: Opened) -> Plan:
    """The plan, which is written the first time and compared afterwards."""
    parts = plan(request.inputs, request.per_part, Path.cwd(), request.lines)
    there = output.manifest()
    about = _about(request, opened)
    if there is None:
        planned = output.write_plan(parts)
        if not len(planned):
            raise UserError("there are no pictures to " + request.work.verb)
        output.write_manifest({**about, "plan": {"sha256": planned.sha256, "parts": len(planned)}, "done": None})
        return planned
    _compare(output.where, there, about)
    if there["model"] != about["model"]:  # the same one, which was moved
        there = {**there, "model": about["model"]}
        output.write_manifest(there)
    if request.work.grows:
        return _grown(request, output, there, parts)
    return output.write_plan(parts, like=there["plan"]["sha256"])


def _grown(request: Request, output: Output, there: dict[str, Any], now: Iterable[Part]) -> Plan:
    """The plan with pictures that were added since, and without those that are gone or have changed. A kill in between
    does no harm: the plan is written after rows that it does not contain have been removed."""
    if there["inputs"] != list(request.inputs):
        raise UserError(f"{output.where}: began with {', '.join(there['inputs'])}; choose another --out")
    before, after = _brought_up(output, there, list(now), request.per_part)
    planned = output.planned(after)
    if planned.sha256 == there["plan"]["sha256"] and output.has_plan(planned.sha256):
        return planned
    output.write_manifest({**there, "done": None})
    for number, one in output.written().items():
        if number >= len(before) or before[number] != after[number]:
            output.store.remove(one.name)
    output.write_plan(after)
    output.write_manifest({**there, "plan": {"sha256": planned.sha256, "parts": len(planned)}, "done": None})
    return planned


def _brought_up(output: Output, there: dict[str, Any], now: list[Part], per_part: int) -> tuple[list[Part], list[Part]]:
    """The plan as it was and as it will be. An unreadable plan equals the present one if no picture has changed;
    otherwise nothing tells which pictures the rows belong to, and all are written again."""
    try:
        before = list(output.parts())
        return before, grown(before, now, per_part)
    except (OSError, ValueError, KeyError, TypeError):
        before = now if output.planned(now).sha256 == there["plan"]["sha256"] else []
        return before, grown(before, now, per_part)


def _about(request: Request, opened: Opened) -> dict[str, Any]:
    return {
        "verb": request.work.verb,
        "model": {"where": request.work.model, "fingerprint": opened.fingerprint},
        **opened.about,
        "options": {**request.work.options, "batch": request.batch, "part": request.per_part},
        "inputs": list(request.inputs),
    }


def _compare(where: str, there: dict[str, Any], here: dict[str, Any]) -> None:
    if there["verb"] != here["verb"]:
        raise UserError(f"{where}: began as `vitreous {there['verb']}`; choose another --out")
    if there["model"]["fingerprint"] != here["model"]["fingerprint"]:
        raise UserError(f"{where}: began with another model ({there['model']['where']}); choose another --out")
    for name, value in here["options"].items():
        if there["options"].get(name) != value:
            was = there["options"].get(name)
            raise UserError(f"{where}: began with {name} {was}, now it is {value}; choose another --out")


def _done(request: Request, output: Output, planned: Plan, missing: Sequence[int], opened: Opened) -> Iterator[Written]:
    model = Path(request.work.model).expanduser()  # workers may start in another folder
    job = Job(
        work=replace(request.work, model=str(model.absolute())) if model.exists() else request.work,
        out=output.where,
        root=str(Path.cwd()),
        device=request.device,
        batch=request.batch,
        fingerprint=opened.fingerprint,
    )
    lines = [Line(number, planned.starts[number], planned.starts[number + 1]) for number in missing]
    if not lines:
        return iter(())
    return engines.local(job, lines, opened) if request.engine == "local" else engines.on_ray(job, lines, request.pool)


def _watch(done: Iterator[Written], parts: int) -> None:
    rows = failed = 0
    with Bar("parts", parts) as bar:
        for number, one in enumerate(done, start=1):
            rows, failed = rows + one.rows, failed + one.failed
            bar.update(number, rows=f"{rows:,}", failed=f"{failed:,}")


def _finished(output: Output, planned: Plan, before: set[int]) -> Result:
    written = output.written()
    missing = [number for number in range(len(planned)) if number not in written]
    if missing:
        raise UserError(f"{output.where}: {len(missing)} parts are missing, the first is {missing[0]}; start again")
    rows, failed = (sum(getattr(one, name) for one in written.values()) for name in ("rows", "failed"))
    about = output.manifest()
    assert about is not None
    output.write_manifest({**about, "done": {"rows": rows, "failed": failed}})
    added = sum(one.rows for number, one in written.items() if number not in before)
    return Result(output.where, rows, failed, added)
