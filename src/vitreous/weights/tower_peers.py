"""CLIP and SigLIP as transformers itself builds them, both towers or the visual one: see `peers` and `opening`."""

from dataclasses import replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from vitreous.weights import formats
from vitreous.weights.card import Card
from vitreous.weights.clip import OpenAiClip, TransformersClip
from vitreous.weights.formats import Given
from vitreous.weights.peers import Outputs, Peer, from_transformers, title
from vitreous.weights.siglip import Siglip
from vitreous.weights.text_towers import image_text, some_rows
from vitreous.weights.transformers import vit
from vitreous.weights.transformers_config import CONFIG

Towers = TransformersClip | Siglip


def tower_peer(given: Given, format: Towers | OpenAiClip, card: Card) -> Peer:
    if isinstance(format, OpenAiClip):
        _, weights, _ = formats.read(given, format, card.model.picture_px)
        written = replace(formats.write(card, weights, TransformersClip()), where=given.where)
        notes = ("names were mapped by our own rules: transformers does not read these files",)
        return replace(tower_peer(written, TransformersClip(), card), notes=notes)
    kind, document = format.architecture(card), dict(given.documents[CONFIG])
    if card.task is None:
        document = {**(document.get("vision_config") or document), "model_type": _vision_type(format)}
        if isinstance(format, TransformersClip):
            document["projection_dim"] = vit(card, format.name).ends.projection or 512
    return as_peer(from_transformers(given, kind, document), kind, card)


def _vision_type(format: Towers) -> str:
    return "clip_vision_model" if isinstance(format, TransformersClip) else "siglip_vision_model"


def as_peer(module: Any, kind: str, card: Card) -> Peer:
    def one_tower(images: Tensor) -> Outputs:
        found = module(images)
        pooled = found.image_embeds if "image_embeds" in found else found.pooler_output
        return {"features": found.last_hidden_state, "pooled": pooled}

    def both(images: Tensor) -> Outputs:
        assert task is not None
        found = module(input_ids=some_rows(task.text), pixel_values=images)
        return {
            "pictures": F.normalize(found.image_embeds, dim=1),
            "texts": F.normalize(found.text_embeds, dim=1),
            "similarity": found.logits_per_image,
        }

    task = image_text(card)
    return Peer(title("transformers", kind), module, one_tower if task is None else both, card.model)
