"""Verify: whether all files of a run are intact, whether its pictures are still those it learned from, and, if asked,
whether it resumes on this machine exactly as if it had not been stopped."""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vitreous import settings
from vitreous.data.fingerprint import difference, fingerprint
from vitreous.data.sources import DataSettings
from vitreous.data.splits import Splits
from vitreous.display.words import counted
from vitreous.errors import UserError
from vitreous.jobs import words
from vitreous.jobs.data import OpenData
from vitreous.jobs.train import train
from vitreous.recipes.recipe import Recipe, read_recipe
from vitreous.signals import Stopped
from vitreous.storage import atomic
from vitreous.training.checkpoint import Checkpoints
from vitreous.training.run import RunDirectory
from vitreous.training.stopping import StoppedError
from vitreous.weights import own

STEPS = 8  # to take twice


@dataclass(frozen=True)
class Check:
    name: str
    holds: bool
    found: str  # in words


def verify(
    where: str | Path, resume: bool = False, device: str = "auto", open_data: OpenData = DataSettings.build
) -> list[Check]:
    """Check each part of a run, which is only read, never written to. `device`: auto means that of the recipe."""
    path = Path(where)
    if not path.is_dir():
        raise UserError(f"{path}: no such folder; give a run directory")
    if not (path / "recipe.json").exists():
        raise UserError(f"{path}: not a run (no recipe.json); give a run directory")
    directory = RunDirectory(path, tensorboard=False)
    directory.check_ours()
    recipe, checked = _recipe(path)
    checks = [checked, _checkpoints(directory), *_folders(directory), *_documents(path), _end(directory)]
    if recipe is not None and _took_no_step(directory):
        checks.append(
            Check("training", True, "no steps were taken: there are no pictures to compare, and none to resume")
        )
    elif recipe is not None:
        checks.append(_log(directory, recipe))
        splits, checked = _pictures(path, recipe, open_data)
        if device != "auto":
            recipe = settings.changed(recipe, {"training.device": device})
        checks.append(checked)
        if resume and splits is not None:
            checks.append(_resume(directory, recipe, splits))
    return checks


# ---- the files of the run


def _recipe(path: Path) -> tuple[Recipe | None, Check]:
    try:
        recipe = read_recipe(path / "recipe.json").located()
    except UserError as error:
        return None, Check("recipe", False, str(error))
    return recipe, Check("recipe", True, f"{recipe.name}, which this version can read")


def _checkpoints(directory: RunDirectory) -> Check:
    """All of them, while resuming reads only the newest."""
    steps = list(directory.checkpoints.paths())
    if not steps:
        finished = directory.results() is not None
        return Check("checkpoints", True, "none left" if finished else "none yet: the run starts at its first step")
    found = {step: _damage(directory.checkpoints, step) for step in steps}
    for step in found.keys() - directory.checkpoints.paths().keys():
        del found[step]  # a run that goes on has replaced it meanwhile
    damaged = [words for words in found.values() if words is not None]
    whole = [step for step, words in found.items() if words is None]
    named = ", ".join(f"{step:,}" for step in whole)
    if not damaged:
        return Check("checkpoints", True, f"intact, after step {named}")
    goes_on = f"the run resumes from step {whole[-1]:,}" if whole else "the run cannot be resumed"
    return Check("checkpoints", False, f"{damaged[-1]}; {goes_on}")


def _damage(checkpoints: Checkpoints, step: int) -> str | None:
    try:
        checkpoints.read(step)
    except UserError as error:
        return str(error)
    return None


def _folders(directory: RunDirectory) -> Iterator[Check]:
    """The folders of weights and predictions, beside the checkpoints; also those that have lost their manifest."""
    files = (own.MANIFEST, "*.safetensors")
    folders = {file.parent for name in files for file in directory.path.glob(f"[!.]*/{name}")}
    for folder in sorted(folders | _model(directory)):
        damage = own.verify_folder(folder)
        yield Check(folder.name, damage is None, damage or "intact: it matches its manifest")


def _model(directory: RunDirectory) -> set[Path]:
    """Where the model must be, once there is one."""
    path, trained = directory.path, directory.path / "trained"
    if (path / "plan.json").exists():  # a fit, which goes on after training
        return {path / "model"} if (path / "fit.json").exists() else set()
    if directory.results() is None:
        return set()
    return {trained if trained.exists() else path / "model"}  # the first if the run was a part of a fit


def _documents(path: Path) -> Iterator[Check]:
    """Those of the other records that cannot be read."""
    for file in sorted(path.glob("[!.]*.json")):
        if file.name not in ("run.json", "recipe.json", "pictures.json", "results.json"):
            try:
                atomic.read_json(file)
            except UserError as error:
                yield Check(file.stem, False, str(error))


