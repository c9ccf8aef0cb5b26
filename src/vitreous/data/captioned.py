"""Pictures with captions, in whatever holds them: which column it is, what a cell says, and who has none."""

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from vitreous.data.base import Source, Subset
from vitreous.data.names import Layout, column
from vitreous.data.targets import Captions
from vitreous.display.words import counted
from vitreous.errors import UserError

CAPTIONS = ("caption", "captions", "text", "texts", "sentence", "sentences", "description", "title", "alt_text", "raw")


def caption_column(names: Sequence[str], layout: Layout, where: str, others: Set[str]) -> str | None:
    """The one with the captions, where these are asked for, or where there is nothing else: `others` are columns of
    labels, masks and boxes."""
    if layout.caption_column is not None or layout.targets == "captions":
        return column(names, layout.caption_column, CAPTIONS, "caption", where)
    named_others = layout.label_column or layout.mask_column or layout.label_pattern or layout.targets
    if named_others or not layout.need_labels or others & set(names):
        return None
    return next((name for name in CAPTIONS if name in names), None)


def texts_in(cell: Any) -> list[str]:
    """A text, or several: as a list, or as a list of objects that have one each. Empty ones are none."""
    if isinstance(cell, str):
        return [cell.strip()] if cell.strip() else []
    if isinstance(cell, Mapping):
        return next((texts_in(cell[name]) for name in CAPTIONS if name in cell), [])
    if isinstance(cell, list | tuple):
        return [text for one in cell for text in texts_in(one)]
    return []


def with_captions(source: Source, captions: Sequence[Sequence[str]]) -> Source:
    """The pictures of a source that have any."""
    source.targets, source.classes = Captions.of(captions), ()
    kept = np.flatnonzero([len(some) > 0 for some in captions])
    if not len(kept):
        raise UserError(f"{source.name}: none of its pictures has a caption.")
    note = f"{source.name}: read as {counted(len(kept), 'picture')} with {counted(sum(map(len, captions)), 'caption')}"
    left = len(captions) - len(kept)
    found = Subset(source, kept, source.name) if left else source
    found.notes = (
        *source.notes,
        note,
        *((f"{source.name}: left out for lack of a caption: {left:,}",) if left else ()),
    )
    return found
