"""Several views of every picture, for the objectives that compare them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from vitreous.data.augmentation import Augmentation, View
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError


@dataclass(frozen=True, kw_only=True)
class ViewSettings:
    """A further view, beyond the first: another global one, or the small crops of multi-crop."""

    augmentation: Augmentation = field(default_factory=Augmentation)
    times: int = 1  # so many of this kind, each with random choices of its own; 0: none
    size_px: tuple[int, int] | None = None  # none: the model's own

    def __post_init__(self) -> None:
        if self.times < 0:
            raise UserError(f"times is {self.times}: give the number of views of this kind, or 0 for none")


def build_views(first: Augmentation, more: tuple[ViewSettings, ...], preprocessing: Preprocessing) -> list[View]:
    """All views of a picture, in the order in which a batch holds them."""
    views = [first.build(preprocessing)]
    for kind in more:
        sized = replace(preprocessing, size_px=kind.size_px or preprocessing.size_px)
        views += [kind.augmentation.build(sized, f"view{len(views) + copy}") for copy in range(kind.times)]
    if len(views) > 1 and any(view.augmentation.mix.is_on for view in views):
        raise UserError("mixup and cutmix mix the labels of one view: set both to 0 where pictures have several views")
    if len(views) > 1 and any(view.leaves_room for view in views):
        raise UserError(
            "crop.method zoom leaves padding, which only a single view may have: choose another for several views"
        )
    return views


def check_places(views: Sequence[View], name: str) -> None:
    """That what has a place in the pictures of the source `name` can go where their pixels go."""
    augmentation = views[0].augmentation
    if len(views) > 1:
        raise UserError(
            f"{name}: its targets have places in the pictures, which allows only one view: leave out more_views"
        )
    if augmentation.warp.ops:
        raise UserError(f"{name}: its targets have places, which RandAugment would move: set --augmentation.warp.ops 0")
    if augmentation.mix.is_on:
        raise UserError(
            f"{name}: its targets have places and cannot be mixed: set --augmentation.mix.mixup 0 and cutmix 0"
        )
