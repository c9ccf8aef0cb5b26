"""The paper's pre-training (Table 3, B.1), for those who have the data and the machines.

Adam with beta 0.9 and 0.999, batch 4096, 10,000 steps of warm-up, 224 px. Weight decay is decoupled. Gradients are
clipped, at norm 1, on ImageNet only.
Ti and S are not in the paper: their sizes are those of "How to train your ViT" (Steiner et al. 2021) and DeiT (Touvron
et al. 2021). Their learning rate here is B's: the code of the former has one rate for all sizes.
"""

from dataclasses import replace
from typing import Literal

from vitreous.data.augmentation import Augmentation, CropSettings
from vitreous.data.sources import DataSettings
from vitreous.models import ModelSettings, model_settings
from vitreous.recipes.large import MANY_CORES
from vitreous.recipes.recipe import Recipe
from vitreous.tasks.classify import ClassifySettings
from vitreous.training.optim import AdamWSettings
from vitreous.training.schedule import ScheduleSettings

# Table 3. Models that it does not list train at the rate of B.
JFT_RATES = {
    "vit_b32": 8e-4,
    "vit_b16": 8e-4,
    "vit_l32": 6e-4,
    "vit_l16": 4e-4,
    "vit_h14": 3e-4,
    "bit_r50x1": 1e-3,
    "bit_r101x1": 8e-4,
    "bit_r152x2": 6e-4,
    "r50_vit_b16": 8e-4,
    "r50_vit_b32": 8e-4,
    "r50_vit_l32": 2e-4,
    "r50_vit_l16": 4e-4,
}
JFT_EPOCHS = {"vit_l16": 14, "vit_h14": 14, "r50_vit_l16": 14}  # 7 for all others; L/16 is also reported after 7


def pretrain_imagenet(model: str = "vit_b16", data: str = "imagenet") -> Recipe:
    """Pre-train on ImageNet from scratch, as in the paper: 300 epochs, dropout 0.1, weight decay 0.3, cosine.

    Command:  vitreous train pretrain_imagenet --model vit_b16 --data /path/to/imagenet
    Cost:     300 epochs of 1.28 M pictures; B/16: 35.1 GFLOP per picture forward, 4.0e19 FLOP in all
    Score:    paper, Table 5 (after fine-tuning at 384 px): B/32 73.38, B/16 77.91, L/32 71.16, L/16 76.53 %
    Section:  4.1, Table 3
    """
    return _pretrain(
        f"pretrain_imagenet-{model}",
        # The labels of its test pictures are secret: everybody reports its val pictures.
        DataSettings(where=data, val_fraction=0.01, test_split="val"),
        regularised(model, dropout=0.1),
        loss="softmax",
        optimizer=AdamWSettings(lr=3e-3, weight_decay=0.3),
        decay="cosine",
        epochs=300,
        clip=1.0,
    )


def pretrain_imagenet21k(model: str = "vit_b16", data: str = "imagenet21k", epochs: float = 90) -> Recipe:
    """Pre-train on ImageNet-21k, as in the paper: 90 epochs, dropout 0.1, weight decay 0.03, linear, sigmoid loss.

    Command:  vitreous train pretrain_imagenet21k --model vit_l16 --data /path/to/imagenet21k
    Cost:     L/16: 0.23 thousand TPUv3-core-days (paper, Table 2)
    Score:    paper, Table 5 (ImageNet after fine-tuning at 384 px): B/32 81.28, B/16 83.97, L/32 80.99, L/16 85.15 %
    Section:  4.1, Table 3
    """
    return _pretrain(
        f"pretrain_imagenet21k-{model}",
        DataSettings(where=data, val_fraction=0.01, test_fraction=0.0),
        regularised(model, dropout=0.1),
        loss="sigmoid",
        optimizer=AdamWSettings(lr=1e-3, weight_decay=0.03),
        decay="linear",
        epochs=epochs,
    )


def pretrain_jft(model: str = "vit_b16", data: str = "jft") -> Recipe:
    """Pre-train on a very large set, as on JFT-300M: no dropout, weight decay 0.1, linear decay, sigmoid loss.

    Command:  vitreous train pretrain_jft --model vit_l16 --data /path/to/shards
    Cost:     L/16 0.68, H/14 2.5 thousand TPUv3-core-days (paper, Table 2)
    Score:    paper, Table 5 (ImageNet after fine-tuning at 384 px): B/16 84.15, L/16 87.12, H/14 88.04 %
    Section:  4.1, Table 3 (rates: B 8e-4, L/32 6e-4, L/16 4e-4, H/14 3e-4; 7 epochs; L/16 and H/14 14)
    """
    return _pretrain(
        f"pretrain_jft-{model}",
        DataSettings(where=data, val_fraction=0.01, test_fraction=0.0),
        model_settings(model),
        loss="sigmoid",
        optimizer=AdamWSettings(lr=JFT_RATES.get(model, 8e-4), weight_decay=0.1),
        decay="linear",
        epochs=JFT_EPOCHS.get(model, 7),
    )


def regularised(name: str, dropout: float) -> ModelSettings:
    """A named model with this dropout, if it has any: a BiT ResNet has none."""
    return model_settings(name).regularised(dropout=dropout)


def _pretrain(
    name: str,
    data: DataSettings,
    model: ModelSettings,
    *,
    loss: Literal["softmax", "sigmoid"],
    optimizer: AdamWSettings,
    decay: Literal["cosine", "linear"],
    epochs: float,
    clip: float | None = None,
) -> Recipe:
    return Recipe(
        name=name,
        data=data,
        model=model,
        objective=ClassifySettings(head="tanh", loss=loss),
        augmentation=Augmentation(crop=CropSettings(method="random-resized", scale=(0.05, 1.0))),
        optimizer=optimizer,
        schedule=ScheduleSettings(warmup_steps=10_000, decay=decay),
        training=replace(MANY_CORES, epochs=epochs, batch_size=4096, clip=clip),
    )
