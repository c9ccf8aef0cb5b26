"""The libraries that other people's weights belong to: for a file, their own model with its weights in it.

None of them is needed to read or write a file. They are imported here when a proof is asked for, by name, and what
goes wrong in them is one line.
"""

import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.models import ModelSettings, ResNetSettings, ResNetStem, ViTSettings
from vitreous.weights import (
    clip,
    detr,
    formats,
    google,
    mask_queries,
    original,
    pyramids,
    siglip,
    timm,
    torchvision,
    transformers,
)
from vitreous.weights.card import Card
from vitreous.weights.formats import Format, Given
from vitreous.weights.timm_config import write_config
from vitreous.weights.transformers_config import CONFIG, pair
from vitreous.weights.writing import write_weights

Outputs = dict[str, Tensor]  # features (B, N, D) or (B, D, h, w), and logits (B, K) or pooled (B, D) where there are


@dataclass(frozen=True)
class Peer:
    title: str
    module: nn.Module  # with the file's weights
    outputs: Callable[[Tensor], Outputs]
    model: ModelSettings  # ours, with what the peer does otherwise than the file's own code
    notes: tuple[str, ...] = ()


def build_peer(given: Given, format: Format, card: Card) -> Peer:
    """The peer's own model for these tensors; a UserError where it is not installed, or does not take them."""
    builders: dict[type[Format], Callable[[Given, Any, Card], Peer]] = {
        transformers.Transformers: _transformers,
        timm.Timm: _timm,
        original.Wrapped: _original,
        google.GoogleViT: _google,
        google.GoogleBiT: _google,
        torchvision.Torchvision: _torchvision,
    }
    if isinstance(format, pyramids.Pyramid):
        from vitreous.weights.pyramid_peers import pyramid_peer

        return pyramid_peer(given, format, card)
    if isinstance(format, clip.TransformersClip | clip.OpenAiClip | siglip.Siglip):
        from vitreous.weights.tower_peers import tower_peer

        return tower_peer(given, format, card)
    if isinstance(format, detr.DetrFormat):
        from vitreous.weights.detr_peers import detr_peer

        return detr_peer(given, format, card)
    if isinstance(format, mask_queries.MaskQueryFormat):
        from vitreous.weights.mask_peers import mask_peer

        return mask_peer(given, format, card)
    build = next((build for kind, build in builders.items() if isinstance(format, kind)), None)
    if build is None:
        raise UserError(f"{given.where}: no library is known to compare the format {format.name} with")
    return build(given, format, card)


def imported(package: str, module: str = "") -> Any:
    _mend_torchvision()
    try:
        return importlib.import_module(module or package)
    except Exception as error:  # a library that does not fit the others fails in any way
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            raise UserError(f"to verify this format, {package} is needed: pip install {package}") from None
        raise UserError(_broken(package, error)) from None


_OPERATORS: list[torch.library.Library] = []  # declared by us; they last as long as this list


def _mend_torchvision() -> None:
    """torchvision from one place beside torch from another lacks its compiled operators; timm and transformers, which
    import it, fail with it. It names two of them when it is imported. No model here calls them: to declare them is
    enough."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error) or _OPERATORS:
            return
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        _OPERATORS.append(torch.library.Library("torchvision", "DEF"))  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            _OPERATORS[0].define(schema)  # type: ignore[no-untyped-call]
    except Exception:  # whoever needs it says what is wrong with it
        return


def _broken(package: str, error: BaseException) -> str:
    while error.__cause__ or error.__context__:  # the first of all that went wrong
        error = error.__cause__ or error.__context__ or error
    line = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
    fitting = (
        "the torchvision that belongs to your torch" if "torchvision" in line else "a release that fits your torch"
    )
    return f"{package} is installed, but does not import ({line}); install {fitting}"


@contextmanager
def taken_by(package: str, where: str) -> Iterator[None]:
    """Whatever a peer says against a file becomes one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        line = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{where}: {package} itself does not take it ({line})") from None


