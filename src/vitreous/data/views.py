"""Several views of every picture, for the objectives that compare them."""

from dataclasses import dataclass, field, replace

from vitreous.data.transforms import Augmentation, Preprocessing, View
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
    mixed = [one for one in (first, *(kind.augmentation for kind in more)) if one.mixup or one.cutmix]
    if mixed and len(views) > 1:
        raise UserError("mixup and cutmix mix the labels of one view: set both to 0 where pictures have several views")
    return views
