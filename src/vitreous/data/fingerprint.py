"""Which pictures a run learns from: enough to notice that one was added, taken away, exchanged or labelled anew."""

import hashlib
from collections.abc import Sequence
from itertools import takewhile
from pathlib import PurePath
from typing import Any

from vitreous.data.base import Source
from vitreous.data.splits import Splits


def names_digest(source: Source) -> str:
    """sha256 of what the pictures are called, how they are labelled and how large their files are; their pixels are not
    read. It stays the same where the whole set is moved."""
    digest = hashlib.sha256(repr(source.classes).encode())
    source.targets.update(digest)
    folder = _folder(source) if len(source) else ""
    for index in range(len(source)):
        name = source.where(index).removeprefix(folder).encode("utf-8", "surrogateescape")
        digest.update(b"%b\0%d\0" % (name, source.size(index)))
    return digest.hexdigest()


def _folder(source: Source) -> str:
    """What the names of the first and the last picture begin with."""
    ends = (PurePath(source.where(index)).parent.parts for index in (0, len(source) - 1))
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*ends, strict=False))
    return str(PurePath(*(parts[0] for parts in shared)))


def fingerprint(splits: Splits) -> dict[str, Any]:
    """Plain JSON: of every part how many, of which classes, and a digest."""
    parts = {"train": splits.train, "val": splits.val, "test": splits.test}
    return {
        name: {"pictures": len(part), "classes": list(part.classes), "digest": names_digest(part)}
        for name, part in parts.items()
        if part is not None
    }


def difference(there: Any, here: dict[str, Any]) -> str | None:
    """What has changed from one fingerprint to another, in words; None where nothing has."""
    if not isinstance(there, dict) or there.keys() != here.keys():
        return "they were split differently"
    for name, now in here.items():
        match there[name]:
            case {"pictures": int(num), "classes": list(classes), "digest": str(digest)}:
                if classes != now["classes"]:
                    return _difference_of_classes(classes, now["classes"])
                if num != now["pictures"]:
                    return f"{num:,} to {_VERBS[name]} there, {now['pictures']:,} here"
                if digest != now["digest"]:
                    return f"some to {_VERBS[name]} have different names, labels or sizes"
            case _:
                return "the record of them cannot be read"
    return None


_VERBS = {"train": "train on", "val": "choose on", "test": "test on"}


def _difference_of_classes(there: Sequence[Any], here: Sequence[Any]) -> str:
    for one, other, side in ((there, here, "there"), (here, there, "here")):
        gone = [name for name in one if name not in other]
        if gone:
            return f"the class {gone[0]!r} is only {side}"
    return "the classes are in a different order"
