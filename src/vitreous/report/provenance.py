"""Where all of this comes from: enough to make it again."""

import hashlib
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vitreous import settings
from vitreous.data.base import Source
from vitreous.data.fingerprint import names_digest
from vitreous.fitting.candidates import FINE_TUNED, FROM_SCRATCH
from vitreous.fitting.fitted import Fitted
from vitreous.report.html import Html, command, facts, folded, paragraph, table, tag, together


def section(result: Fitted[Any]) -> Html:
    starts = _json(result.out / "environment.json") or [{}]
    return together(
        facts(_environment(starts[-1], len(starts))),
        tag.h3("Hashes (sha256)"),
        table(("what", "sha256"), [(what, tag.code(value, class_="hash")) for what, value in _hashes(result)]),
        folded("The recipe in full", command(json.dumps(settings.to_json(result.plan.recipe), indent=2))),
        folded("Options given", command(json.dumps(settings.to_json(result.request), indent=2))),
        _again(result),
    )


def _again(result: Fitted[Any]) -> Html:
    """How to train the same weights again, if any were trained."""
    if not result.results["steps"]:
        return paragraph("Nothing was trained: the command above, with another --out, makes the same model again.")
    trained = next(one for one in result.candidates if one.name in (FINE_TUNED, FROM_SCRATCH))
    kept = next(one for one in result.candidates if one.is_kept)
    which = (
        ""
        if trained == kept
        else f", those of \N{LEFT DOUBLE QUOTATION MARK}{trained.name}\N{RIGHT DOUBLE QUOTATION MARK}"
    )
    return together(
        paragraph(f"To train the same weights again{which}, on the same machine and versions:", class_="use"),
        command(f"vitreous train {shlex.quote(str(result.out / 'recipe.json'))} --out runs/again"),
    )


def _environment(start: dict[str, Any], num_starts: int) -> Iterator[tuple[str, str | Html]]:
    words = start.get("command") or []
    if words:
        program = Path(words[0]).name.replace("__main__.py", "vitreous")  # as `python -m vitreous` is called
        yield "command", tag.code(shlex.join([program, *words[1:]]))
    yield "started", f"{start.get('started')}" + (f" (start {num_starts})" if num_starts > 1 else "")
    changed = " with uncommitted changes" if start.get("uncommitted_changes") else ""
    if start.get("commit"):
        yield "commit", together(tag.code(start["commit"], class_="hash"), changed)
    yield "versions", ", ".join(f"{name} {version}" for name, version in start.get("versions", {}).items())
    yield "hardware", f"{start.get('cpu')}, cores {start.get('cores')}, threads {start.get('threads')}"
    if start.get("gpus"):
        yield "GPUs", f"{', '.join(start['gpus'])}; CUDA {start.get('cuda')}, driver {start.get('gpu_driver')}"
    yield "platform", str(start.get("platform"))


def _hashes(result: Fitted[Any]) -> Iterator[tuple[str, str]]:
    for name, about in _json(result.out / "model" / "manifest.json")["files"].items():
        yield f"model/{name}", about["sha256"]
    parts = {"train": result.splits.train, "val": result.splits.val, "test": result.splits.test}
    for name, source in parts.items():
        if source is not None:
            of = "names and labels" if source.pictures is None else "pixels and labels"
            yield f"{name}: {of}", _digest(source)


def _digest(source: Source) -> str:
    """Of pixels where they are in memory in one piece: to read all files again would take as long as an epoch."""
    if source.pictures is None:
        return names_digest(source)
    digest = hashlib.sha256()
    source.targets.update(digest)
    digest.update(np.ascontiguousarray(source.pictures).data)
    return digest.hexdigest()


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
