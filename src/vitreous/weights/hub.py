"""Weights from the Hugging Face hub, through its own library: its cache, its revisions, its offline mode.

`hf:OWNER/NAME`, `hf:OWNER/NAME@REVISION`, `hf:OWNER/NAME/FILE` and `timm:NAME`. Only files that are read are fetched.
What arrives is held against the hub's own checksum, which that library does not do.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from vitreous.errors import UserError, did_you_mean
from vitreous.weights.names import DOCUMENTS, ENDINGS, INDICES, WHOLE

FORM = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?:/(?P<file>[\w./-]+))?(?:@(?P<revision>[\w./-]+))?")


class Place(NamedTuple):
    repository: str
    file: str | None
    revision: str | None
    where: str  # as the user wrote it


def is_of_hub(where: str) -> bool:
    return where.startswith(("hf:", "timm:"))


def fetch(where: str) -> Path:
    """The folder in the cache that holds the weights and their documents, or the one file that was named."""
    place = _place(where)
    try:
        import huggingface_hub
    except ImportError:
        raise UserError(
            f"{where}: the library `huggingface_hub` is not installed; run pip install 'vitreous[hub]'"
        ) from None
    try:
        known = _listed(huggingface_hub, place)
        paths = _cached(huggingface_hub, place) if known is None else _downloaded(huggingface_hub, place, known)
    except UserError:
        raise
    except Exception as error:  # the library raises its own, its network's and the disk's errors
        raise UserError(f"{where}: {_reason(error)}") from None
    for path in paths:
        _verify(path, where)
    return paths[0] if place.file else paths[0].parent


def _place(where: str) -> Place:
    kind, _, name = where.partition(":")
    name = f"timm/{name}" if kind == "timm" else name
    match = FORM.fullmatch(name)
    if kind not in ("hf", "timm") or not match or ".." in name:
        raise UserError(f"{where!a}: no address on the hub; write hf:OWNER/NAME, hf:OWNER/NAME@REVISION or timm:NAME")
    return Place(match["repository"], match["file"], match["revision"], where)


def _listed(hub: Any, place: Place) -> list[str] | None:
    """The files that the hub has; None where it cannot be asked."""
    try:
        info = hub.HfApi().model_info(place.repository, revision=place.revision)
    except hub.errors.HfHubHTTPError as error:
        if isinstance(error, hub.errors.RepositoryNotFoundError | hub.errors.RevisionNotFoundError):
            raise
        return None  # the hub is down: the cache may do
    except (ConnectionError, OSError) as error:
        if isinstance(error, hub.errors.LocalTokenNotFoundError):
            raise
        return None
    except Exception as error:
        # The network's own errors are of a library that changes with the version of the hub's.
        if type(error).__module__.split(".")[0] in ("httpx", "httpx2", "requests", "httpcore"):
            return None
        raise
    return [sibling.rfilename for sibling in info.siblings or []]


def _downloaded(hub: Any, place: Place, known: list[str]) -> list[Path]:
    def get(name: str) -> Path:
        return Path(hub.hf_hub_download(place.repository, name, revision=place.revision))

    weights = get(_chosen(known, place))
    names = [name for name in DOCUMENTS if name in known] if not place.file else []
    if weights.name in INDICES:
        names += [name for name in _shards(weights, place) if name in known]
    return [weights, *(get(name) for name in names)]


def _cached(hub: Any, place: Place) -> list[Path]:
    try:
        folder = Path(hub.snapshot_download(place.repository, revision=place.revision, local_files_only=True))
    except (FileNotFoundError, OSError, ValueError):
        raise UserError(
            f"{place.where}: not in the cache, and the hub cannot be reached (or HF_HUB_OFFLINE is set)"
        ) from None
    known = sorted(path.name for path in folder.iterdir())
    if place.file and (folder / place.file).is_file():
        known.append(place.file)
    weights = folder / _chosen(known, place)
    names = [name for name in DOCUMENTS if name in known] if not place.file else []
    if weights.name in INDICES:
        names += _shards(weights, place)
    for name in names:
        if not (folder / name).is_file():
            raise UserError(f"{place.where}: {name} is not in the cache, and the hub cannot be reached")
    return [weights, *(folder / name for name in names)]


def _chosen(known: list[str], place: Place) -> str:
    """The one file with the weights: safetensors if there are any."""
    if place.file:
        if place.file in known:
            return place.file
        raise UserError(f"{place.where}: has no file {place.file}.{did_you_mean(place.file, known)}")
    for name in (WHOLE[0], INDICES[0], WHOLE[1], INDICES[1], WHOLE[2]):
        if name in known:
            return name
    for ending in ENDINGS:
        found = [name for name in known if name.endswith(ending) and "/" not in name]
        if len(found) > 1:
            some = f"hf:{place.repository}/{found[0]}"
            raise UserError(f"{place.where}: has {len(found)} files of weights; name one of them, such as {some}")
        if found:
            return found[0]
    raise UserError(f"{place.where}: has no weights that are read ({', '.join(ENDINGS)})")


def _shards(index: Path, place: Place) -> list[str]:
    try:
        names = set(json.loads(index.read_text())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        names = set()
    if not names or not all(isinstance(name, str) and re.fullmatch(r"[\w-][\w.-]*", name) for name in names):
        raise UserError(f"{place.where}: its {index.name} names no files beside it")
    return sorted(names)


def _verify(path: Path, where: str) -> None:
    """The cache keeps a file under its checksum: sha256 of large ones, Git's sha1 of small ones."""
    stored = path.resolve()
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", stored.name):
        return
    digest = hashlib.sha256() if len(stored.name) == 64 else hashlib.sha1(b"blob %d\0" % stored.stat().st_size)
    with stored.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    if digest.hexdigest() != stored.name:
        stored.unlink()
        path.unlink(missing_ok=True)
        raise UserError(f"{where}: {path.name} arrived damaged (its checksum is wrong) and was removed; fetch it again")


def _reason(error: Exception) -> str:
    """The library's errors run over many lines; the user needs one."""
    for name, reason in (
        ("GatedRepoError", "its owner wants to be asked first; accept the terms on its page, then run hf auth login"),
        ("RepositoryNotFoundError", "there is no such model on the hub (if it is private, run hf auth login)"),
        ("RevisionNotFoundError", "has no such revision"),
        ("EntryNotFoundError", "a file of it is not on the hub"),
    ):
        if name in (kind.__name__ for kind in type(error).__mro__):
            return reason
    lines = str(error).strip().splitlines()
    return f"cannot be fetched ({lines[0][:200] if lines else type(error).__name__}); try again"
