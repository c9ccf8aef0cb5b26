"""All recipes: each function is one reproducible result. A new recipe is a function, and its name here."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitreous import settings
from vitreous.errors import UserError, did_you_mean
from vitreous.models import model_settings
from vitreous.recipes.beit import beit_imagenet, cifar10_beit, cifar10_tokeniser, tokeniser_imagenet
from vitreous.recipes.cifar10 import (
    cifar10_convnext,
    cifar10_finetune,
    cifar10_hybrid,
    cifar10_pvt,
    cifar10_resnet,
    cifar10_swin,
    cifar10_vit,
)
from vitreous.recipes.contrastive import cifar10_byol, cifar10_mocov3, cifar10_simclr, mocov3_imagenet
from vitreous.recipes.detect import coco_deformable_detr, coco_detr, rendered_detr, voc_deformable
from vitreous.recipes.distill import (
    cifar10_deit,
    cifar10_matching,
    cifar10_noisy_student,
    deit_imagenet,
    tiny_imagenet_noisy_student,
)
from vitreous.recipes.fashion import fashion_finetune, fashion_vit
from vitreous.recipes.finetune import finetune, paper_finetune
from vitreous.recipes.igpt import cifar10_igpt, igpt_imagenet
from vitreous.recipes.instances import coco_small_instances
from vitreous.recipes.masked import (
    cifar10_mae,
    cifar10_masked,
    cifar10_simmim,
    mae_imagenet,
    masked_patch_paper,
)
from vitreous.recipes.masks import (
    camvid_eomt,
    camvid_mask2former,
    rendered_mask2former,
    voc_eomt,
    voc_mask2former,
    voc_segmenter,
)
from vitreous.recipes.multicrop import cifar10_dino, cifar10_swav, dino_imagenet
from vitreous.recipes.paper import pretrain_imagenet, pretrain_imagenet21k, pretrain_jft
from vitreous.recipes.recipe import Recipe, read_recipe
from vitreous.recipes.segment import camvid_segmenter, pets_segmenter, rendered_segmenter
from vitreous.recipes.tiny_imagenet import tiny_imagenet_finetune, tiny_imagenet_hybrid, tiny_imagenet_vit
from vitreous.recipes.unlabelled import cifar10_tuned
from vitreous.recipes.words import flickr8k_clip, flickr8k_lit, flickr8k_siglip, rendered_clip

RECIPES: dict[str, Callable[..., Recipe]] = {
    recipe.__name__: recipe
    for recipe in (
        fashion_vit,
        fashion_finetune,
        cifar10_vit,
        cifar10_hybrid,
        cifar10_resnet,
        cifar10_swin,
        cifar10_convnext,
        cifar10_pvt,
        cifar10_finetune,
        cifar10_simclr,
        cifar10_mocov3,
        cifar10_byol,
        mocov3_imagenet,
        cifar10_dino,
        cifar10_swav,
        dino_imagenet,
        cifar10_masked,
        cifar10_mae,
        cifar10_simmim,
        masked_patch_paper,
        mae_imagenet,
        cifar10_igpt,
        igpt_imagenet,
        cifar10_tokeniser,
        cifar10_beit,
        tokeniser_imagenet,
        beit_imagenet,
        cifar10_tuned,
        cifar10_deit,
        cifar10_matching,
        cifar10_noisy_student,
        tiny_imagenet_noisy_student,
        deit_imagenet,
        tiny_imagenet_vit,
        tiny_imagenet_hybrid,
        tiny_imagenet_finetune,
        rendered_segmenter,
        camvid_segmenter,
        pets_segmenter,
        rendered_mask2former,
        camvid_mask2former,
        camvid_eomt,
        voc_segmenter,
        voc_mask2former,
        voc_eomt,
        rendered_detr,
        voc_deformable,
        coco_detr,
        coco_deformable_detr,
        coco_small_instances,
        rendered_clip,
        flickr8k_clip,
        flickr8k_siglip,
        flickr8k_lit,
        pretrain_imagenet,
        pretrain_imagenet21k,
        pretrain_jft,
        paper_finetune,
    )
}


def find_recipe(name: str, changes: dict[str, str]) -> Recipe:
    """A recipe by name, or from the recipe.json of a run, with changes by dotted name.

    A recipe function's own parameters (`--model vit_l16`) are changes too, and come first.
    """
    if name in RECIPES:
        return assembled(RECIPES[name], {}, changes)
    if name.endswith(".json"):
        return changed(read_recipe(Path(name)), changes)
    raise UserError(
        f"there is no recipe {name!r}.{did_you_mean(name, list(RECIPES))} `vitreous list recipes` shows them"
    )


def finetune_recipe(start: str, data: str, changes: dict[str, str]) -> Recipe:
    if "model" in changes:
        raise UserError(
            f"--model {changes['model']}: the weights of {start} are for one model, which is fine-tuned; `vitreous "
            "train` and `vitreous fit` train others from scratch"
        )
    return assembled(finetune, {"start": start, "data": data}, changes)


def parameters(recipe: Callable[..., Recipe]) -> list[settings.Field]:
    """The parameters of a recipe function; one without a default is "needed"."""
    return [
        settings.Field(one.name, settings.type_name(one.annotation), _shown(one.default), "")
        for one in inspect.signature(recipe).parameters.values()
    ]


def _shown(default: Any) -> str:
    return "needed" if default is inspect.Parameter.empty else str(default)


def assembled(recipe: Callable[..., Recipe], given: dict[str, Any], changes: dict[str, str]) -> Recipe:
    """The recipe that a function makes from its parameters, then changed field by field."""
    takes = inspect.signature(recipe).parameters
    own = {
        name: settings.parsed(takes[name].annotation, text, f"--{name}")
        for name, text in changes.items()
        if name in takes and name not in given
    }
    missing = [name for name, one in takes.items() if one.default is one.empty and name not in own | given]
    if missing:
        raise UserError(f"{recipe.__name__} needs --{missing[0]}; `vitreous train {recipe.__name__} --help` says more")
    rest = {name: text for name, text in changes.items() if name not in own}
    return changed(recipe(**given, **own), rest)


def changed(recipe: Recipe, changes: dict[str, str]) -> Recipe:
    """Field by field. `model` may be a model's name: one for the same pictures, finer where those are small."""
    if "model" in changes:
        named, like = model_settings(changes["model"]), recipe.model
        model = named.for_side(min(like.picture_px)).changed(picture_px=like.picture_px, channels=like.channels)
        recipe = replace(recipe, model=model)
    return settings.changed(recipe, {name: text for name, text in changes.items() if name != "model"})


__all__ = ["RECIPES", "Recipe", "find_recipe", "finetune_recipe", "parameters"]
