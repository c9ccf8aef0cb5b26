"""Zero-shot: what a model of pictures and words says of classes that are given by their names alone.

Names become sentences, sentences become embeddings, and these are the weights of an ordinary classifier, which is
predicted with, measured, fine-tuned, exported and served as any other.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import UserError
from vitreous.prediction.naming import TEMPLATES, check, sentences
from vitreous.tasks import ClassifySettings, ImageTextSettings
from vitreous.tasks.image_text import ImageText
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

TEXTS = 256  # embedded at a time


def zero_shot(
    trained: Trained,
    classes: Sequence[str],
    templates: Sequence[str] = TEMPLATES,
    device: torch.device | str = "cpu",
) -> Trained:
    """An ordinary classifier of these classes, made of a model with a text tower."""
    task = trained.card.task
    if not isinstance(task, ImageTextSettings):
        raise UserError(f"{trained.where}: has no text tower: classes by their names are for CLIP, SigLIP and the like")
    check(classes, templates)
    model = trained.task().to(device)
    assert isinstance(model, ImageText)
    tokenizer, rows = trained.tokenizer(), []
    for name in classes:
        ids = torch.from_numpy(tokenizer(sentences(name, templates))).to(device)
        rows.append(_mean(model, ids))
    weights = {name: value for name, value in trained.weights.items() if name.startswith("encoder.")}
    bias = trained.weights.get("bias", torch.zeros(()))
    weights |= {
        "head.weight": torch.stack(rows).cpu(),
        "head.bias": bias.expand(len(classes)).clone(),
        "head.log_scale": trained.weights["log_scale"].clone(),
    }
    if task.width is not None:
        weights["head.projection.weight"] = trained.weights["projection.weight"]
    card = Card(
        model=trained.card.model,
        task=ClassifySettings(head="cosine", cosine_width=task.width),
        classes=tuple(classes),
        preprocessing=trained.card.preprocessing,
    )
    return replace(trained, card=card, weights=weights, format="vitreous", report=None, words=None)


@torch.no_grad()
def _mean(model: ImageText, ids: Tensor) -> Tensor:
    """(D,) of length 1: the direction in which the sentences of a class lie."""
    found = torch.cat([model.embed_texts(some) for some in torch.split(ids, TEXTS)])
    return F.normalize(found.mean(dim=0), dim=0)
