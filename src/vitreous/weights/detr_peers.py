"""DETR and Deformable DETR as transformers itself builds and opens them: see `peers` and `opening`."""

import json
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from vitreous.weights import formats
from vitreous.weights.card import Card
from vitreous.weights.detr import DetrFormat
from vitreous.weights.formats import Given
from vitreous.weights.peers import Outputs, Peer, from_transformers, title
from vitreous.weights.transformers_config import CONFIG


def detr_peer(given: Given, format: DetrFormat, card: Card) -> Peer:
    """The library's own model for these tensors."""
    if format.library == "original":
        other = formats.named(f"transformers-{format.name}")
        assert isinstance(other, DetrFormat)
        _, weights, _ = formats.read(given, format, card.model.picture_px)
        written = replace(formats.write(card, weights, other), where=given.where)
        notes = ("names were mapped by our own rules: the original code is not an installable library",)
        return replace(detr_peer(written, other, card), notes=notes)
    document = dict(given.documents[CONFIG])
    kind = "DetrForObjectDetection" if format.decoder == "detr" else "DeformableDetrForObjectDetection"
    # With auxiliary losses DetrModel norms the queries between layers, which the weights were not trained for.
    module = from_transformers(given, kind, document | {"auxiliary_loss": False})

    def outputs(images: Tensor) -> Outputs:
        found = module(images)
        return {"logits": found.logits, "boxes": found.pred_boxes}

    return Peer(title("transformers", kind), module, outputs, card.model)


def opened_detr(path: Path, format: DetrFormat, card: Card) -> Peer:
    """What was written, from its folder or file."""
    if not path.is_dir():
        return detr_peer(Given(load_file(path), format.documents(card), str(path)), format, card)
    documents = {CONFIG: json.loads((path / CONFIG).read_text())} if (path / CONFIG).exists() else {}
    return detr_peer(Given(load_file(path / "model.safetensors"), documents, str(path)), format, card)
