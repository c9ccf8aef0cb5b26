"""Learning from two views of every picture: SimCLR, MoCo v3, BYOL."""

from dataclasses import replace

from vitreous.data.augmentation import Augmentation, ColourSettings, CropSettings
from vitreous.data.views import ViewSettings
from vitreous.models import model_settings
from vitreous.models.vit import as_plain_vit
from vitreous.objectives.byol import BYOLSettings
from vitreous.objectives.moco import MoCoV3Settings
from vitreous.objectives.simclr import SimCLRSettings
from vitreous.recipes.large import IMAGENET, MANY_CORES, unlabelled_imagenet
from vitreous.recipes.recipe import Recipe
from vitreous.recipes.unlabelled import CONTRAST, share_of_run, small_vit, unlabelled
from vitreous.training.optim import AdamWSettings, MuonSettings
from vitreous.training.schedule import ScheduleSettings

TWICE = (ViewSettings(augmentation=CONTRAST),)

# Grill et al. 2020, appendix B, and MoCo v3: the first view is always blurred, the second sometimes solarized.
FIRST = Augmentation(
    crop=CropSettings(method="random-resized", scale=(0.08, 1.0)),
    colour=ColourSettings(probability=0.8, brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1, grey=0.2, blur=1.0),
)
SECOND = replace(FIRST, colour=replace(FIRST.colour, blur=0.1, solarize=0.2))


def cifar10_simclr(epochs: float = 520.0, picture_px: int = 32) -> Recipe:
    """CIFAR-10 without labels: SimCLR finds the other view of a picture among all views of its batch.

    Command:  vitreous train cifar10_simclr
    Cost:     1.0 s per epoch on one H200, so 9 minutes; 9.0e16 FLOP
    Score:    519 epochs: k-NN 88.2, linear 91.7, fine-tuned for 20 epochs 95.4 % (docs/RESULTS.md)
    Section:  Chen et al. 2020, 2 and B.9; the recipe is ours
    """
    return unlabelled(
        "cifar10_simclr",
        SimCLRSettings(hidden=1024, temperature=0.2),
        small_vit("mean", picture_px),
        epochs=epochs,
        augmentation=CONTRAST,
        more_views=TWICE,
        # On held-out pictures, this temperature beat 0.5, the paper's for CIFAR-10, and these rates beat half of them.
        optimizer=MuonSettings(lr=4e-3, weight_decay=0.1, adam_lr=2e-3),
    )


def cifar10_mocov3(epochs: float = 400.0, picture_px: int = 32) -> Recipe:
    """CIFAR-10 without labels: MoCo v3 finds a slow copy's key of the other view among the keys of the batch.

    Command:  vitreous train cifar10_mocov3
    Cost:     1.7 s per epoch on one H200, so 11 minutes; 9.4e16 FLOP
    Score:    48 epochs: k-NN 77.0, linear 78.0, fine-tuned 90.3 % (docs/RESULTS.md)
    Section:  Chen, Xie and He 2021, 3 and 4; the recipe is ours
    """
    return unlabelled(
        "cifar10_mocov3",
        MoCoV3Settings(hidden=2048),
        small_vit("class", picture_px),
        epochs=epochs,
        augmentation=CONTRAST,
        more_views=TWICE,
    )


def cifar10_byol(epochs: float = 400.0, picture_px: int = 32) -> Recipe:
    """CIFAR-10 without labels: BYOL predicts a slow copy's output for the other view, and pushes nothing away.

    Command:  vitreous train cifar10_byol
    Cost:     1.4 s per epoch on one H200, so 9.2 minutes; 9.3e16 FLOP
    Score:    58 epochs: k-NN 72.8, linear 75.9, fine-tuned 90.5 % (docs/RESULTS.md)
    Section:  Grill et al. 2020, 3; the recipe is ours
    """
    return unlabelled(
        "cifar10_byol",
        BYOLSettings(hidden=2048),
        small_vit("mean", picture_px),
        epochs=epochs,
        augmentation=CONTRAST,
        more_views=TWICE,
    )


def mocov3_imagenet(
    model: str = "vit_s16", data: str = "imagenet", epochs: float = 300.0, picture_px: int = 224
) -> Recipe:
    """MoCo v3 on ImageNet, as in its paper: 300 epochs, batch 4096, frozen patches, sine-cosine positions.

    Command:  vitreous train mocov3_imagenet --model vit_b16 --data /path/to/imagenet
    Cost:     300 epochs of 1.28 M pictures, two views each, through two encoders; B/16: 5.4e19 FLOP
    Score:    its released weights (linear probe): S/16 73.2, B/16 76.7 %; ours not measured yet
    Section:  Chen, Xie and He 2021, 4 and 5; rate, decay of all weights and crops as in the released code
    """
    wrong = f"mocov3_imagenet needs a plain ViT, which {model} is not: give vit_s16 or vit_b16"
    settings = as_plain_vit(model_settings(model, picture_px=picture_px), wrong)
    # Section 5: its ViT-S has 12 heads, like B.
    settings = replace(settings, positions="sincos", heads=12 if settings.width == 384 else settings.heads)
    return Recipe(
        name=f"mocov3_imagenet-{model}",
        data=unlabelled_imagenet(data),
        model=settings,
        objective=MoCoV3Settings(),
        normalise=IMAGENET,
        augmentation=FIRST,
        more_views=(ViewSettings(augmentation=SECOND),),
        # 1.5e-4 per 256 pictures of the batch.
        optimizer=AdamWSettings(lr=2.4e-3, weight_decay=0.1, decay_vectors=True),
        schedule=ScheduleSettings(warmup_fraction=share_of_run(40, epochs)),
        training=replace(MANY_CORES, epochs=epochs, batch_size=4096, evaluate_every_epochs=0),
    )
