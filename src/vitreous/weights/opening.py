"""What was written, opened by the library that it is for, as its users open it."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from vitreous.errors import UserError
from vitreous.weights import clip, siglip, timm, torchvision, transformers
from vitreous.weights.card import Card
from vitreous.weights.detr import DetrFormat
from vitreous.weights.detr_peers import opened_detr
from vitreous.weights.formats import Format
from vitreous.weights.mask_peers import opened_masks
from vitreous.weights.mask_queries import MaskQueryFormat
from vitreous.weights.peers import (
    Peer,
    imported,
    quiet,
    taken_by,
    timm_peer,
    torchvision_peer,
    transformers_class,
    transformers_peer,
)
from vitreous.weights.pyramid_peers import opened_pyramid
from vitreous.weights.pyramids import Pyramid
from vitreous.weights.timm_config import write_config
from vitreous.weights.tower_peers import Towers, as_peer


def open_as_users_do(path: Path, format: Format, card: Card) -> Peer | None:
    """None where no library owns the format, or the one that does is not there. What it says against the file is a
    UserError."""
    if isinstance(format, Pyramid):
        library = {"original": "timm"}.get(format.library, format.library)
        return opened_pyramid(path, format, card) if _usable(library, lambda: imported(library)) else None
    if isinstance(format, DetrFormat):
        usable = _usable("transformers", lambda: transformers_class("DetrForObjectDetection"))
        return opened_detr(path, format, card) if usable else None
    if isinstance(format, MaskQueryFormat):
        kind = format.peer
        usable = _usable("transformers", lambda: transformers_class(kind))
        return opened_masks(path, format, card) if usable else None
    if isinstance(format, timm.Timm) and _usable("timm", lambda: imported("timm")):
        return _by_timm(path, card)
    if isinstance(format, transformers.Transformers | clip.TransformersClip | siglip.Siglip):
        kind = format.architecture(card)
        usable = _usable("transformers", lambda: transformers_class(kind))
        return _by_transformers(path, kind, format, card) if usable else None
    if isinstance(format, torchvision.Torchvision) and _usable("torchvision", lambda: imported("torchvision")):
        tensors = load_file(path / "model.safetensors" if path.is_dir() else path)
        return torchvision_peer(tensors, format, card, str(path))
    return None


def _usable(package: str, get: Callable[[], Any]) -> bool:
    """Whether it is there, and in order: a library that does not import says nothing against a file."""
    try:
        return find_spec(package) is not None and get() is not None
    except UserError:
        return False


def _by_timm(path: Path, card: Card) -> Peer:
    library = imported("timm")
    with taken_by("timm", str(path)):
        if path.is_dir():
            module = library.create_model(f"local-dir:{path}", pretrained=True)
            return timm_peer(module, str(module.pretrained_cfg.get("architecture")), card)
        # A file alone tells no architecture: whoever wants it has to know the arguments.
        config = write_config(card)
        name, classes = config["architecture"], config["num_classes"]
        module = library.create_model(name, num_classes=classes, checkpoint_path=path, **config["model_args"])
        return timm_peer(module, name, card)


def _by_transformers(path: Path, kind: str, format: transformers.Transformers | Towers, card: Card) -> Peer:
    with taken_by("transformers", str(path)), quiet(imported("transformers")):
        module, found = transformers_class(kind).from_pretrained(
            str(path), dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    for problem in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        names = sorted(map(str, found[problem]))
        # Without a head, DeiT and ViT make up a pooler that nobody trained.
        names = [name for name in names if "pooler" not in name or problem != "missing_keys"]
        if names:
            raise UserError(f"{path}: transformers' {kind} has {problem.replace('_', ' ')}: {names[0]} ({len(names)})")
    if isinstance(format, clip.TransformersClip | siglip.Siglip):
        return as_peer(module.eval(), kind, card)
    return transformers_peer(module.eval(), kind, format, card)
