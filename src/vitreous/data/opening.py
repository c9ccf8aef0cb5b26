"""Opening: what kind of data lies at a place, and who reads it."""

import os
from dataclasses import replace
from pathlib import Path

from vitreous.data.base import Source
from vitreous.data.boxed import open_boxed, open_boxed_file
from vitreous.data.files import check_regular
from vitreous.data.flickr import open_flickr
from vitreous.data.folder import open_folder
from vitreous.data.foreign_boxes import refuse_foreign
from vitreous.data.hub import open_hub
from vitreous.data.legends import Entry
from vitreous.data.names import Layout
from vitreous.data.parquet import open_parquet
from vitreous.data.rendered import open_rendered
from vitreous.data.segmented import open_segmented
from vitreous.data.table import open_table
from vitreous.data.tar import open_tar
from vitreous.errors import UserError, did_you_mean, did_you_mean_beside

FASHION = Path(__file__).parent / "fashion"
# Looked for in the folder that VITREOUS_DATA names.
SHARED = (
    "cifar10",
    "imagenette224",
    "oxford_pets",
    "pets_trimaps",
    "camvid",
    "tiny_imagenet",
    "bccd",
    "coco_small",
    "flickr8k",
)
OWN = ("fashion",)  # comes with the package
# Of the pixels of Oxford's pets. What lies between a pet and the background is "not classified", says the set itself.
PETS = (Entry("pet", 1), Entry("background", 2), Entry(None, 3))


def opened(where: str, layout: Layout) -> dict[str, Source]:
    """By the splits that it has of its own."""
    if where == "fashion":
        return open_parquet(FASHION, _without_pattern(where, layout))
    if where.startswith("rendered:"):
        return open_rendered(where.removeprefix("rendered:"))
    if where.startswith("hf:"):
        return open_hub(where.removeprefix("hf:"), _without_pattern(where, layout))
    if where == "pets_trimaps":
        return open_parquet(found_at("oxford_pets", where), replace(layout, mask_column="trimap"), PETS)
    path = found_at(where)
    if path.is_dir():
        return _open_directory(path, layout)
    try:
        check_regular(path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}.") from None
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return open_parquet(path, _without_pattern(where, layout))
    if suffix == ".tar":
        return open_tar(path, _without_columns(where, layout))
    if suffix in (".json", ".yaml", ".yml"):
        return open_boxed_file(path, layout)
    if suffix in (".csv", ".tsv"):
        return open_table(path, layout)
    if path.name.endswith((".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar.zst", ".zip")):
        raise UserError(
            f"{path}: compressed archives cannot be read in random order; unpack it, or make it a plain .tar."
        )
    raise UserError(f"{path}: not a folder, .parquet, .tar, .csv, .tsv, a COCO .json or a YOLO .yaml.")


def _open_directory(path: Path, layout: Layout) -> dict[str, Source]:
    try:
        suffixes = {entry.suffix.lower() for entry in path.iterdir() if entry.is_file()}
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    if ".parquet" in suffixes:
        return open_parquet(path, _without_pattern(str(path), layout))
    if any((path / "data").glob("*.parquet")):  # as repositories on the hub lay it out
        return open_parquet(path / "data", _without_pattern(str(path), layout))
    if ".tar" in suffixes:
        return open_tar(path, _without_columns(str(path), layout))
    return _open_files(path, layout)


def _open_files(path: Path, layout: Layout) -> dict[str, Source]:
    """A folder of pictures: with boxes, with masks, or with labels, by what lies in it."""
    found = open_flickr(path) if layout.targets in (None, "captions") and layout.label_pattern is None else {}
    notes: tuple[str, ...] = ()
    if not found and layout.targets == "captions":
        raise UserError(
            f"{path}: no captions in it (no list such as Flickr8k.token.txt); a .csv table can hold them too."
        )
    if not found and layout.targets in (None, "boxes") and layout.label_pattern is None:
        found, notes = open_boxed(path, layout)
    if not found and layout.targets in (None, "masks"):
        found, more = open_segmented(path, _without_columns(str(path), layout))
        notes += more
    if found:
        _without_columns(str(path), layout)
    elif layout.targets is None and layout.label_pattern is None:
        refuse_foreign(path)
    found = found or open_folder(path, layout)
    for source in found.values():
        source.notes += notes
    return found


def _without_pattern(where: str, layout: Layout) -> Layout:
    if layout.label_pattern is not None:
        raise UserError(
            f"{where}: has no file names; --data.layout.label_pattern is for folders, tar files and tables."
        )
    return layout


def _without_columns(where: str, layout: Layout) -> Layout:
    for name in ("label_column", "label_separator", "mask_column", "caption_column", "path_column"):
        if getattr(layout, name) is not None:
            raise UserError(
                f"{where}: has no columns; --data.layout.{name} is for tables{' and parquet' * (name[0] != 'p')}."
            )
    return layout


def same_data(one: str, other: str) -> bool:
    """Whether two names lead to the same data: a path may be spelled in several ways."""
    try:
        return one == other or found_at(one).resolve() == found_at(other).resolve()
    except UserError:  # what is no path, or is not there, goes by its name
        return False


def exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise UserError(f"{str(path)[:200]}: {error.strerror}.") from None


def found_at(where: str, asked: str = "") -> Path:
    """`asked`: what the user called it, where that is something else."""
    path = Path(where).expanduser()
    if exists(path):
        return path
    shared = os.environ.get("VITREOUS_DATA")
    if shared and exists(Path(shared) / where):
        return Path(shared) / where
    if where in SHARED:
        state = f"it is not in {shared}" if shared else "this variable is not set"
        raise UserError(f"{asked or where} is expected in the folder that the variable VITREOUS_DATA names; {state}.")
    raise UserError(
        f"{where}: no such file or folder, and no data set of that name."
        f"{did_you_mean(where, ['fashion', *SHARED]) or did_you_mean_beside(path)}"
    )
