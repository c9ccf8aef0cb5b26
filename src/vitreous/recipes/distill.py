"""From teachers: distillation (Touvron et al. 2021, DeiT), function matching, and Noisy Student (Xie et al. 2020)."""

from dataclasses import replace
from typing import Any

from vitreous.data.augmentation import Augmentation, CropSettings, EraseSettings, MixSettings, WarpSettings
from vitreous.data.sources import DataSettings
from vitreous.models import model_settings
from vitreous.models.vit import ViTSettings, as_vit
from vitreous.recipes.large import IMAGENET, MANY_CORES
from vitreous.recipes.recipe import Recipe
from vitreous.recipes.small import plain_vit, small_pictures
from vitreous.recipes.tiny_imagenet import tiny_pictures
from vitreous.recipes.unlabelled import small_vit
from vitreous.tasks.distill import DistillSettings
from vitreous.tasks.matching import FunctionMatchingSettings
from vitreous.training.optim import AdamWSettings
from vitreous.training.schedule import ScheduleSettings


def cifar10_deit(teacher: str = "runs/cifar10_resnet", epochs: float = 200.0) -> Recipe:
    """CIFAR-10 from labels and the decisions of a ResNet: a small ViT with a class and a distillation token.

    Command:  vitreous train cifar10_deit --teacher runs/cifar10_resnet --data.val_fraction 0
              to run the teacher once for many students: vitreous teach cifar10_deit --out TAUGHT, then
              vitreous train cifar10_deit --objective.stored TAUGHT; both with the same data, seed and augmentation
    Cost:     1.3 s per epoch on one H200, so 4.4 minutes; 2.5e16 FLOP, including the teacher's
    Score:    61 epochs: k-NN 92.3, linear 92.2 % (docs/RESULTS.md); its own predictions were not scored yet
    Section:  Touvron et al. 2021, section 4; the recipe is that of cifar10_vit
    """
    model = replace(small_vit("class"), num_prefix=2, stochastic_depth=0.1)
    return replace(small_pictures("cifar10_deit", model, epochs), objective=DistillSettings(), teacher=teacher)


def cifar10_matching(teacher: str = "vitreous-s", picture_px: int = 32, epochs: float = 200.0) -> Recipe:
    """Function matching without labels: a small ViT learns to reproduce the features of any encoder, on any pictures.

    Command:  vitreous train cifar10_matching --teacher vitreous-s --data.where my_pictures --picture_px 64
              for a classifier as the teacher: --objective.match logits
    Cost:     not measured
    Score:    not measured on CIFAR-10; docs/RESULTS.md says how the encoders that ship were made with it
    Section:  Beyer et al. 2022, section 3: consistent views, mixed pictures, a patient schedule
    """
    recipe = small_pictures("cifar10_matching", small_vit("mean", picture_px), epochs)
    return replace(
        recipe,
        data=replace(recipe.data, need_labels=False),
        objective=FunctionMatchingSettings(match="features"),
        teacher=teacher,
    )


def cifar10_noisy_student(labels: int = 4000, steps: int = 12_000) -> Recipe:
    """Few labels and many pictures, for `selftrain`: a plain ViT under noise (augmentation, dropout, stochastic depth).

    Command:  vitreous selftrain cifar10_noisy_student --data.val_fraction 0
              for labels and pictures of your own: --data.where LABELLED --data.train_limit none --unlabelled FOLDER
    Cost:     not measured
    Score:    not measured
    Section:  Xie et al. 2020, algorithm 1; the recipe is that of cifar10_vit
    """
    return _noised(small_pictures("cifar10_noisy_student", _noisy(plain_vit()), 1), steps, train_limit=labels)


def tiny_imagenet_noisy_student(share: float = 0.1, steps: int = 8000) -> Recipe:
    """Tiny ImageNet with the labels of a tenth of its pictures, for `selftrain`.

    Command:  vitreous selftrain tiny_imagenet_noisy_student --data.val_fraction 0
    Cost:     not measured
    Score:    not measured
    Section:  Xie et al. 2020, algorithm 1; the recipe is that of tiny_imagenet_vit
    """
    model = _noisy(replace(plain_vit(), picture_px=(64, 64), patch=8))
    return _noised(tiny_pictures("tiny_imagenet_noisy_student", model, 1), steps, train_fraction=share)


def _noisy(model: ViTSettings) -> ViTSettings:
    return replace(model, stochastic_depth=0.2, dropout=0.1)


def _noised(recipe: Recipe, steps: int, **limits: Any) -> Recipe:
    """In steps, not epochs: a student has many more pictures than its teacher, but should not train longer."""
    return replace(
        recipe, data=replace(recipe.data, **limits), training=replace(recipe.training, epochs=1, steps=steps)
    )


def deit_imagenet(
    teacher: str = "runs/pretrain_imagenet-bit_r152x2", model: str = "vit_b16", data: str = "imagenet"
) -> Recipe:
    """Train on ImageNet alone as in the DeiT paper (Table 9), with hard distillation through a token.

    Command:  vitreous train deit_imagenet --teacher TEACHER --model vit_b16 --data /path/to/imagenet
    Cost:     300 epochs of 1.28 M pictures; B/16: 2.0e19 FLOP, and as many forward passes of the teacher
    Score:    paper, Table 5, at 224 px from a RegNetY-16GF of 82.9 %: Ti 74.5, S 81.2, B 83.4 %; not measured here
    Section:  Touvron et al. 2021, sections 4 and 6, Table 9. What differs: the teacher (theirs is a RegNetY; here any
              classifier, such as a BiT), RandAugment (no noise on its strength), no repeated augmentation
    """
    wrong = f"{model} has no distillation token: the student is a ViT, such as vit_b16"
    settings = as_vit(model_settings(model), wrong)
    batch_size = 1024
    return Recipe(
        name=f"deit_imagenet-{model}",
        # The labels of its test pictures are secret: everybody reports its val pictures.
        data=DataSettings(where=data, val_fraction=0.01, test_split="val"),
        model=replace(settings, num_prefix=2, stochastic_depth=0.1),
        objective=DistillSettings(),
        teacher=teacher,
        normalise=replace(IMAGENET, interpolation="bicubic", crop_fraction=0.875),
        augmentation=Augmentation(
            crop=CropSettings(method="random-resized"),
            warp=WarpSettings(ops=2, magnitude=9),
            erase=EraseSettings(probability=0.25, fill="noise"),
            mix=MixSettings(mixup=0.8, cutmix=1.0),
        ),
        optimizer=AdamWSettings(lr=5e-4 * batch_size / 512, weight_decay=0.05),
        schedule=ScheduleSettings(warmup_fraction=5 / 300, final_fraction=0.01),
        training=replace(MANY_CORES, epochs=300, batch_size=batch_size),
    )
