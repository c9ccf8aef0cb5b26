#!/usr/bin/env python3
"""Take folders of data to a machine that takes only so much at a time: cut them into pieces, and join them there.

    python tools/pieces.py cut data/cifar10 data/bccd --to carry --mb 28
    python tools/pieces.py join carry/bccd-cifar10-1-of-4 --to data

Every piece is a folder of its own, with its part of a tar (nothing is compressed: pictures already are) and the sums of
all parts. So pieces may come one by one, in any order, and again: `join` checks each by its sum and keeps it beside the
data; with the last of them the folders are made, each whole or not at all. What is there already is left alone.
"""

import argparse
import hashlib
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from vitreous.cli import one_line_errors
from vitreous.errors import UserError
from vitreous.storage import atomic

PART, ABOUT = "part", "about.json"  # of a piece
KEPT = ".pieces"  # beside the data: parts that wait for the others


def cut(folders: list[Path], to: Path, size: int) -> list[Path]:
    """The pieces. The same files make the same pieces, wherever and whenever they are cut."""
    folders = sorted(folders, key=lambda folder: folder.name)
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder}: there is no such folder")
    names = [folder.name for folder in folders]
    with tempfile.TemporaryFile() as whole:
        with tarfile.open(fileobj=whole, mode="w") as tar:
            for folder in folders:
                for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                    info = tarfile.TarInfo(str(Path(folder.name, path.relative_to(folder))))
                    info.size = path.stat().st_size
                    with path.open("rb") as file:
                        tar.addfile(info, file)
        sums = [hashlib.sha256(part).hexdigest() for part in parts_of(whole, size)]
        pieces = [to / f"{'-'.join(names)}-{number}-of-{len(sums)}" for number in range(1, len(sums) + 1)]
        for number, (piece, part) in enumerate(zip(pieces, parts_of(whole, size), strict=True)):
            atomic.write_bytes(part, piece / PART)
            atomic.write_json({"folders": names, "part": number, "sums": sums}, piece / ABOUT)
    return pieces


def parts_of(whole: IO[bytes], size: int) -> Iterator[bytes]:
    whole.seek(0)
    return iter(lambda: whole.read(size), b"")


def join(piece: Path, to: Path) -> str:
    """What became of it, in one line."""
    about = atomic.read_json(piece / ABOUT)
    wanted = [to / name for name in about["folders"]]
    if all(folder.exists() for folder in wanted):
        return f"{piece.name}: {', '.join(map(str, wanted))} is there already"
    kept = to / KEPT / hashlib.sha256("".join(about["sums"]).encode()).hexdigest()[:16]
    part = (piece / PART).read_bytes()
    if hashlib.sha256(part).hexdigest() != about["sums"][about["part"]]:
        raise UserError(f"{piece}: damaged in transit, since its sha256 differs; copy it again")
    atomic.write_bytes(part, kept / str(about["part"]))
    paths = [kept / str(number) for number in range(len(about["sums"]))]
    missing = [number for number, path in enumerate(paths, start=1) if not path.is_file()]
    if missing:
        return f"{piece.name}: kept; still to come: {', '.join(map(str, missing))} of {len(paths)}"
    with atomic.placed(kept / "made") as made:
        unpack(paths, made)
        for folder in wanted:
            if not folder.exists():
                (made / folder.name).rename(folder)
    shutil.rmtree(kept)
    return f"{piece.name}: made {', '.join(map(str, wanted))}"


def unpack(paths: list[Path], to: Path) -> None:
    with tempfile.TemporaryFile(dir=paths[0].parent) as whole:
        for path in paths:
            with path.open("rb") as part:
                shutil.copyfileobj(part, whole)
        whole.seek(0)
        with tarfile.open(fileobj=whole) as tar:
            tar.extractall(to, filter="data")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what: Any = parser.add_subparsers(dest="what", required=True)
    for name, given in (("cut", "folders"), ("join", "pieces")):
        words = what.add_parser(name)
        words.add_argument(given, nargs="+", type=Path)
        words.add_argument("--to", type=Path, required=True)
    what.choices["cut"].add_argument("--mb", type=float, default=28.0, help="that a piece has at most")
    options = parser.parse_args()
    if options.what == "cut":
        for piece in cut(options.folders, options.to, max(1, int(1e6 * options.mb))):
            print(f"{piece}: {(piece / PART).stat().st_size / 1e6:.1f} MB")
        return
    for piece in options.pieces:
        print(join(piece, options.to))


if __name__ == "__main__":
    with one_line_errors():
        main()
