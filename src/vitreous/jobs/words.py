"""From captions to tokens: the tokenizer of a run, read, or trained on its captions, and kept in its folder."""

from dataclasses import replace
from pathlib import Path

from vitreous.data.base import Retargeted, Source
from vitreous.data.splits import Splits
from vitreous.data.targets import Captions
from vitreous.errors import UserError
from vitreous.models.text import TextSettings
from vitreous.recipes.recipe import Recipe
from vitreous.storage import atomic
from vitreous.tasks import ImageTextSettings
from vitreous.training.devices import World
from vitreous.training.run import RunDirectory
from vitreous.weights.trained import Trained
from vitreous.words.files import read_tokenizer
from vitreous.words.pairs import library, train_tokenizer
from vitreous.words.tokenizer import Tokenizer

KEPT = "tokenizer.json"  # in the folder of a run: resuming reads the one it started with


def check_tokenizer(recipe: Recipe) -> None:
    """An error, before any picture is read, if the tokenizer is not there, or what would train one."""
    objective = recipe.objective
    if not isinstance(objective, ImageTextSettings):
        return
    if objective.tokenizer is not None:
        read_tokenizer(objective.tokenizer, objective.text.context)
    elif not recipe.start_head:
        library()


def with_words(
    recipe: Recipe, splits: Splits, world: World, directory: RunDirectory | None = None
) -> tuple[Recipe, Splits, Tokenizer | None]:
    """For recipes that learn from captions: the recipe with a text tower for the tokenizer, and the captions as tokens.
    Other recipes stay as they are."""
    objective = recipe.objective
    if not isinstance(objective, ImageTextSettings):
        return recipe, splits, None
    mixing = recipe.augmentation.mix
    if mixing.probability > 0 and max(mixing.mixup, mixing.cutmix) > 0:
        raise UserError("a caption describes one picture: set augmentation.mix.mixup and augmentation.mix.cutmix to 0")
    tokenizer = _kept(recipe, objective, splits.train, world, directory)
    fitting = for_tokenizer(recipe, objective, tokenizer)
    text = fitting.objective.text  # type: ignore[union-attr]
    val, test = (None if part is None else encoded(part, tokenizer, text) for part in (splits.val, splits.test))
    return fitting, replace(splits, train=encoded(splits.train, tokenizer, text), val=val, test=test), tokenizer


def for_tokenizer(recipe: Recipe, objective: ImageTextSettings, tokenizer: Tokenizer) -> Recipe:
    """The recipe with a text tower for this tokenizer; with that of a model, if training goes on with both of its."""
    if recipe.start_head and recipe.start is not None:
        found = _towers(recipe.start, objective)
        width, text = found.width, found.text
    else:
        width, text = objective.width, replace(objective.text, vocabulary=len(tokenizer), end=tokenizer.end)
    return replace(recipe, objective=replace(objective, width=width, text=text, tokenizer=None))


def _towers(start: str, objective: ImageTextSettings) -> ImageTextSettings:
    """Those of a model: the same weights in a tower with another GELU or other heads would be another function."""
    found = Trained.load(start).card.task
    if not isinstance(found, ImageTextSettings):
        raise UserError(f"{start}: has no text tower to go on with: leave out --start_head")
    if objective.loss == "sigmoid" and found.loss != "sigmoid":
        raise UserError(f"{start}: learned without a bias, which SigLIP's loss needs: give --objective.loss softmax")
    return found


def begun_with(folder: Path) -> Tokenizer:
    """The tokenizer of a run."""
    return Tokenizer.of_document(atomic.read_json(folder / KEPT), str(folder / KEPT))


def beginning_as(folder: Path, recipe: Recipe) -> Recipe:
    """With the tokenizer of the run in that folder, if it has one: the file that it came from may be gone."""
    objective = recipe.objective
    if not isinstance(objective, ImageTextSettings) or not (folder / KEPT).is_file():
        return recipe
    return replace(recipe, objective=replace(objective, tokenizer=str(folder / KEPT)))


def _kept(
    recipe: Recipe, objective: ImageTextSettings, train: Source, world: World, directory: RunDirectory | None
) -> Tokenizer:
    """The first rank makes it, and the others read what it wrote. One that was left by a run without checkpoints may
    belong to other settings."""
    if directory is None:
        return _found(recipe, objective, train)
    path = directory.path / KEPT
    begun = directory.checkpoints.paths() and path.is_file()
    if world.is_first and not begun:
        atomic.write_json(_found(recipe, objective, train).document(), path)
    world.wait()
    return begun_with(directory.path)


def _found(recipe: Recipe, objective: ImageTextSettings, train: Source) -> Tokenizer:
    if objective.tokenizer is not None:
        return read_tokenizer(objective.tokenizer, objective.text.context)
    if recipe.start_head and recipe.start is not None:
        return Trained.load(recipe.start).tokenizer()
    learned = train_tokenizer(_captions(train).all_texts(), objective.text.vocabulary, objective.text.context)
    learned.check("objective.text.context")
    return learned


def encoded(source: Source, tokenizer: Tokenizer, text: TextSettings) -> Source:
    """The same pictures, with captions as tokens for this text tower."""
    padding = tokenizer.padding if text.may_be_cut else None
    return Retargeted(source, _captions(source).encoded(tokenizer, padding))


def _captions(source: Source) -> Captions:
    if not isinstance(source.targets, Captions):
        raise UserError(
            f"{source.name}: its pictures have no captions, or something else was read: "
            "give --data.layout.targets captions"
        )
    return source.targets