def _log(directory: RunDirectory, recipe: Recipe) -> Check:
    """The log never ends before a checkpoint, which is saved after its step is logged."""
    newest = max(directory.checkpoints.paths(), default=0)  # first: the run may be going on
    rows, every = directory.rows(), recipe.training.log_every_steps
    logged = max((row["step"] for row in rows), default=0)
    if logged < newest - newest % every:
        return Check(
            "log", False, f"{directory.metrics}: ends at step {logged:,}, but there is a checkpoint of step {newest:,}"
        )
    return Check("log", True, f"{len(rows):,} lines, up to step {logged:,}")


def _end(directory: RunDirectory) -> Check:
    results, path = directory.results(), directory.path / "results.json"
    if results is not None:
        return Check("results", True, f"finished, after {counted(results['steps'], 'step')}")
    if path.exists():
        return Check("results", False, f"{path}: damaged; the same command repeats the end of the run")
    return Check("results", True, "not finished; the same command resumes it")


def _took_no_step(directory: RunDirectory) -> bool:
    """A fit may end with the model that it made first."""
    results = directory.results()
    return results is not None and not results["steps"] and not (directory.path / "pictures.json").exists()


def _pictures(path: Path, recipe: Recipe, open_data: OpenData) -> tuple[Splits | None, Check]:
    try:
        splits = open_data(recipe.data)
        here, there = fingerprint(splits), atomic.read_json(path / "pictures.json")
    except UserError as error:
        return None, Check("pictures", False, str(error))
    if changed := difference(there, here):
        return None, Check("pictures", False, f"{recipe.data.where}: the pictures have changed ({changed})")
    total = sum(part["pictures"] for part in here.values())
    return splits, Check("pictures", True, f"{total:,}: names, labels and sizes are unchanged since the run began")


# ---- exact resume, on this machine


def _resume(directory: RunDirectory, recipe: Recipe, splits: Splits) -> Check:
    """Take some steps without a stop, and the same steps with one; on copies, so that the run is not changed."""
    try:
        start, end = _from_where(directory, recipe, splits)
        halfway = (start + end) // 2
        with tempfile.TemporaryDirectory(prefix="vitreous-verify-") as folder:
            copies = [_copy(directory, recipe, Path(folder) / name, start) for name in ("straight", "stopped")]
            for copy, stops in zip(copies, ((end,), (halfway, end)), strict=True):
                for stop in stops:
                    train(read_recipe(copy / "recipe.json"), copy, False, lambda _: splits, until=stop)
            difference = _difference(*(RunDirectory(copy) for copy in copies))
    except (Stopped, StoppedError) as error:  # which is no finding, and what was saved is gone with the copies
        raise Stopped(error.number) from error
    except UserError as error:
        return Check("resume", False, str(error))
    steps = f"steps {start + 1:,} to {end:,}, without a stop and with one after {halfway:,}"
    return Check("resume", difference is None, f"{steps}: {difference or 'losses and all state equal, bit for bit'}")


def _from_where(directory: RunDirectory, recipe: Recipe, splits: Splits) -> tuple[int, int]:
    """The newest intact checkpoint with steps left before the end; the very beginning if there is none."""
    training = recipe.for_pictures(len(splits.train)).training
    last = training.num_steps(len(splits.train) // training.batch_size) - 1
    if last < 2:
        raise UserError(f"{directory.path}: a run of {last + 1} steps is too short to stop and resume")
    steps = [step for step in directory.checkpoints.paths() if _damage(directory.checkpoints, step) is None]
    start = max((step for step in steps if step <= last - 2), default=0)
    return start, min(start + STEPS, last)


def _copy(directory: RunDirectory, recipe: Recipe, path: Path, start: int) -> Path:
    """A copy of the run that can resume from that step, and logs every step."""
    training = replace(recipe.training, log_every_steps=1, checkpoint_every_s=float("inf"))
    settings.save(words.beginning_as(directory.path, replace(recipe, training=training)), path / "recipe.json")
    for name in ("run.json", "pictures.json", words.KEPT):
        if (directory.path / name).exists():
            shutil.copy(directory.path / name, path / name)
    if start > 0:
        name = f"checkpoints/step-{start:08}"
        try:
            shutil.copytree(directory.path / name, path / name)
        except OSError as error:  # also shutil.Error, which has no reason but a list of them
            raise UserError(
                f"{directory.path / name}: cannot be copied to {path.parent} ({error.strerror or 'not all of it'}): "
                "TMPDIR may name a folder with more room; if the run is still going on, try again"
            ) from None
    return path


def _difference(straight: RunDirectory, stopped: RunDirectory) -> str | None:
    if straight.rows() != stopped.rows():
        return "the losses differ"
    one, two = (run.latest_checkpoint() for run in (straight, stopped))
    assert one is not None and two is not None
    for stem, named in one.tensors.items():
        for name, tensor in named.items():
            if not torch.equal(tensor, two.tensors[stem][name]):
                return f"{name} of {stem} differs"
    return None
