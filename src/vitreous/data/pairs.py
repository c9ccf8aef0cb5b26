"""Folders of pictures with masks: which ones they are, and which mask belongs to which picture.

What a folder is called says where to look; the files in it decide. A set of two classes called `images` and `masks`
has such folders, too, but its files are no masks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vitreous.data.folder import split_folder
from vitreous.data.images import BadPicture, Values
from vitreous.data.lists import listed_splits
from vitreous.data.masks import ColouredMask, read_values
from vitreous.data.names import ALL, merged_trainval
from vitreous.data.skipped import Skipped, listed
from vitreous.data.walk import DISK, Tree

IMAGES = ("images", "image", "imgs", "img", "jpegimages", "leftimg8bit", "pictures", "photos", "rgb", "input", "inputs")
MASKS = (
    *("masks", "mask", "segmentationclass", "gtfine", "annotations/trimaps", "trimaps", "labels", "label"),
    *("annotations", "annotation", "annot", "segmentations", "segmentation", "seg", "gt", "groundtruth", "targets"),
)
BESIDE = ("annot", "mask", "masks", "label", "labels", "gt")  # train and trainannot, or train_masks
# What is added to a picture's name, or to its mask's; where a picture has several masks, the first of these is read.
MASK_ENDS = (
    *("", "_gtfine_labeltrainids", "_gtfine_labelids", "_mask", "_l", "_label", "_labels", "_labelids", "_gt"),
    *("_seg", "_segmentation", "_lab", "_anno", "_annotation", "-mask", "-label", ".mask"),
)
MASK_STARTS = ("mask_", "label_", "gt_", "seg_")
PICTURE_ENDS = ("", "_leftimg8bit", "_image", "_img", "_rgb", "_sat")
PICTURE_STARTS = ("image_", "img_")

NUM_PROBES = 8
FEW_VALUES = 64  # in one mask, by number
FEW_COLOURS = 256
CALM = 0.7  # of the neighbours in a mask are of the same class, at least; of those in a photo, fewer are equal


@dataclass
class Pairs:
    """The pictures of one split, and the mask of each; "" where there is none."""

    pictures: list[str] = field(default_factory=list)
    masks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.pictures)

    def chosen(self, places: Sequence[int]) -> "Pairs":
        return Pairs([self.pictures[at] for at in places], [self.masks[at] for at in places], list(self.notes))


@dataclass
class Recognised:
    """What was found in a folder whose names speak of masks."""

    splits: dict[str, Pairs]
    refused: str = ""  # why its files are no masks after all


def find_pairs(folder: Path) -> Recognised | None:
    """The splits of a folder of pictures and masks; None where no folder is called so."""
    named = named_folders(folder)
    if not named:
        return None
    found = recognised(folder, named, DISK, str(folder))
    if list(found.splits) == [ALL]:
        found.splits = _by_lists(folder, found.splits[ALL], named[ALL][0])
    return found


def recognised(folder: Path, named: Mapping[str, tuple[Path, Path]], tree: Tree, where: str) -> Recognised:
    """The pictures and masks in folders that are called so, unless their files say otherwise."""
    found = {split: pairs for split, both in named.items() if len(pairs := _paired(*both, tree))}
    both = " and ".join(path.relative_to(folder).as_posix() for path in named.get("train", next(iter(named.values()))))
    if not any(mask for pairs in found.values() for mask in pairs.masks):
        return Recognised({}, f"no file in one has the same name as a file in the other ({both})")
    refused = refused_as_masks([mask for pairs in found.values() for mask in pairs.masks if mask], tree)
    if refused:
        return Recognised({}, f"{refused} ({both})")
    for pairs in found.values():
        pairs.notes.insert(0, f"{where}: read as pictures with a mask each ({both})")
    return Recognised(found)


# ---- Folders


def named_folders(folder: Path, tree: Tree = DISK) -> dict[str, tuple[Path, Path]]:
    """Splits, and where their pictures and masks lie, as far as names tell."""
    both = _images_and_masks(folder, tree)
    if both is not None:  # images/train and masks/train, or one folder each
        pictures, masks = (_splits_in(path, tree) for path in both)
        shared = {split: (path, masks[split]) for split, path in pictures.items() if split in masks}
        return merged_trainval(shared) if shared else {ALL: both}
    inside = _by_name(folder, tree)
    found = {}
    for split, path in _splits_in(folder, tree).items():  # train/images and train/masks, or train and trainannot
        names = [path.name.lower() + join + word for word in BESIDE for join in ("", "_", "-")]
        beside = [(path, inside[name]) for name in names if name in inside]
        within = _images_and_masks(path, tree)
        if within or beside:
            found[split] = within or beside[0]
    return merged_trainval(found)


def _splits_in(folder: Path, tree: Tree) -> dict[str, Path]:
    return {split: path for path in tree.subfolders(folder) if (split := split_folder(path)) is not None}


def _images_and_masks(folder: Path, tree: Tree) -> tuple[Path, Path] | None:
    inside = _by_name(folder, tree)
    pictures = next((inside[name] for name in IMAGES if name in inside), None)
    for name in MASKS:
        first, _, second = name.partition("/")
        masks = inside.get(first)
        if masks is not None and second:
            masks = _by_name(masks, tree).get(second)
        if pictures is not None and masks is not None:
            return pictures, masks
    return None


def _by_name(folder: Path, tree: Tree) -> dict[str, Path]:
    return {path.name.lower(): path for path in tree.subfolders(folder)}


# ---- Names


def _paired(pictures: Path, masks: Path, tree: Tree) -> Pairs:
    skipped, unread = Skipped(str(pictures)), Skipped(str(masks))
    picture_files = list(tree.pictures_under(pictures, skipped))
    mask_files = list(tree.pictures_under(masks, unread))
    if not picture_files:
        return Pairs()
    places = matched(_below(pictures, picture_files), _below(masks, mask_files))
    alone = set(range(len(mask_files))) - set(places)
    notes = [*skipped.notes(), *unread.notes()]
    if alone:
        names = [Path(mask_files[place]).name for place in sorted(alone)]
        notes.append(f"{masks}: masks without a picture, skipped: {len(names):,} ({listed(names)})")
    return Pairs(picture_files, ["" if place is None else mask_files[place] for place in places], notes)


def _below(folder: Path, files: Sequence[str]) -> list[str]:
    return [Path(file).relative_to(folder).with_suffix("").as_posix() for file in files]


def matched(pictures: Sequence[str], masks: Sequence[str]) -> list[int | None]:
    """For every picture the place of its mask, by their names without suffixes."""
    places: dict[str, tuple[int, int]] = {}
    for place, name in enumerate(masks):
        for rank, key in _keys(name, MASK_ENDS, MASK_STARTS):
            places[key] = min(places.get(key, (rank, place)), (rank, place))
    found: list[int | None] = []
    for name in pictures:
        known = [places[key] for _, key in _keys(name, PICTURE_ENDS, PICTURE_STARTS) if key in places]
        found.append(known[0][1] if known else None)
    return found


def _keys(name: str, ends: Sequence[str], starts: Sequence[str]) -> Iterator[tuple[int, str]]:
    """What a file may be known by, the name as it is first."""
    folder, slash, last = name.rpartition("/")
    for rank, end in enumerate(ends):
        if last.lower().endswith(end):
            yield rank, folder + slash + last[: len(last) - len(end)]
    for rank, start in enumerate(starts, len(ends)):
        if last.lower().startswith(start):
            yield rank, folder + slash + last[len(start) :]


# ---- Files


def refused_as_masks(files: Sequence[str], tree: Tree) -> str:
    """Why the files are no masks, by some of them; empty where they are."""
    places = np.unique(np.linspace(0, len(files) - 1, NUM_PROBES).astype(int))
    reasons = [_not_a_mask(files[place], tree) for place in places]
    against = [reason for reason in reasons if reason]
    return against[0] if 2 * len(against) > len(reasons) else ""


def _not_a_mask(file: str, tree: Tree) -> str:
    path = Path(file)
    try:
        stored = tree.stored(file)
        values, few = read_values(stored, coloured=False), FEW_VALUES
    except ColouredMask:
        values, few = read_values(stored, coloured=True), FEW_COLOURS
    except BadPicture as error:
        return f"{path.name} is {error}" if "changes the values" in str(error) else ""  # a damaged one tells nothing
    num = len(np.unique(values))
    if num > few:
        return f"{path.name} has {num:,} different values"
    return f"{path.name} looks like a photo" if _calm(values) < CALM else ""


def _calm(values: Values) -> float:
    """The share of pixels that are equal to their neighbour on the right, or below, whichever is less."""
    return min(
        float(np.mean(values[:, 1:] == values[:, :-1])) if values.shape[1] > 1 else 1.0,
        float(np.mean(values[1:] == values[:-1])) if values.shape[0] > 1 else 1.0,
    )


def _by_lists(root: Path, pairs: Pairs, pictures: Path) -> dict[str, Pairs]:
    """The splits that lists in the folder name, where there are any; else all as one."""
    listed_in = listed_splits(root, _below(pictures, pairs.pictures))
    found = {split: pairs.chosen(places) for split, (places, _) in listed_in.items()} or {ALL: pairs}
    for split, (_, notes) in listed_in.items():
        found[split].notes += notes
    left = len(pairs) - len({place for places, _ in listed_in.values() for place in places})
    if listed_in and left:
        next(iter(found.values())).notes.append(f"{pictures}: pictures in none of the lists, skipped: {left:,}")
    return found
