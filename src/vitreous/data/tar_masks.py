"""Masks in tar files: in a folder of masks beside that of the pictures, with the names that folders on a disk have
(`pairs`); or beside their pictures, as `name.jpg` and `name.mask.png`. A mask lies in the same file as its picture."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from vitreous.data.images import BadPicture
from vitreous.data.legends import entries_of, find_legend
from vitreous.data.masks import Legend
from vitreous.data.names import ALL, Numbered, split_of
from vitreous.data.pairs import Pairs, Recognised, named_folders, recognised, refused_as_masks
from vitreous.data.skipped import Skipped
from vitreous.data.tar_members import Member, Members, Shard, read_member
from vitreous.data.targets import Masks, PixelLabels
from vitreous.data.targets.base import Digest
from vitreous.data.targets.pixels import Mask
from vitreous.errors import UserError

BESIDE = (".mask", ".seg", ".segmentation", ".annotation")  # what follows a picture's name
NONE = Member("", 0, 0)


class TarMasks(Masks):
    """A member per picture."""

    def __init__(self, members: Members, legend: Legend) -> None:
        self._members, self.legend = members, legend

    def __len__(self) -> int:
        return len(self._members)

    def read(self, index: int) -> Mask:
        try:
            return self.legend.read(_stored(self._members, index))
        except BadPicture as error:
            name = PurePosixPath(self._members.name(index)).name
            raise BadPicture(f"its mask {name}: {error}" if name else str(error)) from None

    def update(self, index: int, digest: Digest) -> None:
        name = self._members.name(index).encode("utf-8", "surrogateescape")
        digest.update(b"%b\0%d\0" % (name, self._members.size(index)))


def _stored(members: Members, index: int) -> bytes:
    if not members.name(index):
        raise BadPicture("it has no mask")
    return members.read(index)


def open_masked(
    base: str, opened: Mapping[str, Sequence[Shard]], ignored: str | None
) -> tuple[dict[tuple[str, str], tuple[Members, Numbered]], tuple[str, ...]]:
    """By the split that files are called by, and the one that folders in them are. Nothing where these are no pictures
    with masks, and a note where they might have been taken for such."""
    found = [(split, number, _pairs(shard)) for split, shards in opened.items() for number, shard in enumerate(shards)]
    of_masks = [pairs for *_, pairs in found if pairs is not None and pairs.splits]
    if not of_masks:
        refused = [pairs.refused for *_, pairs in found if pairs is not None]
        return {}, tuple(f"{base}: not read as pictures with masks, because {reason}" for reason in refused[:1])
    pictures: dict[tuple[str, str], list[tuple[int, Member]]] = {}
    masks: dict[tuple[str, str], list[tuple[int, Member]]] = {}
    for split, number, pairs in found:
        shard = opened[split][number]
        if pairs is None or not pairs.splits:
            why = f" ({pairs.refused})" if pairs is not None else ""
            raise UserError(f"{shard.path}: no masks in it{why}, unlike other files. Leave it out.")
        by_name = {one.name: one for one in shard.pictures} | {"": NONE}
        for inner, both in pairs.splits.items():
            place = (split, inner)
            pictures.setdefault(place, []).extend((number, by_name[name]) for name in both.pictures)
            masks.setdefault(place, []).extend((number, by_name[name]) for name in both.masks)
    paths = {split: [shard.path for shard in shards] for split, shards in opened.items()}
    masked = {place: Members(paths[place[0]], both) for place, both in masks.items()}
    legend, notes = _legend(base, masked, next(iter(paths.values()))[0].parent, ignored)
    said = [note for one in of_masks for both in one.splits.values() for note in both.notes]
    notes = tuple(dict.fromkeys([*said, *notes]))
    return {
        place: (Members(paths[place[0]], both), (PixelLabels(TarMasks(masked[place], legend)), legend.classes, notes))
        for place, both in pictures.items()
    }, ()


def _legend(
    base: str, masked: Mapping[tuple[str, str], Members], folder: Path, ignored: str | None
) -> tuple[Legend, tuple[str, ...]]:
    """All splits have the same classes: those of a classes.json beside the files, or all that occur in any mask."""
    every = [(members, index) for members in masked.values() for index in range(len(members))]
    return find_legend(len(every), lambda place: _stored(*every[place]), entries_of(folder), ignored, base)


# ---- One file


class _Inside:
    """A tar file as a tree of folders (walk.Tree)."""

    def __init__(self, shard: Shard) -> None:
        self._path, self._members = shard.path, {one.name: one for one in shard.pictures}
        self._folders: dict[Path, set[Path]] = {}
        for inside in {name.rpartition("/")[0] for name in self._members}:
            for folder in (Path(inside), *Path(inside).parents):
                if folder != folder.parent:
                    self._folders.setdefault(folder.parent, set()).add(folder)

    def subfolders(self, folder: Path) -> list[Path]:
        return sorted(self._folders.get(folder, ()))

    def pictures_under(self, folder: Path, skipped: Skipped) -> Iterator[str]:
        return (name for name in sorted(self._members) if folder in Path(name).parents)

    def stored(self, file: str) -> bytes:
        return read_member(self._path, *self._members[file][1:])


def _pairs(shard: Shard) -> Recognised | None:
    """None where nothing in the file is called a mask."""
    tree, top = _Inside(shard), Path()
    while True:
        named = named_folders(top, tree)
        if named:
            return recognised(top, named, tree, str(shard.path))
        inside = tree.subfolders(top)
        if len(inside) != 1 or split_of(inside[0].name) is not None:
            return _side_by_side(shard, tree)
        top = inside[0]  # archives often have one folder around all


def _side_by_side(shard: Shard, tree: _Inside) -> Recognised | None:
    """`name.jpg` and `name.mask.png`; by the split that the first folder names."""
    if not any(f"{end}." in one.name.lower() for one in shard.pictures for end in BESIDE):
        return None
    masks: dict[str, str] = {}
    pictures: list[str] = []
    for one in shard.pictures:
        stem = str(PurePosixPath(one.name).with_suffix(""))
        end = next((end for end in BESIDE if stem.lower().endswith(end)), "")
        if end:
            masks[stem[: -len(end)]] = one.name
        else:
            pictures.append(one.name)
    if not any(str(PurePosixPath(name).with_suffix("")) in masks for name in pictures):
        return None
    refused = refused_as_masks(list(masks.values()), tree)
    if refused:
        return Recognised({}, refused)
    found: dict[str, Pairs] = {}
    for name in pictures:
        path = PurePosixPath(name)
        split = split_of(path.parts[0]) if len(path.parts) > 1 and path.parts[0].isalpha() else None
        pairs = found.setdefault(("train" if split == "trainval" else split) or ALL, Pairs())
        pairs.pictures.append(name)
        pairs.masks.append(masks.get(str(path.with_suffix("")), ""))
    first = next(iter(masks.values()))
    for pairs in found.values():
        pairs.notes.append(f"{shard.path}: read as pictures with a mask each (such as {first})")
    return Recognised(found)
