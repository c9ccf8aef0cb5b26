"""Self-training: a teacher labels unlabelled pictures, and a noised student that learns from both is the next teacher
(Xie et al. 2020, Noisy Student, algorithm 1).

OUT/selftrain.json     what was asked for
OUT/teacher/           the run on the labels alone, if no teacher was given
OUT/labels-1/          the teacher's labels, as a data set (data/joined)
OUT/student-1/         the run on it; then labels-2/, student-2/, and so on
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitreous import settings
from vitreous.data.joined import is_joined
from vitreous.data.sources import DataSettings
from vitreous.data.splits import Splits
from vitreous.errors import UserError
from vitreous.jobs.data import OpenData
from vitreous.jobs.train import train
from vitreous.recipes.recipe import Recipe
from vitreous.storage import atomic, locks
from vitreous.tasks.classify import ClassifySettings
from vitreous.teaching.pseudo import PseudoLabelled, PseudoSettings, ask, believed
from vitreous.teaching.sets import Sets, on_joined
from vitreous.training.devices import World, autocast
from vitreous.weights.trained import Trained


def selftrain(
    recipe: Recipe,
    out: str | Path,
    *,
    unlabelled: str | None = None,
    teacher: str | None = None,
    rounds: int = 3,
    pseudo: PseudoSettings | None = None,
    read_test: bool = True,
    open_data: OpenData = DataSettings.build,
    told: Callable[[str, dict[str, Any]], None] | None = None,
) -> dict[str, dict[str, Any]]:
    """Train for `rounds` rounds. The same call resumes where it stopped, and may later ask for more rounds. Returns the
    results by the name of each run; `told` is called with each as it ends."""
    pseudo, out = pseudo or PseudoSettings(), Path(out)
    if not isinstance(recipe.objective, ClassifySettings) or recipe.objective.loss != "softmax":
        raise UserError(f"{recipe.name} does not learn one class per picture, as a teacher's labels require")
    world = World.join(recipe.training.device)
    out.mkdir(parents=True, exist_ok=True)
    lock = locks.take(out / "lock") if world.is_first else None
    if world.is_first and lock is None:
        raise UserError(f"{out}: in use by {locks.holder(out / 'lock')}; wait for it to end, or choose another --out")
    try:
        if world.is_first:
            _claim(out, recipe, unlabelled, teacher, pseudo)
        sets, results = Sets.opened(recipe.data, unlabelled, open_data), {}

        def trained(name: str, one: Recipe, splits: Splits) -> str:
            found = train(one, out / name, read_test=read_test, open_data=lambda _: splits)
            results[name] = found
            if told is not None:
                told(name, found)
            return str(out / name)

        where = trained("teacher", recipe, sets.splits) if teacher is None else teacher
        for number in range(1, rounds + 1):
            folder = out / f"labels-{number}"
            if world.is_first and not is_joined(folder):
                sets.write(folder, _labelled(where, sets, recipe, pseudo, world), pseudo.ratio)
            world.wait()
            where = trained(f"student-{number}", on_joined(recipe, folder), sets.joined(folder))
        return results
    finally:
        if lock is not None:
            lock.close()


def _labelled(where: str, sets: Sets, recipe: Recipe, pseudo: PseudoSettings, world: World) -> PseudoLabelled:
    places, probabilities = ask(
        Trained.load(where),
        sets.splits.train.classes,
        sets.rest,
        device=world.device,
        within=lambda: autocast(world.device, recipe.training.precision),
        workers=recipe.training.workers,
    )
    found = believed(places, probabilities, pseudo)
    if not len(found.taken):
        raise UserError(
            f"{where} is not confident enough about any of {found.shown:,} unlabelled pictures: set --confidence below "
            f"{pseudo.confidence:g} (after the first round, with another --out)"
        )
    print(f"{len(found.taken):,} of {found.shown:,} pictures labelled by {where}", flush=True)
    return found


def _claim(out: Path, recipe: Recipe, unlabelled: str | None, teacher: str | None, pseudo: PseudoSettings) -> None:
    """A folder belongs to one request: the same one resumes it, a different one is refused."""
    path, here = (
        out / "selftrain.json",
        {
            "recipe": settings.to_json(recipe.located()),
            "unlabelled": unlabelled,
            "teacher": teacher,
            "pseudo": settings.to_json(pseudo),
        },
    )
    if path.is_file():
        there = atomic.read_json(path)
        there = there if isinstance(there, dict) else {}
        differing = [name for name in here if there.get(name) != here[name]]
        if differing == ["pseudo"] and not is_joined(out / "labels-1"):  # nothing was labelled by the other rule
            atomic.write_json(here, path)
        elif differing:
            asked = " and ".join("rule for labels (selftrain.json)" if name == "pseudo" else name for name in differing)
            raise UserError(f"{out}: started with a different {asked}; give the same, or choose another --out")
        return
    if names := atomic.strangers(out):
        raise UserError(f"{out}: holds {names[0]!r} already; choose another --out")
    atomic.write_json(here, path)
