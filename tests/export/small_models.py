"""Small models with their cards, for the tests of exporting."""

import numpy as np
import torch
import torch.nn.functional as F

from vitreous.data.transforms import Preprocessing
from vitreous.models import ViTSettings
from vitreous.tasks.classify import ClassifySettings
from vitreous.weights.calibration import ClassCalibration
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

CLASSES = ("cat", "dog", "emu")


def vit(**changes):
    base = {"picture_px": (8, 12), "patch": 4, "width": 16, "depth": 2, "heads": 2, "mlp_width": 24}
    return ViTSettings.of(**(base | changes))


def random_trained(model=None, head="linear", **card):
    """Random everywhere: what starts at zero would hide a part that is not connected."""
    torch.manual_seed(0)
    model = model or vit()
    task = card.pop("task", ClassifySettings(head=head))
    built = task.build(model.build(), CLASSES)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    preprocessing = card.pop("preprocessing", Preprocessing(size_px=model.picture_px, crop_fraction=0.8))
    card = Card(model=model, task=task, classes=CLASSES, preprocessing=preprocessing, **card)
    return Trained(card, built.state_dict(), "random")


def blob(label, generator):
    """A noisy picture (20, 30, 3) whose left, middle or right third is brighter."""
    picture = generator.integers(0, 120, (20, 30, 3), dtype=np.uint8)
    picture[:, 10 * label : 10 * label + 10] += generator.integers(20, 90, dtype=np.uint8)
    return picture


def learned_trained(steps=60):
    """A model that has learned where the bright third is."""
    trained = random_trained(calibration=ClassCalibration(sets=((0.9, 0.2),), temperature=1.5))
    task, generator = trained.task().train(), np.random.default_rng(0)
    optimizer = torch.optim.AdamW(task.parameters(), lr=3e-3)
    for _ in range(steps):
        labels = generator.integers(0, 3, 32)
        pictures = np.stack([blob(label, generator) for label in labels])
        images = trained.card.preprocessing.normalised(trained.card.preprocessing.resized(pictures))
        loss = F.cross_entropy(task.predict(images).logits, torch.from_numpy(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return Trained(trained.card, {name: value.detach() for name, value in task.state_dict().items()}, "learned")


def probabilities(predictor, pictures):
    return np.stack([outcome.probabilities for outcome in predictor.outcomes(pictures, len(pictures))])
