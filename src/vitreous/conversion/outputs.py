"""The outputs of a model for pictures, and the distance between two models, for conversions and proofs."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from vitreous.data.images import BadPicture, read_picture
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models.base import Encoder, Features, TokenEncoder
from vitreous.tasks.base import Task
from vitreous.tasks.detector import Detect
from vitreous.tasks.image_text import ImageText
from vitreous.tasks.mask_queries import MaskQueries
from vitreous.tasks.predictions import class_logits
from vitreous.weights.peers import Outputs
from vitreous.weights.text_towers import some_rows
from vitreous.weights.trained import Trained


def random_images(channels: int, size_px: tuple[int, int], num: int = 2) -> Tensor:
    """(B, C, h, w) float32, the same every time."""
    return torch.randn(num, channels, *size_px, generator=torch.Generator().manual_seed(0))


def random_pictures(size_px: tuple[int, int], num: int = 2) -> Tensor:
    """(B, 3, h, w) uint8, the same every time: noise over a ramp of colour, so that coarse and fine count."""
    generator = torch.Generator().manual_seed(0)
    ramp = torch.linspace(0, 192, size_px[1]) * torch.rand(num, 3, 1, 1, generator=generator)
    return (ramp + 64 * torch.rand(num, 3, *size_px, generator=generator)).to(torch.uint8)


def read_pictures(pictures: Sequence[str | Path], preprocessing: Preprocessing) -> list[Tensor]:
    """(1, 3, h, w) uint8 each: the user's own, resized and cropped for the model."""
    found = []
    for picture in pictures:
        try:
            found.append(preprocessing.resized(read_picture(Path(picture)))[None])
        except BadPicture as error:
            raise UserError(f"{picture}: {error}") from None
    return found


@torch.no_grad()
def outputs(trained: Trained, images: Tensor) -> Outputs:
    """The outputs of our model, prepared for images of this size, in their precision; logits after the temperature."""
    fitted = trained.resized((images.shape[-2], images.shape[-1]))
    model = (fitted.encoder().eval() if fitted.card.task is None else fitted.task()).to(images.dtype)
    encoder: Encoder = model.encoder if isinstance(model, Task) else model
    if isinstance(model, Detect):
        return model.predict(images).outputs()
    if isinstance(model, MaskQueries):  # for any kind of result
        said = model.decoded(images)
        return {"logits": said.logits[-1], "masks": said.masks()}
    if isinstance(model, ImageText):
        return _of_both_towers(model, images)
    features = encoder(images)
    found = {"features": _tokens(features) if isinstance(encoder, TokenEncoder) else features.maps[-1]}
    if isinstance(model, Task):
        return {**found, "logits": class_logits(model.predict(images)) / trained.card.temperature}
    return {**found, "pooled": features.pooled}


def _of_both_towers(model: ImageText, images: Tensor) -> Outputs:
    """The outputs for pictures, for some rows of tokens, and for each pair."""
    pictures, texts = model.embed_pictures(images), model.embed_texts(some_rows(model.settings.text))
    similarity = model.log_scale.exp() * pictures @ texts.T
    return {"pictures": pictures, "texts": texts, "similarity": similarity + (0 if model.bias is None else model.bias)}


def _tokens(features: Features) -> Tensor:
    """(B, P + h*w, D), as in the peers."""
    patches = features.maps[0].flatten(2).transpose(1, 2)
    return patches if features.prefix is None else torch.cat([features.prefix, patches], dim=1)


def distance(ours: Tensor, theirs: Tensor) -> float:
    """max|a - b| / max|b|; infinite if the shapes differ, NaN if anything is not finite."""
    if ours.shape != theirs.shape:
        return float("inf")
    largest, apart = theirs.abs().max(), (ours - theirs).abs().max()
    return float(apart) if apart == 0 else float(apart / largest)
