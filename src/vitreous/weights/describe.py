"""A model in a few words, as a person would name it."""

from vitreous.models import IGPTSettings, ModelSettings, PixelsSettings, ResNetSettings, TokeniserSettings
from vitreous.models.names import VIT_SIZES
from vitreous.models.shapes import shapes_only
from vitreous.weights.card import Card


def describe(card: Card) -> str:
    """'a ViT-S/16 at 384 px with 21,843 classes'."""
    height, width = card.model.picture_px
    size = f"{height} px" if height == width else f"{height} x {width} px"
    classes = f" with {len(card.classes):,} classes" if card.classes else " without a head"
    return f"a {_name(card.model)} at {size}{classes}"


def _name(model: ModelSettings) -> str:
    if isinstance(model, ResNetSettings):
        units = 3 * sum(model.depths) + 2
        return f"BiT R{units}x{model.base_width / 64:g}"
    if isinstance(model, IGPTSettings):
        return f"iGPT of width {model.width}, depth {model.depth}, {model.heads} heads"
    if isinstance(model, TokeniserSettings):
        return f"tokeniser of {model.vocabulary:,} codes, one for {model.stride} x {model.stride} px"
    if isinstance(model, PixelsSettings):
        return f"linear model of {model.grid[0]} x {model.grid[1]} pixels"
    with shapes_only():
        grid = model.build().grid
    sides = [round(side / cells) for side, cells in zip(model.picture_px, grid, strict=True)]  # what a token covers
    patch = str(sides[0]) if sides[0] == sides[1] else f"{sides[0]}x{sides[1]}"
    for name, known in VIT_SIZES.items():
        if (known.width, known.depth, known.heads) == (model.width, model.depth, model.heads):
            return f"{'hybrid ' if model.stem else ''}ViT-{name.capitalize()}/{patch}"
    kind = "hybrid" if model.stem else "ViT"
    return f"{kind} of width {model.width}, depth {model.depth}, {model.heads} heads, patch {patch}"
