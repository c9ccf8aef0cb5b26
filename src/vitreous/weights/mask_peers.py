"""Mask2Former and EoMT as transformers itself builds and opens them: see `peers` and `opening`."""

import json
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from vitreous.weights.card import Card
from vitreous.weights.formats import Given
from vitreous.weights.mask_queries import MaskQueryFormat
from vitreous.weights.peers import Outputs, Peer, from_transformers, title
from vitreous.weights.transformers_config import CONFIG


def mask_peer(given: Given, format: MaskQueryFormat, card: Card) -> Peer:
    """The library's own model for these tensors."""
    module = from_transformers(given, format.peer, given.documents[CONFIG])

    def outputs(images: Tensor) -> Outputs:
        found = module(images)
        return {"logits": found.class_queries_logits, "masks": found.masks_queries_logits}

    return Peer(title("transformers", format.peer), module, outputs, card.model)


def opened_masks(path: Path, format: MaskQueryFormat, card: Card) -> Peer:
    """What was written, from its folder or file."""
    if not path.is_dir():
        return mask_peer(Given(load_file(path), format.documents(card), str(path)), format, card)
    documents = {CONFIG: json.loads((path / CONFIG).read_text())}
    return mask_peer(Given(load_file(path / "model.safetensors"), documents, str(path)), format, card)
