"""Learning by predicting hidden patches: the ViT paper's masked patch prediction, the masked autoencoder, SimMIM."""

from dataclasses import replace

from vitreous.data.augmentation import Augmentation, CropSettings
from vitreous.data.transforms import Preprocessing
from vitreous.models import ViTSettings, model_settings
from vitreous.models.vit import as_plain_vit
from vitreous.objectives.mae import MAESettings
from vitreous.objectives.masked import MaskedSettings
from vitreous.objectives.simmim import SimMIMSettings
from vitreous.recipes.large import IMAGENET, MANY_CORES, unlabelled_imagenet
from vitreous.recipes.recipe import Recipe
from vitreous.recipes.small import CIFAR10, small_swin
from vitreous.recipes.unlabelled import CROPS, cell_of, share_of_run, small_vit, unlabelled
from vitreous.training.optim import AdamWSettings
from vitreous.training.schedule import ScheduleSettings


def cifar10_masked(epochs: float = 400.0, picture_px: int = 32) -> Recipe:
    """CIFAR-10 without labels: the mean colours of corrupted patches, as in the ViT paper's self-supervision.

    Command:  vitreous train cifar10_masked
    Cost:     0.6 s per epoch on one H200, so 4.1 minutes; 3.5e16 FLOP
    Score:    131 epochs: k-NN 40.0, linear 51.0, fine-tuned 91.9 % (docs/RESULTS.md)
    Section:  4.6, B.1.2; the numbers are ours
    """
    objective = MaskedSettings(mean=CIFAR10.mean, std=CIFAR10.std)
    return unlabelled("cifar10_masked", objective, small_vit("mean", picture_px), epochs=epochs, augmentation=CROPS)


def cifar10_mae(epochs: float = 460.0, picture_px: int = 32) -> Recipe:
    """CIFAR-10 without labels: a masked autoencoder that sees 16 of 64 patches, with a decoder of two small blocks.

    Command:  vitreous train cifar10_mae
    Cost:     0.5 s per epoch on one H200, so 4 minutes; 1.8e16 FLOP
    Score:    456 epochs: k-NN 73.1, linear 79.7, fine-tuned by cifar10_tuned 96.2 % (docs/RESULTS.md)
    Section:  He et al. 2021, 3; the numbers are ours
    """
    objective = MAESettings(decoder_depth=2, decoder_width=192, decoder_heads=6)
    return unlabelled("cifar10_mae", objective, small_vit("mean", picture_px), epochs=epochs, augmentation=CROPS)


def cifar10_simmim(epochs: float = 280.0, picture_px: int = 32) -> Recipe:
    """CIFAR-10 without labels: a small Swin predicts 39 of 64 squares, hidden by mask tokens.

    Command:  vitreous train cifar10_simmim
    Cost:     2.3e16 FLOP; its time is not yet measured
    Score:    not yet measured
    Section:  Xie et al. 2022, 3; the numbers are ours
    """
    square = cell_of(picture_px)
    model = replace(small_swin(picture_px, patch=max(1, square // 2)), stochastic_depth=0.0)
    objective = SimMIMSettings(mask_px=square)
    return unlabelled("cifar10_simmim", objective, model, epochs=epochs, augmentation=CROPS)


def masked_patch_paper(
    model: str = "vit_b16", data: str = "imagenet", steps: int = 1_000_000, picture_px: int = 224
) -> Recipe:
    """Masked patch prediction with the paper's numbers: Adam at 2e-4, 10,000 steps of warm-up, cosine, batch 4096.

    Command:  vitreous train masked_patch_paper --data /path/to/imagenet --steps 100000
    Cost:     B/16: 35 GFLOP per picture forward, 4.3e20 FLOP in a million steps
    Score:    paper, 4.6 (ImageNet after fine-tuning): B/16 79.9 %; ours not measured yet
    Section:  4.6, B.1.2: a million steps on JFT, 14 epochs; 100,000 steps give most of the gain, and so does ImageNet
    """
    normalise = Preprocessing()
    return Recipe(
        name=f"masked_patch_paper-{model}",
        data=unlabelled_imagenet(data),
        model=_plain_vit(model, picture_px),
        objective=MaskedSettings(mean=normalise.mean, std=normalise.std),
        normalise=normalise,
        augmentation=Augmentation(crop=CropSettings(method="random-resized", scale=(0.05, 1.0))),
        # B.1.2 gives no weight decay; 4.1 gives 0.1 for training all models.
        optimizer=AdamWSettings(lr=2e-4, weight_decay=0.1),
        schedule=ScheduleSettings(warmup_steps=10_000, decay="cosine"),
        training=replace(MANY_CORES, steps=steps, batch_size=4096, evaluate_every_epochs=0),
    )


def mae_imagenet(
    model: str = "vit_l16", data: str = "imagenet", epochs: float = 800.0, picture_px: int = 224
) -> Recipe:
    """A masked autoencoder on ImageNet, as in its paper: 75 % dropped, a decoder of 8 blocks, 800 epochs.

    Command:  vitreous train mae_imagenet --model vit_l16 --data /path/to/imagenet --epochs 1600
    Cost:     L/16: 41 GFLOP per picture forward, 0.34 of the encoder on the whole picture; 1.3e20 FLOP in 800 epochs
    Score:    its paper (ImageNet after fine-tuning): L/16 84.9 % (1600 epochs: 85.9 %); ours not measured yet
    Section:  He et al. 2021, 4 and Table 8; crops, flips and normalisation as in the released code
    """
    return Recipe(
        name=f"mae_imagenet-{model}",
        data=unlabelled_imagenet(data),
        model=replace(_plain_vit(model, picture_px), positions="sincos", pool="mean"),
        objective=MAESettings(),
        normalise=replace(IMAGENET, interpolation="bicubic"),
        augmentation=CROPS,
        # 1.5e-4 per 256 pictures of the batch.
        optimizer=AdamWSettings(lr=1.5e-4 * 4096 / 256, beta2=0.95, weight_decay=0.05),
        schedule=ScheduleSettings(warmup_fraction=share_of_run(40, epochs)),
        training=replace(MANY_CORES, epochs=epochs, batch_size=4096, evaluate_every_epochs=0),
    )


def _plain_vit(name: str, picture_px: int) -> ViTSettings:
    model = model_settings(name, picture_px=picture_px)
    return as_plain_vit(model, f"{name} is not a plain ViT, from which patches can be hidden: give vit_b16 or vit_l16")
