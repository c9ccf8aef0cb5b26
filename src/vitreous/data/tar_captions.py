"""Captions in tar files, as WebDataset has them: `name.jpg` beside `name.txt`, or beside `name.json`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from vitreous.data.captioned import texts_in
from vitreous.data.images import BadPicture
from vitreous.data.names import ALL, Layout, Numbered, split_of
from vitreous.data.skipped import Skipped
from vitreous.data.tar_members import Member, Members, Shard, key_of, read_member
from vitreous.data.targets import Captions
from vitreous.errors import UserError

MAX_BYTES = 2**20  # of the texts of a picture


def has_captions(opened: Mapping[str, Sequence[Shard]], layout: Layout) -> bool:
    """Whether these are asked for; or else all pictures have some, and no classes."""
    if layout.targets == "captions":
        return True
    if layout.targets is not None or layout.label_pattern is not None or not layout.need_labels:
        return False
    shards = [shard for some in opened.values() for shard in some]
    return all(
        not shard.labels and all(key_of(PurePosixPath(one.name)) in shard.texts for one in shard.pictures)
        for shard in shards
    )


def open_captioned(
    opened: Mapping[str, Sequence[Shard]], skipped: Mapping[str, Skipped]
) -> dict[tuple[str, str], tuple[Members, Numbered]]:
    """By the split that files are called by, and the one that the first folder of members names."""
    found: dict[tuple[str, str], tuple[Members, Numbered]] = {}
    for split, shards in opened.items():
        for suffix in (".txt", ".json"):  # these are read
            skipped[split].suffixes.pop(suffix, None)
        parts: dict[str, list[tuple[int, Member, list[str]]]] = {}
        for number, shard in enumerate(shards):
            for member in shard.pictures:
                first = PurePosixPath(member.name).parts[0]
                inner = (split_of(first) if first.isalpha() else None) or ALL
                parts.setdefault("train" if inner == "trainval" else inner, []).append(
                    (number, member, _texts(shard, member))
                )
        for inner, rows in parts.items():
            kept = [row for row in rows if row[2]]
            if not kept:
                raise UserError(f"{shards[0].path}: no picture has a caption (name.txt or name.json beside it).")
            left = len(rows) - len(kept)
            notes = (f"{shards[0].path}: left out for lack of a caption: {left:,}",) if left else ()
            members = Members([shard.path for shard in shards], [(number, member) for number, member, _ in kept])
            found[split, inner] = members, (Captions.of([texts for *_, texts in kept]), (), notes)
    return found


def _texts(shard: Shard, member: Member) -> list[str]:
    beside = shard.texts.get(key_of(PurePosixPath(member.name)))
    if beside is None:
        return []
    if beside.size > MAX_BYTES:
        raise UserError(f"{shard.path}:{beside.name}: {beside.size:,} bytes are too many for a caption.")
    try:
        text = read_member(shard.path, beside.offset, beside.size).decode("utf-8-sig")
        return texts_in(json.loads(text) if beside.name.endswith(".json") else text)
    except (BadPicture, ValueError, RecursionError) as error:
        raise UserError(f"{shard.path}:{beside.name}: cannot be read as captions ({error}).") from None
