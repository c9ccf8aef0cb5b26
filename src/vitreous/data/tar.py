"""Tar shards, WebDataset style, read in place.

A member's class is its folder (`train/<class>/name.jpg`, `<class>/name.jpg`), or stands in a member of the same name
that ends in `.cls` (`name.jpg`, `name.cls`). The mask of a picture lies in a folder of masks beside that of the
pictures, or stands beside it as `name.mask.png` (`tar_masks`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from vitreous.batch import UNLABELLED
from vitreous.data.base import Source
from vitreous.data.images import Picture, read_orientation, read_picture
from vitreous.data.names import ALL, Layout, Numbered, grouped_by_split, matched, numbered, split_of
from vitreous.data.skipped import Skipped
from vitreous.data.tar_captions import has_captions, open_captioned
from vitreous.data.tar_masks import open_masked
from vitreous.data.tar_members import Member, Members, Shard, key_of, open_shard
from vitreous.errors import UserError


class TarSource(Source):
    """Pictures in tar files."""

    def __init__(self, name: str, members: Members, known: Numbered) -> None:
        self.name, self._members = name, members
        self.targets, self.classes, self.notes = known

    def read(self, index: int) -> Picture:
        return read_picture(self._members.read(index))

    def orientation(self, index: int) -> int:
        return read_orientation(self._members.read(index))

    def where(self, index: int) -> str:
        return self._members.where(index)

    def size(self, index: int) -> int:
        return self._members.size(index)


def open_tar(path: Path, layout: Layout) -> dict[str, Source]:
    """The splits of a tar file or of a folder of them: by the files' names, else by the members' first folder."""
    found = grouped_by_split([path] if path.is_file() else path.glob("*.tar"))
    base = path.stem if path.is_file() else path.name
    opened: dict[str, list[Shard]] = {}
    skipped = {split: Skipped(str(shards[0] if len(shards) == 1 else path)) for split, shards in found.items()}
    for split, shards in found.items():
        opened[split] = [open_shard(shard, skipped[split]) for shard in shards]
        if not any(shard.pictures for shard in opened[split]):
            raise UserError("; ".join([f"{shards[0]}: no pictures in it", *skipped[split].words()]) + ".")
    refused: tuple[str, ...] = ()
    parts = open_captioned(opened, skipped) if has_captions(opened, layout) else {}
    if not parts and layout.label_pattern is None:
        parts, refused = open_masked(base, opened, layout.ignored)
    if not parts:
        parts = _labelled(opened, layout)
    sources: dict[str, Source] = {}
    for (split, inner), (members, known) in parts.items():
        name = split if split != ALL else inner
        # A shard of train whose members all lie in train/, or a lone shard of one split, is taken whole.
        if name in sources:
            raise UserError(f"{found[split][0]}: holds both {inner}/ and other members, though its name says {split}.")
        sources[name] = TarSource(base if name == ALL else f"{base} {name}", members, known)
        sources[name].notes += (*skipped[split].notes(), *refused)
    if list(found) == [ALL] and len(sources) == 1:
        return {ALL: next(iter(sources.values()))}
    return sources


def _labelled(opened: Mapping[str, Sequence[Shard]], layout: Layout) -> dict[tuple[str, str], tuple[Members, Numbered]]:
    """By the split that files are called by, and the one that the first folder of members names."""
    found = {}
    for split, shards in opened.items():
        for inner, (places, marks) in _indexed(shards, layout).items():
            numeric = all(mark.isdecimal() for mark in marks)
            numbers: list[str] | list[int] = [int(mark) for mark in marks] if numeric else marks
            first = shards[0].path
            members = Members([shard.path for shard in shards], places)
            found[split, inner] = (members, numbered(numbers, first.parent, str(first)))
    return found


def _indexed(shards: Sequence[Shard], layout: Layout) -> dict[str, tuple[list[tuple[int, Member]], list[str]]]:
    """The pictures in some shards and their classes, by the split that their first folder names."""
    found: dict[str, tuple[list[tuple[int, Member]], list[str]]] = {}
    pattern = layout.label_pattern
    for number, shard in enumerate(shards):
        for member in shard.pictures:
            *folders, name = PurePosixPath(member.name).parts
            split = split_of(folders[0]) if folders and folders[0].isalpha() else None
            inside = folders[1:] if split else folders
            places, marks = found.setdefault(("train" if split == "trainval" else split) or ALL, ([], []))
            places.append((number, member))
            marks.append("/".join([*inside, name]) if pattern else _mark(shard, member.name, inside, layout))
    if pattern:
        return {split: (places, matched(pattern, marks, shards[0].path)) for split, (places, marks) in found.items()}
    return found


def _mark(shard: Shard, member: str, folders: Sequence[str], layout: Layout) -> str:
    """The class of a member: as its .cls says, or else its folder."""
    key = key_of(PurePosixPath(member))
    mark = shard.labels.get(key, folders[0] if folders else "" if layout.need_labels else UNLABELLED)
    if not mark:
        raise UserError(f"{shard.path}:{member}: no class: neither a folder nor a member {key}.cls names one.")
    return mark
