"""BEiT (Bao et al. 2021): first the visual words, then a ViT that predicts those of hidden patches."""

from dataclasses import replace

from vitreous.data.augmentation import Augmentation, ColourSettings
from vitreous.models import TokeniserSettings, ViTSettings, model_settings
from vitreous.models.vit import BlockSettings
from vitreous.objectives.beit import BEiTSettings
from vitreous.objectives.tokeniser import VisualTokensSettings
from vitreous.recipes.large import MANY_CORES, unlabelled_imagenet
from vitreous.recipes.recipe import Recipe
from vitreous.recipes.unlabelled import CROPS, cell_of, small_vit, unlabelled
from vitreous.training.averages import AverageSettings
from vitreous.training.optim import AdamWSettings
from vitreous.training.schedule import ScheduleSettings


def cifar10_tokeniser(epochs: float = 100.0, picture_px: int = 32) -> Recipe:
    """Visual words for CIFAR-10: a discrete VAE of 8 x 8 cells per picture and 1024 words. BEiT learns from it.

    Command:  vitreous train cifar10_tokeniser
    Cost:     1.9 s per epoch on one H200, so 3.2 minutes; 1.8e16 FLOP
    Score:    none of its own; BEiT learned from one of 41 epochs
    Section:  Ramesh et al. 2021, section 2.1 and appendix A; the recipe is ours
    """
    model = TokeniserSettings(
        picture_px=(picture_px, picture_px), stride=cell_of(picture_px), width=256, vocabulary=1024, blocks=1
    )
    return unlabelled(
        "cifar10_tokeniser",
        VisualTokensSettings(decoder_blocks=1),
        model,
        epochs=epochs,
        augmentation=CROPS,
        optimizer=AdamWSettings(lr=2e-3, weight_decay=1e-4),  # the paper's decay; a rate for such a small model
    )


def cifar10_beit(teacher: str = "runs/cifar10_tokeniser", epochs: float = 400.0, picture_px: int = 32) -> Recipe:
    """BEiT on CIFAR-10: 25 of 64 patches hidden in blocks, their words predicted.

    Command:  vitreous train cifar10_beit --teacher runs/cifar10_tokeniser
    Cost:     0.7 s per epoch on one H200, so 4.8 minutes; 4.5e16 FLOP
    Score:    112 epochs: k-NN 54.9, linear 67.5, fine-tuned 92.4 % (docs/RESULTS.md)
    Section:  Bao et al. 2021, section 2; the recipe is ours
    """
    model = small_vit("mean", picture_px)
    # 16 patches of 196 correspond to 5 of 64.
    objective = BEiTSettings(least_block=round(16 / 196 * (picture_px // cell_of(picture_px)) ** 2))
    recipe = unlabelled("cifar10_beit", objective, model, epochs=epochs, augmentation=CROPS)
    return replace(recipe, teacher=teacher)


def tokeniser_imagenet(data: str = "imagenet", picture_px: int = 112) -> Recipe:
    """Visual words for ImageNet at 112 px: 14 x 14 cells per picture and 8192 words. BEiT learns from it.

    Command:  vitreous train tokeniser_imagenet --data /path/to/imagenet
    Cost:     not measured yet
    Score:    not measured yet
    Section:  Ramesh et al. 2021, appendix A.2 (rate, decay, batch, average; their pictures were 250 M)
    """
    return Recipe(
        name="tokeniser_imagenet",
        data=unlabelled_imagenet(data),
        model=model_settings("tokeniser_8", picture_px=picture_px),
        objective=VisualTokensSettings(),
        augmentation=CROPS,
        optimizer=AdamWSettings(lr=1e-4, weight_decay=1e-4),
        schedule=ScheduleSettings(warmup_fraction=0.01, final_fraction=1.25e-6 / 1e-4),
        average=AverageSettings(kind="ema", factor=0.999),
        training=replace(MANY_CORES, epochs=50, batch_size=512, clip=1.0, evaluate_every_epochs=0),
    )


def beit_imagenet(teacher: str = "runs/tokeniser_imagenet", data: str = "imagenet", picture_px: int = 224) -> Recipe:
    """BEiT-B/16 on ImageNet, as in its paper: 800 epochs, 75 of 196 patches hidden, 8192 words.

    Command:  vitreous train beit_imagenet --teacher runs/tokeniser_imagenet --data /path/to/imagenet
    Cost:     800 epochs of 1.28 M pictures; the paper: about five days on 16 V100 cards
    Score:    paper (ImageNet after fine-tuning): 83.2 % at 224 px, 84.6 % at 384 px
    Section:  Bao et al. 2021, section 2.5 and the appendix; the tokeniser is our own, theirs is DALL-E's
    """
    return Recipe(
        name="beit_imagenet",
        data=unlabelled_imagenet(data),
        model=ViTSettings(
            picture_px=(picture_px, picture_px),
            pool="mean",
            positions="bias-shared",
            block=BlockSettings(attention_bias="no-key", layer_scale=0.1),
            stochastic_depth=0.1,
        ),
        teacher=teacher,
        objective=BEiTSettings(mask_ratio=0.383),  # 75 patches, "roughly 40 %"
        augmentation=Augmentation(colour=ColourSettings(brightness=0.4, contrast=0.4, saturation=0.4)),
        optimizer=AdamWSettings(lr=1.5e-3, weight_decay=0.05),
        schedule=ScheduleSettings(warmup_fraction=10 / 800, final_fraction=1e-5 / 1.5e-3),
        training=replace(MANY_CORES, epochs=800, batch_size=2048, clip=3.0, evaluate_every_epochs=0),
    )
