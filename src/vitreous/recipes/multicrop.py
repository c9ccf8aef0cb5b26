"""DINO and SwAV: two global crops of every picture, and some small ones that cost little."""

from dataclasses import replace

from vitreous.data.augmentation import Augmentation, CropSettings
from vitreous.data.views import ViewSettings
from vitreous.models import ViTSettings
from vitreous.models.vit import EndSettings
from vitreous.objectives.dino import DINOSettings
from vitreous.objectives.swav import SwAVSettings
from vitreous.recipes.contrastive import FIRST, SECOND
from vitreous.recipes.large import IMAGENET, MANY_CORES, unlabelled_imagenet
from vitreous.recipes.recipe import Recipe
from vitreous.recipes.unlabelled import CONTRAST, cell_of, share_of_run, small_vit, unlabelled
from vitreous.training.optim import AdamWSettings
from vitreous.training.schedule import ScheduleSettings


def cifar10_dino(local_crops: int = 4, epochs: float = 100.0, picture_px: int = 32) -> Recipe:
    """DINO on CIFAR-10: a plain ViT of 4.8 M parameters agrees with its own momentum teacher, without labels.

    Command:  vitreous train cifar10_dino
    Cost:     2.1 s per epoch on one H200, so 3.6 minutes; 3.3e16 FLOP
    Score:    56 epochs: k-NN 80.5, linear 81.8 % (docs/RESULTS.md)
    Section:  Caron et al. 2021, section 3; the recipe for 32 px is ours
    """
    first, more = small_crops(local_crops, picture_px)
    return unlabelled(
        "cifar10_dino",
        # For fewer steps than in the paper: a sharper teacher that follows faster.
        DINOSettings(prototypes=4096, teacher_temperature=0.04, momentum=0.99),
        small_vit("class", picture_px),
        epochs=epochs,
        augmentation=first,
        more_views=more,
    )


def cifar10_swav(local_crops: int = 4, epochs: float = 100.0, picture_px: int = 32) -> Recipe:
    """SwAV on CIFAR-10: the same ViT predicts to which of 512 prototypes a picture's other crops belong.

    Command:  vitreous train cifar10_swav
    Cost:     1.9 s per epoch on one H200, so 3.2 minutes; 2.6e16 FLOP
    Score:    78 epochs: k-NN 86.0, linear 87.8, fine-tuned for 20 epochs 93.8 % (docs/RESULTS.md)
    Section:  Caron et al. 2020, section 3; the recipe for 32 px is ours
    """
    first, more = small_crops(local_crops, picture_px)
    return unlabelled(
        "cifar10_swav",
        SwAVSettings(prototypes=512),
        small_vit("class", picture_px),
        epochs=epochs,
        augmentation=first,
        more_views=more,
    )


def dino_imagenet(
    data: str = "imagenet", local_crops: int = 10, epochs: float = 800.0, picture_px: int = 224
) -> Recipe:
    """DINO on ImageNet as in its paper: ViT-S/16, batch 1024, two crops of 224 px and ten of 96 px.

    The paper's weight decay rises from 0.04 to 0.4 along a cosine. Optimizers here have one weight decay for the whole
    run, so this recipe keeps 0.04 and will not reach the paper's score exactly. The rate ends at 0, not at 1e-5. The
    released runs of S/16 do not fix the norms of the last layer; here they are 1, as for B/16.

    Command:  vitreous train dino_imagenet --data /path/to/imagenet
    Cost:     800 epochs of 1.28 M pictures; 2.6 days on 16 GPUs of 2021 for 300 of them (the authors)
    Score:    paper, Table 2: linear 77.0, k-NN 74.5 %; not measured yet here
    Section:  Caron et al. 2021, section 3.2
    """
    batch_size, patch = 1024, 16
    local_px = max(1, round(picture_px * 96 / 224 / patch)) * patch
    whole, part = CropSettings(scale=(0.25, 1.0)), CropSettings(scale=(0.05, 0.25))
    first, second = replace(FIRST, crop=whole), replace(SECOND, crop=whole)
    local = replace(FIRST, crop=part, colour=replace(FIRST.colour, blur=0.5))
    return Recipe(
        name="dino_imagenet",
        data=unlabelled_imagenet(data),
        model=ViTSettings(
            picture_px=(picture_px, picture_px),
            patch=patch,
            width=384,
            depth=12,
            heads=6,
            ends=EndSettings(resizing="bicubic"),
            stochastic_depth=0.1,
        ),
        objective=DINOSettings(temperature_fraction=share_of_run(30, epochs), freeze_fraction=share_of_run(1, epochs)),
        normalise=IMAGENET,
        augmentation=first,
        more_views=(
            ViewSettings(augmentation=second),
            ViewSettings(augmentation=local, times=local_crops, size_px=(local_px, local_px)),
        ),
        optimizer=AdamWSettings(lr=5e-4 * batch_size / 256, weight_decay=0.04),
        schedule=ScheduleSettings(warmup_fraction=share_of_run(10, epochs)),
        training=replace(MANY_CORES, epochs=epochs, batch_size=batch_size, clip=3.0, evaluate_every_epochs=0),
    )


def small_crops(local_crops: int, picture_px: int) -> tuple[Augmentation, tuple[ViewSettings, ...]]:
    """Two global crops, the second sometimes solarized, and local ones of half the size in whole patches: 32 and 16 px.
    No blur, which makes little difference in such small pictures (Chen et al. 2020, appendix B.9)."""
    cell = cell_of(picture_px)
    local_px = picture_px // cell // 2 * cell
    whole, part = (replace(CONTRAST, crop=CropSettings(scale=scale)) for scale in ((0.3, 1.0), (0.08, 0.3)))
    return whole, (
        ViewSettings(augmentation=replace(whole, colour=replace(whole.colour, solarize=0.2))),
        ViewSettings(augmentation=part, times=local_crops, size_px=(local_px, local_px)),
    )
