"""Swin, ConvNeXt, PVT and ResNet as the libraries themselves build and open them: see `peers` and `opening`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor, nn

from vitreous.models import ConvNeXtSettings, ResNetV1Settings, SwinSettings
from vitreous.weights import convnext, formats, swin
from vitreous.weights.card import Card
from vitreous.weights.formats import Given
from vitreous.weights.peers import Outputs, Peer, fill, from_timm, from_transformers, imported, taken_by, title
from vitreous.weights.pyramids import Pyramid
from vitreous.weights.transformers_config import CONFIG


def pyramid_peer(given: Given, format: Pyramid, card: Card) -> Peer:
    """The library's own model for these tensors."""
    if format.library == "original":
        others = {"swin": swin.FORMATS[0], "convnext": convnext.FORMATS[0]}
        _, weights, _ = formats.read(given, format, card.model.picture_px)
        written = replace(formats.write(card, weights, others[format.name]), where=given.where)
        notes = ("names were mapped by our own rules: the original code is not an installable library",)
        return replace(pyramid_peer(written, others[format.name], card), notes=notes)
    if format.library == "torchvision":
        with taken_by("torchvision", given.where):
            module = fill(_torchvision(card), given.tensors)
        return _peer(module, title("torchvision", type(module).__name__), card)
    document = given.documents.get(CONFIG)
    if not isinstance(document, Mapping):
        document = format.found_in(given).documents(card)[CONFIG]
    if format.library == "timm":
        return _peer(from_timm(given, document), title("timm", str(document["architecture"])), card)
    kind = str(format.documents(card)[CONFIG]["architectures"][0])
    return _peer(from_transformers(given, kind, document), title("transformers", kind), card)


def opened_pyramid(path: Path, format: Pyramid, card: Card) -> Peer:
    """What was written, from its folder or file."""
    tensors = load_file(path / "model.safetensors" if path.is_dir() else path)
    return pyramid_peer(Given(tensors, format.documents(card), str(path)), format, card)


def _torchvision(card: Card) -> nn.Module:
    model, num = card.model, len(card.classes)
    if isinstance(model, SwinSettings):
        library = imported("torchvision", "torchvision.models.swin_transformer")
        return library.SwinTransformer(  # type: ignore[no-any-return]
            patch_size=[model.patch, model.patch],
            embed_dim=model.width,
            depths=list(model.depths),
            num_heads=list(model.heads),
            window_size=[model.window, model.window],
            mlp_ratio=float(model.mlp_factor),
            num_classes=num,
        )
    if isinstance(model, ResNetV1Settings):
        library = imported("torchvision", "torchvision.models.resnet")
        unit = library.Bottleneck if model.unit == "bottleneck" else library.BasicBlock
        module = library.ResNet(unit, list(model.depths), num_classes=max(num, 1))
        module.fc = module.fc if num else nn.Identity()
        return module  # type: ignore[no-any-return]
    assert isinstance(model, ConvNeXtSettings)
    library = imported("torchvision", "torchvision.models.convnext")
    widths = [*model.widths, None]
    stages = [library.CNBlockConfig(widths[i], widths[i + 1], depth) for i, depth in enumerate(model.depths)]
    return library.ConvNeXt(stages, num_classes=num)  # type: ignore[no-any-return]


def _peer(module: Any, name: str, card: Card) -> Peer:
    def outputs(images: Tensor) -> Outputs:
        found = module(images)
        if card.classifier is not None:
            return {"logits": getattr(found, "logits", found)}
        pooled = getattr(found, "pooler_output", found)
        return {"pooled": pooled.flatten(1)} if isinstance(pooled, Tensor) else {}

    return Peer(name, module.eval(), outputs, card.model)
