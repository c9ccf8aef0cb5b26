"""Pictures with a mask each, as files: a folder of both, or a table that names them. The masks are read when they are
wanted, by whoever reads the picture."""

import os
from collections.abc import Sequence
from pathlib import Path

from vitreous.data.base import PathList, Source
from vitreous.data.folder import FileSource
from vitreous.data.images import BadPicture
from vitreous.data.legends import Entry, entries_of, find_legend
from vitreous.data.masks import Legend
from vitreous.data.names import ALL, Layout
from vitreous.data.pairs import Pairs, find_pairs
from vitreous.data.targets import Masks, PixelLabels
from vitreous.data.targets.base import Digest
from vitreous.data.targets.pixels import Mask


class MaskFiles(Masks):
    """A file per picture; "" where a picture has none."""

    def __init__(self, paths: Sequence[str], legend: Legend) -> None:
        self._paths, self.legend = PathList(paths), legend

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, index: int) -> Mask:
        path = stored_mask(self._paths[index])
        try:
            return self.legend.read(path)
        except BadPicture as error:
            raise BadPicture(f"its mask {path.name}: {error}") from None

    def update(self, index: int, digest: Digest) -> None:
        path = self._paths[index]
        try:
            size = os.stat(path).st_size if path else 0  # noqa: PTH116  # a Path takes as long again to make
        except (OSError, ValueError):
            size = -1
        digest.update(b"%b\0%d\0" % (os.fsencode(os.path.basename(path)), size))  # noqa: PTH119


def stored_mask(path: str) -> Path:
    if not path:
        raise BadPicture("it has no mask")
    return Path(path)


def open_segmented(folder: Path, layout: Layout) -> tuple[dict[str, Source], tuple[str, ...]]:
    """The splits of a folder of pictures and masks. No splits where it is something else, and a note where it might
    have been taken for one."""
    found = None if layout.label_pattern is not None else find_pairs(folder)
    if found is None:
        return {}, ()
    if found.refused:
        return {}, (f"{folder}: not read as pictures with masks, because {found.refused}",)
    return with_masks(folder.name, found.splits, entries_of(folder), layout.ignored), ()


def with_masks(name: str, splits: dict[str, Pairs], entries: Sequence[Entry], ignored: str | None) -> dict[str, Source]:
    """All splits have the same classes: those of `entries`, or all that occur in any mask."""
    every = [mask for pairs in splits.values() for mask in pairs.masks]
    legend, notes = find_legend(len(every), lambda index: stored_mask(every[index]), entries, ignored, name)
    return {
        split: FileSource(
            name if split == ALL else f"{name} {split}",
            pairs.pictures,
            PixelLabels(MaskFiles(pairs.masks, legend)),
            legend.classes,
            (*pairs.notes, *notes),
        )
        for split, pairs in splits.items()
    }
