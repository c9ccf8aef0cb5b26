"""A model in a few words, as a person would name it."""

from vitreous.display.words import counted
from vitreous.tasks import ImageTextSettings
from vitreous.weights.card import Card


def describe(card: Card) -> str:
    """'a ViT-S/16 at 384 px with 21,843 classes'."""
    height, width = card.model.picture_px
    size = f"{height} px" if height == width else f"{width} x {height} px"
    if isinstance(card.task, ImageTextSettings):
        head = " with a text tower"
    else:
        head = f" with {counted(len(card.classes), 'class', 'classes')}" if card.classes else " without a head"
    return f"a {card.model.name} at {size}{head}"
