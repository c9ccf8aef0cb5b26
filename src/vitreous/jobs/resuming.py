"""Whether a run may be resumed: only with the recipe, and on the pictures, that it was started with."""

from dataclasses import replace

from vitreous import settings
from vitreous.data.fingerprint import difference, fingerprint
from vitreous.data.splits import Splits
from vitreous.errors import UserError
from vitreous.recipes.recipe import Recipe, read_recipe
from vitreous.storage import atomic
from vitreous.training.loop import MemorySettings
from vitreous.training.run import RunDirectory


def claim(directory: RunDirectory, recipe: Recipe) -> None:
    """A run with checkpoints belongs to one recipe: the same one resumes it, a different one is refused."""
    path = directory.path / "recipe.json"
    begun = bool(directory.checkpoints.paths()) or directory.results() is not None
    there = read_recipe(path).located() if begun and path.is_file() else recipe
    here = recipe.in_order_of(there)
    if _apart_from_places(there) != _apart_from_places(here):
        old, new = ({field.name: field.value for field in settings.fields(one)} for one in (there, here))
        differing = [
            f"{name} {old.get(name, 'absent')} there, {new.get(name, 'absent')} here"
            for name in old | new
            if name not in old or name not in new or old[name] != new[name]
        ]
        raise UserError(
            f"{directory.path} holds a different run ({'; '.join(differing[:3])}). Choose another --out, or give the "
            "same settings to resume it"
        )
    settings.save(here, path)


def as_begun(directory: RunDirectory, recipe: Recipe) -> Recipe:
    """The recipe with the order of samples that the run was started with, once it is claimed."""
    return recipe.in_order_of(read_recipe(directory.path / "recipe.json"))


def _apart_from_places(recipe: Recipe) -> Recipe:
    """How many ranks share a run, and how they save memory, may change when it is resumed: fewer ranks may need more
    parts of a batch."""
    return replace(recipe, training=replace(recipe.training, memory=MemorySettings()))


def check_pictures(directory: RunDirectory, data: str, splits: Splits, owner: bool) -> None:
    """Pictures that were added, moved or relabelled would be drawn and numbered differently from here on."""
    path, here = directory.path / "pictures.json", fingerprint(splits)
    begun = directory.checkpoints.paths() and path.is_file()
    if begun and (changed := difference(atomic.read_json(path), here)):
        raise UserError(
            f"{data}: the pictures have changed since the run in {directory.path} began ({changed}). Choose another "
            f"--out; or remove {path} to continue with the pictures as they are now"
        )
    if owner:
        atomic.write_json(here, path)
