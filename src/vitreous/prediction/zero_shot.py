"""Zero-shot: what a model of pictures and words says of classes that are given by their names alone.

Names become sentences, sentences become embeddings, and these are the weights of an ordinary classifier, which is
predicted with, measured, fine-tuned, exported and served as any other.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import UserError, shown
from vitreous.tasks import ClassifySettings, ImageTextSettings
from vitreous.tasks.image_text import ImageText
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

PLACE = "{}"  # of a class's name in a template
# Several ways of saying it, whose mean is steadier than each (Radford et al. 2021, section 3.1.4).
TEMPLATES = (
    "a photo of a {}",
    "a picture of a {}",
    "a close-up photo of a {}",
    "a small picture of a {}",
    "a blurry photo of a {}",
    "a drawing of a {}",
    "this is a {}",
)
AS_THEY_ARE = (PLACE,)
ARTICLE = re.compile(r"(a|an|the)\s+", re.IGNORECASE)
MAX_BYTES = 2**20  # of a file of names or templates
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
    _check(classes, templates)
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


def sentences(name: str, templates: Sequence[str]) -> list[str]:
    """What is said of a class. A name that brings its article loses it where the template has one."""
    bare = ARTICLE.sub("", name, count=1) if ARTICLE.match(name) else name
    return [
        template.replace(PLACE, name if template == PLACE else bare if f"a {PLACE}" in template else name)
        for template in templates
    ]


def _check(classes: Sequence[str], templates: Sequence[str]) -> None:
    if len(classes) < 2:
        raise UserError(f"classes: {len(classes)} of them; what is told apart are two or more")
    twice = next((name for name in classes if list(classes).count(name) > 1), None)
    if twice is not None:
        raise UserError(f"classes: {twice!r} is named twice")
    wrong = [template for template in templates if PLACE not in template]
    if wrong or not templates:
        raise UserError(f"templates: {shown(wrong[0]) if wrong else 'none'}: each needs {PLACE} where the name goes")


# ---- as they are typed


def parse_classes(text: str) -> tuple[str, ...]:
    """'a cat,a dog', or a file with a name per line."""
    return _parsed(text, ",", "--classes")


def parse_templates(text: str | None) -> tuple[str, ...]:
    """'a photo of a {};a drawing of a {}', a file with one per line, or none: the names as they are."""
    if text is None:
        return TEMPLATES
    return AS_THEY_ARE if text == "none" else _parsed(text, ";", "--templates")


def _parsed(text: str, separator: str, option: str) -> tuple[str, ...]:
    parts = text.split(separator)
    try:
        path = Path(text)
        if path.is_file():
            if path.stat().st_size > MAX_BYTES:
                raise UserError(f"{option} {text}: over {MAX_BYTES >> 20} MB are no list of names")
            parts = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:  # too long for a file's name; or a file of something else
        if isinstance(error, UnicodeDecodeError):
            raise UserError(f"{option} {text}: not a text file") from None
    return tuple(part.strip() for part in parts if part.strip())
