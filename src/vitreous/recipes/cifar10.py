"""CIFAR-10 from scratch: small models, pictures on the GPU, minutes per run."""

from dataclasses import replace

from vitreous.models import ConvNeXtSettings, PVTSettings, ResNetSettings
from vitreous.models.stems import ConvStem
from vitreous.recipes.finetune import larger
from vitreous.recipes.recipe import Recipe
from vitreous.recipes.small import plain_vit, small_pictures, small_swin
from vitreous.training.optim import SGDSettings
from vitreous.training.schedule import ScheduleSettings
from vitreous.weights.trained import Trained


def cifar10_vit(epochs: float = 200.0) -> Recipe:
    """CIFAR-10 from scratch: a plain ViT of 6.3 M parameters, patches of 4 px, one linear map.

    Command:  vitreous train cifar10_vit --data.val_fraction 0
    Cost:     3.4 minutes on one H200; 2.5e16 FLOP
    Score:    95.52 % (mean of three seeds; docs/RESULTS.md)
    Section:  4.3 asks how ViTs fare on little data; the recipe is ours
    """
    return small_pictures("cifar10_vit", plain_vit(), epochs)


def cifar10_hybrid(epochs: float = 150.0) -> Recipe:
    """CIFAR-10 from scratch: the same transformer, shallower, behind a small convolutional stem (a hybrid).

    Command:  vitreous train cifar10_hybrid --data.val_fraction 0
    Cost:     3.2 minutes on one H200; 2.4e16 FLOP
    Score:    96.58 % (mean of three seeds; docs/RESULTS.md)
    Section:  3.1 (hybrid architecture); the recipe is ours
    """
    stem = ConvStem(widths=(64, 128, 256), strides=(1, 2, 2), residuals=(1, 1, 1))
    model = replace(plain_vit(), stem=stem, patch=1, depth=5)
    return small_pictures("cifar10_hybrid", model, epochs)


def cifar10_resnet(epochs: float = 100.0) -> Recipe:
    """CIFAR-10 from scratch: a BiT-style ResNet of similar cost per picture, the rival.

    Command:  vitreous train cifar10_resnet --data.val_fraction 0
    Cost:     6.2 minutes on an H200 shared with other programs; 1.2e16 FLOP
    Score:    96.01 % (one seed; docs/RESULTS.md)
    Section:  4.1 (the baselines); the recipe is ours
    """
    model = ResNetSettings(picture_px=(32, 32), depths=(2, 2, 2, 2), base_width=48, root="small")
    return small_pictures("cifar10_resnet", model, epochs)


def cifar10_swin(epochs: float = 283.0) -> Recipe:
    """CIFAR-10 from scratch: a Swin of 6.8 M parameters, patches of 2 px, windows of 4, three stages.

    Command:  vitreous train cifar10_swin --data.val_fraction 0
    Cost:     2.5e16 FLOP, as many as cifar10_vit; its time is not yet measured
    Score:    not yet measured
    Section:  Liu et al. 2021, 3; the sizes and the recipe are ours
    """
    return small_pictures("cifar10_swin", small_swin(), epochs)


def cifar10_convnext(epochs: float = 278.0) -> Recipe:
    """CIFAR-10 from scratch: a ConvNeXt of 7.0 M parameters, first steps of 2 px, three stages.

    Command:  vitreous train cifar10_convnext --data.val_fraction 0
    Cost:     2.5e16 FLOP, as many as cifar10_vit; its time is not yet measured
    Score:    not yet measured
    Section:  Liu et al. 2022, 2; the sizes and the recipe are ours
    """
    model = ConvNeXtSettings(
        picture_px=(32, 32), patch=2, widths=(96, 192, 384), depths=(3, 9, 3), stochastic_depth=0.1
    )
    return small_pictures("cifar10_convnext", model, epochs)


def cifar10_pvt(epochs: float = 250.0) -> Recipe:
    """CIFAR-10 from scratch: a PVT v2 of 6.4 M parameters, overlapping patches with steps of 2 px, three stages.

    Command:  vitreous train cifar10_pvt --data.val_fraction 0
    Cost:     2.5e16 FLOP, as many as cifar10_vit; its time is not yet measured
    Score:    not yet measured
    Section:  Wang et al. 2022, 3; the sizes and the recipe are ours
    """
    model = PVTSettings(
        picture_px=(32, 32),
        patch=2,
        widths=(96, 192, 320),
        depths=(3, 6, 2),
        heads=(3, 6, 10),
        mlp_factors=(4, 4, 4),
        reductions=(2, 1, 1),  # at most 64 keys, as many as the ViT has tokens
        stochastic_depth=0.1,
    )
    return small_pictures("cifar10_pvt", model, epochs)


def cifar10_finetune(start: str = "runs/cifar10_vit", picture_px: int = 48, epochs: float = 10.0) -> Recipe:
    """Fine-tune a CIFAR-10 run at a higher resolution, 48 px, with interpolated positions.

    Command:  vitreous train cifar10_finetune --start runs/cifar10_vit --data.val_fraction 0
    Cost:     20 seconds on one H200
    Score:    95.98 %, from 95.52 % (means of three seeds; docs/RESULTS.md)
    Section:  3.2
    """
    recipe = small_pictures("cifar10_finetune", larger(Trained.load(start).card.model, picture_px), epochs)
    return replace(
        recipe,
        start=start,
        optimizer=SGDSettings(lr=0.01, momentum=0.9),
        schedule=ScheduleSettings(warmup_fraction=0.05),
        training=replace(recipe.training, evaluate_every_epochs=0),
    )