def fill(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    module.to(_dtype(tensors)).load_state_dict(dict(tensors))
    return module.eval()


def _dtype(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """One that holds the values of all."""
    found = None
    for tensor in tensors.values():
        if tensor.is_floating_point():
            found = tensor.dtype if found is None else torch.promote_types(found, tensor.dtype)
    return found or torch.float32


# ---- transformers


def _transformers(given: Given, format: transformers.Transformers, card: Card) -> Peer:
    document = given.documents[CONFIG]
    named = (document.get("architectures") or ["none"])[0]
    kind = named if named in format.architectures else format.architecture(card)
    peer = transformers_peer(from_transformers(given, kind, document), kind, format, card)
    note = f"its architecture is {named}; compared as {kind}"
    return peer if kind == named else replace(peer, notes=(note,))


def transformers_peer(peer: Any, kind: str, format: transformers.Transformers, card: Card) -> Peer:
    masked = hasattr(peer.config, "mask_ratio")  # MAE drops patches by a noise; of an ordered one it keeps all in order
    if masked:
        peer.config.mask_ratio = 0.0

    def outputs(images: Tensor) -> Outputs:
        ph, pw = pair(transformers.vit(card, format.name).patch)
        cells = torch.arange((images.shape[-2] // ph) * (images.shape[-1] // pw)).expand(len(images), -1)
        found = (peer if card.classifier is None else peer.base_model)(images, **({"noise": cells} if masked else {}))
        more = {"pooled": found.pooler_output} if format.model_type == "beit" else {}
        if card.classifier is not None:
            more = {"logits": peer(images).logits}
        return {"features": found.last_hidden_state, **more}

    return Peer(title("transformers", kind), peer, outputs, card.model)


def from_transformers(given: Given, kind: str, document: Mapping[str, Any]) -> Any:
    library, chosen = imported("transformers"), transformers_class(kind)
    pooled = kind not in ("ViTModel", "DeiTModel") or any("pooler.dense." in name for name in given.tensors)
    with taken_by("transformers", given.where), quiet(library):
        peer, found = chosen.from_pretrained(
            None,
            config=chosen.config_class.from_dict(dict(document)),
            state_dict={name: given.tensors[name] for name in given.tensors},
            dtype=_dtype(given.tensors),
            output_loading_info=True,
            **({} if pooled else {"add_pooling_layer": False}),
        )
    absent = sorted(map(str, (*found["missing_keys"], *found["mismatched_keys"])))
    if absent:
        raise UserError(f"{given.where}: transformers' {kind} does not find {absent[0]} in it ({len(absent)} in all)")
    return peer.eval()


def transformers_class(name: str) -> Any:
    library = imported("transformers")
    try:
        return getattr(library, name)  # imported now, and torchvision with it
    except Exception as error:
        raise UserError(_broken("transformers", error)) from None


@contextmanager
def quiet(library: Any) -> Iterator[None]:
    level, shown = library.logging.get_verbosity(), library.logging.is_progress_bar_enabled()
    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    try:
        yield
    finally:
        library.logging.set_verbosity(level)
        if shown:
            library.logging.enable_progress_bar()


# ---- timm


def _timm(given: Given, format: timm.Timm, card: Card) -> Peer:
    library = imported("timm")
    document = given.documents.get(CONFIG)
    notes: tuple[str, ...] = ()
    stem = Path(given.where).stem.split(".")[0]
    if not isinstance(document, Mapping) and library.is_model(stem):
        document = {"architecture": stem, "pretrained_cfg": {"num_classes": len(card.classes)}}
        notes = (f"without a {CONFIG} the architecture is taken from the file name",)
    elif not isinstance(document, Mapping):
        document = write_config(card)
        notes = (f"without a {CONFIG} the architecture is inferred from the shapes",)
    return _from_timm(given, document, card, notes)


def _original(given: Given, format: original.Wrapped, card: Card) -> Peer:
    """Inside they are timm's; what a training checkpoint holds besides is left out. timm has no row for the position of
    a class token beside registers, so DINOv2's are brought to transformers."""
    _, weights, _ = formats.read(given, format, card.model.picture_px)
    notes = ("names were mapped by our own rules: the original code is not an installable library",)
    if isinstance(format, original.Dinov2):
        registers = "-registers" if transformers.vit(card, format.name).num_registers else ""
        chosen = next(one for one in transformers.FORMATS if one.name == f"transformers-dinov2{registers}")
        within = replace(formats.write(card, weights, chosen), where=given.where)
        return replace(_transformers(within, chosen, card), notes=notes)
    within = replace(formats.write(card, weights, timm.Timm()), where=given.where)
    return _from_timm(within, within.documents[CONFIG], card, notes)


def _from_timm(given: Given, document: Mapping[str, Any], card: Card, notes: tuple[str, ...] = ()) -> Peer:
    return replace(timm_peer(from_timm(given, document), str(document["architecture"]), card), notes=notes)


def from_timm(given: Given, document: Mapping[str, Any]) -> Any:
    with taken_by("timm", given.where):
        return fill(_timm_model(document), given.tensors)


def timm_peer(module: Any, name: str, card: Card) -> Peer:
    return Peer(title("timm", name), module.eval(), _timm_outputs(module, card), card.model)


def _timm_model(document: Mapping[str, Any]) -> Any:
    library = imported("timm")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / CONFIG).write_text(json.dumps(dict(document)))
        return library.create_model(f"local-dir:{folder}", pretrained=False)


def _timm_outputs(module: Any, card: Card) -> Callable[[Tensor], Outputs]:
    def outputs(images: Tensor) -> Outputs:
        found = {"features": module.forward_features(images)}
        if card.classifier is None:  # without heads, a distilled model averages its two tokens
            return found if hasattr(module, "head_dist") else {**found, "pooled": module(images)}
        # The hidden layer of a head is nothing that timm has.
        return found if card.classifier.head == "tanh" else {**found, "logits": module(images)}

    return outputs


def _google(given: Given, format: google.GoogleViT | google.GoogleBiT, card: Card) -> Peer:
    """timm reads these files itself. It leaves its own epsilons in the convolutional parts, and so does this proof."""
    model = card.model
    notes: tuple[str, ...] = ()
    if isinstance(model, ResNetSettings):
        model = replace(model, **timm.CONVOLUTIONS)
    elif isinstance(model, ViTSettings) and isinstance(model.stem, ResNetStem):
        model = replace(model, stem=replace(model.stem, **timm.CONVOLUTIONS))
    if model != card.model:
        notes = ("compared with the epsilons that timm has in convolutions and group norms, which are not Google's",)
    if card.classifier is not None and card.classifier.head == "tanh":
        notes = (*notes, "the hidden layer of the head is not compared: timm leaves it out")
    document = write_config(card)
    if isinstance(format, google.GoogleViT) and format.positions == google.BEFORE_CLASS_TOKEN:
        document["model_args"]["no_embed_class"] = document["model_args"]["class_token"]
    with taken_by("timm", given.where), tempfile.TemporaryDirectory() as folder:
        module = _timm_model(document)
        write_weights(given, Path(folder) / "model.npz", "npz")
        module.load_pretrained(str(Path(folder) / "model.npz"))
    name = f"{title('timm', str(document['architecture']))}, filled by its own reader"
    return Peer(name, module.eval(), _timm_outputs(module, card), model, notes)


# ---- torchvision

TORCHVISION = {  # by patch, width, depth and heads
    (16, 768, 12, 12): "vit_b_16",
    (32, 768, 12, 12): "vit_b_32",
    (16, 1024, 24, 16): "vit_l_16",
    (32, 1024, 24, 16): "vit_l_32",
    (14, 1280, 32, 16): "vit_h_14",
}


def _torchvision(given: Given, format: torchvision.Torchvision, card: Card) -> Peer:
    norm = partial(nn.LayerNorm, eps=transformers.vit(card, format.name).block.norm_epsilon)
    return torchvision_peer(given.tensors, format, card, given.where, norm_layer=norm)


def torchvision_peer(
    tensors: Mapping[str, Tensor], format: torchvision.Torchvision, card: Card, where: str, **more: Any
) -> Peer:
    library = imported("torchvision", "torchvision.models.vision_transformer")
    model = transformers.vit(card, format.name)
    with taken_by("torchvision", where):
        module = library.VisionTransformer(**format.documents(card)[CONFIG], **more)
        if card.classifier is None:
            module.heads = nn.Identity()
        fill(module, tensors)

    def outputs(images: Tensor) -> Outputs:
        tokens: list[Tensor] = []
        hook = module.encoder.register_forward_hook(lambda _, __, out: tokens.append(out))
        last = module(images)
        hook.remove()
        return {"features": tokens[0], "logits" if card.classifier else "pooled": last}

    patch = model.patch if isinstance(model.patch, int) else model.patch[0]
    name = TORCHVISION.get((patch, model.width, model.depth, model.heads), "VisionTransformer")
    return Peer(title("torchvision", name), module, outputs, card.model)


def title(package: str, name: str) -> str:
    return f"{name} of {package} {imported(package).__version__}"
